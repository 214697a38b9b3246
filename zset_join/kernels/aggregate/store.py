"""Folding cells into the ordered multisets: the only kernels that write to them.

Each touched leaf is merged with its cells in working memory and written back once. A leaf that outgrows its room is split into
leaves that are three quarters full; one that falls below a quarter is joined with a neighbour where both fit into three
quarters; an empty one leaves its directory; a directory of one leaf becomes a single leaf.

A call works until the heap room it was granted is used up, and then returns where to continue: everything before that cell is
stored, nothing behind it.
"""

from __future__ import annotations

from typing import Any

from zset_join.kernels.aggregate.tree import (
    DIRECTORY_HEAD,
    V_DISTINCT,
    V_ROOT,
    compare_keys,
    copy_key,
    directory_count,
    first_not_below,
    free_key,
    is_directory,
    leaf_address,
    leaf_capacity,
    leaf_count,
    leaf_line,
    leaf_of_key,
    move_bytes,
    own_key,
    prefetch_values,
    root_offset,
    text_bytes_needed,
)
from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u64, store_u64
from zset_join.kernels.rows.side import H_HEAP_END, HEADER, HEAP, allocate_block, block_bytes, free_block, word

__all__ = ["copy_values", "store_cells"]

_AHEAD = 8


@kernel
def _merge(
    run: int,
    count: int,
    target: int,
    cells_begin: int,
    cells_end: int,
    cell_keys: int,
    cell_weights: Any,
    heap: int,
    header: int,
    words: int,
    texts: int,
) -> int:
    """Write the values of a leaf, brought up to date, to `target`; return how many there are."""
    step = 8 * words + 8
    read, written = 0, 0
    for cell in range(cells_begin, cells_end):
        key = cell_keys + cell * words * 8
        place = read + first_not_below(run + read * step, count - read, step, heap, key, 0, words, texts)
        move_bytes(target + written * step, run + read * step, (place - read) * step)
        written += place - read
        read = place
        net = cell_weights[cell]
        if read < count and compare_keys(run + read * step, heap, key, 0, words, texts) == 0:
            copies = load_u64(run + read * step + words * 8) + net
            if copies > 0:
                copy_key(target + written * step, run + read * step, words)
                store_u64(target + written * step + words * 8, copies)
                written += 1
            else:
                free_key(run + read * step, words, texts, heap, header)
            read += 1
        elif net > 0:
            own_key(target + written * step, key, 0, words, texts, heap, header)
            store_u64(target + written * step + words * 8, net)
            written += 1
    move_bytes(target + written * step, run + read * step, (count - read) * step)
    return written + count - read


@kernel
def _is_sparse_change(count: int, begin: int, end: int, room: int, cell_before: Any, cell_weights: Any) -> bool:
    """Return whether some cells are few beside the `count` values of a leaf, and fit its room."""
    if (end - begin) * 8 > count:
        return False
    size = count
    for cell in range(begin, end):
        if cell_before[cell] == 0 and cell_weights[cell] > 0:
            size += 1
    return size <= room


@kernel
def _change_in_place(
    run: int,
    count: int,
    begin: int,
    end: int,
    cell_keys: int,
    cell_weights: Any,
    heap: int,
    header: int,
    words: int,
    texts: int,
) -> int:
    """Bring the values of a leaf up to date one by one; return how many there are."""
    step = 8 * words + 8
    for cell in range(begin, end):
        key = cell_keys + cell * words * 8
        place = first_not_below(run, count, step, heap, key, 0, words, texts)
        value = run + place * step
        net = cell_weights[cell]
        if place < count and compare_keys(value, heap, key, 0, words, texts) == 0:
            copies = load_u64(value + words * 8) + net
            if copies > 0:
                store_u64(value + words * 8, copies)
                continue
            free_key(value, words, texts, heap, header)
            move_bytes(value, value + step, (count - place - 1) * step)
            count -= 1
        elif net > 0:
            move_bytes(value + step, value, (count - place) * step)
            own_key(value, key, 0, words, texts, heap, header)
            store_u64(value + words * 8, net)
            count += 1
    return count


@kernel
def _write_single(values: int, old: int, old_count: int, source: int, count: int, heap: int, header: int, step: int) -> None:
    """Let a multiset consist of one leaf with the values at `source`; `old` is the offset of its old leaf, -1 if none."""
    old_bytes, new_bytes = old_count * step, count * step
    offset = old
    if old < 0 or count == 0 or block_bytes(old_bytes) != block_bytes(new_bytes):
        if old >= 0:
            free_block(heap, header, old, old_bytes)
        offset = allocate_block(heap, header, new_bytes) if count > 0 else -1
    if count > 0:
        move_bytes(heap + offset, source, new_bytes)
    store_u64(values + V_ROOT * 8, 2 * (offset + 1))


