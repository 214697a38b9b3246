"""The table of partial upserts and truncates, by Spark SQL alone, against the operator that keeps it."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.sweeps import for_each
from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.operators.partial_upserts import PartialUpserts
from zset_join.runners.spark.tools.batch_sources import filled_table
from zset_join.shapes.deduplicate import TRUNCATE
from zset_join.zset import ZSet

SCHEMA = pa.schema(
    {"id": pa.int64(), "a": pa.string(), "b": pa.string(), "seq": pa.int64(), "control": pa.int64()},
)
Changes = list[tuple[int, tuple[Any, ...], int]]  # epoch, row, weight


def some_changes(seed: int) -> Changes:
    """Return changes of few keys, out of order in an epoch, with truncates, and parts of rows that are known."""
    rng = random.Random(seed)
    made: Changes = []
    known: set[int] = set()
    for step in range(60):
        epoch, key, sequence = step // 10, rng.randrange(4), step
        if step % 23 == 22:
            made.append((epoch, (None, None, None, sequence, TRUNCATE), 1))
            known.clear()
        elif rng.random() < 0.2:
            made.append((epoch, (key, None, None, sequence, 0), -1))
            known.discard(key)
        else:
            control = rng.choice([0, 2, 4, 6]) if key in known else 0
            a, b = (None if control & bit else rng.choice([f"{step}", None]) for bit in (2, 4))
            made.append((epoch, (key, a, b, sequence, control), 1))
            known.add(key)
    return made


def of_operator(changes: Changes, relation: Relation) -> dict[tuple[Any, ...], int]:
    operator = PartialUpserts(relation, control="control", hidden=["seq"])
    total: dict[tuple[Any, ...], int] = {}
    for epoch in range(max(at for at, _, _ in changes) + 1):
        rows = [(row, weight) for at, row, weight in changes if at == epoch]
        columns = {name: [row[n] for row, _ in rows] for n, name in enumerate(SCHEMA.names)}
        delta = ZSet.of(columns, schema=SCHEMA, weights=[weight for _, weight in rows])
        for chunk in operator.answer(Tick(epoch), [delta]):
            for row, weight in chunk.to_pylist():
                total[row] = total.get(row, 0) + weight
        operator.absorb(Tick(epoch), [delta])
    return {row: weight for row, weight in total.items() if weight}


@for_each(("sequence_by",), {"by sequence": (("seq",),), "by arrival": ((),)})
def test_it_is_the_table_that_the_operator_keeps(spark: SparkSession, sequence_by: tuple[str, ...]) -> None:
    relation = Relation(name="t", schema=SCHEMA, primary_key=("id",), sequence_by=sequence_by, mode="upsert")
    for seed in range(3):
        changes = some_changes(seed)
        logged = [(*row, weight, epoch, at, 0) for at, (epoch, row, weight) in enumerate(changes)]
        names = (
            "id long, a string, b string, seq long, control long, __weight long, __epoch long, __position long, __bucket long"
        )

        found = filled_table(spark.createDataFrame(logged, names), relation, "control", ["id", "a", "b"]).collect()

        assert {tuple(row)[:3]: row[3] for row in found} == of_operator(changes, relation)


def test_a_change_that_came_too_late_gives_nothing(spark: SparkSession) -> None:
    relation = Relation(name="t", schema=SCHEMA, primary_key=("id",), sequence_by=("seq",), mode="upsert")
    changes: Changes = [(0, (1, "a", "b", 5, 0), 1), (1, (1, "late", "late", 4, 0), 1), (2, (1, None, "c", 6, 2), 1)]
    logged = [(*row, weight, epoch, at, 0) for at, (epoch, row, weight) in enumerate(changes)]
    names = "id long, a string, b string, seq long, control long, __weight long, __epoch long, __position long, __bucket long"

    found = filled_table(spark.createDataFrame(logged, names), relation, "control", ["id", "a", "b"]).collect()

    assert [tuple(row) for row in found] == [(1, "a", "c", 1)]
    assert of_operator(changes, relation) == {(1, "a", "c"): 1}
