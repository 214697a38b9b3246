"""Effect of a delta on the ordered multisets of its groups: sorted, netted, and compared with the state.

A *cell* is one value of one entry, with the net weight of all its rows and the number of copies before the epoch. The cells of
an entry are in order, `cells[entry] .. cells[entry + 1]`. A cell that would fall below 0 copies means that a row was
retracted that does not exist.

Cost: a scatter by entry, and a merge sort within each; a binary search per cell.
"""

from __future__ import annotations

from typing import Any

from zset_join.kernels.aggregate.keys import compare_keys, copy_key
from zset_join.kernels.aggregate.tree import V_DISTINCT, V_TOTAL, find_value, prefetch_values
from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u64, store_u64

__all__ = ["match_cells", "sort_cells"]

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
