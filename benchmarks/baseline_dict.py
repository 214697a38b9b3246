"""Baseline: the join a good Python programmer writes by hand, dicts of tuples and one change at a time.

Per side: primary key -> row, and join key -> {primary key -> row}. An upsert retracts the joined rows of the row it
replaces and emits those of the new one; a row equal to the stored one changes nothing. The answer is a list of `(row,
weight)`, not consolidated: a row that arrives and goes within one epoch is in it twice, with opposite signs.

Made as fast as plain Python allows: rows are ready-made tuples, key positions are fixed per side, hot names are
local, both sides have their own copy of the loop. The garbage collector runs with Python's own settings, but the
loaded state is hidden from it (`gc.freeze`); `DictJoinWithoutGc` turns it off altogether, which pays where an epoch
makes millions of tuples. Remembers about 500 bytes per row.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from benchmarks.workloads import LEFT, RIGHT, Epoch
from zset_join.core.relation import Relation

__all__ = ["DictJoin", "DictJoinWithoutGc"]

Row = tuple[Any, ...]
Changes = list[tuple[Row, int]]


class DictJoin:
    """Keep an inner join up to date with dicts.

    Args:
        relations: left and right, with one primary key column and one join key column each.
    """

    def __init__(self, relations: tuple[Relation, Relation]) -> None:
        self._primary = tuple(relation.field_indices(relation.primary_key)[0] for relation in relations)
        self._join = tuple(relation.field_indices(relation.join_key)[0] for relation in relations)
        self._rows: tuple[dict[Any, Row], dict[Any, Row]] = ({}, {})
        self._by_key: tuple[dict[Any, dict[Any, Row]], dict[Any, dict[Any, Row]]] = (
            defaultdict(dict),
            defaultdict(dict),
        )

    def load(self, side: int, rows: pa.RecordBatch) -> None:
        """Store first rows, without garbage collection."""
        gc.disable()
        primary, join, stored, by_key = self._primary[side], self._join[side], self._rows[side], self._by_key[side]
        for row in _tuples(rows):
            stored[row[primary]] = row
            by_key[row[join]][row[primary]] = row

    def loaded(self) -> None:
        """Hide the loaded rows from the garbage collector."""
        gc.freeze()
        gc.enable()

    def prepare(self, epoch: Epoch) -> tuple[Changes, Changes]:
        """Return both deltas as lists of `(row, weight)`."""
        left, right = (list(zip(_tuples(delta.rows), delta.weights.tolist(), strict=True)) for delta in epoch.deltas)
        return left, right

    def step(self, prepared: tuple[Changes, Changes]) -> Changes:
        """Apply the left changes, then the right changes."""
        answer: Changes = []
        self._apply_left(prepared[LEFT], answer)
        self._apply_right(prepared[RIGHT], answer)
        return answer

    def count_rows(self, answer: Changes) -> int:
        """Count the emitted rows."""
        return len(answer)

    def weighted_rows(self, answer: Changes) -> Iterator[tuple[Row, int]]:
        """Yield the emitted rows."""
        return iter(answer)

    def _apply_left(self, changes: Changes, answer: Changes) -> None:
        primary, join = self._primary[LEFT], self._join[LEFT]
        stored, by_key, other_by_key = self._rows[LEFT], self._by_key[LEFT], self._by_key[RIGHT]
        emit, matches_of = answer.append, other_by_key.get
        for row, weight in changes:
            identity = row[primary]
            old = stored.get(identity)
            if old is not None:
                if weight > 0 and old == row:
                    continue
                key = old[join]
                for match in (matches_of(key) or _NO_MATCHES).values():
                    emit((old + match, -1))
                if weight < 0 or key != row[join]:
                    rows_of_key = by_key[key]
                    del rows_of_key[identity]
                    if not rows_of_key:
                        del by_key[key]
            if weight > 0:
                key = row[join]
                stored[identity] = row
                by_key[key][identity] = row
                for match in (matches_of(key) or _NO_MATCHES).values():
                    emit((row + match, 1))
            elif old is not None:
                del stored[identity]

    def _apply_right(self, changes: Changes, answer: Changes) -> None:
        primary, join = self._primary[RIGHT], self._join[RIGHT]
        stored, by_key, other_by_key = self._rows[RIGHT], self._by_key[RIGHT], self._by_key[LEFT]
        emit, matches_of = answer.append, other_by_key.get
        for row, weight in changes:
            identity = row[primary]
            old = stored.get(identity)
            if old is not None:
                if weight > 0 and old == row:
                    continue
                key = old[join]
                for match in (matches_of(key) or _NO_MATCHES).values():
                    emit((match + old, -1))
                if weight < 0 or key != row[join]:
                    rows_of_key = by_key[key]
                    del rows_of_key[identity]
                    if not rows_of_key:
                        del by_key[key]
            if weight > 0:
                key = row[join]
                stored[identity] = row
                by_key[key][identity] = row
                for match in (matches_of(key) or _NO_MATCHES).values():
                    emit((match + row, 1))
            elif old is not None:
                del stored[identity]


class DictJoinWithoutGc(DictJoin):
    """The same join with the garbage collector off."""

    def loaded(self) -> None:
        """Leave the garbage collector off."""


_NO_MATCHES: dict[Any, Row] = {}


def _tuples(rows: pa.RecordBatch) -> Iterator[Row]:
    return zip(*(column.to_pylist() for column in rows.columns), strict=True)
