"""Java packages and classes that PySpark has looked up once stay known to the tests.

A program that writes `jvm.org.apache.spark.sql.Encoders` lets the JVM look for a class of every prefix: a search of all JARs
that finds nothing, because a prefix is a package. That was a tenth of the samples of a profiled JVM. The meaning of a name does
not change while a JVM runs.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaPackage, JVMView

__all__ = ["keep_java_names"]


def keep_java_names() -> None:
    """Let views and packages of Py4J keep what they have found, for as long as they live."""
    for kind in (JVMView, JavaPackage):
        if kind.__getattr__.__name__ != "kept":
            kind.__getattr__ = _keeping(kind.__getattr__)


def _keeping(look_up: Any) -> Any:
    def kept(self: Any, name: str) -> Any:
        found = look_up(self, name)
        self.__dict__[name] = found
        return found

    return kept
