"""The versions that hold now as a stage: what a join by processing time looks up in, where its right side is versioned."""

# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here, and expressions are quoted by
# `to_sql`.

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from typing_extensions import override

from zset_join.core.errors import PlanError
from zset_join.core.key_types import storage_type
from zset_join.core.relation import Relation
from zset_join.core.shown_values import shown_buckets
from zset_join.operators.current_versions import HELD, HELD_NET, CurrentVersions
from zset_join.shapes.deduplicate import current_relation
from zset_join.shapes.event_time import has_clock
from zset_join.stages.batch import BatchScope, BatchTable, Dialect, column, newest_first, register_batch_query
from zset_join.stages.request import InputRows, NamedColumnsRequest, VersionsOf
from zset_join.stages.stage import OutputKey, Stage, StageInput, StageOptions, TableKey, refuse_hybrid, register_stage
from zset_join.zset.protocol import DurableOperator

__all__ = ["CurrentVersionsRequest", "CurrentVersionsStage", "held_versions", "version_columns"]


@dataclass(frozen=True, kw_only=True)
class CurrentVersionsStage(Stage):
    source: Relation  # hidden columns included
    key: tuple[str, ...]
    delete_column: str | None = None  # marks DELETEs
    hidden: tuple[str, ...] = ()  # columns that only order changes

    @property
    @override
    def kind(self) -> str:
        return "current_versions"

    @property
    @override
    def inputs(self) -> tuple[StageInput, ...]:
        types = tuple(storage_type(self.source.schema.field(name).type) for name in self.key)
        return (StageInput(relation=self.source, key=self.key, key_types=types),)

    @cached_property
    @override
    def output(self) -> Relation:
        return current_relation(self.source, self.key, self.delete_column, self.hidden)

    @property
    @override
    def output_key(self) -> OutputKey:
        return OutputKey(columns=self.key, bucketed_by=self.key)

    @property
    @override
    def answers_distinct_rows(self) -> bool:
        return bool(self.output_key.columns)

    @override
    def never_null(self, inputs: Sequence[frozenset[str]]) -> frozenset[str]:
        return (inputs[0] | {*self.key, str(self.source.event_time)}) & set(self.output.schema.names)

    @property
    def _has_clock(self) -> bool:
        return has_clock(storage_type(self.source.schema.field(str(self.source.event_time)).type))

    @property
    @override
    def state_tables(self) -> Mapping[str, TableKey]:
        tables = {"rows": TableKey(columns=self.key)}
        future = [HELD, *([HELD_NET] if self.source.mode == "changelog" else [])] if self._has_clock else []
        return {**tables, **{name: TableKey(columns=self.key) for name in future}}

    @property
    @override
    def waits_for_time(self) -> bool:
        return True

    @property
    @override
    def waits_for_clock(self) -> bool:
        # A version of the future becomes current by processing time.
        return True

    @property
    @override
    def picks_current(self) -> bool:
        return True

    @override
    def needs(self, shown: Collection[str]) -> tuple[frozenset[str] | None, ...]:
        source = self.source
        if source.mode == "changelog":
            return (None,)
        deletes = () if self.delete_column is None else (self.delete_column,)
        return (frozenset(shown).union(self.key, (str(source.event_time),), source.sequence_by, deletes),)

    @override
    def build(self, options: StageOptions, directory: str | None) -> DurableOperator:
        refuse_hybrid(options.table_budget, title=self.title, option="default_hash_table")
        return CurrentVersions(
            self.source,
            key=self.key,
            delete_column=self.delete_column,
            hidden=self.hidden,
            options=options.of_operator(directory),
        )

    @property
    def title(self) -> str:
        moment = "at or before the processing time" if self._has_clock else "(a number, which no clock reaches)"
        named = f'Current versions of "{self.source.name}" by {", ".join(self.key)}'
        return f"{named}: the newest by {self.source.event_time} {moment}"

    @override
    def explain(self, buckets: int | None) -> list[str]:
        only = "all versions, for one may be retracted" if self.source.mode == "changelog" else "the current version, per key"
        future = ", and versions of the future until the processing time reaches them" if self._has_clock else ""
        return [self.title, f"  remembers: {only}{future}; {shown_buckets(buckets, ', '.join(self.key))}"]


