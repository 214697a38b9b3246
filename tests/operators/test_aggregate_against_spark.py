"""Every function over every type it takes, maintained over a few epochs and compared with Spark's own GROUP BY.

The names of the output columns are the SQL that Spark runs, so names, types, values and NULLs are compared at once. Floats
are such that no order of adding them rounds; what does round (variance) is compared to 14 digits.
"""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from tests.epochs import lines_of, net
from tests.sweeps import for_each
from zset_join.aggregates import AggregateCall
from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.operators.aggregate import Aggregate
from zset_join.zset import ZSet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

D = Decimal
NAN = float("nan")
LONG = "longer than the eight bytes of a prefix"
KEYS = [None, 0.0, -0.0, NAN, 1.5]
NUMBERS = ("count", "sum", "avg", "min", "max", "count_distinct")
MOMENTS = ("var_pop", "var_samp", "stddev_pop", "stddev_samp")
ORDERED = ("count", "min", "max", "count_distinct")

COLUMNS: list[tuple[pa.DataType, tuple[str, ...], list[Any]]] = [
    (pa.int8(), NUMBERS, [-128, 0, 127]),
    (pa.int16(), NUMBERS, [-(2**15), 1]),
    (pa.int32(), NUMBERS, [-1, 0, 2**31 - 1]),
    (pa.int64(), NUMBERS, [-(2**53), 0, 2**53]),
    (pa.float32(), NUMBERS, [0.5, -0.0, 0.0, NAN, 1024.0]),
    (pa.float64(), NUMBERS, [0.5, -0.0, 0.0, -(2.0**40), math.inf]),
    (pa.decimal128(5, 2), NUMBERS, [D("0.01"), D("-0.02"), D("999.99")]),
    (pa.decimal128(18, 0), NUMBERS, [D("9" * 18), D("-7")]),
    (pa.decimal128(30, 10), NUMBERS, [D("1" * 20 + ".0000000001"), D("-" + "9" * 20), D("0.0000000003")]),
    (pa.decimal128(38, 18), ("sum", "min", "max", "avg"), [D("1E-18"), D("-3.000000000000000001"), D("1234567890")]),
    (pa.bool_(), ORDERED, [False, True]),
    (pa.string(), ORDERED, ["", "a", "a ", "é", "z", LONG, LONG + "!"]),
    (pa.binary(), ORDERED, [b"", b"\x00", b"\xff", b"\xff" * 9]),
    (pa.date32(), ORDERED, [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(2024, 2, 29)]),
    (pa.timestamp("us", "UTC"), ORDERED, [dt.datetime(1901, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 2, 29, tzinfo=dt.UTC)]),
    (pa.list_(pa.int32()), ("count", "count_distinct"), [[], [1], [1, None]]),
    (pa.struct({"a": pa.int32(), "b": pa.string()}), ("count", "count_distinct"), [{"a": 1, "b": None}, {"a": None, "b": "x"}]),
]
EPOCHS, CHANGES = 4, 25


class History:
    """Random changes of a bag of rows (key, value, order), epoch by epoch, and the rows they end in."""

    def __init__(self, kind: pa.DataType, values: list[Any]) -> None:
        self.schema = pa.schema({"k": pa.float64(), "v": kind, "o": pa.int32()})
        generator = np.random.default_rng(5)
        pools = KEYS, [None, *values]
        live: Counter[tuple[int, int, int]] = Counter()
        self.deltas: list[ZSet] = []
        for epoch in range(EPOCHS):
            drawn = generator.integers(0, (len(KEYS), len(values) + 1), (CHANGES, 2)).tolist()
            changes = [((key, value, epoch * CHANGES + number), 1) for number, (key, value) in enumerate(drawn)]
            changes += [(row, -1) for row in live if live[row] and generator.integers(0, 3) == 0]
            for row, weight in changes:
                live[row] += weight
            self.deltas.append(self._zset([row for row, _ in changes], pools, [weight for _, weight in changes]))
        self.table = self._zset([*live.elements()], pools, None).rows

    def _zset(self, rows: list[tuple[int, int, int]], pools: tuple[list[Any], list[Any]], weights: list[int] | None) -> ZSet:
        columns = [[pools[0][key] for key, _, _ in rows], [pools[1][value] for _, value, _ in rows], [at for _, _, at in rows]]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, self.schema.types, strict=True)]
        return ZSet.of(pa.RecordBatch.from_arrays(arrays, schema=self.schema), weights)


