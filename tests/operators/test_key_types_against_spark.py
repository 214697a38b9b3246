"""Every hashable key type, maintained by the join and compared with Spark's own batch join of the final tables.

Both sides change over a few epochs: the left by upserts and deletes of its primary key, the right as a bag with copies. What
is compared are the numbers of the rows that met, as Z-sets, under `=` and `<=>`; one query runs Spark's full join of every key.
Spark has no type for some of Arrow's: such keys are cast, for Spark only.
"""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from tests.sweeps import some_of
from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.operators.join import HashJoin
from zset_join.zset import ZSet

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

D = Decimal
NAN = float("nan")
OTHER_NAN = np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0]
LONG = "longer than the twelve bytes that fit in a slot"
NOON = dt.datetime(2024, 2, 29, 12)
A_MICROSECOND = dt.timedelta(microseconds=1)

FLOATS = [0.0, -0.0, NAN, OTHER_NAN, 1.5, -math.inf]
STRINGS = ["", " ", "a", "a ", "A", LONG, LONG + "!"]
FLOAT_STRUCT = pa.struct({"x": pa.float64(), "s": pa.string()})
DEEP = pa.struct({"l": pa.list_(pa.struct({"f": pa.list_(pa.float32())})), "d": pa.date32()})

Case = tuple[pa.DataType, pa.DataType, pa.DataType | None, list[Any]]

