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
    decode,
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
    """Return the rows of a batch as tuples."""
    return [tuple(line.values()) for line in batch.to_pylist()]


def summed(zset: ZSet) -> dict[tuple[Any, ...], int]:
    """Return the weight of every distinct row."""
    total: dict[tuple[Any, ...], int] = {}
    for row, weight in zset.to_pylist():
        total[row] = total.get(row, 0) + weight
    return total


def test_a_weight_column_keeps_the_delta_as_it_is() -> None:
    written = encode(delta((1, "a", -1), (1, "b", 2)), (), WeightFormat())

    assert written.schema.names == ["id", "v", "_weight"]
    assert lines(written) == [(1, "a", -1), (1, "b", 2)]


def test_a_retraction_and_an_insertion_of_one_key_are_an_update() -> None:
    changes = delta((1, "a", -1), (2, "x", -1), (3, "n", 1), (1, "b", 1))

    written = encode(changes, ["id"], RowKindFormat())

    assert lines(written) == [(1, "a", "-U"), (1, "b", "+U"), (2, "x", "-D"), (3, "n", "+I")]


def test_without_a_key_there_are_no_updates_and_retractions_come_first() -> None:
    changes = delta((1, "b", 1), (1, "a", -1))

    assert lines(encode(changes, (), RowKindFormat())) == [(1, "a", "-D"), (1, "b", "+I")]


def test_the_key_may_be_that_of_a_relation() -> None:
    output = Relation(name="out", schema=SCHEMA, primary_key=("id",), mode="changelog")

    assert lines(encode(delta((1, "a", -1), (1, "b", 1)), output, RowKindFormat()))[0] == (1, "a", "-U")


def test_where_a_key_is_replaced_by_fewer_rows_the_rest_are_deletes() -> None:
    changes = delta((1, "a", -1), (1, "b", -1), (1, "c", 1))

    assert lines(encode(changes, ["id"], RowKindFormat())) == [(1, "a", "-U"), (1, "b", "-D"), (1, "c", "+U")]


def test_a_weight_beyond_one_becomes_that_many_rows() -> None:
    changes = delta((1, "a", -2), (1, "b", 3))

    assert lines(encode(changes, ["id"], RowKindFormat())) == [
        (1, "a", "-U"),
        (1, "a", "-U"),
        (1, "b", "+U"),
        (1, "b", "+U"),
        (1, "b", "+I"),
    ]


@pytest.mark.parametrize("weight", [11, -11, -(2**63), 2**63 - 1])
def test_more_rows_than_allowed_are_refused_with_a_form_that_takes_them(weight: int) -> None:
    with pytest.raises(ResourceError, match=r"more than 10 rows.*form with a weight column") as caught:
        encode(delta((1, "a", weight)), (), RowKindFormat(), max_rows=10)

    assert caught.value.code == "TOO_MANY_ROWS"
    assert caught.value.facts["weight"] == weight


def test_many_small_weights_are_bounded_as_well() -> None:
    with pytest.raises(ResourceError):
        encode(delta((1, "a", 6), (2, "a", 6)), (), AppendFormat(), max_rows=10)


def test_the_change_data_feed_carries_change_type_and_epoch() -> None:
    changes = delta((1, "a", -1), (1, "b", 1), (2, "x", -1), (3, "n", 1))

    written = encode(changes, ["id"], ChangeDataFeedFormat(), epoch=17)

    assert written.schema.names == ["id", "v", "_change_type", "_commit_version"]
    assert lines(written) == [
        (1, "a", "update_preimage", 17),
        (1, "b", "update_postimage", 17),
        (2, "x", "delete", 17),
        (3, "n", "insert", 17),
    ]


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


def test_upserts_hold_one_net_change_per_key_with_deletes_first() -> None:
    changes = delta((1, "a", -1), (2, "x", -1), (1, "b", 1), (3, "n", 1))

    written = encode(changes, ["id"], UpsertFormat())

    assert lines(written) == [(2, "x", True), (1, "b", False), (3, "n", False)]


def test_a_key_retracted_twice_is_deleted_once() -> None:
    assert lines(encode(delta((1, "a", -1), (1, "b", -1)), ["id"], UpsertFormat())) == [(1, "b", True)]


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
    "changelog_format", [WeightFormat(), RowKindFormat(), ChangeDataFeedFormat(), UpsertFormat(), AppendFormat()]
)
def test_an_empty_delta_becomes_no_rows(changelog_format: ChangelogFormat) -> None:
    assert lines(encode(ZSet.empty(SCHEMA), ["id"], changelog_format, epoch=1)) == []


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


@pytest.mark.parametrize("key", [(), ("id",), ("id", "v")])
@pytest.mark.parametrize("changelog_format", [WeightFormat(), RowKindFormat(), ChangeDataFeedFormat()])
def test_what_was_encoded_decodes_to_the_same_delta(key: tuple[str, ...], changelog_format: ChangelogFormat) -> None:
    changes = delta((1, "a", -2), (1, "b", 1), (None, "x", -1), (None, None, 3), (2, "c", 1))
    relation = Relation(name="r", schema=SCHEMA, mode="changelog")

    decoded = decode(encode(changes, key, changelog_format, epoch=1), relation, changelog_format)

    assert summed(decoded.delta) == summed(changes)


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


def test_many_wide_key_columns_keep_their_keys_apart() -> None:
    columns = [pa.array(np.random.default_rng(column).permutation(3000)) for column in range(8)]

    assert len(set(group_keys(columns).tolist())) == 3000


def test_keys_of_several_columns_are_equal_when_all_columns_are() -> None:
    columns = [pa.array([1, 1, 2, 1, None]), pa.array(["a", "b", "a", "a", "a"]), pa.nulls(5)]

    assert group_keys(columns).tolist() == [0, 1, 2, 0, 3]


def test_slices_are_grouped_where_they_start() -> None:
    assert group_keys([pa.array([9.0, 1.0, -0.0, 0.0]).slice(1)]).tolist() == [0, 1, 1]


def test_every_key_of_many_is_found_again() -> None:
    numbers = np.random.default_rng(7).integers(0, 500, 2_000)
    first, second = pa.array(numbers // 20), pa.array((numbers % 20).astype(str))

    groups = group_keys([first, second])

    assert len(set(zip(numbers.tolist(), groups.tolist(), strict=True))) == len(set(numbers.tolist()))
