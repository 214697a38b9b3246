"""Every sink there is, each as the laws need it: how to make it, and what it holds.

The contents of a sink are read as a bag: row to weight, zeros omitted. A changelog is added up, whatever its form; a view is
counted. Rows are distinguished as the sinks must: NaN equals NaN, 0.0 equals -0.0.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import zset_join
from faults.sinks import weighted_lines
from zset_join.core.relation import Relation
from zset_join.sinks.csv_files import CsvFilesSink
from zset_join.sinks.delta_view import DeltaChangelogSink, DeltaViewSink
from zset_join.sinks.duckdb_view import DuckDBViewSink
from zset_join.sinks.json_lines import JsonLinesSink, RowFilesSink
from zset_join.sinks.parquet_changelog import ParquetChangelogSink
from zset_join.sinks.sink import AlterableSink, ChainedSink, DatabaseSink, Sink, TableSink
from zset_join.sinks.unfit_values import FormedSink, SelectiveSink
from zset_join.storage.operations import Operation
from zset_join.zset import ZSet

__all__ = [
    "MAKERS",
    "OUTPUT",
    "SCHEMA",
    "Crash",
    "CrashAt",
    "UnderTest",
    "contents",
    "history",
    "sinks_of_the_product",
    "summed",
    "total",
]

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.string(), "x": pa.float64()})
OUTPUT = Relation(name="answer", schema=SCHEMA, primary_key=("k",), mode="changelog")
Bag = dict[tuple[Any, ...], int]


@dataclass(frozen=True)
class UnderTest:
    """One kind of sink.

    Args:
        make: makes a sink of this kind in a directory; made twice, both mean the same output.
        has_hook: its files are ours, so that a crash can be put between any two operations; one of those that share how they
            write (`epoch_files`) represents all.
    """

    make: Callable[[Path], Sink]
    has_hook: bool = True


MAKERS: dict[str, UnderTest] = {
    "duckdb-bag": UnderTest(lambda place: DuckDBViewSink(place / "views.duckdb", "view", key=()), has_hook=False),
    "duckdb-keyed": UnderTest(lambda place: DuckDBViewSink(place / "views.duckdb", "view"), has_hook=False),
    "parquet-weight": UnderTest(lambda place: ParquetChangelogSink(place / "log")),
    "parquet-row-kind": UnderTest(lambda place: ParquetChangelogSink(place / "log", "row_kind")),
    "parquet-feed": UnderTest(lambda place: ParquetChangelogSink(place / "log", "change_data_feed")),
    "parquet-object-store": UnderTest(lambda place: ParquetChangelogSink(f"memory:/{place}/log")),
    "delta-bag": UnderTest(lambda place: DeltaViewSink(place / "table", key=(), target_bytes=4096)),
    "delta-keyed": UnderTest(lambda place: DeltaViewSink(place / "table", target_bytes=4096)),
    "delta-weight": UnderTest(lambda place: DeltaChangelogSink(place / "table")),
    "delta-row-kind": UnderTest(lambda place: DeltaChangelogSink(place / "table", "row_kind")),
    "delta-feed": UnderTest(lambda place: DeltaChangelogSink(place / "table", "change_data_feed")),
    "json-lines-weight": UnderTest(lambda place: JsonLinesSink(place / "lines", "weight"), has_hook=False),
    "json-lines-upsert": UnderTest(lambda place: JsonLinesSink(place / "lines"), has_hook=False),
    "rows-json": UnderTest(lambda place: RowFilesSink(place / "rows", "json", with_weights=True), has_hook=False),
    "csv-weight": UnderTest(lambda place: CsvFilesSink(place / "rows")),
    "csv-tp-delta": UnderTest(lambda place: CsvFilesSink(place / "rows", "tp_delta"), has_hook=False),
    "csv-row-kind": UnderTest(lambda place: CsvFilesSink(place / "rows", "row_kind"), has_hook=False),
    "csv-feed": UnderTest(lambda place: CsvFilesSink(place / "rows", "change_data_feed"), has_hook=False),
    "rows-parquet": UnderTest(lambda place: RowFilesSink(place / "rows", "parquet", with_weights=True), has_hook=False),
}


def sinks_of_the_product() -> set[type]:
    """Look through every module for classes with the words of a sink."""
    found = set()
    for module in pkgutil.walk_packages(zset_join.__path__, "zset_join."):
        if module.name.startswith(("zset_join.spark", "zset_join.runners.spark")) or module.name.endswith("__main__"):
            continue
        for made in vars(importlib.import_module(module.name)).values():
            if isinstance(made, type) and made.__module__.startswith("zset_join.") and not inspect.isabstract(made):
                found |= {made} if all(hasattr(made, word) for word in ("open", "last_epoch", "write", "close")) else set()
    return found - {Sink, AlterableSink, ChainedSink, FormedSink, DatabaseSink, SelectiveSink, TableSink}


def identity(value: Any) -> Any:
    """Return a value that equals another one exactly where Spark's equality holds."""
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    return value