def maintained(history: History, group_by: list[str], calls: list[AggregateCall]) -> tuple[Aggregate, dict[Any, int]]:
    """Return the aggregate and the sum of its answers after all epochs."""
    aggregate = Aggregate(Relation(name="t", schema=history.schema, mode="changelog"), group_by, calls)
    lines: list[Any] = []
    for epoch, delta in enumerate(history.deltas):
        lines += lines_of(aggregate.answer(Tick(epoch), [delta]))
        aggregate.absorb(Tick(epoch), [delta])
    return aggregate, net(lines)


def requested(spark: SparkSession, table: pa.RecordBatch, group_by: list[str], columns: list[str]) -> pa.Table:
    spark.createDataFrame(pa.Table.from_batches([table])).createOrReplaceTempView("history")
    groups = f" GROUP BY {', '.join(group_by)}" if group_by else ""
    return spark.sql(f"SELECT {', '.join([*group_by, *columns])} FROM history{groups}").toArrow()


def as_zset(table: pa.Table) -> dict[Any, int]:
    """Return the rows of a table with weight 1 each."""
    return net(lines_of([ZSet.of(table)]))


GROUPED = {f"{kind} in groups": (kind, functions, values, ["k"]) for kind, functions, values in COLUMNS}
TOGETHER = {f"{kind} of all": (kind, functions, values, []) for kind, functions, values in COLUMNS[::5]}


@for_each(("kind", "functions", "values", "group_by"), GROUPED | TOGETHER)
def test_the_maintained_groups_are_those_of_sparks_batch_query(
    kind: pa.DataType, functions: tuple[str, ...], values: list[Any], group_by: list[str], spark: SparkSession
) -> None:
    history = History(kind, values)
    calls = [AggregateCall("count"), *(AggregateCall(function, "v") for function in functions)]
    calls += [AggregateCall("max_by", ("v", "o")), AggregateCall("min_by", ("v", "o"))]

    aggregate, groups = maintained(history, group_by, calls)

    theirs = requested(spark, history.table, group_by, [call.name for call in calls])
    assert groups == as_zset(theirs)
    assert aggregate.output.schema.types == theirs.schema.types
    assert aggregate.output.schema.names == theirs.schema.names


@for_each("kind", [pa.int32(), pa.float64(), pa.decimal128(12, 2)])
def test_moments_agree_with_spark_to_fourteen_digits(kind: pa.DataType, spark: SparkSession) -> None:
    history = History(kind, pa.array([1, 3, 100, 250], pa.int32()).cast(kind).to_pylist())
    calls = [AggregateCall(function, "v") for function in MOMENTS]

    _, groups = maintained(history, ["k"], calls)

    theirs = as_zset(requested(spark, history.table, ["k"], [call.name for call in calls]))
    expected = {row[0]: row[1:] for row in theirs}
    assert {row[0] for row in groups} == expected.keys()
    assert [row[1:] for row in groups] == [pytest.approx(expected[row[0]], rel=1e-14, abs=0) for row in groups]


def test_lists_and_sets_hold_what_sparks_hold(spark: SparkSession) -> None:
    history = History(pa.string(), ["a", LONG, "z"])
    calls = [AggregateCall("collect_list", "v"), AggregateCall("collect_set", "v")]

    _, groups = maintained(history, ["k"], calls)

    theirs = requested(spark, history.table, ["k"], [f"sort_array({call.name})" for call in calls])
    assert groups == as_zset(theirs)


def test_a_filter_is_sparks_filter_clause(spark: SparkSession) -> None:
    from zset_join.expressions import left

    history = History(pa.int32(), [1, 2, 3])
    calls = [AggregateCall(function, "v", name=function, where=left("o") % 2 == 0) for function in ("count", "sum", "max")]

    _, groups = maintained(history, ["k"], calls)

    theirs = requested(spark, history.table, ["k"], [f"{call.function}(v) FILTER (WHERE o % 2 = 0)" for call in calls])
    assert groups == as_zset(theirs)
