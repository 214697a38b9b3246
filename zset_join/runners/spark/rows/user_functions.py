"""The Python and JVM functions of a query, which a checkpoint records by name, beside `udfVersion`.

The law: a restart with other functions, by name, or with another `udfVersion` is refused. Code is not compared: a function that
gives other values needs another `udfVersion`. Within one plan two functions of one name are distinguished by their pickles.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.serializers import CPickleSerializer
from pyspark.sql import DataFrame

from zset_join.core.errors import StateError
from zset_join.runners.spark.frames.facts import FoundFunction, reader_of

__all__ = ["UserFunction", "explained_functions", "functions_in", "with_functions"]


@dataclass(frozen=True, slots=True)
class UserFunction:
    """One function of the user; `digest` is that of its pickle, which only this process can compare."""

    name: str
    digest: str = ""


def functions_in(rows: DataFrame) -> list[UserFunction]:
    """Return the functions in the plan of a DataFrame, those of its source included, but for those of this library."""
    found = reader_of(rows.sparkSession).functions(rows)
    return list(dict.fromkeys(_known(one) for one in found if not _is_of_library(one)))


def explained_functions(functions: Sequence[UserFunction], version: str | None) -> list[str]:
    """Return the line of `explain` on the functions of a query."""
    if not functions:
        return []
    compared = "their names; set udfVersion, and change it with their code" if version is None else f'udfVersion="{version}"'
    return [f"Python functions: {', '.join(_names(functions))}; a restart compares {compared}"]


def with_functions(
    description: Mapping[str, Any], stored: Mapping[str, Any] | None, functions: Sequence[UserFunction], version: str | None
) -> Mapping[str, Any]:
    """Return the description of a query with its functions, compared with the one in its checkpoint, if there is one yet."""
    given = {"version": version, "names": _names(functions)} if functions or version else None
    before = None if stored is None else stored.get("functions")
    if stored is not None and given != before:
        raise _changed(given or {"version": None, "names": []}, before or {"version": None, "names": []})
    return description if given is None else {**description, "functions": given}


def _names(functions: Sequence[UserFunction]) -> list[str]:
    return sorted({one.name for one in functions})


def _changed(given: Mapping[str, Any], stored: Mapping[str, Any]) -> StateError:
    changed = sorted(set(given["names"]) ^ set(stored["names"]))
    return StateError(
        f"the checkpoint was made with other functions; different: {', '.join(changed) or 'their udfVersion'}. Rows that the "
        "old ones made would be retracted as the new ones make them. Start with a new checkpointLocation and a new output, or, "
        f"if they give the same answers for every row, keep their names and udfVersion={stored['version']!r}.",
        code="FUNCTION_CHANGED",
        functions=changed,
        stored=stored["version"],
        given=given["version"],
    )


def _known(found: FoundFunction) -> UserFunction:
    command = b"" if found.command is None else found.command
    return UserFunction(found.name, hashlib.blake2b(command, digest_size=8).hexdigest())


def _is_of_library(found: FoundFunction) -> bool:
    if found.command is None:
        return False
    try:
        loaded = CPickleSerializer().loads(found.command)  # type: ignore[no-untyped-call]
    except (PySparkException, ImportError, AttributeError, TypeError, ValueError, EOFError):
        return False  # it needs a module of the workers
    return bool(getattr(loaded[0] if isinstance(loaded, tuple) else loaded, "is_of_library", False))
