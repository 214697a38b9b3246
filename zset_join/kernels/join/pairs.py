"""The rows of a join's answer, as pairs of record addresses.

The law: a pair (l, r) changes by `l_after * r_after - l_before * r_before`. With U the unchanged rows of a key and C its
changes, three products cover every pair once: C_left x U_right, C_left x C_right, U_left x C_right. This is
`dL x R_before + L_after x dR` with the terms that cancel omitted, so a pair never comes out twice in one epoch.

*One-sided* rows are what outer, semi and anti joins emit for one row alone. With `missing` = "has no match":

    padded / anti:  l_after * missing_after - l_before * missing_before
    semi:           l_after * matched_after - l_before * matched_before

Every kernel here writes until the output is full, keeps its place in `cursor` (the address of six words), and is called
again; `sign` chooses the retractions (-1), the insertions (+1) or both (0). A weight past int64 ends it with OVERFLOW in the
first word of the cursor. Everything else is in the epoch view (`zset_join.kernels.rows.side`).

Cost: the changes, plus the pairs and rows that come out.
"""

from __future__ import annotations

from zset_join.kernels.join.groups import in_changed_set
from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import copy_bytes, load_u32, load_u64, prefetch, store_u64
from zset_join.kernels.rows.side import (
    BLOCK_ROWS,
    E_AFTER,
    E_BEFORE,
    E_BLOCK,
    E_CAPACITY,
    E_FAN_OUT,
    E_FAN_OUT_REF,
    E_FAN_OUT_SIDE,
    E_GROUP_REFS,
    E_GROUP_SIDES,
    E_GROUPS,
    E_NEXT_CHANGE,
    E_OUT_WEIGHTS,
    E_REFS,
    ROWS,
    S_CHANGED,
    S_COUNT,
    S_DEGREES_AFTER,
    S_DEGREES_BEFORE,
    S_FIRST,
    S_HEAD,
    S_OUT,
    S_OUT_CHANGE,
    S_VIEW,
    STRIDE,
    of_change,
    side_word,
    word,
)
from zset_join.kernels.values.keys import NEXT, WEIGHT

__all__ = [
    "OVERFLOW",
    "SHOWN_MATCHED",
    "SHOWN_UNMATCHED",
    "emit_one_sided_rows",
    "emit_pairs",
    "is_wanted",
    "overflows",
    "partition_by_sign",
]

OVERFLOW = -7
SHOWN_UNMATCHED, SHOWN_MATCHED = 1, 2

_AHEAD = 32
_SMALL = 1 << 31
_MAX_WEIGHT = 0x7FFFFFFFFFFFFFFF


@kernel
def _keep(cursor: int, position: int, value: int) -> None:
    store_u64(cursor + position * 8, value)


@kernel
def overflows(left: int, right: int) -> bool:
    """Return whether the product of two weights leaves int64."""
    if -_SMALL < left < _SMALL and -_SMALL < right < _SMALL:
        return False
    if left == 0 or right == 0:
        return False
    limit = _MAX_WEIGHT // abs(right)
    return left > limit or left < -limit


@kernel
def is_wanted(weight: int, sign: int) -> bool:
    """Return whether a weight belongs to the retractions (-1), the insertions (+1) or either (0)."""
    if sign > 0:
        return weight > 0
    if sign < 0:
        return weight < 0
    return weight != 0


@kernel
def _load_block(epoch: int, side: int, position: int) -> tuple[int, int, int]:
    """Copy addresses and weights of up to BLOCK_ROWS unchanged rows of a side's chain, from row number `position` on."""
    # The result is how many, where the chain continues (0: it ends), and the largest weight.
    view = side_word(epoch, side, S_VIEW)
    rows, stride = word(view, ROWS), word(view, STRIDE)
    marks, check = side_word(epoch, side, S_CHANGED), side_word(epoch, side, S_COUNT) != 0
    block = word(epoch, E_BLOCK)
    count = 0
    largest = 0
    while position != 0 and count < BLOCK_ROWS:
        row = rows + (position - 1) * stride
        following = load_u32(row + NEXT)
        if following != 0:
            prefetch(rows + (following - 1) * stride)
        if not check or not in_changed_set(position, marks):
            weight = load_u64(row + WEIGHT)
            store_u64(block + count * 8, row)
            store_u64(block + (BLOCK_ROWS + count) * 8, weight)
            largest = max(largest, weight)
            count += 1
        position = following
    return count, position, largest


