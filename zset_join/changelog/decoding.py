"""From the rows a source delivers to a delta of its relation.

The law: rows in = rows of the delta + rows ignored + rows rejected.

Ties and edge cases: a NULL or unknown operation and a NULL weight are rejected with their position, code and reason,
never guessed. Whether a weight is possible for the relation (a retraction from an append-only one) is for the
operator to decide. Types are widened where no value can be lost (int to bigint, string to large_string, coarser to finer
time units); anything else is refused.

Limits: an update that changes the primary key of an upsert relation must come as a delete and an insert, because its
-U is ignored. Where the relation has the hidden column `IMAGE`, it is a change feed: there an old image is a delete, and
`IMAGE` is filled here.

Memory: columns are shared with the input unless rows are dropped or types are widened.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zset_join.changelog.formats.rows import (
    CHANGE_TYPES,
    IMAGE,
    SPELLINGS,
    AppendFormat,
    ChangeDataFeedFormat,
    ChangelogFormat,
    RowKindFormat,
    UpsertFormat,
    WeightFormat,
)
from zset_join.core.errors import BadInputError, PlanError
from zset_join.core.relation import Relation
from zset_join.kernels.values.nested import is_nested
from zset_join.zset import ZSet, single_batch

__all__ = ["Decoded", "decode"]

_Int64s: TypeAlias = npt.NDArray[np.int64]
_Bools: TypeAlias = npt.NDArray[np.bool_]
_Codes: TypeAlias = npt.NDArray[np.int8]

_REJECTED = pa.schema({"row": pa.int64(), "code": pa.string(), "reason": pa.string()})
_UNITS = ("s", "ms", "us", "ns")
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}


@dataclass(frozen=True, slots=True)
class Decoded:
    """Result of `decode` for n rows.

    Args:
        delta: the changes, with the columns of the relation.
        positions: int64, the input row each row of the delta was made from, ascending.
        rejected: one line per row that could not be read: `row` (its position), `code`, `reason`.
        ignored: rows that mean no change.
    """

    delta: ZSet
    positions: _Int64s
    rejected: pa.Table
    ignored: int


def decode(rows: pa.Table | pa.RecordBatch, relation: Relation, changelog_format: ChangelogFormat) -> Decoded:
    """Decode input rows into a delta.

    Args:
        rows: n rows with the columns of the relation, those of the format, and any others, which are omitted.
        relation: of the changes; its mode defines the meaning of an operation.
        changelog_format: the form of a row's operation.

    Returns:
        The delta in the order of the rows, and the rejected and ignored rows. Columns may be shared with `rows`.

    Raises:
        PlanError: a column is missing, or its type cannot be widened to that of the relation without loss.
        BadInputError: a value does not fit the relation's type although its own type promises it, such as a timestamp
            outside the range of nanoseconds.

    Cost: linear, a few array calls; nothing is copied when all rows are kept and the types are those of the relation.

    >>> orders = Relation(name="orders", schema=pa.schema({"id": pa.int64()}), mode="changelog")
    >>> rows = pa.table({"id": [1, 2, 3], "_tp_delta": [1, -1, 0]})
    >>> decode(rows, orders, WeightFormat(column="_tp_delta")).delta.to_pylist()
    [((1,), 1), ((2,), -1)]
    """
    batch = single_batch(rows) if isinstance(rows, pa.Table) else rows
    if isinstance(changelog_format, AppendFormat):
        added = ZSet(_conformed(batch, relation), np.ones(batch.num_rows, np.int64))
        return Decoded(added, np.arange(batch.num_rows), _none_rejected(), 0)
    columns = _conform(batch, relation)
    operations = _plain_column(batch, changelog_format.column, relation)
    if isinstance(changelog_format, WeightFormat):
        weights, codes = _read_weights(operations, relation, changelog_format)
    elif isinstance(changelog_format, UpsertFormat):
        weights, codes = _read_deletes(operations, relation, changelog_format)
    else:
        kinds, codes = _read_kinds(operations, relation, changelog_format)
        has_images = IMAGE in relation.schema.names
        old_row = 0 if relation.mode == "upsert" and not has_images else -1
        weights = np.array([1, old_row, 1, -1, 0], np.int64)[kinds]
        if has_images:
            columns.append(pa.array(_IMAGE_OF_KIND[kinds]))
    conformed = pa.RecordBatch.from_arrays(columns, schema=relation.schema)
    rejected = _none_rejected()
    kept = weights != 0
    bad = 0
    if codes.any():
        positions = np.flatnonzero(codes)
        bad = len(positions)
        rejected = _rejections(positions, codes[positions], operations.take(pa.array(positions)), changelog_format)
        kept &= codes == 0
    positions = np.flatnonzero(kept)
    if len(positions) < batch.num_rows:
        conformed, weights = conformed.take(pa.array(positions)), weights[positions]
    return Decoded(ZSet(conformed, weights), positions, rejected, batch.num_rows - len(positions) - bad)


_NULL_OP, _UNDECODABLE_OP, _NULL_WEIGHT, _WEIGHT_OVERFLOW, _UPSERT_WEIGHT = range(1, 6)
_IMAGE_OF_KIND = np.array([2, 0, 2, 1, 0], np.int8)
_CODES = {
    _NULL_OP: ("NULL_OP", "the operation is NULL"),
    _UNDECODABLE_OP: ("UNDECODABLE_OP", "the operation {} is none of {}"),
    _NULL_WEIGHT: ("NULL_WEIGHT", "the weight is NULL"),
    _WEIGHT_OVERFLOW: ("WEIGHT_OVERFLOW", "the weight {} is greater than 2^63 - 1"),
    _UPSERT_WEIGHT: (
        "UPSERT_WEIGHT",
        "the weight {} means nothing in upsert mode, where a row is inserted (1) or deleted (-1)",
    ),
}


@functools.cache
def _none_rejected() -> pa.Table:
    return _REJECTED.empty_table()  # which imports pandas where it is installed, so not before rows are decoded


def _rejections(positions: _Int64s, codes: _Codes, values: pa.Array, changelog_format: ChangelogFormat) -> pa.Table:
    known = ", ".join(_known_operations(changelog_format))
    texts = values.cast(pa.string()) if not is_nested(values.type) else pa.nulls(len(values), pa.string())
    names, reasons = [], []
    for code, text in zip(codes.tolist(), texts.to_pylist(), strict=True):
        name, pattern = _CODES[code]
        names.append(name)
        reasons.append(pattern.format(repr(text) if code == _UNDECODABLE_OP else text, known))
    return pa.table([pa.array(positions), pa.array(names, pa.string()), pa.array(reasons, pa.string())], schema=_REJECTED)


def _known_operations(changelog_format: ChangelogFormat) -> list[str]:
    if isinstance(changelog_format, ChangeDataFeedFormat):
        return list(CHANGE_TYPES)
    if isinstance(changelog_format, UpsertFormat):
        return [str(value) for value in (*changelog_format.deletes, *(changelog_format.upserts or ()))]
    return [*SPELLINGS, "0", "1", "2", "3"]


def _plain_column(batch: pa.RecordBatch, name: str, relation: Relation) -> pa.Array:
    if name not in batch.schema.names:
        raise PlanError(
            f'relation "{relation.name}": the rows have no column "{name}" with their operation; they have '
            f"{batch.schema.names}.",
            code="MISSING_COLUMN",
            relation=relation.name,
            column=name,
        )
    column = batch.column(name)
    return column.dictionary_decode() if pt.is_dictionary(column.type) else column


def _read_weights(column: pa.Array, relation: Relation, changelog_format: WeightFormat) -> tuple[_Int64s, _Codes]:
    if not pt.is_integer(column.type):
        raise PlanError(
            f'relation "{relation.name}": weight column "{changelog_format.column}" is of type {column.type}; a weight '
            "is a whole number. Cast it to int64.",
            code="WEIGHT_TYPE",
            relation=relation.name,
            column=changelog_format.column,
        )
    codes = _null_mask(column).astype(np.int8) * _NULL_WEIGHT
    column = column.fill_null(0)
    if pt.is_uint64(column.type):
        unsigned = column.to_numpy(zero_copy_only=False)
        codes[unsigned > np.uint64(np.iinfo(np.int64).max)] = _WEIGHT_OVERFLOW
        weights = unsigned.astype(np.int64)
    else:
        weights = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    if relation.mode == "upsert":
        codes[(codes == 0) & (np.abs(weights) > 1)] = _UPSERT_WEIGHT
    return weights, codes


def _read_deletes(column: pa.Array, relation: Relation, changelog_format: UpsertFormat) -> tuple[_Int64s, _Codes]:
    if relation.mode == "append":
        raise PlanError(
            f'relation "{relation.name}" is append-only, and its rows come with deletes in column '
            f'"{changelog_format.column}"; declare it with mode="upsert" and a primary key.',
            code="DELETES_IN_APPEND",
            relation=relation.name,
            column=changelog_format.column,
        )
    codes = _null_mask(column).astype(np.int8) * _NULL_OP
    if pt.is_boolean(column.type):
        deleted: _Bools = column.fill_null(False).to_numpy(zero_copy_only=False)
    else:
        deleted = _is_among(column, changelog_format.deletes, relation, changelog_format.column)
        if changelog_format.upserts is not None:
            upserted = _is_among(column, changelog_format.upserts, relation, changelog_format.column)
            codes[(codes == 0) & ~deleted & ~upserted] = _UNDECODABLE_OP
    return np.where(deleted, np.int64(-1), np.int64(1)), codes


def _is_among(column: pa.Array, values: tuple[Any, ...], relation: Relation, name: str) -> _Bools:
    try:
        listed = pa.array(values, column.type)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise PlanError(
            f'relation "{relation.name}": operation column "{name}" is of type {column.type}, and {list(values)} are '
            "not; give its values in its own type.",
            code="OPERATION_TYPE",
            relation=relation.name,
            column=name,
        ) from error
    is_listed: _Bools = pc.is_in(column, listed).to_numpy(zero_copy_only=False)
    return is_listed


def _read_kinds(
    column: pa.Array, relation: Relation, changelog_format: RowKindFormat | ChangeDataFeedFormat
) -> tuple[_Int64s, _Codes]:
    """Return the number of each row's kind, -1 for none, and what is wrong with it."""
    is_feed = isinstance(changelog_format, ChangeDataFeedFormat)
    is_text = pt.is_string(column.type) or pt.is_large_string(column.type) or pt.is_string_view(column.type)
    if not is_text and (is_feed or not pt.is_integer(column.type)):
        raise PlanError(
            f'relation "{relation.name}": operation column "{changelog_format.column}" is of type {column.type}; it '
            f"must be a string{'' if is_feed else ', or an integer from 0 to 3'}.",
            code="OPERATION_TYPE",
            relation=relation.name,
            column=changelog_format.column,
        )
    codes = _null_mask(column).astype(np.int8) * _NULL_OP
    if is_text:
        spellings = {name.upper(): kind for kind, name in enumerate(CHANGE_TYPES)} if is_feed else SPELLINGS
        text = pc.utf8_upper(pc.utf8_trim_whitespace(column.cast(pa.large_string())))
        spelled = pc.index_in(text, pa.array(list(spellings), pa.large_string())).fill_null(len(spellings))
        kinds = np.array([*spellings.values(), -1], np.int64)[spelled.to_numpy(zero_copy_only=False)]
    else:
        numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
        kinds = np.where((numbers >= 0) & (numbers < 4), numbers, -1).astype(np.int64)
    codes[(codes == 0) & (kinds < 0)] = _UNDECODABLE_OP
    return kinds, codes


