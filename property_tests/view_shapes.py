"""DISTINCT, UNION, WHERE and SELECT under test: their inputs, and the oracle's verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hypothesis import strategies as st

from property_tests.aggregate_shapes import FILTERS
from property_tests.shapes import KEY_SHAPES, PAYLOADS, Change, KeyShape, Knobs, Mode, live_rows, oracle_side, relation_of
from property_tests.strategies import Pick, drawn, make_knobs
from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.operators.aggregate import Distinct
from zset_join.operators.stateless import Select, Union, Where
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.testing import reference as oracle
from zset_join.zset import ZSet
from zset_join.zset.protocol import Operator

__all__ = ["VIEW_KINDS", "ViewKind", "ViewSpec", "build_view", "view_specs"]

ViewKind = Literal["distinct", "union", "where", "select"]
VIEW_KINDS: tuple[ViewKind, ...] = ("distinct", "union", "where", "select")
_SELECTED = {"f": "x", "x": "f", "kept": "k0"}  # names change places, most columns go


@dataclass(frozen=True)
class ViewSpec:
    """Everything about one view under test."""

    kind: ViewKind
    inputs: tuple[Relation, ...]
    key_shape: KeyShape
    payload: str
    id_type: str
    knobs: Knobs = field(default_factory=Knobs)

    def expected(self, changes: Sequence[Change]) -> oracle.Counts:
        """Return the oracle's output for all changes so far."""
        counts: oracle.Counts = {}
        for number, relation in enumerate(self.inputs):
            side = oracle_side(relation)
            for row, weight in live_rows(side, changes, number):
                if self.kind == "where" and FILTERS["x_positive"][1](row) is not True:
                    continue
                shown = _SELECTED.values() if self.kind == "select" else side.columns
                key = oracle.row_identity(row[name] for name in shown)
                counts[key] = 1 if self.kind == "distinct" else counts.get(key, 0) + weight
        return counts

    def __repr__(self) -> str:
        return f"{self.kind} of {[(one.mode, one.schema.names) for one in self.inputs]} {self.knobs}"


class CompactingDistinct(Distinct):
    """A `Distinct` that compacts after every epoch, however few rows are dead."""

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        """Absorb, then compact."""
        super().absorb(tick, deltas)
        self._input.state.begin()
        self._input.state.compact()
        self._input.state.end(tick.epoch)


def build_view(spec: ViewSpec, *, on_bad_input: str = "error", directory: str | None = None) -> Operator:
    """Build the product's operator of a spec; only DISTINCT keeps anything in a directory."""
    options: dict[str, Any] = {"on_bad_input": on_bad_input, "chunk_rows": spec.knobs.chunk_rows}
    if spec.kind == "union":
        return Union(spec.inputs, **options)
    (relation,) = spec.inputs
    if spec.kind == "where":
        return Where(relation, FILTERS["x_positive"][0], **options)
    if spec.kind == "select":
        return Select(relation, _SELECTED, **options)
    make = CompactingDistinct if spec.knobs.compacting else Distinct
    knobs = {"hash_bits": spec.knobs.hash_bits, "hash_seed": spec.knobs.hash_seed}
    return make(relation, options=OperatorOptions(**options, **knobs, directory=directory))


def view_specs(kind: ViewKind, mode: Mode) -> st.SearchStrategy[ViewSpec]:
    """Draw views of one kind over inputs in one mode."""

    def make(pick: Pick) -> ViewSpec:
        shapes = [name for name, shape in KEY_SHAPES.items() if shape.is_symmetric]
        shape = KEY_SHAPES[pick(shapes)]
        payload, id_type = pick(sorted(PAYLOADS)), pick(("float64", "int64", "string"))
        inputs = tuple(
            relation_of(side, mode, shape.name, primary_key=pick(("id", "two_ids")), payload=payload, id_type=id_type)
            for side in range(2 if kind == "union" else 1)
        )
        return ViewSpec(kind, inputs, shape, payload=payload, id_type=id_type, knobs=make_knobs(pick))

    return drawn(make)