@kernel
def _new_directory(values: int, source: int, count: int, heap: int, header: int, words: int) -> None:
    """Let a multiset consist of a directory over leaves that are three quarters full, with the values at `source`."""
    step, line = 8 * words + 8, 8 * words + 16
    capacity = leaf_capacity(words)
    share = capacity * 3 // 4
    leaves = (count + share - 1) // share
    room = 2 * leaves
    directory = allocate_block(heap, header, DIRECTORY_HEAD + room * line)
    store_u64(heap + directory, leaves)
    store_u64(heap + directory + 8, room)
    for leaf in range(leaves):
        begin = leaf * share
        size = min(share, count - begin)
        offset = allocate_block(heap, header, capacity * step)
        move_bytes(heap + offset, source + begin * step, size * step)
        place = heap + directory + DIRECTORY_HEAD + leaf * line
        copy_key(place, source + begin * step, words)
        store_u64(place + words * 8, offset)
        store_u64(place + words * 8 + 8, size)
    store_u64(values + V_ROOT * 8, 2 * (directory + 1) + 1)


@kernel
def _free_directory(root: int, heap: int, header: int, words: int) -> None:
    """Give the blocks of a directory and its leaves back; the values' own blocks stay."""
    bytes_of_leaf = leaf_capacity(words) * (8 * words + 8)
    for leaf in range(directory_count(heap, root)):
        free_block(heap, header, load_u64(leaf_line(heap, root, leaf, words) + words * 8), bytes_of_leaf)
    room = load_u64(heap + root_offset(root) + 8)
    free_block(heap, header, root_offset(root), DIRECTORY_HEAD + room * (8 * words + 16))


@kernel
def _collapse(values: int, heap: int, header: int, words: int, spare: int) -> None:
    """Let a directory of one leaf or none become a single leaf or nothing."""
    step = 8 * words + 8
    root = load_u64(values + V_ROOT * 8)
    count = 0
    if directory_count(heap, root) > 0:
        count = leaf_count(heap, root, 0, words, 0)
        move_bytes(spare, leaf_address(heap, root, 0, words), count * step)
    _free_directory(root, heap, header, words)
    _write_single(values, -1, 0, spare, count, heap, header, step)


@kernel
def _move_lines(values: int, leaf: int, replaced: int, leaves: int, heap: int, header: int, words: int) -> None:
    """Make room for `leaves` lines in place of `replaced` ones (0 or 1) in a directory."""
    line = 8 * words + 16
    root = load_u64(values + V_ROOT * 8)
    directory = root_offset(root)
    count, room = load_u64(heap + directory), load_u64(heap + directory + 8)
    total = count - replaced + leaves
    if total > room:
        grown = allocate_block(heap, header, DIRECTORY_HEAD + 2 * total * line)
        move_bytes(heap + grown, heap + directory, DIRECTORY_HEAD + count * line)
        free_block(heap, header, directory, DIRECTORY_HEAD + room * line)
        directory = grown
        store_u64(heap + directory + 8, 2 * total)
        store_u64(values + V_ROOT * 8, 2 * (directory + 1) + 1)
    lines = heap + directory + DIRECTORY_HEAD
    moved = count - leaf - replaced
    move_bytes(lines + (leaf + leaves) * line, lines + (leaf + replaced) * line, moved * line)
    store_u64(heap + directory, total)


@kernel
def _write_leaf(values: int, leaf: int, source: int, count: int, heap: int, header: int, words: int) -> None:
    """Write the merged values of a leaf back into its directory, splitting or dropping it."""
    step = 8 * words + 8
    capacity = leaf_capacity(words)
    root = load_u64(values + V_ROOT * 8)
    old = load_u64(leaf_line(heap, root, leaf, words) + words * 8)
    if count == 0:
        free_block(heap, header, old, capacity * step)
        _move_lines(values, leaf, 1, 0, heap, header, words)
        return
    share = count if count <= capacity else capacity * 3 // 4
    leaves = (count + share - 1) // share
    if leaves > 1:
        _move_lines(values, leaf, 1, leaves, heap, header, words)
    root = load_u64(values + V_ROOT * 8)
    for at in range(leaves):
        size = min(share, count - at * share)
        offset = old if at == 0 else allocate_block(heap, header, capacity * step)
        move_bytes(heap + offset, source + at * share * step, size * step)
        place = leaf_line(heap, root, leaf + at, words)
        copy_key(place, source + at * share * step, words)
        store_u64(place + words * 8, offset)
        store_u64(place + words * 8 + 8, size)


