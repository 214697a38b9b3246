"""What an append-only join holds and answers, with dicts, lists and loops only.

Limit: the size of a nested value is the engine's own affair, so rows here have plain values only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from zset_join.testing import reference as oracle
from zset_join.testing.reference import Counts, Residual, Row, Side, row_identity

__all__ = ["BufferOracle", "Held", "row_size"]

_INLINE_BYTES = 12


def row_size(fixed: int, row: Row) -> int:
    """Return the bytes a row counts for: its record, and a block for each long text or binary value.

    >>> row_size(40, {"a": 1, "b": "x" * 12, "c": "x" * 13, "d": b"x" * 300, "e": None})
    376
    """
    return fixed + sum(_block(value) for value in row.values())


def _block(value: object) -> int:
    content = value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else b""
    length = len(content)
    if length <= _INLINE_BYTES:
        return 0
    step = 16
    while length > 256 and step < 64 * 2 ** max(0, (length - 1).bit_length() - 9):
        step *= 2
    return -(-length // step) * step


@dataclass
class Held:
    """One row that is kept."""

    side: int
    row: Row
    weight: int
    size: int


@dataclass
class BufferOracle:
    """Follow one join through its epochs.

    Args:
        how: join type.
        sides: both inputs.
        null_safe: per key column.
        residual: further part of ON, or None.
        using: the key columns appear once.
        fixed: bytes of a record, per side.
    """

    how: str
    sides: tuple[Side, Side]
    null_safe: Sequence[bool]
    residual: Residual | None
    using: bool
    fixed: tuple[int, int]
    held: list[Held] = field(default_factory=list)

    def arrivals(self, changes: Sequence[tuple[int, Row, int]]) -> list[Held]:
        """Return the rows of an epoch that are kept at all, in their order; each change is (side, row, weight)."""
        came = [
            Held(side, row, weight, row_size(self.fixed[side], row))
            for wanted in (0, 1)
            for side, row, weight in changes
            if side == wanted
        ]
        return [each for each in came if self._is_matchable(each) or self._is_preserved(each.side)]

    def would_hold(self, changes: Sequence[tuple[int, Row, int]]) -> tuple[int, int]:
        """Return the bytes of either side if nothing left."""
        rows = [*self.held, *self.arrivals(changes)]
        return self._bytes(rows, 0), self._bytes(rows, 1)

    def largest_key(self, changes: Sequence[tuple[int, Row, int]]) -> tuple[int, int]:
        """Return bytes and rows of the join key with the most bytes; of equal ones, with the most rows."""
        sums: dict[object, tuple[int, int]] = {}
        for each in [*self.held, *self.arrivals(changes)]:
            if self._is_matchable(each):
                size, rows = sums.get(self._key(each), (0, 0))
                sums[self._key(each)] = (size + each.size, rows + 1)
        return max(sums.values(), default=(0, 0))

    def step(self, changes: Sequence[tuple[int, Row, int]]) -> None:
        """Go through one epoch."""
        self.held += self.arrivals(changes)

    def held_bytes(self) -> tuple[int, int]:
        """Return the bytes of either side."""
        return self._bytes(self.held, 0), self._bytes(self.held, 1)

    def expected(self) -> Counts:
        """Return the sum of all answers so far."""
        left, right = ([(each.row, each.weight) for each in self.held if each.side == side] for side in (0, 1))
        joined = oracle.batch_join(
            left,
            right,
            how=self.how,
            left_key=self.sides[0].join_key,
            right_key=self.sides[1].join_key,
            null_safe=self.null_safe,
            residual=self.residual,
        )
        return oracle.lay_out(joined, how=self.how, left=self.sides[0], right=self.sides[1], using=self.using)

    def _key(self, each: Held) -> object:
        return row_identity(each.row[name] for name in self.sides[each.side].join_key)

    def _is_matchable(self, each: Held) -> bool:
        key = [each.row[name] for name in self.sides[each.side].join_key]
        return all(value is not None or safe for value, safe in zip(key, self.null_safe, strict=True))

    def _is_preserved(self, side: int) -> bool:
        return self.how in (("left", "full", "left_anti"), ("right", "full"))[side]

    @staticmethod
    def _bytes(rows: Sequence[Held], side: int) -> int:
        return sum(each.size for each in rows if each.side == side)
