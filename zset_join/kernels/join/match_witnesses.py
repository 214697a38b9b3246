"""Of which join keys some row is in memory that an epoch does not change, and one row each of those of which there is none.

Only whether a key has rows matters there, so that any one row that stays represents all of its key.

The keys that an epoch changes are named by records, ascending by hash: that of a delta by its address, that of a row in memory,
which may move, by its number below 0.
"""

from __future__ import annotations

from typing import Any

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u32
from zset_join.kernels.rows.side import HEAP, JOIN_BITS, JOIN_SLOTS, ROWS, STRIDE, word
from zset_join.kernels.rows.slots import find_key
from zset_join.kernels.values.columns import NEXT
from zset_join.kernels.values.keys import equal_columns

__all__ = ["choose_witnesses", "mark_lacking", "record_witnesses"]


@kernel
def _first_at_least(number: int, numbers: Any) -> int:
    """Return the position of the first of some numbers, which ascend, that is not below one."""
    begin, end = 0, len(numbers)
    while begin < end:
        middle = (begin + end) // 2
        if numbers[middle] < number:
            begin = middle + 1
        else:
            end = middle
    return begin


@kernel
def _is_among(number: int, numbers: Any) -> bool:
    """Return whether a number is one of some, which ascend."""
    at = _first_at_least(number, numbers)
    return at < len(numbers) and numbers[at] == number


@kernel
def _record(view: int, name: int) -> int:
    """Return the address of the record that names a key."""
    return name if name > 0 else word(view, ROWS) + (-name - 1) * word(view, STRIDE)


@kernel
def _is_at(view: int, own_columns: int, code: int, ref: int, heap: int, columns: int, replaced: Any) -> bool:
    """Return whether a row with the key of a record is in memory that stays. Cost: those of the key that do not, at most."""
    rows, stride = word(view, ROWS), word(view, STRIDE)
    slots, bits = word(view, JOIN_SLOTS), word(view, JOIN_BITS)
    number = find_key(slots, bits, code, ref, heap, columns, rows, stride, word(view, HEAP), own_columns)
    while number != 0:
        if not _is_among(number, replaced):
            return True
        number = load_u32(rows + (number - 1) * stride + NEXT)
    return False


@kernel
def mark_lacking(
    view: int, own_columns: int, of: int, columns: int, codes: Any, names: Any, replaced: Any, lacking: Any
) -> None:
    """Mark a record of each key of which no row is in memory that stays."""
    # `view` is the side whose rows are looked at, `of` the side whose changes name the keys. `names` are records by their hash,
    # which ascends in `codes`; `replaced` are ascending numbers of rows that the epoch replaces or retracts.
    heap = word(of, HEAP)
    for at in range(len(codes)):
        ref = _record(of, names[at])
        if at and codes[at - 1] == codes[at] and equal_columns(ref, heap, columns, _record(of, names[at - 1]), heap, columns):
            lacking[at] = False
        else:
            lacking[at] = not _is_at(view, own_columns, codes[at], ref, heap, columns, replaced)


@kernel
def choose_witnesses(
    view: int, columns: int, codes: Any, refs: Any, order: Any, replaced: Any, firsts: Any, chosen: Any
) -> None:
    """Mark one record of each key among rows of a side, and choose it where no row of the key is in memory that stays."""
    # `refs` are record addresses, `order` their positions by hash. `firsts` gets a flag for the first record of each key,
    # `chosen` for each that is to come into memory.
    heap = word(view, HEAP)
    begin = 0
    for at in range(len(order)):
        index = order[at]
        if codes[order[begin]] != codes[index]:
            begin = at
        back = at - 1
        while back >= begin and not equal_columns(refs[index], heap, columns, refs[order[back]], heap, columns):
            back -= 1
        firsts[index] = back < begin
        chosen[index] = back < begin and not _is_at(view, columns, codes[index], refs[index], heap, columns, replaced)


@kernel
def record_witnesses(
    view: int,
    own_columns: int,
    codes: Any,
    refs: Any,
    order: Any,
    firsts: Any,
    of: int,
    columns: int,
    key_codes: Any,
    names: Any,
    lacking: Any,
) -> None:
    """Take the mark from the keys of which a row was found; arguments as those of `mark_lacking` and `choose_witnesses`."""
    heap, own_heap = word(of, HEAP), word(view, HEAP)
    key = 0 if len(order) == 0 else _first_at_least(codes[order[0]], key_codes)
    for at in range(len(order)):
        index = order[at]
        if not firsts[index]:
            continue
        while key < len(key_codes) and key_codes[key] < codes[index]:
            key += 1
        one = key
        while one < len(key_codes) and key_codes[one] == codes[index]:
            if lacking[one] and equal_columns(refs[index], own_heap, own_columns, _record(of, names[one]), heap, columns):
                lacking[one] = False
            one += 1
