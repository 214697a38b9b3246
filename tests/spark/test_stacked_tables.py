"""The tables of a snapshot of groups as one, and back."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from tests.epochs import delta_of, insert
from zset_join.aggregates import AggregateCall
from zset_join.operators.aggregate import Aggregate
from zset_join.relation import Relation
from zset_join.spark.stacked_tables import StackedTables
from zset_join.tick import Tick

SALES = Relation(
    name="sales", schema=pa.schema({"shop": pa.string(), "price": pa.float64(), "note": pa.string()}), mode="changelog"
)
CALLS = [AggregateCall("sum", "price"), AggregateCall("max", "note"), AggregateCall("collect_list", "price")]


def filled() -> Mapping[str, pa.Table]:
    """Return the snapshot of some groups."""
    aggregate = Aggregate(SALES, ["shop"], CALLS)
    rows = insert(("A", 0.1, "x"), ("A", 1e300, "y"), (None, 3.0, None), ("B", 0.1, "x"))
    aggregate.absorb(Tick(0), [delta_of(SALES, rows)])
    return aggregate.snapshot()


def of(tables: Mapping[str, pa.Table]) -> StackedTables:
    schemas = {name: table.schema.remove_metadata() for name, table in tables.items()}
    return StackedTables(schemas, keys=1, weight="_zset_weight")


def test_parting_gives_the_tables_back() -> None:
    tables = filled()

    parted = of(tables).parted(of(tables).stacked(tables))

    assert sorted(tables) == ["groups", "values_1", "values_2"]
    assert {name: table.to_pylist() for name, table in parted.items()} == {
        name: table.to_pylist() for name, table in tables.items()
    }
    assert {name: table.schema for name, table in parted.items()} == {
        name: table.schema.remove_metadata() for name, table in tables.items()
    }


def test_columns_of_one_type_share_a_place() -> None:
    tables = filled()

    stack = of(tables)

    assert stack.schema.names[:2] == ["k0", "table"]
    assert {str(field.type) for field in stack.schema if field.name.startswith("v")} == {"int64", "binary", "string", "double"}
    assert len(stack.schema) == 1 + 1 + len(tables["groups"].column_names) - 2 + 2 + 1


def test_a_table_without_rows_stays_one() -> None:
    empty = Aggregate(SALES, [], [AggregateCall("max", "note")]).snapshot()

    stack = StackedTables(
        {name: table.schema.remove_metadata() for name, table in empty.items()}, keys=0, weight="_zset_weight"
    )

    assert {name: table.num_rows for name, table in stack.parted(stack.stacked(empty)).items()} == {"groups": 0, "values_0": 0}
