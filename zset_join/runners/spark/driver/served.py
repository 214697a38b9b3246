"""Epochs of a query that a client of Spark Connect started: they run in a process of the server.

The client sends settings; checkpoint, inputs and outputs are the server's alone. Client and server share no disk, so the client
reads nothing of them itself: it calls the process that holds the checkpoint (`zset_join.runners.spark.driver.questions`), and
where none does, one that a stream of one row starts.

The law: a query that was started over Spark Connect and one that was started beside the server have one checkpoint and one
output. An error that stops a query reaches the client with its code and its message; its facts are kept in the checkpoint.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from zset_join.checkpoint.reading import checkpoint_folder, no_checkpoint, stored_description, stored_query_id
from zset_join.core.errors import StateError
from zset_join.core.options import QueryOptions
from zset_join.kernels.machine.first_use import compile_rest_in_background
from zset_join.runners.spark.driver.driver_tools import verbs_of
from zset_join.runners.spark.driver.epochs import DriverEpochs, spark_query_id
from zset_join.runners.spark.driver.on_server import on_server, once_free
from zset_join.runners.spark.driver.other_modes import has_other_mode, write_draft
from zset_join.runners.spark.driver.questions import (
    IN_USE_SECONDS,
    Question,
    QuestionWatch,
    answer_question,
    lost_question,
    put_question,
    taken_answer,
)
from zset_join.runners.spark.driver.starting import check_mode
from zset_join.runners.spark.epoch.heartbeat import Heartbeat
from zset_join.runners.spark.epoch.runner import EpochRunner
from zset_join.runners.spark.frames.sent import packed_with_frames, unpacked_with_frames

if TYPE_CHECKING:
    from zset_join.runners.spark.planning.other_mode import OtherMode

__all__ = ["SentQuery", "ServedEpochs", "answer_of", "read_at_rest", "refuse_served"]

_UNTAKEN_SECONDS, _LOOK_SECONDS = 5.0, 1.5


class SentQuery(Protocol):
    """A query as it travels to the server."""

    @property
    def options(self) -> QueryOptions: ...

    @property
    def dead_letters(self) -> str: ...

    @property
    def execution(self) -> str:
        """Return where its epochs run, as the option of that name."""

    @property
    def needs_session(self) -> bool:
        """Return whether an output of it is written by Spark."""

    def with_local_state(self, directory: str) -> SentQuery:
        """Return it with another `localStateDir`."""

    def runner(self, session: SparkSession | None) -> DriverEpochs | EpochRunner:
        """Return what runs its epochs, attached to nothing."""


@dataclass(eq=False)
class ServedEpochs:
    """Run the epochs of a query in a process of the server; callable, for `foreachBatch`; travels as its settings."""

    settings: SentQuery
    other: OtherMode | None = None
    _runner: DriverEpochs | EpochRunner | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (ServedEpochs, (self.settings, self.other))

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        if self._runner is None:
            self._runner = self._started(batch.sparkSession)
        self._runner(batch, epoch)

    def _started(self, session: SparkSession) -> DriverEpochs | EpochRunner:
        """Return the runner, attached to checkpoint and outputs."""
        compile_rest_in_background()
        location = self.settings.options.checkpoint_location
        check_mode(location, self.settings.execution)
        runner = self.settings.runner(session)
        if self.other is not None:
            runner.after_begin = partial(write_draft, location, self.other)
        query_id = spark_query_id(location)
        if query_id is None:
            raise no_checkpoint(location)
        once_free(partial(runner.attach, query_id))
        runner.begin()
        verbs = verbs_of(runner)
        QuestionWatch(location, lambda one: one.answered(verbs, runner, session), lambda: runner.has_ended).start()
        if runner.is_timed:
            runner.heartbeat = Heartbeat(checkpoint_folder(location), runner.next_due)
            runner.heartbeat.start()
        return runner


def refuse_served(settings: SentQuery, session: SparkSession) -> bool:
    """Open checkpoint and outputs on the server and release them, so that a start which they refuse writes nothing.

    A new checkpoint is not opened, nor one with an output that Spark writes. Return whether the checkpoint holds what the query
    is in the other mode.
    """
    return bool(once_free(lambda: on_server(session, partial(_opened_and_closed, settings))))


def _opened_and_closed(settings: SentQuery) -> bool:
    location = settings.options.checkpoint_location
    query_id = stored_query_id(location)
    if query_id is None:
        return False
    check_mode(location, settings.execution)
    with tempfile.TemporaryDirectory(prefix="zset_join-look-") as directory:
        runner = settings.with_local_state(directory).runner(None)
        if not settings.needs_session:
            runner.attach(query_id)
            runner.close()
        return has_other_mode(location, runner.described(stored_description(location)))


def read_at_rest(settings: SentQuery, verb: str, given: bytes) -> Any:
    """Return the answer to a question that is read from the files of a checkpoint that any process may hold; on the server."""
    return verbs_of(settings.runner(None))[verb](**unpacked_with_frames(given, None))


def answer_of(
    verb: str, given: Mapping[str, Any], settings: SentQuery, session: SparkSession, is_active: Callable[[], bool]
) -> Any:
    """Return the answer to a question, from the process that runs the epochs, or from one that opens the checkpoint."""
    name, location, began = uuid.uuid4().hex, settings.options.checkpoint_location, time.monotonic()
    on_server(session, partial(put_question, location, name, verb, packed_with_frames(given)))
    while True:
        is_running, waited = is_active(), time.monotonic() - began
        look = partial(taken_answer, location, name, _LOOK_SECONDS if is_running else 0.0)
        state, answer = on_server(session, look)
        if state == "answer":
            return answer
        if state == "waiting" and (not is_running or waited > _UNTAKEN_SECONDS):
            row = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
            one = _Answer(settings, name, is_patient=waited < IN_USE_SECONDS)
            row.writeStream.trigger(availableNow=True).foreachBatch(one).start().awaitTermination()
        elif state == "lost" or (state == "taken" and not is_running and waited > IN_USE_SECONDS):
            raise lost_question(location, verb)


@dataclass(frozen=True)
class _Answer:
    """Answer one question, from a process that runs no epoch; callable, for `foreachBatch`."""

    settings: SentQuery
    name: str
    is_patient: bool

    def __call__(self, batch: DataFrame, epoch: int) -> None:  # noqa: ARG002 - there is one
        with tempfile.TemporaryDirectory(prefix="zset_join-look-") as directory:
            self._answer(self.settings.with_local_state(directory), batch.sparkSession)

    def _answer(self, settings: SentQuery, session: SparkSession) -> None:
        location = settings.options.checkpoint_location
        opened: DriverEpochs | EpochRunner | Exception
        try:
            opened = _attached(settings, session)
        except Exception as error:  # noqa: BLE001 - it is the answer
            if self.is_patient and isinstance(error, StateError) and error.code == "CHECKPOINT_IN_USE":
                return
            opened = error

        def answered(question: Question) -> Any:
            if isinstance(opened, Exception):
                raise opened
            opened.begin()
            return question.answered(verbs_of(opened), opened, session)

        def has_ended() -> bool:
            return not isinstance(opened, Exception) and opened.has_ended

        try:
            answer_question(checkpoint_folder(location), self.name, answered, has_ended)
        finally:
            if not isinstance(opened, Exception):
                opened.close()


def _attached(settings: SentQuery, session: SparkSession) -> DriverEpochs | EpochRunner:
    location = settings.options.checkpoint_location
    query_id = stored_query_id(location)
    if query_id is None:
        raise no_checkpoint(location)
    check_mode(location, settings.execution)
    runner = settings.runner(session)
    once_free(partial(runner.attach, query_id))
    return runner