@kernel
def _join_neighbour(values: int, leaf: int, heap: int, header: int, words: int) -> None:
    """Move the values of a sparse leaf to the one before it, or those of the next one into it, where they fit."""
    step = 8 * words + 8
    capacity = leaf_capacity(words)
    root = load_u64(values + V_ROOT * 8)
    leaves = directory_count(heap, root)
    if leaves < 2 or leaf >= leaves or leaf_count(heap, root, leaf, words, 0) * 4 > capacity:
        return
    first = leaf - 1 if leaf > 0 else 0
    size = leaf_count(heap, root, first, words, 0)
    other = leaf_count(heap, root, first + 1, words, 0)
    if (size + other) * 4 > capacity * 3:
        return
    source = leaf_address(heap, root, first + 1, words)
    move_bytes(leaf_address(heap, root, first, words) + size * step, source, other * step)
    store_u64(leaf_line(heap, root, first, words) + words * 8 + 8, size + other)
    free_block(heap, header, source - heap, capacity * step)
    _move_lines(values, first + 1, 1, 0, heap, header, words)


@kernel
def _end_of_leaf(heap: int, root: int, leaf: int, begin: int, end: int, cell_keys: int, words: int, texts: int) -> int:
    """Return the first cell of `begin .. end` that belongs to a later leaf."""
    if leaf + 1 >= directory_count(heap, root):
        return end
    bound = leaf_line(heap, root, leaf + 1, words)
    return begin + first_not_below(cell_keys + begin * words * 8, end - begin, words * 8, 0, bound, heap, words, texts)


@kernel
def _bytes_needed(
    count: int,
    leaves: int,
    begin: int,
    end: int,
    cell_keys: int,
    cell_before: Any,
    cell_weights: Any,
    words: int,
    texts: int,
) -> int:
    """Return the heap bytes that merging some cells into a leaf of `count` values can take at most."""
    step, line = 8 * words + 8, 8 * words + 16
    capacity = leaf_capacity(words)
    size = count
    needed = 0
    for cell in range(begin, end):
        if cell_before[cell] == 0 and cell_weights[cell] > 0:
            size += 1
            if texts != 0:
                needed += text_bytes_needed(cell_keys + cell * words * 8, words, texts)
    if size <= capacity:
        return needed + block_bytes(size * step)
    new_leaves = size // (capacity * 3 // 4) + 1
    return needed + new_leaves * block_bytes(capacity * step) + block_bytes(DIRECTORY_HEAD + 2 * (leaves + new_leaves) * line)


