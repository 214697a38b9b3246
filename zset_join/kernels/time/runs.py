"""The run of a key: its rows in order, as pairs of (first order word, row number).

A key is a record of its own, found by hash. Behind its columns are its words: three for each run it has (the block of the
run in the heap of keys, length and room of the run, when something in it is due), then how many rows wait under it and until
when its last DELETE is remembered. A run is a sorted block of 16-byte entries that is searched by halves; only ties look at
the rows.

Rows hold in the field of the hash which key they belong to, in the flags whether they are a DELETE and have lost predecessors.

Cost: a search touches one cache line for 4 entries of the run; an insertion moves what is behind it, which is nothing for rows
that arrive in order.
"""

from __future__ import annotations

from typing import Any

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import (
    copy_bytes,
    load_u8,
    load_u32,
    load_u64,
    prefetch,
    shift_right,
    store_u8,
    store_u32,
    store_u64,
)
from zset_join.kernels.rows.side import (
    H_JOIN_COUNT,
    H_LIVE_ROWS,
    HEADER,
    HEAP,
    JOIN_BITS,
    JOIN_SLOTS,
    ROWS,
    SEQUENCE_OFFSET,
    SEQUENCE_WORDS,
    STRIDE,
    allocate_block,
    block_bytes,
    free_block,
    word,
)
from zset_join.kernels.rows.slots import find_row_slot, insert_slot, remove_slot
from zset_join.kernels.rows.storing import add_to_word, free_values, give_row, store_values, take_row
from zset_join.kernels.time.groups import compare_words
from zset_join.kernels.values.keys import (
    FLAG_LIVE,
    FLAGS,
    HASH,
    HEAP_BIT,
    INLINE_BYTES,
    KIND,
    NESTED,
    NEXT,
    NULLS,
    OFFSET,
    PREVIOUS,
    VARIABLE,
    WEIGHT,
    WIDTH,
    column_count,
    equal_columns,
    field,
    variable_bytes,
)

__all__ = [
    "ENTRY",
    "FLAG_DELETE",
    "FLAG_PRECEDED",
    "NEVER",
    "RUN_BYTES",
    "RUN_DUE",
    "drop_empty_keys",
    "entries_until",
    "free_entries",
    "inherit_mark",
    "key_address",
    "key_heap_bytes",
    "merge_groups",
    "retract_rows",
    "row_address",
    "run_base",
    "run_bytes_needed",
    "run_length",
    "set_run_length",
    "store_keys",
]

ENTRY = 16
RUN_BYTES = 24  # the words of one run in a key record: block, length and room, due
RUN_DUE = 16
NEVER = 0x7FFFFFFFFFFFFFFF
FLAG_DELETE = 8
FLAG_PRECEDED = 16  # a version that came before it was freed
_AHEAD = 8
_LOW = 0xFFFFFFFF


@kernel
def key_address(keys: int, number: int) -> int:
    return word(keys, ROWS) + (number - 1) * word(keys, STRIDE)


@kernel
def row_address(side: int, number: int) -> int:
    return word(side, ROWS) + (number - 1) * word(side, STRIDE)


@kernel
def run_base(keys: int, key: int, at: int) -> int:
    """Return the address of a run's entries; `at` is the place of its words in a key record."""
    return word(keys, HEAP) + load_u64(key + at)


@kernel
def run_length(key: int, at: int) -> int:
    return load_u32(key + at + 8)


@kernel
def set_run_length(key: int, at: int, length: int) -> None:
    store_u32(key + at + 8, length)


@kernel
def entries_until(base: int, length: int, time: int) -> int:
    """Return how many entries of a run have a first word of at most `time`."""
    low, high = 0, length
    while low < high:
        middle = (low + high) >> 1
        if load_u64(base + ENTRY * middle) <= time:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _entries_before(side: int, base: int, length: int, words: int, count: int) -> int:
    """Return how many entries of a run are smaller than `count` order words at an address."""
    low, high = 0, length
    first = load_u64(words)
    at = word(side, SEQUENCE_OFFSET)
    while low < high:
        middle = (low + high) >> 1
        own = load_u64(base + ENTRY * middle)
        smaller = own < first
        if own == first:
            row = row_address(side, load_u64(base + ENTRY * middle + 8))
            smaller = compare_words(row + at, words, count) < 0
        if smaller:
            low = middle + 1
        else:
            high = middle
    return low


