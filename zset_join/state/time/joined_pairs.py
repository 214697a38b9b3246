"""From transitions of left rows to the lines of an answer.

A transition holds with what a left row was joined and with what it is: the address of a right row, 0 for nothing, -1 where
the left row is absent. The rest of ON is evaluated on every right row that occurs, unless it has chosen the row; one that does
not pass is nothing. An inner join emits no row for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.expressions import evaluate, references
from zset_join.shapes.version_join import VersionJoinShape
from zset_join.state.time.row_store import RowStore
from zset_join.zset import ZSet
from zset_join.zset.row_layout import RowLayout

__all__ = ["JoinedPairs", "Transitions"]

_Words = npt.NDArray[np.int64]
_ABSENT = -1
_AT_ONCE = 1 << 16


@dataclass(slots=True)
class Transitions:
    refs: _Words  # record addresses of left rows
    befores: _Words  # what each was joined with
    afters: _Words
    weights: _Words
    corrects: bool = False  # only the right side has changed: the left rows were present before and stay
    corrected: slice = field(default_factory=lambda: slice(0))  # their positions among the transitions

    @classmethod
    def added(cls, parts: Sequence[Transitions]) -> Transitions:
        if len(parts) == 1:
            return parts[0]
        names = ("refs", "befores", "afters", "weights")
        refs, befores, afters, weights = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
        whole = cls(refs, befores, afters, weights)
        begin = 0
        for part in parts:
            if part.corrects:
                whole.corrected = slice(begin, begin + len(part.refs))
            begin += len(part.refs)
        return whole


class JoinedPairs:
    def __init__(
        self,
        shape: VersionJoinShape,
        left_layout: RowLayout,
        left_rows: RowStore | None,
        right_rows: RowStore,
        *,
        chunk_rows: int,
    ) -> None:
        self.corrections = 0
        self._schema, self._sources = shape.schema, list(shape.sources)
        self._left_rows, self._right_rows = left_rows, right_rows
        self._is_outer, self._residual, self._chunk_rows = shape.how == "left", shape.residual, chunk_rows
        self._is_chosen = shape.condition_chooses
        shown = [
            [relation.schema.get_field_index(name) for side, name in shape.sources if side == wanted]
            for wanted, relation in (("left", shape.left), ("right", shape.right))
        ]
        self._plans = (left_layout.gather_plan(shown[0]), right_rows.layout.gather_plan(shown[1]))
        if shape.residual is not None:
            self._names = tuple(sorted(names) for names in references(shape.residual))
            self._asked = (
                left_layout.gather_plan(shape.left.field_indices(self._names[0])),
                right_rows.layout.gather_plan(shape.right.field_indices(self._names[1])),
            )

    def _heap(self, side: int) -> int:
        if side == 1:
            return self._right_rows.heap_address
        return 0 if self._left_rows is None else self._left_rows.heap_address

    def passing(self, refs: _Words, matches: _Words) -> _Words:
        """Return the matches, those that do not pass the rest of ON as 0."""
        if self._residual is None:
            return matches
        requested = np.flatnonzero(matches > 0)
        passing = matches.copy()
        for begin in range(0, len(requested), _AT_ONCE):
            places = requested[begin : begin + _AT_ONCE]
            columns = []
            for side, addresses in enumerate((refs[places], matches[places])):
                addresses = np.ascontiguousarray(addresses)
                arrays = self._asked[side].gather(int(addresses.ctypes.data), len(addresses), self._heap(side))
                columns.append(dict(zip(self._names[side], arrays, strict=True)))
            passes = evaluate(self._residual, columns[0], columns[1], len(places))
            passing[places[~passes]] = 0
        return passing

    def lines(self, transitions: Transitions) -> Iterator[ZSet]:
        """Yield retractions, then insertions."""
        befores, afters = transitions.befores, transitions.afters
        if not self._is_chosen:
            befores, afters = self.passing(transitions.refs, befores), self.passing(transitions.refs, afters)
        if not self._is_outer:
            befores, afters = np.where(befores == 0, _ABSENT, befores), np.where(afters == 0, _ABSENT, afters)
        changed = befores != afters
        retracted = (changed & (befores != _ABSENT))[transitions.corrected]
        self.corrections = int(transitions.weights[transitions.corrected][retracted].sum())
        for matches, sign in ((befores, -1), (afters, 1)):
            shown = np.flatnonzero(changed & (matches != _ABSENT))
            for begin in range(0, len(shown), self._chunk_rows):
                places = shown[begin : begin + self._chunk_rows]
                yield self._gathered(transitions.refs[places], matches[places], sign * transitions.weights[places])

    def _gathered(self, refs: _Words, matches: _Words, weights: _Words) -> ZSet:
        columns = []
        for side, addresses in enumerate((refs, matches)):
            addresses = np.ascontiguousarray(addresses)
            columns.append(iter(self._plans[side].gather(int(addresses.ctypes.data), len(addresses), self._heap(side))))
        ordered = [next(columns[0 if side == "left" else 1]) for side, _ in self._sources]
        return ZSet(pa.RecordBatch.from_arrays(ordered, schema=self._schema), weights)
