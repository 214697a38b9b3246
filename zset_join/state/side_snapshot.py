"""The state of one side as a plain table, and back.

A snapshot holds the live rows and the tombstones (oldest first) with their own columns, and what they remember in columns that
start with `_zset_`. Indexes are not part of it; they are rebuilt.

The rows of a join key stand in the order they were linked in, so that restoring links them in that order again: a restored side
answers with the same rows in the same order as the one the snapshot was taken of.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.errors import StateError
from zset_join.kernels import columns as c
from zset_join.kernels import side as s
from zset_join.kernels.compiled import kernel
from zset_join.kernels.epoch import CHANGE_WORDS
from zset_join.kernels.memory import load_u8, load_u32, store_u64
from zset_join.state.side import SideState
from zset_join.zset import ZSet, single_batch

__all__ = [
    "SNAPSHOT_DEGREE",
    "SNAPSHOT_SEQUENCE",
    "SNAPSHOT_WATERMARK",
    "SNAPSHOT_WEIGHT",
    "restore_side",
    "snapshot_epoch",
    "snapshot_side",
]

SNAPSHOT_WEIGHT = "_zset_weight"
SNAPSHOT_WATERMARK = "_zset_watermark"
SNAPSHOT_SEQUENCE = "_zset_sequence_"
SNAPSHOT_DEGREE = "_zset_degree"

_SNAPSHOT_ROWS = 1 << 16
_EPOCH = b"zset_join.absorbed_epoch"
_IGNORED = b"zset_join.ignored_rows"
_EVICTED = b"zset_join.evicted"


def snapshot_side(side: SideState) -> pa.Table:
    """Return the live rows and tombstones, with what they remember in columns that start with `_zset_`."""
    live, dead = side.live_refs()
    live = _in_linking_order(side, len(live))
    refs = np.concatenate([live, dead])
    count = len(refs)
    parts = []
    plan = side.layout.gather_plan(range(len(side.relation.schema)))
    for begin in range(0, count, _SNAPSHOT_ROWS):
        size = min(_SNAPSHOT_ROWS, count - begin)
        parts.append(plan.gather(int(refs.ctypes.data) + 8 * begin, size, side.arena.heap_address))
    schema = side.relation.schema
    columns = [pa.chunked_array([part[at] for part in parts], schema.field(at).type) for at in range(len(schema))]
    names = list(schema.names)
    end = int(side.header[s.H_ROWS_END])
    positions = (refs - side.first_record) // side.layout.stride
    weights = side.record_words("<i8", c.WEIGHT, end)[positions]
    tombstone = np.arange(count) >= len(live)
    columns += [pa.array(np.where(tombstone, 0, weights)), pa.array(weights, mask=~tombstone)]
    names += [SNAPSHOT_WEIGHT, SNAPSHOT_WATERMARK]
    for word in range(side.layout.sequence_words):
        columns.append(pa.array(side.record_words("<i8", side.layout.sequence_offset + 8 * word, end)[positions]))
        names.append(f"{SNAPSHOT_SEQUENCE}{word}")
    if side.layout.degree_offset >= 0:
        degrees = side.record_words("<i8", side.layout.degree_offset, end)[positions]
        columns.append(pa.array(np.where(tombstone, 0, degrees)))
        names.append(SNAPSHOT_DEGREE)
    metadata = {
        _EPOCH: str(side.absorbed_epoch),
        _IGNORED: json.dumps(side.ignored),
        _EVICTED: json.dumps(side.evicted),
    }
    return pa.table(columns, names=names, metadata=metadata)


def snapshot_epoch(table: pa.Table) -> int:
    """Return the epoch a snapshot stands at; -1 when it does not say."""
    return int((table.schema.metadata or {}).get(_EPOCH, b"-1"))


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


def restore_side(side: SideState, table: pa.Table) -> None:
    """Replace the state by a snapshot. Cost: its rows."""
    side.clear()
    side.begin_absorb()
    for begin in range(0, table.num_rows, _SNAPSHOT_ROWS):
        _restore_part(side, table.slice(begin, _SNAPSHOT_ROWS))
    metadata = table.schema.metadata or {}
    if _IGNORED in metadata:
        stale, unknown_deletes, rejected = json.loads(metadata[_IGNORED])
        side.ignored = (stale, unknown_deletes, rejected)
    if _EVICTED in metadata:
        rows, size = json.loads(metadata[_EVICTED])
        side.evicted = (rows, size)


def _restore_part(side: SideState, table: pa.Table) -> None:
    rows = single_batch(table.select(side.relation.schema.names).cast(side.relation.schema))
    weights = table.column(SNAPSHOT_WEIGHT).to_numpy()
    tombstone = weights == 0
    words = [
        np.ascontiguousarray(table.column(f"{SNAPSHOT_SEQUENCE}{word}").to_numpy())
        for word in range(side.layout.sequence_words)
    ]
    prepared = side.prepare(ZSet(rows, np.where(tombstone, -1, weights)), words=words)
    changes = np.empty((2 * len(rows), CHANGE_WORDS), np.int64)
    side.list_changes(prepared, 0, int(changes.ctypes.data))
    if prepared.rejected or prepared.stale:
        raise StateError(
            f'the snapshot of "{side.relation.name}" holds {prepared.rejected + prepared.stale} rows that contradict each '
            "other; it is damaged. Restore from an older one.",
            code="SNAPSHOT_CONTRADICTION",
            relation=side.relation.name,
        )
    first_new = int(side.header[s.H_TOMBSTONES])
    side.absorb(prepared, None)
    end = int(side.header[s.H_ROWS_END])
    if tombstone.any():
        _, dead = side.live_refs()
        positions = (dead[first_new:] - side.first_record) // side.layout.stride
        watermarks = table.column(SNAPSHOT_WATERMARK).to_numpy()[tombstone]
        side.record_words("<i8", c.WEIGHT, end)[positions] = watermarks
    if side.layout.degree_offset >= 0 and prepared.numbers is not None:
        live = prepared.numbers[: prepared.count][~tombstone] - 1
        degrees = table.column(SNAPSHOT_DEGREE).to_numpy()[~tombstone]
        side.record_words("<i8", side.layout.degree_offset, end)[live] = degrees
