"""Conversion of state tables between the modes: executors and driver.

The law: the rows are the same, and so is their stored order. A join behind a route is two tables on executors
and one on the driver; they are joined, or parted again.

Memory: the whole state as Arrow data, twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from zset_join.checkpoint.other_mode import StatePair
from zset_join.runners.local.stored_rows import gaps_of
from zset_join.runners.spark.driver.routed_tables import joined, parted
from zset_join.shapes.null_keys import NullKeys
from zset_join.stages import Stage, StageOptions, read_stage
from zset_join.state.rows.side_snapshot import SNAPSHOT_WEIGHT

__all__ = ["MovedTables", "StateTables", "stages_by_name"]

StateTables = dict[str, pa.Table]


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
            tables[name] = self._regrouped(stage, name, table.cast(schemas[name]), metadata)
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
                made[route] = {"route": self._regrouped(of_route, "route", remembered, metadata)}
                metadata = [dropped.metadata()]
            tables[name] = self._regrouped(stage, name, table.cast(schemas[name]), metadata)
        return {**made, pair.executors: tables}

    def _regrouped(self, stage: Stage, name: str, table: pa.Table, metadata: list[dict[bytes, bytes]]) -> pa.Table:
        return stage.regrouped(name, table, epoch=self.epoch, metadata=metadata)

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
