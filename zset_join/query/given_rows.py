"""Conversion of the rows given to `Pipeline.step` to the types of their source; rows that do not convert are separated.

The law: the same values convert to the same row, or are refused with row and column, in whatever they come: a list of dicts, a
dict of columns, an Arrow table or batch, a frame of pandas or polars. `zset_join.conversions` has the rule.

Edge cases: of pandas, NaN in a column of floats, NaT and NA are NULL, and the index is omitted. A column of Arrow that cannot
be converted at all is left as it is; `changelog.decoding` refuses it as a whole.

Cost: nothing where types are equal; else a few passes in Arrow for each column that is of another type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from zset_join.conversions import Converted, can_convert, convert_values, python_values
from zset_join.core.errors import BadInputError, PlanError
from zset_join.core.row_conversion import take_rows
from zset_join.core.shown_values import counted, shown_value

__all__ = ["GivenRows", "given_rows", "table_of"]

_CODE = "UNDECODABLE_VALUE"
_SHOWN = 100


@dataclass(frozen=True)
class GivenRows:
    """The rows that convert, and those that do not."""

    batch: pa.RecordBatch
    unfit: pa.Table | None = None  # per other row `row` as JSON, `code` and `reason`
    refusal: BadInputError | None = None  # of the first of them; None where all convert

    def whole(self) -> pa.RecordBatch:
        """Return the rows where all of them convert."""
        if self.refusal is not None:
            raise self.refusal
        return self.batch


def table_of(rows: Any) -> pa.Table | None:
    """Return a frame of pandas or polars, or another object with Arrow columns, as a table; None for anything else."""
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if _is_pandas(rows):
        return pa.Table.from_pandas(rows, preserve_index=False)
    if hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
        return pa.table(rows)
    return None


def given_rows(rows: Any, given: pa.Schema, source: str, names: Sequence[str]) -> GivenRows:
    columns = _columns(rows, given, source)
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1:
        shown = {name: len(column) for name, column in columns.items()}
        raise PlanError(
            f'source "{source}" was given columns of {shown} values. All columns of a delta have one length.',
            code="DELTA_TYPES",
            relation=source,
        )
    fields, arrays, bad = [], [], {}
    for name, column in columns.items():
        wanted = given.field(name).type if name in given.names else None
        converted = _converted(column, wanted, is_value=name in names)
        fields.append(pa.field(name, converted.values.type))
        arrays.append(converted.values)
        if converted.unfit is not None:
            bad[name] = converted.unfit
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    return _parted(batch, columns, bad, given, source) if bad else GivenRows(batch)


def _is_pandas(rows: Any) -> bool:
    return type(rows).__module__.partition(".")[0] == "pandas"


def _columns(rows: Any, given: pa.Schema, source: str) -> dict[str, Any]:
    """Return arrays of Arrow, or lists of objects, by name."""
    try:
        if isinstance(rows, pa.RecordBatch | pa.Table):
            return dict(zip(rows.schema.names, rows.columns, strict=True))
        if _is_pandas(rows) and hasattr(rows, "columns"):
            return {str(name): _column(rows[name]) for name in rows.columns}
        table = table_of(rows)
        if table is not None:
            return dict(zip(table.schema.names, table.columns, strict=True))
        if isinstance(rows, Mapping):
            _check_names(rows, given, source)
            _check_whole(rows, given, source)
            return {name: _column(rows[name]) for name in given.names}
        lines = list(rows)
        _check_names({name for line in lines for name in line}, given, source)
        return {name: [line.get(name) for line in lines] for name in given.names}
    except (pa.ArrowException, TypeError, KeyError, AttributeError, ValueError) as error:
        raise PlanError(
            f'source "{source}" was given {type(rows).__name__} that does not fit its columns '
            f"{[f'{field.name}: {field.type}' for field in given]}: {error}. Feed a list of dicts, a dict of columns, an Arrow "
            "table, a DataFrame of pandas or polars, or a ZSet.",
            code="DELTA_TYPES",
            relation=source,
        ) from error


def _check_names(names: Any, given: pa.Schema, source: str) -> None:
    unknown = sorted(set(names) - set(given.names))
    if unknown:
        raise PlanError(
            f'source "{source}" was given rows with {unknown}, which are not among its columns {given.names}.',
            code="UNKNOWN_COLUMN",
            relation=source,
            missing=unknown,
        )


def _check_whole(rows: Mapping[str, Any], given: pa.Schema, source: str) -> None:
    missing = [name for name in given.names if name not in rows]
    if missing:
        raise PlanError(
            f'source "{source}" was given a dict without {missing}; give all of its columns {given.names}, or a list of dicts, '
            "in which a missing value is NULL.",
            code="DELTA_TYPES",
            relation=source,
            missing=missing,
        )


def _column(values: Any) -> Any:
    """Return one column as an array of Arrow, or as a list where its objects may be of several classes."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if _is_pandas(values) and values.dtype == object:
        return [None if is_null else value for value, is_null in zip(values.tolist(), values.isna().tolist(), strict=True)]
    if _is_pandas(values):
        return pa.Array.from_pandas(values)
    if isinstance(values, np.ndarray) and values.dtype != object and values.ndim == 1:
        return pa.array(values)
    if hasattr(values, "__arrow_c_stream__"):
        return pa.chunked_array(values)
    if hasattr(values, "to_arrow"):
        return values.to_arrow()
    return list(values)


def _converted(column: Any, kind: pa.DataType | None, *, is_value: bool) -> Converted:
    if isinstance(column, list):
        return python_values(column, kind) if kind is not None else Converted(pa.array(column))
    array = _whole(column)
    is_left = kind is None or (not is_value and pt.is_integer(array.type)) or not can_convert(array.type, kind)
    return Converted(array) if is_left or array.type == kind else convert_values(array, kind)


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def _parted(
    batch: pa.RecordBatch, columns: Mapping[str, Any], bad: Mapping[str, Any], given: pa.Schema, source: str
) -> GivenRows:
    is_bad = np.logical_or.reduce(list(bad.values()))
    numbers = np.flatnonzero(is_bad).tolist()
    texts, reasons = [], []
    for number in numbers:
        column = next(name for name in bad if bad[name][number])
        reasons.append(f'{_shown(_value(columns[column], number))} is no {given.field(column).type}, as column "{column}" is')
        row = {name: _value(values, number) for name, values in columns.items()}
        texts.append(json.dumps(row, default=str, ensure_ascii=False))
    unfit = pa.table({"row": texts, "code": [_CODE] * len(texts), "reason": reasons})
    first = next(name for name in bad if bad[name][numbers[0]])
    refusal = BadInputError(
        f'source "{source}": row {numbers[0]} of the input cannot be read: {reasons[0]} '
        f"({counted(len(numbers), 'such row')}; nothing of it was applied). Correct the value, convert it first, "
        "or quarantine such rows: "
        'StageOptions(on_bad_input="quarantine").',
        code=_CODE,
        relation=source,
        row=numbers[0],
        column=first,
        value=_shown(_value(columns[first], numbers[0])),
        expected=str(given.field(first).type),
        rejected_rows=len(numbers),
    )
    return GivenRows(take_rows(batch, np.flatnonzero(~is_bad)), unfit, refusal)


def _value(column: Any, number: int) -> Any:
    return column[number] if isinstance(column, list) else shown_value(_whole(column), number)


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
