"""The lookup join under test over an external table that does not change: its inputs, and the oracle's verdict.

While the external table does not change, the sum of the answers is the batch join, so every law of an operator holds. The rows
that the external table has for a key are decided by the key alone: none, one or two.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from property_tests.shapes import PAYLOADS, Change, KeyShape, Knobs, Mode, key_shape_named, live_rows, oracle_side, relation_of
from property_tests.strategies import Pick, drawn, make_knobs
from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.expressions import left, right
from zset_join.operators.lookup_join import LookupJoin
from zset_join.shapes.lookup import LookupTerms
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.testing import reference as oracle
from zset_join.zset import ZSet
from zset_join.zset.protocol import Operator

__all__ = ["FetchingLookup", "LookupSpec", "build_lookup", "lookup_specs"]

_SHAPES = ("int64", "float64", "string", "int64+string", "float64+bool", "decimal", "date", "timestamp")


def _known(key: tuple[Hashable, ...]) -> range:
    """Return the external rows of a key: a value per row."""
    return range(zlib.crc32(repr(key).encode()) % 3)


@dataclass(frozen=True)
class LookupSpec:
    """Everything about one lookup join under test."""

    how: str
    inputs: tuple[Relation, ...]
    key_shape: KeyShape
    payload: str
    id_type: str
    has_residual: bool
    knobs: Knobs = field(default_factory=Knobs)

    @property
    def table(self) -> Relation:
        """Return the external table: the key columns and a value."""
        (probe,) = self.inputs
        fields = [(f"t{at}", probe.schema.field(name).type) for at, name in enumerate(probe.join_key)]
        return Relation(
            name="table", schema=pa.schema([*fields, ("y", pa.int64())]), join_key=tuple(name for name, _ in fields)
        )

    def expected(self, changes: Sequence[Change]) -> oracle.Counts:
        """Return the oracle's output for all changes so far."""
        (probe,) = self.inputs
        side = oracle_side(probe)
        counts: oracle.Counts = {}
        for row, weight in live_rows(side, changes, 0):
            key = oracle.row_identity(row[name] for name in probe.join_key)
            is_looked_up = all(row[name] is not None for name in probe.join_key)
            own = oracle.row_identity(row[name] for name in side.columns)
            met = [value for value in _known(key) if is_looked_up and self._passes(row["x"], value)]
            lines = [(*own, *key, oracle.identity(value)) for value in met]
            if not met and self.how == "left":
                lines = [(*own, *oracle.row_identity([None] * (len(key) + 1)))]
            for line in lines:
                counts[line] = counts.get(line, 0) + weight
        return counts

    def _passes(self, own: int | None, value: int) -> bool:
        return not self.has_residual or (own is not None and value <= own)

    def __repr__(self) -> str:
        (probe,) = self.inputs
        return f"lookup {self.how} of {probe.mode} {probe.schema.names}, residual {self.has_residual}, {self.knobs}"


def _is_same(one: ZSet, other: ZSet) -> bool:
    return one.rows.equals(other.rows) and np.array_equal(one.weights, other.weights)


class FetchingLookup:
    """A lookup join that is given the fetched rows, as a runner does it."""

    def __init__(self, join: LookupJoin) -> None:
        self._join = join
        self.inputs, self.output = join.inputs[:1], join.output
        self._fetched: tuple[int, ZSet, ZSet] | None = None

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Fetch, then answer."""
        return self._join.answer(tick, self._completed(tick, deltas))

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        """Fold the rows and their fetched rows."""
        self._join.absorb(tick, self._completed(tick, deltas))

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        """Return the rows of the stream that break its contract; nothing is fetched yet."""
        return self._join.rejections(tick, [*deltas, ZSet.empty(self._join.inputs[1].schema)])

    def _completed(self, tick: Tick, deltas: Sequence[ZSet]) -> list[ZSet]:
        if len(deltas) != 1:
            return list(deltas)  # the join raises the error
        if self._fetched is not None and self._fetched[0] == tick.epoch and _is_same(self._fetched[1], deltas[0]):
            return [deltas[0], self._fetched[2]]  # a runner fetches once per epoch
        keys = self._join.keys_to_fetch(tick, deltas[0])
        rows = [{**key, "y": value} for key in keys.to_pylist() for value in _known(oracle.row_identity(key.values()))]
        table = self._join.shape.table.schema
        self._fetched = tick.epoch, deltas[0], self._join.fetched_answer(keys, pa.Table.from_pylist(rows, schema=table))
        return [deltas[0], self._fetched[2]]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._join, name)


def build_lookup(spec: LookupSpec, *, on_bad_input: str = "error", directory: str | None = None) -> Operator:
    """Build the product's lookup join of a spec, and its fetching."""
    join = LookupJoin(
        spec.inputs[0],
        spec.table,
        LookupTerms(how=spec.how, residual=right("y") <= left("x") if spec.has_residual else None),
        options=OperatorOptions(
            on_bad_input=on_bad_input, chunk_rows=spec.knobs.chunk_rows, hash_bits=spec.knobs.hash_bits, directory=directory
        ),
    )

    return cast("Operator", FetchingLookup(join))  # the rest of the protocol is the join's


def lookup_specs(mode: Mode) -> st.SearchStrategy[LookupSpec]:
    """Draw lookup joins over a stream in one mode."""

    def make(pick: Pick) -> LookupSpec:
        shape = key_shape_named(pick(_SHAPES))
        payload, id_type = pick(sorted(PAYLOADS)), pick(("float64", "int64", "string"))
        probe = relation_of(0, mode, shape.name, primary_key=pick(("id", "two_ids")), payload=payload, id_type=id_type)
        return LookupSpec(
            pick(("inner", "left")), (probe,), shape, payload, id_type, pick((False, True)), knobs=make_knobs(pick)
        )

    return drawn(make)
