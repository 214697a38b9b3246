"""The state of one side as a plain table, and back.

A snapshot holds the live rows and the tombstones (oldest first) with their own columns, and what they remember in columns that
start with `_zset_`. Indexes are not part of it; they are rebuilt.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from zset_join.errors import StateError
from zset_join.kernels import columns as c
from zset_join.kernels import side as s
from zset_join.kernels.epoch import CHANGE_WORDS
from zset_join.state.side import SideState
from zset_join.zset import ZSet, single_batch

__all__ = [
    "SNAPSHOT_DEGREE",
    "SNAPSHOT_SEQUENCE",
    "SNAPSHOT_WATERMARK",
    "SNAPSHOT_WEIGHT",
    "restore_side",
    "snapshot_side",
]

SNAPSHOT_WEIGHT = "_zset_weight"
SNAPSHOT_WATERMARK = "_zset_watermark"
SNAPSHOT_SEQUENCE = "_zset_sequence_"
SNAPSHOT_DEGREE = "_zset_degree"

_SNAPSHOT_ROWS = 1 << 16


def snapshot_side(side: SideState) -> pa.Table:
    """Return the live rows and tombstones, with what they remember in columns that start with `_zset_`."""
    live, dead = side.live_refs()
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
    return pa.table(columns, names=names)


def restore_side(side: SideState, table: pa.Table) -> None:
    """Replace the state by a snapshot. Cost: its rows."""
    side.clear()
    side.begin_absorb()
    for begin in range(0, table.num_rows, _SNAPSHOT_ROWS):
        _restore_part(side, table.slice(begin, _SNAPSHOT_ROWS))


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
