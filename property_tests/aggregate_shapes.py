"""The aggregates under test: which columns are grouped and aggregated, and how one is built.

An `AggregateSpec` describes one aggregate completely and returns the oracle's verdict on a list of changes. The rows are
those of the left side of a join under test (columns id, id2, keys, x, f, v), so that histories, bad lines and splits are
shared.

`x` holds small integers, `f` floats with NaN and both zeros, `v` any payload: extreme floats, decimals, dates,
strings, nested values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from hypothesis import strategies as st

from property_tests.shapes import (
    AGGREGATE_PAYLOADS,
    BUDGETS,
    KEY_SHAPES,
    Change,
    KeyShape,
    Knobs,
    Mode,
    live_rows,
    oracle_side,
    relation_of,
)
from property_tests.strategies import Pick, drawn, make_knobs
from zset_join.aggregates import AggregateCall
from zset_join.aggregates.accumulation import Preaggregation
from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.expressions import Expression, left
from zset_join.operators.aggregate import Aggregate
from zset_join.testing import reference as oracle
from zset_join.testing.reference_aggregate import Call, Filter, batch_aggregate
from zset_join.zset import ZSet

__all__ = [
    "AggregateSpec",
    "Choice",
    "PreaggregatedAggregate",
    "aggregate_specs",
    "build_aggregate",
    "build_preaggregated",
    "make_aggregate_spec",
]


@dataclass(frozen=True, slots=True)
class Choice:
    """One call, as the engine and as the oracle want it, apart from its filter."""

    function: str
    columns: tuple[str, ...] = ()
    filtered: str = ""


FILTERS: dict[str, tuple[Expression, Filter]] = {
    "x_positive": (left("x") > 0, lambda row: None if row["x"] is None else bool(row["x"] > 0)),
    "f_known": (left("f").isNotNull(), lambda row: row["f"] is not None),
}
_KINDS = {"mean": "avg", "first": "min_by", "last": "max_by", "variance": "var_samp", "stddev": "stddev_samp"}
_NUMBERS = ("sum", "avg", "mean", "var_pop", "var_samp", "stddev", "stddev_pop")
_ORDERED = ("min", "max", "collect_list", "collect_set")
_SINGLE_VALUES = ("min", "max", "count_distinct", "collect_set", "collect_list")  # of x: they keep every value of it


@dataclass(frozen=True)
class AggregateSpec:
    """Everything about one aggregate under test."""

    relation: Relation
    group_by: tuple[str, ...]
    choices: tuple[Choice, ...]
    key_shape: KeyShape
    payload: str
    id_type: str
    knobs: Knobs = field(default_factory=Knobs)

    @property
    def inputs(self) -> tuple[Relation, ...]:
        """Return the relations in input order."""
        return (self.relation,)

    def calls(self) -> list[AggregateCall]:
        """Return the calls as the engine wants them."""
        return [
            AggregateCall(
                choice.function,
                choice.columns,
                name=f"{number} {choice.function}",
                where=FILTERS[choice.filtered][0] if choice.filtered else None,
            )
            for number, choice in enumerate(self.choices)
        ]

    def expected(self, changes: Sequence[Change]) -> oracle.Counts:
        """Return the oracle's output for all changes so far."""
        return batch_aggregate(live_rows(oracle_side(self.relation), changes, 0), self.group_by, self.oracle_calls())

    def oracle_calls(self) -> list[Call]:
        """Return the calls as the oracle wants them."""
        return [
            Call(
                _KINDS.get(choice.function, choice.function),
                choice.columns,
                FILTERS[choice.filtered][1] if choice.filtered else None,
                self._scale(choice),
            )
            for choice in self.choices
        ]

    def _scale(self, choice: Choice) -> int | None:
        kind = _KINDS.get(choice.function, choice.function)
        if kind not in ("sum", "avg") or not pt.is_decimal(self.relation.schema.field(choice.columns[0]).type):
            return None
        scale: int = self.relation.schema.field(choice.columns[0]).type.scale
        return scale if kind == "sum" else min(scale + 4, 38)

    def __repr__(self) -> str:
        return f"{list(self.choices)} of {self.relation.mode} {self.relation.schema.names} by {self.group_by} {self.knobs}"


def build_aggregate(spec: AggregateSpec, *, on_bad_input: str = "error", directory: str | None = None) -> Aggregate:
    """Build the product's aggregate of a spec."""
    make = CompactingAggregate if spec.knobs.compacting else Aggregate
    return make(
        spec.relation,
        spec.group_by,
        spec.calls(),
        options=spec.knobs.options(on_bad_input, directory, may_be_hybrid=bool(spec.group_by)),
    )


class CompactingAggregate(Aggregate):
    """An `Aggregate` that compacts after every epoch, however few groups are dead."""

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        """Absorb, then compact."""
        super().absorb(tick, deltas)
        self._input.state.begin()
        self._input.state.compact()
        self._input.state.end(tick.epoch)


