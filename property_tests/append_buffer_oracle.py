"""What an append-only join holds and answers at its limit, with dicts, lists and loops only.

Rows are in one list, in the order they came: epoch by epoch, the left rows of an epoch before the right ones. When they
count for `limit` bytes or more, they leave from the front.

`RETRACT`: the sum of all answers is the plain join of the rows that are left. `FORGET`: it is every pair that was ever in the
list together, and for a preserved row (or SEMI and ANTI) what follows from whether it has ever met a match.

Limit: the size of a nested value is the engine's own affair, so rows here have plain values only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """One row that is kept; `degree` counts the matches it has ever met."""

    side: int
    row: Row
    weight: int
    size: int
    degree: int = 0


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
        limit: bytes that are not reached.
        mode: `abort`, `retract` or `forget`.
    """

    how: str
    sides: tuple[Side, Side]
    null_safe: Sequence[bool]
    residual: Residual | None
    using: bool
    fixed: tuple[int, int]
    limit: int
    mode: str
    held: list[Held] = field(default_factory=list)
    met: list[oracle.JoinedLine] = field(default_factory=list)
    gone: list[Held] = field(default_factory=list)

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
        """Go through one epoch; an epoch without rows changes nothing."""
        if not changes:
            return
        came = self.arrivals(changes)
        if self.mode == "forget":
            self._meet(came)
        self.held += came
        while self.mode != "abort" and sum(each.size for each in self.held) >= self.limit:
            self.gone.append(self.held.pop(0))

    def held_bytes(self) -> tuple[int, int]:
        """Return the bytes of either side."""
        return self._bytes(self.held, 0), self._bytes(self.held, 1)

    def expected(self) -> Counts:
        """Return the sum of all answers so far."""
        if self.mode == "forget":
            joined = self._met_lines()
        else:
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

    def _met_lines(self) -> list[oracle.JoinedLine]:
        rows = [*self.gone, *self.held]
        if self.how in ("left_semi", "left_anti"):
            shown: Callable[[Held], bool] = lambda each: (each.degree > 0) == (self.how == "left_semi")  # noqa: E731
            return [(each.row, None, each.weight) for each in rows if each.side == 0 and shown(each)]
        unmatched = [each for each in rows if not each.degree and self._is_preserved(each.side)]
        return self.met + [(None, each.row, each.weight) if each.side else (each.row, None, each.weight) for each in unmatched]

    def _meet(self, came: Sequence[Held]) -> None:
        """Pair the rows that came with those that are present and with each other."""
        there = list(self.held)
        for new in came:
            for other in there:
                left, right = (new, other) if other.side else (other, new)
                if new.side != other.side and self._match(left, right):
                    left.degree += 1
                    right.degree += 1
                    self.met.append((left.row, right.row, left.weight * right.weight))
            there.append(new)

    def _match(self, left: Held, right: Held) -> bool:
        if not self._is_matchable(left) or self._key(left) != self._key(right):
            return False
        return self.residual is None or self.residual(left.row, right.row) is True

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
