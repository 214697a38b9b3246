"""A table whose rows carry a signed count.

A `ZSet` is an Arrow record batch plus one int64 weight per row. The same row may be in it several times; its weight is
then the sum. `consolidated()` brings every distinct row down to one line and drops those with weight 0.

Row identity is Spark's: NaN equals NaN, 0.0 equals -0.0, NULL equals NULL. The values kept are those of the first line.

Memory: the columns are shared with the given batch, never copied; weights take 8 bytes a row.
Source: the Z-sets of DBSP (Budiu et al., VLDB 2023).

`bars`: a delta as a bar chart, by altair or matplotlib, whichever is installed.

Cost: as `to_pylist` of two columns; altair refuses more than 5,000 rows unless it is configured otherwise.
"""

from __future__ import annotations

import importlib
import importlib.util
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.errors import BadInputError, PlanError, WeightOverflowError
from zset_join.core.extras import needed_for
from zset_join.core.row_conversion import take_rows
from zset_join.core.shown_values import MOST_ROWS, counted, html_table, shown_column
from zset_join.kernels.rows.slots import sum_weights
from zset_join.zset.row_layout import RowLayout

__all__ = ["RowSums", "ZSet", "single_batch"]

_COLORS = {"comes": "#1c8042", "goes": "#c23a3a"}


def bars(delta: Any, x: str, y: str) -> Any:
    """Return the chart of a `ZSet`; see its `plot`."""
    missing = [name for name in (x, y) if name not in delta.schema.names]
    if missing:
        raise PlanError(
            f"plot: there is no column {missing[0]!r}; the columns are {delta.schema.names}.",
            code="DELTA_COLUMNS",
            missing=missing,
        )
    across = [value if isinstance(value, int | float) else str(value) for value in shown_column(delta.rows.column(x))]
    weights = delta.weights.tolist()
    up = [_number(value) * weight for value, weight in zip(delta.rows.column(y).to_pylist(), weights, strict=True)]
    signs = ["goes" if weight < 0 else "comes" for weight in weights]
    if importlib.util.find_spec("altair") is not None:
        return _by_altair(x, y, across, up, signs)
    return _by_matplotlib(x, y, across, up, signs)


def _by_altair(x: str, y: str, across: list[Any], up: list[float], signs: list[str]) -> Any:
    altair: Any = importlib.import_module("altair")
    rows = [{"x": place, "y": value, "change": sign} for place, value, sign in zip(across, up, signs, strict=True)]
    kind = "Q" if all(isinstance(one, int | float) for one in across) else "N"
    colors = altair.Scale(domain=list(_COLORS), range=list(_COLORS.values()))
    encoded = {
        "x": altair.X(f"x:{kind}", title=x),
        "y": altair.Y("y:Q", title=y),
        "color": altair.Color("change:N", scale=colors),
    }
    return altair.Chart(altair.Data(values=rows)).mark_bar().encode(**encoded)


def _by_matplotlib(x: str, y: str, across: list[Any], up: list[float], signs: list[str]) -> Any:
    with needed_for("plot()"):
        plt: Any = importlib.import_module("matplotlib.pyplot")
    _, axes = plt.subplots()
    axes.bar(across, up, color=[_COLORS[sign] for sign in signs])
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return axes


def _number(value: Any) -> float:
    return 0.0 if value is None else float(value)


_INT64 = np.dtype(np.int64)
_LEAST_WEIGHT = -(1 << 63)
_HASH_KEY = (secrets.randbits(31) << 32) | 0xFFFFFFFF  # lines come out in the order of their first: the seed does not show


