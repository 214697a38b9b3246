"""Copy parts of nested values between byte ranges: the inner loops of `nested`.

`put_*` write one part of every value into its slot, `get_*` read it back. A slot is `content[starts[i]:ends[i]]`; slots
of NULL values are skipped when writing (`valid` is False) and are empty or zeros when reading. The layout is described
in `nested`; only that module calls these kernels.

All content that is read comes as a read-only array, so that each kernel is compiled once. Nothing here checks bounds: a
blob that was damaged without a change of its length is not noticed here (the checkpoint's checksums are for that).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from zset_join.kernels.machine.compiled import kernel

__all__ = [
    "copy_runs",
    "get_bits",
    "get_counts",
    "get_fixed",
    "get_list_fixed",
    "get_list_variable",
    "get_variable",
    "open_blobs",
    "put_bits",
    "put_blobs",
    "put_fixed",
    "put_list_fixed",
    "put_list_variable",
    "put_variable",
]

_Bytes: TypeAlias = npt.NDArray[np.uint8]
_Int64s: TypeAlias = npt.NDArray[np.int64]
_Bools: TypeAlias = npt.NDArray[np.bool_]


@kernel
def _load_u32(content: _Bytes, at: int) -> np.int64:
    low = np.int64(content[at]) | np.int64(content[at + 1]) << 8
    return low | np.int64(content[at + 2]) << 16 | np.int64(content[at + 3]) << 24


@kernel
def _store_u32(content: _Bytes, at: int, number: int) -> None:
    content[at] = number & 0xFF
    content[at + 1] = (number >> 8) & 0xFF
    content[at + 2] = (number >> 16) & 0xFF
    content[at + 3] = (number >> 24) & 0xFF


@kernel
def _copy(target: _Bytes, to: int, source: _Bytes, begin: int, length: int) -> None:
    for step in range(length):
        target[to + step] = source[begin + step]


@kernel
def copy_runs(target: _Bytes, offsets: _Int64s, source: _Bytes, starts: _Int64s, ends: _Int64s) -> None:
    """Copy range i of `source` to `target[offsets[i]:]`."""
    for row in range(len(starts)):
        _copy(target, offsets[row], source, starts[row], ends[row] - starts[row])


@kernel
def put_bits(target: _Bytes, starts: _Int64s, valid: _Bools, byte: int, bit: int, flags: _Bools) -> None:
    """Set one flag of every valid slot."""
    for row in range(len(starts)):
        if valid[row] and flags[row]:
            target[starts[row] + byte] |= np.uint8(1 << bit)


@kernel
def put_fixed(target: _Bytes, starts: _Int64s, valid: _Bools, position: int, width: int, source: _Bytes) -> None:
    """Write one part of `width` bytes at `position` of every valid slot; `source` holds the parts back to back."""
    if width == 8:
        for row in range(len(starts)):
            if valid[row]:
                _copy(target, starts[row] + position, source, row * 8, 8)
        return
    for row in range(len(starts)):
        if valid[row]:
            _copy(target, starts[row] + position, source, row * width, width)


@kernel
def put_variable(
    target: _Bytes,
    starts: _Int64s,
    valid: _Bools,
    filled: _Int64s,
    end_position: int,
    head_bytes: int,
    source: _Bytes,
    source_starts: _Int64s,
    source_ends: _Int64s,
) -> None:
    """Append one part of varying length to every valid slot, and write where it ends."""
    # `filled` is how much of each slot is in use. The end goes to `end_position` in the slot, and counts from behind
    # `head_bytes`.
    for row in range(len(starts)):
        if valid[row]:
            length = source_ends[row] - source_starts[row]
            _copy(target, starts[row] + filled[row], source, source_starts[row], length)
            filled[row] += length
            _store_u32(target, starts[row] + end_position, filled[row] - head_bytes)


@kernel
def put_list_fixed(
    target: _Bytes,
    starts: _Int64s,
    valid: _Bools,
    head_bytes: int,
    firsts: _Int64s,
    counts: _Int64s,
    element_valid: _Bools,
    source: _Bytes,
    width: int,
) -> None:
    """Write lists whose elements take `width` bytes each: count (if `head_bytes` is 4), flags, elements."""
    # List i holds the elements `firsts[i]:firsts[i] + counts[i]`.
    for row in range(len(starts)):
        if valid[row]:
            at, first, count = starts[row], firsts[row], counts[row]
            if head_bytes:
                _store_u32(target, at, count)
            at += head_bytes
            for step in range(count):
                if element_valid[first + step]:
                    target[at + (step >> 3)] |= np.uint8(1 << (step & 7))
            _copy(target, at + (count + 7) // 8, source, first * width, count * width)


@kernel
def put_list_variable(
    target: _Bytes,
    starts: _Int64s,
    valid: _Bools,
    head_bytes: int,
    firsts: _Int64s,
    counts: _Int64s,
    element_valid: _Bools,
    source: _Bytes,
    source_starts: _Int64s,
    source_ends: _Int64s,
) -> None:
    """Write lists whose elements vary in length: count (if `head_bytes` is 4), flags, end of each element, elements."""
    for row in range(len(starts)):
        if valid[row]:
            at, first, count = starts[row], firsts[row], counts[row]
            if head_bytes:
                _store_u32(target, at, count)
            at += head_bytes
            end_at = at + (count + 7) // 8
            body = end_at + 4 * count
            filled = 0
            for step in range(count):
                element = first + step
                if element_valid[element]:
                    target[at + (step >> 3)] |= np.uint8(1 << (step & 7))
                length = source_ends[element] - source_starts[element]
                _copy(target, body + filled, source, source_starts[element], length)
                filled += length
                _store_u32(target, end_at + 4 * step, filled)


@kernel
def put_blobs(
    target: _Bytes,
    offsets: _Int64s,
    valid: _Bools,
    differs: _Bools,
    canonical: _Bytes,
    canonical_starts: _Int64s,
    canonical_ends: _Int64s,
    raw: _Bytes,
    raw_starts: _Int64s,
) -> None:
    """Write the blob of every valid row: canonical length, canonical encoding, and the raw one where it differs."""
    for row in range(len(valid)):
        if valid[row]:
            at, length = offsets[row], canonical_ends[row] - canonical_starts[row]
            _store_u32(target, at, length)
            _copy(target, at + 4, canonical, canonical_starts[row], length)
            if differs[row]:
                _copy(target, at + 4 + length, raw, raw_starts[row], length)


@kernel
def open_blobs(content: _Bytes, starts: _Int64s, ends: _Int64s, valid: _Bools) -> int:
    """Narrow every range from a blob to its raw encoding, in place; return the first damaged row, or -1."""
    # The range of a NULL is made empty.
    for row in range(len(starts)):
        if not valid[row]:
            ends[row] = starts[row]
            continue
        size = ends[row] - starts[row]
        if size < 4:
            return row
        length = _load_u32(content, starts[row])
        if size == 4 + length:
            starts[row] += 4
        elif size == 4 + 2 * length:
            starts[row] += 4 + length
        else:
            return row
    return -1


@kernel
def get_bits(content: _Bytes, starts: _Int64s, ends: _Int64s, byte: int, bit: int) -> _Bools:
    """Read one flag of every slot; False where the slot is empty."""
    bits = np.zeros(len(starts), np.bool_)
    for row in range(len(starts)):
        if ends[row] > starts[row]:
            bits[row] = (content[starts[row] + byte] >> bit) & 1
    return bits


@kernel
def get_fixed(dense: _Bytes, width: int, content: _Bytes, starts: _Int64s, ends: _Int64s, position: int) -> None:
    """Collect the part of `width` bytes at `position` of every slot that is not empty into `dense` (zeroed)."""
    if width == 8:
        for row in range(len(starts)):
            if ends[row] > starts[row]:
                _copy(dense, row * 8, content, starts[row] + position, 8)
        return
    for row in range(len(starts)):
        if ends[row] > starts[row]:
            _copy(dense, row * width, content, starts[row] + position, width)


@kernel
def get_variable(
    content: _Bytes, starts: _Int64s, ends: _Int64s, end_position: int, head_bytes: int, is_first: bool
) -> tuple[_Int64s, _Int64s]:
    """Return where the part whose end is at `end_position` starts and ends, in every slot."""
    part_starts = np.zeros(len(starts), np.int64)
    part_ends = np.zeros(len(starts), np.int64)
    for row in range(len(starts)):
        if ends[row] > starts[row]:
            at, base = starts[row] + end_position, starts[row] + head_bytes
            part_starts[row] = base if is_first else base + _load_u32(content, at - 4)
            part_ends[row] = base + _load_u32(content, at)
    return part_starts, part_ends


@kernel
def get_counts(content: _Bytes, starts: _Int64s, ends: _Int64s) -> _Int64s:
    """Return the number of elements of every list; 0 where the slot is empty."""
    counts = np.zeros(len(starts), np.int64)
    for row in range(len(starts)):
        if ends[row] > starts[row]:
            counts[row] = _load_u32(content, starts[row])
    return counts


@kernel
def get_list_fixed(
    dense: _Bytes,
    present: _Bools,
    offsets: _Int64s,
    content: _Bytes,
    starts: _Int64s,
    ends: _Int64s,
    head_bytes: int,
    width: int,
) -> None:
    """Collect the elements of `width` bytes of all lists into `dense`, and their flags into `present` (both zeroed)."""
    for row in range(len(starts)):
        if ends[row] > starts[row]:
            first, count = offsets[row], offsets[row + 1] - offsets[row]
            at = starts[row] + head_bytes
            for step in range(count):
                present[first + step] = (content[at + (step >> 3)] >> (step & 7)) & 1
            _copy(dense, first * width, content, at + (count + 7) // 8, count * width)


@kernel
def get_list_variable(
    element_starts: _Int64s,
    element_ends: _Int64s,
    present: _Bools,
    offsets: _Int64s,
    content: _Bytes,
    starts: _Int64s,
    ends: _Int64s,
    head_bytes: int,
) -> None:
    """Find the elements of all lists: their ranges and their flags (all three zeroed)."""
    for row in range(len(starts)):
        if ends[row] > starts[row]:
            first, count = offsets[row], offsets[row + 1] - offsets[row]
            at = starts[row] + head_bytes
            end_at = at + (count + 7) // 8
            body = end_at + 4 * count
            filled = np.int64(0)
            for step in range(count):
                present[first + step] = (content[at + (step >> 3)] >> (step & 7)) & 1
                element_starts[first + step] = body + filled
                filled = _load_u32(content, end_at + 4 * step)
                element_ends[first + step] = body + filled