@kernel
def _pair_chain(epoch: int, group: int, own: int, sign: int, cursor: int, at: int) -> int:
    """Pair the changes of side `own` of a group with the unchanged rows of the other side's chain."""
    # Words 2, 3, 4 of the cursor are the change (-1: first), the first row of the block (-1: head) and the position inside
    # it; -1, -1, 0 when the chain is done. A chain is read once per block of rows, however many changes meet it.
    other = 1 - own
    next_change, refs = word(epoch, E_NEXT_CHANGE), word(epoch, E_REFS)
    before, after = word(epoch, E_BEFORE), word(epoch, E_AFTER)
    capacity, block, out_weights = word(epoch, E_CAPACITY), word(epoch, E_BLOCK), word(epoch, E_OUT_WEIGHTS)
    out_own, out_other = side_word(epoch, own, S_OUT), side_word(epoch, other, S_OUT)
    own_change, other_change = side_word(epoch, own, S_OUT_CHANGE), side_word(epoch, other, S_OUT_CHANGE)
    change, begin, inside = word(cursor, 2), word(cursor, 3), word(cursor, 4)
    if begin == -1:
        begin = word(side_word(epoch, other, S_HEAD), group)
    while begin != 0:
        count, following, largest = _load_block(epoch, other, begin)
        if change == -1:
            change = word(side_word(epoch, own, S_FIRST), group)
        while change >= 0:
            delta = of_change(after, change) - of_change(before, change)
            if is_wanted(delta, sign):
                if overflows(delta, largest):
                    _keep(cursor, 0, OVERFLOW)
                    return at
                ref = of_change(refs, change)
                end = min(count, inside + capacity - at)
                for index in range(inside, end):
                    place = (at + index - inside) * 8
                    store_u64(out_own + place, ref)
                    store_u64(out_other + place, word(block, index))
                    store_u64(out_weights + place, delta * word(block, BLOCK_ROWS + index))
                if own_change != 0:
                    for index in range(inside, end):
                        store_u64(own_change + (at + index - inside) * 8, change)
                        store_u64(other_change + (at + index - inside) * 8, -1)
                at += end - inside
                if end < count:
                    _keep(cursor, 2, change)
                    _keep(cursor, 3, begin)
                    _keep(cursor, 4, end)
                    return at
            inside = 0
            change = of_change(next_change, change)
        change = -1
        begin = following
    _keep(cursor, 2, -1)
    _keep(cursor, 3, -1)
    _keep(cursor, 4, 0)
    return at