@dataclass(frozen=True, eq=False, repr=False, init=False)
class ZSet:
    """Pair rows with weights.

    Args:
        rows: the rows, as one record batch.
        weights: int64, one per row.

    >>> ZSet.of({"k": [1, 2]}, [1, -1]).total_weight()
    0
    """

    rows: pa.RecordBatch
    weights: npt.NDArray[np.int64]

    def __init__(self, rows: pa.RecordBatch, weights: npt.NDArray[np.int64]) -> None:
        if weights.dtype != _INT64 or weights.shape != (rows.num_rows,):
            raise ValueError(f"{rows.num_rows} rows need {rows.num_rows} int64 weights, got {weights.shape} {weights.dtype}")
        own = self.__dict__  # half the cost of what a frozen dataclass does
        own["rows"], own["weights"] = rows, weights

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of the rows, without the weight."""
        return self.rows.schema

    @classmethod
    def of(
        cls,
        columns: Any,
        weights: Sequence[int] | npt.NDArray[np.int64] | None = None,
        *,
        schema: pa.Schema | None = None,
    ) -> ZSet:
        """Build from a dict of columns, a Table or a RecordBatch; weights default to +1 each.

        Raises:
            BadInputError: `WEIGHT_NOT_WHOLE`, for a weight that is not a whole number of 64 bits.

        >>> ZSet.of({"k": [1]}, [0.5])
        Traceback (most recent call last):
            ...
        zset_join.core.errors.BadInputError: [WEIGHT_NOT_WHOLE] ...
        """
        if isinstance(columns, pa.RecordBatch):
            rows = columns if schema is None else columns.cast(schema)
        else:
            table = columns if isinstance(columns, pa.Table) else pa.table(columns, schema=schema)
            rows = single_batch(table)
        counts = np.ones(rows.num_rows, np.int64) if weights is None else _whole(weights)
        return cls(rows, counts)

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Mapping[str, Any] | Sequence[Any]],
        schema: pa.Schema | Mapping[str, pa.DataType],
        *,
        weights: Sequence[int] | None = None,
    ) -> ZSet:
        """Build from plain Python rows.

        Args:
            rows: dicts by column name (a missing one is NULL), or tuples in the order of the schema.
            schema: an Arrow schema, or column names and types.
            weights: one per row; default +1 each.

        Raises:
            PlanError: a row does not fit the schema, or the numbers of weights and rows differ.

        >>> columns = {"id": pa.int64(), "name": pa.string()}
        >>> ZSet.from_rows([{"id": 1, "name": "Ada"}, (2, "Bob")], columns, weights=[1, -1]).to_pylist()
        [((1, 'Ada'), 1), ((2, 'Bob'), -1)]
        """
        row_schema = schema if isinstance(schema, pa.Schema) else pa.schema(list(schema.items()))
        lines = [_named(row, row_schema) for row in rows]
        if weights is not None and len(weights) != len(lines):
            raise PlanError(
                f"{counted(len(lines), 'row')} came with {counted(len(weights), 'weight')}; give one each.",
                code="DELTA_WEIGHTS",
            )
        try:
            batch = pa.RecordBatch.from_pylist(lines, schema=row_schema)
        except (pa.ArrowException, TypeError, ValueError) as error:
            columns = [f"{field.name}: {field.type}" for field in row_schema]
            raise PlanError(f"a row does not fit the columns {columns}: {error}", code="DELTA_TYPES") from error
        return cls.of(batch, weights)

    @classmethod
    def empty(cls, schema: pa.Schema) -> ZSet:
        """Return the Z-set with no rows."""
        return cls(pa.RecordBatch.from_pylist([], schema=schema), np.zeros(0, np.int64))

    @classmethod
    def concat(cls, parts: Iterable[ZSet], *, schema: pa.Schema) -> ZSet:
        """Concatenate Z-sets without consolidating; `schema` is used if there are none."""
        kept = [part for part in parts if len(part)]
        if not kept:
            return cls.empty(schema)
        if len(kept) == 1:
            return kept[0]
        return cls(
            pa.concat_batches([part.rows for part in kept]),
            np.concatenate([part.weights for part in kept]),
        )

    @classmethod
    def concat_freeing(cls, parts: list[ZSet], *, schema: pa.Schema) -> ZSet:
        """Sum of Z-sets as `concat` makes it; the list is emptied.

        Memory: where nothing else has the parts, one column twice, and not all of them; nothing for consecutive slices.
        """
        if len(parts) < 2 or not parts[0].schema.names:
            return cls.concat(parts, schema=schema)
        weights = np.concatenate([part.weights for part in parts])
        given = parts[0].schema
        pieces = [part.rows.columns for part in parts]
        parts.clear()
        columns = [_joined([piece.pop(0) for piece in pieces]) for _ in given]
        return cls(pa.RecordBatch.from_arrays(columns, schema=given), weights)

    def __add__(self, other: ZSet) -> ZSet:
        return ZSet.concat((self, other), schema=self.schema)

    def __neg__(self) -> ZSet:
        if len(self) and self.weights.min() == _LEAST_WEIGHT:
            raise WeightOverflowError("the negation of weight -2^63 does not fit an int64.")
        return ZSet(self.rows, -self.weights)

    def with_schema(self, schema: pa.Schema) -> ZSet:
        """Return the same rows under the column names of another schema with the same types.

        >>> ZSet.of({"k": [1]}).with_schema(pa.schema({"key": pa.int64()})).schema.names
        ['key']
        """
        if self.schema.names == schema.names:
            return self
        return ZSet(pa.RecordBatch.from_arrays(self.rows.columns, schema=schema), self.weights)

    def consolidated(self, sums_of: RowSums | None = None) -> ZSet:
        """Return every distinct row once, with the sum of its weights; rows whose weights sum to 0 are omitted.

        Args:
            sums_of: a `RowSums` of this schema to reuse; building one costs as much as some hundred rows.

        Raises:
            WeightOverflowError: a sum past int64.

        Cost: one hash and one probe per row.

        >>> ZSet.of({"x": [0.0, 1.0, -0.0]}, [1, 1, -1]).consolidated().to_pylist()
        [((1.0,), 1)]
        """
        if len(self) <= 1:
            return self if self.weights.all() else ZSet.empty(self.schema)
        first, sums, overflow = (RowSums(self.schema) if sums_of is None else sums_of).of(self.rows, self.weights)
        if overflow:
            raise WeightOverflowError("the weights of a row sum past int64; retract some copies first.")
        kept = sums != 0
        if kept.all() and len(first) == len(self):
            return self
        return ZSet(take_rows(self.rows, first[kept]), sums[kept])

    def tidy_chunks(self, rows: int) -> Iterator[ZSet]:
        """Yield every distinct row once, retractions first, in chunks of at most so many rows. Cost: as `consolidated`."""
        yield from self.consolidated().retractions_first(rows)

    def retractions_first(self, rows: int) -> Iterator[ZSet]:
        """Yield the rows, retractions first, in chunks of at most so many rows; rows of weight 0 are omitted.

        Cost: none if they are in this order; else a copy.
        """
        signs = np.sign(self.weights)
        if signs.all() and not (signs[1:] < signs[:-1]).any():
            if len(self) <= rows:
                yield from [self] if len(self) else []
                return
            for begin in range(0, len(self), rows):
                yield ZSet(self.rows.slice(begin, rows), self.weights[begin : begin + rows])
            return
        order = np.concatenate([np.flatnonzero(signs < 0), np.flatnonzero(signs > 0)])
        for begin in range(0, len(order), rows):
            chosen = order[begin : begin + rows]
            yield ZSet(take_rows(self.rows, chosen), self.weights[chosen])

    def total_weight(self) -> int:
        """Return the sum of the weights, exact whatever its size."""
        return (int((self.weights >> 32).sum()) << 32) + int((self.weights & 0xFFFFFFFF).sum())

    def __repr__(self) -> str:
        """Return size and columns; `show` prints rows."""
        columns = ", ".join(f"{field.name}: {field.type}" for field in self.schema)
        return f"ZSet({counted(len(self), 'row')}, {columns})"

    def to_arrow(self) -> pa.Table:
        """Return the rows as a table with their weights as first column, `weight` (`weight_` if a column has that name)."""
        name = "weight"
        while name in self.schema.names:
            name += "_"
        return pa.Table.from_batches([self.rows]).add_column(0, name, pa.array(self.weights))

    def to_pandas(self) -> Any:
        """Return `to_arrow` as a pandas DataFrame.

        Raises:
            MissingPackageError: pandas is not installed.
        """
        with needed_for("to_pandas()"):
            import pandas  # type: ignore[import-untyped]  # noqa: F401 - looked for; Arrow uses it
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Return `to_arrow` as a polars DataFrame.

        Raises:
            MissingPackageError: polars is not installed.
        """
        with needed_for("to_polars()"):
            import polars as pl
        return pl.from_arrow(self.to_arrow())

    def show(self, n: int = 20) -> None:
        """Print the first rows, each after its weight."""
        print(" | ".join(["weight", *self.schema.names]))  # noqa: T201 - requested
        shown = [shown_column(column.slice(0, n)) for column in self.rows.columns]
        for place, weight in enumerate(self.weights[:n].tolist()):
            print(" | ".join([f"{weight:+d}", *(str(column[place]) for column in shown)]))  # noqa: T201 - requested
        if len(self) > n:
            print(f"... and {len(self) - n} more rows")  # noqa: T201 - requested

    def plot(self, x: str, y: str) -> Any:
        """Return a bar chart of one column over another; retracted rows are red and negative.

        Args:
            x: column of the horizontal axis.
            y: numeric column of the vertical axis; a row counts as often as its weight.

        Returns:
            An `altair.Chart` if altair is installed, else the `Axes` of matplotlib.

        Raises:
            PlanError: `DELTA_COLUMNS`: an unknown column.
            MissingPackageError: neither is installed.
        """
        return bars(self, x, y)

    def _repr_html_(self) -> str:
        """Return the first rows as a table for a notebook, colored by sign."""
        shown = [shown_column(column.slice(0, MOST_ROWS)) for column in self.rows.columns]
        weights = self.weights[:MOST_ROWS].tolist()
        rows = [[f"{weight:+d}", *(column[place] for column in shown)] for place, weight in enumerate(weights)]
        caption = f"{len(self)} changed rows" + (f", the first {MOST_ROWS}" if len(self) > MOST_ROWS else "")
        return html_table(["weight", *self.schema.names], rows, caption=caption, signs=[-1 if w < 0 else 1 for w in weights])

    def to_pylist(self) -> list[tuple[tuple[Any, ...], int]]:
        """Return `(row, weight)` pairs as Python values; for tests and messages, not for hot paths."""
        columns = [column.to_pylist() for column in self.rows.columns]
        values = zip(*columns, strict=True) if columns else (() for _ in range(len(self)))
        return list(zip((tuple(row) for row in values), self.weights.tolist(), strict=True))


