"""How the rows that a source is fed become changes.

Bindings of named sources to their rows; they are stored beside the tree of the query, never in it.

A runner makes its own kind: `Reading` turns fed rows into changes in process.

`given_rows`: the rows given to `Pipeline.step` in the types of their source; rows that do not convert are separated.

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
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zset_join.changelog import ChangelogFormat, Decoded, decode
from zset_join.changelog.formats import IMAGE
from zset_join.conversions import Converted, can_convert, convert_values, python_values
from zset_join.core.errors import BadInputError, PlanError
from zset_join.core.row_conversion import take_rows
from zset_join.core.shown_values import counted, shown_names, shown_value
from zset_join.expressions import Expression
from zset_join.expressions.rows import columns_read, rows_where
from zset_join.plan.query_plan import PlanSource
from zset_join.sources.source import Undecodable
from zset_join.zset import ZSet, single_batch

__all__ = ["Binding", "GivenRows", "Reading", "given_rows", "readings_of", "table_of"]

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


@dataclass(frozen=True, kw_only=True, eq=False)
class Binding:
    """Bind a source of a plan to its rows."""

    source: PlanSource
    is_of_versions: bool = False  # each change is a version


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading(Binding):
    """Convert the rows given to a source into changes."""

    given: pa.Schema
    changelog_format: ChangelogFormat
    deletes: Expression | None = None

    def taken(self, rows: Any) -> tuple[ZSet, Undecodable | None]:
        """Return the changes of rows and the unreadable rows, instead of rejecting all.

        Raises:
            PlanError: as `delta`.
        """
        if isinstance(rows, ZSet):
            return self._with_images(rows), None
        given = self._given(rows)
        batch = given.batch
        decoded = decode(batch, self.source.relation, self.changelog_format)
        unread = None if given.unfit is None else Undecodable(self.source.name, given.unfit)
        if decoded.rejected.num_rows:
            bad = take_rows(batch, decoded.rejected.column("row").to_numpy())
            shown = (
                {name: shown_value(bad.column(name), at) for name in shown_names(bad.schema.names)}
                for at in range(bad.num_rows)
            )
            texts = [json.dumps(row, default=str, ensure_ascii=False) for row in shown]
            rejected = pa.table({"row": texts, "code": decoded.rejected["code"], "reason": decoded.rejected["reason"]})
            parts = [rejected] if given.unfit is None else [given.unfit, rejected]
            unread = Undecodable(self.source.name, pa.concat_tables(parts))
        return self._with_deletes(decoded, batch), unread

    def delta(self, rows: Any) -> ZSet:
        """Return the changes that rows mean.

        Args:
            rows: a ZSet, an Arrow table or batch, a frame of pandas or polars, a dict of columns, or a list of dicts.

        Raises:
            PlanError: columns are missing or of other types.
            BadInputError: a row without its kind of change, or a value that its column does not hold.
        """
        if isinstance(rows, ZSet):
            return self._with_images(rows)
        batch = self._given(rows).whole()
        decoded = decode(batch, self.source.relation, self.changelog_format)
        if decoded.rejected.num_rows:
            first = decoded.rejected.slice(0, 1).to_pylist()[0]
            raise BadInputError(
                f'source "{self.source.name}": row {first["row"]} of the input cannot be read: {first["reason"]} '
                f"({counted(decoded.rejected.num_rows, 'such row')}; nothing of it was applied).",
                code=first["code"],
                relation=self.source.name,
                rejected_rows=decoded.rejected.num_rows,
            )
        return self._with_deletes(decoded, batch)

    def _with_deletes(self, decoded: Decoded, batch: pa.RecordBatch) -> ZSet:
        delta = decoded.delta
        if self.deletes is not None and len(delta):
            columns = {name: batch.column(name) for name in columns_read(self.deletes)}
            deleted = rows_where(self.deletes, columns, batch.num_rows)[decoded.positions]
            delta = ZSet(delta.rows, np.where(deleted, np.int64(-1), delta.weights))
        if self.is_of_versions and IMAGE in delta.rows.schema.names:
            kept = np.flatnonzero(np.asarray(pc.not_equal(delta.rows.column(IMAGE), 0)))
            delta = ZSet(delta.rows.take(pa.array(kept)), delta.weights[kept])
        return delta

    @cached_property
    def _has_image(self) -> bool:
        """Return whether the source has the column that orders the rows of a commit."""
        return IMAGE in self.source.relation.schema.names

    def _with_images(self, delta: ZSet) -> ZSet:
        """Return a delta of the table with the column that orders the rows of a commit, where the source has one."""
        if not self._has_image or IMAGE in delta.rows.schema.names:
            return delta
        schema = self.source.relation.schema
        images = pa.array(np.where(delta.weights < 0, 1, 2).astype(np.int8))
        return ZSet(delta.rows.append_column(schema.field(IMAGE), images), delta.weights)

    def _given(self, rows: Any) -> GivenRows:
        if isinstance(rows, pa.RecordBatch | pa.Table):
            if rows.schema.equals(self.given):
                return GivenRows(rows if isinstance(rows, pa.RecordBatch) else single_batch(rows))
            self._check_names(rows.schema.names)
        return given_rows(rows, self.given, self.source.name, self.source.relation.schema.names)

    def _check_names(self, names: Sequence[str]) -> None:
        """Refuse a table with two columns of one name."""
        if len(set(names)) == len(names):
            return
        doubled = sorted({name for name in names if names.count(name) > 1})
        raise PlanError(
            f'source "{self.source.name}" was given a table with more than one column named {doubled}; rename or drop one.',
            code="DUPLICATE_COLUMN",
            relation=self.source.name,
            names=doubled,
        )


def readings_of(bindings: Sequence[Binding]) -> dict[str, Reading]:
    """Return how the rows of each source are read, by its name; where its changes are versions too, as versions."""
    readings: dict[str, Reading] = {}
    for binding in sorted(bindings, key=lambda one: one.is_of_versions):
        if not isinstance(binding, Reading):
            raise PlanError(
                f'source "{binding.source.name}" is bound to a {type(binding).__name__} and takes no rows in process. Run '
                "the view with writeStream, or describe the source with changes(name, schema, ...).",
                code="SPARK_ONLY_STEP",
                name=binding.source.name,
            )
        readings[binding.source.name] = binding
    return readings