def make_aggregate_spec(
    pick: Pick,
    mode: Mode,
    *,
    is_global: bool = False,
    keeps_values: bool = True,
    payloads: Sequence[str] = tuple(AGGREGATE_PAYLOADS),
    functions: Sequence[str] = (),
    key_shapes: Sequence[str] = tuple(KEY_SHAPES),
) -> AggregateSpec:
    """Return an aggregate; everything that is not given is picked.

    Args:
        pick: chooses.
        mode: of the input.
        is_global: whether there is no key.
        keeps_values: whether one aggregate keeps the values of `x`, so that a retraction of an absent row shows.
        payloads: types of `v` to choose from.
        functions: functions that must be among the calls, of `v`.
        key_shapes: group keys to choose from.
    """
    shape = KEY_SHAPES[pick(key_shapes)]
    payload, id_type = pick(payloads), pick(("float64", "int64", "string"))
    relation = relation_of(0, mode, shape.name, primary_key=pick(("id", "two_ids")), payload=payload, id_type=id_type)
    choices = [Choice(pick(_SINGLE_VALUES), ("x",))] if keeps_values else []
    choices += [Choice(function, ("v",)) for function in functions]
    for _ in range(pick((1, 2, 3, 4))):
        choices.append(_pick_choice(pick, relation.schema, keeps_values=keeps_values))
    group_by = () if is_global else relation.join_key
    knobs = dataclasses.replace(make_knobs(pick), budget=pick((None, None, None, *BUDGETS)))
    return AggregateSpec(relation, group_by, tuple(choices), shape, payload=payload, id_type=id_type, knobs=knobs)


def _pick_choice(pick: Pick, schema: pa.Schema, *, keeps_values: bool) -> Choice:
    column = pick(("v", "x", "f", "v"))
    kind = schema.field(column).type
    functions: list[str] = ["count"]
    if (pt.is_integer(kind) and not pt.is_uint64(kind)) or pt.is_floating(kind) or pt.is_decimal(kind):
        functions += _NUMBERS
    if keeps_values:
        functions.append("count_distinct")
        if not pt.is_nested(kind):
            functions += _ORDERED
    function = pick(functions)
    filtered = pick(("", "", "x_positive", "f_known"))
    if function == "count" and pick((False, True)):
        return Choice("count", (), filtered)
    if function == "count_distinct" and pick((False, True)):
        return Choice(function, (column, "f"), filtered)
    if function in ("min", "max") and pick((False, True)):
        names = {"min": ("min_by", "first"), "max": ("max_by", "last")}
        return Choice(pick(names[function]), (column, pick(("x", "f"))), filtered)
    return Choice(function, (column,), filtered)


def aggregate_specs(mode: Mode, **narrowed: Any) -> st.SearchStrategy[AggregateSpec]:
    """Draw aggregates; `narrowed` goes to `make_aggregate_spec`."""
    return drawn(lambda pick: make_aggregate_spec(pick, mode, **narrowed))


class PreaggregatedAggregate:
    """Reduce, then aggregate.

    Args:
        spec: what to aggregate.
        directory: where the aggregate keeps its state.
    """

    def __init__(self, spec: AggregateSpec, *, directory: str | None = None) -> None:
        calls = spec.calls()
        self._reduction = Preaggregation(spec.relation, spec.group_by, calls)
        partial = self._reduction.is_partial
        self._aggregate = Aggregate(
            spec.relation if partial else self._reduction.relation,
            spec.group_by,
            calls,
            preaggregated=partial,
            options=spec.knobs.options("error", directory, may_be_hybrid=bool(spec.group_by)),
        )
        self.inputs: tuple[Relation, ...] = spec.inputs
        self.output = self._aggregate.output

    @property
    def absorbed_epoch(self) -> int:
        """Return the aggregate's."""
        return self._aggregate.absorbed_epoch

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Answer the reduced delta."""
        return self._aggregate.answer(tick, [self._reduced(deltas[0])])

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        """Absorb the reduced delta."""
        self._aggregate.absorb(tick, [self._reduced(deltas[0])])

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        """Return what the aggregate rejects."""
        return self._aggregate.rejections(tick, [self._reduced(deltas[0])])

    def resident_bytes(self) -> int:
        """Return the aggregate's bytes."""
        return self._aggregate.resident_bytes()

    def snapshot(self) -> Mapping[str, pa.Table]:
        """Return the aggregate's tables."""
        return self._aggregate.snapshot()

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Restore the aggregate."""
        self._aggregate.restore(tables)

    def close(self) -> None:
        """Close the aggregate."""
        self._aggregate.close()

    def _reduced(self, delta: ZSet) -> ZSet:
        half = len(delta) // 2
        parts = [
            self._reduction.reduce(ZSet(delta.rows.slice(begin, end - begin), delta.weights[begin:end]))
            for begin, end in ((0, half), (half, len(delta)))
        ]
        return ZSet.concat(parts, schema=self._reduction.relation.schema)


def build_preaggregated(
    spec: AggregateSpec, *, on_bad_input: str = "error", directory: str | None = None
) -> PreaggregatedAggregate:
    """Build both stages of a spec; partial lines go with policy `error` only."""
    return PreaggregatedAggregate(spec, directory=directory)
