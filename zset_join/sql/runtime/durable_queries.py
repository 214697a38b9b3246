"""One query of a pipeline in a directory: what runs, what is noted of it, and where it writes."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from zset_join.core.relation import Relation
from zset_join.runners.local.pipeline import Pipeline
from zset_join.sinks.sink import Sink
from zset_join.sql.runtime.declarations import QueryNote
from zset_join.sql.tables.results import Running
from zset_join.sql.tables.sink_tables import SinkWriter
from zset_join.sql.tables.view_groups import GroupView
from zset_join.stages.written import write_relation
from zset_join.zset import ZSet

__all__ = ["DurableQuery", "OwnView", "PipelineOfQueries", "is_fed", "sink_of"]


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
    """A query of the pipeline."""

    is_restored: bool = False
    held: Relation | None = None

    def noted(self) -> QueryNote:
        """Return its note for the declaration."""
        return QueryNote(paused=None if self.held is None else write_relation(self.held), since=self.since)


def sink_of(output: object) -> Sink | None:
    """Return the sink outside that an output is; None for a function, a table of the session, or nothing."""
    return output.sink if isinstance(output, SinkWriter) else None


def is_fed(running: Running) -> bool:
    """Return whether a query writes rows that replace one another in its table: it never retracts, and the table has a key."""
    return running.writer is not None and bool(running.writer.table.primary_key) and not running.retracts
