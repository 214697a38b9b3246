"""What comes of the rows of a key that are too many to be brought into memory: they stay on disk and are read in chunks.

The law: the answer is that of the same rows in memory. The rows on disk of such a key are none that the epoch changes, because
those are brought in by their identity. So with the changes of the key on the other side they make a cross product,

    weight of the row * (weight of the change after - before),

and where their side is preserved they are shown or hidden as one, when the other side's rows of the key come or go. Whether a
side has rows of a key is read off those in memory: `one_of_each` brings one in, and it stands for those on disk.

Memory: a chunk of about a MB, and the pairs of a part of it. Every chunk is read once for each sign that has something to say.

Known limit: a preserved side with a residual predicate keeps a degree in each row, which changes; such keys come whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spill.cold_store import ColdRows, Int64s
from zset_join.kernels.columns import WEIGHT
from zset_join.kernels.pairs import LONE_MISSING
from zset_join.state.changed_groups import ChangedKey
from zset_join.state.cold_side import ColdSide, chosen_rows
from zset_join.state.key_equality import KeyRow, equal_keys
from zset_join.state.side import PreparedSide

__all__ = ["LongKeys", "one_of_each"]

_PAIRS_AT_ONCE = 1 << 16
_FIRST_BYTES = 1 << 16
_MOST = (1 << 63) - 1
_NONE = np.empty(0, np.int64)

Passes = Callable[[Int64s, Int64s], npt.NDArray[np.bool_]]
Pairs = tuple[Int64s, Int64s, Int64s]


class LongKeys:
    """Stream the rows of long keys.

    Args:
        cold: rows on disk, per side.
        lone: per side, what the join says about its lone rows.
        pairs: whether the join shows pairs.
        passes: which pairs of records, left and right, pass the rest of the condition.
    """

    def __init__(self, cold: Sequence[ColdSide], lone: tuple[int, int], *, pairs: bool, passes: Passes) -> None:
        self._cold = cold
        self._lone = lone
        self._pairs = pairs
        self._passes = passes

    def answer(self, key: ChangedKey, sign: int) -> Iterator[Iterator[Pairs]]:
        """Yield per chunk what a key's changes make of the rows on disk of the other side: the retractions or the insertions.

        Each is left and right refs (0: padded) and weights, in pieces that are valid until the next chunk.

        Raises:
            OverflowError: the product of two weights leaves int64.
        """
        deltas = key.after - key.before
        chosen = np.flatnonzero(deltas * sign > 0) if self._pairs else deltas[:0]
        other = 1 - key.side
        shown = key.remains - key.was
        if self._lone[other] == LONE_MISSING:
            shown = -shown
        is_shown = self._lone[other] != 0 and shown * sign > 0
        if not len(chosen) and not is_shown:
            return
        largest = int(np.abs(deltas[chosen]).max(initial=0))
        for refs, weights in self._rows(key):
            if largest * int(weights.max()) > _MOST:
                raise OverflowError("product of two weights")
            yield self._crossed(key, chosen, deltas, refs, weights, shown if is_shown else 0)

    def passing(self, key: ChangedKey) -> Iterator[Int64s]:
        """Yield, in pieces, positions of a key's changes: one for each row on disk that a change passes the condition with."""
        every = np.arange(len(key.refs))
        for refs, weights in self._rows(key):
            for begin, end in _pieces(len(every), len(refs)):
                left, right = _paired(key, every[begin:end], refs)
                yield np.repeat(key.positions[begin:end], len(weights))[self._passes(left, right)]

    def _rows(self, key: ChangedKey) -> Iterator[tuple[Int64s, Int64s]]:
        """Yield records on disk that have a key, and their weights."""
        cold = self._cold[1 - key.side]
        stride = cold.side.layout.stride
        for _, rows in cold.stream(key.code):
            refs = rows.refs(stride)
            equal = equal_keys(key.row, cold.side, refs)
            if equal.any():
                weights = np.ndarray((rows.count,), np.int64, rows.owners[0], WEIGHT, (stride,))
                yield refs[equal], weights[equal]

    def _crossed(
        self, key: ChangedKey, chosen: Int64s, deltas: Int64s, refs: Int64s, weights: Int64s, shown: int
    ) -> Iterator[Pairs]:
        for begin, end in _pieces(len(chosen), len(refs)):
            piece = chosen[begin:end]
            left, right = _paired(key, piece, refs)
            products = np.repeat(deltas[piece], len(refs)) * np.tile(weights, len(piece))
            passing = self._passes(left, right)
            yield (left, right, products) if passing.all() else (left[passing], right[passing], products[passing])
        if shown:
            padded = np.zeros(len(refs), np.int64)
            yield (refs, padded, weights * shown) if key.side == 1 else (padded, refs, weights * shown)


