"""The net change of an epoch against the rows that a view holds in files: which of them go, and whether the change fits.

The law: after the rows that `match` names are gone and the insertions are present, the files hold the sum of all deltas; or the
change is refused and names the row or key it cannot be made with.

Without a key the identity of a row is the whole row, and of several equal rows those that lie first go. With a key, at most one
live row may hold it, and a retraction must name the very row that is held: `verify` compares the rest of it when the row is
read. Equality is Spark's (NaN, 0.0 and -0.0, NULL, nested values) and by value; nothing is left to a hash.

Memory: the change, and the identity of the rows that look like its rows.

Cost: per stored row one look into a hash table per identity column, as far as the columns before it matched; then linear in the
change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zset_join.changelog import AppendFormat, encode
from zset_join.changelog.encoding import comparable_values, group_keys
from zset_join.core.errors import SinkError
from zset_join.core.shown_values import shown_value
from zset_join.sinks.epoch_sink import claimed_key, unheld_row
from zset_join.zset import ZSet

__all__ = ["RetractedRows", "StoredRowsChange"]

_Int64s: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RetractedRows:
    """The rows of one file that go."""

    positions: _Int64s
    retractions: _Int64s


class StoredRowsChange:
    """The net change of one epoch."""

    def __init__(self, described: str, epoch: int, delta: ZSet, key: tuple[str, ...]) -> None:
        self.delta = delta
        self.identity = key or tuple(delta.schema.names)
        self._described = described
        self._epoch = epoch
        self._key = key
        self._looked_for = np.arange(len(delta)) if key else np.flatnonzero(delta.weights < 0)
        rows = delta.rows.take(pa.array(self._looked_for))
        self._columns = [comparable_values(rows.column(name)) for name in self.identity]

    @property
    def is_blind(self) -> bool:
        """Return whether the stored rows need not be looked at."""
        return not len(self._looked_for)

    def insertions(self) -> pa.RecordBatch:
        """Return the rows to add, as often as their weights."""
        coming = np.flatnonzero(self.delta.weights > 0)
        return encode(ZSet(self.delta.rows.take(pa.array(coming)), self.delta.weights[coming]), (), AppendFormat())

    def bounds(self) -> dict[str, tuple[Any, Any]]:
        """Return, per identity column of whole numbers or dates without NULL, the least and the most that is looked for."""
        ranges = {}
        for name, column in zip(self.identity, self._columns, strict=True):
            if (pt.is_integer(column.type) or pt.is_date(column.type)) and len(column) and not column.null_count:
                limits = pc.min_max(column)
                try:
                    ranges[name] = (limits["min"].as_py(), limits["max"].as_py())
                except OverflowError:  # a date outside Python's years 1 to 9999 leaves the column without bounds
                    continue
        return ranges

    def candidates(self, stored: pa.Table) -> tuple[_Int64s, list[pa.Array]]:
        """Return the rows of a file that may be meant by the change."""
        positions = np.arange(stored.num_rows)
        for name, wanted in zip(self.identity, self._columns, strict=True):
            column = comparable_values(_one_chunk(stored.column(name)))
            if len(positions) < stored.num_rows:
                column = column.take(pa.array(positions))
            hit = pc.is_in(column, value_set=wanted).to_numpy(zero_copy_only=False)
            positions = positions[hit]
            if not len(positions):
                return positions, []
        chosen = pa.array(positions)
        return positions, [comparable_values(_one_chunk(stored.column(name)).take(chosen)) for name in self.identity]

    def match(self, files: Sequence[tuple[_Int64s, list[pa.Array]]]) -> list[RetractedRows]:
        """Decide which rows go."""
        filled = [(number, file) for number, file in enumerate(files) if len(file[0])]
        joined = [
            pa.concat_arrays([own, *(file[1][position] for _, file in filled)]) for position, own in enumerate(self._columns)
        ]
        groups = group_keys(joined)
        requested = len(self._looked_for)
        mine, theirs = groups[:requested], groups[requested:]
        count = int(mine.max(initial=-1)) + 1
        weights = self.delta.weights[self._looked_for]
        needed, held = _added_up(mine, np.maximum(-weights, 0), count), np.bincount(theirs[theirs < count], minlength=count)
        self._refuse_absent(mine, needed, held)
        if self._key:
            self._refuse_second(mine, _added_up(mine, np.maximum(weights, 0), count) + held - needed)
        retraction_of = np.zeros(count, np.int64)
        retraction_of[mine[weights < 0]] = self._looked_for[weights < 0]
        goes = _first_of_each(theirs, needed, count)
        matches = [RetractedRows(np.zeros(0, np.int64), np.zeros(0, np.int64)) for _ in files]
        start = 0
        for number, (positions, _) in filled:
            chosen = goes[start : start + len(positions)]
            of = theirs[start : start + len(positions)][chosen]
            matches[number] = RetractedRows(positions[chosen], retraction_of[of])
            start += len(positions)
        return matches

    def verify(self, retracted: RetractedRows, rows: pa.Table) -> None:
        """Compare the rows that go with the retractions that take them, all columns."""
        emitted = self.delta.rows.take(pa.array(retracted.retractions))
        both = [pa.concat_arrays([emitted.column(name), _one_chunk(rows.column(name))]) for name in emitted.schema.names]
        groups = group_keys(both)
        different = np.flatnonzero(groups[: len(retracted.positions)] != groups[len(retracted.positions) :])
        if len(different):
            row = int(different[0])
            held = {name: shown_value(rows.column(name), row) for name in rows.schema.names}
            raise self._absent(int(retracted.retractions[row]), f"its key holds {held}", len(different))

    def _refuse_absent(self, mine: _Int64s, needed: _Int64s, held: _Int64s) -> None:
        short = np.flatnonzero((self.delta.weights[self._looked_for] < 0) & (needed > held)[mine])
        if len(short):
            first = int(short[0])
            raise self._absent(int(self._looked_for[first]), f"the view holds it {int(held[mine[first]])} times", len(short))

    def _absent(self, row: int, instead: str, count: int) -> SinkError:
        weight = int(self.delta.weights[row])
        named = self._named(row, self.delta.schema.names)
        return unheld_row(self._described, self._epoch, named, weight, instead, key=self._key, retractions=count)

    def _refuse_second(self, mine: _Int64s, live: _Int64s) -> None:
        doubled = np.flatnonzero((live > 1)[mine] & (self.delta.weights[self._looked_for] > 0))
        if len(doubled):
            key = self._named(int(self._looked_for[doubled[0]]), self._key)
            raise claimed_key(self._described, self._epoch, key)

    def _named(self, row: int, names: Sequence[str]) -> dict[str, Any]:
        return {name: shown_value(self.delta.rows.column(name), row) for name in names}


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, copied only when it has several chunks."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _added_up(groups: _Int64s, amounts: _Int64s, count: int) -> _Int64s:
    total = np.zeros(count, np.int64)
    np.add.at(total, groups, amounts)
    return total


def _first_of_each(groups: _Int64s, needed: _Int64s, count: int) -> npt.NDArray[np.bool_]:
    """Mark the first rows of each group, as many as are needed; groups from `count` on need none."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = np.searchsorted(ordered, ordered, side="left")
    known = ordered < count
    chosen = np.zeros(len(groups), np.bool_)
    chosen[order[known]] = (np.arange(len(groups)) - starts)[known] < needed[ordered[known]]
    return chosen