def _null_mask(column: pa.Array) -> _Bools:
    is_null: _Bools = column.is_null().to_numpy(zero_copy_only=False)
    return is_null


def _conformed(batch: pa.RecordBatch, relation: Relation) -> pa.RecordBatch:
    """Return the rows with the columns of the relation; the batch itself where it has just these."""
    if batch.schema.equals(relation.schema, check_metadata=True):
        return batch
    return pa.RecordBatch.from_arrays(_conform(batch, relation), schema=relation.schema)


def _conform(batch: pa.RecordBatch, relation: Relation) -> list[pa.Array]:
    """Return the columns of the relation, in its order and types, without `IMAGE`."""
    columns = []
    for field in relation.schema:
        if field.name == IMAGE:
            continue
        if field.name not in batch.schema.names:
            raise PlanError(
                f'relation "{relation.name}": the rows have no column "{field.name}"; they have {batch.schema.names}.',
                code="MISSING_COLUMN",
                relation=relation.name,
                column=field.name,
            )
        columns.append(_widened(batch.column(field.name), field, relation))
    return columns


def _widened(column: pa.Array, field: pa.Field, relation: Relation) -> pa.Array:
    if column.type == field.type:
        return column
    if _is_lossless(column.type, field.type):
        try:
            return column.cast(field.type)
        except pa.ArrowInvalid as error:
            raise BadInputError(
                f'relation "{relation.name}": column "{field.name}" holds a {column.type} that does not fit '
                f"{field.type}: {error}. Correct the value, or declare the column as {column.type}.",
                code="VALUE_OUT_OF_RANGE",
                relation=relation.name,
                column=field.name,
            ) from error
        except pa.ArrowNotImplementedError as error:
            raise _not_convertible(column, field, relation) from error
    raise _not_convertible(column, field, relation)


