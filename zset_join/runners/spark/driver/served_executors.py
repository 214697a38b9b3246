"""Epochs on executors of a query that a client of Spark Connect started: an `EpochRunner` runs in a process of the server.

The client plans the query and sends it whole: stages, steps as functions of DataFrames, baselines as plans, outputs by name and
options. In the process of `foreachBatch` that becomes an `EpochRunner` of its session, which has the same interface to Spark as
that of a classic driver: shuffles, tasks, and settings per job. Checkpoint, inputs and outputs are the server's alone.

The law: as that of `served`: one checkpoint and one output, whether the query was started over Spark Connect or beside Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from zset_join.checkpoint.reading import (
    checkpoint_folder,
    has_commits,
    no_checkpoint,
    stored_buckets,
    stored_description,
    stored_query_id,
)
from zset_join.core.errors import ZsetJoinError
from zset_join.core.options import QueryOptions
from zset_join.kernels.machine.first_use import compile_rest_in_background
from zset_join.runners.spark.driver.chosen_sink import ChosenSink
from zset_join.runners.spark.driver.epochs import spark_query_id
from zset_join.runners.spark.driver.executor_questions import ServedExecutorTools, answer_of_executors, answered_by
from zset_join.runners.spark.driver.on_server import on_server, once_free, start_on_server
from zset_join.runners.spark.driver.other_modes import has_other_mode, write_draft
from zset_join.runners.spark.driver.questions import Question, QuestionWatch
from zset_join.runners.spark.driver.sent_changes import read_diff
from zset_join.runners.spark.driver.served_changes import HAS_CHANGED
from zset_join.runners.spark.driver.served_handle import ServedHandle, refuse_reread
from zset_join.runners.spark.driver.starting import check_mode
from zset_join.runners.spark.epoch.frame_sink import TakesSession
from zset_join.runners.spark.epoch.heartbeat import Heartbeat
from zset_join.runners.spark.epoch.named_outputs import output_named
from zset_join.runners.spark.epoch.outputs import ChosenOutput
from zset_join.runners.spark.epoch.runner import EpochRunner
from zset_join.runners.spark.epoch.several_outputs import SeveralOutputs
from zset_join.runners.spark.frames.facts import analysed, is_connect
from zset_join.runners.spark.frames.sent import packed_with_frames, unpacked_with_frames
from zset_join.runners.spark.planning.described_query import names_of_streams
from zset_join.runners.spark.planning.normalise import TaggedStreams
from zset_join.runners.spark.rows.baseline import with_made_start

if TYPE_CHECKING:
    from zset_join.checkpoint.other_mode import OtherMode
    from zset_join.evolution.changed_columns import ChangeTerms
    from zset_join.evolution.differences import PlanDiff
    from zset_join.query.several import PlannedQuery
    from zset_join.tools.savepoint import Savepoint

__all__ = [
    "ServedExecutorEpochs",
    "ServedExecutorQuery",
    "handle_of",
    "refuse_served_executors",
    "served_executor_rows",
    "stored_facts",
]


class ServedWriter(Protocol):
    def served(self) -> ServedExecutorQuery:
        """Return the view that a client has of it on executors."""
        ...


SentOutput = ChosenOutput | tuple[str, Mapping[str, Any]]
"""An output as it travels: a connector by its name and options, one of the user's own as it is."""


@dataclass(frozen=True)
class StoredFacts:
    """What a start reads of a checkpoint."""

    buckets: int | None
    shares_tables: bool
    streams: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ExecutorSettings:
    """A query on executors as it travels to the server."""

    content: bytes
    options: QueryOptions
    buckets: int
    dead_letters: str
    name: str
    needs_session: bool

    def runner(self, session: SparkSession | None) -> EpochRunner:
        query, tagged, more, outputs = unpacked_with_frames(self.content, session)
        if tagged.baseline is not None and not has_commits(self.options.checkpoint_location):
            # Resolved in the time zone that the client chose, before the settings of a job count.
            tagged = replace(tagged, baseline=analysed(tagged.baseline, f"zset_join_baseline_{uuid.uuid4().hex}"))
        made = [output_named(one[0], one[1]) if isinstance(one, tuple) else one for one in outputs]
        runner = EpochRunner(
            query,
            tagged,
            self.options,
            buckets=self.buckets,
            more=more,
            output=SeveralOutputs(made),
            dead_letter_path=self.dead_letters,
        )
        runner.name = self.name
        return runner


@dataclass(eq=False)
class ServedExecutorEpochs:
    """Run the epochs of a query by executors, from a process of the server; callable, for `foreachBatch`."""

    settings: ExecutorSettings
    other: OtherMode | None = None
    _runner: EpochRunner | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (ServedExecutorEpochs, (self.settings, self.other))

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        if self._runner is None:
            self._runner = self._started(batch.sparkSession)
        self._runner(batch, epoch)

    def _started(self, session: SparkSession) -> EpochRunner:
        """Return the runner, attached to checkpoint and outputs."""
        compile_rest_in_background()
        location = self.settings.options.checkpoint_location
        check_mode(location, "executors")
        runner = self.settings.runner(session)
        if self.other is not None:
            runner.after_begin = partial(write_draft, location, self.other)
        query_id = spark_query_id(location)
        if query_id is None:
            raise no_checkpoint(location)
        once_free(partial(runner.attach, query_id))
        runner.begin()
        QuestionWatch(location, partial(answered_by, runner), lambda: runner.has_ended).start()
        if runner.is_timed:
            runner.heartbeat = Heartbeat(checkpoint_folder(location), runner.next_due)
            runner.heartbeat.start()
        return runner