@kernel
def store_cells(
    view: int,
    first: int,
    entries: int,
    line_words: int,
    at: int,
    after: int,
    cells: Any,
    resume: int,
    cell_keys: int,
    cell_weights: Any,
    cell_before: Any,
    words: int,
    texts: int,
    limit: int,
    spare: int,
) -> tuple[int, int, int]:
    """Fold the cells of the entries from `first` on, beginning with cell `resume`, into their multisets."""
    # As `match_cells`, and: below heap offset `limit` there is room, and in `spare` for a full leaf and all cells. The result
    # is where to continue (entry, `entries` at the end, and cell), and with how many bytes of heap more at least.
    heap, header = word(view, HEAP), word(view, HEADER)
    step = 8 * words + 8
    capacity = leaf_capacity(words)
    for entry in range(first, entries):
        if entry + _AHEAD < entries and cells[entry + _AHEAD] < cells[entry + _AHEAD + 1]:
            prefetch_values(heap, after + ((entry + _AHEAD) * line_words + at) * 8, words)
        end = cells[entry + 1]
        cell = max(resume, cells[entry])
        if cell >= end:
            continue
        values = after + (entry * line_words + at) * 8
        distinct = load_u64(values + V_DISTINCT * 8)
        root = load_u64(values + V_ROOT * 8)
        if not is_directory(root):
            count = _count_before(cell, end, distinct, cell_before, cell_weights)
            needed = _bytes_needed(count, 0, cell, end, cell_keys, cell_before, cell_weights, words, texts)
            if load_u64(header + H_HEAP_END * 8) + needed > limit:
                return entry, cell, needed
            old = -1 if root == 0 else root_offset(root)
            block = block_bytes(count * step)
            if block == block_bytes(distinct * step) and _is_sparse_change(
                count, cell, end, block // step, cell_before, cell_weights
            ):
                _change_in_place(heap + old, count, cell, end, cell_keys, cell_weights, heap, header, words, texts)
                continue
            new_count = _merge(heap + max(old, 0), count, spare, cell, end, cell_keys, cell_weights, heap, header, words, texts)
            if new_count <= capacity:
                _write_single(values, old, count, spare, new_count, heap, header, step)
            else:
                if old >= 0:
                    free_block(heap, header, old, count * step)
                _new_directory(values, spare, new_count, heap, header, words)
            continue
        while cell < end:
            root = load_u64(values + V_ROOT * 8)
            leaves = directory_count(heap, root)
            leaf = leaf_of_key(heap, root, cell_keys + cell * words * 8, 0, words, texts)
            last = _end_of_leaf(heap, root, leaf, cell, end, cell_keys, words, texts)
            count = leaf_count(heap, root, leaf, words, distinct)
            needed = _bytes_needed(count, leaves, cell, last, cell_keys, cell_before, cell_weights, words, texts)
            if load_u64(header + H_HEAP_END * 8) + needed > limit:
                return entry, cell, needed
            run = leaf_address(heap, root, leaf, words)
            if _is_sparse_change(count, cell, last, capacity, cell_before, cell_weights):
                new_count = _change_in_place(run, count, cell, last, cell_keys, cell_weights, heap, header, words, texts)
                entry_line = leaf_line(heap, root, leaf, words)
                copy_key(entry_line, run, words)
                store_u64(entry_line + words * 8 + 8, new_count)
            else:
                new_count = _merge(run, count, spare, cell, last, cell_keys, cell_weights, heap, header, words, texts)
                _write_leaf(values, leaf, spare, new_count, heap, header, words)
            if new_count * 4 <= capacity:
                _join_neighbour(values, leaf, heap, header, words)
            cell = last
        if directory_count(heap, load_u64(values + V_ROOT * 8)) <= 1:
            if load_u64(header + H_HEAP_END * 8) + block_bytes(capacity * step) <= limit:
                _collapse(values, heap, header, words, spare)
    return entries, 0, 0


@kernel
def _count_before(begin: int, end: int, distinct: int, cell_before: Any, cell_weights: Any) -> int:
    """Return the number of distinct values before some cells, given the number after them."""
    count = distinct
    for cell in range(begin, end):
        was, will_be = cell_before[cell] > 0, cell_before[cell] + cell_weights[cell] > 0
        count += (1 if was else 0) - (1 if will_be else 0)
    return count


@kernel
def copy_values(old: int, new: int, groups: int, copied: int, place: int, words: int, texts: int) -> None:
    """Rewrite the multisets of copied groups into the heap of the new state, which has room for them."""
    # `copied` has the old and the new record address of each group, `place` is the offset of the root in a record.
    old_heap, heap, header = word(old, HEAP), word(new, HEAP), word(new, HEADER)
    step, line = 8 * words + 8, 8 * words + 16
    capacity = leaf_capacity(words)
    for group in range(groups):
        values = load_u64(copied + group * 16) + place
        root = load_u64(values + V_ROOT * 8)
        if root == 0:
            continue
        distinct = load_u64(values + V_DISTINCT * 8)
        target = load_u64(copied + group * 16 + 8) + place
        leaves = directory_count(old_heap, root)
        directory = -1
        if is_directory(root):
            room = load_u64(old_heap + root_offset(root) + 8)
            directory = allocate_block(heap, header, DIRECTORY_HEAD + room * line)
            store_u64(heap + directory, leaves)
            store_u64(heap + directory + 8, room)
            store_u64(target + V_ROOT * 8, 2 * (directory + 1) + 1)
        for leaf in range(leaves):
            count = leaf_count(old_heap, root, leaf, words, distinct)
            run = leaf_address(old_heap, root, leaf, words)
            offset = allocate_block(heap, header, (count if directory < 0 else capacity) * step)
            for at in range(count):
                own_key(heap + offset + at * step, run + at * step, old_heap, words, texts, heap, header)
                store_u64(heap + offset + at * step + words * 8, load_u64(run + at * step + words * 8))
            if directory < 0:
                store_u64(target + V_ROOT * 8, 2 * (offset + 1))
                continue
            entry = heap + directory + DIRECTORY_HEAD + leaf * line
            copy_key(entry, heap + offset, words)
            store_u64(entry + words * 8, offset)
            store_u64(entry + words * 8 + 8, count)
