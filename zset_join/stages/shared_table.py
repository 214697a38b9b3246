"""A table that several joins look up in, as a stage: one copy per bucket key, shared through an index.

It is no stage of a plan's order: its readers are, each with its own feeds and answer. It says how their state is built, logged
and kept together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from zset_join.operators.latest_joins import LatestJoins
from zset_join.operators.process_time_join import ProcessTimeJoin
from zset_join.operators.shared_table import SharedTable
from zset_join.operators.temporal_join import TemporalJoin
from zset_join.relation import Relation
from zset_join.stages.process_time_join import ProcessTimeJoinStage
from zset_join.stages.stage import OutputKey, Stage, StageInput, StageOptions, TableKey, read_stage, register_stage
from zset_join.stages.temporal_join import TemporalJoinStage
from zset_join.state.time.version_joins import VersionJoins

__all__ = ["MOST_READERS", "SharedTableStage"]

MOST_READERS = 7
"""How many joins one table may serve: a key has so many places for what waits."""


@dataclass(frozen=True, kw_only=True)
class SharedTableStage(Stage):
    """Describe a shared table.

    Args:
        readers: the joins, all temporal ones by event time or all by processing time, with equal right sides.
    """

    readers: tuple[Stage, ...]

    @property
    def kind(self) -> str:
        """Return "shared_table"."""
        return "shared_table"

    @cached_property
    def inputs(self) -> tuple[StageInput, ...]:
        """Return the table, then the left rows of every reader."""
        return (self.readers[0].inputs[1], *(reader.inputs[0] for reader in self.readers))

    @property
    def output(self) -> Relation:
        """Return the table; it says nothing itself."""
        return self.inputs[0].relation

    @property
    def output_key(self) -> OutputKey:
        """Return that nothing is known: it has no answer."""
        return OutputKey()

    @property
    def state_tables(self) -> Mapping[str, TableKey]:
        """Return the rows of the table, and what every reader keeps."""
        right = self.readers[0].inputs[1]
        tables = {"right": TableKey(columns=right.key, of_input=0)}
        for place, reader in enumerate(self.readers):
            for name in reader.state_tables:
                if name != "right":
                    own = name if place == 0 else f"{name}_{place}"
                    tables[own] = TableKey(columns=reader.inputs[0].key, of_input=1 + place)
        return tables

    def build(self, options: StageOptions, directory: str | None) -> SharedTable:
        """Return the table of one bucket, with its readers.

        Raises:
            OptionError: hybrid state is asked for.
        """
        if isinstance(self.readers[0], TemporalJoinStage):
            return self._of_versions(options, directory)
        joins: list[ProcessTimeJoin] = []
        for place, reader in enumerate(self.readers):
            if not isinstance(reader, ProcessTimeJoinStage):
                raise AssertionError("readers of latest rows join by processing time")
            joins.append(reader.made(options, directory, place=place, table_of=joins[0] if joins else None))
        return SharedTable(joins, LatestJoins(joins))

    def _of_versions(self, options: StageOptions, directory: str | None) -> SharedTable:
        joins: list[TemporalJoin] = []
        eager = [
            place
            for place, reader in enumerate(self.readers)
            if isinstance(reader, TemporalJoinStage) and reader.options.emit == "eager"
        ]
        for place, reader in enumerate(self.readers):
            if not isinstance(reader, TemporalJoinStage):
                raise AssertionError("readers of versions join by event time")
            owner = joins[0] if joins else None
            joins.append(reader.made(options, directory, place=place, eager_places=1 + max(eager, default=-1), table_of=owner))
        return SharedTable(joins, VersionJoins([one.join for one in joins]))

    @property
    def max_watermark_jump(self) -> int | None:
        """Return what all readers say alike."""
        return self.readers[0].max_watermark_jump

    def explain(self, buckets: int | None) -> list[str]:
        """Return what it is."""
        where = f"in {buckets or 'one per core'} buckets by key"
        return [f'Table "{self.output.name}", one copy {where}', f"  looked up in by {len(self.readers)} joins"]

    def to_json(self) -> dict[str, Any]:
        """Return everything about it, JSON-ready."""
        return {"kind": self.kind, "readers": [reader.to_json() for reader in self.readers]}


def _read(fields: Mapping[str, Any]) -> SharedTableStage:
    written: Sequence[Mapping[str, Any]] = fields["readers"]
    return SharedTableStage(readers=tuple(map(read_stage, written)))


register_stage("shared_table", _read)
