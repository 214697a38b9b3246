"""A pipeline with a directory goes over to another query: plan and difference are true together, and last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pyarrow as pa
import pytest

from zset_join.checkpoint import bucket
from zset_join.checkpoint.files import CHECKPOINT_FORMAT
from zset_join.checkpoint.record import LoggedEpoch
from zset_join.core.errors import OptionError, SinkError, StateError
from zset_join.evolution.changed_columns import ChangeTerms
from zset_join.expressions import col
from zset_join.pipeline import Pipeline, appends, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.runners.local.stopped import undo_of_directory
from zset_join.sinks.duckdb_view import DuckDBViewSink
from zset_join.storage.trusted_files import seal, unseal

ORDERS = changes("orders", {"id": pa.int64(), "who": pa.string(), "total": pa.int64()}, keys="id")
PEOPLE = changes("people", {"who": pa.string(), "city": pa.string()}, keys="who")
JOINED = ORDERS.join(PEOPLE, on="who")
BY_CITY = JOINED.groupBy("city").agg(F.sum("total").alias("t"))
LARGE = JOINED.where(col("total") > 2).groupBy("city").agg(F.sum("total").alias("t"))
COUNTED = JOINED.groupBy("city").agg(F.sum("total").alias("t"), F.count().alias("n"))
ROWS = {
    "orders": [{"id": at, "who": "ab"[at % 2], "total": at} for at in range(6)],
    "people": [{"who": "a", "city": "Oslo"}, {"who": "b", "city": "Rome"}],
}
MORE = {"orders": [{"id": 0, "who": "a", "total": 10}, {"id": 7, "who": "b", "total": 1}]}


def held(pipeline: Pipeline[Any], name: str | None = None) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in pipeline.view(name).to_pylist())


def stored(path: Path, table: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(path)) as connection:
        return sorted(connection.sql(f'SELECT * FROM "{table}"').fetchall())


@contextmanager
def folded() -> Iterator[dict[str, int]]:
    """Count the rows that each state is fed from its log, by the name of its bucket."""
    rows: dict[str, int] = {}
    read = bucket.BucketState._read

    def counted(state: bucket.BucketState, log: Any) -> Iterator[LoggedEpoch]:
        for logged in read(state, log):
            rows[state._folder] = rows.get(state._folder, 0) + sum(map(len, logged.deltas))
            yield logged

    with mock.patch.object(bucket.BucketState, "_read", counted):
        yield rows


def test_a_directory_goes_on_with_the_new_query_and_outputs_get_the_difference_once(tmp_path: Path) -> None:
    output = tmp_path / "out.duckdb"
    with Pipeline(BY_CITY, tmp_path / "dir", outputs=[DuckDBViewSink(output, "v")]) as pipeline:
        pipeline.step(ROWS)
        diff = pipeline.evolve(LARGE)
        pipeline.step(MORE)
        after, epoch = held(pipeline), pipeline.epoch
    with Pipeline(LARGE, tmp_path / "dir", outputs=[DuckDBViewSink(output, "v")]) as again:
        reopened = held(again), again.epoch
        again.step({"people": [{"who": "b", "city": "Oslo"}]})
        last = held(again)

    assert (diff.taken, epoch) == (1, 3)
    assert after == [("Oslo", 14), ("Rome", 8)]
    assert reopened == (after, epoch)
    assert stored(output, "v") == last == [("Oslo", 22)]


def test_the_query_before_is_refused_from_then_on(tmp_path: Path) -> None:
    with Pipeline(BY_CITY, tmp_path) as pipeline:
        pipeline.step(ROWS)
        pipeline.evolve(LARGE)

    with pytest.raises(StateError, match="QUERY_CHANGED"):
        Pipeline(BY_CITY, tmp_path)


def test_stages_that_are_kept_are_fed_nothing_not_even_after_a_restart(tmp_path: Path) -> None:
    with Pipeline(BY_CITY, tmp_path) as pipeline:
        pipeline.step(ROWS)
        pipeline.step(MORE)
        pipeline.diff(LARGE)  # what the last epoch left is folded in
        with folded() as rows:
            diff = pipeline.evolve(LARGE)
            pipeline.step({})
            in_process = dict(rows)
    with folded() as rows, Pipeline(LARGE, tmp_path) as again:
        again.step({"orders": [{"id": 9, "who": "a", "total": 9}]})
        assert again.statistics()["join-0"]["left_rows"] == 7

    assert (diff.kept, list(diff.rebuilt)) == (["join-0"], ["aggregate-1"])
    assert "join-0-0" not in in_process
    assert "join-0-0" not in rows


def test_views_are_added_and_dropped_and_a_new_output_begins_with_all_rows(tmp_path: Path) -> None:
    output = tmp_path / "out.duckdb"

    def sinks(*names: str) -> dict[str, Any]:
        return {name: DuckDBViewSink(output, name) for name in names}

    with Pipeline({"a": BY_CITY, "b": ORDERS}, tmp_path / "dir", outputs=sinks("a", "b")) as pipeline:
        pipeline.step(ROWS)
        pipeline.add_view("c", COUNTED, outputs=sinks("c")["c"])
        pipeline.step(MORE)
        dropped = pipeline.drop_view("a")
        pipeline.step({})
        expected = {name: held(pipeline, name) for name in ("b", "c")}
        with pytest.raises(OptionError, match="VIEW_NAME"):
            pipeline.add_view("b", JOINED)
    with Pipeline({"b": ORDERS, "c": COUNTED}, tmp_path / "dir", outputs=sinks("b", "c")) as again:
        reopened = {name: held(again, name) for name in again.views}
        again.step({"orders": [{"id": 1, "who": "a", "total": 100}]})
        last = held(again, "c")

    assert (dropped.views["a"].status, dropped.views["b"].status) == ("dropped", "unchanged")
    assert reopened == expected
    assert last == stored(output, "c") == [("Oslo", 116, 4), ("Rome", 9, 3)]


def test_an_output_that_is_new_begins_with_all_rows_even_where_the_view_stays(tmp_path: Path) -> None:
    with Pipeline(BY_CITY, tmp_path / "dir") as pipeline:
        pipeline.step(ROWS)
        pipeline.evolve(LARGE, outputs=[DuckDBViewSink(tmp_path / "o.duckdb", "v")])
        pipeline.step(MORE)

        assert stored(tmp_path / "o.duckdb", "v") == held(pipeline)


def test_a_note_is_true_with_the_query_it_was_given_with(tmp_path: Path) -> None:
    with Pipeline({"a": BY_CITY}, tmp_path) as pipeline:
        pipeline.step(ROWS)
        pipeline.evolve_with({"a": LARGE}, ChangeTerms(note={"statements": 2}))
        pipeline.step(MORE)
    with Pipeline({"a": LARGE}, tmp_path) as again:
        assert again._directory.checkpoint.changed.note == {"statements": 2}


def test_what_is_refused_has_changed_nothing_of_the_directory(tmp_path: Path) -> None:
    seen = appends("seen", {"k": pa.string(), "n": pa.int64()})
    counts, other = seen.groupBy("k").agg(F.sum("n").alias("n")), seen.groupBy("n").agg(F.count().alias("c"))
    with Pipeline(counts, tmp_path / "dir", outputs=[DuckDBViewSink(tmp_path / "o.duckdb", "v")]) as pipeline:
        pipeline.step({"seen": [{"k": "x", "n": 2}]})
        with pytest.raises(StateError, match="EVOLVE_NO_ROWS"):
            pipeline.evolve(other)
        with pytest.raises(SinkError, match="EVOLVE_OUTPUT"):
            pipeline.evolve(counts.select("n"))
        pipeline.step({"seen": [{"k": "x", "n": 3}]})
    with Pipeline(counts, tmp_path / "dir") as again:
        assert (held(again), again.epoch) == ([("x", 5)], 2)


def test_kept_inputs_outlast_a_change_and_the_source_that_goes_with_it(tmp_path: Path) -> None:
    with Pipeline({"a": PEOPLE, "b": ORDERS}, tmp_path, keep_inputs=True) as pipeline:
        pipeline.step(ROWS)
        pipeline.drop_view("a")
        pipeline.step(MORE)
    with Pipeline({"b": ORDERS}, tmp_path, keep_inputs=True) as again:
        again.add_view("a", PEOPLE)
        again.step({"people": [{"who": "c", "city": "Bonn"}]})
        verified = again.verify(view="a").equal
    with Pipeline({"b": ORDERS, "a": PEOPLE}, tmp_path, keep_inputs=True) as third:
        assert (len(held(third, "a")), verified, len(held(third, "b"))) == (3, True, 7)


def test_a_source_that_was_dropped_does_not_come_back_empty(tmp_path: Path) -> None:
    with Pipeline({"a": PEOPLE, "b": ORDERS}, tmp_path) as pipeline:
        pipeline.step(ROWS)
        pipeline.drop_view("a")
    with Pipeline({"b": ORDERS}, tmp_path) as again, pytest.raises(StateError, match="EVOLVE_SOURCE"):
        again.add_view("a", PEOPLE)


def test_a_query_that_no_epoch_has_reached_changes_without_one(tmp_path: Path) -> None:
    with Pipeline(BY_CITY, tmp_path) as pipeline:
        assert pipeline.evolve(COUNTED).taken is None
        pipeline.step(ROWS)
    with Pipeline(COUNTED, tmp_path) as again:
        assert held(again) == [("Oslo", 6, 3), ("Rome", 9, 3)]


def test_columns_are_added_to_a_source_of_a_changed_query(tmp_path: Path) -> None:
    wider = changes("orders", {"id": pa.int64(), "who": pa.string(), "total": pa.int64(), "paid": pa.bool_()}, keys="id")
    with Pipeline({"a": ORDERS, "p": PEOPLE}, tmp_path) as pipeline:
        pipeline.step(ROWS)
        pipeline.add_view("j", ORDERS.join(PEOPLE, on="who"))
    views = {"a": wider, "p": PEOPLE, "j": wider.join(PEOPLE, on="who")}
    with Pipeline({"a": ORDERS, "p": PEOPLE, "j": ORDERS.join(PEOPLE, on="who")}, tmp_path) as again:
        again.evolve(views)
        again.step({"orders": [{"id": 9, "who": "a", "total": 1, "paid": True}]})
        again.drop_view("a")
    with Pipeline({"p": PEOPLE, "j": views["j"]}, tmp_path) as third:
        assert sorted(map(str, third.view("j")["paid"].to_pylist())) == ["None"] * 6 + ["True"]


@pytest.mark.parametrize("is_opened_again", [False, True])
def test_undo_is_the_query_before_and_lasts(tmp_path: Path, is_opened_again: bool) -> None:
    with Pipeline({"a": BY_CITY}, tmp_path) as pipeline:
        pipeline.step(ROWS)
        before = held(pipeline)
        pipeline.evolve({"a": LARGE})
        assert held(pipeline) != before
        if not is_opened_again:
            pipeline.undo()
    with Pipeline({"a": LARGE if is_opened_again else BY_CITY}, tmp_path) as again:
        if is_opened_again:
            again.undo()
        assert held(again) == before
        again.undo()
        again.undo()
    with Pipeline({"a": BY_CITY}, tmp_path) as third:
        assert (held(third), third.epoch) == (before, 5)


def test_undo_to_one_of_several_views_answers_by_name(tmp_path: Path) -> None:
    with Pipeline({"a": BY_CITY}, tmp_path) as pipeline:
        pipeline.step(ROWS)
        pipeline.evolve({"a": BY_CITY, "b": JOINED})
    with Pipeline({"a": BY_CITY, "b": JOINED}, tmp_path) as again:
        again.undo()
        assert list(again.step(MORE)) == ["a"]


def test_undo_has_an_end_by_its_option(tmp_path: Path) -> None:
    with Pipeline(BY_CITY, tmp_path, undo_epochs=1) as pipeline:
        with pytest.raises(StateError, match="NOTHING_TO_UNDO"):
            pipeline.undo()
        pipeline.step(ROWS)
        pipeline.evolve(LARGE)
        pipeline.step({})
        pipeline.undo()
        pipeline.step({})
        pipeline.step({})
        with pytest.raises(StateError, match="UNDO_GONE"):
            pipeline.undo()
    with pytest.raises(StateError, match="UNDO_GONE"):
        undo_of_directory(tmp_path)
    with pytest.raises(OptionError, match="UNDO_EPOCHS"):
        Pipeline(BY_CITY, undo_epochs=-1)


def test_undo_behind_a_start_needs_the_sources_that_it_reads(tmp_path: Path) -> None:
    with Pipeline({"a": PEOPLE, "b": ORDERS}, tmp_path) as pipeline:
        pipeline.drop_view("a")
        pipeline.undo()
        pipeline.step(ROWS)
        pipeline.drop_view("a")
    with Pipeline({"b": ORDERS}, tmp_path) as again, pytest.raises(StateError, match="UNDO_SOURCES"):
        again.undo()


def test_views_are_added_by_name_behind_an_undo_of_a_reopened_directory(tmp_path: Path) -> None:
    with Pipeline({"a": BY_CITY}, tmp_path) as pipeline:
        pipeline.step(ROWS)
        pipeline.add_view("b", JOINED)
    with Pipeline({"a": BY_CITY, "b": JOINED}, tmp_path) as again:
        again.undo()
        again.add_view("c", JOINED.select("id", "city"))
        again.drop_view("c")
    with Pipeline({"a": BY_CITY}, tmp_path) as last:
        last.undo()
        with pytest.raises(OptionError, match=r"VIEW_NAME.*undo"):
            last.drop_view("c")
        assert last.views == ("a", "c")


@pytest.mark.parametrize("version", [CHECKPOINT_FORMAT - 1, CHECKPOINT_FORMAT + 1])
def test_a_changed_plan_of_another_format_is_refused(tmp_path: Path, version: int) -> None:
    with Pipeline(BY_CITY, tmp_path) as pipeline:
        pipeline.step(ROWS)
        pipeline.evolve(LARGE)
    (path,) = (tmp_path / "zset" / "plans").glob("*.json")
    name = f"plans/{path.name}"
    path.write_bytes(seal(unseal(path.read_bytes(), version=CHECKPOINT_FORMAT, name=name), version=version, name=name))

    with pytest.raises(
        StateError, match=rf"STATE_FORMAT.*plans.* format {version}, and this version reads format {CHECKPOINT_FORMAT}"
    ):
        Pipeline(LARGE, tmp_path)
