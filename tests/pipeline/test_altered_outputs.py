"""A view gets more columns: its outputs get them with the epoch of the change, once, whatever ends the process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from tests.pipeline.test_durable_changes import BY_CITY, COUNTED, JOINED, LARGE, MORE, ROWS, held, stored
from tests.sweeps import some_of
from zset_join.checkpoint.reading import query_plan
from zset_join.core.errors import SinkError
from zset_join.expressions import col
from zset_join.pipeline import FunctionSink, Pipeline, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.runners.local.checkpoint_diff import diff_of_checkpoint
from zset_join.runners.local.stopped import evolve_directory, undo_of_directory
from zset_join.sinks.csv_files import CsvFilesSink
from zset_join.sinks.delta_view import DeltaChangelogSink, DeltaViewSink
from zset_join.sinks.duckdb_view import DuckDBViewSink
from zset_join.sinks.parquet_changelog import ParquetChangelogSink
from zset_join.storage.operations import Operation, observe

BAG = JOINED.select("who", "total")
MORE_OF_BAG = JOINED.select("who", "total", twice=col("total") * 2)
KINDS: dict[str, Callable[[Path], Any]] = {
    "duckdb": lambda place: DuckDBViewSink(place / "out.duckdb", "v", hold_seconds=0),
    "parquet": lambda place: ParquetChangelogSink(place / "parquet"),
    "delta_view": lambda place: DeltaViewSink(place / "view"),
    "delta_changelog": lambda place: DeltaChangelogSink(place / "changelog"),
}


class Killed(BaseException):
    """The end of a process."""


def rows_of(sink: Any) -> Counter[tuple[Any, ...]]:
    """Return what an output holds, or what its lines add up to."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in sink.read().to_pylist():
        weight = row.pop("_weight", 1)
        found[tuple(value for name, value in row.items() if name not in ("epoch", "_epoch"))] += weight
    assert min(found.values(), default=0) >= 0
    return +found


def expected(pipeline: Pipeline[Any]) -> Counter[tuple[Any, ...]]:
    return Counter(held(pipeline))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("before", "after"), [(BY_CITY, COUNTED), (BAG, MORE_OF_BAG)], ids=["key", "bag"])
def test_an_output_that_stays_gets_the_columns_and_the_difference(tmp_path: Path, kind: str, before: Any, after: Any) -> None:
    sink = KINDS[kind](tmp_path)
    with Pipeline(before, tmp_path / "dir", outputs=[sink]) as pipeline:
        pipeline.step(ROWS)
        pipeline.evolve(after)
        changed = (rows_of(sink), expected(pipeline))
        pipeline.step(MORE)
    again = KINDS[kind](tmp_path)
    with Pipeline(after, tmp_path / "dir", outputs=[again]) as pipeline:
        pipeline.step({"orders": [{"id": 3, "who": "a", "total": 50}]})
        last = (rows_of(again), expected(pipeline))

    assert changed[0] == changed[1]
    assert last[0] == last[1]


@contextmanager
def ends_at(number: int) -> Iterator[list[int]]:
    """End the process before its file operation of this number that changes something; yields the count so far."""
    done = [0]

    def observer(operation: Operation, act: Callable[[], Any]) -> Any:
        if operation.kind in ("read", "size", "list", "map", "lock", "open") or ".beat" in operation.path:  # of a thread
            return act()
        done[0] += 1
        if done[0] > number:
            raise Killed
        return act()

    with observe(observer):
        yield done


def killed_at(place: Path, number: int) -> bool:
    """Kill a change of query at its file operation of this number, continue, and compare; return whether it was killed."""
    place.mkdir()

    def sinks() -> list[Any]:
        return [make(place) for make in KINDS.values()]

    with Pipeline(BY_CITY, place / "dir", outputs=sinks()) as pipeline:
        pipeline.step(ROWS)
        with ends_at(number) as done, suppress(Killed):
            pipeline.evolve(COUNTED)
    has_changed = query_plan(str(place / "dir")).output.schema.names == ["city", "t", "n"]
    outputs = sinks()
    with Pipeline(COUNTED if has_changed else BY_CITY, place / "dir", outputs=outputs) as again:
        begun = [rows_of(sink) for sink in outputs]
        assert begun == [expected(again)] * len(begun), number
        again.step(MORE)
        assert [rows_of(sink) for sink in outputs] == [expected(again)] * len(begun), number
    return done[0] > number