def _not_convertible(column: pa.Array, field: pa.Field, relation: Relation) -> PlanError:
    return PlanError(
        f'relation "{relation.name}": column "{field.name}" arrives as {column.type} and is declared as {field.type}, '
        "which cannot be converted without loss. Cast it at the source, or declare the type it comes in.",
        code="COLUMN_TYPE",
        relation=relation.name,
        column=field.name,
        given=str(column.type),
        declared=str(field.type),
    )


def _is_lossless(given: pa.DataType, declared: pa.DataType) -> bool:
    """Return whether every value of one type has its equal in the other."""
    if pt.is_dictionary(given):
        return _is_lossless(given.value_type, declared)
    if given == declared or pt.is_null(given):
        return True
    if pt.is_integer(given):
        return _widens_integer(given, declared)
    if pt.is_floating(given) and pt.is_floating(declared):
        return bool(given.bit_width < declared.bit_width)
    if pt.is_decimal(given) and pt.is_decimal(declared):
        grows = given.precision - given.scale <= declared.precision - declared.scale
        return bool(grows and given.scale <= declared.scale)
    if pt.is_timestamp(given) and pt.is_timestamp(declared):
        return (given.tz is None) == (declared.tz is None) and _is_finer(given, declared)
    if (pt.is_duration(given) and pt.is_duration(declared)) or (pt.is_time(given) and pt.is_time(declared)):
        return _is_finer(given, declared)
    if (_is_text(given) and _is_text(declared)) or (_is_bytes(given) and _is_bytes(declared)):
        return not pt.is_fixed_size_binary(declared)
    if pt.is_struct(given) and pt.is_struct(declared):
        names = [field.name for field in given] == [field.name for field in declared]
        return names and all(_is_lossless(one.type, other.type) for one, other in zip(given, declared, strict=True))
    if _is_list(given) and _is_list(declared) and not pt.is_fixed_size_list(declared):
        return _is_lossless(given.value_type, declared.value_type)
    return False


def _widens_integer(given: pa.DataType, declared: pa.DataType) -> bool:
    if pt.is_integer(declared):
        if pt.is_signed_integer(given) and pt.is_unsigned_integer(declared):
            return False
        return bool(given.bit_width < declared.bit_width)
    if pt.is_floating(declared):
        return bool(given.bit_width <= {16: 8, 32: 16, 64: 32}[declared.bit_width])
    return bool(pt.is_decimal(declared) and declared.precision - declared.scale >= _INTEGER_DIGITS[given.bit_width])


def _is_finer(given: pa.DataType, declared: pa.DataType) -> bool:
    return _UNITS.index(given.unit) <= _UNITS.index(declared.unit)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_binary_view(kind) or pt.is_fixed_size_binary(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))