# ---------------------------------------------------------------- keys


@kernel
def key_heap_bytes(reps: Any, numbers: Any, groups: int, columns: int) -> int:
    """Return the heap bytes that storing the new keys of an epoch can take."""
    total = 0
    for column in range(column_count(columns)):
        kind, offset = field(columns, column, KIND), field(columns, column, OFFSET)
        if kind == VARIABLE or kind == NESTED:
            for group in range(groups):
                if numbers[group] == 0:
                    length = load_u32(reps[group] + offset)
                    if length > INLINE_BYTES:
                        total += block_bytes(length)
    return total


@kernel
def store_keys(
    keys: int, columns: int, source_columns: int, reps: Any, codes: Any, groups: int, wanted: Any, numbers: Any, runs: int
) -> None:
    """Give every wanted group that is new a key record; room was made before."""
    header, heap = word(keys, HEADER), word(keys, HEAP)
    at, words = word(keys, SEQUENCE_OFFSET), word(keys, SEQUENCE_WORDS)
    for group in range(groups):
        if numbers[group] != 0 or not wanted[group]:
            continue
        number = take_row(keys)
        key, source = key_address(keys, number), reps[group]
        store_u32(key + NEXT, 0)
        store_u32(key + PREVIOUS, 0)
        store_u64(key + WEIGHT, 1)
        store_u32(key + HASH, codes[group])
        store_u8(key + FLAGS, FLAG_LIVE)
        for place in range(NULLS, NULLS + ((column_count(columns) + 7) >> 3)):
            store_u8(key + place, load_u8(source + place))
        for place in range(words):
            store_u64(key + at + 8 * place, 0)
        for run in range(runs):
            store_u64(key + at + run * RUN_BYTES + RUN_DUE, NEVER)
        for column in range(column_count(columns)):
            target = key + field(columns, column, OFFSET)
            value = source + field(source_columns, column, OFFSET)
            copy_bytes(target, value, field(columns, column, WIDTH))
            kind = field(columns, column, KIND)
            if kind == VARIABLE or kind == NESTED:
                length = load_u32(value)
                if length > INLINE_BYTES:
                    offset = allocate_block(heap, header, length)
                    copy_bytes(heap + offset, variable_bytes(value, 0), length)
                    store_u64(target + 8, offset | HEAP_BIT)
        insert_slot(word(keys, JOIN_SLOTS), word(keys, JOIN_BITS), codes[group], number)
        add_to_word(header, H_JOIN_COUNT, 1)
        add_to_word(header, H_LIVE_ROWS, 1)
        numbers[group] = number


@kernel
def drop_empty_keys(keys: int, variables: int, numbers: Any, count: int, runs: int) -> int:
    """Forget those of some keys that have no row in any run and none waiting; return how many. A number may come twice."""
    dropped = 0
    at = word(keys, SEQUENCE_OFFSET)
    for place in range(count):
        number = numbers[place]
        if number == 0:
            continue
        key = key_address(keys, number)
        held = load_u64(key + at + runs * RUN_BYTES)
        for run in range(runs):
            held += run_length(key, at + run * RUN_BYTES)
        if held != 0 or load_u8(key + FLAGS) == 0:
            continue
        for run in range(runs):
            room = shift_right(load_u64(key + at + run * RUN_BYTES + 8), 32)
            if room != 0:
                free_block(word(keys, HEAP), word(keys, HEADER), load_u64(key + at + run * RUN_BYTES), room * ENTRY)
        slots, bits = word(keys, JOIN_SLOTS), word(keys, JOIN_BITS)
        remove_slot(slots, bits, find_row_slot(slots, bits, load_u32(key + HASH), number))
        free_values(keys, variables, key)
        give_row(keys, number)
        add_to_word(word(keys, HEADER), H_JOIN_COUNT, -1)
        add_to_word(word(keys, HEADER), H_LIVE_ROWS, -1)
        dropped += 1
    return dropped


# ---------------------------------------------------------------- retractions


@kernel
def _already(removed_at: Any, removed_weight: Any, begin: int, end: int, position: int) -> int:
    """Return the weight taken off an entry of the run so far; the list is sorted, and short where it is looked at."""
    place = end - 1
    while place >= begin and removed_at[place] > position:
        place -= 1
    return removed_weight[place] if place >= begin and removed_at[place] == position else 0