@dataclass(frozen=True)
class CurrentVersionsRequest(NamedColumnsRequest):
    """Request the versions that hold now."""

    key: tuple[str, ...]
    delete_column: str | None = None

    @override
    def takes_upserts(self, input: int) -> bool:
        return True

    @property
    @override
    def picks_current(self) -> VersionsOf:
        return VersionsOf(self.key, self.delete_column)

    @override
    def stage(self, inputs: Sequence[InputRows]) -> CurrentVersionsStage:
        (rows,) = inputs
        source = replace(rows.relation, join_key=(), primary_key=self.key)
        hidden = tuple(name for name in rows.hidden if name != self.delete_column)
        return CurrentVersionsStage(source=source, key=self.key, delete_column=self.delete_column, hidden=hidden)


def current_sql(stage: CurrentVersionsStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str:
    """Return the versions that hold when the last epoch ends."""
    (versions,) = inputs
    if versions.history is None:
        raise PlanError(
            f'verify() cannot compute which versions of "{stage.source.name}" hold: they are the answer of an earlier stage; '
            "only the state has their order of arrival.",
            code="NOT_VERIFIABLE",
            kind=stage.kind,
        )
    known = scope.times.processing_time_us
    now = "NULL" if known is None else str(known)
    clock = f"SELECT 0 AS moment, max(e) AS seen, CAST({now} AS BIGINT) AS t FROM {scope.epochs}"
    return f"SELECT {version_columns(stage)} FROM ({held_versions(stage, versions, clock, scope.dialect)})"


def version_columns(stage: CurrentVersionsStage) -> str:
    """Return the columns that are shown, renumbered."""
    names, source = stage.output.schema.names, stage.source.schema
    return ", ".join(f"{column(source, name)} AS c{at}" for at, name in enumerate(names))


def held_versions(stage: CurrentVersionsStage, versions: BatchTable, clock: str, dialect: Dialect) -> str:
    """Return the versions that held at moments: `moment`, the last epoch `seen` and its processing time `t`."""
    names = ["moment", *versions.columns]
    columns = ", ".join(["m.moment", *(f"h.{one}" for one in versions.columns)])
    kind = stage.source.schema.field(str(stage.source.event_time)).type
    time = f"h.{versions.column(str(stage.source.event_time))}"
    came = f"FROM ({clock}) m JOIN {versions.history} h ON h.e <= m.seen AND {time} IS NOT NULL"
    came += f" AND (m.t IS NULL OR {dialect.microseconds(time, kind)} <= m.t)" if has_clock(kind) else ""
    there = f"SELECT {columns}, h.w, h.n {came}"
    if stage.source.mode == "changelog":
        newest = "max(CASE WHEN w > 0 THEN n END) AS n"
        there = dialect.distinct(names, f"sum(w) AS w, {newest}", f"({there})", having="sum(w) > 0")
    key = ", ".join(versions.column(name) for name in stage.key)
    order = [f"{versions.column(str(stage.source.event_time))} DESC", *newest_first(stage.source)]
    place = f"row_number() OVER (PARTITION BY moment, {key} ORDER BY {', '.join(order)}) AS place"
    holds = "w > 0" if stage.delete_column is None else f"w > 0 AND NOT coalesce({versions.column(stage.delete_column)}, false)"
    return f"SELECT * FROM (SELECT *, {place} FROM ({there})) WHERE place = 1 AND {holds}"


register_stage("current_versions", CurrentVersionsStage)
register_batch_query("current_versions", current_sql)
