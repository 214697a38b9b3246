"""One delta, written down in each form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from zset_join.errors import OptionError, SinkError
from zset_join.sinks.changelog_form import changelog_schema, key_ordinals, to_changelog
from zset_join.zset import ZSet

DELTA = ZSet.of({"id": [1, 2, 1, 3], "name": ["old", "gone", "new", "fresh"]}, [-1, -1, 1, 1])


def lines(delta: ZSet, form: Any, **options: Any) -> list[tuple[Any, ...]]:
    return [tuple(line.values()) for line in to_changelog(delta, form, **options).to_pylist()]


def test_the_weight_form_adds_the_weight() -> None:
    assert lines(DELTA, "weight") == [(1, "old", -1), (2, "gone", -1), (1, "new", 1), (3, "fresh", 1)]


def test_row_kinds_tell_updates_from_inserts_and_deletes_by_the_key() -> None:
    assert lines(DELTA, "row_kind", key=["id"]) == [
        (1, "old", "-U"),
        (2, "gone", "-D"),
        (1, "new", "+U"),
        (3, "fresh", "+I"),
    ]


def test_without_a_key_nothing_is_an_update() -> None:
    kinds = [kind for _, _, kind in lines(DELTA, "row_kind")]

    assert kinds == ["-D", "-D", "+I", "+I"]


def test_the_change_data_feed_carries_type_version_and_time() -> None:
    feed = to_changelog(DELTA, "change_data_feed", key=["id"], epoch=7, committed_at_us=1)

    assert feed.select(["_change_type", "_commit_version"]).to_pydict() == {
        "_change_type": ["update_preimage", "delete", "update_postimage", "insert"],
        "_commit_version": [7, 7, 7, 7],
    }
    assert feed.column("_commit_timestamp").cast(pa.int64()).to_pylist() == [1, 1, 1, 1]


def test_a_row_of_weight_three_becomes_three_lines() -> None:
    delta = ZSet.of({"k": ["a", "b"]}, [-3, 2])

    assert lines(delta, "row_kind") == [("a", "-D")] * 3 + [("b", "+I")] * 2


def test_an_empty_delta_becomes_no_lines() -> None:
    assert lines(ZSet.empty(DELTA.schema), "row_kind", key=["id"]) == []


def test_a_composite_key_is_the_same_only_as_a_whole() -> None:
    delta = ZSet.of({"a": [1, 1, 2], "b": ["x", "y", "x"]}, [-1, 1, 1])

    assert [kind for *_, kind in lines(delta, "row_kind", key=["a", "b"])] == ["-D", "+I", "+I"]


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([0.0, -0.0]),
        pa.array([0.0, -0.0], pa.float32()),
        pa.array(np.array([0x7FF8000000000000, 0xFFF8000000000001], np.uint64).view(np.float64)),
        pa.array([None, None], pa.float64()),
        pa.array([None, None], pa.string()),
        pa.nulls(2),
        pa.array([[0.0, None], [-0.0, None]]),
        pa.array([{"a": None}, {"a": None}], pa.struct({"a": pa.int64()})),
        pa.array([None, None], pa.list_(pa.float64())),
        pa.array([True, True]),
    ],
    ids=str,
)
def test_equal_keys_get_the_same_ordinal(keys: pa.Array) -> None:
    assert key_ordinals([keys]).tolist() == [0, 0]


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([0.0, None]),
        pa.array(["", None]),
        pa.array(["a", "a "]),
        pa.array([[], None], pa.list_(pa.float64())),
        pa.array([{"a": None}, None], pa.struct({"a": pa.int64()})),
        pa.array([[1.0, 2.0], [1.0]]),
    ],
    ids=str,
)
def test_different_keys_get_different_ordinals(keys: pa.Array) -> None:
    assert len(set(key_ordinals([keys]).tolist())) == 2


def test_many_wide_key_columns_keep_their_ordinals_apart() -> None:
    columns = [pa.array(np.random.default_rng(column).permutation(3000)) for column in range(8)]

    assert len(set(key_ordinals(columns).tolist())) == 3000


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(OptionError, match="'rowkind' is unknown; use one of weight, row_kind, change_data_feed"):
        changelog_schema(DELTA.schema, "rowkind")


def test_a_column_that_the_form_adds_is_refused() -> None:
    with pytest.raises(SinkError, match=r"\['_weight'\]"):
        changelog_schema(pa.schema({"_weight": pa.int64()}), "weight")
