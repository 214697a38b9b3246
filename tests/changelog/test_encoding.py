"""What a delta becomes downstream: examples for every format."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from zset_join.changelog import (
    AppendFormat,
    ChangeDataFeedFormat,
    ChangelogFormat,
    RowKindFormat,
    UpsertFormat,
    WeightFormat,
    encode,
    encoded_schema,
    format_named,
)
from zset_join.changelog.encoding import group_keys
from zset_join.core.errors import OptionError, PlanError, ResourceError, SinkError
from zset_join.core.relation import Relation
from zset_join.zset import ZSet

SCHEMA = pa.schema({"id": pa.int64(), "v": pa.string()})


def delta(*rows: tuple[int | None, str | None, int]) -> ZSet:
    """Return a delta of rows (id, v, weight)."""
    columns = {"id": [row[0] for row in rows], "v": [row[1] for row in rows]}
    return ZSet.of(columns, [row[2] for row in rows], schema=SCHEMA)


def lines(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return [tuple(line.values()) for line in batch.to_pylist()]


REPLACED = delta((1, "a", -1), (2, "x", -1), (3, "n", 1), (1, "b", 1))
OUTPUT = Relation(name="out", schema=SCHEMA, primary_key=("id",), mode="changelog")


@pytest.mark.parametrize(
    ("key", "changelog_format", "changes", "expected"),
    [
        ((), WeightFormat(), delta((1, "a", -1), (1, "b", 2)), [(1, "a", -1), (1, "b", 2)]),
        ((), RowKindFormat(), delta((1, "b", 1), (1, "a", -1)), [(1, "a", "-D"), (1, "b", "+I")]),
        (["id"], RowKindFormat(), REPLACED, [(1, "a", "-U"), (1, "b", "+U"), (2, "x", "-D"), (3, "n", "+I")]),
        (OUTPUT, RowKindFormat(), delta((1, "a", -1), (1, "b", 1)), [(1, "a", "-U"), (1, "b", "+U")]),
        (
            ["id"],
            RowKindFormat(),
            delta((1, "a", -1), (1, "b", -1), (1, "c", 1)),
            [(1, "a", "-U"), (1, "b", "-D"), (1, "c", "+U")],
        ),
        (
            ["id"],
            RowKindFormat(),
            delta((1, "a", -2), (1, "b", 3)),
            [(1, "a", "-U"), (1, "a", "-U"), (1, "b", "+U"), (1, "b", "+U"), (1, "b", "+I")],
        ),
        (
            ["id"],
            ChangeDataFeedFormat(),
            REPLACED,
            [
                (1, "a", "update_preimage", 17),
                (1, "b", "update_postimage", 17),
                (2, "x", "delete", 17),
                (3, "n", "insert", 17),
            ],
        ),
        (["id"], UpsertFormat(), REPLACED, [(2, "x", True), (3, "n", False), (1, "b", False)]),
        (["id"], UpsertFormat(), delta((1, "a", -1), (1, "b", -1)), [(1, "b", True)]),
    ],
)
def test_a_delta_becomes_the_rows_of_its_format(
    key: Any, changelog_format: ChangelogFormat, changes: ZSet, expected: list[tuple[Any, ...]]
) -> None:
    assert lines(encode(changes, key, changelog_format, epoch=17)) == expected


@pytest.mark.parametrize("weight", [11, -11, -(2**63), 2**63 - 1])
def test_more_rows_than_allowed_are_refused_with_a_form_that_takes_them(weight: int) -> None:
    with pytest.raises(ResourceError, match=r"more than 10 rows.*form with a weight column") as caught:
        encode(delta((1, "a", weight)), (), RowKindFormat(), max_rows=10)

    assert caught.value.code == "TOO_MANY_ROWS"
    assert caught.value.facts["weight"] == weight
    with pytest.raises(ResourceError):
        encode(delta((1, "a", 6), (2, "a", 6)), (), AppendFormat(), max_rows=10)


def test_a_delta_of_single_rows_may_be_larger_than_weights_may_grow_to() -> None:
    assert encode(delta((1, "a", 1), (2, "a", -1)), (), RowKindFormat(), max_rows=1).num_rows == 2


def test_the_change_data_feed_carries_the_time_of_the_epoch_when_requested() -> None:
    feed = ChangeDataFeedFormat(timestamp_column="at")

    written = encode(delta((1, "a", 1), (2, "b", 1)), ["id"], feed, epoch=1, committed_at_us=1_000_001)

    assert written.column("at").type == pa.timestamp("us", tz="UTC")
    assert written.column("at").cast(pa.int64()).to_pylist() == [1_000_001, 1_000_001]


def test_the_change_data_feed_needs_an_epoch() -> None:
    with pytest.raises(OptionError, match="epoch=") as caught:
        encode(delta((1, "a", 1)), (), ChangeDataFeedFormat())

    assert caught.value.code == "MISSING_EPOCH"


@pytest.mark.parametrize("changes", [delta((1, "a", 1), (1, "b", 1)), delta((1, "a", 2))])
def test_two_live_rows_that_claim_one_key_are_an_error_naming_the_key(changes: ZSet) -> None:
    with pytest.raises(SinkError, match=r"the key \(1,\) of \['id'\]") as caught:
        encode(changes, ["id"], UpsertFormat())

    assert caught.value.code == "KEY_CLAIMED_TWICE"


def test_an_append_only_output_takes_insertions_and_refuses_retractions() -> None:
    assert lines(encode(delta((1, "a", 2)), (), AppendFormat())) == [(1, "a"), (1, "a")]
    with pytest.raises(SinkError, match=r"the row \(1, 'a'\) is retracted") as caught:
        encode(delta((1, "a", -1)), (), AppendFormat())

    assert caught.value.code == "RETRACTION_IN_APPEND"


@pytest.mark.parametrize(
    ("key", "changelog_format", "code"),
    [
        (["nope"], RowKindFormat(), "UNKNOWN_COLUMN"),
        ((), RowKindFormat(column="v"), "DUPLICATE_COLUMN"),
        ((), ChangeDataFeedFormat(version_column="id"), "DUPLICATE_COLUMN"),
        ((), ChangeDataFeedFormat(timestamp_column="v"), "DUPLICATE_COLUMN"),
        ((), WeightFormat(column="v"), "DUPLICATE_COLUMN"),
        ((), UpsertFormat(column="v"), "DUPLICATE_COLUMN"),
        ((), UpsertFormat(), "MISSING_PRIMARY_KEY"),
    ],
)
def test_a_key_or_column_that_cannot_be_is_refused(key: list[str], changelog_format: ChangelogFormat, code: str) -> None:
    with pytest.raises(PlanError) as caught:
        encode(delta((1, "a", 1)), key, changelog_format, epoch=1)

    assert caught.value.code == code


@pytest.mark.parametrize(
    "changelog_format",
    [
        WeightFormat(),
        RowKindFormat(),
        ChangeDataFeedFormat(),
        ChangeDataFeedFormat(timestamp_column="at"),
        UpsertFormat(),
        AppendFormat(),
    ],
)
def test_the_schema_of_what_is_written_is_known_before(changelog_format: ChangelogFormat) -> None:
    written = encode(delta((1, "a", 1)), ["id"], changelog_format, epoch=1)

    assert encoded_schema(SCHEMA, changelog_format).equals(written.schema)


@pytest.mark.parametrize(
    ("form", "added"),
    [
        ("weight", ["_weight"]),
        ("row_kind", ["_row_kind"]),
        ("change_data_feed", ["_change_type", "_commit_version", "_commit_timestamp"]),
    ],
)
def test_outputs_name_three_formats(form: str, added: list[str]) -> None:
    assert encoded_schema(SCHEMA, format_named(form)).names == ["id", "v", *added]


def test_an_unknown_form_is_refused_naming_those_there_are() -> None:
    with pytest.raises(OptionError, match="'rowkind' is unknown; use one of weight, row_kind, change_data_feed") as caught:
        format_named("rowkind")

    assert caught.value.code == "FORM"


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0.0, float("nan"), -0.0, -float("nan"), None, None]),
        pa.array([0.0, float("nan"), -0.0, -float("nan"), None, None], pa.float32()),
        pa.array([[0.0], [float("nan")], [-0.0], [-float("nan")], None, None]),
        pa.array([("a", None), ("b", 1), ("a", None), ("b", 1), None, None], pa.struct({"s": pa.string(), "i": pa.int8()})),
        pa.array(["a", "b", "a", "b", None, None]).dictionary_encode(),
        pa.array([True, False, True, False, None, None]),
        pa.array([1, 2, 1, 2, None, None], pa.duration("us")),
    ],
)
def test_keys_are_equal_as_in_spark(column: pa.Array) -> None:
    assert group_keys([column]).tolist() == [0, 1, 0, 1, 2, 2]


@pytest.mark.parametrize(
    "column",
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
def test_keys_differ_as_in_spark(column: pa.Array) -> None:
    assert group_keys([column]).tolist() == [0, 1]


def test_rows_are_grouped_where_their_slice_starts_and_by_all_columns() -> None:
    columns = [pa.array([1, 1, 2, 1, None]), pa.array(["a", "b", "a", "a", "a"]), pa.nulls(5)]

    assert group_keys([pa.array([9.0, 1.0, -0.0, 0.0]).slice(1)]).tolist() == [0, 1, 1]
    assert group_keys(columns).tolist() == [0, 1, 2, 0, 3]


def test_many_wide_key_columns_keep_their_keys_apart() -> None:
    columns = [pa.array(np.random.default_rng(column).permutation(3000)) for column in range(8)]

    assert len(set(group_keys(columns).tolist())) == 3000


def test_every_key_of_many_is_found_again() -> None:
    numbers = np.random.default_rng(7).integers(0, 500, 2_000)
    first, second = pa.array(numbers // 20), pa.array((numbers % 20).astype(str))

    groups = group_keys([first, second])

    assert len(set(zip(numbers.tolist(), groups.tolist(), strict=True))) == len(set(numbers.tolist()))
