"""The materialized view as a Delta table."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from zset_join.core.errors import OptionError, ResourceError, SinkError, WeightOverflowError
from zset_join.core.relation import Relation
from zset_join.sinks.delta_view import DeltaViewSink
from zset_join.storage.operations import observe
from zset_join.zset import ZSet

NAN = float("nan")
SCHEMA = pa.schema({"id": pa.int64(), "v": pa.string()})


def opened(place: Path, schema: pa.Schema = SCHEMA, **options: Any) -> DeltaViewSink:
    sink = DeltaViewSink(place / "table", **options)
    sink.open(Relation(name="answer", schema=schema, mode="changelog"), "query")
    return sink


def keyed(place: Path, **options: Any) -> DeltaViewSink:
    return opened(place, key=["id"], **options)


def rows(ids: list[Any], values: list[Any], weights: list[int] | None = None) -> ZSet:
    return ZSet.of({"id": ids, "v": values}, weights, schema=SCHEMA)


def held(sink: DeltaViewSink) -> Counter[str]:
    """Count the rows; as text, so that NaN and nested values can be counted."""
    return Counter(repr(tuple(row.values())) for row in sink.read().to_pylist())


def rows_of(*lines: tuple[Any, ...]) -> Counter[str]:
    return Counter(repr(line) for line in lines)


def seen_by_others(place: Path) -> list[tuple[Any, ...]]:
    """Return what a reader of Delta tables sees."""
    return sorted(tuple(row.values()) for row in DeltaTable(place / "table").to_pyarrow_table().to_pylist())


# -- content ----------------------------------------------------------------------------------------------------------


def test_any_reader_of_delta_tables_sees_the_view(tmp_path: Path) -> None:
    sink = keyed(tmp_path)

    sink.write(0, [rows([1, 2], ["a", "b"])])
    sink.write(1, [rows([1, 1, 3], ["a", "c", "n"], [-1, 1, 1])])

    assert seen_by_others(tmp_path) == [(1, "c"), (2, "b"), (3, "n")]


def test_an_older_version_shows_the_view_at_the_end_of_an_older_epoch(tmp_path: Path) -> None:
    sink = keyed(tmp_path)
    sink.write(0, [rows([1], ["a"])])
    sink.write(1, [rows([1, 1], ["a", "b"], [-1, 1])])

    assert DeltaTable(tmp_path / "table", version=1).to_pyarrow_table().to_pylist() == [{"id": 1, "v": "a"}]


def test_copies_that_lie_in_different_files_are_retracted_together(tmp_path: Path) -> None:
    sink = opened(tmp_path, target_bytes=1)
    sink.write(0, [rows([1], ["a"])])
    sink.write(1, [rows([1, 2], ["a", "b"], [2, 1])])

    sink.write(2, [rows([1], ["a"], [-3])])

    assert held(sink) == rows_of((2, "b"))


def test_changes_that_cancel_out_within_an_epoch_touch_no_file(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    sink.write(0, [rows([1], ["a"])])
    before = DeltaTable(tmp_path / "table").file_uris()

    progress = sink.write(1, [rows([1], ["a"], [-1]), rows([1], ["a"])])

    assert (progress.rows, DeltaTable(tmp_path / "table").file_uris()) == (0, before)


@pytest.mark.parametrize(
    ("inserted", "retracted"),
    [
        (pa.array([0.0]), pa.array([-0.0])),
        (pa.array([NAN]), pa.array([-NAN])),
        (pa.array([None], pa.float32()), pa.array([None], pa.float32())),
        (pa.array([[0.0, None]]), pa.array([[-0.0, None]])),
        (pa.array([{"a": NAN}]), pa.array([{"a": -NAN}])),
        (pa.array([None], pa.string()), pa.array([None], pa.string())),
    ],
    ids=["zero", "nan", "null float", "list", "struct", "null text"],
)
@pytest.mark.parametrize("key", [(), ("k",)], ids=["bag", "key"])
def test_equal_values_with_other_bits_are_the_same_row(
    inserted: pa.Array, retracted: pa.Array, key: tuple[str, ...], tmp_path: Path
) -> None:
    sink = opened(tmp_path, pa.schema({"k": inserted.type}), key=key)
    sink.write(0, [ZSet.of({"k": inserted})])

    sink.write(1, [ZSet.of({"k": retracted}, [-1])])

    assert held(sink) == Counter()


def test_null_is_a_key_like_any_other(tmp_path: Path) -> None:
    sink = keyed(tmp_path)
    sink.write(0, [rows([None, 1], ["a", "b"])])

    sink.write(1, [rows([None, None], ["a", "c"], [-1, 1])])

    assert held(sink) == rows_of((None, "c"), (1, "b"))


# -- what is refused --------------------------------------------------------------------------------------------------


def refusal(sink: DeltaViewSink, epoch: int, chunk: ZSet) -> SinkError:
    """Return the refusal of an epoch, after checking that the view is as before."""
    before = held(sink)
    with pytest.raises(SinkError) as caught:
        sink.write(epoch, [chunk])
    assert (held(sink), sink.last_epoch()) == (before, epoch - 1 if epoch else None)
    return caught.value


@pytest.mark.parametrize("second", [rows([2, 2], ["b", "c"]), rows([2], ["b"], [2])], ids=["two rows", "weight 2"])
def test_two_new_rows_with_one_key_are_refused_naming_it(second: ZSet, tmp_path: Path) -> None:
    sink = DeltaViewSink(tmp_path / "table")  # the primary key of the output is the key
    sink.open(Relation(name="answer", schema=SCHEMA, primary_key=("id",), mode="changelog"), "query")
    sink.write(0, [rows([1], ["a"])])

    error = refusal(sink, 1, second)

    assert sink.write(1, []).epoch == 1
    assert (error.code, error.facts["key"], error.facts["epoch"]) == ("SINK_KEY", (2,), 1)


def test_a_new_row_with_the_key_of_a_live_one_is_refused_naming_it(tmp_path: Path) -> None:
    sink = keyed(tmp_path, target_bytes=1)
    sink.write(0, [rows([1, 2], ["a", "b"])])

    error = refusal(sink, 1, rows([2, 3], ["c", "n"]))

    assert (error.code, error.facts["key"]) == ("SINK_KEY", (2,))


def test_a_key_that_moves_from_row_to_row_within_an_epoch_is_no_conflict(tmp_path: Path) -> None:
    sink = keyed(tmp_path)
    sink.write(0, [rows([1], ["a"])])

    sink.write(1, [rows([1], ["b"]), rows([1], ["a"], [-1])])

    assert held(sink) == rows_of((1, "b"))


def test_retracting_another_row_than_the_key_holds_is_refused(tmp_path: Path) -> None:
    sink = keyed(tmp_path)
    sink.write(0, [rows([1], ["a"])])

    error = refusal(sink, 1, rows([1, 1], ["x", "b"], [-1, 1]))

    assert error.code == "SINK_RETRACTION"
    assert "its key holds {'id': 1, 'v': 'a'}" in str(error)


@pytest.mark.parametrize("key", [(), ("id",)], ids=["bag", "key"])
def test_retracting_a_row_that_is_not_there_is_refused(key: tuple[str, ...], tmp_path: Path) -> None:
    sink = opened(tmp_path, key=key)
    sink.write(0, [rows([1], ["a"])])

    error = refusal(sink, 1, rows([7, 8, 9], ["x", "y", "n"], [-1, -1, 1]))

    assert (error.code, error.facts["row"], error.facts["retractions"]) == ("SINK_RETRACTION", (7, "x"), 2)


def test_retracting_more_copies_than_there_are_is_refused(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    sink.write(0, [rows([1], ["a"], [2])])

    assert "the view holds it 2 times" in str(refusal(sink, 1, rows([1], ["a"], [-3])))


def test_a_refused_epoch_leaves_no_file_behind(tmp_path: Path) -> None:
    sink = keyed(tmp_path)
    sink.write(0, [rows([1], ["a"])])

    refusal(sink, 1, rows([1, 1], ["x", "b"], [-1, 1]))

    assert len(list((tmp_path / "table").glob("*.parquet"))) == 1


def test_weights_that_make_too_many_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="10000001"):
        opened(tmp_path).write(0, [rows([1], ["a"], [10_000_001])])


def test_a_weight_beyond_int64_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightOverflowError):
        opened(tmp_path).write(0, [rows([1], ["a"], [2**62]), rows([1], ["a"], [2**62])])


def test_a_key_that_is_no_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"\['number'\] are missing"):
        opened(tmp_path, key=["number"])


@pytest.mark.parametrize("options", [{"key": "id"}, {"vacuum_hours": 0}, {"target_bytes": 0}], ids=str)
def test_an_argument_that_cannot_be_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(OptionError) as caught:
        DeltaViewSink(tmp_path / "table", **options)

    assert caught.value.code == "SINK_OPTION"


def test_another_key_than_the_view_was_made_with_is_refused(tmp_path: Path) -> None:
    keyed(tmp_path)

    with pytest.raises(SinkError, match="made with") as caught:
        opened(tmp_path, key=["v"])

    assert caught.value.code == "SINK_SCHEMA"


# -- files ------------------------------------------------------------------------------------------------------------


def test_files_that_hold_no_changed_row_stay(tmp_path: Path) -> None:
    sink = keyed(tmp_path, target_bytes=1)
    sink.write(0, [rows([1], ["a"])])
    sink.write(1, [rows([2], ["b"])])
    first = set(DeltaTable(tmp_path / "table", version=1).file_uris())

    sink.write(2, [rows([2, 2], ["b", "c"], [-1, 1])])

    assert first < set(DeltaTable(tmp_path / "table").file_uris())


def test_the_bounds_in_the_log_spare_files_that_cannot_hold_a_changed_key(tmp_path: Path) -> None:
    sink = keyed(tmp_path, target_bytes=1)
    sink.write(0, [rows([1, 2], ["a", "b"])])
    (unread,) = (tmp_path / "table").glob("*.parquet")
    unread.unlink()

    sink.write(1, [rows([3], ["c"])])

    assert sink.last_epoch() == 1


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    sink = keyed(tmp_path)
    sink.write(0, [rows([1], ["a"])])
    (lost,) = (tmp_path / "table").glob("*.parquet")
    lost.unlink()

    with pytest.raises(SinkError, match=lost.name) as caught:
        sink.write(1, [rows([1], ["a"], [-1])])

    assert caught.value.code == "SINK_IO"


def test_small_files_are_merged_once_there_are_many(tmp_path: Path) -> None:
    sink = opened(tmp_path)

    [sink.write(epoch, [rows([epoch], ["a"])]) for epoch in range(50)]

    assert len(DeltaTable(tmp_path / "table").file_uris()) <= 16
    assert len(sink.read()) == 50


def test_a_large_view_lies_in_files_of_the_wanted_size(tmp_path: Path) -> None:
    ids = list(range(300_000))
    sink = opened(tmp_path, pa.schema({"id": pa.int64()}), key=["id"], target_bytes=100_000)

    sink.write(0, [ZSet.of({"id": ids})])

    assert len(DeltaTable(tmp_path / "table").file_uris()) == 3
    assert sorted(sink.read().column("id").to_pylist()) == ids


def test_vacuum_removes_what_no_version_needs(tmp_path: Path) -> None:
    sink = keyed(tmp_path, vacuum_hours=1)
    orphan = tmp_path / "table" / "part-of-an-attempt.parquet"
    orphan.write_bytes(b"half")
    os.utime(orphan, (1_600_000_000, 1_600_000_000))

    [sink.write(epoch, []) for epoch in range(64)]

    assert not orphan.exists()


# -- others at the same table -----------------------------------------------------------------------------------------


def test_optimize_in_the_middle_of_an_epoch_makes_the_sink_start_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = keyed(tmp_path)
    sink.write(0, [rows([1], ["a"])])
    sink.write(1, [rows([2], ["b"])])
    write, meddled = sink.log.commit, iter([DeltaTable(tmp_path / "table").optimize.compact])
    monkeypatch.setattr(sink.log, "commit", lambda *epoch, **link: (next(meddled, int)(), write(*epoch, **link))[1])

    sink.write(2, [rows([1, 1], ["a", "c"], [-1, 1])])

    assert seen_by_others(tmp_path) == [(1, "c"), (2, "b")]


def test_a_table_that_changes_all_the_time_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = keyed(tmp_path, target_bytes=1)
    sink.write(0, [rows([1], ["a"])])
    write = sink.log.commit

    def meddle(*epoch: Any, **link: Any) -> bool:
        table = DeltaTable(tmp_path / "table")
        write_deltalake(table, table.to_pyarrow_table(), mode="overwrite")
        return write(*epoch, **link)

    monkeypatch.setattr(sink.log, "commit", meddle)

    with pytest.raises(SinkError, match="5 attempts") as caught:
        sink.write(1, [rows([1, 1], ["a", "c"], [-1, 1])])

    assert (caught.value.code, seen_by_others(tmp_path)) == ("SINK_CONFLICT", [(1, "a")])


def test_an_error_after_the_commit_does_not_take_its_files_away(tmp_path: Path) -> None:
    sink = keyed(tmp_path)
    sink.write(0, [rows([1], ["a"])])

    def fail_after_the_commit(operation: Any, act: Any) -> Any:
        result = act()
        if operation.kind == "put_new":
            raise OSError("the answer of the store was lost")
        return result

    with pytest.raises(SinkError, match="the answer of the store was lost"), observe(fail_after_the_commit):
        sink.write(1, [rows([1, 1], ["a", "c"], [-1, 1])])

    assert seen_by_others(tmp_path) == [(1, "c")]
    assert sink.write(1, [rows([1, 1], ["a", "c"], [-1, 1])]).replayed