@dataclass(eq=False)
class ServedExecutorQuery(ServedHandle):
    """A client's view of a query whose epochs executors run; see `ServedHandle`."""

    settings: ExecutorSettings
    planned: EpochRunner | None = None

    @property
    def _here(self) -> EpochRunner:
        if self.planned is None:
            self.planned = self.settings.runner(self.session)
        return self.planned

    @property
    def schema(self) -> pa.Schema:
        return self._here.schema

    def explanation(self) -> str:
        return self._here.explanation()

    def backup(self, directory: str | Path) -> Savepoint:
        """Copy checkpoint and outputs between two epochs, on the server; the directory is one of the server's."""
        question = Question("backup", {"directory": str(directory)})
        found: Savepoint = answer_of_executors(question, self.settings, self.session, is_active=self.is_active)
        return found

    def evolve_executors(
        self,
        query: PlannedQuery,
        after: ServedWriter,
        terms: ChangeTerms,
        *,
        is_given: bool,
    ) -> PlanDiff:
        """Change the query between two epochs, in the process of the server that runs it."""
        refuse_reread("evolve", terms.reread)
        return self._changed("evolve", (query, after.served().settings, terms, is_given))

    def undo_executors(self, before: tuple[PlannedQuery, ServedWriter] | None) -> PlanDiff:
        """Go back to the query before the last change, in the process of the server that runs it."""
        return self._changed("undo", None if before is None else (before[0], before[1].served().settings))

    def _changed(self, about: str, given: Any) -> PlanDiff:
        question = Question(about, {"content": packed_with_frames(given)})
        try:
            diff = read_diff(answer_of_executors(question, self.settings, self.session, is_active=self.is_active))
        except ZsetJoinError as error:
            self.has_ended = bool(error.facts.get(HAS_CHANGED))
            raise
        self.has_ended = True
        return diff

    def tools(self) -> ServedExecutorTools:
        return ServedExecutorTools(self, self.settings)


def handle_of(
    runner: EpochRunner, tagged: TaggedStreams, outputs: Sequence[ChosenOutput], sinks: Sequence[ChosenSink]
) -> ServedExecutorQuery:
    """Return the view that a client has of a query, which holds the query as it travels."""
    # Planned here, where the session of the program is.
    _ = runner.query.fused_stages, runner.query.output, runner.query.is_served
    named = [one.written() for one in sinks]
    sent: list[SentOutput] = [
        output if name is None else (name, options) for output, (name, options) in zip(outputs, named, strict=True)
    ]
    settings = ExecutorSettings(
        content=packed_with_frames((runner.query, tagged, runner.operator_options.more, sent)),
        options=runner.options,
        buckets=runner.buckets,
        dead_letters=runner.dead_letters,
        name=runner.name,
        needs_session=any(isinstance(one.sink, TakesSession) for one in outputs),
    )
    return ServedExecutorQuery(settings, runner.query.session, planned=runner)


def stored_facts(session: SparkSession, location: str) -> StoredFacts:
    """Return what a start on executors reads of a checkpoint; where it lies, which over Spark Connect is the server."""
    read = partial(_read_facts, location)
    return StoredFacts(*(on_server(session, read) if is_connect(session) else read()))


def _read_facts(location: str) -> tuple[Any, ...]:
    check_mode(location, "executors")
    stored = stored_description(location)
    shares = stored is None or "shared" in stored
    return stored_buckets(location), shares, names_of_streams(stored)


def refuse_served_executors(settings: ExecutorSettings, session: SparkSession) -> bool:
    """Open checkpoint and outputs on the server and release them, so that a start which they refuse writes nothing."""
    # A new checkpoint is not looked at, nor one with an output that writes by Spark.
    return bool(once_free(lambda: on_server(session, partial(_opened_and_closed, settings))))


def served_executor_rows(runner: EpochRunner, tagged: TaggedStreams) -> DataFrame:
    """Return the rows of all sources as the server is to bring them, with a source for empty epochs where needed."""
    location, is_loading = runner.options.checkpoint_location, tagged.baseline is not None
    if start_on_server(runner.query.session, location, is_timed=runner.is_timed, is_needed=is_loading):
        return with_made_start(tagged.dataframe, location)
    return tagged.dataframe


def _opened_and_closed(settings: ExecutorSettings) -> bool:
    location = settings.options.checkpoint_location
    query_id = stored_query_id(location)
    if query_id is None:
        return False
    runner = settings.runner(None)
    if not settings.needs_session:
        runner.attach(query_id)
        runner.close()
    return has_other_mode(location, runner.described(stored_description(location)))
