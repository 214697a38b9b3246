"""How rows of the inputs of a stage travel in one DataFrame, and how a task gets them back.

Each row has a flag (the number of the input, which is called its *side*; plus `REJECTED` when it was rejected before the
shuffle; -1 for a task's receipt), a weight, the slots and an order. A slot is a column that all sides may use: columns of equal
type share one, so a row carries about as many values as the widest side has. `order` grows within each partition that sent
rows; the high bits name the partition.

The law: the delta of a side has its rows in the order of arrival within each sending partition, and the partitions in
order, whatever order the shuffle delivered them in. A replay therefore gives the same delta.

Cost: rows of one sending partition arrive together, so they are sliced and joined, not sorted: one copy per column. When the
pieces are many and small, they are sorted row by row instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zset_join.zset import ZSet

__all__ = [
    "RECEIPT_FLAG",
    "REJECTED",
    "TARGET",
    "WEIGHT",
    "Arrivals",
    "SlotLayout",
    "as_type",
    "assign_slots",
    "collect_arrivals",
    "collect_rows",
    "fitted_batch",
    "make_layout",
    "pack_receipts",
    "pack_rows",
    "travelling_schema",
]

RECEIPT_FLAG = -1
REJECTED = 64
"""What is added to the flag of a row that was rejected before the shuffle; so a stage has fewer inputs than this."""
TARGET = "target"
"""The column that names the stage a row is for, where rows for several travel together."""
WEIGHT = "__weight"
"""The column of a weight, where rows have the names that users gave their columns."""
_ORDER_BITS = 33
_Pieces = dict[int, list[tuple[int, pa.RecordBatch]]]
_ROWS_PER_PIECE = 64


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """Map each column of each side to its slot."""

    types: tuple[pa.DataType, ...]
    schemas: tuple[pa.Schema, ...]
    slots: tuple[tuple[int, ...], ...]
    has_raw: bool

    @property
    def names(self) -> list[str]:
        return [f"s{number}" for number in range(len(self.types))]


@dataclass(slots=True)
class Arrivals:
    deltas: list[ZSet]
    rejected: list[ZSet]
    raw: list[list[str | None]]
    receipts: list[str]

    def count(self, side: int) -> int:
        """Return the rows of one side, rejected ones included."""
        return len(self.deltas[side]) + len(self.rejected[side])

    def __len__(self) -> int:
        return sum(map(self.count, range(len(self.deltas))))


def make_layout(*schemas: pa.Schema, has_raw: bool, types: Iterable[pa.DataType] = ()) -> SlotLayout:
    """Assign a slot to every column; columns of equal type on different sides share one.

    >>> schema = pa.schema({"a": pa.int64(), "b": pa.string()})
    >>> make_layout(schema, schema, has_raw=False).slots
    ((0, 1), (0, 1))
    """
    known = list(types)
    slots = tuple(assign_slots(known, schema) for schema in schemas)
    return SlotLayout(tuple(known), schemas, slots, has_raw)


def assign_slots(types: list[pa.DataType], schema: pa.Schema) -> tuple[int, ...]:
    """Return the slot of every column of a side; where no slot has the type, one is added to `types`."""
    slots: list[int] = []
    free: dict[Hashable, deque[int]] = {}
    for at, kind in enumerate(types):
        free.setdefault(_same_as(kind), deque()).append(at)
    for kind in schema.types:
        unused = free.get(_same_as(kind))
        if unused:
            slots.append(unused.popleft())
        else:
            slots.append(len(types))
            types.append(kind)
    return tuple(slots)


def _same_as(kind: pa.DataType) -> Hashable:
    """Return what is equal for equal types: of a list or map, the names of its inner fields do not count."""
    inner, has_names = map(kind.field, range(kind.num_fields)), pa.types.is_struct(kind)
    return (kind.id, *((one.name * has_names, _same_as(one.type)) for one in inner)) if kind.num_fields else kind


def travelling_schema(layout: SlotLayout, *, has_target: bool = False) -> pa.Schema:
    """Return the Arrow schema of rows that one task sends to others."""
    fields = [pa.field("flag", pa.int8()), pa.field("weight", pa.int64())]
    fields += [pa.field(TARGET, pa.int32())] if has_target else []
    fields += [pa.field(name, kind) for name, kind in zip(layout.names, layout.types, strict=True)]
    return pa.schema([*fields, pa.field("receipt", pa.string()), pa.field("order", pa.int64())])


def pack_rows(
    rows: ZSet, layout: SlotLayout, *, side: int, sender: int, sent: int, target: int | None = None
) -> pa.RecordBatch:
    count = len(rows)
    columns: dict[str, pa.Array] = {
        "flag": pa.array(np.full(count, side, np.int8)),
        "weight": pa.array(rows.weights),
        "order": pa.array(np.arange(sent, sent + count, dtype=np.int64) + (sender << _ORDER_BITS)),
    }
    for position, slot in enumerate(layout.slots[side]):
        columns[f"s{slot}"] = rows.rows.column(position)
    return _targeted(layout, columns, count, target)


def pack_receipts(lines: Sequence[str], layout: SlotLayout, *, target: int | None = None) -> pa.RecordBatch:
    """Put the receipts of a task into rows."""
    count = len(lines)
    columns = {
        "flag": pa.array(np.full(count, RECEIPT_FLAG, np.int8)),
        "weight": pa.array(np.zeros(count, np.int64)),
        "order": pa.array(np.zeros(count, np.int64)),
        "receipt": pa.array(lines, pa.string()),
    }
    return _targeted(layout, columns, count, target)


def _targeted(layout: SlotLayout, columns: dict[str, pa.Array], count: int, target: int | None) -> pa.RecordBatch:
    if target is not None:
        columns[TARGET] = pa.array(np.full(count, target, np.int32))
    return fitted_batch(travelling_schema(layout, has_target=target is not None), columns, count)


def fitted_batch(schema: pa.Schema, columns: Mapping[str, pa.Array], count: int) -> pa.RecordBatch:
    """Return columns in the order and the types of a schema, NULL where there is none."""
    arrays = [as_type(columns.get(field.name, pa.nulls(count, field.type)), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def collect_arrivals(batches: Iterable[pa.RecordBatch], layout: SlotLayout) -> Arrivals:
    """Take the rows of a task apart again."""
    pieces, receipts = _pieces_of(batches)
    deltas, rejected, raw = [], [], []
    for side in range(len(layout.schemas)):
        rows = _in_order(pieces.get(side, []))
        deltas.append(_side_rows(rows, layout, side))
        refused = _in_order(pieces.get(side + REJECTED, []))
        rejected.append(_side_rows(refused, layout, side))
        raw.append(refused.column("raw").to_pylist() if refused is not None and layout.has_raw else [])
    return Arrivals(deltas, rejected, raw, receipts)


def collect_rows(batches: Iterable[pa.RecordBatch], layout: SlotLayout) -> tuple[list[list[ZSet]], list[str]]:
    """Take the rows of a task apart again, without joining them: together they may be more than one array can hold."""
    pieces, receipts = _pieces_of(batches)
    sides = range(len(layout.schemas))
    return [[_side_rows(rows, layout, side) for rows in _stretches(pieces.get(side, []))] for side in sides], receipts


def _pieces_of(batches: Iterable[pa.RecordBatch]) -> tuple[_Pieces, list[str]]:
    pieces: _Pieces = {}
    receipts: list[str] = []
    for batch in batches:
        if batch.num_rows:
            _sort_into(batch, pieces, receipts)
    return pieces, receipts


def _stretches(pieces: list[tuple[int, pa.RecordBatch]]) -> list[pa.RecordBatch]:
    """Return stretches in the order of their senders; joined and sorted when they overlap."""
    pieces.sort(key=lambda piece: piece[0])
    ends = [piece.column("order")[-1].as_py() for _, piece in pieces]
    if any(begin <= end for end, (begin, _) in zip(ends, pieces[1:], strict=False)):
        joined = _in_order(pieces)
        return [] if joined is None else [joined]
    return [piece for _, piece in pieces]


def _sort_into(batch: pa.RecordBatch, pieces: _Pieces, receipts: list[str]) -> None:
    """Cut a batch where the sender or the side changes."""
    flags = batch.column("flag").to_numpy()
    if (flags == RECEIPT_FLAG).any():
        receipts += pc.drop_null(batch.column("receipt")).to_pylist()
        batch = batch.filter(pa.array(flags != RECEIPT_FLAG))
        flags = batch.column("flag").to_numpy()
    if not batch.num_rows:
        return
    if (flags >= REJECTED).any():
        for flag in np.unique(flags[flags >= REJECTED]).tolist():
            refused = batch.filter(pa.array(flags == flag))
            pieces.setdefault(flag, []).extend(_cut(refused, np.asarray(refused.column("order"))))
        batch = batch.filter(pa.array(flags < REJECTED))
        flags = batch.column("flag").to_numpy()
    order = np.asarray(batch.column("order"))
    changes = np.flatnonzero(np.diff(flags)) + 1
    begin = 0
    for end in [*changes.tolist(), len(flags)]:
        if end > begin:
            pieces.setdefault(int(flags[begin]), []).extend(_cut(batch.slice(begin, end - begin), order[begin:end]))
        begin = end


def _cut(batch: pa.RecordBatch, order: npt.NDArray[np.int64]) -> list[tuple[int, pa.RecordBatch]]:
    """Cut rows of one side into stretches whose order grows within one sender."""
    if not batch.num_rows:
        return []
    breaks = np.flatnonzero((np.diff(order) <= 0) | (np.diff(order >> _ORDER_BITS) != 0)) + 1
    if len(breaks) > batch.num_rows // _ROWS_PER_PIECE + 8:
        sorting = np.argsort(order, kind="stable")
        return [(int(order[sorting[0]]), batch.take(pa.array(sorting)))]
    edges = [0, *breaks.tolist(), batch.num_rows]
    return [(int(order[begin]), batch.slice(begin, end - begin)) for begin, end in pairwise(edges)]


def _in_order(pieces: list[tuple[int, pa.RecordBatch]]) -> pa.RecordBatch | None:
    """Join stretches in the order of their senders; sort rows when stretches overlap."""
    if not pieces:
        return None
    pieces.sort(key=lambda piece: piece[0])
    batches = [piece for _, piece in pieces]
    joined = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    order = np.asarray(joined.column("order"))
    if (np.diff(order) <= 0).any():
        joined = joined.take(pa.array(np.argsort(order, kind="stable")))
    return joined


def _side_rows(rows: pa.RecordBatch | None, layout: SlotLayout, side: int) -> ZSet:
    schema = layout.schemas[side]
    if rows is None:
        return ZSet.empty(schema)
    names: Sequence[str] = layout.names
    columns = [as_type(rows.column(names[slot]), kind) for slot, kind in zip(layout.slots[side], schema.types, strict=True)]
    weights = np.asarray(rows.column("weight"), dtype=np.int64)
    return ZSet(pa.RecordBatch.from_arrays(columns, schema=schema), weights)


def as_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)
