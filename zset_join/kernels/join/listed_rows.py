"""The rows of a whole join, read from its two sides: no change is involved.

The law: over all rows of a side, the pairs are those of the batch join by key, and a row is shown alone as
`zset_join.kernels.join.pairs` has it, by its degree where records have one and else by whether the other side has its key.

Cost: a look-up per row of the side that is walked, plus the rows that come out.
"""

from __future__ import annotations

from zset_join.kernels.join.pairs import OVERFLOW, SHOWN_MATCHED, overflows
from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u8, load_u32, load_u64, prefetch, store_u64
from zset_join.kernels.rows.side import DEGREE_OFFSET, HEAP, JOIN_BITS, JOIN_SLOTS, ROWS, STRIDE, word
from zset_join.kernels.rows.slots import find_key, likely_row, prefetch_slot
from zset_join.kernels.values.columns import FLAG_ARRANGED, FLAG_LIVE, FLAGS, HASH, NEXT, WEIGHT

__all__ = ["LISTED_CURSOR_WORDS", "emit_listed_rows"]

LISTED_CURSOR_WORDS = 2

_AHEAD_SLOT = 24
_AHEAD_ROW = 12


@kernel
def emit_listed_rows(
    own: int,
    own_columns: int,
    other: int,
    other_columns: int,
    first: int,
    count: int,
    pairs: bool,
    kind: int,
    cursor: int,
    out_own: int,
    out_other: int,
    out_weights: int,
    filled: int,
    capacity: int,
) -> int:
    """Append the join's output for rows of one side at `filled`; return the new fill position."""
    # `own` and `other` are side views; `own` is walked from the record at `first` on, `kind` is what the join shows of its rows
    # alone (0: nothing). `cursor` is the address of two words: the record, and the row of the other side to continue with (0:
    # the first); it is done when the record is behind the last, OVERFLOW in the first word ends it. `out_*` are addresses; a
    # row alone gets 0 in `out_other`.
    stride, heap, degree = word(own, STRIDE), word(own, HEAP), word(own, DEGREE_OFFSET)
    rows, other_stride, other_heap = word(other, ROWS), word(other, STRIDE), word(other, HEAP)
    slots, bits = word(other, JOIN_SLOTS), word(other, JOIN_BITS)
    at = filled
    position, partner = load_u64(cursor), load_u64(cursor + 8)
    while position < count:
        if position + _AHEAD_SLOT < count:
            prefetch_slot(slots, bits, load_u32(first + (position + _AHEAD_SLOT) * stride + HASH))
        if position + _AHEAD_ROW < count:
            likely = likely_row(slots, bits, load_u32(first + (position + _AHEAD_ROW) * stride + HASH))
            if likely != 0:
                prefetch(rows + (likely - 1) * other_stride)
        row = first + position * stride
        flags = load_u8(row + FLAGS)
        if flags & FLAG_LIVE != 0:
            weight = load_u64(row + WEIGHT)
            head = partner
            if head == 0:
                if flags & FLAG_ARRANGED != 0:
                    code = load_u32(row + HASH)
                    head = find_key(slots, bits, code, row, heap, own_columns, rows, other_stride, other_heap, other_columns)
                if kind != 0:
                    is_matched = load_u64(row + degree) > 0 if degree >= 0 else head != 0
                    if is_matched == (kind == SHOWN_MATCHED):
                        if at == capacity:
                            break
                        store_u64(out_own + at * 8, row)
                        store_u64(out_other + at * 8, 0)
                        store_u64(out_weights + at * 8, weight)
                        at += 1
            while pairs and head != 0 and at < capacity:
                found = rows + (head - 1) * other_stride
                other_weight = load_u64(found + WEIGHT)
                if overflows(weight, other_weight):
                    store_u64(cursor, OVERFLOW)
                    return at
                store_u64(out_own + at * 8, row)
                store_u64(out_other + at * 8, found)
                store_u64(out_weights + at * 8, weight * other_weight)
                at += 1
                head = load_u32(found + NEXT)
            if pairs and head != 0:
                partner = head
                break
        partner = 0
        position += 1
    store_u64(cursor, position)
    store_u64(cursor + 8, partner)
    return at