def total(rows: Iterable[tuple[Sequence[Any], int]]) -> Bag:
    """Add up weighted rows."""
    counted: Counter[tuple[Any, ...]] = Counter()
    for row, weight in rows:
        counted[tuple(identity(value) for value in row)] += weight
    return {row: weight for row, weight in counted.items() if weight}


def summed(epochs: Iterable[Sequence[ZSet]]) -> Bag:
    """Add up the answers of epochs."""
    return total(row for chunks in epochs for chunk in chunks for row in chunk.to_pylist())


def contents(sink: Any, schema: pa.Schema = SCHEMA) -> Bag:
    return total(weighted_lines(sink, schema))


def history(seed: int, epochs: int = 5, keys: int = 12) -> list[list[ZSet]]:
    """Make the answers of some epochs, each in two chunks, retractions first; at most one live row per key, NULL being a key."""
    drawn = random.Random(seed)
    live: dict[int | None, tuple[Any, ...]] = {}
    return [_epoch(drawn, live, [None, *range(keys)]) for _ in range(epochs)]


def _epoch(drawn: random.Random, live: dict[int | None, tuple[Any, ...]], keys: list[int | None]) -> list[ZSet]:
    changed = [key for key in keys if drawn.random() < 0.4]
    old = [live.pop(key) for key in changed if key in live]
    new = [
        (key, drawn.choice([None, "", "a", "b"]), drawn.choice([None, 0.0, -0.0, float("nan"), 1.5]))
        for key in changed
        if drawn.random() < 0.7
    ]
    live.update({row[0]: row for row in new})
    return [_chunk(old, -1), _chunk(new, 1)]


def _chunk(rows: Sequence[tuple[Any, ...]], weight: int) -> ZSet:
    columns = {name: [row[number] for row in rows] for number, name in enumerate(SCHEMA.names)}
    return ZSet.of(columns, [weight] * len(rows), schema=SCHEMA)


class Crash(BaseException):
    """The end of the process, for as much as a test can have of it."""


class CrashAt:
    """An observer that lets a number of operations happen and then none, even for a clean-up.

    Args:
        position: how many operations happen.
        after: the crash comes after the operation at this position, else before it.
    """

    def __init__(self, position: int, *, after: bool = False) -> None:
        self.seen = 0
        self._position = position
        self._after = after
        self._dead = False

    def __call__(self, operation: Operation, act: Callable[[], Any]) -> Any:
        number = self.seen
        self.seen += 1
        if self._dead or (number == self._position and not self._after):
            self._dead = True
            raise Crash(operation.kind)
        try:
            return act()
        finally:
            if number == self._position:
                self._dead = True
                raise Crash(operation.kind)


def positions(count: int) -> Iterator[tuple[int, bool]]:
    """Yield every place a crash can be put: before and after each operation."""
    for number in range(count):
        yield number, False
        yield number, True