@kernel
def _pair_changes(epoch: int, group: int, sign: int, cursor: int, at: int) -> int:
    """Pair the changes of both sides of a group; words 2 and 3 of the cursor are the left and the right change (-1: first)."""
    next_change, refs = word(epoch, E_NEXT_CHANGE), word(epoch, E_REFS)
    before, after = word(epoch, E_BEFORE), word(epoch, E_AFTER)
    out_left_change = side_word(epoch, 0, S_OUT_CHANGE)
    change, partner = word(cursor, 2), word(cursor, 3)
    if change == -1:
        change = word(side_word(epoch, 0, S_FIRST), group)
    while change >= 0:
        own_before, own_after = of_change(before, change), of_change(after, change)
        if (sign < 0 and own_before == 0) or (sign > 0 and own_after == 0):
            change = of_change(next_change, change)
            continue
        if partner == -1:
            partner = word(side_word(epoch, 1, S_FIRST), group)
        while partner >= 0:
            if overflows(own_after, of_change(after, partner)) or overflows(own_before, of_change(before, partner)):
                _keep(cursor, 0, OVERFLOW)
                return at
            weight = own_after * of_change(after, partner) - own_before * of_change(before, partner)
            if is_wanted(weight, sign):
                if at == word(epoch, E_CAPACITY):
                    _keep(cursor, 2, change)
                    _keep(cursor, 3, partner)
                    return at
                store_u64(side_word(epoch, 0, S_OUT) + at * 8, of_change(refs, change))
                store_u64(side_word(epoch, 1, S_OUT) + at * 8, of_change(refs, partner))
                store_u64(word(epoch, E_OUT_WEIGHTS) + at * 8, weight)
                if out_left_change != 0:
                    store_u64(out_left_change + at * 8, change)
                    store_u64(side_word(epoch, 1, S_OUT_CHANGE) + at * 8, partner)
                at += 1
            partner = of_change(next_change, partner)
        change = of_change(next_change, change)
    _keep(cursor, 2, -1)
    _keep(cursor, 3, -1)
    return at


@kernel
def _pair_one_row(
    change: int,
    row: int,
    next_change: int,
    refs: int,
    before: int,
    after: int,
    sign: int,
    at: int,
    capacity: int,
    out_own: int,
    out_other: int,
    out_weights: int,
) -> tuple[int, int]:
    """Pair changes with a chain of one row of weight 1, the commonest case; return the output's end and the change left."""
    # The change is -1 when all are done.
    while change >= 0:
        delta = of_change(after, change) - of_change(before, change)
        if is_wanted(delta, sign):
            if at == capacity:
                return at, change
            store_u64(out_own + at * 8, of_change(refs, change))
            store_u64(out_other + at * 8, row)
            store_u64(out_weights + at * 8, delta)
            at += 1
        change = of_change(next_change, change)
    return at, -1


@kernel
def partition_by_sign(
    left: int, right: int, weights: int, count: int, spare_left: int, spare_right: int, spare_weights: int
) -> int:
    """Bring the retractions of `count` output rows to the front, each part in its order; return how many there are."""
    # The spare arrays have room for `count` words each. Cost: 48 bytes moved per insertion, 24 per retraction.
    kept = 0
    moved = 0
    for index in range(count):
        weight = word(weights, index)
        if weight < 0:
            store_u64(left + kept * 8, word(left, index))
            store_u64(right + kept * 8, word(right, index))
            store_u64(weights + kept * 8, weight)
            kept += 1
        else:
            store_u64(spare_left + moved * 8, word(left, index))
            store_u64(spare_right + moved * 8, word(right, index))
            store_u64(spare_weights + moved * 8, weight)
            moved += 1
    copy_bytes(left + kept * 8, spare_left, moved * 8)
    copy_bytes(right + kept * 8, spare_right, moved * 8)
    copy_bytes(weights + kept * 8, spare_weights, moved * 8)
    return kept


