"""Joins by time and dedups equal their batch queries, over all input and over tables alone."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from zset_join import Relation, Tick, ZSet
from zset_join.expressions import left, right
from zset_join.plan.query_plan import Feed, PlanSource, PlanView, QueryPlan, StageNode
from zset_join.shapes.timed_join import AsOfOptions, TemporalOptions
from zset_join.stages import AsOfJoinStage, DeduplicateStage, Stage, StageOptions, TemporalJoinStage
from zset_join.tools.batch import DUCKDB, BatchTimes, batch_parts, live_name, marks_name, one_statement, source_name

LEFT = pa.schema([("id", pa.int64()), ("k", pa.string()), ("t", pa.int64())])
RIGHT = pa.schema([("v", pa.int64()), ("k", pa.string()), ("at", pa.int64())])
Lines = list[tuple[tuple[Any, ...], int]]
Weights = Counter[tuple[str | None, ...]]


def relations(*, left_mode: Any = "changelog") -> dict[str, Any]:
    """Return the two sides of a join by time, both with a watermark one behind."""
    timed = {"join_key": ("k",), "watermark_delay": 1}
    return {
        "left": Relation(name="l", schema=LEFT, mode=left_mode, event_time="t", **timed),
        "right": Relation(name="r", schema=RIGHT, mode="changelog", primary_key=("k",), event_time="at", **timed),
    }


def dedup(order: str, keep: Any, n: int) -> Stage:
    source = Relation(name="r", schema=RIGHT, mode="changelog")
    return DeduplicateStage(source=source, keys=("k",), order_by=(order,), keep=keep, n=n)


def as_of(**options: Any) -> Stage:
    return AsOfJoinStage(**relations(), options=AsOfOptions(left_time="t", right_time="at", **options))


def temporal(**options: Any) -> Stage:
    left_mode = "changelog" if options["emit"] == "eager" else "append"
    return TemporalJoinStage(**relations(left_mode=left_mode), options=TemporalOptions(**options))


STAGES = (
    dedup("at desc", "first", 2),
    dedup("at", "first", 1),
    as_of(op=">=", how="left", tolerance=2),
    as_of(op="<"),
    as_of(op=">=", how="left", residual=(right("v") != 1) | (left("id") != 1)),
    temporal(emit="once", how="left"),
    temporal(emit="on_watermark", late="drop"),
    temporal(emit="eager", how="left", late="join", keep_probe_for=3),
)


class Bucket:
    """A stage at work in a bucket of thirty keys, each of which is a history of its own."""

    def __init__(self, stage: Stage, draw: random.Random) -> None:
        self.stage, self.draw, self.number, self.top = stage, draw, 0, 0
        self.operator = stage.build(StageOptions(), None)
        self.relations = [given.relation for given in stage.inputs]
        self.live: list[Counter[tuple[Any, ...]]] = [Counter() for _ in self.relations]
        self.logged: list[list[tuple[Any, ...]]] = [[] for _ in self.relations]
        self.largest: list[int | None] = [None] * len(self.relations)
        self.marks: list[tuple[int, int]] = []
        self.ticks: list[dict[str, int | None]] = []
        self.answer: Weights = Counter()
        for epoch in range(6):
            self.top += draw.randint(1, 3)
            self._step(epoch, [self._lines(side) for side in range(len(self.relations))])

    def _lines(self, side: int) -> Lines:
        draw, relation = self.draw, self.relations[side]
        lines: Lines = []
        for _ in range(draw.randint(20, 40)):
            self.number += 1
            row = (draw.choice([self.number, 1]), f"k{draw.randint(0, 29)}", self.top + draw.randint(-4, 3))
            lines.append((row, draw.choice([1, 1, 2])))
        if relation.mode == "changelog":
            there = self.live[side] + Counter({row: 0 for row, _ in lines})
            for row, weight in lines:
                there[row] += weight
            lines += [(row, -1) for row in draw.sample(sorted(there), min(len(there), 12)) if there[row] > 0]
        return lines

    def _step(self, epoch: int, lines: list[Lines]) -> None:
        before = self.marks[-1][1] if self.marks else None
        for side, relation in enumerate(self.relations):
            if relation.watermark_delay is not None:
                times = [row[-1] for row, weight in lines[side] if weight > 0]
                self.largest[side] = max([*times, *(one for one in [self.largest[side]] if one is not None)])
        known = [one for one in self.largest if one is not None]
        after = min(known) - 1 if known else None
        if after is not None and (before is None or after > before):
            self.marks.append((epoch, after))
        tick = Tick(epoch, None, before, after)
        self.ticks.append({"e": epoch, "before": before, "mark": after})
        deltas = [self._delta(side, lines[side]) for side in range(len(lines))]
        rejected = self.operator.rejections(tick, deltas).to_pylist()
        for side, relation in enumerate(self.relations):
            late = {line["row"] for line in rejected if line["input"] == relation.name}
            lines[side] = [line for at, line in enumerate(lines[side]) if at not in late]
            for place, (row, weight) in enumerate(lines[side]):
                self.live[side][row] += weight
                self.logged[side].append((*row, weight, epoch, 1000 * epoch + place))
        deltas = [self._delta(side, lines[side]) for side in range(len(lines))]
        for chunk in self.operator.answer(tick, deltas):
            for row, weight in chunk.to_pylist():
                self.answer[tuple(None if value is None else str(value) for value in row)] += weight
        self.operator.absorb(tick, deltas)

    def _delta(self, side: int, lines: Lines) -> ZSet:
        return ZSet.from_rows([row for row, _ in lines], self.relations[side].schema, weights=[one for _, one in lines])

    @property
    def plan(self) -> QueryPlan:
        """Return the stage as a query of its own."""
        sources = tuple(PlanSource(relation=relation) for relation in self.relations)
        feeds = tuple((Feed(source.name),) for source in sources)
        return QueryPlan(sources, (StageNode(0, self.stage, feeds),), (PlanView("view", (Feed(0),)),))

    def marks_table(self) -> pa.Table:
        """Return the watermark before and after every epoch."""
        return pa.Table.from_pylist(self.ticks, pa.schema([(name, pa.int64()) for name in ("e", "before", "mark")]))

    def changes(self) -> list[pa.Table]:
        """Return what was logged, per input, as the batch query reads it."""
        tables = []
        for relation, lines in zip(self.relations, self.logged, strict=True):
            kinds = [*relation.schema.types, *[pa.int64()] * 3]
            columns = [pa.array([line[at] for line in lines], kind) for at, kind in enumerate(kinds)]
            tables.append(pa.table(columns, names=["c0", "c1", "c2", "w", "e", "n"]))
        return tables


def answers(connection: duckdb.DuckDBPyConnection, statement: str) -> Weights:
    """Return the rows of a statement as texts, with their weights."""
    return Counter(
        tuple(None if value is None else str(value) for value in row) for row in connection.sql(statement).fetchall()
    )


@pytest.mark.parametrize("number", range(len(STAGES)))
def test_every_row_is_judged_where_all_changes_are_known_and_only_ties_are_not_where_they_are_not(number: int) -> None:
    bucket = Bucket(STAGES[number], random.Random(number))
    answer = {row: weight for row, weight in bucket.answer.items() if weight}
    known = batch_parts(bucket.plan, [BatchTimes()], DUCKDB, marked=[0])
    rows = {relation.name: "rows" for relation in bucket.relations}
    with duckdb.connect() as connection:
        for at, changes in enumerate(bucket.changes()):
            connection.register(source_name(at), changes)
            connection.execute(
                f"CREATE VIEW {live_name(at)} AS SELECT c0, c1, c2, sum(w) AS w FROM {source_name(at)} GROUP BY ALL HAVING sum(w) > 0"
            )
        connection.register(marks_name(0), bucket.marks_table())

        assert answers(connection, one_statement(known)) == answer

        if bucket.stage.kind != "temporal_join":
            alone = batch_parts(bucket.plan, [BatchTimes()], DUCKDB, forms=rows)
            table, tied = answers(connection, one_statement(alone)), answers(connection, one_statement(alone, of_ties=True))
            wrong = {row for row in {*answer, *table} if answer.get(row, 0) != table[row]}
            assert wrong <= set(tied)
            assert 0 < len(tied) < len(answer)
