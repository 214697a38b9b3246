"""verify() of temporal joins knows what had come when an answer became final."""

from __future__ import annotations

import random
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.conftest import Collected, Source
from zset_join import Relation, Tick, ZSet
from zset_join.shapes.as_of_join import AsOfOptions
from zset_join.shapes.temporal_join import TemporalOptions
from zset_join.sinks.unfit_values import UnfitRows, text_with_nul
from zset_join.spark import appends, changes
from zset_join.spark.planning.job_settings import job_settings
from zset_join.spark.rows.layout import WEIGHT
from zset_join.spark.tools.batch_view import BATCH_QUERY, HISTORY_QUERY, TIED_QUERY
from zset_join.spark.tools.timed_history import TimedHistory
from zset_join.stages import AsOfJoinStage, DeduplicateStage, Stage, StageOptions, TemporalJoinStage

Run = Callable[..., Any]
ORDERS = pa.schema([("id", pa.int64()), ("currency", pa.string()), ("t", pa.int64())])
RATES = pa.schema([("currency", pa.string()), ("at", pa.int64()), ("rate", pa.int64()), ("w", pa.int64())])


class ReadableWithoutNul(Collected):
    """Take no text with U+0000, as PostgreSQL does, and show what was taken."""

    def unfit(self, rows: pa.RecordBatch) -> list[UnfitRows]:
        return text_with_nul(rows)

    def read(self) -> pa.Table:
        rows = [dict(zip((*self.names, "_weight"), (*row, weight), strict=True)) for row, weight in self.total().items()]
        return pa.Table.from_pylist(rows)


def test_what_came_when_is_known_of_streams_and_what_cannot_be_compared_is_counted(
    spark: SparkSession, tmp_path: Path, run: Run
) -> None:
    orders, rates = Source(spark, tmp_path / "o", ORDERS), Source(spark, tmp_path / "r", RATES)
    orders.add((1, "EUR", 7), (2, "USD", 9), (3, "EUR", 20)).add()
    rates.add(("EUR", 5, 2, 1), ("EUR", 5, 1, 1), ("EUR", 20, 4, 1), ("USD", 5, 1, 1), ("USD", 5, 2, 1), ("CHF", 5, 9, 1))
    late = [("EUR", 5, 1, -1), ("USD", 5, 1, -1), ("USD", 5, 1, 1), ("EUR", 6, 3, 2), ("EUR", 6, 3, -1)]
    rates.add(*late, ("CHF", 5, 8, 1), ("A\0", 5, 7, 1))

    def left(name: str, **options: Any) -> Any:
        return appends(orders.stream(), name=name, **options)

    def right(name: str, **options: Any) -> Any:
        return changes(rates.stream(), name=name, weight_column="w", **options)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        views = {
            "first": right("r0").dedup("currency", order_by="at"),
            "corrected": left("o1", watermark=("t", 0)).temporal_join(
                right("r1", watermark=("at", 0)).dedup("currency", order_by="at", keep="last"),
                on="currency",
                emit="eager",
                keep_probe_for=2,
            ),
            "behind": right("r2").dedup(["currency", "at", "rate"], order_by="at").dedup("currency", order_by="at"),
        }
        chosen = [view.select(F.lit(name).alias("name"), "currency", "rate") for name, view in views.items()]
        joined = reduce(lambda one, other: one.unionAll(other), chosen)
    sink = ReadableWithoutNul()

    report = run(joined, sink, buckets=1, onBadInput="quarantine").verify()

    assert report.equal, str(report)
    assert (report.left_out_rows, report.unjudged_rows) == (2, 2)
    assert {row[1:]: weight for row, weight in sink.total().items() if row[0] == "first"} == {
        ("EUR", 2): 1,
        ("USD", 2): 1,
        ("CHF", 9): 1,
    }


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
    dedup("at", "last", 2),
    as_of(op=">=", how="left", tolerance=2),
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
        deltas = [self._delta(side, lines[side]) for side in range(len(lines))]
        rejected = self.operator.rejections(tick, deltas).to_pylist()
        for side, relation in enumerate(self.relations):
            late = {line["row"] for line in rejected if line["input"] == relation.name}
            lines[side] = [line for at, line in enumerate(lines[side]) if at not in late]
            for place, (row, weight) in enumerate(lines[side]):
                self.live[side][row] += weight
                self.logged[side].append((*row, weight, epoch, place))
        deltas = [self._delta(side, lines[side]) for side in range(len(lines))]
        for chunk in self.operator.answer(tick, deltas):
            for row, weight in chunk.to_pylist():
                self.answer[tuple(None if value is None else str(value) for value in row)] += weight
        self.operator.absorb(tick, deltas)

    def _delta(self, side: int, lines: Lines) -> ZSet:
        return ZSet.from_rows([row for row, _ in lines], self.relations[side].schema, weights=[one for _, one in lines])

    def changes(self, spark: SparkSession) -> list[DataFrame]:
        """Return what was logged, per input."""
        more = ", __weight long, __epoch long, __position long"
        texts = [
            "id long, k string, t long" if relation.name == "l" else "v long, k string, at long" for relation in self.relations
        ]
        return [spark.createDataFrame(one, text + more) for one, text in zip(self.logged, texts, strict=True)]


def test_every_row_is_judged_where_the_history_is_known_and_only_ties_are_not_where_it_is_not(spark: SparkSession) -> None:
    buckets = [Bucket(stage, random.Random(number)) for number, stage in enumerate(STAGES)]
    made: list[DataFrame] = []
    for number, bucket in enumerate(buckets):
        changes, kind = bucket.changes(spark), bucket.stage.kind
        history = TimedHistory(stage=bucket.stage, changes=changes, marks=bucket.marks)
        queries = {"history": HISTORY_QUERY[kind](history)}
        if kind != "temporal_join":
            tables = [one.groupBy(*one.columns[:3]).agg(F.sum(WEIGHT).alias(WEIGHT)).where("__weight > 0") for one in changes]
            queries |= {
                "table": BATCH_QUERY[kind](bucket.stage, tables, None),
                "tied": TIED_QUERY[kind](bucket.stage, tables, None),
            }
        for name, rows in queries.items():
            values = F.array(*(F.col(column).cast("string") for column in rows.columns[:-1]))
            made.append(rows.select(F.lit(number).alias("number"), F.lit(name).alias("name"), values.alias("row"), WEIGHT))

    found: dict[tuple[int, str], Weights] = defaultdict(Counter)
    with job_settings(spark, {"spark.sql.codegen.wholeStage": "false", "spark.sql.adaptive.enabled": "false"}):
        lines = reduce(DataFrame.unionAll, made).collect()
    for line in lines:
        found[line["number"], line["name"]][tuple(line["row"])] += line[WEIGHT]

    for number, bucket in enumerate(buckets):
        answer = {row: weight for row, weight in bucket.answer.items() if weight}
        assert dict(found[number, "history"]) == answer, bucket.stage.title
        if bucket.stage.kind != "temporal_join":
            table, tied = found[number, "table"], found[number, "tied"]
            wrong = {row for row in {*answer, *table} if answer.get(row, 0) != table[row]}
            assert wrong <= set(tied), bucket.stage.title
            assert 0 < len(tied) < len(answer)