# The key as the left has it, as the right has it, as Spark is given it (None: as it is), and its values besides NULL.
KEYS: list[Case] = [
    (pa.int8(), pa.int8(), None, [-128, 0, 127]),
    (pa.int16(), pa.int16(), None, [-(2**15), 0, 255]),
    (pa.int32(), pa.int32(), None, [-1, 0, 2**31 - 1]),
    (pa.int64(), pa.int64(), None, [-(2**63), -1, 0, 2**63 - 1]),
    (pa.uint8(), pa.uint8(), pa.int16(), [0, 1, 255]),
    (pa.uint16(), pa.uint16(), pa.int32(), [0, 1, 65_535]),
    (pa.uint32(), pa.uint32(), pa.int64(), [0, 1, 2**32 - 1]),
    (pa.uint64(), pa.uint64(), pa.decimal128(20, 0), [0, 2**63, 2**64 - 1]),
    (pa.int32(), pa.int64(), None, [-1, 0, 7]),
    (pa.bool_(), pa.bool_(), None, [False, True]),
    (pa.float32(), pa.float32(), None, FLOATS),
    (pa.float64(), pa.float64(), None, FLOATS),
    (pa.float32(), pa.float64(), None, FLOATS),
    (pa.string(), pa.string(), None, STRINGS),
    (pa.large_string(), pa.string(), None, STRINGS),
    (pa.string_view(), pa.string(), pa.string(), STRINGS),
    (pa.dictionary(pa.int32(), pa.string()), pa.string(), pa.string(), STRINGS),
    (pa.binary(), pa.binary(), None, [b"", b"\0", b"a", b"a\0", LONG.encode()]),
    (pa.binary(2), pa.binary(2), pa.binary(), [b"ab", b"a\0", b"\0\0"]),
    (pa.date32(), pa.date32(), None, [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(2024, 2, 29)]),
    (pa.date64(), pa.date32(), pa.date32(), [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2024, 2, 29)]),
    (pa.timestamp("us"), pa.timestamp("us"), None, [NOON, NOON + A_MICROSECOND, dt.datetime(1960, 1, 1)]),
    (pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC"), None, [NOON, NOON + A_MICROSECOND, dt.datetime(1960, 1, 1)]),
    (pa.timestamp("ms", "Europe/Paris"), pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC"), [0, 1, 10**12]),
    (pa.duration("us"), pa.duration("us"), None, [dt.timedelta(0), A_MICROSECOND, dt.timedelta(days=-3)]),
    (pa.decimal128(10, 2), pa.decimal128(10, 2), None, [D("0.00"), D("-1.25"), D("99999999.99")]),
    (pa.decimal128(10, 2), pa.decimal128(20, 5), None, [D("0.00"), D("-1.25"), D("99999999.99")]),
    (pa.decimal128(38, 10), pa.decimal128(38, 10), None, [D("0"), D("-1E-10"), D(10) ** 27]),
    (pa.decimal128(10, 0), pa.int32(), None, [0, -1, 7]),
    (pa.list_(pa.string()), pa.list_(pa.string()), None, [[], [None], [""], ["a", LONG], [LONG, "a"]]),
    (pa.list_(pa.float64()), pa.list_(pa.float64()), None, [[], [0.0], [-0.0], [NAN, None], [OTHER_NAN, None]]),
    (pa.list_(pa.int32()), pa.list_(pa.int64()), None, [[], [None], [1, 2], [2, 1]]),
    (
        FLOAT_STRUCT,
        FLOAT_STRUCT,
        None,
        [
            {"x": 0.0, "s": "a"},
            {"x": -0.0, "s": "a"},
            {"x": NAN, "s": None},
            {"x": OTHER_NAN, "s": None},
            {"x": None, "s": None},
        ],
    ),
    (
        DEEP,
        DEEP,
        None,
        [
            {"l": [{"f": [0.0, NAN, None]}, None], "d": None},
            {"l": [{"f": [-0.0, OTHER_NAN, None]}, None], "d": None},
            {"l": [{"f": []}], "d": dt.date(2024, 2, 29)},
            {"l": [{"f": None}], "d": dt.date(2024, 2, 29)},
            {"l": None, "d": None},
        ],
    ),
]
EPOCHS, CHANGES, IDS = 4, 14, 12
# A right join is a left join with its sides swapped: running it would show nothing about keys.
COMPARED = ("inner", "left", "full", "left_semi", "left_anti")
SHOWS_RIGHT = ("inner", "left", "full")

Changes = list[tuple[int, int, int]]  # id, place of its key among the values (0 is NULL), weight
Met = dict[tuple[Any, ...], int]


@pytest.fixture
def plain_spark(spark: SparkSession) -> Iterator[SparkSession]:
    """Give Spark without adaptive planning, which only makes many small jobs of one."""
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    yield spark
    spark.conf.unset("spark.sql.adaptive.enabled")


class History:
    """Random changes of one side, epoch by epoch, and the table they end in; one row with a NULL key is present throughout."""

    def __init__(self, seed: int, values: int) -> None:
        generator = np.random.default_rng(seed)
        self.upserts: list[Changes] = []
        self.bags: list[Changes] = []
        rows: dict[int, int] = {}
        copies: Counter[tuple[int, int]] = Counter()
        for _ in range(EPOCHS):
            drawn = [*generator.integers(0, (IDS, values + 1, 4), (CHANGES, 3)).tolist(), (IDS, 0, 1)]
            self.upserts.append([(number, key, 1 if kind else -1) for number, key, kind in drawn])
            for number, key, kind in drawn:
                if kind:
                    rows[number] = key
                else:
                    rows.pop(number, None)
            gone = [pair for pair, count in copies.items() if count and pair[0] < IDS and generator.integers(0, 3) == 0]
            bag = [(number, key, -copies[number, key]) for number, key in gone]
            bag += [(number, key, kind) for number, key, kind in drawn if kind]
            self.bags.append(bag)
            for number, key, weight in bag:
                copies[number, key] += weight
        self.table = list(rows.items())
        self.bag_table = list(copies.elements())


def pool(kind: pa.DataType, values: list[Any]) -> pa.Array:
    """Return NULL and the values as an array of their type; bits of floats are kept."""
    return pa.array([None, *values], kind)


def take(keys: pa.Array, places: list[int]) -> pa.Array:
    return pa.concat_arrays([keys.slice(place, 1) for place in places]) if places else keys.slice(0, 0)


def delta(relation: Relation, keys: pa.Array, changes: Changes) -> ZSet:
    columns = [pa.array([number for number, _, _ in changes], pa.int64()), take(keys, [place for _, place, _ in changes])]
    return ZSet.of(pa.RecordBatch.from_arrays(columns, schema=relation.schema), [weight for _, _, weight in changes])


def maintained(how: str, null_safe: bool, left_keys: pa.Array, right_keys: pa.Array, histories: tuple[History, History]) -> Met:
    """Return the numbers of the rows that met, from the sum of the answers of all epochs."""
    left = Relation(
        name="left",
        schema=pa.schema({"a": pa.int64(), "k": left_keys.type}),
        join_key=("k",),
        primary_key=("a",),
        mode="upsert",
    )
    right = Relation(name="right", schema=pa.schema({"b": pa.int64(), "k": right_keys.type}), join_key=("k",), mode="changelog")
    join = HashJoin(left, right, how, null_safe=[null_safe])
    met: Counter[tuple[Any, ...]] = Counter()
    shown = ["a", "b"] if how in SHOWS_RIGHT else ["a"]
    for epoch in range(EPOCHS):
        tick = Tick(epoch)
        deltas = [delta(left, left_keys, histories[0].upserts[epoch]), delta(right, right_keys, histories[1].bags[epoch])]
        for chunk in join.answer(tick, deltas):
            for row, weight in zip(chunk.rows.select(shown).to_pylist(), chunk.weights.tolist(), strict=True):
                met[tuple(row.values())] += weight
        join.absorb(tick, deltas)
    return {row: weight for row, weight in met.items() if weight}


def for_spark(keys: pa.Array, kind: pa.DataType | None, places: list[int]) -> pa.Array:
    """Return keys as Spark can take them."""
    taken = take(keys, places)
    return taken if kind is None else taken.cast(kind)


def tables_of(case: Case, histories: tuple[History, History]) -> tuple[pa.Table, pa.Table]:
    """Return both tables as Spark is given them."""
    left_kind, right_kind, spark_kind, values = case
    left_rows, right_rows = histories[0].table, histories[1].bag_table
    left_keys = for_spark(pool(left_kind, values), spark_kind, [key for _, key in left_rows])
    right_keys = for_spark(pool(right_kind, values), spark_kind, [key for _, key in right_rows])
    left = pa.table({"a": [number for number, _ in left_rows], "k": left_keys})
    return left, pa.table({"b": [number for number, _ in right_rows], "j": right_keys})


def requested(
    spark: SparkSession, tables: Mapping[str, tuple[pa.Table, pa.Table]], types: Sequence[str]
) -> dict[tuple[str, str, bool], Met]:
    """Return the results of Spark's own joins, by case, join type and equality, in one query."""
    from pyspark.sql import functions as f

    frames: list[DataFrame] = []
    found: dict[tuple[str, str, bool], Counter[tuple[Any, ...]]] = {}
    for name, (left, right) in tables.items():
        # One partition a side needs no shuffle: a join is a task.
        one, other = spark.createDataFrame(left).coalesce(1), spark.createDataFrame(right).coalesce(1)
        for how, null_safe in itertools.product(types, (False, True)):
            condition: Column = one["k"].eqNullSafe(other["j"]) if null_safe else one["k"] == other["j"]
            partner = other["b"] if how in SHOWS_RIGHT else f.lit(None).cast("long")
            tag = [f.lit(name).alias("case"), f.lit(how).alias("how"), f.lit(null_safe).alias("null_safe")]
            frames.append(one.join(other, condition, how).select(*tag, one["a"], partner.alias("b")))
            found[name, how, null_safe] = Counter()
    for line in functools.reduce(lambda first, second: first.unionAll(second), frames).toArrow().to_pylist():
        row = (line["a"], line["b"]) if line["how"] in SHOWS_RIGHT else (line["a"],)
        found[line["case"], line["how"], line["null_safe"]][row] += 1
    return {case: dict(rows) for case, rows in found.items()}


def by_type(full: Met) -> dict[str, Met]:
    """Return what every join type shows of the pairs of a full join; `a` is a key of the left."""
    left = {pair: count for pair, count in full.items() if pair[0] is not None}
    inner = {pair: count for pair, count in left.items() if pair[1] is not None}
    anti = {(a,): 1 for a, b in left if b is None}
    return {"inner": inner, "left": left, "full": full, "left_semi": {(a,): 1 for a, _ in inner}, "left_anti": anti}


NAMED = {f"{case[0]} = {case[1]}": case for case in KEYS}
PUSHED = [f"{case[0]} = {case[1]}" for case in KEYS[::3]]


@pytest.mark.parametrize(
    "cases",
    some_of({"every third": PUSHED, "the others": [name for name in NAMED if name not in PUSHED]}, short=["every third"]),
)
def test_the_maintained_joins_are_sparks_batch_joins(cases: Sequence[str], plain_spark: SparkSession) -> None:
    histories = {name: (History(1, len(NAMED[name][3])), History(2, len(NAMED[name][3]))) for name in cases}

    found = requested(plain_spark, {name: tables_of(NAMED[name], histories[name]) for name in cases}, ["full"])

    for name in cases:
        left_kind, right_kind, _, values = NAMED[name]
        left_keys, right_keys = pool(left_kind, values), pool(right_kind, values)
        expected = {safe: by_type(found[name, "full", safe]) for safe in (False, True)}
        answers = {
            safe: {how: maintained(how, safe, left_keys, right_keys, histories[name]) for how in COMPARED} for safe in expected
        }
        assert (name, answers) == (name, expected)
        assert len(expected[True]["inner"]) > len(expected[False]["inner"]) > 0


def test_join_types_show_what_they_do_of_sparks_full_join(plain_spark: SparkSession) -> None:
    """So that the test above requests one of five types of every key."""
    name = f"{DEEP} = {DEEP}"
    values = len(NAMED[name][3])

    found = requested(plain_spark, {name: tables_of(NAMED[name], (History(1, values), History(2, values)))}, COMPARED)

    for safe in (False, True):
        assert {how: found[name, how, safe] for how in COMPARED} == by_type(found[name, "full", safe])
