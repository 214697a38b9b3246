"""The rows of a join's answer, as pairs of record addresses.

The law: a pair (l, r) changes by `l_after * r_after - l_before * r_before`. With U the unchanged rows of a key and C its
changes, three products cover every pair once: C_left x U_right, C_left x C_right, U_left x C_right. This is
`dL x R_before + L_after x dR` with the terms that cancel left out, so a pair never comes out twice in one epoch.

*Lone* rows are what outer, semi and anti joins say about one row alone. With `missing` = "has no match":

    padded / anti:  l_after * missing_after - l_before * missing_before
    semi:           l_after * matched_after - l_before * matched_before

Every kernel here writes until the output is full, keeps its place in `cursor`, and is called again; `sign` chooses the
retractions (-1), the insertions (+1) or both (0). A weight past int64 ends it with cursor[0] = OVERFLOW.

Cost: the changes, plus the pairs and rows that come out.
"""

from __future__ import annotations

from numba import njit

from zset_join.kernels.columns import NEXT, WEIGHT
from zset_join.kernels.groups import in_changed_set
from zset_join.kernels.memory import load_u32, load_u64, prefetch
from zset_join.kernels.side import ROWS, STRIDE

__all__ = ["LONE_MATCHED", "LONE_MISSING", "OVERFLOW", "emit_lone_rows", "emit_pairs"]

OVERFLOW = -7
LONE_MISSING, LONE_MATCHED = 1, 2

_SMALL = 1 << 31
_MAX_WEIGHT = 0x7FFFFFFFFFFFFFFF


@njit(cache=True, nogil=True)
def _overflows(left, right) -> bool:
    """Say whether the product of two weights leaves int64."""
    if -_SMALL < left < _SMALL and -_SMALL < right < _SMALL:
        return False
    if left == 0 or right == 0:
        return False
    limit = _MAX_WEIGHT // abs(right)
    return left > limit or left < -limit


@njit(cache=True, nogil=True)
def _wanted(weight, sign) -> bool:
    """Say whether a weight belongs to the retractions (-1), the insertions (+1) or either (0)."""
    if sign > 0:
        return weight > 0
    if sign < 0:
        return weight < 0
    return weight != 0


@njit(cache=True, nogil=True)
def _unchanged_from(number, rows, stride, check, table, bits) -> int:
    """Return the first unchanged row at or behind `number` in its chain; 0 at the end."""
    if check:
        while number != 0 and in_changed_set(number, table, bits):
            number = load_u32(rows + (number - 1) * stride + NEXT)
    return number