@pytest.mark.parametrize("part", some_of([str(one) for one in range(32)], short=["3"]))
def test_a_kill_at_any_operation_leaves_outputs_of_one_query_or_the_other(tmp_path: Path, part: str) -> None:
    number = int(part)
    while killed_at(tmp_path / str(number), number):
        number += 32

    assert number > 32


class Given:
    """A function outside the process, which keeps the last answer that it was given for each epoch."""

    def __init__(self) -> None:
        self.epochs: dict[int, Counter[tuple[Any, ...]]] = {}

    def __call__(self, epoch: int, delta: Any) -> None:
        self.epochs[epoch] = Counter({tuple(row): weight for row, weight in delta.to_pylist()})

    def total(self) -> Counter[tuple[Any, ...]]:
        found = Counter[tuple[Any, ...]]()
        for epoch in self.epochs.values():
            found.update(epoch)
        return Counter({row: weight for row, weight in found.items() if weight})


def killed_with_files(place: Path, number: int) -> bool:
    """Do the same to outputs of files per epoch and a function, which take no columns."""
    place.mkdir()
    given = Given()

    def sinks() -> list[Any]:
        return [CsvFilesSink(place / "csv"), FunctionSink(given)]

    with Pipeline(BY_CITY, place / "dir", outputs=sinks()) as pipeline:
        pipeline.step(ROWS)
        with ends_at(number) as done, suppress(Killed):
            pipeline.evolve(LARGE)
    has_changed = bool(diff_of_checkpoint(place / "dir", BY_CITY).rebuilt)
    outputs = sinks()
    with Pipeline(LARGE if has_changed else BY_CITY, place / "dir", outputs=outputs) as again:
        assert [rows_of(outputs[0]), given.total()] == [expected(again)] * 2, number
        again.step(MORE)
        assert [rows_of(outputs[0]), given.total()] == [expected(again)] * 2, number
    return done[0] > number


@pytest.mark.parametrize("part", some_of([str(one) for one in range(8)], short=["5"]))
def test_a_kill_at_any_operation_leaves_files_and_functions_of_one_query_or_the_other(tmp_path: Path, part: str) -> None:
    number = int(part)
    while killed_with_files(tmp_path / str(number), number):
        number += 8

    assert number > 8


def test_a_transaction_that_is_cut_off_adds_no_columns(tmp_path: Path) -> None:
    with Pipeline(BY_CITY, tmp_path / "dir", outputs=[KINDS["duckdb"](tmp_path)]) as pipeline:
        pipeline.step(ROWS)
        with mock.patch.object(DuckDBViewSink, "_apply", side_effect=Killed), suppress(Killed):
            pipeline.evolve(COUNTED)
    sink = KINDS["duckdb"](tmp_path)
    with Pipeline(COUNTED, tmp_path / "dir", outputs=[sink]) as again:
        assert rows_of(sink) == expected(again)


