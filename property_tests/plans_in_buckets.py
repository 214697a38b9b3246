"""A plan in several buckets per stage, with an exchange before every input, is the plan in one bucket.

The plan is the one that a pipeline runs: an exchange has the routes, and no pass of the planner has a number of buckets. Views
are those of `pipeline_plans`, over upserts with and without a sequence whose keys move, NULL keys among them, and the cores of
`evolving_timed` that look nothing up. Every few epochs the run goes on with another number of buckets.

The law: after every epoch the answers of all buckets together are the answer of the pipeline, and the tables of their
snapshots, put together, are those of its operators. Of a tombstone the key and the sequence count; the tables of stages about
time are not compared, since a bucket that is given nothing frees nothing, and of a side that drops rows for NULL in their key
the counts are not: a route sends a delete of such a row too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa

from property_tests.bags import bag_of
from property_tests.evolving_timed import CORES, Moments, drawn_core, drawn_timed_steps
from property_tests.laws import LawBrokenError
from property_tests.pipeline_plans import drawn_steps, drawn_view
from zset_join.core.epochs import Tick
from zset_join.pipeline import Pipeline, View
from zset_join.plan.query_plan import QueryPlan, StateNode
from zset_join.runners.common.exchange import Exchange, apart, side_table, together
from zset_join.runners.common.stage_bucket import StageBucket
from zset_join.runners.local.engine import MemoryStates
from zset_join.runners.local.feeding import Feeding, of_schema
from zset_join.runners.local.watermarks import Watermarks
from zset_join.stages.stage import StageOptions
from zset_join.state.rows.side_snapshot import SNAPSHOT_SEQUENCE, SNAPSHOT_WEIGHT, snapshot_counts
from zset_join.zset import ZSet

__all__ = ["PlanInBuckets", "plan_in_buckets_is_one", "plans_in_buckets_are_one"]

SECOND = 1_000_000
_TIMED = tuple(one for one in CORES if one != "lookup")
_OPTIONS = StageOptions()
_HUNTED = range(1, 60)


class PlanInBuckets:
    """Run a plan in memory; `before`: a run of the same plan to go on from."""

    def __init__(self, plan: QueryPlan, buckets: int, before: PlanInBuckets | None = None) -> None:
        self.plan, self.buckets = plan, buckets
        self.times = Watermarks(plan)
        with ExitStack() as opened:
            self.states = [MemoryStates(plan, _OPTIONS) for _ in range(buckets)]
            for one in self.states:
                opened.callback(one.close)
            self.exchanges = {
                (node.number, side): Exchange(given, buckets, _OPTIONS)
                for node in plan.nodes
                for side, given in enumerate(node.stage.inputs)
            }
            for exchange in self.exchanges.values():
                opened.callback(exchange.close)
            self._opened = opened.pop_all()
        self._fed = [
            [Feeding(plan, feeds, given.relation.schema) for feeds, given in zip(node.feeds, node.stage.inputs, strict=True)]
            for node in plan.nodes
        ]
        self._shown = {view.name: Feeding(plan, view.feeds, plan.output_of(view.name).schema) for view in plan.views}
        if before is not None:
            self.times.known = before.times.known
            self._continue(before)

    def close(self) -> None:
        self._opened.close()

    def tables(self, state: StateNode) -> dict[str, pa.Table]:
        """Return the snapshot of a state, put together."""
        operators = [one.states[state.number] for one in self.states]
        own = {} if state.is_shared else {side: one for (number, side), one in self.exchanges.items() if number == state.number}
        epoch = max(one.absorbed_epoch for one in operators)
        return together(state.stage, [one.snapshot() for one in operators], own, epoch=epoch)

    def _continue(self, before: PlanInBuckets) -> None:
        for state in self.plan.states:
            tables = before.tables(state)
            for one, part in zip(self.states, apart(state.stage, tables, self.buckets), strict=True):
                one.states[state.number].restore(part)
            for (number, side), exchange in self.exchanges.items():
                name = side_table(state.stage, side) if number == state.number and not state.is_shared else None
                if name is not None:
                    exchange.restore(tables[name])
        for place, exchange in self.exchanges.items():  # no table has all of its rows
            number, side = place
            route = before.exchanges[place].route
            if exchange.route is not None and route is not None and side_table(self.plan.nodes[number].stage, side) is None:
                exchange.route.restore(route.snapshot())

    def step(self, epoch: int, deltas: Mapping[str, ZSet], moment: int) -> dict[str, ZSet]:
        """Run an epoch; return the change of every view."""
        before, after = self.times.known, self.times.after(deltas, moment)
        known: dict[str | int, list[ZSet]] = {name: [rows] for name, rows in deltas.items()}
        ran: list[dict[int, tuple[Tick, list[ZSet]]]] = [{} for _ in self.states]
        sides: dict[tuple[int, int], list[ZSet]] = {}
        for node in self.plan.nodes:
            tick = Tick(epoch, moment, before.stages[node.number], after.stages[node.number])
            state = self.plan.state_of[node.number]
            for side in range(len(node.stage.inputs)):
                place = (state.number, side) if state.is_shared and side == 1 else (node.number, side)
                if place not in sides:
                    sides[place] = self._split(place, tick, known)
                sides[node.number, side] = sides[place]
            rule, answers = StageBucket.of(node.stage), []
            for bucket, states in enumerate(self.states):
                fed = [sides[node.number, side][bucket] for side in range(len(node.stage.inputs))]
                due = states.next_due(node.number).is_due(
                    watermark_us=tick.watermark_us, processing_time_us=tick.processing_time_us
                )
                answers.append(ZSet.empty(rule.shown))
                if any(map(len, fed)) or due or rule.begins(bucket, is_first=epoch == 0):
                    ran[bucket][node.number] = tick, fed
                    answers[-1] = _one(rule.answer(states.operator(node.number, tick), tick, fed), rule.shown)
            known[node.number] = answers
        shown = {name: _one(self._sent(feeding, known), feeding.schema) for name, feeding in self._shown.items()}
        for states, requested in zip(self.states, ran, strict=True):
            states.absorb(requested)
        self.times.known = after
        return shown

    def _sent(self, feeding: Feeding, known: Mapping[str | int, list[ZSet]]) -> list[ZSet]:
        """Return what every bucket before sends."""
        senders = [
            feeding.collect({origin: rows[one] for origin, rows in known.items() if one < len(rows)})
            for one in range(self.buckets)
        ]
        return [rows for rows in senders if len(rows)]

    def _split(self, place: tuple[int, int], tick: Tick, known: Mapping[str | int, list[ZSet]]) -> list[ZSet]:
        number, side = place
        given, exchange = self.plan.nodes[number].stage.inputs[side], self.exchanges[place]
        sent = self._sent(self._fed[number][side], known)
        sent = sent if given.reduce is None else [given.reduce.reduce(one) for one in sent]
        parts = [exchange.split(tick, one) for one in sent]
        if exchange.route is not None:
            exchange.absorb(tick, sent[0] if sent else ZSet.empty(given.fed.schema))
        return [_one([part[bucket] for part in parts], given.fed.schema) for bucket in range(self.buckets)]


def _one(pieces: Iterable[ZSet], schema: pa.Schema) -> ZSet:
    return ZSet.concat([of_schema(piece, schema) for piece in pieces], schema=schema)


def drawn(seed: int) -> tuple[View, list[Any]]:
    """Return a view and its epochs."""
    rng = np.random.default_rng([seed, 11])
    if seed % 3:
        return drawn_view(seed), drawn_steps(seed, epochs=8)
    core, _ = drawn_core(_TIMED[seed // 3 % len(_TIMED)], rng, Moments(seed))
    return core, drawn_timed_steps(rng, 8)


def plan_in_buckets_is_one(seed: int, buckets: Sequence[int] = (1, 2, 3, 5)) -> int:
    """Run the plan of a seed; return how many rows were compared.

    Raises:
        LawBrokenError: an answer or a table differs.
    """
    rng = np.random.default_rng([seed, 12])
    view, steps = drawn(seed)
    rows = 0
    with Pipeline(view) as one:
        many = PlanInBuckets(one.plan, int(rng.choice(buckets)))
        for epoch, step in enumerate(steps):
            if rng.random() < 0.4:
                before, many = many, PlanInBuckets(one.plan, int(rng.choice(buckets)), many)
                before.close()
            known = {name: delta for name, delta in step.items() if name in one.sources}
            what = f"seed {seed}, epoch {epoch}, {many.buckets} buckets"
            expected = bag_of(one.step(known, processing_time=epoch))
            (answer,) = many.step(epoch, known, epoch * SECOND).values()
            _same(expected, bag_of(answer), f"{what}: the answer", one)
            rows += expected.total()
            memory = one._memory
            assert memory is not None
            for state in (state for state in one.plan.states if state.stage.follows_from_rows):
                alone, tables = memory.states[state.number].snapshot(), many.tables(state)
                for name, table in alone.items():
                    _same(_rows(state, name, table), _rows(state, name, tables[name]), f"{what}: {state.name}.{name}", one)
        many.close()
    return rows


def plans_in_buckets_are_one() -> None:
    """Run the plans of some seeds."""
    for seed in _HUNTED:
        plan_in_buckets_is_one(seed, (3, 5))


def _rows(state: StateNode, name: str, table: pa.Table) -> Counter[Any]:
    """Return the rows of a table, and what it counts."""
    rule = state.stage.state_tables[name]
    given = None if rule.of_input is None else state.stage.inputs[rule.of_input]
    keys = () if given is None else given.relation.primary_key
    rows: Counter[Any] = Counter()
    for row in table.to_pylist():
        if row.get(SNAPSHOT_WEIGHT) == 0:
            row = {key: value for key, value in row.items() if key in keys or key.startswith(SNAPSHOT_SEQUENCE)}
        rows[repr(row)] += 1
    if rule.is_whole and given is not None and (given.keeps_unmatchable or given.relation.sequence_by):
        rows.update(dict(zip(("stale changes", "unknown deletes"), snapshot_counts(table), strict=False)))
    return rows


def _same(expected: Counter[Any], actual: Counter[Any], what: str, pipeline: Pipeline) -> None:
    if expected != actual:
        lines = [f"    {row}: expected {expected[row]}, actual {actual[row]}" for row in {**expected, **actual}]
        differing = [line for line, row in zip(lines, {**expected, **actual}, strict=True) if expected[row] != actual[row]]
        raise LawBrokenError("\n".join([f"{what} differs", *differing, pipeline.explanation()]))
