"""Epochs of a query that a client of Spark Connect started: they run in a process of the server.

The client sends settings; checkpoint, inputs and outputs are the server's alone. Client and server share no disk, so the client
reads nothing of them itself: `on_server` runs a function there, as a job with one task, and brings its answer back as text.

The law: a query that was started over Spark Connect and one that was started beside the server have one checkpoint and one
output. An error that stops a query reaches the client with its code and its message; its facts are kept in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from zset_join.checkpoint.reading import checkpoint_folder, stored_description, stored_query_id
from zset_join.core.errors import OptionError, ZsetJoinError
from zset_join.core.options import QueryOptions
from zset_join.kernels.machine.first_use import compile_rest_in_background
from zset_join.runners.local.directory_plans import described_plan
from zset_join.runners.local.pinned import diff_of_running, diff_wherever
from zset_join.runners.spark.driver.choosing import memory_budget
from zset_join.runners.spark.driver.chosen_sink import ChosenSink
from zset_join.runners.spark.driver.driver_tools import refuse_given
from zset_join.runners.spark.driver.epochs import DriverEpochs, DriverSettings, spark_query_id
from zset_join.runners.spark.driver.on_server import on_server, once_free
from zset_join.runners.spark.driver.other_modes import has_other_mode, write_draft
from zset_join.runners.spark.driver.questions import Question, QuestionWatch, answer_of, opened_for_a_look
from zset_join.runners.spark.driver.sent_changes import read_diff, read_query, written_outputs, written_query
from zset_join.runners.spark.driver.served_changes import HAS_CHANGED
from zset_join.runners.spark.driver.served_handle import ServedHandle, ToolsOfServed, compared, refuse_reread
from zset_join.runners.spark.driver.starting import check_mode
from zset_join.runners.spark.epoch.frame_sink import TakesSession
from zset_join.runners.spark.epoch.heartbeat import Heartbeat
from zset_join.runners.spark.frames.facts import is_connect
from zset_join.runners.spark.frames.sent import frame_of
from zset_join.tools.savepoint import Savepoint

if TYPE_CHECKING:
    from zset_join.checkpoint.other_mode import OtherMode
    from zset_join.evolution.changed_columns import ColumnWords
    from zset_join.evolution.differences import PlanDiff
    from zset_join.query.several import PlannedQuery
    from zset_join.tools.reports import VerificationReport

__all__ = ["ServedEpochs", "ServedQuery", "ServedTools", "budget_of", "refuse_served"]


@dataclass(eq=False)
class ServedEpochs:
    """Run the epochs of a query in a process of the server; callable, for `foreachBatch`; travels as its settings."""

    settings: DriverSettings
    baseline: bytes | None = None
    other: OtherMode | None = None
    _epochs: DriverEpochs | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (ServedEpochs, (self.settings, self.baseline, self.other))

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        if self._epochs is None:
            compile_rest_in_background()
            check_mode(self.settings.options.checkpoint_location, "driver")
            self._epochs = DriverEpochs(self.settings)
        epochs, session = self._epochs, batch.sparkSession
        is_new = not epochs.is_open and not epochs.has_ended
        if is_new:
            epochs.baseline = None if self.baseline is None else frame_of(self.baseline, session)
            if self.other is not None:
                epochs.after_begin = partial(write_draft, epochs.location, self.other)
            query_id = spark_query_id(epochs.location)
            once_free(lambda: epochs.attach(query_id, session))
            epochs.begin()
            QuestionWatch(epochs.location, lambda question: question.answered(epochs), lambda: epochs.has_ended).start()
        epochs(batch, epoch)
        if is_new and self.settings.is_timed:
            epochs.heartbeat = Heartbeat(checkpoint_folder(epochs.location), epochs.next_due)
            epochs.heartbeat.start()


@dataclass(eq=False)
class ServedQuery(ServedHandle):
    """A client's view of a query whose epochs run in a process of the server; see `ServedHandle`."""

    settings: DriverSettings

    @property
    def schema(self) -> pa.Schema:
        return self.settings.query.plan.output.schema

    def explanation(self) -> str:
        return DriverEpochs(self.settings).explanation(budget_of(self.session, self.options))

    def backup(self, directory: str | Path) -> Savepoint:
        """Copy checkpoint and outputs between two epochs, on the server; the directory is one of the server's."""
        found: Savepoint = answer_of(
            Question("backup", {"directory": str(directory)}),
            self.settings,
            self.session,
            rows=None,
            is_active=self.is_active,
        )
        return found

    def evolve(
        self,
        query: PlannedQuery,
        outputs: Mapping[str, Sequence[ChosenSink]],
        words: ColumnWords | None = None,
        reread: Mapping[str, Any] | None = None,
        *,
        as_now: bool = False,
    ) -> PlanDiff:
        refuse_reread("evolve", reread)
        if words is not None and (words.renamed or words.defaults):
            raise OptionError(
                "over Spark Connect evolve() takes no renamed= and no defaults=. Stop the query, and run zset-join evolve with "
                "--rename and --default beside the server.",
                code="NOT_FROM_HERE",
                what="evolve",
            )
        given = {"query": written_query(query), "outputs": written_outputs(outputs), "as_now": as_now}
        return self._changed("evolve", given)[0]

    def undo(self, *, has_streams: bool = False) -> tuple[PlanDiff, PlannedQuery]:  # noqa: ARG002 - the server has none
        return self._changed("undo", {})

    def _changed(self, about: str, given: Mapping[str, Any]) -> tuple[PlanDiff, PlannedQuery]:
        question = Question(about, given)
        try:
            diff, query = answer_of(question, self.settings, self.session, rows=None, is_active=self.is_active)
        except ZsetJoinError as error:
            self.has_ended = bool(error.facts.get(HAS_CHANGED))
            raise
        self.has_ended = True
        return read_diff(diff), read_query(query)


