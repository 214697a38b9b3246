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
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from zset_join.checkpoint.reading import (
    has_commits,
    stored_buckets,
    stored_description,
)
from zset_join.core.options import QueryOptions
from zset_join.runners.spark.driver.on_server import on_server, start_on_server
from zset_join.runners.spark.driver.starting import check_mode
from zset_join.runners.spark.epoch.frame_sink import TakesSession
from zset_join.runners.spark.epoch.named_outputs import ChosenSink, output_named
from zset_join.runners.spark.epoch.outputs import ChosenOutput
from zset_join.runners.spark.epoch.runner import EpochRunner
from zset_join.runners.spark.epoch.several_outputs import SeveralOutputs
from zset_join.runners.spark.frames.facts import analysed, is_connect
from zset_join.runners.spark.frames.sent import packed_with_frames, unpacked_with_frames
from zset_join.runners.spark.planning.normalise import TaggedStreams
from zset_join.runners.spark.planning.placed_query import names_of_streams
from zset_join.runners.spark.rows.baseline import with_made_start

__all__ = ["ExecutorSettings", "sent_to_executors", "served_executor_rows", "stored_facts"]


SentOutput = ChosenOutput | tuple[str, Mapping[str, Any]]
"""An output as it travels: a connector by its name and options, one of the user's own as it is."""


@dataclass(frozen=True)
class StoredFacts:
    """What a start reads of a checkpoint."""

    buckets: int | None
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
    execution = "executors"

    def with_local_state(self, directory: str) -> ExecutorSettings:  # noqa: ARG002 - tasks have it, elsewhere
        return self

    def runner(self, session: SparkSession | None) -> EpochRunner:
        query, tagged, more, outputs = unpacked_with_frames(self.content, session)
        if tagged.baseline is not None and not has_commits(self.options.checkpoint_location):
            # Resolved in the time zone that the client chose, before the settings of a job count.
            tagged = replace(tagged, baseline=analysed(tagged.baseline, f"zset_join_baseline_{uuid.uuid4().hex}"))
        made = {
            view: [output_named(one[0], one[1]) if isinstance(one, tuple) else one for one in chosen]
            for view, chosen in outputs.items()
        }
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


def sent_to_executors(
    runner: EpochRunner,
    tagged: TaggedStreams,
    outputs: Mapping[str, Sequence[ChosenOutput]],
    sinks: Mapping[str, Sequence[ChosenSink]],
) -> ExecutorSettings:
    # Planned here, where the session of the program is.
    _ = runner.query.fused_stages, runner.query.outputs, runner.query.is_served
    sent: dict[str, list[SentOutput]] = {}
    for view, chosen in outputs.items():
        named = [one.written() for one in sinks.get(view, ())]
        sent[view] = [
            output if name is None else (name, options) for output, (name, options) in zip(chosen, named, strict=True)
        ]
    return ExecutorSettings(
        content=packed_with_frames((runner.query, tagged, runner.operator_options.more, sent)),
        options=runner.options,
        buckets=runner.buckets,
        dead_letters=runner.dead_letters,
        name=runner.name,
        needs_session=any(isinstance(one.sink, TakesSession) for chosen in outputs.values() for one in chosen),
    )


def stored_facts(session: SparkSession, location: str) -> StoredFacts:
    """Return what a start on executors reads of a checkpoint; where it lies, which over Spark Connect is the server."""
    read = partial(_read_facts, location)
    return StoredFacts(*(on_server(session, read) if is_connect(session) else read()))


def _read_facts(location: str) -> tuple[Any, ...]:
    check_mode(location, "executors")
    stored = stored_description(location)
    return stored_buckets(location), names_of_streams(stored)


def served_executor_rows(runner: EpochRunner, tagged: TaggedStreams) -> DataFrame:
    """Return the rows of all sources as the server is to bring them, with a source for empty epochs where needed."""
    location, is_loading = runner.options.checkpoint_location, tagged.baseline is not None
    if start_on_server(runner.query.session, location, is_timed=runner.is_timed, is_needed=is_loading):
        return with_made_start(tagged.dataframe, location)
    return tagged.dataframe