def _named(row: Mapping[str, Any] | Sequence[Any], schema: pa.Schema) -> Mapping[str, Any]:
    if isinstance(row, Mapping):
        unknown = [name for name in row if name not in schema.names]
        if not unknown:
            return row
        raise PlanError(
            f"the row {dict(row)!r} has {unknown}, which are not among the columns {schema.names}.",
            code="UNKNOWN_COLUMN",
            missing=unknown,
        )
    if len(row) != len(schema):
        raise PlanError(
            f"the row {tuple(row)!r} has {counted(len(row), 'value')} for the {len(schema)} columns {schema.names}.",
            code="DELTA_COLUMNS",
        )
    return dict(zip(schema.names, row, strict=True))


class RowSums:
    """Add up the weights of equal rows of one schema, for callers that do it often; one thread at a time uses it."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._layout = RowLayout(schema)
        self._columns = self._layout.visible_columns()

    def of(
        self, rows: pa.RecordBatch, weights: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], bool]:
        """Return the position of the first line of each distinct row, the sum of its weights, and whether a sum left int64."""
        count, stride = rows.num_rows, self._layout.stride
        records = np.empty(count * stride, np.uint8)
        encoded = self._layout.encode(rows, [], records, int(records.ctypes.data))
        bits = max(4, (2 * count).bit_length())
        table = np.zeros(1 << bits, np.int64)
        first, sums, lows = np.empty((3, count), np.int64)
        entries, overflow = sum_weights(
            encoded.address, stride, count, self._columns.address, _HASH_KEY, weights, table, bits, first, sums, lows
        )
        return first[:entries], sums[:entries], bool(overflow)


def _whole(weights: Any) -> npt.NDArray[np.int64]:
    """Return weights as int64, or refuse them: a weight is a number of copies."""
    given = np.asarray(weights)
    if given.dtype.kind in "bi" or not given.size:
        return given.astype(np.int64, copy=False)
    # What NumPy has made floats of may have been large integers.
    values = given.ravel().tolist() if isinstance(weights, np.ndarray) else list(weights)
    for place, weight in enumerate(values):
        if not _is_whole(weight):
            raise BadInputError(
                f"the weight of row {place} is {weight!r}; a weight is the number of copies added (positive) or "
                f"removed (negative); give whole numbers between -2^63 and 2^63 - 1.",
                code="WEIGHT_NOT_WHOLE",
                row=place,
                weight=weight,
            )
    return np.array([int(weight) for weight in values], np.int64).reshape(given.shape)


def _is_whole(weight: Any) -> bool:
    if not isinstance(weight, int | float | Decimal | np.integer | np.floating):
        return False
    return bool(-(1 << 63) <= weight < 1 << 63 and weight == int(weight))


def _joined(pieces: list[pa.Array]) -> pa.Array:
    """Return one array; consecutive slices of one are not copied."""
    first, length = pieces[0], 0
    buffers, kind = first.buffers(), first.type
    if not kind.num_fields and not isinstance(kind, pa.DictionaryType | pa.BaseExtensionType):
        places = _addresses(buffers)
        for piece in pieces:
            if piece.offset != first.offset + length or _addresses(piece.buffers()) != places:
                break
            length += len(piece)
        else:
            return pa.Array.from_buffers(kind, length, buffers, offset=first.offset)
    return pa.concat_arrays(pieces)


def _addresses(buffers: Sequence[pa.Buffer | None]) -> list[int | None]:
    return [None if one is None else one.address for one in buffers]


def single_batch(table: pa.Table) -> pa.RecordBatch:
    """Return the table as one record batch; copies only when a column has more than one chunk."""
    batches = table.combine_chunks().to_batches()
    if not batches:
        return pa.RecordBatch.from_pylist([], schema=table.schema)
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
