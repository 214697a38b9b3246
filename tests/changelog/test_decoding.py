"""What the rows of a source become: examples for every format and every way in which a row can be unreadable."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

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
)
from zset_join.core.errors import BadInputError, OptionError, PlanError
from zset_join.core.relation import Relation

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string()})
APPENDED = Relation(name="clicks", schema=SCHEMA, mode="append")
UPSERTED = Relation(name="customers", schema=SCHEMA, primary_key=("id",), mode="upsert")
CHANGED = Relation(name="orders", schema=SCHEMA, mode="changelog")


def rows(**added: Any) -> pa.Table:
    """Return rows with ids from 1 and names from "a", and the added columns beside them."""
    count = len(next(iter(added.values()))) if added else 3
    names = ["a", "b", "c", "d", "e", "f", "g", "h"][:count]
    return pa.table({"id": pa.array(range(1, count + 1), pa.int64()), "name": names, **added})


def test_appended_rows_are_inserts_and_other_columns_are_left_out() -> None:
    decoded = decode(rows(offset=[10, 11]), APPENDED, AppendFormat())

    assert decoded.delta.to_pylist() == [((1, "a"), 1), ((2, "b"), 1)]
    assert decoded.delta.schema == SCHEMA
    assert decoded.positions.tolist() == [0, 1]
    assert (decoded.ignored, decoded.rejected.num_rows) == (0, 0)


def test_columns_are_shared_when_nothing_has_to_change() -> None:
    table = rows()

    delta = decode(table, APPENDED, AppendFormat()).delta

    assert delta.rows.column("id").buffers()[1].address == table["id"].chunk(0).buffers()[1].address


def test_a_delta_has_the_schema_of_its_relation_though_the_rows_have_metadata() -> None:
    noted = rows().select(SCHEMA.names).replace_schema_metadata({"pandas": "{}"})
    assert decode(noted, APPENDED, AppendFormat()).delta.schema.metadata is None


OP, GONE, WEIGHT = UpsertFormat(column="op"), UpsertFormat(column="gone"), WeightFormat(column="w")
FOUR, UPDATED = [(1, 1), (2, -1), (3, 1), (4, -1)], [(1, 1), (3, 1), (4, -1)]
FEED = ["insert", "update_preimage", "update_postimage", "delete", "+I"]
UNKNOWN = [(1, "UNDECODABLE_OP"), (2, "NULL_OP")]


@pytest.mark.parametrize(
    ("relation", "changelog_format", "added", "read", "rejected"),
    [
        (UPSERTED, OP, {"op": ["c", "u", "d", "D"]}, [(1, 1), (2, 1), (3, -1), (4, -1)], []),
        (UPSERTED, OP, {"op": pa.array(["d", "u"]).dictionary_encode()}, [(1, -1), (2, 1)], []),
        (UPSERTED, UpsertFormat(column="op", deletes=(2,)), {"op": [1, 2]}, [(1, 1), (2, -1)], []),
        (CHANGED, OP, {"op": ["d"]}, [(1, -1)], []),
        (UPSERTED, GONE, {"gone": [False, True, None]}, [(1, 1), (2, -1)], [(2, "NULL_OP")]),
        (CHANGED, WEIGHT, {"w": [-1, 2]}, [(1, -1), (2, 2)], []),
        (UPSERTED, WEIGHT, {"w": [1, -1, 2, 0]}, [(1, 1), (2, -1)], [(2, "UPSERT_WEIGHT")]),
        (CHANGED, RowKindFormat(), {"row_kind": ["+I", "-U", "+U", "-D"]}, FOUR, []),
        (CHANGED, RowKindFormat(), {"row_kind": ["INSERT", "UPDATE_BEFORE", "UPDATE_AFTER", "DELETE"]}, FOUR, []),
        (CHANGED, RowKindFormat(), {"row_kind": ["I", "UB", "UA", "D"]}, FOUR, []),
        (CHANGED, RowKindFormat(), {"row_kind": [" +i", "-u ", "+u", "-d"]}, FOUR, []),
        (CHANGED, RowKindFormat(), {"row_kind": FEED[:4]}, FOUR, []),
        (CHANGED, RowKindFormat(), {"row_kind": pa.array([0, 1, 2, 3], pa.int8())}, FOUR, []),
        (CHANGED, RowKindFormat(), {"row_kind": pa.array(["+I", "-U", "+U", "-D"]).dictionary_encode()}, FOUR, []),
        (UPSERTED, RowKindFormat(), {"row_kind": ["+I", "-U", "+U", "-D"]}, UPDATED, []),
        (CHANGED, RowKindFormat(), {"row_kind": ["+I", "?", None]}, [(1, 1)], UNKNOWN),
        (CHANGED, RowKindFormat(), {"row_kind": pa.array([0, 4, None], pa.int32())}, [(1, 1)], UNKNOWN),
        (APPENDED, RowKindFormat(), {"row_kind": ["+I", "-D"]}, [(1, 1), (2, -1)], []),  # the operator refuses it
        (CHANGED, ChangeDataFeedFormat(), {"_change_type": FEED, "_commit_version": [7] * 5}, FOUR, [(4, "UNDECODABLE_OP")]),
        (UPSERTED, ChangeDataFeedFormat(), {"_change_type": FEED[:4], "_commit_version": [7] * 4}, UPDATED, []),
    ],
)
def test_a_row_inserts_retracts_is_ignored_or_is_rejected(
    relation: Relation, changelog_format: ChangelogFormat, added: dict[str, Any], read: list[Any], rejected: list[Any]
) -> None:
    table = rows(**added)
    decoded = decode(table, relation, changelog_format)

    found = decoded.rejected.to_pylist()
    assert [(row[0], weight) for row, weight in decoded.delta.to_pylist()] == read
    assert decoded.delta.schema == SCHEMA
    assert decoded.positions.tolist() == [number - 1 for number, _ in read]
    assert [(one["row"], one["code"]) for one in found] == rejected
    assert len(read) + decoded.ignored + len(found) == table.num_rows


def test_the_rows_of_a_batch_or_of_several_chunks_are_read_where_they_start() -> None:
    table = rows(w=[1, 0, 2])
    chunked = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    given = [chunked, table.to_batches()[0].slice(1), table.slice(0, 0)]

    assert [[row[0] for row, _ in decode(one, CHANGED, WEIGHT).delta.to_pylist()] for one in given] == [[1, 3], [3], []]


def test_with_both_kinds_listed_an_unknown_operation_is_rejected() -> None:
    table = rows(op=["c", "t", "d", None])
    debezium = UpsertFormat(column="op", deletes=("d",), upserts=("c", "r", "u"))

    decoded = decode(table, UPSERTED, debezium)

    assert decoded.delta.to_pylist() == [((1, "a"), 1), ((3, "c"), -1)]
    assert decoded.positions.tolist() == [0, 2]
    assert decoded.rejected.to_pylist() == [
        {"row": 1, "code": "UNDECODABLE_OP", "reason": "the operation 't' is none of d, c, r, u"},
        {"row": 3, "code": "NULL_OP", "reason": "the operation is NULL"},
    ]


@pytest.mark.parametrize("weight_type", [pa.int8(), pa.int32(), pa.int64(), pa.uint64()])
def test_a_weight_of_zero_is_no_change_and_counted(weight_type: pa.DataType) -> None:
    decoded = decode(rows(_tp_delta=pa.array([1, 0, 3], weight_type)), CHANGED, WeightFormat(column="_tp_delta"))

    assert decoded.delta.to_pylist() == [((1, "a"), 1), ((3, "c"), 3)]
    assert decoded.ignored == 1


def test_weights_that_cannot_be_read_are_rejected_with_a_reason() -> None:
    table = rows(w=pa.array([1, None, 2**63], pa.uint64()))

    decoded = decode(table, CHANGED, WeightFormat(column="w"))

    assert decoded.delta.to_pylist() == [((1, "a"), 1)]
    assert decoded.rejected.to_pylist() == [
        {"row": 1, "code": "NULL_WEIGHT", "reason": "the weight is NULL"},
        {"row": 2, "code": "WEIGHT_OVERFLOW", "reason": "the weight 9223372036854775808 is greater than 2^63 - 1"},
    ]


@pytest.mark.parametrize(
    ("given", "declared", "value"),
    [
        (pa.int32(), pa.int64(), 5),
        (pa.uint8(), pa.int16(), 255),
        (pa.int32(), pa.float64(), 5.0),
        (pa.int32(), pa.decimal128(12, 2), decimal.Decimal("5.00")),
        (pa.float32(), pa.float64(), 0.5),
        (pa.decimal128(5, 2), pa.decimal128(10, 4), decimal.Decimal("1.2500")),
        (pa.large_string(), pa.string(), "a"),
        (pa.string_view(), pa.large_string(), "a"),
        (pa.dictionary(pa.int8(), pa.string()), pa.string(), "a"),
        (pa.binary(2), pa.binary(), b"ab"),
        (pa.timestamp("ms"), pa.timestamp("us"), datetime.datetime(2024, 1, 1)),
        (pa.duration("s"), pa.duration("us"), datetime.timedelta(1)),
        (pa.null(), pa.string(), None),
        (pa.list_(pa.int8()), pa.large_list(pa.int64()), [1, None]),
        (pa.struct({"a": pa.int8()}), pa.struct({"a": pa.int32()}), {"a": 1}),
    ],
)
def test_a_type_is_widened_where_nothing_can_be_lost(given: pa.DataType, declared: pa.DataType, value: Any) -> None:
    relation = Relation(name="r", schema=pa.schema({"x": declared}))

    delta = decode(pa.table({"x": pa.array([value], given)}), relation, AppendFormat()).delta

    assert delta.schema == relation.schema
    assert delta.to_pylist() == [((value,), 1)]


@pytest.mark.parametrize(
    ("given", "declared"),
    [
        (pa.int64(), pa.int32()),
        (pa.int64(), pa.float64()),
        (pa.int8(), pa.uint64()),
        (pa.float64(), pa.float32()),
        (pa.int64(), pa.string()),
        (pa.string(), pa.int64()),
        (pa.int64(), pa.decimal128(20, 2)),
        (pa.decimal128(10, 4), pa.decimal128(12, 2)),
        (pa.timestamp("us"), pa.timestamp("ms")),
        (pa.timestamp("us"), pa.timestamp("us", tz="UTC")),
        (pa.date32(), pa.timestamp("us")),
        (pa.list_(pa.int64()), pa.list_(pa.int8())),
        (pa.struct({"a": pa.int8()}), pa.struct({"b": pa.int8()})),
    ],
)
def test_a_type_that_might_lose_a_value_is_refused_naming_both(given: pa.DataType, declared: pa.DataType) -> None:
    relation = Relation(name="r", schema=pa.schema({"x": declared}))

    with pytest.raises(PlanError) as caught:
        decode(pa.table({"x": pa.array([], given)}), relation, AppendFormat())

    assert caught.value.code == "COLUMN_TYPE"
    assert (caught.value.facts["given"], caught.value.facts["declared"]) == (str(given), str(declared))


def test_a_value_that_its_wider_type_cannot_hold_after_all_is_bad_input() -> None:
    relation = Relation(name="r", schema=pa.schema({"x": pa.timestamp("ns")}))

    with pytest.raises(BadInputError, match="does not fit") as caught:
        decode(pa.table({"x": pa.array([2**60], pa.timestamp("s"))}), relation, AppendFormat())

    assert caught.value.code == "VALUE_OUT_OF_RANGE"


@pytest.mark.parametrize(
    ("changelog_format", "table", "code"),
    [
        (AppendFormat(), pa.table({"id": [1]}), "MISSING_COLUMN"),
        (WeightFormat(column="w"), rows(), "MISSING_COLUMN"),
        (WeightFormat(column="w"), rows(w=[1.0]), "WEIGHT_TYPE"),
        (RowKindFormat(), rows(row_kind=[1.0]), "OPERATION_TYPE"),
        (ChangeDataFeedFormat(), rows(_change_type=[1]), "OPERATION_TYPE"),
        (UpsertFormat(column="op"), rows(op=["d"]), "DELETES_IN_APPEND"),
    ],
)
def test_rows_that_do_not_fit_the_description_are_refused(
    changelog_format: ChangelogFormat, table: pa.Table, code: str
) -> None:
    with pytest.raises(PlanError, match=r'relation "clicks"') as caught:
        decode(table, APPENDED, changelog_format)

    assert caught.value.code == code


def test_delete_values_must_be_of_the_type_of_their_column() -> None:
    with pytest.raises(PlanError, match=r"is of type int64, and \['d'\] are not") as caught:
        decode(rows(op=[1]), UPSERTED, UpsertFormat(column="op", deletes=("d",)))

    assert caught.value.code == "OPERATION_TYPE"


@pytest.mark.parametrize("values", [{"deletes": ()}, {"deletes": ("d",), "upserts": ("d",)}])
def test_an_operation_is_a_delete_or_an_upsert_and_not_both(values: dict[str, Any]) -> None:
    with pytest.raises(OptionError) as caught:
        UpsertFormat(column="op", **values)

    assert caught.value.code == "DELETE_VALUES"
