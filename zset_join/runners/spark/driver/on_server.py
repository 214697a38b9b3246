"""Functions that run in a Python process of a Spark Connect server; client and server share no disk.

The law: what a function returns there is returned here, and the error of this library that it raises is raised here, with its
code, message and facts. Both travel as the bytes of rows; they are unpickled by `unpacked`, which makes values, reports and
errors of this library, and nothing else.

Cost: one job with one task per call.
"""

from __future__ import annotations

import importlib
import io
import json
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from time import monotonic, sleep
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from zset_join.checkpoint.reading import no_checkpoint, stored_query_id
from zset_join.core.errors import PlanError, StateError, ZsetJoinError
from zset_join.lookup.secret import Secret
from zset_join.plan.query_plan import QueryPlan
from zset_join.query.rows import PlannedQuery
from zset_join.runners.spark.driver.driver_query import collected_query
from zset_join.runners.spark.rows.baseline import make_start, needs_start
from zset_join.zset import single_batch

__all__ = [
    "on_server",
    "once_free",
    "packed",
    "refuse_missing",
    "start_on_server",
    "unpacked",
    "without_package",
]

_PLAIN = (str, bytes, bool, int, float, date, datetime, time, timedelta, Decimal, type(None))
_MADE_HERE: Mapping[str, frozenset[str]] = {
    "builtins": frozenset({"frozenset", "set"}),
    "datetime": frozenset({"date", "datetime", "time", "timedelta", "timezone"}),
    "decimal": frozenset({"Decimal"}),
    "uuid": frozenset({"UUID"}),
    "zoneinfo": frozenset({"ZoneInfo", "ZoneInfo._unpickle"}),
    "zset_join.evolution.differences": frozenset({"PlanDiff", "ViewDiff"}),
    "zset_join.tools.reports": frozenset({"InputChange", "RowEvent", "RowHistory", "VerificationReport"}),
    "zset_join.tools.savepoint": frozenset({"Savepoint"}),
    "zset_join.zset.zset": frozenset({"ZSet"}),
}
"""What an answer may consist of beside plain values and errors of this library, by module."""
_ERRORS = "zset_join.core.errors"
_NO_MODULE = re.compile(r"No module named '(zset_join|spill|duckdb|msgspec|numba|numpy|pyarrow|sqlglot|typing_extensions)\b")
_ENDING_SECONDS = 15
"""How long the process of an earlier run may still hold the checkpoint."""
_PART_BYTES = 1 << 20
"""Bytes of a row of an answer; a message of Spark Connect has room for 4 MB of rows."""


def on_server(session: SparkSession, function: Callable[[], Any]) -> Any:
    """Run a function in a Python process of the server and return its result."""

    def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield from _parts(packed(function))

    rows = session.range(1).coalesce(1).mapInArrow(answer, "answer binary")
    return unpacked(_whole(_collected(rows)))


def start_on_server(session: SparkSession, location: str, *, is_timed: bool, is_needed: bool) -> bool:
    """Make the directory of the source that brings epochs when none has a row, where the query reads one."""

    def make() -> bool:
        if not is_needed and not needs_start(location, is_timed=is_timed):
            return False
        make_start(location)
        return True

    return bool(on_server(session, make))


def _collected(rows: DataFrame) -> list[Row]:
    try:
        return rows.collect()
    except PySparkException as error:
        missing = without_package(error)
        if missing is None:
            raise
        raise missing from error


def without_package(error: BaseException) -> PlanError | None:
    """Return the refusal of a server whose Python lacks this package or one that it needs; None for other failures."""
    found = _NO_MODULE.search(str(error))
    if found is None:
        return None
    return PlanError(
        f"the Python that Spark runs on the server has no package {found[1]}, which the query needs there: client and server "
        "share no files. Install the same version of zset-join, with the same extras, for the server's Python (the one that "
        "PYSPARK_PYTHON names where the server was started), and start the query again; nothing was committed.",
        code="WORKER_PYTHON",
        package=found[1],
    )


