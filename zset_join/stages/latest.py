"""From upserts to a changelog as a stage: bucketed by primary key, it emits the old and the new row of every key that changes.

It is before whatever needs whole rows with their old values: an aggregate, a union, a selection without the key, the view.
"""

# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here, and expressions are quoted by
# `to_sql`.

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from typing_extensions import override

from zset_join.changelog.formats import IMAGE
from zset_join.core.key_types import storage_type
from zset_join.core.relation import Relation
from zset_join.core.shown_values import shown_buckets
from zset_join.operators.first_load import LoadedLatest
from zset_join.operators.partial_upserts import PartialUpserts
from zset_join.operators.upsert_table import Latest
from zset_join.shapes.deduplicate import latest_rows, without_control
from zset_join.stages.batch import BatchScope, BatchTable, newest_first, register_batch_query
from zset_join.stages.request import InputRows, NamedColumnsRequest
from zset_join.stages.stage import OutputKey, Stage, StageInput, StageOptions, TableKey, register_stage
from zset_join.zset.protocol import DurableOperator

__all__ = ["LatestRequest", "LatestStage", "latest_changes"]


@dataclass(frozen=True, kw_only=True)
class LatestStage(Stage):
    source: Relation
    hidden: tuple[str, ...] = ()  # columns that only order changes
    control: str | None = None  # the last column, hidden too: what a change omits, or that it is a truncate

    @property
    @override
    def kind(self) -> str:
        return "latest"

    @cached_property
    @override
    def inputs(self) -> tuple[StageInput, ...]:
        # A truncate goes everywhere.
        key = self.source.primary_key
        types = tuple(storage_type(self.source.schema.field(name).type) for name in key)
        return (StageInput(relation=self.source, key=key, key_types=types, everywhere=self.control),)

    @cached_property
    @override
    def output(self) -> Relation:
        whole = self.source if self.control is None else without_control(self.source, self.control)
        return latest_rows(whole, self.hidden)

    @property
    @override
    def output_key(self) -> OutputKey:
        return OutputKey(columns=self.source.primary_key, bucketed_by=self.source.primary_key)

    @property
    @override
    def answers_distinct_rows(self) -> bool:
        return bool(self.output_key.columns)

    @override
    def never_null(self, inputs: Sequence[frozenset[str]]) -> frozenset[str]:
        return (inputs[0] | set(self.source.primary_key)) - {*self.hidden, self.control}

    @property
    @override
    def follows_from_rows(self) -> bool:
        return True

    @property
    @override
    def state_tables(self) -> Mapping[str, TableKey]:
        return {"latest": TableKey(columns=self.source.primary_key, of_input=0, is_whole=True)}

    @property
    @override
    def cold_state(self) -> Literal["routes"]:
        return "routes"

    @override
    def passes(self, columns: frozenset[str]) -> frozenset[str]:
        return columns

    @override
    def needs(self, shown: Collection[str]) -> tuple[frozenset[str] | None, ...]:
        return (None if self.control is not None else frozenset(shown),)

    @override
    def build(self, options: StageOptions, directory: str | None) -> DurableOperator:
        used = options.of_operator(directory, budget=options.hot_budget)
        if self.control is None:
            table = LoadedLatest if used.budget is None else Latest
            return table(self.source, hidden=self.hidden, options=used)
        return PartialUpserts(self.source, control=self.control, hidden=self.hidden, options=used)

    @override
    def explain(self, buckets: int | None) -> list[str]:
        key = ", ".join(self.source.primary_key)
        why = "an upsert does not carry the old row, and the next stage must retract it"
        if self.control is not None:
            why = "a change may leave out columns that were not touched, and a truncate names no row"
        return [
            f'Latest rows of "{self.source.name}" by {key}',
            f"  why: {why}",
            f"  remembers: every live row; {shown_buckets(buckets, 'primary key')}",
        ]


@dataclass(frozen=True, eq=False)
class LatestRequest(NamedColumnsRequest):
    """Request the latest rows of an upsert input, as a changelog."""

    control: str | None = None

    @override
    def takes_upserts(self, input: int) -> bool:
        return True

    @property
    @override
    def merges_changes(self) -> bool:
        return self.control is not None

    @override
    def stage(self, inputs: Sequence[InputRows]) -> LatestStage:
        hidden = tuple(name for name in inputs[0].hidden if name != self.control)
        return LatestStage(source=replace(inputs[0].relation, join_key=()), hidden=hidden, control=self.control)


def latest_sql(stage: LatestStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str:  # noqa: ARG001 - as others
    """Return the table without its hidden columns."""
    (table,) = inputs
    shown = [f"{table.column(name)} AS c{at}" for at, name in enumerate(stage.output.schema.names)]
    return f"SELECT {', '.join(shown)} FROM {table.name}"


def latest_changes(stage: LatestStage, table: BatchTable) -> str:
    """Return the changes of the rows that are the latest, as a history: per epoch the old row of a key and the new one."""
    relation, every = table.relation, [*table.columns, "w"]
    keys = [table.column(name) for name in relation.primary_key]
    order = [table.column(name) for name in relation.sequence_by if name != IMAGE]
    known = " AND ".join(f"{one} IS NOT NULL" for one in (*keys, *order))
    key, same_key = ", ".join(keys), " AND ".join(f"r.{one} = x.{one}" for one in keys)
    places = f"row_number() OVER (PARTITION BY {key} ORDER BY {', '.join(newest_first(relation))}) AS place"
    ranked = f"SELECT *, {places} FROM {table.history} WHERE {known}"
    ends = f"SELECT {key}, e, min(min(place)) OVER (PARTITION BY {key} ORDER BY e) AS place FROM ({ranked}) GROUP BY {key}, e"
    newest = f"SELECT x.e, r.n, {', '.join(f'r.{one}' for one in every)} FROM ({ends}) x JOIN ({ranked}) r"
    before = ", ".join(f"lag({one}) OVER (PARTITION BY {key} ORDER BY e) AS old_{one}" for one in every)
    shown = [table.column(name) for name in stage.output.schema.names]
    same = " AND ".join(["w > 0", "old_w > 0", *(f"{one} IS NOT DISTINCT FROM old_{one}" for one in shown)])
    steps = f"(SELECT *, {before} FROM ({newest} ON {same_key} AND r.place = x.place)) WHERE NOT coalesce({same}, false)"
    sides = []
    for old, weight in (("old_", -1), ("", 1)):
        columns = ", ".join(f"{old}{one} AS c{at}" for at, one in enumerate(shown))
        sides.append(f"SELECT {columns}, {weight} AS w, e, n FROM {steps} AND {old}w > 0")
    return "\nUNION ALL\n".join(sides)


register_stage("latest", LatestStage)
register_batch_query("latest", latest_sql)
