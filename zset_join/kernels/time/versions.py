"""Which version is valid when: before an epoch, and after it.

The version of a time is the last entry of the key's run at or before it; after an epoch that of the run without what was taken
back, or of the new rows of its group, whichever is later in order. A DELETE is a version that matches nothing: 0 is returned.

A *transition* is what a left row was joined with and what it is joined with: addresses of right rows, 0 for nothing,
-1 where the left row itself is absent.
"""

from __future__ import annotations

from typing import Any

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u8, load_u32, load_u64, prefetch
from zset_join.kernels.rows.side import HEAP, SEQUENCE_OFFSET, SEQUENCE_WORDS, STRIDE, word
from zset_join.kernels.time.groups import compare_words, group_of_code
from zset_join.kernels.time.runs import (
    ENTRY,
    FLAG_DELETE,
    FLAG_PRECEDED,
    NEVER,
    entries_until,
    key_address,
    row_address,
    run_base,
    run_length,
)
from zset_join.kernels.values.keys import FLAGS, HASH, WEIGHT, equal_columns

__all__ = [
    "change_probes",
    "is_gone",
    "look_up",
    "mark_late_versions",
    "mark_unanswerable",
    "probe_changes",
    "rows_of_waiting",
    "rows_until",
    "weight_left",
]

_ABSENT = -1
_AHEAD = 8


@kernel
def weight_left(row: int, removed_at: Any, removed_weight: Any, begin: int, end: int, position: int) -> int:
    """Return the weight of an entry of a run after the epoch."""
    low, high = begin, end
    while low < high:
        middle = (low + high) >> 1
        if removed_at[middle] < position:
            low = middle + 1
        else:
            high = middle
    weight = load_u64(row + WEIGHT)
    return weight - removed_weight[low] if low < end and removed_at[low] == position else weight


@kernel
def is_gone(row: int, removed_at: Any, removed_weight: Any, begin: int, end: int, position: int) -> bool:
    """Return whether an entry of a run has no weight left after the epoch."""
    return bool(weight_left(row, removed_at, removed_weight, begin, end, position) <= 0)


@kernel
def rows_until(words: int, stride: int, order: Any, begin: int, end: int, time: int) -> int:
    """Return the place behind the last new row of a group with a time of at most `time`; `words` are those of the first row."""
    low, high = begin, end
    while low < high:
        middle = (low + high) >> 1
        if load_u64(words + order[middle] * stride) <= time:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _before(keys: int, at: int, side: int, number: int, time: int) -> int:
    """Return the version of a time before the epoch, 0 for none; one of a DELETE has its lowest bit set."""
    if number == 0:
        return 0
    key = key_address(keys, number)
    base = run_base(keys, key, at)
    position = entries_until(base, run_length(key, at), time) - 1
    if position < 0:
        return 0
    row = row_address(side, load_u64(base + ENTRY * position + 8))
    return row | 1 if load_u8(row + FLAGS) & FLAG_DELETE else row


@kernel
def _after(
    keys: int,
    at: int,
    side: int,
    number: int,
    group: int,
    rows: int,
    left: Any,
    deletes: Any,
    begin: Any,
    order: Any,
    removed_begin: Any,
    removed_at: Any,
    removed_weight: Any,
    time: int,
    position: int,
) -> int:
    """Return the version of a time after the epoch, 0 for none; one of a DELETE has its lowest bit set."""
    # `position` is that of the last entry of the key's run at or before the time, below 0 for none.
    version, words_at = 0, word(side, SEQUENCE_OFFSET)
    if number != 0:
        base = run_base(keys, key_address(keys, number), at)
        while position >= 0:
            row = row_address(side, load_u64(base + ENTRY * position + 8))
            if group < 0 or not is_gone(
                row, removed_at, removed_weight, removed_begin[group], removed_begin[group + 1], position
            ):
                version = row | 1 if load_u8(row + FLAGS) & FLAG_DELETE else row
                break
            position -= 1
    if group < 0:
        return version
    stride = word(side, STRIDE)
    place = rows_until(rows + words_at, stride, order, begin[group], begin[group + 1], time) - 1
    while place >= begin[group] and left[order[place]] <= 0:
        place -= 1
    if place < begin[group]:
        return version
    row = rows + order[place] * stride
    if version == 0 or compare_words(row + words_at, (version & -2) + words_at, word(side, SEQUENCE_WORDS)) > 0:
        return row | 1 if deletes[order[place]] else row
    return version


@kernel
def _within(side: int, version: int, time: int, reach: int) -> int:
    """Return a version if it is no DELETE and not further away than `reach`, else 0."""
    if version == 0 or version & 1 or reach < 0:
        return 0
    if reach != NEVER:
        own = load_u64(version + word(side, SEQUENCE_OFFSET))
        if own <= NEVER - reach and own + reach < time:
            return 0
    return version


