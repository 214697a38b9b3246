"""Ordered multisets in the heap of an arena: sorted leaves, and a sorted directory of leaves once there are several.

The state of one multiset is three words: its ROOT, the number of DISTINCT values, and their TOTAL number of copies. The root is
0 for an empty multiset, else `2 * (heap offset + 1)`, plus 1 if a directory is present and not a leaf.

    value      key words (`aggregate_keys`), copies
    leaf       values in order; the only leaf of a multiset is as long as its values, a leaf of a directory has room for
               `leaf_capacity` of them
    directory  number of leaves, room for leaves, then per leaf: the key words of its first value, heap offset, number of values

Law: the keys of a multiset are strictly increasing over all leaves, no leaf of a directory is empty, and every number of copies
is above 0.

Cost: a look-up is one binary search in the directory and one in a leaf of at most 4 KiB. Bytes: 16 per distinct number, 32 per
distinct string besides its bytes beyond 8; up to twice that where leaves have been split.
Source: the list of lists of sortedcontainers, with one directory that is searched in place of its index tree.

`match_cells`, `sort_cells`: effect of a delta on the ordered multisets of its groups: sorted, netted, and compared with the
state.

A *cell* is one value of one entry, with the net weight of all its rows and the number of copies before the epoch. The cells of
an entry are in order, `cells[entry] .. cells[entry + 1]`. A cell that would fall below 0 copies means that a row was
retracted that does not exist.

Cost: a scatter by entry, and a merge sort within each; a binary search per cell.

`compare_keys`, `copy_key`: the values of an ordered multiset: what they look like as words, and which comes first.

A value is a run of int64 *key words*, compared in order. Numbers, dates and the like take one word, wide decimals two (see
`zset_join.state.rows.order_words`). A string or binary takes three: its first 8 bytes as a big-endian number with the sign bit
turned over, its length, and the address of its bytes: nothing up to 8 bytes, else a plain address (records of a delta) or an
offset into the arena's heap with the top bit set (records of the state). Strings compare as unsigned bytes, as Spark's do.

`texts` has a bit for each word that begins a string.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

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
from zset_join.kernels.rows.side import allocate_block, block_bytes, free_block
from zset_join.kernels.values.keys import HEAP_BIT

__all__ = [
    "DIRECTORY_HEAD",
    "PREFIX_BYTES",
    "TEXT_WORDS",
    "V_DISTINCT",
    "V_ROOT",
    "V_TOTAL",
    "V_WORDS",
    "compare_keys",
    "copy_key",
    "directory_count",
    "fill_text_keys",
    "first_not_below",
    "free_key",
    "gather_texts",
    "is_directory",
    "leaf_address",
    "leaf_capacity",
    "leaf_count",
    "leaf_line",
    "leaf_of_key",
    "match_cells",
    "move_bytes",
    "own_key",
    "prefetch_values",
    "root_offset",
    "sort_cells",
    "text_bytes_needed",
]

PREFIX_BYTES, TEXT_WORDS = 8, 3

_SIGN = -(1 << 63)


@kernel
def _text_address(text: int, heap: int) -> int:
    """Return the address of a string of more than 8 bytes."""
    location = load_u64(text + 16)
    return heap + (location ^ HEAP_BIT) if location < 0 else location


@kernel
def _compare_texts(left: int, left_heap: int, right: int, right_heap: int) -> int:
    """Compare two strings whose first 8 bytes are the same."""
    left_length, right_length = load_u64(left + 8), load_u64(right + 8)
    if left_length > PREFIX_BYTES and right_length > PREFIX_BYTES:
        left_bytes, right_bytes = _text_address(left, left_heap), _text_address(right, right_heap)
        shorter = min(left_length, right_length)
        position = PREFIX_BYTES
        while position + 8 <= shorter and load_u64(left_bytes + position) == load_u64(right_bytes + position):
            position += 8
        while position < shorter:
            first, second = load_u8(left_bytes + position), load_u8(right_bytes + position)
            if first != second:
                return -1 if first < second else 1
            position += 1
    if left_length == right_length:
        return 0
    return -1 if left_length < right_length else 1


@kernel
def compare_keys(left: int, left_heap: int, right: int, right_heap: int, words: int, texts: int) -> int:
    """Return -1, 0 or 1, as the key at `left` comes before, with or after the one at `right`."""
    if words == 1:
        first, second = load_u64(left), load_u64(right)
        return (1 if first > second else 0) - (1 if first < second else 0)
    return _compare_long_keys(left, left_heap, right, right_heap, words, texts)


@kernel
def _compare_long_keys(left: int, left_heap: int, right: int, right_heap: int, words: int, texts: int) -> int:
    word = 0
    while word < words:
        first, second = load_u64(left + word * 8), load_u64(right + word * 8)
        if first != second:
            return -1 if first < second else 1
        if (texts >> word) & 1:
            order = _compare_texts(left + word * 8, left_heap, right + word * 8, right_heap)
            if order != 0:
                return order
            word += TEXT_WORDS
        else:
            word += 1
    return 0


@kernel
def first_not_below(run: int, count: int, step: int, heap: int, key: int, key_heap: int, words: int, texts: int) -> int:
    """Return the position of the first of `count` sorted keys, `step` bytes apart, that is not below `key`."""
    low, high = 0, count
    if words == 1:
        wanted = load_u64(key)
        while low < high:
            middle = (low + high) >> 1
            if load_u64(run + middle * step) < wanted:
                low = middle + 1
            else:
                high = middle
        return low
    while low < high:
        middle = (low + high) >> 1
        if compare_keys(run + middle * step, heap, key, key_heap, words, texts) < 0:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def copy_key(target: int, source: int, words: int) -> None:
    for word in range(words):
        store_u64(target + word * 8, load_u64(source + word * 8))


@kernel
def text_bytes_needed(key: int, words: int, texts: int) -> int:
    """Return the heap bytes that `own_key` takes."""
    needed = 0
    for word in range(words):
        if (texts >> word) & 1 and load_u64(key + word * 8 + 8) > PREFIX_BYTES:
            needed += block_bytes(load_u64(key + word * 8 + 8))
    return needed


@kernel
def own_key(target: int, source: int, source_heap: int, words: int, texts: int, heap: int, header: int) -> None:
    """Copy a key into the state, its long strings into the heap."""
    copy_key(target, source, words)
    if texts == 0:
        return
    for word in range(words):
        if (texts >> word) & 1:
            length = load_u64(source + word * 8 + 8)
            if length > PREFIX_BYTES:
                offset = allocate_block(heap, header, length)
                copy_bytes(heap + offset, _text_address(source + word * 8, source_heap), length)
                store_u64(target + word * 8 + 16, offset | HEAP_BIT)


@kernel
def free_key(key: int, words: int, texts: int, heap: int, header: int) -> None:
    """Give the heap blocks of a key of the state back."""
    if texts == 0:
        return
    for word in range(words):
        if (texts >> word) & 1:
            length = load_u64(key + word * 8 + 8)
            if length > PREFIX_BYTES:
                free_block(heap, header, load_u64(key + word * 8 + 16) ^ HEAP_BIT, length)


@kernel
def fill_text_keys(
    offsets: int, offset_width: int, values: int, validity: int, start: int, count: int, keys: int, words: int
) -> None:
    """Write the three words of `count` strings of an Arrow array; `keys` is the first, lines have `words` words."""
    # The words of a NULL are 0.
    for index in range(count):
        place = keys + index * words * 8
        position = start + index
        if validity != 0 and (load_u8(validity + shift_right(position, 3)) >> (position & 7)) & 1 == 0:
            begin = 0
            length = 0
        elif offset_width == 4:
            begin = load_u32(offsets + position * 4)
            length = load_u32(offsets + position * 4 + 4) - begin
        else:
            begin = load_u64(offsets + position * 8)
            length = load_u64(offsets + position * 8 + 8) - begin
        prefix = 0
        for at in range(min(length, PREFIX_BYTES)):
            prefix |= load_u8(values + begin + at) << (56 - 8 * at)
        store_u64(place, prefix ^ _SIGN)
        store_u64(place + 8, length)
        store_u64(place + 16, values + begin if length > PREFIX_BYTES else 0)


@kernel
def gather_texts(keys: int, words: int, count: int, valid: int, heap: int, offsets: int, values: int) -> int:
    """Write `count` strings behind each other and return how many bytes they take; with `values` 0 write offsets only."""
    # `keys` is the place of the first string's words, lines have `words` words; `valid` has a byte per string. Offsets are
    # int32, and wrong when the total exceeds 2^31 - 1.
    total = 0
    store_u32(offsets, 0)
    for index in range(count):
        if load_u8(valid + index) != 0:
            text = keys + index * words * 8
            length = load_u64(text + 8)
            if values != 0:
                if length > PREFIX_BYTES:
                    copy_bytes(values + total, _text_address(text, heap), length)
                else:
                    prefix = load_u64(text) ^ _SIGN
                    for at in range(length):
                        store_u8(values + total + at, shift_right(prefix, 56 - 8 * at) & 255)
            total += length
        store_u32(offsets + index * 4 + 4, total)
    return total


V_ROOT, V_DISTINCT, V_TOTAL, V_WORDS = 0, 1, 2, 3
DIRECTORY_HEAD = 16

_LEAF_BYTES = 4096
_LEAST_CAPACITY = 8


@intrinsic
def move_bytes(typing_context: Any, target: Any, source: Any, length: Any) -> tuple[Any, Callable[..., Any]]:
    """Copy `length` bytes between regions that may overlap."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte_pointer = ir.IntType(8).as_pointer()
        pointers = [builder.inttoptr(arg, byte_pointer) for arg in args[:2]]
        cgutils.raw_memmove(builder, *pointers, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@kernel
def leaf_capacity(words: int) -> int:
    """Return how many values a leaf holds at most."""
    return max(_LEAST_CAPACITY, _LEAF_BYTES // (8 * words + 8))


@kernel
def is_directory(root: int) -> bool:
    """Return whether a root points to a directory."""
    return (root & 1) != 0


@kernel
def root_offset(root: int) -> int:
    return (root >> 1) - 1


@kernel
def directory_count(heap: int, root: int) -> int:
    if root == 0:
        return 0
    return load_u64(heap + root_offset(root)) if is_directory(root) else 1


@kernel
def leaf_line(heap: int, root: int, leaf: int, words: int) -> int:
    """Return where the line of a leaf is in its directory."""
    return heap + root_offset(root) + DIRECTORY_HEAD + leaf * (8 * words + 16)


@kernel
def leaf_address(heap: int, root: int, leaf: int, words: int) -> int:
    if is_directory(root):
        return heap + load_u64(leaf_line(heap, root, leaf, words) + words * 8)
    return heap + root_offset(root)


@kernel
def leaf_count(heap: int, root: int, leaf: int, words: int, distinct: int) -> int:
    """Return the number of values in a leaf; `distinct` is the number in the whole multiset."""
    if is_directory(root):
        return load_u64(leaf_line(heap, root, leaf, words) + words * 8 + 8)
    return distinct


@kernel
def leaf_of_key(heap: int, root: int, key: int, key_heap: int, words: int, texts: int) -> int:
    """Return the leaf in which a key is or would be."""
    if not is_directory(root):
        return 0
    count = directory_count(heap, root)
    lines = leaf_line(heap, root, 0, words)
    step = 8 * words + 16
    leaf = first_not_below(lines, count, step, heap, key, key_heap, words, texts)
    if leaf < count and compare_keys(lines + leaf * step, heap, key, key_heap, words, texts) == 0:
        return leaf
    return max(0, leaf - 1)


@kernel
def prefetch_values(heap: int, values: int, words: int) -> None:
    """Request the first, the middle and the last value of a small multiset, for the directory of a large one."""
    root = load_u64(values + V_ROOT * 8)
    if root != 0:
        block = heap + root_offset(root)
        prefetch(block)
        if not is_directory(root):
            size = load_u64(values + V_DISTINCT * 8) * (8 * words + 8)
            prefetch(block + (size >> 1))
            prefetch(block + size - 8)


@kernel
def find_value(heap: int, values: int, distinct: int, key: int, words: int, texts: int) -> int:
    """Return how many copies of a key (of a delta) the multiset at `values` has."""
    root = load_u64(values + V_ROOT * 8)
    if root == 0:
        return 0
    leaf = leaf_of_key(heap, root, key, 0, words, texts)
    run = leaf_address(heap, root, leaf, words)
    count = leaf_count(heap, root, leaf, words, distinct)
    step = 8 * words + 8
    place = first_not_below(run, count, step, heap, key, 0, words, texts)
    if place < count and compare_keys(run + place * step, heap, key, 0, words, texts) == 0:
        return load_u64(run + place * step + words * 8)
    return 0


_RUN = 12
_AHEAD = 8


@kernel
def _sort_run(order: Any, begin: int, end: int, keys: int, words: int, texts: int) -> None:
    """Sort a short run of rows by their keys, by insertion."""
    for index in range(begin + 1, end):
        row = order[index]
        key = keys + row * words * 8
        place = index
        while place > begin and compare_keys(keys + order[place - 1] * words * 8, 0, key, 0, words, texts) > 0:
            order[place] = order[place - 1]
            place -= 1
        order[place] = row


@kernel
def _merge_runs(source: Any, target: Any, begin: int, middle: int, end: int, keys: int, words: int, texts: int) -> None:
    left, right = begin, middle
    for place in range(begin, end):
        if left < middle and (
            right >= end
            or compare_keys(keys + source[left] * words * 8, 0, keys + source[right] * words * 8, 0, words, texts) <= 0
        ):
            target[place] = source[left]
            left += 1
        else:
            target[place] = source[right]
            right += 1


@kernel
def _sort_slice(order: Any, spare: Any, begin: int, end: int, keys: int, words: int, texts: int) -> None:
    """Sort the rows `order[begin:end]` by their keys, in place."""
    position = begin
    while position < end:
        _sort_run(order, position, min(position + _RUN, end), keys, words, texts)
        position += _RUN
    width = _RUN
    in_spare = False
    while width < end - begin:
        position = begin
        while position < end:
            middle, last = min(position + width, end), min(position + 2 * width, end)
            if in_spare:
                _merge_runs(spare, order, position, middle, last, keys, words, texts)
            else:
                _merge_runs(order, spare, position, middle, last, keys, words, texts)
            position = last
        in_spare = not in_spare
        width *= 2
    if in_spare:
        for place in range(begin, end):
            order[place] = spare[place]


@kernel
def sort_cells(
    entries: int,
    count: int,
    entry_of: Any,
    weights: Any,
    valid: Any,
    keys: int,
    words: int,
    texts: int,
    cells: Any,
    order: Any,
    spare: Any,
    cell_of: Any,
    cell_keys: int,
    cell_weights: Any,
) -> int:
    """Net the rows of a delta into cells; return how many there are."""
    # Rows that are not `valid` or have weight 0 get cell -1. `cells` has a word per entry and two more.
    for entry in range(entries + 2):
        cells[entry] = 0
    for index in range(count):
        if valid[index] != 0 and weights[index] != 0:
            cells[entry_of[index] + 2] += 1
    for entry in range(entries):
        cells[entry + 2] += cells[entry + 1]
    for index in range(count):
        cell_of[index] = -1
        if valid[index] != 0 and weights[index] != 0:
            entry = entry_of[index]
            order[cells[entry + 1]] = index
            cells[entry + 1] += 1
    cell_count = 0
    begin = 0
    for entry in range(entries):
        end = cells[entry + 1]
        cells[entry] = cell_count
        if end - begin > 1:
            _sort_slice(order, spare, begin, end, keys, words, texts)
        for place in range(begin, end):
            row = order[place]
            key = keys + row * words * 8
            if place == begin or compare_keys(cell_keys + (cell_count - 1) * words * 8, 0, key, 0, words, texts) != 0:
                copy_key(cell_keys + cell_count * words * 8, key, words)
                cell_weights[cell_count] = 0
                cell_count += 1
            cell_weights[cell_count - 1] += weights[row]
            cell_of[row] = cell_count - 1
        begin = end
    cells[entries] = cell_count
    return cell_count


@kernel
def match_cells(
    heap: int,
    entries: int,
    line_words: int,
    at: int,
    after: int,
    cells: Any,
    cell_keys: int,
    cell_weights: Any,
    cell_before: Any,
    words: int,
    texts: int,
) -> bool:
    """Look every cell up and bring the counts of the touched multisets up to date; return whether a cell falls below 0."""
    # `after` still holds what the multisets were before; their roots stay as they are.
    below = False
    for entry in range(entries):
        if entry + _AHEAD < entries and cells[entry + _AHEAD] < cells[entry + _AHEAD + 1]:
            prefetch_values(heap, after + ((entry + _AHEAD) * line_words + at) * 8, words)
        values = after + (entry * line_words + at) * 8
        distinct, total = 0, 0
        known = load_u64(values + V_DISTINCT * 8)
        for cell in range(cells[entry], cells[entry + 1]):
            net = cell_weights[cell]
            copies = find_value(heap, values, known, cell_keys + cell * words * 8, words, texts)
            cell_before[cell] = copies
            below |= copies + net < 0
            distinct += (1 if copies + net > 0 else 0) - (1 if copies > 0 else 0)
            total += net
        store_u64(values + V_DISTINCT * 8, known + distinct)
        store_u64(values + V_TOTAL * 8, load_u64(values + V_TOTAL * 8) + total)
    return below
