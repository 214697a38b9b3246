"""Every sink that keeps its epochs on this host: how to make it, where it lies, and what it holds as the oracle writes it.

A sink joins by a line in `SINKS`; `tests/sinks/test_sink.py` looks through the product and fails for one that is not here, nor
among `SERVED`: those keep their rows in a server, and `tests/services` tests the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from zset_join.sinks.csv_files import CsvFilesSink
from zset_join.sinks.delta_view import DeltaChangelogSink, DeltaViewSink
from zset_join.sinks.duckdb_view import DuckDBViewSink
from zset_join.sinks.json_lines import JsonLinesSink, RowFilesSink
from zset_join.sinks.kafka_topic import KafkaTopicSink
from zset_join.sinks.parquet_changelog import ParquetChangelogSink
from zset_join.sinks.postgres_view import PostgresViewSink

__all__ = ["SERVED", "SINKS", "KindOfSink", "Weighted", "lines_of_files", "weighted_lines"]

Weighted = tuple[tuple[Any, ...], int]
_GONE = frozenset({"-U", "-D", "update_preimage", "delete"})
_ADDED = frozenset({"_weight", "_row_kind", "_change_type", "_commit_version", "_commit_timestamp", "_epoch", "epoch"})


@dataclass(frozen=True)
class KindOfSink:
    """One kind of sink.

    Args:
        sink: its class.
        make: makes one below a directory; made twice, both mean the same output.
        lies: name of its file or directory there.
    """

    sink: type
    make: Callable[[Path], Any]
    lies: str


SINKS: Mapping[str, KindOfSink] = {
    "view": KindOfSink(DuckDBViewSink, lambda root: DuckDBViewSink(root / "view.duckdb", "joined"), "view.duckdb"),
    "parquet": KindOfSink(ParquetChangelogSink, lambda root: ParquetChangelogSink(root / "log", "row_kind"), "log"),
    "delta": KindOfSink(DeltaViewSink, lambda root: DeltaViewSink(root / "table", key=()), "table"),
    "delta-log": KindOfSink(DeltaChangelogSink, lambda root: DeltaChangelogSink(root / "feed"), "feed"),
    "json-lines": KindOfSink(JsonLinesSink, lambda root: JsonLinesSink(root / "lines", "weight"), "lines"),
    "json": KindOfSink(RowFilesSink, lambda root: RowFilesSink(root / "json", "json", with_weights=True), "json"),
    "csv": KindOfSink(CsvFilesSink, lambda root: CsvFilesSink(root / "csv"), "csv"),
    "files": KindOfSink(RowFilesSink, lambda root: RowFilesSink(root / "rows", "parquet", with_weights=True), "rows"),
}

SERVED: tuple[type, ...] = (KafkaTopicSink, PostgresViewSink)
"""Sinks whose rows are in a server: `tests/services` shows that they refuse another chain."""


def weighted_lines(sink: Any, schema: pa.Schema) -> Iterator[Weighted]:
    """Yield what an open sink holds, as rows and weights.

    Args:
        sink: one of `SINKS`.
        schema: columns of its rows.
    """
    if isinstance(sink, RowFilesSink | JsonLinesSink):
        yield from lines_of_files(sink, schema)
        return
    for line in sink.read().to_pylist():
        yield tuple(value for name, value in line.items() if name not in _ADDED), _weight(line)


def lines_of_files(sink: RowFilesSink | JsonLinesSink, schema: pa.Schema) -> Iterator[Weighted]:
    """Yield what is in the files of a sink, as a reader sees it that has the columns."""
    if isinstance(sink, JsonLinesSink):
        yield from _records(sink, schema)
        return
    for path in sorted(sink.path.glob(f"epoch-*.{sink.form}")):
        if sink.form == "json":
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            for line in lines:
                yield _row(line, schema), line["_tp_delta"]
            continue
        for line in zip(*(column.to_pylist() for column in pq.ParquetFile(path).read().columns), strict=True):
            yield line[:-1], line[-1]


def _row(line: Mapping[str, Any], schema: pa.Schema) -> tuple[Any, ...]:
    return tuple(_value(line[field.name], field.type) for field in schema)


def _value(value: Any, data_type: pa.DataType) -> Any:
    return float(value) if pt.is_floating(data_type) and isinstance(value, str) else value


def _records(sink: JsonLinesSink, schema: pa.Schema) -> Iterator[Weighted]:
    """Yield the changes of records; those of a form without old rows retract the row that was present."""
    newest: dict[str, tuple[Any, ...]] = {}
    for path in sorted(sink.path.glob("*.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(text)
            value = None if record["value"] is None else json.loads(record["value"])
            if sink.form == "upsert":
                if record["key"] in newest:
                    yield newest.pop(record["key"]), -1
                if value is not None:
                    newest[record["key"]] = _row(value, schema)
                    yield newest[record["key"]], 1
            elif sink.form == "debezium":
                yield from ((_row(value[name], schema), sign) for name, sign in (("before", -1), ("after", 1)) if value[name])
            else:
                yield _row(value, schema), _weight(value)


def _weight(line: Mapping[str, Any]) -> int:
    """Return the weight of a line, in any of its forms; 1 without one."""
    reported = line.get("_row_kind", line.get("_change_type"))
    return int(line.get("_weight", -1 if reported in _GONE else 1))