@kernel
def emit_pairs(epoch: int, sign: int, cursor: int, filled: int) -> int:
    """Append changed pairs at `filled`; return how far the output is filled. Done when the cursor's group is E_GROUPS."""
    # The cursor is: group, step (0: C_left x U_right, 1: C_left x C_right, 2: U_left x C_right), the place inside the step in
    # three words, and how many rows of the group are out already. The change positions are written only where their addresses
    # are not 0.
    groups = word(epoch, E_GROUPS)
    group, step = word(cursor, 0), word(cursor, 1)
    first_left, first_right = side_word(epoch, 0, S_FIRST), side_word(epoch, 1, S_FIRST)
    head_left, head_right = side_word(epoch, 0, S_HEAD), side_word(epoch, 1, S_HEAD)
    left_view, right_view = side_word(epoch, 0, S_VIEW), side_word(epoch, 1, S_VIEW)
    left_rows, left_stride = word(left_view, ROWS), word(left_view, STRIDE)
    right_rows, right_stride = word(right_view, ROWS), word(right_view, STRIDE)
    next_change, refs = word(epoch, E_NEXT_CHANGE), word(epoch, E_REFS)
    before, after = word(epoch, E_BEFORE), word(epoch, E_AFTER)
    out_left, out_right = side_word(epoch, 0, S_OUT), side_word(epoch, 1, S_OUT)
    out_weights, capacity = word(epoch, E_OUT_WEIGHTS), word(epoch, E_CAPACITY)
    marks_right, check_right = side_word(epoch, 1, S_CHANGED), side_word(epoch, 1, S_COUNT) != 0
    plain = side_word(epoch, 0, S_OUT_CHANGE) == 0
    at = filled
    resumed = word(cursor, 2) != -1
    began = at - word(cursor, 5)
    most = word(epoch, E_FAN_OUT)
    while group < groups:
        ahead = min(group + _AHEAD, groups - 1)
        if word(head_right, ahead) != 0:
            prefetch(right_rows + (word(head_right, ahead) - 1) * right_stride)
        if word(head_left, ahead) != 0:
            prefetch(left_rows + (word(head_left, ahead) - 1) * left_stride)
        ahead = min(group + _AHEAD * 3 // 4, groups - 1)
        if word(first_right, ahead) >= 0 and word(head_left, ahead) != 0:
            following = load_u32(left_rows + (word(head_left, ahead) - 1) * left_stride + NEXT)
            if following != 0:
                prefetch(left_rows + (following - 1) * left_stride)
        ahead = min(group + _AHEAD // 2, groups - 1)
        if word(first_right, ahead) >= 0 and word(head_left, ahead) != 0:
            following = load_u32(left_rows + (word(head_left, ahead) - 1) * left_stride + NEXT)
            if following != 0:
                following = load_u32(left_rows + (following - 1) * left_stride + NEXT)
                if following != 0:
                    prefetch(left_rows + (following - 1) * left_stride)
        left_changes, right_changes = word(first_left, group) >= 0, word(first_right, group) >= 0
        if step == 0:
            head = word(head_right, group)
            if left_changes and head != 0:
                row = right_rows + (head - 1) * right_stride
                if (
                    plain
                    and not resumed
                    and load_u32(row + NEXT) == 0
                    and load_u64(row + WEIGHT) == 1
                    and not (check_right and in_changed_set(head, marks_right))
                ):
                    at, change = _pair_one_row(
                        word(first_left, group),
                        row,
                        next_change,
                        refs,
                        before,
                        after,
                        sign,
                        at,
                        capacity,
                        out_left,
                        out_right,
                        out_weights,
                    )
                    if change >= 0:
                        _keep(cursor, 2, change)
                        _keep(cursor, 3, head)
                        _keep(cursor, 4, 0)
                        break
                else:
                    at = _pair_chain(epoch, group, 0, sign, cursor, at)
                    if word(cursor, 2) != -1 or word(cursor, 0) == OVERFLOW:
                        break
            step = 1
        if step == 1:
            if left_changes and right_changes:
                at = _pair_changes(epoch, group, sign, cursor, at)
                if word(cursor, 2) != -1 or word(cursor, 0) == OVERFLOW:
                    break
            step = 2
        if right_changes and word(head_left, group) != 0:
            at = _pair_chain(epoch, group, 1, sign, cursor, at)
            if word(cursor, 2) != -1 or word(cursor, 0) == OVERFLOW:
                break
        if at - began > most:
            most = at - began
            store_u64(epoch + E_FAN_OUT * 8, most)
            store_u64(epoch + E_FAN_OUT_REF * 8, word(word(epoch, E_GROUP_REFS), group))
            store_u64(epoch + E_FAN_OUT_SIDE * 8, word(word(epoch, E_GROUP_SIDES), group))
        began = at
        resumed = False
        step = 0
        group += 1
    _keep(cursor, 5, at - began)
    if word(cursor, 0) != OVERFLOW:
        _keep(cursor, 0, group)
        _keep(cursor, 1, step)
    return at


@kernel
def _unchanged_from(epoch: int, side: int, number: int) -> int:
    """Return the first unchanged row at or behind `number` in its chain; 0 at the end."""
    view = side_word(epoch, side, S_VIEW)
    if side_word(epoch, side, S_COUNT) != 0:
        marks = side_word(epoch, side, S_CHANGED)
        while number != 0 and in_changed_set(number, marks):
            number = load_u32(word(view, ROWS) + (number - 1) * word(view, STRIDE) + NEXT)
    return number


@kernel
def emit_one_sided_rows(epoch: int, side: int, kind: int, sign: int, cursor: int, filled: int) -> int:
    """Append the one-sided rows of one side at `filled`; return how far the output is filled."""
    # Done when the cursor's group is E_GROUPS + 2: the two groups behind the others hold the changes whose key can never
    # match. The cursor is: group, step (0: changes, 1: unchanged rows), change (-1: first), row of the chain (-1: head).
    groups = word(epoch, E_GROUPS)
    view = side_word(epoch, side, S_VIEW)
    rows, stride = word(view, ROWS), word(view, STRIDE)
    first, head = side_word(epoch, side, S_FIRST), side_word(epoch, side, S_HEAD)
    degrees_before = side_word(epoch, 1 - side, S_DEGREES_BEFORE)
    degrees_after = side_word(epoch, 1 - side, S_DEGREES_AFTER)
    next_change, refs = word(epoch, E_NEXT_CHANGE), word(epoch, E_REFS)
    before, after = word(epoch, E_BEFORE), word(epoch, E_AFTER)
    capacity, out_weights = word(epoch, E_CAPACITY), word(epoch, E_OUT_WEIGHTS)
    out_own, out_other = side_word(epoch, side, S_OUT), side_word(epoch, 1 - side, S_OUT)
    group, step, change, position = word(cursor, 0), word(cursor, 1), word(cursor, 2), word(cursor, 3)
    at = filled
    full = False
    while group < groups + 2:
        shown_before = word(degrees_before, group) if group < groups else 0
        shown_after = word(degrees_after, group) if group < groups else 0
        if kind == SHOWN_UNMATCHED:
            shown_before = 1 - shown_before
            shown_after = 1 - shown_after
        if step == 0:
            if shown_before or shown_after:
                if change == -1:
                    change = word(first, group)
                while change >= 0:
                    weight = of_change(after, change) * shown_after - of_change(before, change) * shown_before
                    if is_wanted(weight, sign):
                        if at == capacity:
                            full = True
                            break
                        store_u64(out_own + at * 8, of_change(refs, change))
                        store_u64(out_other + at * 8, 0)
                        store_u64(out_weights + at * 8, weight)
                        at += 1
                    change = of_change(next_change, change)
            if full:
                break
            step = 1
            position = -1
        if shown_after != shown_before and (shown_after - shown_before) * sign >= 0 and group < groups:
            if position == -1:
                position = word(head, group)
            position = _unchanged_from(epoch, side, position)
            while position != 0:
                if at == capacity:
                    full = True
                    break
                row = rows + (position - 1) * stride
                store_u64(out_own + at * 8, row)
                store_u64(out_other + at * 8, 0)
                store_u64(out_weights + at * 8, load_u64(row + WEIGHT) * (shown_after - shown_before))
                at += 1
                position = _unchanged_from(epoch, side, load_u32(row + NEXT))
        if full:
            break
        step = 0
        change = -1
        position = -1
        group += 1
    _keep(cursor, 0, group)
    _keep(cursor, 1, step)
    _keep(cursor, 2, change)
    _keep(cursor, 3, position)
    return at
