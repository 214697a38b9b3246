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
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from zset_join.kernels.aggregate.keys import compare_keys, first_not_below
from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u64, prefetch

__all__ = [
    "DIRECTORY_HEAD",
    "V_DISTINCT",
    "V_ROOT",
    "V_TOTAL",
    "V_WORDS",
    "directory_count",
    "find_value",
    "is_directory",
    "leaf_address",
    "leaf_capacity",
    "leaf_count",
    "leaf_line",
    "leaf_of_key",
    "move_bytes",
    "prefetch_values",
    "root_offset",
]

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