@kernel
def _take_off(removed_at: Any, removed_weight: Any, begin: int, end: int, position: int, weight: int) -> int:
    """Add to the weight taken off an entry; return the new end of the list."""
    place = end
    while place > begin and removed_at[place - 1] > position:
        place -= 1
    if place > begin and removed_at[place - 1] == position:
        removed_weight[place - 1] += weight
        return end
    for moved in range(end, place, -1):
        removed_at[moved] = removed_at[moved - 1]
        removed_weight[moved] = removed_weight[moved - 1]
    removed_at[place] = position
    removed_weight[place] = weight
    return end + 1


@kernel
def retract_rows(
    keys: int,
    at: int,
    side: int,
    columns: int,
    rows: int,
    weights: Any,
    numbers: Any,
    groups: int,
    begin: Any,
    order: Any,
    back_begin: Any,
    back_order: Any,
    left: Any,
    status: Any,
    absent: int,
    removed_begin: Any,
    removed_at: Any,
    removed_weight: Any,
    oldest_last: bool,
) -> int:
    """Find the rows that each retraction retracts: rows of the state, oldest first, then rows that arrived in this epoch."""
    # `left` is what is left of the weight of each new row; `removed_*` lists what is taken off the entries of each group's
    # run, by position. A retraction of more than there is gets the status `absent` and takes nothing; these are counted.
    stride, words_at, words = word(side, STRIDE), word(side, SEQUENCE_OFFSET), word(side, SEQUENCE_WORDS) - 1
    heap = word(side, HEAP)
    removed, bad = 0, 0
    for group in range(groups):
        removed_begin[group] = removed
        base, length = 0, 0
        if numbers[group] != 0 and back_begin[group] < back_begin[group + 1]:
            key = key_address(keys, numbers[group])
            base, length = run_base(keys, key, at), run_length(key, at)
        for place in range(back_begin[group], back_begin[group + 1]):
            index = back_order[place]
            row = rows + index * stride
            low = _entries_before(side, base, length, row + words_at, words) if length else 0
            new_low, high = begin[group], begin[group + 1]
            while new_low < high:
                middle = (new_low + high) >> 1
                if compare_words(rows + order[middle] * stride + words_at, row + words_at, words) < 0:
                    new_low = middle + 1
                else:
                    high = middle
            # The rows at the place of this one: [low, stop) of the run, [new_low, new_stop) of the new ones.
            stop, new_stop = low, new_low
            while stop < length and (
                compare_words(row_address(side, load_u64(base + ENTRY * stop + 8)) + words_at, row + words_at, words) == 0
            ):
                stop += 1
            while new_stop < begin[group + 1] and (
                compare_words(rows + order[new_stop] * stride + words_at, row + words_at, words) == 0
            ):
                new_stop += 1
            need = -weights[index]
            for step in range(2):  # first what there is, then taking it
                if step == 1:
                    if need > 0:
                        status[index] = absent
                        bad += 1
                        break
                    need = -weights[index]
                for turn in range(stop - low):
                    if need <= 0:
                        break
                    position = stop - 1 - turn if oldest_last else low + turn
                    candidate = row_address(side, load_u64(base + ENTRY * position + 8))
                    if equal_columns(row, 0, columns, candidate, heap, columns):
                        there = load_u64(candidate + WEIGHT) - _already(
                            removed_at, removed_weight, removed_begin[group], removed, position
                        )
                        taken = min(there, need)
                        if taken > 0:
                            need -= taken
                            if step == 1:
                                removed = _take_off(removed_at, removed_weight, removed_begin[group], removed, position, taken)
                for turn in range(new_stop - new_low):
                    if need <= 0:
                        break
                    position = new_stop - 1 - turn if oldest_last else new_low + turn
                    candidate = rows + order[position] * stride
                    if left[order[position]] > 0 and equal_columns(row, 0, columns, candidate, 0, columns):
                        taken = min(left[order[position]], need)
                        need -= taken
                        if step == 1:
                            left[order[position]] -= taken
    removed_begin[groups] = removed
    return bad


# ---------------------------------------------------------------- writing


@kernel
def _grown(entries: int) -> int:
    """Return the bytes of a block for so many entries, with room for half as many more."""
    return block_bytes(ENTRY * (entries + (entries >> 1)))


