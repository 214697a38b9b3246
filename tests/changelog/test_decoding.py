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


def ids_and_weights(table: pa.Table, relation: Relation, changelog_format: ChangelogFormat) -> list[tuple[int, int]]:
    """Return the first column and the weight of each row of the delta."""
    return [(row[0], weight) for row, weight in decode(table, relation, changelog_format).delta.to_pylist()]


def rejected(table: pa.Table, relation: Relation, changelog_format: ChangelogFormat) -> list[tuple[int, str]]:
    """Return position and code of each rejected row."""
    found = decode(table, relation, changelog_format).rejected
    return list(zip(found["row"].to_pylist(), found["code"].to_pylist(), strict=True))


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


def test_an_operation_column_marks_the_deletes_of_an_upsert_relation() -> None:
    table = rows(op=["c", "u", "d", "D"])

    assert ids_and_weights(table, UPSERTED, UpsertFormat(column="op")) == [(1, 1), (2, 1), (3, -1), (4, -1)]


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


def test_a_boolean_column_is_true_for_a_delete() -> None:
    table = rows(gone=[False, True, None])

    assert ids_and_weights(table, UPSERTED, UpsertFormat(column="gone")) == [(1, 1), (2, -1)]
    assert rejected(table, UPSERTED, UpsertFormat(column="gone")) == [(2, "NULL_OP")]


def test_operations_may_be_numbers_or_dictionaries() -> None:
    numbered = rows(op=[1, 2])
    encoded = rows(op=pa.array(["d", "u"]).dictionary_encode())

    assert ids_and_weights(numbered, UPSERTED, UpsertFormat(column="op", deletes=(2,))) == [(1, 1), (2, -1)]
    assert ids_and_weights(encoded, UPSERTED, UpsertFormat(column="op")) == [(1, -1), (2, 1)]


def test_a_delete_in_a_changelog_relation_retracts_its_row() -> None:
    assert ids_and_weights(rows(op=["d"]), CHANGED, UpsertFormat(column="op")) == [(1, -1)]


@pytest.mark.parametrize("weight_type", [pa.int8(), pa.int32(), pa.int64(), pa.uint64()])
def test_a_weight_of_zero_is_no_change_and_counted(weight_type: pa.DataType) -> None:
    decoded = decode(rows(_tp_delta=pa.array([1, 0, 3], weight_type)), CHANGED, WeightFormat(column="_tp_delta"))

    assert decoded.delta.to_pylist() == [((1, "a"), 1), ((3, "c"), 3)]
    assert decoded.ignored == 1


def test_negative_weights_retract() -> None:
    assert ids_and_weights(rows(_tp_delta=[-1, 2]), CHANGED, WeightFormat(column="_tp_delta")) == [(1, -1), (2, 2)]


def test_weights_that_cannot_be_read_are_rejected_with_a_reason() -> None:
    table = rows(w=pa.array([1, None, 2**63], pa.uint64()))

    decoded = decode(table, CHANGED, WeightFormat(column="w"))

    assert decoded.delta.to_pylist() == [((1, "a"), 1)]
    assert decoded.rejected.to_pylist() == [
        {"row": 1, "code": "NULL_WEIGHT", "reason": "the weight is NULL"},
        {"row": 2, "code": "WEIGHT_OVERFLOW", "reason": "the weight 9223372036854775808 is greater than 2^63 - 1"},
    ]


def test_an_upsert_comes_or_goes_once() -> None:
    table = rows(w=[1, -1, 2, 0])

    assert ids_and_weights(table, UPSERTED, WeightFormat(column="w")) == [(1, 1), (2, -1)]
    assert rejected(table, UPSERTED, WeightFormat(column="w")) == [(2, "UPSERT_WEIGHT")]


@pytest.mark.parametrize(
    "kinds",
    [
        ["+I", "-U", "+U", "-D"],
        ["INSERT", "UPDATE_BEFORE", "UPDATE_AFTER", "DELETE"],
        ["I", "UB", "UA", "D"],
        [" +i", "-u ", "+u", "-d"],
        ["insert", "update_preimage", "update_postimage", "delete"],
        pa.array([0, 1, 2, 3], pa.int8()),
        pa.array(["+I", "-U", "+U", "-D"]).dictionary_encode(),
    ],
)
def test_row_kinds_in_any_spelling_insert_and_retract(kinds: Any) -> None:
    table = rows(row_kind=kinds)

    assert ids_and_weights(table, CHANGED, RowKindFormat()) == [(1, 1), (2, -1), (3, 1), (4, -1)]


def test_an_upsert_relation_ignores_what_an_update_replaces() -> None:
    decoded = decode(rows(row_kind=["+I", "-U", "+U", "-D"]), UPSERTED, RowKindFormat())

    assert decoded.delta.to_pylist() == [((1, "a"), 1), ((3, "c"), 1), ((4, "d"), -1)]
    assert decoded.positions.tolist() == [0, 2, 3]
    assert decoded.ignored == 1


@pytest.mark.parametrize("kinds", [["+I", "?", None], pa.array([0, 4, None], pa.int32())])
def test_unknown_and_null_row_kinds_are_rejected(kinds: Any) -> None:
    assert rejected(rows(row_kind=kinds), CHANGED, RowKindFormat()) == [(1, "UNDECODABLE_OP"), (2, "NULL_OP")]


def test_rows_in_are_rows_kept_ignored_and_rejected() -> None:
    table = rows(row_kind=["+I", "-U", "nonsense", None, "+U", "-U"])

    decoded = decode(table, UPSERTED, RowKindFormat())

    assert (len(decoded.delta), decoded.ignored, decoded.rejected.num_rows) == (2, 2, 2)


def test_the_change_data_feed_is_read_and_its_own_columns_are_left_out() -> None:
    table = rows(
        _change_type=["insert", "update_preimage", "update_postimage", "delete", "+I"], _commit_version=[7, 7, 7, 7, 7]
    )

    assert ids_and_weights(table, CHANGED, ChangeDataFeedFormat()) == [(1, 1), (2, -1), (3, 1), (4, -1)]
    assert ids_and_weights(table, UPSERTED, ChangeDataFeedFormat()) == [(1, 1), (3, 1), (4, -1)]
    assert rejected(table, CHANGED, ChangeDataFeedFormat()) == [(4, "UNDECODABLE_OP")]


def test_a_retraction_from_an_append_relation_is_left_for_the_operator_to_refuse() -> None:
    assert ids_and_weights(rows(row_kind=["+I", "-D"]), APPENDED, RowKindFormat()) == [(1, 1), (2, -1)]


def test_no_rows_become_an_empty_delta() -> None:
    table = rows(w=pa.array([1], pa.int64())).slice(0, 0)

    assert decode(table, CHANGED, WeightFormat(column="w")).delta.to_pylist() == []


def test_a_batch_and_a_table_of_several_chunks_are_read_alike() -> None:
    table = rows(w=[1, 0, 2])
    chunked = pa.concat_tables([table.slice(0, 1), table.slice(1)])

    assert ids_and_weights(chunked, CHANGED, WeightFormat(column="w")) == [(1, 1), (3, 2)]
    assert ids_and_weights(table.to_batches()[0].slice(1), CHANGED, WeightFormat(column="w")) == [(3, 2)]


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