@kernel
def look_up(
    keys: int,
    at: int,
    side: int,
    refs: Any,
    key_numbers: Any,
    group_of: Any,
    count: int,
    time_at: int,
    rows: int,
    left: Any,
    deletes: Any,
    begin: Any,
    order: Any,
    removed_begin: Any,
    removed_at: Any,
    removed_weight: Any,
    reach: int,
    found: Any,
) -> None:
    """Write for each left row the version of its time after the epoch."""
    # `refs` are record addresses, with the time `time_at` bytes in; `key_numbers` the number of the key in the state (0: new)
    # and `group_of` its group in this epoch (-1: none).
    for step in range(count + 2 * _AHEAD):
        if step < count and key_numbers[step] != 0:
            key = key_address(keys, key_numbers[step])
            prefetch(key)
            prefetch(key + 63)
        middle = step - _AHEAD
        if middle >= 0 and middle < count and key_numbers[middle] != 0:
            key = key_address(keys, key_numbers[middle])
            prefetch(run_base(keys, key, at))
            prefetch(run_base(keys, key, at) + ENTRY * (run_length(key, at) >> 1))
        near = step - _AHEAD - _AHEAD // 2
        if near >= 0 and near < count:
            found[near] = -1
            if key_numbers[near] != 0:
                key = key_address(keys, key_numbers[near])
                base = run_base(keys, key, at)
                found[near] = entries_until(base, run_length(key, at), load_u64(refs[near] + time_at)) - 1
                if found[near] >= 0:
                    prefetch(row_address(side, load_u64(base + ENTRY * found[near] + 8)))
        index = step - 2 * _AHEAD
        if index < 0:
            continue
        if key_numbers[index] == 0 and group_of[index] < 0:
            found[index] = 0
            continue
        time = load_u64(refs[index] + time_at)
        version = _after(
            keys,
            at,
            side,
            key_numbers[index],
            group_of[index],
            rows,
            left,
            deletes,
            begin,
            order,
            removed_begin,
            removed_at,
            removed_weight,
            time,
            found[index],
        )
        found[index] = _within(side, version, time, reach)


@kernel
def rows_of_waiting(
    keys: int,
    waiting: int,
    row_numbers: Any,
    count: int,
    table: Any,
    bits: int,
    numbers: Any,
    refs: Any,
    key_numbers: Any,
    group_of: Any,
    weights: Any,
) -> None:
    """Write record, key number, group and weight of rows that wait; they name their key in the field of the hash."""
    for index in range(count):
        row = row_address(waiting, row_numbers[index])
        refs[index] = row
        number = load_u32(row + HASH)
        key_numbers[index] = number
        weights[index] = load_u64(row + WEIGHT)
        group = -1
        if number != 0 and len(numbers) > 0:
            group = group_of_code(table, bits, numbers, load_u32(key_address(keys, number) + HASH), number)
        group_of[index] = group


@kernel
def mark_late_versions(
    keys: int,
    at: int,
    side: int,
    numbers: Any,
    group_of: Any,
    times: Any,
    weights: Any,
    count: int,
    retracts: bool,
    horizon: int,
    status: Any,
    late: int,
    correction: int,
) -> int:
    """Mark versions at or before the horizon that change nothing any more; return how many others there are."""
    # A version older than one that is kept for its key, at or before the horizon too, gets the status `late`; a retraction
    # the status `correction`.
    accepted = 0
    for index in range(count):
        if status[index] != 0 or times[index] > horizon:
            continue
        if retracts and weights[index] < 0:
            status[index] = correction
            continue
        number = numbers[group_of[index]]
        if number != 0:
            key = key_address(keys, number)
            base = run_base(keys, key, at)
            kept = entries_until(base, run_length(key, at), horizon) - 1
            if kept >= 0 and load_u64(base + ENTRY * kept) > times[index]:
                status[index] = late
                continue
        accepted += 1
    return accepted


@kernel
def mark_unanswerable(
    keys: int,
    at: int,
    side: int,
    numbers: Any,
    group_of: Any,
    times: Any,
    count: int,
    horizon: int,
    forgotten: int,
    status: Any,
    late: int,
) -> None:
    """Give late left rows the status `late` where the version of their time may have been freed."""
    # It cannot be where it is the newest one up to the horizon, which every key keeps, nor where that is the only one the key
    # ever had up to there; what else is still there depends on when the key was last looked at. A key without a version up to
    # the horizon never had one, unless it ended with a DELETE that was forgotten: `forgotten` is the newest time of these,
    # from which on nothing was valid.
    for index in range(count):
        if status[index] != 0 or times[index] > horizon:
            continue
        number, kept, until, is_first = numbers[group_of[index]], 0, 0, True
        if number != 0:
            key = key_address(keys, number)
            base, length = run_base(keys, key, at), run_length(key, at)
            kept, until = entries_until(base, length, horizon), entries_until(base, length, times[index])
            if kept > 0:
                is_preceded = load_u8(row_address(side, load_u64(base + 8)) + FLAGS) & FLAG_PRECEDED
                is_first = not is_preceded and load_u64(base) == load_u64(base + ENTRY * (kept - 1))
        if (until != kept and (until > 0 or not is_first)) or (until == 0 and times[index] < forgotten):
            status[index] = late