def test_columns_that_came_by_command_reach_an_output_that_lacked_the_epoch_before(tmp_path: Path) -> None:
    sink, dies = KINDS["parquet"](tmp_path), mock.patch.object(ParquetChangelogSink, "write", side_effect=Killed)
    with Pipeline(BY_CITY, tmp_path / "dir", outputs=[sink]) as pipeline, dies, suppress(Killed):
        pipeline.step(ROWS)
    evolve_directory(tmp_path / "dir", COUNTED)
    sinks = [KINDS["parquet"](tmp_path), KINDS["duckdb"](tmp_path)]
    with Pipeline(COUNTED, tmp_path / "dir", outputs=sinks) as again:
        again.step(MORE)
        assert [rows_of(sink) for sink in sinks] == [expected(again)] * 2
        assert sinks[0].last_epoch() == 2
    undo_of_directory(tmp_path / "dir")
    with pytest.raises(SinkError, match="SINK_SCHEMA"):
        Pipeline(BY_CITY, tmp_path / "dir", outputs=[KINDS["parquet"](tmp_path)])


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (BY_CITY.select("t"), "gets other columns|has the columns"),
        (JOINED.groupBy("city").agg(F.count().alias("n"), F.sum("total").alias("t")), "has the columns"),
    ],
    ids=["fewer", "in front"],
)
def test_columns_that_are_not_behind_the_others_are_refused_before_anything_is_written(
    tmp_path: Path, after: Any, why: str
) -> None:
    with Pipeline(BY_CITY, tmp_path / "dir", outputs=[KINDS["duckdb"](tmp_path)]) as pipeline:
        pipeline.step(ROWS)
        with pytest.raises(SinkError, match=f"EVOLVE_OUTPUT.*({why})"):
            pipeline.evolve(after)
        pipeline.step(MORE)
        assert pipeline.epoch == 2


def test_an_output_that_takes_no_columns_is_refused_and_a_new_table_is_filled_at_once(tmp_path: Path) -> None:
    with Pipeline(BY_CITY, tmp_path / "csv", outputs=[CsvFilesSink(tmp_path / "files")]) as pipeline:
        pipeline.step(ROWS)
        with pytest.raises(SinkError, match="EVOLVE_OUTPUT"):
            pipeline.evolve(COUNTED)
        with pytest.raises(SinkError, match=r"EVOLVE_OUTPUT.*have no tables"):
            pipeline.evolve(COUNTED, new_table="v2")
    with Pipeline(BY_CITY, tmp_path / "dir", outputs=[KINDS["duckdb"](tmp_path), KINDS["parquet"](tmp_path)]) as pipeline:
        pipeline.step(ROWS)
        pipeline.evolve(COUNTED.select("n", "city"), new_table="v2")
        pipeline.step(MORE)
        after = expected(pipeline)
    new: list[Any] = [DuckDBViewSink(tmp_path / "out.duckdb", "v2"), ParquetChangelogSink(tmp_path / "v2")]
    with Pipeline(COUNTED.select("n", "city"), tmp_path / "dir", outputs=new):
        assert [rows_of(sink) for sink in new] == [after] * 2
    assert len(stored(tmp_path / "out.duckdb", "v")) == 2


def test_a_function_takes_more_columns_in_memory() -> None:
    given: list[pa.Schema] = []
    pipeline = Pipeline(BY_CITY, outputs=[FunctionSink(lambda _, delta: given.append(delta.schema))])
    pipeline.step(ROWS)
    pipeline.evolve(COUNTED)

    assert [schema.names for schema in given] == [["city", "t"], ["city", "t", "n"]]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_never_null_may_become_null_and_back(tmp_path: Path, kind: str) -> None:
    columns = [pa.field("id", pa.int64()), pa.field("never", pa.int64(), nullable=False), pa.field("may", pa.int64())]
    numbers = changes("numbers", pa.schema(columns), keys="id")
    before, after = numbers.select("id", n=col("never")), numbers.select("id", n=col("may"))
    sink = KINDS[kind](tmp_path)
    with Pipeline(before, tmp_path / "p", outputs=[sink], keep_inputs=True) as pipeline:
        pipeline.step({"numbers": [{"id": 1, "never": 1, "may": None}]})
        diff = pipeline.evolve(after)
        assert rows_of(sink) == {(1, None): 1}
        diff.write_parquet(tmp_path / "diff")
        pipeline.undo().write_parquet(tmp_path / "diff")  # the row that goes has the NULL
        assert rows_of(sink) == {(1, 1): 1}