def budget_of(session: SparkSession, options: QueryOptions) -> int:
    """Return how many bytes of state a query may have on the driver, or on the server of Spark Connect."""
    if options.driver_memory is not None or not is_connect(session):
        return memory_budget(options)
    return int(on_server(session, partial(memory_budget, options)))


def refuse_served(settings: DriverSettings, session: SparkSession) -> bool:
    """Open checkpoint and outputs on the server and release them, so that a start which they refuse writes nothing."""
    # A new checkpoint is not looked at, nor one with an output that writes by Spark.

    def opened() -> bool:
        _open_and_close(settings)
        location = settings.options.checkpoint_location
        given = {**described_plan(settings.query.plan), **settings.described(stored_description(location))}
        return has_other_mode(location, given)

    return bool(once_free(lambda: on_server(session, opened)))


def _open_and_close(settings: DriverSettings) -> None:
    location = settings.options.checkpoint_location
    if stored_query_id(location) is None:
        return
    check_mode(location, "driver")
    if not any(isinstance(one.sink, TakesSession) for sinks in settings.sinks.values() for one in sinks):
        opened_for_a_look(settings).close()


class ServedTools(ToolsOfServed):
    """Answer questions about a query whose epochs run on the server."""

    def __init__(self, query: ServedQuery) -> None:
        super().__init__(query)
        self._settings = query.settings

    def verify(self, *, actual_df: DataFrame | None = None, most_differences: int = 20, **given: Any) -> VerificationReport:
        refuse_given(given)
        found: VerificationReport = self._answer("verify", {"most_differences": most_differences}, actual_df)
        return found

    def _compared(self, query: PlannedQuery, lease_seconds: float, *, as_now: bool) -> Any:
        compare = diff_of_running if self._is_active() else diff_wherever
        location, written = self._settings.options.checkpoint_location, written_query(query)
        return partial(compared, compare, location, written, lease_seconds, as_now=as_now)

    def _answer(self, about: str, given: Mapping[str, Any], rows: DataFrame | None = None) -> Any:
        return answer_of(Question(about, given), self._settings, self._session, rows=rows, is_active=self._is_active)
