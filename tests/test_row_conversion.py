"""A delta has the columns of its relation, by name and type, or it is refused before a byte of it is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from zset_join.core.errors import PlanError
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import cast_key, conform, plain, take_rows

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("tags", pa.list_(pa.string()))])
ORDERS = Relation(name="orders", schema=SCHEMA)
ROW = {"id": 1, "name": "a", "tags": ["x"]}


def batch(**kinds: pa.DataType) -> pa.RecordBatch:
    """Return one row whose columns have these types; the others have those of the relation."""
    columns = {name: pa.array([ROW[name]], SCHEMA.field(name).type) for name in ROW}
    return pa.RecordBatch.from_pydict({**columns, **{name: pa.array([ROW[name]], kind) for name, kind in kinds.items()}})


def test_a_batch_of_the_relation_s_schema_is_taken_as_it_is() -> None:
    rows = pa.RecordBatch.from_pylist([ROW], schema=SCHEMA)

    assert conform(rows, ORDERS) is rows


def test_columns_are_found_by_name_whatever_their_order_and_company() -> None:
    rows = batch().append_column("extra", pa.array([9.5])).select(["extra", "tags", "name", "id"])

    assert conform(rows, ORDERS).to_pylist() == [ROW]


@pytest.mark.parametrize(
    "kind",
    [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.large_string())],
)
def test_what_is_only_encoded_otherwise_is_accepted(kind: pa.DataType) -> None:
    found = conform(batch(name=kind), ORDERS)

    assert (found.schema.field("name").type, found.to_pylist()) == (pa.string(), [ROW])


def test_the_same_goes_for_what_is_nested() -> None:
    assert conform(batch(tags=pa.list_(pa.large_string())), ORDERS).schema.field("tags").type == pa.list_(pa.string())


def test_a_column_of_nothing_but_null_fits_any_type() -> None:
    rows = batch().set_column(1, "name", pa.nulls(1))

    assert conform(rows, ORDERS).column("name").to_pylist() == [None]


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("id", pa.int32()),
        ("id", pa.uint64()),
        ("id", pa.float64()),
        ("name", pa.binary()),
        ("tags", pa.list_(pa.binary())),
    ],
)
def test_a_type_that_stores_other_values_is_refused_by_name(column: str, kind: pa.DataType) -> None:
    rows = batch().set_column(SCHEMA.get_field_index(column), column, pa.nulls(1, kind))

    with pytest.raises(
        PlanError, match=rf'relation "orders": column "{column}" is .*, but the delta has .*Cast it before'
    ) as caught:
        conform(rows, ORDERS)

    assert caught.value.code == "DELTA_TYPES"
    assert caught.value.facts["delta_type"] == str(kind)


def test_a_missing_column_is_named() -> None:
    with pytest.raises(PlanError, match=r"lacks the columns \['name'\]; it has \['id', 'tags'\]") as caught:
        conform(batch().select(["id", "tags"]), ORDERS)

    assert caught.value.code == "DELTA_COLUMNS"


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array(["a"]).dictionary_encode(), pa.string()),
        (pa.array(["a"], pa.string_view()), pa.large_string()),
        (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"x" * 16], pa.binary(16))), pa.binary(16)),
        (pa.array(["a"]), pa.string()),
    ],
)
def test_an_array_is_made_plain(array: pa.Array, kind: pa.DataType) -> None:
    assert plain(array, kind).type == kind


@pytest.mark.parametrize("kind", [pa.string(), pa.string_view(), pa.binary_view(), pa.dictionary(pa.int8(), pa.string())])
def test_rows_are_taken_from_columns_of_any_encoding(kind: pa.DataType) -> None:
    values: list[Any] = [b"a", b"b", None] if kind == pa.binary_view() else ["a", "b", None]
    rows = pa.RecordBatch.from_arrays([pa.array(values, kind)], ["x"])

    taken = take_rows(rows, np.array([2, 0, 0]))

    assert (taken.schema, taken.to_pydict()) == (rows.schema, {"x": [None, values[0], values[0]]})


def test_rows_without_columns_are_still_counted() -> None:
    nothing = pa.table({"x": [1, 2, 3]}).select([]).to_batches()[0]

    assert take_rows(nothing, np.array([0, 2])).num_rows == 2


@pytest.mark.parametrize(
    ("values", "kept", "unfit"),
    [
        ([1, None, -128], [1, None, -128], None),
        ([], [], None),
        ([1, 128, None, -129, 5], [1, None, None, None, 5], [False, True, False, True, False]),
        ([300], [None], [True]),
    ],
)
def test_key_values_that_do_not_fit_become_null_and_are_marked(
    values: list[Any], kept: list[Any], unfit: list[bool] | None
) -> None:
    made, bad = cast_key(pa.array(values, pa.int64()), pa.int8())

    assert (made.type, made.to_pylist()) == (pa.int8(), kept)
    assert (None if bad is None else bad.tolist()) == unfit
