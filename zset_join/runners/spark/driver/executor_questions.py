"""Questions of a client of Spark Connect to a query on executors: Spark's jobs answer them, in a process of the server.

A query that runs answers in the process that runs its epochs; for one that does not, a stream of one row is started, whose
`foreachBatch` function opens the checkpoint, answers, and releases it: a task has no session. DataFrames travel as plans.

Cost: those of `questions`; where the query does not run, also a start of a stream, some seconds.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from zset_join.checkpoint.reading import checkpoint_folder, no_checkpoint, stored_query_id
from zset_join.core.errors import StateError
from zset_join.core.options import QueryOptions
from zset_join.runners.spark.driver.changing_executors import evolve_executors, undo_executors
from zset_join.runners.spark.driver.driver_tools import ExecutorTools
from zset_join.runners.spark.driver.executors_state import diff_of_executors
from zset_join.runners.spark.driver.on_server import on_server, once_free, table_bytes
from zset_join.runners.spark.driver.questions import (
    WAITS,
    Question,
    answer_question,
    is_lost,
    is_waiting,
    lost_question,
    put_question,
    taken_answer,
)
from zset_join.runners.spark.driver.sent_changes import written_diff, written_query
from zset_join.runners.spark.driver.served_changes import CHANGES, ended_by_change
from zset_join.runners.spark.driver.served_handle import ServedHandle, ToolsOfServed, compared
from zset_join.runners.spark.epoch.runner import EpochRunner
from zset_join.runners.spark.frames.sent import frame_bytes, frame_of, unpacked_with_frames

if TYPE_CHECKING:
    from zset_join.query.several import PlannedQuery
    from zset_join.tools.reports import VerificationReport

__all__ = ["ServedExecutorTools", "answer_of_executors", "answered_by"]

_UNTAKEN_SECONDS, _IN_USE_SECONDS, _LOST_SECONDS = 5.0, 60.0, 60.0


class SentRunner(Protocol):
    """A query on executors as it travels."""

    @property
    def options(self) -> QueryOptions: ...

    def runner(self, session: SparkSession | None) -> EpochRunner: ...


class ServedExecutorTools(ToolsOfServed):
    def __init__(self, query: ServedHandle, settings: SentRunner) -> None:
        super().__init__(query)
        self._query = query
        self._settings = settings

    def verify(
        self,
        *,
        left_df: DataFrame | None,
        right_df: DataFrame | None,
        tables: Mapping[str, DataFrame] | None,
        actual_df: DataFrame | None,
        most_differences: int,
        sample: float | None,
    ) -> VerificationReport:
        frames = {"left_df": left_df, "right_df": right_df, "actual_df": actual_df}
        sent: dict[str, Any] = {name: None if rows is None else frame_bytes(rows) for name, rows in frames.items()}
        sent["tables"] = None if tables is None else {name: frame_bytes(rows) for name, rows in tables.items()}
        found: VerificationReport = self._answer("verify", {**sent, "most_differences": most_differences, "sample": sample})
        return found

    def _compared(self, query: PlannedQuery, lease_seconds: float, *, as_now: bool) -> Callable[[], Any]:
        location, written = self._options.checkpoint_location, written_query(query)
        return partial(compared, diff_of_executors, location, written, lease_seconds, as_now=as_now)

    def _answer(self, about: str, given: Mapping[str, Any]) -> Any:
        return answer_of_executors(Question(about, given), self._settings, self._session, is_active=self._query.is_active)


def answered_by(runner: EpochRunner, question: Question) -> Any:
    """Return the answer to a question as it travels."""
    given, tools, session = dict(question.given), ExecutorTools(runner), runner.query.session
    if question.about == "backup":
        return runner.backup(given["directory"])
    if question.about == "explain_row":
        return tools.explain_row(given["row"], most_rows=given["most_rows"])
    if question.about == "view_rows":
        held, count = tools.view_rows(given["view"], given["values"], most_rows=given["most_rows"])
        return table_bytes(pa.Table.from_batches([held.rows])), held.weights.tolist(), count
    if question.about in CHANGES:
        return _changed(runner, question.about, unpacked_with_frames(given["content"], session))
    tables = given.pop("tables")
    frames = {name: given.pop(name) for name in ("left_df", "right_df", "actual_df")}
    return tools.verify(
        **{name: None if plan is None else frame_of(plan, session) for name, plan in frames.items()},
        tables=None if tables is None else {name: frame_of(plan, session) for name, plan in tables.items()},
        **given,
    )


def _changed(runner: EpochRunner, about: str, given: Any) -> Mapping[str, Any]:
    """Change a query, give outputs the difference, and release the checkpoint; return the difference, serialised."""
    with ended_by_change(runner):
        if given is None:
            return written_diff(undo_executors(runner, None))
        query, sent, *more = given
        after = sent.runner(runner.query.session)
        if about == "undo":
            return written_diff(undo_executors(runner, (query, after), gives_difference=True))
        terms, is_given = more
        return written_diff(evolve_executors(runner, query, after, is_given=is_given, terms=terms, gives_difference=True))


def answer_of_executors(
    question: Question, settings: SentRunner, session: SparkSession, *, is_active: Callable[[], bool]
) -> Any:
    """Return the answer to a question, from the process that runs the epochs, or from one that opens the checkpoint."""
    name, location, began = uuid.uuid4().hex, settings.options.checkpoint_location, time.monotonic()
    on_server(session, partial(put_question, location, name, question))
    while (found := on_server(session, partial(taken_answer, location, name))) == WAITS:
        waited = time.monotonic() - began
        is_untaken = not is_active() or waited > _UNTAKEN_SECONDS
        if is_untaken and on_server(session, partial(is_waiting, location, name)):
            row = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
            answer = _Answer(settings, name, is_patient=waited < _IN_USE_SECONDS)
            row.writeStream.trigger(availableNow=True).foreachBatch(answer).start().awaitTermination()
        elif waited > _LOST_SECONDS and (not is_active() or on_server(session, partial(is_lost, location, name))):
            raise lost_question(location, question.about)
    return found


@dataclass(frozen=True)
class _Answer:
    """Answer one question, from a process that runs no epoch; callable, for `foreachBatch`."""

    settings: SentRunner
    name: str
    is_patient: bool

    def __call__(self, batch: DataFrame, epoch: int) -> None:  # noqa: ARG002 - there is one
        location, session = self.settings.options.checkpoint_location, batch.sparkSession
        opened: EpochRunner | Exception
        try:
            opened = self._opened(session)
        except Exception as error:  # noqa: BLE001 - it is the answer
            if self.is_patient and isinstance(error, StateError) and error.code == "CHECKPOINT_IN_USE":
                return
            opened = error

        def answered(question: Question) -> Any:
            if isinstance(opened, Exception):
                raise opened
            opened.begin()
            return answered_by(opened, question)

        def has_ended() -> bool:
            return not isinstance(opened, Exception) and opened.has_ended

        try:
            answer_question(checkpoint_folder(location), self.name, answered, has_ended)
        finally:
            if not isinstance(opened, Exception):
                opened.close()

    def _opened(self, session: SparkSession) -> EpochRunner:
        location = self.settings.options.checkpoint_location
        query_id = stored_query_id(location)
        if query_id is None:
            raise no_checkpoint(location)
        runner = self.settings.runner(session)
        once_free(lambda: runner.attach(query_id))
        return runner
