"""Taking the state of one side apart: what is in it, and whether everything in it fits together.

`anatomy(side)` walks arena, tables, chains, queues and heap as the kernels do, in plain Python, and raises an
AssertionError where two of them disagree. The examples of `tests/state` call it after every change.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa

from tests.epochs import Change, delta_of
from zset_join.core.relation import ChangelogMode, Relation
from zset_join.kernels.rows import side as s
from zset_join.kernels.rows.side import block_bytes
from zset_join.kernels.values import keys as c
from zset_join.state.rows.directories import HashTables
from zset_join.state.rows.side import PreparedSide, SideRules, SideState

__all__ = ["Anatomy", "absorb", "anatomy", "changes_of", "make_side", "pieces"]

SCHEMA = pa.schema({"id": pa.int64(), "k": pa.string(), "text": pa.string()})
SEQUENCED = pa.schema([*SCHEMA, pa.field("seq", pa.int64())])


def make_side(mode: ChangelogMode = "upsert", *, sequenced: bool = False, **options: Any) -> SideState:
    """Return an empty side with columns id, k (the join key) and text; `seq` too when it is sequenced."""
    relation = Relation(
        name="rows",
        schema=SEQUENCED if sequenced else SCHEMA,
        join_key=("k",),
        primary_key=("id",) if mode == "upsert" else (),
        sequence_by=("seq",) if sequenced else (),
        mode=mode,
    )
    defaults: dict[str, Any] = {
        "key_types": [pa.string()],
        "null_safe": [False],
        "name": "side",
    }
    tables = {name: options.pop(name) for name in ("directory", "hash_bits", "hash_seed") if name in options}
    given = {field.name: options.pop(field.name) for field in fields(SideRules) if field.name in options}
    rules = SideRules(**{"tombstone_retention_us": 10, **given})
    return SideState(relation, tables=HashTables(**{"hash_seed": 0, **tables}), rules=rules, **{**defaults, **options})


def changes_of(side: SideState, changes: Sequence[Change]) -> tuple[PreparedSide, list[list[int]]]:
    """Prepare a delta; return it with its changes as [row number, weight before, weight after, matchable]."""
    prepared = side.prepare(delta_of(side.relation, changes))
    words = np.zeros((2 * len(changes) + 1, 8), np.int64)
    end = side.list_changes(prepared, 0, int(words.ctypes.data))
    return prepared, words[:end, [1, 2, 3, 5]].tolist()


def absorb(side: SideState, changes: Sequence[Change], *, epoch: int | None = None, watermark: int | None = None) -> None:
    """Fold one epoch into a side, as an operator does."""
    prepared, _ = changes_of(side, changes)
    side.begin_absorb()
    side.absorb(prepared, watermark)
    side.end_absorb(side.absorbed_epoch + 1 if epoch is None else epoch)


@dataclass(frozen=True)
class Anatomy:
    """What a side holds: row numbers by chain, those that are live, tombstones (oldest first) and free records."""

    chains: list[list[int]]
    live: list[int]
    tombstones: list[int]
    free: list[int]


def _words(address: int, count: int) -> list[int]:
    array: Any = (ctypes.c_int64 * count).from_address(address)
    return list(array)


def _slots(address: int, bits: int) -> list[tuple[int, int]]:
    """Return (hash, row number) of every used slot."""
    return [((slot >> 32) & 0xFFFFFFFF, slot & 0xFFFFFFFF) for slot in _words(address, 1 << bits) if slot]


def anatomy(side: SideState) -> Anatomy:
    """Return what a side holds, and check that all of it fits together."""
    header = side.header
    end = int(header[s.H_ROWS_END])
    flags = side.record_words("u1", c.FLAGS, end).tolist()
    following = side.record_words("<u4", c.NEXT, end).tolist()
    previous = side.record_words("<u4", c.PREVIOUS, end).tolist()
    hashes = side.record_words("<u4", c.HASH, end).tolist()
    live = [number for number in range(1, end + 1) if flags[number - 1] & c.FLAG_LIVE]

    chains = []
    for code, head in _slots(side.arrangement.address, side.arrangement.bits):
        chain, before = [], 0
        while head:
            assert flags[head - 1] == c.FLAG_LIVE | c.FLAG_ARRANGED
            assert (hashes[head - 1], previous[head - 1]) == (code, before)
            chain.append(head)
            before, head = head, following[head - 1]
        chains.append(chain)
    arranged = [number for number in live if flags[number - 1] & c.FLAG_ARRANGED]
    assert sorted(number for chain in chains for number in chain) == arranged
    assert int(header[s.H_JOIN_COUNT]) == len(chains)
    assert int(header[s.H_LIVE_ROWS]) == len(live)

    tombstones, before, at = [], 0, int(header[s.H_TOMBSTONE_FIRST])
    while at:
        assert (flags[at - 1], previous[at - 1]) == (c.FLAG_TOMBSTONE, before)
        tombstones.append(at)
        before, at = at, following[at - 1]
    assert (int(header[s.H_TOMBSTONE_LAST]), int(header[s.H_TOMBSTONES])) == (before, len(tombstones))

    free, at = [], int(header[s.H_FREE_ROW])
    while at:
        assert flags[at - 1] == 0
        free.append(at)
        at = following[at - 1]
    assert sorted([*live, *tombstones, *free]) == list(range(1, end + 1))

    if side.relation.mode != "append":
        table = side.primary_keys
        assert sorted(number for _, number in _slots(table.address, table.bits)) == sorted([*live, *tombstones])
        assert int(header[s.H_IDENTITY_COUNT]) == len(live) + len(tombstones)
    assert int(header[s.H_HEAP_USED]) == sum(_heap_bytes(side, number) for number in [*live, *tombstones])
    assert int(header[s.H_HEAP_USED]) <= int(header[s.H_HEAP_END])
    return Anatomy(chains, live, tombstones, free)


def _heap_bytes(side: SideState, number: int) -> int:
    """Return the heap bytes that a row's long strings take."""
    row = side.first_record + (number - 1) * side.layout.stride
    offsets = side.layout.variable_columns().lines[:, c.OFFSET].tolist()
    lengths = [int.from_bytes(ctypes.string_at(row + offset, 4), "little") for offset in offsets]
    return sum(block_bytes(length) for length in lengths if length > c.INLINE_BYTES)


def pieces(side: SideState, numbers: Sequence[int]) -> list[tuple[Any, ...]]:
    """Return the values of some rows, by row number."""
    refs = np.array([side.first_record + (number - 1) * side.layout.stride for number in numbers], np.int64)
    plan = side.layout.gather_plan(range(len(side.relation.schema)))
    columns = plan.gather(int(refs.ctypes.data), len(refs), side.arena.heap_address)
    return list(zip(*(column.to_pylist() for column in columns), strict=True))