@njit(cache=True, nogil=True)
def emit_pairs(
    left_view, right_view, groups, first_left, first_right, next_change, head_left, head_right,
    refs, before, after, changed_left, bits_left, count_left, changed_right, bits_right, count_right,
    sign, cursor, filled, out_left, out_right, out_weights, out_left_change, out_right_change, track,
) -> int:
    """Append changed pairs at `filled`; return how far the output is filled. Done when cursor[0] == groups.

    cursor = group, step (0: C_left x U_right, 1: C_left x C_right, 2: U_left x C_right), change (-1: first), position (-1: first).
    With `track` the position of either change among the changes is written too (-1 for an unchanged row).
    """
    capacity = out_weights.shape[0]
    group, step, change, position = cursor[0], cursor[1], cursor[2], cursor[3]
    left_rows, left_stride = left_view[ROWS], left_view[STRIDE]
    right_rows, right_stride = right_view[ROWS], right_view[STRIDE]
    at = filled
    while group < groups:
        if step == 0:
            if head_right[group] != 0 and first_left[group] >= 0:
                if change == -1:
                    change = first_left[group]
                while change >= 0:
                    delta = after[change] - before[change]
                    if _wanted(delta, sign):
                        if position == -1:
                            position = head_right[group]
                        position = _unchanged_from(
                            position, right_rows, right_stride, count_right, changed_right, bits_right
                        )
                        while position != 0:
                            if at == capacity:
                                cursor[0], cursor[1], cursor[2], cursor[3] = group, 0, change, position
                                return at
                            row = right_rows + (position - 1) * right_stride
                            weight = load_u64(row + WEIGHT)
                            if _overflows(delta, weight):
                                cursor[0] = OVERFLOW
                                return at
                            out_left[at] = refs[change]
                            out_right[at] = row
                            out_weights[at] = delta * weight
                            if track:
                                out_left_change[at] = change
                                out_right_change[at] = -1
                            at += 1
                            position = _unchanged_from(
                                load_u32(row + NEXT), right_rows, right_stride, count_right, changed_right, bits_right
                            )
                            if position != 0:
                                prefetch(right_rows + (position - 1) * right_stride)
                    position = -1
                    change = next_change[change]
            step = 1
            change = -1
            position = -1
        if step == 1:
            if first_left[group] >= 0 and first_right[group] >= 0:
                if change == -1:
                    change = first_left[group]
                while change >= 0:
                    if (sign < 0 and before[change] == 0) or (sign > 0 and after[change] == 0):
                        change = next_change[change]
                        continue
                    if position == -1:
                        position = first_right[group]
                    while position >= 0:
                        if _overflows(after[change], after[position]) or _overflows(before[change], before[position]):
                            cursor[0] = OVERFLOW
                            return at
                        weight = after[change] * after[position] - before[change] * before[position]
                        if _wanted(weight, sign):
                            if at == capacity:
                                cursor[0], cursor[1], cursor[2], cursor[3] = group, 1, change, position
                                return at
                            out_left[at] = refs[change]
                            out_right[at] = refs[position]
                            out_weights[at] = weight
                            if track:
                                out_left_change[at] = change
                                out_right_change[at] = position
                            at += 1
                        position = next_change[position]
                    position = -1
                    change = next_change[change]
            step = 2
            change = -1
            position = -1
        if head_left[group] != 0 and first_right[group] >= 0:
            if change == -1:
                change = first_right[group]
            while change >= 0:
                delta = after[change] - before[change]
                if _wanted(delta, sign):
                    if position == -1:
                        position = head_left[group]
                    position = _unchanged_from(position, left_rows, left_stride, count_left, changed_left, bits_left)
                    while position != 0:
                        if at == capacity:
                            cursor[0], cursor[1], cursor[2], cursor[3] = group, 2, change, position
                            return at
                        row = left_rows + (position - 1) * left_stride
                        weight = load_u64(row + WEIGHT)
                        if _overflows(delta, weight):
                            cursor[0] = OVERFLOW
                            return at
                        out_left[at] = row
                        out_right[at] = refs[change]
                        out_weights[at] = delta * weight
                        if track:
                            out_left_change[at] = -1
                            out_right_change[at] = change
                        at += 1
                        position = _unchanged_from(
                            load_u32(row + NEXT), left_rows, left_stride, count_left, changed_left, bits_left
                        )
                        if position != 0:
                            prefetch(left_rows + (position - 1) * left_stride)
                position = -1
                change = next_change[change]
        step = 0
        change = -1
        position = -1
        group += 1
    cursor[0], cursor[1], cursor[2], cursor[3] = groups, 0, -1, -1
    return at


@njit(cache=True, nogil=True)
def emit_lone_rows(
    view, groups, first, next_change, head, before_degrees, after_degrees, refs, before, after,
    changed, bits, count_changed, kind, sign, cursor, filled, out_own, out_other, out_weights,
) -> int:
    """Append the lone rows of one side at `filled`; return how far the output is filled. Done when cursor[0] == groups + 2.

    `before_degrees` and `after_degrees` are the other side's: whether the group has matches. The two groups behind the
    others hold the changes whose key can never match.
    """
    capacity = out_weights.shape[0]
    group, step, change, position = cursor[0], cursor[1], cursor[2], cursor[3]
    rows, stride = view[ROWS], view[STRIDE]
    at = filled
    while group < groups + 2:
        matched_before = before_degrees[group] if group < groups else 0
        matched_after = after_degrees[group] if group < groups else 0
        if kind == LONE_MISSING:
            shown_before = 1 - matched_before
            shown_after = 1 - matched_after
        else:
            shown_before = matched_before
            shown_after = matched_after
        if step == 0:
            if shown_before or shown_after:
                if change == -1:
                    change = first[group]
                while change >= 0:
                    weight = after[change] * shown_after - before[change] * shown_before
                    if _wanted(weight, sign):
                        if at == capacity:
                            cursor[0], cursor[1], cursor[2], cursor[3] = group, 0, change, -1
                            return at
                        out_own[at] = refs[change]
                        out_other[at] = 0
                        out_weights[at] = weight
                        at += 1
                    change = next_change[change]
            step = 1
            position = -1
        if shown_before != shown_after and (shown_after - shown_before) * sign > 0 and group < groups:
            if position == -1:
                position = head[group]
            position = _unchanged_from(position, rows, stride, count_changed, changed, bits)
            while position != 0:
                if at == capacity:
                    cursor[0], cursor[1], cursor[2], cursor[3] = group, 1, -1, position
                    return at
                row = rows + (position - 1) * stride
                out_own[at] = row
                out_other[at] = 0
                out_weights[at] = load_u64(row + WEIGHT) * sign
                at += 1
                position = _unchanged_from(load_u32(row + NEXT), rows, stride, count_changed, changed, bits)
        step = 0
        change = -1
        position = -1
        group += 1
    cursor[0], cursor[1], cursor[2], cursor[3] = groups + 2, 0, -1, -1
    return at
