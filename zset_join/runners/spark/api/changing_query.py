"""Change a query of the driver while it runs: between two epochs, and continue with Spark's next batch.

    the lock of the epochs is taken -> the pipeline commits plan and difference, outputs get it -> Spark's query is stopped
    -> it is started with the new query on the same checkpoint, the same options, trigger and outputs

The law: what can be refused is refused while the query continues as it was. From the commit on the checkpoint is the new
query's: a process that dies behind it starts again with the new program, one that dies before with the old one. A batch that
was on its way meanwhile is not taken by the old query; Spark plans it again for the new one.

Cost: that of `Pipeline.evolve`; epochs wait for it, and for Spark's stop and start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from zset_join.core.errors import PlanError
from zset_join.evolution.changed_columns import ChangeTerms, ColumnWords
from zset_join.evolution.differences import PlanDiff
from zset_join.runners.spark.api.other_queries import planned_writer
from zset_join.runners.spark.driver.chosen_sink import ChosenSink
from zset_join.runners.spark.epoch.progress import ProgressLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from zset_join.query.several import PlannedQuery
    from zset_join.runners.spark.driver.served_executors import ServedExecutorQuery
    from zset_join.runners.spark.epoch.runner import EpochRunner

__all__ = ["ChangingOnExecutors", "ChangingQuery", "RunnerHere"]


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
        ...

    def with_outputs_of(self, other: Any) -> Any:
        """Return a writer of this query that writes to the outputs of another one."""
        ...

    def changed_to_plan(self, query: PlannedQuery) -> Any:
        """Return a writer of a query of the same streams, as it is planned, with the options of this one."""
        ...

    def on_executors(self) -> EpochRunner:
        """Return the runner of the query on executors."""
        ...

    def served(self) -> ServedExecutorQuery:
        """Return the view that a client of Spark Connect has of the query on executors; nothing is started."""
        ...

    def start(self) -> Any: ...

    def start_behind_change(self, given_through: int | None) -> Any:
        """Start the query, and return it."""
        ...


class ChangeableEpochs(Protocol):
    """Interface to change a query, implemented by the runner of its epochs, here or in a server process.

    Attributes:
        has_ended: a change counts, so that the epochs of before have come to an end.
        progress: what the newest epochs did.
    """

    has_ended: bool
    progress: ProgressLog

    def evolve(
        self,
        query: PlannedQuery,
        outputs: Mapping[str, Sequence[ChosenSink]],
        words: ColumnWords | None = None,
        reread: Mapping[str, Any] | None = None,
        *,
        as_now: bool = False,
    ) -> PlanDiff:
        """Change the query between two epochs; outputs get the difference, and this object takes no epoch any more.

        New outputs are given by view; one without keeps its own. For the rest see `Pipeline.evolve`. Where the change does not
        count, the query continues as it was.
        """
        ...

    def undo(self, *, has_streams: bool = False) -> tuple[PlanDiff, PlannedQuery]:
        """Go back to the query before the last change, as `evolve`; return the difference, and that query.

        Without `has_streams`, a change that gave streams other columns is refused (`EVOLVE_STREAM`).
        """
        ...


class ChangeableOnExecutors(Protocol):
    """Interface to change a query on executors, implemented for a runner here and for one in a server process.

    Attributes:
        progress: what the newest epochs did.
    """

    progress: ProgressLog

    @property
    def has_ended(self) -> bool:
        """Return whether a change counts, so that the epochs of before have come to an end."""
        ...

    def evolve_executors(
        self,
        query: PlannedQuery,
        after: ChangeableWriter,
        terms: ChangeTerms,
        *,
        is_given: bool,
    ) -> PlanDiff:
        """Change the query between two epochs; see `changing_executors.evolve_executors`."""
        ...

    def undo_executors(self, before: tuple[PlannedQuery, ChangeableWriter] | None) -> PlanDiff:
        """Go back to the query before the last change; see `changing_executors.undo_executors`."""
        ...


class RunnerHere:
    """Change a query on executors whose runner is in this process."""

    def __init__(self, runner: EpochRunner) -> None:
        self._runner = runner
        self.progress = runner.progress

    @property
    def has_ended(self) -> bool:
        return self._runner.has_ended

    def evolve_executors(
        self,
        query: PlannedQuery,
        after: ChangeableWriter,
        terms: ChangeTerms,
        *,
        is_given: bool,
    ) -> PlanDiff:
        from zset_join.runners.spark.driver.changing_executors import evolve_executors

        return evolve_executors(self._runner, query, after.on_executors(), is_given=is_given, terms=terms)

    def undo_executors(self, before: tuple[PlannedQuery, ChangeableWriter] | None) -> PlanDiff:
        from zset_join.runners.spark.driver.changing_executors import undo_executors

        return undo_executors(self._runner, None if before is None else (before[0], before[1].on_executors()))


class ChangingQuery:
    """Arguments to restart a running query with after a change."""

    def __init__(self, writer: ChangeableWriter, epochs: ChangeableEpochs) -> None:
        self._writer = writer
        self._epochs = epochs
        self.before: ChangeableWriter | None = None

    @property
    def has_ended(self) -> bool:
        return self._epochs.has_ended

    def changed(
        self, view: Any, words: ColumnWords | None = None, reread: Mapping[str, Any] | None = None, *, as_now: bool = False
    ) -> tuple[PlanDiff, ChangeableWriter]:
        """Change the query in its checkpoint; return the difference, and the writer that it continues with."""
        other = _writer_of(view, self._writer)
        after = self._writer.changed_to(other)
        return self._epochs.evolve(after.planned, other.chosen_sinks, words, reread, as_now=as_now), after

    def planned(self, view: Any) -> PlannedQuery:
        """Return another query as the running one would be changed to it, for a comparison."""
        other: ChangeableWriter = planned_writer(view)
        after: ChangeableWriter = self._writer.changed_to(other)
        return after.planned

    def undone(self) -> tuple[PlanDiff, ChangeableWriter]:
        """Go back to the query before the last change; return the difference, and the writer that it continues with."""
        before = self.before
        diff, query = self._epochs.undo(has_streams=before is not None)
        if before is not None:
            return diff, before.with_outputs_of(self._writer)
        return diff, self._writer.changed_to_plan(query)

    def started(self, after: ChangeableWriter, diff: PlanDiff) -> Any:
        """Start the new query once Spark has stopped the one before."""
        started = after.start_behind_change(diff.taken)
        started.keep_progress_of(self._epochs.progress)
        if len(self._writer.planned.plan.views) == len(after.planned.plan.views) == 1:
            started.changing.before = self._writer
        return started


class ChangingOnExecutors:
    """Arguments to restart a running query on executors with after a change."""

    def __init__(self, writer: ChangeableWriter, epochs: ChangeableOnExecutors) -> None:
        self._writer = writer
        self._epochs = epochs
        self.before: ChangeableWriter | None = None

    @property
    def has_ended(self) -> bool:
        return self._epochs.has_ended

    def changed(
        self, view: Any, words: ColumnWords | None = None, reread: Mapping[str, Any] | None = None, *, as_now: bool = False
    ) -> tuple[PlanDiff, ChangeableWriter]:
        """Change the query in its checkpoint; return the difference, and the writer that it continues with."""
        other = _writer_of(view, self._writer)
        after, is_given = self._writer.changed_to(other), any(other.chosen_sinks.values())
        terms = ChangeTerms(words=words, reread=reread, as_now=as_now)
        diff = self._epochs.evolve_executors(other.planned, after, terms, is_given=is_given)
        return diff, after

    def planned(self, view: Any) -> PlannedQuery:
        """Return another query as the driver would run it, for a comparison."""
        other: ChangeableWriter = planned_writer(view)
        return other.planned

    def undone(self) -> tuple[PlanDiff, ChangeableWriter]:
        """Go back to the query before the last change; return the difference, and the writer that it continues with."""
        if self.before is None:
            self._epochs.undo_executors(None)
            raise AssertionError("a query that this process has not changed was undone")
        after = self.before.with_outputs_of(self._writer)
        return self._epochs.undo_executors((after.planned, after)), after

    def started(self, after: ChangeableWriter, diff: PlanDiff) -> Any:  # noqa: ARG002 - the start gives outputs the difference
        """Start the new query once Spark has stopped the one before."""
        started = after.start()
        started.keep_progress_of(self._epochs.progress)
        started.changing.before = self._writer
        return started


def _writer_of(view: Any, runs: ChangeableWriter) -> ChangeableWriter:
    other: ChangeableWriter = planned_writer(view)
    if other is runs or other.session is not runs.session:
        raise PlanError(
            "evolve() was given the writer of the query that runs, or a query of another session. Write the new query with "
            "the streams of this session, and give evolve() the view.",
            code="EVOLVE_SESSION",
        )
    return other