def _parts(content: bytes) -> Iterator[pa.RecordBatch]:
    """Yield an answer as rows that a message of Spark Connect has room for."""
    for at in range(0, len(content), _PART_BYTES):
        yield pa.RecordBatch.from_pydict({"answer": pa.array([content[at : at + _PART_BYTES]], pa.binary())})


def _whole(parts: Sequence[Row]) -> bytes:
    """Return the answer of one task, whose rows arrive in their order."""
    return b"".join(bytes(part[0]) for part in parts)


def packed(function: Callable[[], Any]) -> bytes:
    """Call a function; return its result, or its error of this library, as bytes for `unpacked`."""
    content, is_value = io.BytesIO(), True
    try:
        found = function()
    except ZsetJoinError as error:
        facts = {name: _plain(value) for name, value in error.facts.items()}
        is_value, found = False, (type(error).__name__, error.message, error.code, facts)
    _Pickler(content).dump((is_value, found))
    return content.getvalue()


def unpacked(content: bytes) -> Any:
    """Return the packed result, or raise the packed error."""
    is_value, value = _Unpickler(io.BytesIO(content)).load()
    if is_value:
        return value
    kind, message, code, facts = value
    error: type[ZsetJoinError] = getattr(importlib.import_module(_ERRORS), kind, ZsetJoinError)
    raise error(message, code=code, **facts)


def _table_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


class _Pickler(pickle.Pickler):
    """Write rows in Arrow's stream format, and plans as JSON."""

    def persistent_id(self, obj: Any) -> tuple[str, bytes] | None:
        if isinstance(obj, pa.Table):
            return "table", _table_bytes(obj)
        if isinstance(obj, pa.RecordBatch):
            return "batch", _table_bytes(pa.Table.from_batches([obj]))
        if isinstance(obj, np.ndarray) and obj.dtype == np.int64:
            return "weights", obj.astype("<i8").tobytes()
        if isinstance(obj, PlannedQuery):
            written = obj.plan.to_json(), [dict(one) for one in obj.inputs], obj.has_several
            return "query", json.dumps(written).encode()
        return None


class _Unpickler(pickle.Unpickler):
    """Make values, reports and errors, and call nothing else."""

    def persistent_load(self, pid: Any) -> Any:
        kind, content = pid
        if kind == "weights":
            return np.frombuffer(content, "<i8").astype(np.int64)
        if kind == "query":
            plan, inputs, has_several = json.loads(content)
            with Secret.allowed(None):  # it is read for the program that started the query
                return collected_query(QueryPlan.from_json(plan), inputs, has_several=has_several)
        table = pa.ipc.open_stream(content).read_all()
        return table if kind == "table" else single_batch(table)

    def find_class(self, module: str, name: str) -> Any:
        if name not in _MADE_HERE.get(module, frozenset()):
            raise StateError(
                f"an answer of the server holds a {module}.{name}, which this version of the library does not have. Install "
                "the same version on client and server.",
                code="UNKNOWN_ANSWER",
                found=f"{module}.{name}",
            )
        return super().find_class(module, name)


def _plain(value: Any) -> Any:
    """Return a fact as it can travel: values as they are, others as text."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(_plain(one) for one in value) if not hasattr(value, "_fields") else tuple(map(_plain, value))
    return value if type(value) in _PLAIN else str(value)


def refuse_missing(session: SparkSession, location: str) -> None:
    """Refuse a checkpoint that does not exist on the server."""

    def known() -> None:
        if stored_query_id(location) is None:
            raise no_checkpoint(location)

    on_server(session, known)


def once_free(function: Callable[[], Any]) -> Any:
    """Return the result of a function that opens a checkpoint; it is called again while an earlier run still ends."""
    ends = monotonic() + _ENDING_SECONDS
    while True:
        try:
            return function()
        except StateError as error:
            if error.code != "CHECKPOINT_IN_USE" or monotonic() > ends:
                raise
        sleep(1)