@kernel
def change_probes(
    keys: int,
    at: int,
    side: int,
    columns: int,
    probe_at: int,
    probe_side: int,
    numbers: Any,
    groups: int,
    rows: int,
    left: Any,
    deletes: Any,
    begin: Any,
    order: Any,
    removed_begin: Any,
    removed_at: Any,
    removed_weight: Any,
    probe_removed_begin: Any,
    probe_removed_at: Any,
    probe_removed_weight: Any,
    reach: int,
    refs: Any,
    befores: Any,
    afters: Any,
    weights: Any,
) -> int:
    """Write the transitions of left rows that stay, where the version of their time changes; return how many there are."""
    # Between two versions in a row, of the state or new, the version does not change: so each changed time represents the
    # left rows from it up to the next one, and no left row is met twice. What `refs` has no room for is counted only.
    stride, words_at = word(side, STRIDE), word(side, SEQUENCE_OFFSET)
    room, lines = len(refs), 0
    for group in range(groups):
        number = numbers[group]
        place, end = begin[group], begin[group + 1]
        removed, removed_end = removed_begin[group], removed_begin[group + 1]
        if number == 0 or (place == end and removed == removed_end):
            continue
        key = key_address(keys, number)
        probes = run_length(key, probe_at)
        if probes == 0:
            continue
        probe_base = run_base(keys, key, probe_at)
        base, length = run_base(keys, key, at), run_length(key, at)
        while place < end or removed < removed_end:
            time = NEVER
            if place < end:
                time = load_u64(rows + order[place] * stride + words_at)
            if removed < removed_end:
                time = min(time, load_u64(base + ENTRY * removed_at[removed]))
            while place < end and load_u64(rows + order[place] * stride + words_at) == time:
                place += 1
            while removed < removed_end and load_u64(base + ENTRY * removed_at[removed]) == time:
                removed += 1
            until = NEVER  # the first time behind this one at which there is another version, before or after the epoch
            if place < end:
                until = load_u64(rows + order[place] * stride + words_at)
            following = entries_until(base, length, time)
            if following < length:
                until = min(until, load_u64(base + ENTRY * following))
            before = _before(keys, at, side, number, time)
            after = _after(
                keys,
                at,
                side,
                number,
                group,
                rows,
                left,
                deletes,
                begin,
                order,
                removed_begin,
                removed_at,
                removed_weight,
                time,
                following - 1,
            )
            if before == after or (before & 1 and after & 1) or (before & 1 and after == 0) or (before == 0 and after & 1):
                continue
            if before != 0 and after != 0 and before & 1 == 0 and after & 1 == 0:
                if equal_columns(before, word(side, HEAP), columns, after, word(side, HEAP), columns):
                    continue
            position = entries_until(probe_base, probes, time - 1) if time > -NEVER else 0
            while position < probes:
                probe_time = load_u64(probe_base + ENTRY * position)
                if probe_time >= until and until != NEVER:
                    break
                row = row_address(probe_side, load_u64(probe_base + ENTRY * position + 8))
                was, now = _within(side, before, probe_time, reach), _within(side, after, probe_time, reach)
                if was != now:
                    low, high = probe_removed_begin[group], probe_removed_begin[group + 1]
                    weight = weight_left(row, probe_removed_at, probe_removed_weight, low, high, position)
                    if weight > 0:
                        if lines < room:
                            refs[lines] = row
                            befores[lines] = was
                            afters[lines] = now
                            weights[lines] = weight
                        lines += 1
                position += 1
    return lines


@kernel
def probe_changes(
    keys: int,
    at: int,
    side: int,
    probe_at: int,
    probe_side: int,
    numbers: Any,
    groups: int,
    removed_begin: Any,
    removed_at: Any,
    removed_weight: Any,
    reach: int,
    refs: Any,
    befores: Any,
    afters: Any,
    weights: Any,
) -> int:
    """Write the transitions of left rows that were retracted, and what they were joined with; return how many there are."""
    lines = 0
    for group in range(groups):
        if removed_begin[group] == removed_begin[group + 1]:
            continue
        key = key_address(keys, numbers[group])
        base = run_base(keys, key, probe_at)
        for place in range(removed_begin[group], removed_begin[group + 1]):
            position = removed_at[place]
            time = load_u64(base + ENTRY * position)
            refs[lines] = row_address(probe_side, load_u64(base + ENTRY * position + 8))
            befores[lines] = _within(side, _before(keys, at, side, numbers[group], time), time, reach)
            afters[lines] = _ABSENT
            weights[lines] = removed_weight[place]
            lines += 1
    return lines
