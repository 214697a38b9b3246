"""The state of one side as a plain table, and back.

A snapshot holds the live rows and the tombstones with their own columns, and what they remember in columns that
start with `_zset_`. Indexes are not part of it; they are rebuilt.

It is made and taken batch by batch, so that neither takes more memory than the state may; as one table it is the same.

The rows of a join key are in the order they were linked in, so that restoring links them in that order again: a restored side
answers with the same rows in the same order as the one the snapshot was taken of.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spill.row_bytes import UnpackedRows
from zset_join.core.errors import StateError
from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u8, load_u32, load_u64, store_u64
from zset_join.kernels.rows import changes as ch
from zset_join.kernels.rows import side as s
from zset_join.kernels.rows.side import CHANGE_WORDS
from zset_join.kernels.rows.storing import date_newest, requeue
from zset_join.kernels.values import keys as c
from zset_join.shapes.kept_types import NullKeys
from zset_join.state.rows.side import PreparedSide, SideState
from zset_join.zset import ZSet, single_batch

__all__ = [
    "EPOCH",
    "SNAPSHOT_DEGREE",
    "SNAPSHOT_SEQUENCE",
    "SNAPSHOT_WATERMARK",
    "SNAPSHOT_WEIGHT",
    "counted_reader",
    "null_keys",
    "refuse_contradictions",
    "repeated_rows",
    "restore_side",
    "side_reader",
    "snapshot_counts",
    "snapshot_epoch",
    "snapshot_parts",
    "with_null_keys",
    "with_unknown_deletes",
]

SNAPSHOT_WEIGHT = "_zset_weight"
SNAPSHOT_WATERMARK = "_zset_watermark"
SNAPSHOT_SEQUENCE = "_zset_sequence_"
SNAPSHOT_DEGREE = "_zset_degree"

_Words = npt.NDArray[np.int64]

_SNAPSHOT_ROWS = 1 << 16
EPOCH = b"zset_join.absorbed_epoch"
_ROWS = b"zset_join.rows"
_IGNORED = b"zset_join.ignored_rows"


def side_reader(
    side: SideState,
    cold: Iterable[UnpackedRows] = (),
    cold_tombstones: Iterable[UnpackedRows] = (),
    *,
    keeps_order: bool = True,
) -> pa.RecordBatchReader:
    """Return the live rows and tombstones, with what they remember in columns that start with `_zset_`."""
    # Batches are made while they are read; the side must not change meanwhile. `keeps_order`: rows of one key come in the order
    # in which they were linked, as a snapshot has them; else as they are in memory, in half the time.
    facts = _facts(side.absorbed_epoch, side.ignored) | null_keys(side).metadata()
    schema = _snapshot_schema(side).with_metadata(facts)
    return pa.RecordBatchReader.from_batches(schema, _batches(side, cold, cold_tombstones, keeps_order))


def snapshot_parts(rows: pa.Table | pa.RecordBatchReader) -> Iterator[pa.Table]:
    """Yield the rows of a snapshot in parts of which the working arrays are not too large."""
    tables = [rows] if isinstance(rows, pa.Table) else (pa.Table.from_batches([batch]) for batch in rows)
    for table in tables:
        for begin in range(0, table.num_rows, _SNAPSHOT_ROWS):
            yield table.slice(begin, _SNAPSHOT_ROWS)


def _batches(
    side: SideState, cold: Iterable[UnpackedRows], cold_tombstones: Iterable[UnpackedRows], keeps_order: bool
) -> Iterator[pa.RecordBatch]:
    live, dead = side.live_refs()
    live = _in_linking_order(side, len(live)) if keeps_order else live
    in_memory, stride = side.arena.heap_address, side.layout.stride
    on_disk = ((rows.refs(stride), 0, is_dead) for is_dead, of in ((False, cold), (True, cold_tombstones)) for rows in of)
    for refs, heap, is_tombstone in chain([(live, in_memory, False)], on_disk, [(dead, in_memory, True)]):
        for begin in range(0, len(refs), _SNAPSHOT_ROWS):
            yield _as_batch(side, refs[begin : begin + _SNAPSHOT_ROWS], heap, is_tombstone)


def _snapshot_schema(side: SideState) -> pa.Schema:
    hidden = [SNAPSHOT_WEIGHT, SNAPSHOT_WATERMARK]
    hidden += [f"{SNAPSHOT_SEQUENCE}{word}" for word in range(side.layout.sequence_words)]
    hidden += [SNAPSHOT_DEGREE] if side.layout.degree_offset >= 0 else []
    return pa.schema([*side.relation.schema, *(pa.field(name, pa.int64()) for name in hidden)])


def _as_batch(side: SideState, refs: _Words, heap: int, is_tombstone: bool) -> pa.RecordBatch:
    """Return records as rows, with what they remember."""
    count, layout, schema = len(refs), side.layout, side.relation.schema
    refs = np.ascontiguousarray(refs)
    columns = layout.gather_plan(range(len(schema))).gather(int(refs.ctypes.data), count, heap)
    nothing = np.zeros(count, np.int64)
    weights = _words_of(refs, c.WEIGHT)
    columns += [pa.array(nothing if is_tombstone else weights), pa.array(weights, mask=np.full(count, not is_tombstone))]
    columns += [pa.array(_words_of(refs, layout.sequence_offset + 8 * word)) for word in range(layout.sequence_words)]
    if layout.degree_offset >= 0:
        columns.append(pa.array(nothing if is_tombstone else _words_of(refs, layout.degree_offset)))
    return pa.RecordBatch.from_arrays(columns, schema=_snapshot_schema(side))


def _words_of(refs: _Words, offset: int) -> _Words:
    words = np.empty(len(refs), np.int64)
    _read_words(int(refs.ctypes.data), offset, words)
    return words


@kernel
def _read_words(refs: int, offset: int, words: Any) -> None:
    for index in range(len(words)):
        words[index] = load_u64(load_u64(refs + index * 8) + offset)


def snapshot_epoch(table: pa.Table | pa.RecordBatchReader) -> int:
    """Return the epoch a snapshot is at; -1 when it does not hold one."""
    return int((table.schema.metadata or {}).get(EPOCH, b"-1"))


def counted_reader(reader: pa.RecordBatchReader, rows: int) -> pa.RecordBatchReader:
    """Return what reads a table and names in its schema how many rows come, so that room is made for them once."""
    schema = reader.schema.with_metadata({**(reader.schema.metadata or {}), _ROWS: str(rows)})
    return pa.RecordBatchReader.from_batches(schema, reader)


def _rows_of(table: pa.Table | pa.RecordBatchReader) -> int:
    """Return how many rows a snapshot has; 0 where what reads it does not name them."""
    return table.num_rows if isinstance(table, pa.Table) else int((table.schema.metadata or {}).get(_ROWS, b"0"))


def snapshot_counts(table: pa.Table | pa.RecordBatchReader) -> tuple[int, ...]:
    """Return the counts of the side: stale rows, unknown deletes, rejected rows."""
    metadata = table.schema.metadata or {}
    return tuple(json.loads(metadata.get(_IGNORED, b"[0, 0, 0]")))


def with_unknown_deletes(table: pa.Table, count: int) -> pa.Table:
    """Return a snapshot with another count of unknown deletes; itself where it counts none."""
    metadata = table.schema.metadata or {}
    if _IGNORED not in metadata:
        return table
    stale, _, rejected = json.loads(metadata[_IGNORED])
    return table.replace_schema_metadata({**metadata, _IGNORED: json.dumps([stale, count, rejected])})


def null_keys(side: SideState) -> NullKeys:
    """Return how many rows a side has dropped for NULL in their key."""
    return NullKeys(int(side.header[s.H_NULL_KEYS]), bool(side.header[s.H_NULL_KEYS_COUNTED]))


def with_null_keys(table: pa.Table, more: NullKeys) -> pa.Table:
    """Return a snapshot whose side has dropped more rows for NULL in their key."""
    metadata = table.schema.metadata or {}
    return table.replace_schema_metadata({**metadata, **(NullKeys.of(metadata) + more).metadata()})


def _facts(epoch: int, counts: Sequence[int]) -> dict[bytes, bytes]:
    texts = {EPOCH: str(epoch), _IGNORED: json.dumps(list(counts))}
    return {name: text.encode() for name, text in texts.items()}


def _in_linking_order(side: SideState, live: int) -> npt.NDArray[Any]:
    """Return the record addresses of the live rows, those of one key from the first one linked to the last."""
    refs = np.empty(live, np.int64)
    end = int(side.header[s.H_ROWS_END])
    if live:
        _list_in_linking_order(side.first_record, side.layout.stride, end, int(refs.ctypes.data))
    return refs


@kernel
def _list_in_linking_order(first_record: int, stride: int, end: int, refs: int) -> None:
    """Write the addresses of all live rows; a chain begins with the row linked last, so it is walked to its end and back."""
    for position in range(end):
        row = first_record + position * stride
        flags = load_u8(row + c.FLAGS)
        if flags & c.FLAG_LIVE == 0:
            continue
        if flags & c.FLAG_ARRANGED == 0:
            store_u64(refs, row)
            refs += 8
        elif load_u32(row + c.PREVIOUS) == 0:
            following = load_u32(row + c.NEXT)
            while following != 0:
                row = first_record + (following - 1) * stride
                following = load_u32(row + c.NEXT)
            store_u64(refs, row)
            refs += 8
            previous = load_u32(row + c.PREVIOUS)
            while previous != 0:
                row = first_record + (previous - 1) * stride
                store_u64(refs, row)
                refs += 8
                previous = load_u32(row + c.PREVIOUS)


def restore_side(
    side: SideState,
    table: pa.Table | pa.RecordBatchReader,
    *,
    prepare: Callable[[ZSet, Sequence[_Words]], PreparedSide] | None = None,
    after_part: Callable[[PreparedSide], None] | None = None,
) -> None:
    """Replace the state by a snapshot. Cost: its rows."""
    side.clear()
    side.begin_absorb()
    if prepare is None:  # else most of the rows may go to disk, part by part
        side.make_room(_rows_of(table), 0, join_keys=0)
    for part in snapshot_parts(table):
        prepared = _restore_part(side, part, prepare)
        if after_part is not None:
            after_part(prepared)
    _order_tombstones(side)
    stale, unknown_deletes, rejected = snapshot_counts(table)
    side.ignored = (stale, unknown_deletes, rejected)
    dropped = NullKeys.of(table.schema.metadata)
    side.header[s.H_NULL_KEYS] += dropped.rows  # one that held all rows with others drops some now
    side.header[s.H_NULL_KEYS_COUNTED] = dropped.is_counted


def refuse_contradictions(relation: str, rows: int) -> None:
    """Refuse a snapshot with rows that are held twice, or cannot be; every kind of state counts its own."""
    if rows:
        raise StateError(
            f'the snapshot of "{relation}" holds {rows} rows that contradict each other; it is damaged. Restore from an older '
            "one.",
            code="SNAPSHOT_CONTRADICTION",
            relation=relation,
        )


def repeated_rows(rows: pa.RecordBatch, arrivals: str) -> int:
    """Return how many rows are equal to one before them of the same arrival, a column; others may share it."""
    numbers = rows.column(arrivals).to_numpy()
    order = np.argsort(numbers, kind="stable")
    same = np.flatnonzero(np.diff(numbers[order]) == 0)
    doubtful = rows.take(pa.array(order[np.union1d(same, same + 1)]))
    return int(doubtful.num_rows) - len(ZSet(doubtful, np.ones(doubtful.num_rows, np.int64)).consolidated())


def _order_tombstones(side: SideState) -> None:
    """Let the tombstones wait in the order of the watermarks they were left at, whatever order they came in."""
    numbers = side.tombstone_numbers()
    left_at = side.weights(numbers)
    if (left_at[1:] < left_at[:-1]).any():
        requeue(side.view, numbers[np.argsort(left_at, kind="stable")])


def _repeated(side: SideState, prepared: PreparedSide) -> int:
    """Return how many rows of a part have the key, or without one all values, of a row before them."""
    if not side.has_identity:
        return 0
    fit, entries = np.count_nonzero(prepared.status[: prepared.count] == ch.OK), prepared.entries
    return int(fit - entries + np.count_nonzero(prepared.arrays.line(s.D_FOUND)[:entries]))


def _restore_part(
    side: SideState, table: pa.Table, prepare: Callable[[ZSet, Sequence[_Words]], PreparedSide] | None
) -> PreparedSide:
    rows = single_batch(table.select(side.relation.schema.names).cast(side.relation.schema))
    weights = table.column(SNAPSHOT_WEIGHT).to_numpy()
    tombstone = weights == 0
    words = [
        np.ascontiguousarray(table.column(f"{SNAPSHOT_SEQUENCE}{word}").to_numpy())
        for word in range(side.layout.sequence_words)
    ]
    delta = ZSet(rows, np.where(tombstone, -1, weights))
    prepared = side.prepare(delta, words=words) if prepare is None else prepare(delta, words)
    changes = np.empty((2 * len(rows), CHANGE_WORDS), np.int64)
    side.list_changes(prepared, 0, int(changes.ctypes.data))
    bad = prepared.rejected or _repeated(side, prepared) or (0 if side.keeps_tombstones else int(tombstone.sum()))
    refuse_contradictions(side.relation.name, bad)
    side.absorb(prepared, None)
    end = int(side.header[s.H_ROWS_END])
    if tombstone.any():
        watermarks = np.ascontiguousarray(table.column(SNAPSHOT_WATERMARK).to_numpy()[tombstone])
        date_newest(side.view, watermarks)
        side.header[s.H_WATERMARK] = max(side.watermark, int(watermarks.max()))  # that was present when they were left
    if side.layout.degree_offset >= 0 and prepared.numbers is not None:
        live = prepared.numbers[: prepared.count][~tombstone] - 1
        degrees = table.column(SNAPSHOT_DEGREE).to_numpy()[~tombstone]
        side.record_words("<i8", side.layout.degree_offset, end)[live] = degrees
    return prepared
