"""Reading ordered multisets, as they are and as they will be: first and last value, all values in order.

What a multiset will be after the epoch is never built: a walk takes the values before it and the cells of the epoch side by
side, both sorted.

Cost: the first or last value after the epoch takes one step per cell that is in its way, so never more than the cells.
"""

from __future__ import annotations

from typing import Any

from zset_join.kernels.aggregate.tree import (
    PREFIX_BYTES,
    V_DISTINCT,
    V_ROOT,
    compare_keys,
    copy_key,
    directory_count,
    leaf_address,
    leaf_count,
    prefetch_values,
)
from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u64, store_u64
from zset_join.kernels.values.keys import HEAP_BIT

__all__ = ["differing_keys", "list_state", "list_values", "read_ends"]

_AHEAD = 8


@kernel
def _copy_out(target: int, source: int, heap: int, words: int, texts: int) -> None:
    """Copy key words, with plain addresses in place of heap offsets."""
    copy_key(target, source, words)
    if texts == 0:
        return
    for word in range(words):
        if (texts >> word) & 1 and load_u64(source + word * 8 + 8) > PREFIX_BYTES:
            location = load_u64(source + word * 8 + 16)
            if location < 0:
                store_u64(target + word * 8 + 16, heap + (location ^ HEAP_BIT))


@kernel
def _step_down(heap: int, root: int, leaf: int, place: int, words: int, distinct: int) -> tuple[int, int]:
    if place > 0:
        return leaf, place - 1
    leaf -= 1
    return leaf, leaf_count(heap, root, leaf, words, distinct) - 1 if leaf >= 0 else 0


@kernel
def _step_up(heap: int, root: int, leaf: int, place: int, words: int, distinct: int) -> tuple[int, int]:
    place += 1
    if place < leaf_count(heap, root, leaf, words, distinct):
        return leaf, place
    return leaf + 1, 0


@kernel
def _end_after(
    heap: int,
    values: int,
    first: int,
    last: int,
    cell_keys: int,
    cell_weights: Any,
    cell_before: Any,
    words: int,
    texts: int,
    high: bool,
) -> tuple[int, bool]:
    """Return the address of the first or last value after the epoch, and whether there is one."""
    root, distinct = load_u64(values + V_ROOT * 8), load_u64(values + V_DISTINCT * 8)
    leaves = directory_count(heap, root)
    step = 8 * words + 8
    leaf = leaves - 1 if high else 0
    place = leaf_count(heap, root, leaf, words, distinct) - 1 if high and leaves > 0 else 0
    cell = last - 1 if high else first
    while True:
        has_value = 0 <= leaf < leaves
        has_cell = first <= cell < last
        if not has_value and not has_cell:
            return 0, False
        value = leaf_address(heap, root, leaf, words) + place * step if has_value else 0
        if has_cell:
            key = cell_keys + cell * words * 8
            order = 1
            if has_value:
                order = compare_keys(key, 0, value, heap, words, texts)
                if not high:
                    order = -order
            if order >= 0:
                if cell_before[cell] + cell_weights[cell] > 0:
                    return key, True
                cell += -1 if high else 1
                if order == 0:
                    if high:
                        leaf, place = _step_down(heap, root, leaf, place, words, distinct)
                    else:
                        leaf, place = _step_up(heap, root, leaf, place, words, distinct)
                continue
        return value, True


@kernel
def read_ends(
    heap: int,
    entries: int,
    line_words: int,
    at: int,
    before: int,
    cells: Any,
    cell_keys: int,
    cell_weights: Any,
    cell_before: Any,
    words: int,
    texts: int,
    high: bool,
    old: int,
    new: int,
    old_valid: Any,
    new_valid: Any,
) -> None:
    """Write the first value (`high`: the last) of every entry's multiset before and after the epoch to `old` and `new`."""
    # A multiset that is empty leaves zeros. Long strings come with plain addresses, good until the state is written to.
    for entry in range(entries):
        if entry + _AHEAD < entries:
            prefetch_values(heap, before + ((entry + _AHEAD) * line_words + at) * 8, words)
        values = before + (entry * line_words + at) * 8
        root, distinct = load_u64(values + V_ROOT * 8), load_u64(values + V_DISTINCT * 8)
        old_key, new_key = old + entry * words * 8, new + entry * words * 8
        for word in range(words):
            store_u64(old_key + word * 8, 0)
            store_u64(new_key + word * 8, 0)
        old_valid[entry] = 0
        new_valid[entry] = 0
        if root != 0:
            leaf = directory_count(heap, root) - 1 if high else 0
            place = leaf_count(heap, root, leaf, words, distinct) - 1 if high else 0
            _copy_out(old_key, leaf_address(heap, root, leaf, words) + place * (8 * words + 8), heap, words, texts)
            old_valid[entry] = 1
        first, last = cells[entry], cells[entry + 1]
        if first == last:
            copy_key(new_key, old_key, words)
            new_valid[entry] = old_valid[entry]
            continue
        new_end, alive = _end_after(heap, values, first, last, cell_keys, cell_weights, cell_before, words, texts, high)
        if alive:
            _copy_out(new_key, new_end, heap, words, texts)
            new_valid[entry] = 1