def _pieces(changes: int, rows: int) -> Iterator[tuple[int, int]]:
    size = max(1, _PAIRS_AT_ONCE // rows)
    for begin in range(0, changes, size):
        yield begin, begin + size


def _paired(key: ChangedKey, chosen: Int64s, refs: Int64s) -> tuple[Int64s, Int64s]:
    changed, rows = np.repeat(key.refs[chosen], len(refs)), np.tile(refs, len(chosen))
    return (changed, rows) if key.side == 0 else (rows, changed)


def one_of_each(
    number: int,
    codes: Int64s,
    opened: Sequence[ColdSide],
    prepared: Sequence[PreparedSide | None],
    standing: Int64s,
    stamp: int,
    clock: float,
) -> ColdRows | None:
    """Find one row on disk of each join key that some deltas change and that has one of some hashes; None if there are none.

    Args:
        number: of the side to look in.
        codes: the hashes.
        opened: both sides.
        prepared: their encoded deltas; the rows that they name are in memory.
        standing: numbers of rows that were found before; a key needs no other one if its row is in memory and does not change.
        stamp: of the epoch.
        clock: what rows are touched with.

    Cost: a chunk per key, or all rows of a hash if a changed key with that hash has none.
    """
    found: list[ColdRows] = []
    cold = opened[number]
    named = [
        side.hot.probe(own, stamp, clock) if own is not None and side.side.has_identity else (_NONE, _NONE)
        for side, own in zip(opened, prepared, strict=True)
    ]
    in_memory = cold.hot.unchanged(standing)
    kept = cold.side.refs_of(in_memory[~np.isin(in_memory, named[number][0])])
    for code in codes.tolist():
        keys = _changed_keys(code, opened, prepared, named)
        missing = [key for key in keys if not equal_keys(key, cold.side, kept).any()]
        if not missing:
            continue
        for lying, rows in cold.stream(code, _FIRST_BYTES):
            refs = rows.refs(cold.side.layout.stride)
            for key in list(missing):
                equal = equal_keys(key, cold.side, refs)
                if equal.any():
                    found.append(chosen_rows(lying, np.arange(len(refs)) == int(np.argmax(equal))))
                    missing.remove(key)
            if not missing:
                break
    if not found:
        return None
    return ColdRows(
        np.concatenate([rows.codes for rows in found]),
        np.concatenate([rows.subcodes for rows in found]),
        pa.concat_arrays([rows.rows for rows in found]),
        np.concatenate([rows.places for rows in found]),
    )


def _changed_keys(
    code: int,
    opened: Sequence[ColdSide],
    prepared: Sequence[PreparedSide | None],
    named: Sequence[tuple[Int64s, Int64s]],
) -> list[KeyRow]:
    """Return a row for each key with a hash that is in a delta, or in a row that a delta names.

    Args:
        code: the hash.
        opened: both sides.
        prepared: their deltas.
        named: per side numbers and join hashes of the rows that its delta names.
    """
    keys: list[KeyRow] = []
    for side, own, (numbers, hashes) in zip(opened, prepared, named, strict=True):
        if own is None:
            continue
        state = side.side
        new = np.flatnonzero((own.join_codes[: own.count] == code) & (own.unmatchable[: own.count] == 0))
        left = np.concatenate([own.encoded.address + state.layout.stride * new, state.refs_of(numbers[hashes == code])])
        for key in keys:
            left = left[~equal_keys(key, state, left)]
        while len(left):
            keys.append(KeyRow(state, int(left[0])))
            left = left[~equal_keys(keys[-1], state, left)]
    return keys
