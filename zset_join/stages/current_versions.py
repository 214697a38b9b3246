"""The versions that hold now as a stage: what a join by processing time looks up in, where its right side is versioned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from zset_join.core.key_types import storage_type
from zset_join.core.relation import Relation
from zset_join.operators.current_versions import HELD, HELD_NET, CurrentVersions
from zset_join.shapes.current_versions import current_relation
from zset_join.shapes.event_time import has_clock
from zset_join.stages.memory_only import refuse_hybrid
from zset_join.stages.stage import OutputKey, Stage, StageInput, StageOptions, TableKey, register_stage
from zset_join.stages.written import read_relation, write_relation
from zset_join.zset.protocol import DurableOperator

__all__ = ["CurrentVersionsStage"]


@dataclass(frozen=True, kw_only=True)
class CurrentVersionsStage(Stage):
    """Describe the table of current versions.

    Args:
        source: the versions, hidden columns included.
        key: what has versions.
        delete_column: a column that marks DELETEs; None: none does.
        hidden: columns that are in it only to order its changes.

    Raises:
        PlanError: columns, types or modes that have no current version (when `output` is asked or it is built).
    """

    source: Relation
    key: tuple[str, ...]
    delete_column: str | None = None
    hidden: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Return "current_versions"."""
        return "current_versions"

    @property
    def inputs(self) -> tuple[StageInput, ...]:
        """Return the one input, bucketed by key."""
        types = tuple(storage_type(self.source.schema.field(name).type) for name in self.key)
        return (StageInput(relation=self.source, key=self.key, key_types=types),)

    @cached_property
    def output(self) -> Relation:
        """Return what holds now, keyed."""
        return current_relation(self.source, self.key, self.delete_column, self.hidden)

    @property
    def output_key(self) -> OutputKey:
        """Return the key, which is also what its rows are bucketed by."""
        return OutputKey(columns=self.key, bucketed_by=self.key)

    @property
    def answers_distinct_rows(self) -> bool:
        """Return whether its rows have a key: there is one of each."""
        return bool(self.output_key.columns)

    def never_null(self, inputs: Sequence[frozenset[str]]) -> frozenset[str]:
        """Return what came without NULL, the key and the time: with these a row is no bad input."""
        return (inputs[0] | {*self.key, str(self.source.event_time)}) & set(self.output.schema.names)

    @property
    def _has_clock(self) -> bool:
        return has_clock(storage_type(self.source.schema.field(str(self.source.event_time)).type))

    @property
    def state_tables(self) -> Mapping[str, TableKey]:
        """Return the versions that are kept and, where a clock reaches their times, those of the future, by key."""
        tables = {"rows": TableKey(columns=self.key)}
        future = [HELD, *([HELD_NET] if self.source.mode == "changelog" else [])] if self._has_clock else []
        return {**tables, **{name: TableKey(columns=self.key) for name in future}}

    @property
    def waits_for_time(self) -> bool:
        """Say yes: rows may wait for a time, or end by one."""
        return True

    def build(self, options: StageOptions, directory: str | None) -> DurableOperator:
        """Return the operator of one bucket.

        Raises:
            OptionError: hybrid state is asked for.
        """
        refuse_hybrid(options.table_budget, title=self.title, option="default_hash_table")
        return CurrentVersions(
            self.source,
            key=self.key,
            delete_column=self.delete_column,
            hidden=self.hidden,
            on_bad_input=options.on_bad_input,
            chunk_rows=options.chunk_rows,
            hash_seed=options.hash_seed,
            directory=directory,
        )

    @property
    def title(self) -> str:
        """Return what `explain` calls it."""
        moment = "at or before the processing time" if self._has_clock else "(a number, which no clock reaches)"
        named = f'Current versions of "{self.source.name}" by {", ".join(self.key)}'
        return f"{named}: the newest by {self.source.event_time} {moment}"

    def explain(self, buckets: int | None) -> list[str]:
        """Return what is shown, and what is remembered."""
        only = (
            "all versions, for one may be taken back" if self.source.mode == "changelog" else "the version that holds, per key"
        )
        future = ", and versions of the future until the processing time reaches them" if self._has_clock else ""
        return [self.title, f"  remembers: {only}{future}; in {buckets or 'one per core'} buckets by {', '.join(self.key)}"]

    def to_json(self) -> dict[str, Any]:
        """Return everything about it, JSON-ready."""
        return {
            "kind": self.kind,
            "source": write_relation(self.source),
            "key": list(self.key),
            "delete_column": self.delete_column,
            "hidden": list(self.hidden),
        }


def _read(fields: Mapping[str, Any]) -> CurrentVersionsStage:
    return CurrentVersionsStage(
        source=read_relation(fields["source"]),
        key=tuple(fields["key"]),
        delete_column=fields["delete_column"],
        hidden=tuple(fields["hidden"]),
    )


register_stage("current_versions", _read)
