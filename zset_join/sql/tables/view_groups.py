"""The queries of a session in this process: those that can be are views of one pipeline, with one epoch and one state.

    group = ViewGroup("revenue", pipeline, stays_alone=...)   a query on its own, until it holds what its tables do
    groups[0].take_over(group, fed=...)                       and from then on a view beside the others

The law: what a query answers does not depend on the queries that it shares a group with.

A query stays in a group of its own where it writes into a table of the session, queries external systems, quarantines bad
input (its dead letters are its own), drops the oldest rows of a join, or keeps its inputs. Queries of other settings are
another group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from zset_join.query.reading import Reading
from zset_join.runners.local.changing import ChangingPipeline
from zset_join.runners.local.contents import repeated
from zset_join.runners.local.pipeline import Pipeline
from zset_join.stages.stage import StageOptions
from zset_join.zset import ZSet
from zset_join.zset.protocol import NextDue

__all__ = ["GroupView", "SharedPipeline", "ViewGroup"]


class ViewGroup:
    """Run queries as the views of one pipeline."""

    def __init__(self, name: str, pipeline: ChangingPipeline, *, options: StageOptions, stays_alone: bool) -> None:
        self.pipeline = pipeline
        self._stays_alone = stays_alone or options.on_bad_input == "quarantine"
        self.views = {name: GroupView(self, name, self.pipeline.plan.output_of(name).schema)}

    def can_take_over(self, other: ViewGroup) -> bool:
        """Return whether the queries of another group may be views of this one."""
        return not (self._stays_alone or other._stays_alone) and self.pipeline.can_take_over(other.pipeline)

    def take_over(self, other: ViewGroup, *, fed: Collection[str]) -> None:
        """Take the queries of another group into this one."""
        self.pipeline.take_over(other.pipeline, untouched=set(other.pipeline.sources) - set(fed))
        for name, view in other.views.items():
            view.group = self
            self.views[name] = view
        other.views = {}

    def drop(self, name: str) -> None:
        if self.views.pop(name, None) is not None:
            self.pipeline.drop(name)


class SharedPipeline(Protocol):
    """The pipeline of several queries.

    Attributes:
        pipeline: it.
    """

    @property
    def pipeline(self) -> Pipeline[dict[str, ZSet]]:
        """Return the pipeline."""
        ...

    def drop(self, name: str) -> None:
        """End a query."""
        ...


class GroupView:
    """Show one query of a group as a pipeline of its own would."""

    def __init__(self, group: SharedPipeline, name: str, schema: pa.Schema) -> None:
        self.group = group
        self.progress: Mapping[str, Any] = {}
        self.schema = schema
        self.begins = False
        self._name = name
        self._is_paused = False
        self._held: ZSet | None = None
        self._caught_up: ZSet | None = None

    @property
    def whole(self) -> Pipeline[dict[str, ZSet]]:
        return self.group.pipeline

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the names of its sources; while it is paused, none."""
        if self._is_paused:
            return ()
        plan = self.group.pipeline.plan
        feeds = [feed for number in plan.stages_of(self._name) for given in plan.nodes[number].feeds for feed in given]
        read = {feed.origin for feed in (*feeds, *plan.view(self._name).feeds)}
        return tuple(source.name for source in plan.sources if source.name in read)

    @property
    def readings(self) -> Mapping[str, Reading]:
        return {name: self.group.pipeline.readings[name] for name in self.sources}

    @property
    def epoch(self) -> int:
        """Return the number of the next epoch of the group."""
        return self.group.pipeline.epoch

    @property
    def dead_letters(self) -> pa.Table:
        return self.group.pipeline.dead_letters

    def view(self) -> pa.Table:
        return repeated(self.contents(), self.schema)

    def seen(self) -> Callable[[], pa.Table]:
        """Return a reader of the present contents, usable from any thread."""
        if self._held is not None:
            return partial(repeated, self._held, self.schema)
        return partial(self.group.pipeline.snapshot().table, self._name)

    def contents(self) -> ZSet:
        return self.group.pipeline.contents(self._name) if self._held is None else self._held

    def answer_of(self, answers: Mapping[str, ZSet]) -> ZSet:
        """Return its own among the answers of the group; of the first one behind a pause, what changed meanwhile."""
        if self._held is None:
            return answers[self._name]
        if self._caught_up is None:
            before = ZSet(self._held.rows, -self._held.weights)
            empty = ZSet.empty(self.schema)
            whole = ZSet.concat([before, answers[self._name]], schema=self.schema)
            self._caught_up = next(whole.tidy_chunks(max(len(whole), 1)), empty)
        return self._caught_up

    def pause(self) -> None:
        self._held, self._is_paused = self.contents(), True
        self.close()

    def behind(self, other: Pipeline | GroupView) -> GroupView:
        """Return itself, as what continues from where another one is: its first answer is the difference.

        Where its columns are others, its first answer is all it holds.
        """
        held = other.contents()
        self.begins = (held.schema.names, held.schema.types) != (self.schema.names, self.schema.types)
        if self.begins:
            self._held = None
        else:  # they may differ in what is never NULL
            self._held = ZSet(pa.RecordBatch.from_arrays(held.rows.columns, schema=self.schema), held.weights)
        return self

    def took(self) -> None:
        """Note the counts of an epoch that the group has taken."""
        self._held = self._caught_up = None
        counts = self.group.pipeline.progress
        if not counts:  # the first views are present before the first epoch
            return
        own, read = counts.get("views", {}).get(self._name, {}), self.sources
        self.progress = {**counts, **own, "rows": {name: rows for name, rows in counts.get("rows", {}).items() if name in read}}

    def next_due(self) -> NextDue:
        """Return when the group has rows to emit though no row arrives."""
        return self.group.pipeline.next_due()

    def verify(self) -> Any:
        return self.group.pipeline.verify(view=self._name)

    def explain_row(self, row: Mapping[str, Any], *, most_changes: int = 100) -> Any:
        """Return which changes made the rows with given values, and which unmade them."""
        return self.group.pipeline.explain_row(row, view=self._name, most_changes=most_changes)

    def close(self) -> None:
        self.group.drop(self._name)
