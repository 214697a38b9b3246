"""Change a query of Spark while it runs: between two epochs, and continue with Spark's next batch.

    the lock of the epochs is taken -> the process that holds the checkpoint commits plan and difference, outputs get it
    -> Spark's query is stopped -> the new one is started on the same checkpoint, with the same options, trigger and outputs

The law: what can be refused is refused while the query continues as it was. From the commit on the checkpoint is the new
query's: a process that dies behind it starts again with the new program, one that dies before with the old one. A batch that
was on its way meanwhile is not taken by the old query; Spark plans it again for the new one.

Cost: that of `Pipeline.evolve`; epochs wait for it, and for Spark's stop and start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from typing_extensions import override

from zset_join.core.errors import PlanError
from zset_join.evolution.changed_columns import ChangeTerms
from zset_join.evolution.differences import PlanDiff
from zset_join.runners.spark.api.other_queries import planned_writer
from zset_join.runners.spark.api.stored_query import Call
from zset_join.runners.spark.epoch.named_outputs import ChosenSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from zset_join.query.rows import PlannedQuery

__all__ = ["ChangingOnExecutors", "ChangingQuery"]


class ChangeableWriter(Protocol):
    """Interface of a writer that a change of the query uses."""

    @property
    def session(self) -> SparkSession: ...

    @property
    def planned(self) -> PlannedQuery: ...

    @property
    def chosen_sinks(self) -> Mapping[str, Sequence[ChosenSink]]: ...

    def changed_to(self, other: Any) -> Any:
        """Return a writer of another query with the options of this one."""

    def with_outputs_of(self, other: Any) -> Any:
        """Return a writer of this query that writes to the outputs of another one."""

    def changed_to_plan(self, query: PlannedQuery) -> Any:
        """Return a writer of a query of the same streams, as it is planned, with the options of this one."""

    def on_executors(self) -> Any:
        """Return what runs the query on executors, or over Spark Connect the query as it travels."""

    def start_behind_change(self, given_through: int | None) -> Any:
        """Start the query, and return it."""


class ChangingQuery:
    """Change a query on the driver: with the writer that started it, by the process that holds its checkpoint."""

    def __init__(self, writer: ChangeableWriter, call: Call) -> None:
        self._writer = writer
        self._call = call
        self.before: ChangeableWriter | None = None

    def changed(self, view: Any, terms: ChangeTerms) -> tuple[PlanDiff, ChangeableWriter]:
        """Change the query in its checkpoint; return the difference, and the writer that it continues with."""
        other = _writer_of(view, self._writer)
        after: ChangeableWriter = self._writer.changed_to(other)
        return self._call("evolve", query=after.planned, outputs=other.chosen_sinks, terms=terms), after

    def undone(self) -> tuple[PlanDiff, ChangeableWriter]:
        """Go back to the query before the last change; return the difference, and the writer that it continues with."""
        before = self.before
        diff, query = self._call("undo", has_streams=before is not None)
        return diff, self._writer.changed_to_plan(query) if before is None else before.with_outputs_of(self._writer)

    def planned(self, view: Any) -> PlannedQuery:
        """Return another query as the running one would be changed to it, for a comparison."""
        after: ChangeableWriter = self._writer.changed_to(planned_writer(view))
        return after.planned

    def started(self, after: ChangeableWriter, diff: PlanDiff) -> Any:
        """Start the new query once Spark has stopped the one before."""
        started = after.start_behind_change(diff.taken)
        if len(self._writer.planned.plan.views) == len(after.planned.plan.views) == 1:
            started.changing.before = self._writer
        return started


class ChangingOnExecutors(ChangingQuery):
    """Change a query on executors, which run programs: the whole new query goes where its epochs run."""

    @override
    def changed(self, view: Any, terms: ChangeTerms) -> tuple[PlanDiff, ChangeableWriter]:
        other = _writer_of(view, self._writer)
        after: ChangeableWriter = self._writer.changed_to(other)
        given = {"query": after.planned, "after": after.on_executors(), "given": [*other.chosen_sinks]}
        return self._call("evolve", **given, terms=terms), after

    @override
    def started(self, after: ChangeableWriter, diff: PlanDiff) -> Any:
        started = super().started(after, diff)
        started.changing.before = self._writer
        return started

    @override
    def undone(self) -> tuple[PlanDiff, ChangeableWriter]:
        if self.before is None:
            self._call("undo")
            raise AssertionError("a query that this process has not changed was undone")
        after: ChangeableWriter = self.before.with_outputs_of(self._writer)
        return self._call("undo", query=after.planned, after=after.on_executors()), after


def _writer_of(view: Any, runs: ChangeableWriter) -> ChangeableWriter:
    other: ChangeableWriter = planned_writer(view)
    if other is runs or other.session is not runs.session:
        raise PlanError(
            "evolve() was given the writer of the query that runs, or a query of another session. Write the new query with "
            "the streams of this session, and give evolve() the view.",
            code="EVOLVE_SESSION",
        )
    return other