@kernel
def run_bytes_needed(keys: int, at: int, numbers: Any, groups: int, begin: Any) -> int:
    """Return the heap bytes that adding the new rows to the runs can take."""
    total = 0
    for group in range(groups):
        added = begin[group + 1] - begin[group]
        if added == 0:
            continue
        length, room = 0, 0
        if numbers[group] != 0:
            key = key_address(keys, numbers[group])
            length, room = run_length(key, at), shift_right(load_u64(key + at + 8), 32)
        if length + added > room:
            total += _grown(length + added)
    return total


@kernel
def _make_room(keys: int, key: int, at: int, entries: int) -> None:
    """Move a run to a larger block where it has not room for so many entries."""
    room = shift_right(load_u64(key + at + 8), 32)
    if entries <= room:
        return
    heap, header, length = word(keys, HEAP), word(keys, HEADER), run_length(key, at)
    size = _grown(entries)
    offset = allocate_block(heap, header, size)
    if room != 0:
        copy_bytes(heap + offset, heap + load_u64(key + at), length * ENTRY)
        free_block(heap, header, load_u64(key + at), room * ENTRY)
    store_u64(key + at, offset)
    store_u64(key + at + 8, ((size // ENTRY) << 32) | length)


@kernel
def _free_row(side: int, variables: int, number: int) -> None:
    free_values(side, variables, row_address(side, number))
    give_row(side, number)
    add_to_word(word(side, HEADER), H_LIVE_ROWS, -1)


@kernel
def free_entries(keys: int, key: int, at: int, side: int, variables: int, begin: int, end: int) -> None:
    """Free the rows of some entries of a run, and close the gap."""
    base, length = run_base(keys, key, at), run_length(key, at)
    for position in range(begin, end):
        _free_row(side, variables, load_u64(base + ENTRY * position + 8))
    for position in range(end, length):
        store_u64(base + ENTRY * (position - end + begin), load_u64(base + ENTRY * position))
        store_u64(base + ENTRY * (position - end + begin) + 8, load_u64(base + ENTRY * position + 8))
    set_run_length(key, at, length - (end - begin))


@kernel
def _remove(
    keys: int, key: int, at: int, side: int, variables: int, removed_at: Any, removed_weight: Any, begin: int, end: int
) -> None:
    """Take weight off entries; those with none left go."""
    base, length = run_base(keys, key, at), run_length(key, at)
    target, next_removed = removed_at[begin], begin
    for position in range(target, length):
        number = load_u64(base + ENTRY * position + 8)
        if next_removed < end and removed_at[next_removed] == position:
            row = row_address(side, number)
            weight = load_u64(row + WEIGHT) - removed_weight[next_removed]
            next_removed += 1
            if weight == 0:
                _free_row(side, variables, number)
                continue
            store_u64(row + WEIGHT, weight)
        store_u64(base + ENTRY * target + 8, number)
        store_u64(base + ENTRY * target, load_u64(base + ENTRY * position))
        target += 1
    set_run_length(key, at, target)


@kernel
def _store_row(side: int, variables: int, source: int, weight: int, key_number: int, marks: int) -> int:
    number = take_row(side)
    row = row_address(side, number)
    store_u32(row + NEXT, 0)
    store_u32(row + PREVIOUS, 0)
    store_u64(row + WEIGHT, weight)
    store_u32(row + HASH, key_number)
    store_u8(row + FLAGS, FLAG_LIVE | marks * FLAG_DELETE)
    store_values(side, variables, row, source, 0, word(side, STRIDE))
    add_to_word(word(side, HEADER), H_LIVE_ROWS, 1)
    return number


@kernel
def merge_groups(
    keys: int,
    at: int,
    side: int,
    variables: int,
    rows: int,
    left: Any,
    deletes: Any,
    numbers: Any,
    groups: int,
    begin: Any,
    order: Any,
    removed_begin: Any,
    removed_at: Any,
    removed_weight: Any,
    supersedes: bool,
    limit: int,
) -> None:
    """Fold the new rows of every group into its run, after what was retracted has left."""
    # With `supersedes` of several rows with one first word only the last one stays; with `limit` above 0 only so many copies
    # per key, the first ones.
    stride, words_at, words = word(side, STRIDE), word(side, SEQUENCE_OFFSET), word(side, SEQUENCE_WORDS)
    for group in range(groups):
        if group + 2 * _AHEAD < groups and begin[group + 2 * _AHEAD] < begin[group + 2 * _AHEAD + 1]:
            ahead = key_address(keys, numbers[group + 2 * _AHEAD])
            prefetch(ahead)
            prefetch(ahead + 63)
        if group + _AHEAD < groups and begin[group + _AHEAD] < begin[group + _AHEAD + 1]:
            ahead = key_address(keys, numbers[group + _AHEAD])
            prefetch(run_base(keys, ahead, at) + ENTRY * max(0, run_length(ahead, at) - 1))
        if begin[group] == begin[group + 1] and removed_begin[group] == removed_begin[group + 1]:
            continue
        number = numbers[group]
        key = key_address(keys, number)
        if removed_begin[group] < removed_begin[group + 1]:
            _remove(keys, key, at, side, variables, removed_at, removed_weight, removed_begin[group], removed_begin[group + 1])
        added = 0
        for place in range(begin[group], begin[group + 1]):
            added += 1 if left[order[place]] > 0 else 0
        if added == 0:
            continue
        length = run_length(key, at)
        if 0 < limit <= length and _stays_behind(keys, key, at, side, limit, rows + order[begin[group]] * stride):
            continue
        _make_room(keys, key, at, length + added)
        base = run_base(keys, key, at)
        kept, target, place = length - 1, length + added - 1, begin[group + 1] - 1
        while place >= begin[group]:
            index = order[place]
            place -= 1
            if left[index] <= 0:
                continue
            source = rows + index * stride
            first = load_u64(source + words_at)
            while kept >= 0:
                own = load_u64(base + ENTRY * kept)
                if own < first:
                    break
                other = load_u64(base + ENTRY * kept + 8)
                if own == first and (compare_words(row_address(side, other) + words_at, source + words_at, words) <= 0):
                    break
                store_u64(base + ENTRY * target, own)
                store_u64(base + ENTRY * target + 8, other)
                target -= 1
                kept -= 1
            store_u64(base + ENTRY * target, first)
            store_u64(base + ENTRY * target + 8, _store_row(side, variables, source, left[index], number, deletes[index]))
            target -= 1
        set_run_length(key, at, length + added)
        if supersedes:
            _drop_superseded(keys, key, at, side, variables, max(0, target))
        if limit > 0:
            _trim(keys, key, at, side, variables, limit)


@kernel
def inherit_mark(row: int, other: int) -> None:
    """Mark a row as preceded if one that it outlives is."""
    store_u8(other + FLAGS, load_u8(other + FLAGS) | load_u8(row + FLAGS) & FLAG_PRECEDED)


@kernel
def _drop_superseded(keys: int, key: int, at: int, side: int, variables: int, begin: int) -> None:
    base, length = run_base(keys, key, at), run_length(key, at)
    target = begin
    for position in range(begin, length):
        first, number = load_u64(base + ENTRY * position), load_u64(base + ENTRY * position + 8)
        if position + 1 < length and load_u64(base + ENTRY * (position + 1)) == first:
            inherit_mark(row_address(side, number), row_address(side, load_u64(base + ENTRY * (position + 1) + 8)))
            _free_row(side, variables, number)
            continue
        store_u64(base + ENTRY * target, first)
        store_u64(base + ENTRY * target + 8, number)
        target += 1
    set_run_length(key, at, target)


@kernel
def _stays_behind(keys: int, key: int, at: int, side: int, limit: int, source: int) -> bool:
    """Return whether a new row, the first of its group, comes after so many rows of the run."""
    words_at, entry = word(side, SEQUENCE_OFFSET), run_base(keys, key, at) + ENTRY * (limit - 1)
    first, own = load_u64(source + words_at), load_u64(entry)
    if own != first:
        return bool(own < first)
    last = row_address(side, load_u64(entry + 8))
    return bool(compare_words(last + words_at, source + words_at, word(side, SEQUENCE_WORDS)) <= 0)


@kernel
def _trim(keys: int, key: int, at: int, side: int, variables: int, limit: int) -> None:
    base, length = run_base(keys, key, at), run_length(key, at)
    copies, position = 0, 0
    while position < length and copies < limit:
        copies += load_u64(row_address(side, load_u64(base + ENTRY * position + 8)) + WEIGHT)
        position += 1
    if position < length:
        free_entries(keys, key, at, side, variables, position, length)
