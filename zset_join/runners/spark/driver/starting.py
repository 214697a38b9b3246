"""From a query and its options to what runs its epochs on the driver, and to the rows that Spark is to bring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from zset_join.checkpoint.reading import checkpoint_folder, stored_description
from zset_join.core.errors import StateError
from zset_join.core.options import QueryOptions
from zset_join.kernels.machine.first_use import compile_rest_in_background
from zset_join.runners.spark.driver.choosing import stored_mode
from zset_join.runners.spark.driver.driver_query import DriverQuery, united_rows
from zset_join.runners.spark.driver.epochs import DriverEpochs, DriverSettings
from zset_join.runners.spark.driver.on_server import on_server, start_on_server
from zset_join.runners.spark.epoch.heartbeat import Heartbeat
from zset_join.runners.spark.epoch.named_outputs import ChosenSink
from zset_join.runners.spark.frames.facts import is_connect
from zset_join.runners.spark.planning.placed_query import names_of_streams
from zset_join.runners.spark.planning.stages import hybrid_stages
from zset_join.runners.spark.rows.baseline import needs_start, with_made_start, with_start
from zset_join.stages import Stage, StageOptions
from zset_join.stages.effect import warm_up
from zset_join.storage.folder import folder_below, is_local, local_path, open_folder
from zset_join.storage.local import make_directories

__all__ = [
    "check_mode",
    "dead_letters_place",
    "driver_epochs",
    "in_stored_order",
    "make_place",
    "served_rows",
    "streamed_rows",
    "warmed_up",
]


def check_mode(location: str, mode: str) -> None:
    """Refuse a checkpoint whose epochs ran elsewhere."""
    found = stored_mode(location)
    if found is not None and found != mode:
        moved = f"stop it and move its state with zset-join rescale {location} --execution {mode}"
        raise StateError(
            f'the checkpoint {location} is of a query that runs with execution="{found}", and its state lies in another form '
            f'than with execution="{mode}". Start it with option("execution", "{found}"), or {moved}, or start with a '
            "new checkpointLocation and a new output.",
            code="EXECUTION_CHANGED",
            location=location,
            found=found,
            expected=mode,
        )


def driver_epochs(
    query: DriverQuery,
    options: QueryOptions,
    sinks: Mapping[str, Sequence[ChosenSink]],
    *,
    name: str,
    more: Mapping[str, Any],
) -> DriverEpochs:
    location, place = options.checkpoint_location, dead_letters_place(options, "dead-letters")
    shared = max(1, hybrid_stages(query.plan.nodes, options))
    stage_options = StageOptions(
        on_bad_input=options.on_bad_input,
        tombstone_retention_seconds=options.tombstone_retention_seconds,
        chunk_rows=options.chunk_rows,
        buffer_limit=options.buffer_limit,
        hot_budget=None if options.hot_budget is None else options.hot_budget.share(shared),
        table_budget=None if options.table_budget is None else options.table_budget.share(shared),
        more=dict(more),
    )
    settings = DriverSettings(
        query=query.planned,
        layout=query.layout,
        baseline_layout=query.baseline_layout,
        options=options,
        stage_options=stage_options,
        sinks=sinks,
        dead_letters=place,
        name=name,
        inputs=tuple(stream.described for stream in query.streams.values()),
        functions=tuple(dict.fromkeys(one for stream in query.streams.values() for one in stream.functions)),
    )
    baselines = {known: stream.baseline for known, stream in query.streams.items() if stream.baseline is not None}
    baseline = united_rows(query.baseline_layout, baselines) if baselines else None
    if is_connect(query.session):
        return DriverEpochs(settings, baseline)
    from zset_join.runners.spark.frames.classic.kafka_topics import KafkaTopics

    topics = KafkaTopics([(name, stream.dataframe) for name, stream in query.streams.items()], location)
    return DriverEpochs(settings, baseline, topics)


def dead_letters_place(options: QueryOptions, default: str) -> str:
    """Return where rows that are set aside are written."""
    if options.dead_letter_path is None:
        return folder_below(options.checkpoint_location, default).location
    return open_folder(options.dead_letter_path, option="deadLetterPath").location


def warmed_up(session: SparkSession, stages: Sequence[Stage], options: QueryOptions) -> None:
    """Load what stages need in this process, where it runs epochs: a client of Spark Connect runs none."""
    if is_connect(session):
        return
    compile_rest_in_background()
    warm_up(stages, is_hybrid=options.hot_budget is not None, has_cold_groups=options.table_budget is not None)


def in_stored_order(query: DriverQuery, location: str) -> DriverQuery:
    """Return a query with its streams in the order in which its checkpoint has them: Spark's own files number them."""
    read = partial(_stored_streams, location)
    return query.in_order(on_server(query.session, read) if is_connect(query.session) else read())


def _stored_streams(location: str) -> tuple[str, ...]:
    try:
        return names_of_streams(stored_description(location))
    except NotADirectoryError as error:
        raise _no_place(location, error) from error


def served_rows(query: DriverQuery, epochs: DriverEpochs) -> DataFrame:
    """Return the rows of all sources as the server of Spark Connect is to bring them."""
    rows = united_rows(query.layout, {name: stream.collected for name, stream in query.streams.items()})
    is_timed, is_loading = epochs.settings.is_timed, epochs.baseline is not None
    if start_on_server(query.session, epochs.location, is_timed=is_timed, is_needed=is_loading):
        rows = with_made_start(rows, epochs.location)
    return rows


def streamed_rows(query: DriverQuery, epochs: DriverEpochs) -> DataFrame:
    """Return the rows of all sources as Spark is to bring them, with a source that brings epochs when none has a row."""
    rows = united_rows(query.layout, {name: stream.collected for name, stream in query.streams.items()})
    location, is_timed = epochs.location, epochs.settings.is_timed
    if epochs.baseline is not None or needs_start(location, is_timed=is_timed):
        rows = with_start(rows, location)
    if is_timed:
        epochs.heartbeat = Heartbeat(checkpoint_folder(location), epochs.next_due)
    return rows


def make_place(location: str) -> None:
    """Make the directory of a checkpoint, so that our error has the reason when it fails."""
    if not is_local(location):
        return
    try:
        make_directories(local_path(location))
    except OSError as error:
        raise _no_place(location, error) from error


def _no_place(location: str, error: OSError) -> StateError:
    return StateError(
        f"the checkpoint {location} cannot be made: {error}. Give a checkpointLocation where this process may write.",
        code="STORAGE_FAILED",
        location=location,
    )
