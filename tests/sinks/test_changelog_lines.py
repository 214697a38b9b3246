"""What an epoch's answer becomes in a changelog."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from zset_join.core.errors import SinkError
from zset_join.sinks.changelog_directory import ChangelogLines
from zset_join.zset import ZSet

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.string()})
OLD = ZSet.of({"k": [1], "v": ["old"]}, [-1], schema=SCHEMA)
NEW = ZSet.of({"k": [1], "v": ["new"]}, schema=SCHEMA)


def lines(form: Any, *chunks: ZSet, key: tuple[str, ...] = ("k",)) -> ChangelogLines:
    return ChangelogLines("log", SCHEMA, form, key, chunks, epoch=3, committed_at_us=9)


def test_an_update_is_recognised_across_chunks() -> None:
    (batch,) = lines("row_kind", OLD, NEW)

    assert batch.column("_row_kind").to_pylist() == ["-U", "+U"]


def test_without_a_key_chunks_stay_apart() -> None:
    assert [batch.column("_row_kind").to_pylist() for batch in lines("row_kind", OLD, NEW, key=())] == [["-D"], ["+I"]]


def test_the_weight_form_keeps_one_chunk_in_memory() -> None:
    assert [batch.num_rows for batch in lines("weight", OLD, NEW)] == [1, 1]


def test_the_feed_carries_epoch_and_time() -> None:
    (batch,) = lines("change_data_feed", NEW)

    assert batch.column("_commit_version").to_pylist() == [3]
    assert batch.column("_commit_timestamp").cast(pa.int64()).to_pylist() == [9]


@pytest.mark.parametrize(("form", "counts"), [("weight", (1, 1)), ("row_kind", (3, 3))])
def test_lines_and_retractions_are_counted_as_they_are_written(form: str, counts: tuple[int, int]) -> None:
    counted = lines(form, ZSet(OLD.rows, OLD.weights * 3))

    list(counted)

    assert (counted.rows, counted.retractions) == counts


@pytest.mark.parametrize("form", ["weight", "row_kind"])
def test_an_empty_answer_has_no_lines(form: str) -> None:
    assert list(lines(form, ZSet.empty(SCHEMA))) == []


def test_a_chunk_with_other_columns_is_refused_naming_the_epoch() -> None:
    with pytest.raises(SinkError, match="in epoch 3"):
        list(lines("weight", ZSet.of({"other": [1]})))
