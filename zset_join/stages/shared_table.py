"""A table that several joins look up in, as a stage: one copy per bucket key, shared through an index.

It is no stage of a plan's order: its readers are, each with its own feeds and answer. It defines how their state is built,
logged and kept together.

Readers may call the columns of the table otherwise, as two aliases of one table do. The table goes by the names of the first
one; the others are built over these, and answer under their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from typing_extensions import override

from zset_join.core.relation import Relation
from zset_join.core.shown_values import counted, shown_buckets
from zset_join.expressions.rows import with_columns_called
from zset_join.operators.process_time_join import LatestJoins, ProcessTimeJoin
from zset_join.operators.shared_table import SharedTable
from zset_join.operators.timed_join import TemporalJoin
from zset_join.stages.process_time_join import ProcessTimeJoinStage
from zset_join.stages.stage import OutputKey, Stage, StageInput, StageOptions, TableKey, read_stage, register_stage
from zset_join.stages.temporal_join import TemporalJoinStage
from zset_join.state.time.version_joins import VersionJoins

__all__ = ["MOST_READERS", "SharedTableStage"]

MOST_READERS = 7
"""How many joins one table may serve: a key has so many places for what waits."""


@dataclass(frozen=True, kw_only=True)
class SharedTableStage(Stage):
    readers: tuple[Stage, ...]  # all temporal, or all by processing time, with equal right sides

    @property
    @override
    def kind(self) -> str:
        return "shared_table"

    @cached_property
    @override
    def inputs(self) -> tuple[StageInput, ...]:
        return (self.readers[0].inputs[1], *(reader.inputs[0] for reader in self.readers))

    @property
    @override
    def output(self) -> Relation:
        return self.inputs[0].relation

    @property
    @override
    def output_key(self) -> OutputKey:
        return OutputKey()

    @property
    @override
    def state_tables(self) -> Mapping[str, TableKey]:
        right = self.readers[0].inputs[1]
        tables = {"right": TableKey(columns=right.key, of_input=0)}
        for place, reader in enumerate(self.readers):
            for name in reader.state_tables:
                if name != "right":
                    own = name if place == 0 else f"{name}_{place}"
                    tables[own] = TableKey(columns=reader.inputs[0].key, of_input=1 + place)
        return tables

    @property
    @override
    def waits_for_time(self) -> bool:
        return True

    @property
    @override
    def waits_for_clock(self) -> bool:
        return any(reader.waits_for_clock for reader in self.readers)

    @override
    def build(self, options: StageOptions, directory: str | None) -> SharedTable:
        if isinstance(self.readers[0], TemporalJoinStage):
            return self._of_versions(options, directory)
        joins: list[ProcessTimeJoin] = []
        for place, reader in enumerate(self.readers):
            if not isinstance(reader, ProcessTimeJoinStage):
                raise AssertionError("readers of latest rows join by processing time")
            calls, names = self._calls(reader), reader.shape.output_schema.names
            if calls:
                reader = _latest_called(reader, calls)
            joins.append(reader.made(options, directory, place=place, output_names=names, table_of=joins[0] if joins else None))
        return SharedTable(joins, LatestJoins(joins), self._fed)

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
            owner, calls = joins[0] if joins else None, self._calls(reader)
            if calls:
                reader = _versions_called(reader, calls)
            joins.append(reader.made(options, directory, place=place, eager_places=1 + max(eager, default=-1), table_of=owner))
        return SharedTable(joins, VersionJoins([one.join for one in joins]), self._fed)

    @property
    def _fed(self) -> list[list[Relation]]:
        return [[given.relation for given in reader.inputs] for reader in self.readers]

    def _calls(self, reader: Stage) -> dict[str, str]:
        """Return the table's names of columns that a reader renames."""
        names = self.inputs[0].relation.schema.names
        own = reader.inputs[1].relation.schema.names
        return {} if own == names else dict(zip(own, names, strict=True))

    @property
    @override
    def max_watermark_jump(self) -> int | None:
        return self.readers[0].max_watermark_jump

    @override
    def explain(self, buckets: int | None) -> list[str]:
        where = shown_buckets(buckets, "key")
        return [f'Table "{self.output.name}", one copy {where}', f"  looked up in by {counted(len(self.readers), 'join')}"]

    @override
    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "readers": [reader.to_json() for reader in self.readers]}


def _called(relation: Relation, names: Mapping[str, str]) -> Relation:
    """Return a relation whose columns are called otherwise."""

    def given(columns: Sequence[str]) -> tuple[str, ...]:
        return tuple(names[column] for column in columns)

    return replace(
        relation,
        schema=pa.schema([column.with_name(names[column.name]) for column in relation.schema]),
        join_key=given(relation.join_key),
        primary_key=given(relation.primary_key),
        sequence_by=given(relation.sequence_by),
        event_time=None if relation.event_time is None else names[relation.event_time],
    )


def _versions_called(stage: TemporalJoinStage, names: Mapping[str, str]) -> TemporalJoinStage:
    """Return a join by event time over versions whose columns are called otherwise; its answer keeps its names."""
    options = stage.options
    called = replace(
        options,
        residual=None if options.residual is None else with_columns_called(options.residual, "right", names),
        delete_column=None if options.delete_column is None else names[options.delete_column],
        hidden=(options.hidden[0], tuple(names[name] for name in options.hidden[1])),
        output_names=tuple(stage.shape.schema.names),
    )
    return replace(stage, right=_called(stage.right, names), options=called)


def _latest_called(stage: ProcessTimeJoinStage, names: Mapping[str, str]) -> ProcessTimeJoinStage:
    """Return a join by processing time over rows whose columns are called otherwise."""
    return replace(
        stage,
        right=_called(stage.right, names),
        residual=None if stage.residual is None else with_columns_called(stage.residual, "right", names),
        hidden=(stage.hidden[0], tuple(names[name] for name in stage.hidden[1])),
        find_by=tuple(names[name] for name in stage.find_by),
    )


def _read(fields: Mapping[str, Any]) -> SharedTableStage:
    written: Sequence[Mapping[str, Any]] = fields["readers"]
    return SharedTableStage(readers=tuple(map(read_stage, written)))


register_stage("shared_table", _read)
