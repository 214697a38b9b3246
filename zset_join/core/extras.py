"""Installed packages: those that only some features need, and those with stages of their own.

The law: wherever a package of an extra is imported, directly or by another one, its absence is `MissingPackageError` with the
pip line of the extra, never a bare `ImportError`; it is an `ImportError` too.

A package with its own stages, batch queries or table functions declares a module, whose import registers them:

    [project.entry-points."zset_join.extensions"]
    repeated = "my_package.repeated"

These modules are imported when a name is met that nobody has registered: the kind of a stage in a checkpoint, a function in
FROM. So a process without that import, such as a worker of Spark's or `zset-join`, can read its checkpoints and SQL.

`ReadWhenUsed`: names of a package, and values of a mapping, that are made when they are first used.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ContextDecorator, contextmanager
from importlib import import_module
from types import TracebackType
from typing import Any, TypeVar

from zset_join.core.errors import MissingPackageError

__all__ = ["EXTRAS", "ReadWhenUsed", "lazy_names", "load_extensions", "needed_for", "raising_interrupts"]

EXTRAS: Mapping[str, str] = {
    "confluent_kafka": "kafka",
    "deltalake": "delta",
    "duckdb": "duckdb",
    "httpx": "http",
    "hypothesis": "testing",
    "obstore": "objects",
    "pandas": "spark",
    "polars": "observe",
    "prompt_toolkit": "sql",
    "psycopg": "postgres",
    "pyspark": "spark",
    "redis": "redis",
    "sortedcontainers": "testing",
    "sqlglot": "sql",
    "starlette": "console",
    "uvicorn": "console",
}
"""Package to the extra that brings it, as pyproject.toml has them."""


@contextmanager
def needed_for(what: str, package: str | None = None) -> Iterator[None]:
    """Import packages of extras inside; one that is missing is reported in the library's terms.

    >>> with needed_for("nothing"):
    ...     import json
    """
    try:
        yield
    except MissingPackageError:
        raise
    except ImportError as error:
        name = (error.name or "").partition(".")[0]
        missing = package if name not in EXTRAS and not isinstance(error, ModuleNotFoundError) else name
        if missing is None or missing not in EXTRAS:
            raise
        reason = "is not installed" if isinstance(error, ModuleNotFoundError) else f"cannot be imported ({error})"
        extra = EXTRAS[missing]
        raise MissingPackageError(
            f"{what} needs the package {missing}, which {reason}: pip install './path/to/the/clone[{extra}]', inside Spark on "
            "the driver and all workers.",
            code="MISSING_PACKAGE",
            package=missing,
            extra=extra,
        ) from error


class raising_interrupts(ContextDecorator):  # noqa: N801 - used as a verb; a class, since every epoch enters it
    """Raise KeyboardInterrupt for a Ctrl-C inside: a query of DuckDB that it ends raises RuntimeError."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if isinstance(error, RuntimeError) and str(error) == "Query interrupted":
            raise KeyboardInterrupt from error


GROUP = "zset_join.extensions"


def load_extensions() -> None:
    """Import the modules of all installed packages with extensions."""
    for entry in importlib.metadata.entry_points(group=GROUP):
        entry.load()


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package."""

    def get(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        value = getattr(import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, listed


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class ReadWhenUsed(Mapping[_Key, _Value]):
    """Hold values that are made when they are used.

    >>> squares = ReadWhenUsed(range(3), lambda number: number**2)
    >>> squares[2], squares.used
    (4, {2: 4})
    """

    def __init__(self, keys: Iterable[_Key], read: Callable[[_Key], _Value]) -> None:
        self._keys = dict.fromkeys(keys)
        self._read = read
        self.used: dict[_Key, _Value] = {}

    def __getitem__(self, key: _Key) -> _Value:
        if key not in self.used:
            if key not in self._keys:
                raise KeyError(key)
            self.used[key] = self._read(key)
        return self.used[key]

    def __iter__(self) -> Iterator[_Key]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
