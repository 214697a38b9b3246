"""The tables of a join and of its route meet by keys that are equal, whatever their bytes are."""

from __future__ import annotations

import struct

import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.runners.spark.driver.moved_tables import MovedTables, joined
from zset_join.runners.spark.planning.other_mode import StatePair
from zset_join.shapes.kept_types import NullKeys
from zset_join.stages import StageOptions
from zset_join.stages.join import JoinStage
from zset_join.stages.unchanged import RouteStage
from zset_join.state.rows.side_snapshot import SNAPSHOT_WEIGHT
from zset_join.zset import ZSet

OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]


def test_zeros_of_both_signs_are_one_key_and_so_are_all_nans() -> None:
    rows = pa.table({"id": [0.0, OTHER_NAN, 1.5], "v": ["a", "b", "c"], SNAPSHOT_WEIGHT: [1, 1, 1]})
    route = pa.table({"id": [float("nan"), 1.5, -0.0], "order": [20, 30, 10], SNAPSHOT_WEIGHT: [1, 1, 1]})
    schema = pa.schema([*rows.schema, ("order", pa.int64())])

    found = joined(rows, route, schema, ["id"])

    assert found.select(["v", "order"]).to_pylist() == [
        {"v": "a", "order": 10},
        {"v": "b", "order": 20},
        {"v": "c", "order": 30},
    ]


def test_rows_that_only_a_route_remembers_are_counted() -> None:
    schema, right = pa.schema({"id": pa.int64(), "k": pa.string(), "n": pa.int64()}), pa.schema({"k": pa.string()})
    orders = Relation(name="orders", schema=schema, join_key=("k",), primary_key=("id",), sequence_by=("n",), mode="upsert")
    people, route = Relation(name="people", schema=right, join_key=("k",), mode="append"), RouteStage(source=orders)
    here, there = JoinStage(left=orders, right=people), JoinStage(left=route.output, right=people)
    pair, options = StatePair(driver="j", executors="j", readers=("j",), routes={"left": "r"}), StageOptions()
    operator = here.build(options, None)
    lines = ZSet.of({"id": [1, 2, 3], "k": ["a", None, None], "n": [1, 1, 1]}, schema=schema)
    operator.absorb(Tick(0), [lines, ZSet.empty(right)])
    held = {"j": {name: [table] for name, table in operator.snapshot().items()}}
    after = {"j": there, "r": route}

    moved = MovedTables(before={"j": here}, after=after, options=options, epoch=0, read=held.__getitem__).to_executors(pair)
    parts = {one: {name: [table] for name, table in tables.items()} for one, tables in moved.items()}
    back = MovedTables(before=after, after={"j": here}, options=options, epoch=0, read=parts.__getitem__).to_driver(pair)

    assert NullKeys.of(back["left"].schema.metadata) == NullKeys(2)
    operator.close()
