"""One query of a pipeline in a directory: what runs, what is noted of it, and where it writes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from zset_join.changelog import AppendFormat
from zset_join.core.relation import ChangelogMode, Relation
from zset_join.plan.query_plan import PlanSource
from zset_join.plan.tree import Read
from zset_join.query import View
from zset_join.query.reading import Reading
from zset_join.runners.local.pipeline import Pipeline
from zset_join.sinks.sink import Sink
from zset_join.sql.runtime.declarations import QueryNote
from zset_join.sql.tables.results import Running
from zset_join.sql.tables.sink_tables import SinkWriter
from zset_join.sql.tables.view_groups import GroupView
from zset_join.stages.written import write_relation
from zset_join.zset import ZSet

__all__ = ["DurableQuery", "OwnView", "PipelineOfQueries", "held_relation", "held_view", "is_fed", "sink_of"]


class PipelineOfQueries:
    """The pipeline, as its queries see it."""

    pipeline: Pipeline[dict[str, ZSet]]

    def drop(self, name: str) -> None:
        """Do nothing: the runtime changes the plan for all that go, at once."""


class OwnView(GroupView):
    """A query of the pipeline, with its own dead letters among those of all."""

    def pause(self) -> None:
        self._is_paused = True

    @property
    def dead_letters(self) -> pa.Table:
        letters = super().dead_letters
        texts = letters.column("reason").to_pylist() if letters.num_rows else []
        is_own = [not str(text).startswith('query "') or str(text).startswith(f'query "{self._name}":') for text in texts]
        return letters.filter(pa.array(is_own, pa.bool_()))


@dataclass(eq=False)
class DurableQuery(Running):
    is_restored: bool = False  # it was present when the session was opened, and nobody has started it again
    held: Relation | None = None  # while it is paused, the source that has its place in the pipeline

    def noted(self) -> QueryNote:
        return QueryNote(paused=None if self.held is None else write_relation(self.held), since=self.since)


def sink_of(output: object) -> Sink | None:
    """Return the sink outside that an output is; None for a function, a table of the session, or nothing."""
    return output.sink if isinstance(output, SinkWriter) else None


def is_fed(running: Running) -> bool:
    """Return whether a query writes rows that replace one another in its table: it never retracts, and the table has a key."""
    return running.writer is not None and bool(running.writer.table.primary_key) and not running.retracts


# A paused query is replaced in the pipeline by a source of the rows that it held, so its outputs continue: they get nothing
# while it is paused, and the difference by the epoch of RESUME.


def held_relation(view: Relation, source: str) -> Relation:
    """Return the rows of a source that has the columns, the key and the time of a view, and changes only by what it is fed."""
    # It has no watermark, so that it holds up nobody's.
    mode: ChangelogMode = "append" if view.mode == "append" else "changelog"
    return replace(view, name=source, join_key=(), sequence_by=(), mode=mode, watermark_delay=None)


def held_view(relation: Relation) -> View:
    source = PlanSource(relation=relation)
    reading = Reading(source=source, given=relation.schema, changelog_format=AppendFormat())
    return View(node=Read(source), name=relation.name, bindings=(reading,))
