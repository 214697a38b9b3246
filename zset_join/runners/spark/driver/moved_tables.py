"""Conversion of state tables between the modes: executors and driver.

The law: the rows are the same, and so is their stored order. A join behind a route is two tables on executors
and one on the driver; they are joined, or parted again.

Memory: the whole state as Arrow data, twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zset_join.core.errors import StateError
from zset_join.runners.local.stored_rows import gaps_of
from zset_join.runners.spark.planning.other_mode import StatePair
from zset_join.shapes.kept_types import NullKeys
from zset_join.stages import Stage, StageOptions, read_stage
from zset_join.state.rows.side_snapshot import SNAPSHOT_DEGREE, SNAPSHOT_WEIGHT

__all__ = ["MovedTables", "StateTables", "joined", "stages_by_name"]

StateTables = dict[str, pa.Table]

_AT, _OTHER = "__at", "__other"


@dataclass(frozen=True, kw_only=True)
class MovedTables:
    """Turn the states of one mode into those of the other one."""

    before: Mapping[str, Stage]
    after: Mapping[str, Stage]
    options: StageOptions
    epoch: int
    read: Callable[[str], Mapping[str, Sequence[pa.Table]]]

    def to_driver(self, pair: StatePair) -> StateTables:
        """Return the tables of a state of the driver, which there is on executors."""
        stage = self.after[pair.driver]
        found, schemas = self.read(pair.executors), self._schemas(stage)
        tables: StateTables = {}
        for name, pieces in found.items():
            table, metadata = pa.concat_tables(_bare(pieces)), [dict(piece.schema.metadata or {}) for piece in pieces]
            route = pair.routes.get(name)
            if route is not None:
                remembered = self.read(route)["route"]
                metadata += [dict(piece.schema.metadata or {}) for piece in remembered]
                key = self.before[route].inputs[0].relation.primary_key
                keys = pa.concat_tables(_bare(remembered))
                alone = NullKeys(_live(keys) - _live(table))  # only the route remembers them, whatever has counted them
                metadata = [*({**one, **NullKeys().metadata()} for one in metadata), alone.metadata()]
                table = joined(table, keys, schemas[name], key)
            tables[name] = self._regrouped(stage, table.cast(schemas[name]), metadata)
        return tables

    def to_executors(self, pair: StatePair) -> dict[str, StateTables]:
        """Return the tables of a state of executors, and of its routes, by the names of the states; it is on the driver."""
        stage = self.after[pair.executors]
        schemas, tables, made = self._schemas(stage), StateTables(), dict[str, StateTables]()
        for name, pieces in self.read(pair.driver).items():
            table, metadata = pa.concat_tables(_bare(pieces)), [dict(piece.schema.metadata or {}) for piece in pieces]
            route = pair.routes.get(name)
            if route is not None:
                of_route = self.after[route]
                given = stage.inputs[stage.state_tables[name].of_input or 0]
                rows = _live(table)
                table, remembered = parted(table, schemas[name], self._schemas(of_route)["route"], gaps_of(given))
                dropped = NullKeys.summed(metadata) + NullKeys(rows - table.num_rows)  # those that only the route remembers
                metadata = [{**one, **NullKeys().metadata()} for one in metadata]
                made[route] = {"route": self._regrouped(of_route, remembered, metadata)}
                metadata = [dropped.metadata()]
            tables[name] = self._regrouped(stage, table.cast(schemas[name]), metadata)
        return {**made, pair.executors: tables}

    def _regrouped(self, stage: Stage, table: pa.Table, metadata: list[dict[bytes, bytes]]) -> pa.Table:
        return stage.regrouped(table, epoch=self.epoch, metadata=metadata)

    def _schemas(self, stage: Stage) -> dict[str, pa.Schema]:
        operator = stage.build(self.options, None)
        try:
            return {name: table.schema.remove_metadata() for name, table in operator.snapshot().items()}
        finally:
            operator.close()


def stages_by_name(plan: Mapping[str, Any]) -> dict[str, Stage]:
    """Return the stages of a written plan by the names of their states."""
    return {one["name"]: read_stage(one["stage"]) for one in plan["stages"]}


def _live(table: pa.Table) -> int:
    """Return how many rows of a table live: the others are keys that are remembered as deleted."""
    return pc.sum(pc.not_equal(table.column(SNAPSHOT_WEIGHT), 0)).as_py() or 0


def _bare(pieces: Sequence[pa.Table]) -> list[pa.Table]:
    return [piece.replace_schema_metadata(None) for piece in pieces]


# A join behind a route, as one table and as two:
#     executors   the route: key of a row -> join key and order, and the deleted keys;  the join: the rows that it can match
#     driver      the join: all rows with their order, and the deleted keys
# The law: `parted(joined(rows, route)) = (rows, route)`. Of a row with NULL in its join key, which an inner join drops,
# executors remember key and order alone; the driver then has NULL in its other columns, and no answer ever shows it.
def joined(rows: pa.Table, route: pa.Table, schema: pa.Schema, key: Sequence[str]) -> pa.Table:
    """Return the rows of a join with the order and the deleted keys that its route remembers."""
    is_live = pc.not_equal(route.column(SNAPSHOT_WEIGHT), 0)
    live = route.filter(is_live)
    at, other = _places(rows, live, key)
    if len(at) != rows.num_rows:
        raise StateError(
            f"the state of a join has {rows.num_rows - len(at)} rows that the route in front of it does not have: the "
            "checkpoint is damaged. Nothing was changed. Bring back an older copy of it.",
            code="STATE_CONTRADICTION",
            rows=rows.num_rows - len(at),
        )
    ordered = live.take(pa.array(other[np.argsort(at)]))
    is_alone = np.ones(live.num_rows, bool)
    is_alone[other] = False
    alone, gone = live.filter(pa.array(is_alone)), route.filter(pc.invert(is_live))
    parts = [_filled(rows, ordered, schema), _filled(alone, alone, schema), _filled(gone, gone, schema)]
    return pa.concat_tables(parts)


def parted(table: pa.Table, rows: pa.Schema, route: pa.Schema, needed: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """Return the table of a join and that of its route, as executors have them."""
    is_kept = pc.not_equal(table.column(SNAPSHOT_WEIGHT), 0)
    for name in needed:
        is_kept = pc.and_(is_kept, pc.is_valid(table.column(name)))
    return table.filter(is_kept).select(rows.names).cast(rows), table.select(route.names).cast(route)


def _places(rows: pa.Table, route: pa.Table, key: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of rows, and those of the entries of the same keys."""
    left = _comparable(rows.select(list(key))).append_column(_AT, pa.array(np.arange(rows.num_rows)))
    same = pa.schema([rows.schema.field(name) for name in key])
    right = _comparable(route.select(list(key)).cast(same)).append_column(_OTHER, pa.array(np.arange(route.num_rows)))
    found = left.join(right, list(key), join_type="inner", use_threads=False)
    return found.column(_AT).to_numpy(), found.column(_OTHER).to_numpy()


def _comparable(keys: pa.Table) -> pa.Table:
    """Return keys whose bytes are equal where the keys are: -0.0 is 0.0, and there is one NaN."""
    for at, field in enumerate(keys.schema):
        if pt.is_float32(field.type) or pt.is_float64(field.type):
            values = keys.column(at)
            zero, nan = (pa.scalar(value, field.type) for value in (0.0, float("nan")))
            values = pc.if_else(pc.equal(values, zero), zero, pc.if_else(pc.is_nan(values), nan, values))
            keys = keys.set_column(at, field, values)
    return keys


def _filled(rows: pa.Table, order: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with what is remembered of them; what neither table has is NULL."""
    columns = []
    for field in schema:
        if field.name in rows.column_names:
            columns.append(rows.column(field.name).cast(field.type))
        elif field.name in order.column_names:
            columns.append(order.column(field.name).cast(field.type))
        elif field.name == SNAPSHOT_DEGREE:
            columns.append(pa.chunked_array([np.zeros(rows.num_rows, np.int64)]))
        else:
            columns.append(pa.chunked_array([pa.nulls(rows.num_rows, field.type)]))
    return pa.Table.from_arrays(columns, schema=schema)
