"""Blocks for long strings come in sizes that lose little."""

from __future__ import annotations

from zset_join.kernels.rows.side import block_bytes, class_bytes

SIZES = {
    13: 16,
    16: 16,
    17: 32,
    255: 256,
    256: 256,
    257: 320,
    320: 320,
    321: 384,
    513: 640,
    1024: 1024,
    1025: 1280,
}


def test_sizes_are_rounded_up_to_a_class_of_blocks_of_one_size() -> None:
    sizes = [class_bytes(size_class) for size_class in range(1, 100)]

    assert {length: block_bytes(length) for length in SIZES} == SIZES
    assert [block_bytes(size) for size in sizes] == sizes
    assert sorted(set(sizes)) == sizes


def test_at_most_a_quarter_of_a_large_block_is_lost() -> None:
    losses = [block_bytes(length) / length for length in (*range(257, 20_000, 7), 2**31 - 1)]

    assert 1.0 <= min(losses) <= max(losses) <= 1.25
