"""Rows that arrive and go between the memory of one side and its cold store, and which of them an epoch touches.

The law: inserting the records of rows that were dropped gives the state they were dropped from, save for row numbers and the
order within chains. Nothing here changes what a row means: no tombstone is left, no weight changes.

Two arrays are beside the arena, one value per record. A *stamp* is when a row was last needed: the stamp of an epoch is
even, and one more means that the whole chain of the row was. A *score* is that of `spill.residency`.

The caller makes room first; nothing here allocates.

`move_records`, `plan_moves`: bringing together what lives of one side's state, in place.

Used records behind the place where the last one will be fill the holes before it, so a row that is before it keeps its
number, and chains their order. Blocks slide to the beginning of the heap in the order they have.

To find who owns a block while it slides, its first word and the word of the record that points to it change places: the block
names its owner, the owner keeps the word. A free block holds its size meanwhile. So sliding takes no memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import (
    copy_bytes,
    load_u8,
    load_u32,
    load_u64,
    prefetch,
    shift_right,
    store_u32,
    store_u64,
)
from zset_join.kernels.rows.side import (
    D_COUNT,
    D_IDENTITY_CODES,
    D_IDENTITY_COLUMNS,
    D_ROWS,
    H_FREE_BLOCKS,
    H_FREE_ROW,
    H_HEAP_END,
    H_LIVE_ROWS,
    H_ROWS_END,
    H_TOMBSTONE_FIRST,
    H_TOMBSTONE_LAST,
    HASH_KEY,
    HEADER,
    HEADER_WORDS,
    HEAP,
    IDENTITY_BITS,
    IDENTITY_SLOTS,
    JOIN_BITS,
    JOIN_SLOTS,
    ROWS,
    STRIDE,
    block_bytes,
    class_bytes,
    word,
)
from zset_join.kernels.rows.slots import find_key, find_row_slot, home_of, likely_row, prefetch_slot, replace_slot
from zset_join.kernels.rows.storing import (
    add_to_word,
    forget_identity,
    free_values,
    give_row,
    row_bytes,
    store_live_row,
    unlink,
)
from zset_join.kernels.values.keys import (
    FLAG_ARRANGED,
    FLAG_LIVE,
    FLAG_TOMBSTONE,
    FLAGS,
    HASH,
    HEAP_BIT,
    INLINE_BYTES,
    NEXT,
    OFFSET,
    PREVIOUS,
    column_count,
    field,
    hash_row,
)

__all__ = [
    "drop_rows",
    "hash_identities",
    "insert_rows",
    "measure_rows",
    "move_records",
    "piece_end",
    "plan_moves",
    "probe_identities",
    "slide_blocks",
    "touch_chains",
    "touch_codes",
    "touch_rows",
]

_AHEAD_SLOT = 24
_AHEAD_ROW = 12
_LINES_PER_STEP = np.float32(1024)
_LOW = 0xFFFFFFFF


@kernel
def _touched(score: Any, now: Any) -> Any:
    """Return a score after a touch; the formula is that of `spill.residency.ResidencyPolicy.touched`."""
    return now + np.log2(np.float32(1) + np.exp2(score - now))


@kernel
def _touch(position: int, stamps: Any, scores: Any, stamp: int, now: Any) -> None:
    """Count a touch, once per epoch."""
    if stamps[position] < stamp:
        stamps[position] = stamp
        scores[position] = _touched(scores[position], now)


@kernel
def _touch_chain(view: int, number: int, stamps: Any, scores: Any, stamp: int, now: Any) -> int:
    """Touch the rows of a chain, as `_touch`, and return how many there are."""
    # Rows of one chain often have one score, so the last one is remembered.
    rows, stride = word(view, ROWS), word(view, STRIDE)
    known = now
    touched = now + np.float32(1)
    count = 0
    while number != 0:
        count += 1
        position = number - 1
        if stamps[position] < stamp:
            score = scores[position]
            if score != known:
                known = score
                touched = _touched(score, now)
            scores[position] = touched
        stamps[position] = stamp + 1
        number = load_u32(rows + position * stride + NEXT)
    return count


@kernel
def touch_rows(numbers: Any, stamps: Any, scores: Any, stamp: int, now: Any) -> None:
    for index in range(len(numbers)):
        if numbers[index] > 0:
            _touch(numbers[index] - 1, stamps, scores, stamp, now)


@kernel
def probe_identities(view: int, delta: int, numbers: Any, hashes: Any, stamps: Any, scores: Any, stamp: int, now: Any) -> None:
    """Find for every row of a delta the row of the state that it names, and touch it."""
    # `numbers` gets its row number (0: none), `hashes` the hash of its join key (-1 where it is in no chain).
    rows, count = word(delta, D_ROWS), word(delta, D_COUNT)
    codes, columns = word(delta, D_IDENTITY_CODES), word(delta, D_IDENTITY_COLUMNS)
    slots, bits = word(view, IDENTITY_SLOTS), word(view, IDENTITY_BITS)
    state, stride, heap = word(view, ROWS), word(view, STRIDE), word(view, HEAP)
    for ahead in range(count + _AHEAD_SLOT):
        if ahead < count:
            prefetch_slot(slots, bits, word(codes, ahead))
        middle = ahead - (_AHEAD_SLOT - _AHEAD_ROW)
        if 0 <= middle < count:
            likely = likely_row(slots, bits, word(codes, middle))
            if likely != 0:
                prefetch(state + (likely - 1) * stride)
                prefetch(state + (likely - 1) * stride + 63)
        index = ahead - _AHEAD_SLOT
        if index < 0:
            continue
        number = find_key(slots, bits, word(codes, index), rows + index * stride, 0, columns, state, stride, heap, columns)
        numbers[index] = number
        hashes[index] = -1
        if number != 0:
            row = state + (number - 1) * stride
            if load_u8(row + FLAGS) & FLAG_ARRANGED:
                hashes[index] = load_u32(row + HASH)
            _touch(number - 1, stamps, scores, stamp, now)


@kernel
def touch_chains(view: int, codes: Any, stamps: Any, scores: Any, stamp: int, now: Any, most: int) -> bool:
    """Touch all rows whose join key has one of these hashes; a hash may come more than once. Cost: those rows."""
    # Gives up, and returns False, behind the chain with which there were more than `most` of them.
    count = 0
    slots, bits = word(view, JOIN_SLOTS), word(view, JOIN_BITS)
    rows, stride = word(view, ROWS), word(view, STRIDE)
    mask = (1 << bits) - 1
    for ahead in range(len(codes) + _AHEAD_SLOT):
        if ahead < len(codes):
            prefetch_slot(slots, bits, codes[ahead])
        middle = ahead - (_AHEAD_SLOT - _AHEAD_ROW)
        if 0 <= middle < len(codes):
            likely = likely_row(slots, bits, codes[middle])
            if likely != 0:
                prefetch(rows + (likely - 1) * stride)
        index = ahead - _AHEAD_SLOT
        if index < 0:
            continue
        code = codes[index]
        position = home_of(code, bits)
        while True:
            slot = load_u64(slots + position * 8)
            if slot == 0:
                break
            number = slot & _LOW
            if shift_right(slot, 32) == code and stamps[number - 1] <= stamp:
                count += _touch_chain(view, number, stamps, scores, stamp, now)
            position = (position + 1) & mask
        if count > most:
            return False
    return True


@kernel
def touch_codes(view: int, codes: Any, bits: Any, known: Any, stamps: Any, scores: Any, stamp: int, now: Any) -> None:
    """Touch all rows whose join key has one of these hashes, in the order of the records; for many hashes or rows."""
    # `bits` are zeroed bytes, a power of two of them, and at least one per hash. Two hashes may share a bit, and then rows
    # are touched that were not requested: they stay in memory for this epoch. `known` remembers what some scores become,
    # since many rows have the same: two lines of float32, a power of two long, the first filled with NaN.
    rows, stride, end = word(view, ROWS), word(view, STRIDE), load_u64(word(view, HEADER) + H_ROWS_END * 8)
    mask = 8 * len(bits) - 1
    for index in range(len(codes)):
        place = codes[index] & mask
        bits[place >> 3] |= 1 << (place & 7)
    for position in range(end):
        row = rows + position * stride
        place = load_u32(row + HASH) & mask
        is_requested = (bits[place >> 3] >> (place & 7)) & 1 and load_u8(row + FLAGS) & FLAG_ARRANGED
        if is_requested and stamps[position] < stamp:
            score = scores[position]
            line = 0 if score == -np.inf else int(score * _LINES_PER_STEP) & (known.shape[1] - 1)
            if known[0, line] != score:
                known[0, line] = score
                known[1, line] = _touched(score, now)
            stamps[position] = stamp
            scores[position] = known[1, line]


@kernel
def insert_rows(
    view: int, records: int, variables: int, join_columns: int, identity_hashes: Any, has_identity: bool, numbers: Any
) -> None:
    """Store records that lie one behind the other; `numbers` gets their row numbers."""
    stride, count = word(view, STRIDE), len(numbers)
    slots, bits = word(view, JOIN_SLOTS), word(view, JOIN_BITS)
    identity_slots, identity_bits = word(view, IDENTITY_SLOTS), word(view, IDENTITY_BITS)
    for ahead in range(count + _AHEAD_SLOT):
        if ahead < count:
            prefetch_slot(slots, bits, load_u32(records + ahead * stride + HASH))
            if has_identity:
                prefetch_slot(identity_slots, identity_bits, identity_hashes[ahead])
        middle = ahead - (_AHEAD_SLOT - _AHEAD_ROW)
        if 0 <= middle < count:
            likely = likely_row(slots, bits, load_u32(records + middle * stride + HASH))
            if likely != 0:
                prefetch(word(view, ROWS) + (likely - 1) * stride)
        index = ahead - _AHEAD_SLOT
        if index >= 0:
            code = identity_hashes[index] if has_identity else -1
            numbers[index] = store_live_row(view, variables, join_columns, records + index * stride, 0, code)


@kernel
def hash_identities(view: int, numbers: Any, identity_columns: int, hashes: Any) -> None:
    """Hash the identity of some rows, by number."""
    rows, stride, heap, mask = word(view, ROWS), word(view, STRIDE), word(view, HEAP), word(view, HASH_KEY)
    for ahead in range(len(numbers) + _AHEAD_ROW):
        if ahead < len(numbers):
            prefetch(rows + (numbers[ahead] - 1) * stride)
            prefetch(rows + (numbers[ahead] - 1) * stride + 63)
        index = ahead - _AHEAD_ROW
        if index >= 0:
            hashes[index] = hash_row(rows + (numbers[index] - 1) * stride, heap, identity_columns, mask)


@kernel
def drop_rows(view: int, numbers: Any, identity_hashes: Any, variables: int, has_identity: bool) -> None:
    """Take live rows out as if they had never been here."""
    rows, stride, count = word(view, ROWS), word(view, STRIDE), len(numbers)
    for ahead in range(count + _AHEAD_SLOT):
        if ahead < count:
            prefetch(rows + (numbers[ahead] - 1) * stride)
        middle = ahead - (_AHEAD_SLOT - _AHEAD_ROW)
        if 0 <= middle < count:
            prefetch_slot(word(view, JOIN_SLOTS), word(view, JOIN_BITS), load_u32(rows + (numbers[middle] - 1) * stride + HASH))
            if has_identity:
                prefetch_slot(word(view, IDENTITY_SLOTS), word(view, IDENTITY_BITS), identity_hashes[middle])
        index = ahead - _AHEAD_SLOT
        if index < 0:
            continue
        number = numbers[index]
        if has_identity:
            forget_identity(view, identity_hashes[index], number)
        unlink(view, number)
        free_values(view, variables, rows + (number - 1) * stride)
        give_row(view, number)
    add_to_word(word(view, HEADER), H_LIVE_ROWS, -count)


@kernel
def measure_rows(view: int, variables: int, beside: int, stamps: Any, below_stamp: int, scores: Any, sizes: Any) -> None:
    """Write for each of the first records its bytes, those of its blocks and those beside it, at most 2^31 - 1."""
    # -1 where there is no live row, whose score is forgotten, and for rows whose stamp is not below `below_stamp`.
    rows, stride = word(view, ROWS), word(view, STRIDE)
    for position in range(len(sizes)):
        row = rows + position * stride
        sizes[position] = -1
        if load_u8(row + FLAGS) & FLAG_LIVE == 0:
            scores[position] = -np.inf
        elif stamps[position] < below_stamp:
            sizes[position] = min(row_bytes(row, stride, variables) + beside, 0x7FFFFFFF)


@kernel
def piece_end(sizes: Any, begin: int, most_bytes: int) -> int:
    """Return where a piece of rows ends that begins at `begin`: after `most_bytes`, and after one row at least."""
    end = begin
    total = 0
    while end < len(sizes) and (end == begin or total + sizes[end] <= most_bytes):
        total += sizes[end]
        end += 1
    return end


@kernel
def plan_moves(view: int, used: int, sources: Any, targets: Any) -> int:
    """List the positions of the used records behind the first `used` ones, and the holes there; return how many."""
    # There are as many of either, where `used` is the number of used records.
    rows, stride = word(view, ROWS), word(view, STRIDE)
    count = 0
    hole = 0
    for position in range(used, load_u64(word(view, HEADER) + H_ROWS_END * 8)):
        if load_u8(rows + position * stride + FLAGS) == 0:
            continue
        while load_u8(rows + hole * stride + FLAGS) != 0:
            hole += 1
        sources[count] = position
        targets[count] = hole
        hole += 1
        count += 1
    return count


@kernel
def move_records(view: int, used: int, identity_columns: int, has_identity: bool, sources: Any, targets: Any) -> None:
    """Move records into holes, and let everything that named them follow; the first `used` records are all afterwards."""
    rows, stride, heap, mask = word(view, ROWS), word(view, STRIDE), word(view, HEAP), word(view, HASH_KEY)
    header = word(view, HEADER)
    for index in range(len(sources)):
        old, number = sources[index] + 1, targets[index] + 1
        row = rows + targets[index] * stride
        copy_bytes(row, rows + sources[index] * stride, stride)
        flags = load_u8(row + FLAGS)
        if flags & (FLAG_ARRANGED | FLAG_TOMBSTONE):
            following, previous = load_u32(row + NEXT), load_u32(row + PREVIOUS)
            if following != 0:
                store_u32(rows + (following - 1) * stride + PREVIOUS, number)
            elif flags & FLAG_TOMBSTONE:
                store_u64(header + H_TOMBSTONE_LAST * 8, number)
            if previous != 0:
                store_u32(rows + (previous - 1) * stride + NEXT, number)
            elif flags & FLAG_TOMBSTONE:
                store_u64(header + H_TOMBSTONE_FIRST * 8, number)
            else:
                slots, bits = word(view, JOIN_SLOTS), word(view, JOIN_BITS)
                replace_slot(slots, find_row_slot(slots, bits, load_u32(row + HASH), old), number)
        if has_identity:
            slots, bits = word(view, IDENTITY_SLOTS), word(view, IDENTITY_BITS)
            replace_slot(slots, find_row_slot(slots, bits, hash_row(row, heap, identity_columns, mask), old), number)
    store_u64(header + H_FREE_ROW * 8, 0)
    store_u64(header + H_ROWS_END * 8, used)


@kernel
def slide_blocks(view: int, variables: int) -> None:
    """Slide the blocks of all records, which are used ones, to the beginning of the heap."""
    rows, stride, heap, header = word(view, ROWS), word(view, STRIDE), word(view, HEAP), word(view, HEADER)
    for size_class in range(HEADER_WORDS - H_FREE_BLOCKS):
        head = header + (H_FREE_BLOCKS + size_class) * 8
        free = load_u64(head)
        store_u64(head, 0)
        while free != 0:
            following = load_u64(heap + free - 1)
            store_u64(heap + free - 1, 2 * class_bytes(size_class) + 1)
            free = following
    for position in range(load_u64(header + H_ROWS_END * 8)):
        for column in range(column_count(variables)):
            slot = rows + position * stride + field(variables, column, OFFSET)
            if load_u32(slot) > INLINE_BYTES:
                block = heap + (load_u64(slot + 8) ^ HEAP_BIT)
                store_u64(slot + 8, load_u64(block))
                store_u64(block, 2 * slot)
    end = load_u64(header + H_HEAP_END * 8)
    source, target = 0, 0
    while source < end:
        mark = load_u64(heap + source)
        if mark & 1:
            source += mark >> 1
            continue
        slot = mark >> 1
        size = block_bytes(load_u32(slot))
        if source != target:
            copy_bytes(heap + target, heap + source, size)
        store_u64(heap + target, load_u64(slot + 8))
        store_u64(slot + 8, target | HEAP_BIT)
        source += size
        target += size
    store_u64(header + H_HEAP_END * 8, target)