@kernel
def _emit(target: int, copies: int, source: int, heap: int, words: int, texts: int, repeated: bool) -> int:
    """Write a value once, or as often as there are copies; return how often."""
    times = copies if repeated else 1
    for at in range(times):
        _copy_out(target + at * words * 8, source, heap, words, texts)
    return times


@kernel
def list_values(
    heap: int,
    chosen: Any,
    count: int,
    line_words: int,
    at: int,
    before: int,
    cells: Any,
    cell_keys: int,
    cell_weights: Any,
    cell_before: Any,
    words: int,
    texts: int,
    is_after: bool,
    repeated: bool,
    target: int,
) -> None:
    """Write the values of the `chosen` entries in order, before or after the epoch, once or (`repeated`) for every copy."""
    step = 8 * words + 8
    for index in range(count):
        entry = chosen[index]
        values = before + (entry * line_words + at) * 8
        root, distinct = load_u64(values + V_ROOT * 8), load_u64(values + V_DISTINCT * 8)
        cell, last = cells[entry], cells[entry + 1]
        if not is_after:
            cell = last
        for leaf in range(directory_count(heap, root)):
            run = leaf_address(heap, root, leaf, words)
            for place in range(leaf_count(heap, root, leaf, words, distinct)):
                value = run + place * step
                copies = load_u64(value + words * 8)
                order = 1
                while cell < last:
                    order = compare_keys(cell_keys + cell * words * 8, 0, value, heap, words, texts)
                    if order >= 0:
                        break
                    if cell_weights[cell] > 0:
                        target += (
                            8
                            * words
                            * _emit(target, cell_weights[cell], cell_keys + cell * words * 8, 0, words, texts, repeated)
                        )
                    cell += 1
                if cell < last and order == 0:
                    copies += cell_weights[cell]
                    cell += 1
                if copies > 0:
                    target += 8 * words * _emit(target, copies, value, heap, words, texts, repeated)
        while cell < last:
            if cell_weights[cell] > 0:
                target += 8 * words * _emit(target, cell_weights[cell], cell_keys + cell * words * 8, 0, words, texts, repeated)
            cell += 1


@kernel
def list_state(
    heap: int, groups: Any, count: int, place: int, words: int, texts: int, refs: Any, keys: int, copies: Any
) -> int:
    """Write every value of the multisets at `place` of some records: record address, key words, copies; return how many."""
    # Used for snapshots. Long strings come with plain addresses, good until the state is written to.
    cell_count = 0
    step = 8 * words + 8
    for index in range(count):
        values = groups[index] + place
        root, distinct = load_u64(values + V_ROOT * 8), load_u64(values + V_DISTINCT * 8)
        for leaf in range(directory_count(heap, root)):
            run = leaf_address(heap, root, leaf, words)
            for at in range(leaf_count(heap, root, leaf, words, distinct)):
                value = run + at * step
                refs[cell_count] = groups[index]
                _copy_out(keys + cell_count * words * 8, value, heap, words, texts)
                copies[cell_count] = load_u64(value + words * 8)
                cell_count += 1
    return cell_count


@kernel
def differing_keys(left: int, right: int, count: int, words: int, texts: int, differ: Any) -> None:
    """Compare two lists of keys pairwise; long strings are at plain addresses."""
    for index in range(count):
        step = index * words * 8
        differ[index] = 1 if compare_keys(left + step, 0, right + step, 0, words, texts) != 0 else 0
