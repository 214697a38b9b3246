"""`diff` over the directory of a running pipeline: its files are read at one epoch, under a lease.

    diff_of_running(path, view)     as `diff_of_directory`, while the query continues
    diff_wherever(path, view)       one or the other, as the directory is in use or not

The law: nothing but the lease is written, and the query waits for nothing. The answer is that of the epoch which was the newest
one when reading began, and names it (`PlanDiff.epoch`). Rows are read and compared under the lease.

Cost: the states and views whose rows the comparison needs are read, and built once more as mapped files below
`temporary_directory`; those of other stages are not. Then as `Pipeline.diff`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from zset_join.checkpoint.bucket import BucketState, StageContext
from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.leases import LEASE_SECONDS, leased_record
from zset_join.checkpoint.reading import (
    changed_plan_of,
    checkpoint_folder,
    no_checkpoint,
    plan_in,
    query_of,
    read_format,
    reads_start,
)
from zset_join.checkpoint.record import BucketHistory, CommitRecord
from zset_join.core.errors import OptionError, StateError
from zset_join.core.progress_line import progress_line
from zset_join.core.read_when_used import ReadWhenUsed
from zset_join.core.tick import Tick
from zset_join.evolution.changed_columns import ColumnWords
from zset_join.evolution.differences import PlanDiff
from zset_join.evolution.same_lookups import with_lookups_of
from zset_join.plan.query_plan import PlanSource, QueryPlan
from zset_join.query.several import PlannedQuery
from zset_join.query.view import View
from zset_join.runners.local.contents import Contents
from zset_join.runners.local.directory_rows import load_inputs, view_folder, view_rows
from zset_join.runners.local.evolving import Evolution, EvolutionStart
from zset_join.runners.local.held_counts import HeldCounts
from zset_join.runners.local.history import InputHistory
from zset_join.runners.local.query_changes import plan_of_program, readings_of_query
from zset_join.runners.local.rereading import read_again
from zset_join.runners.local.stage_states import operators_of, shapes_of
from zset_join.runners.local.stopped import check_kept_here, check_streams, diff_of_directory
from zset_join.runners.local.watermarks import Watermarks
from zset_join.stages.stage import StageOptions
from zset_join.state.rows.hash_seed import seed_of_query
from zset_join.zset.protocol import DurableOperator

__all__ = ["diff_of_running", "diff_wherever", "most_held"]


def diff_of_running(
    directory: str,
    view: View | Mapping[str, View] | PlannedQuery,
    *,
    words: ColumnWords | None = None,
    reread: Mapping[str, Any] | None = None,
    as_now: bool = False,
    lease_seconds: float = LEASE_SECONDS,
    on_pinned: Callable[[int], object] | None = None,
) -> PlanDiff:
    """Return how the answers of another query would differ over what a directory holds, whose query may run."""
    with ExitStack() as held:
        temporary = held.enter_context(tempfile.TemporaryDirectory(prefix="zset_join-"))
        with _leased(directory, lease_seconds) as (files, record):
            if on_pinned is not None:
                on_pinned(record.epoch)
            with progress_line(f"reading epoch {record.epoch} of {directory}"):
                known = query_of(files.folder, read_format(files.folder) or {}, record)
                state = _state_at(directory, files, record, known, temporary, held)
            plan = plan_of_program(view, state.plan)
            again = read_again(reread or {}, readings_of_query(view)) if reread else {}
            check_streams(state.plan, plan, known["description"], view, has_clock=reads_start(files.folder))
            state = replace(state.with_words(words), plan=with_lookups_of(state.plan, plan), reread=again, as_now=as_now)
            with progress_line("comparing with another query"), closing(Evolution(state, plan)) as evolution:
                return evolution.diff()


def diff_wherever(
    directory: str,
    view: View | Mapping[str, View] | PlannedQuery,
    *,
    words: ColumnWords | None = None,
    reread: Mapping[str, Any] | None = None,
    as_now: bool = False,
    lease_seconds: float = LEASE_SECONDS,
    on_pinned: Callable[[int], object] | None = None,
) -> PlanDiff:
    """Return `diff_of_directory`, or `diff_of_running` for a directory in use."""
    try:
        return diff_of_directory(directory, view, words=words, reread=reread, as_now=as_now)
    except (OptionError, StateError) as error:
        if error.code not in {"CHECKPOINT_IN_USE", "DIRECTORY"}:  # in use, or only read
            raise
    return diff_of_running(
        directory, view, words=words, reread=reread, as_now=as_now, lease_seconds=lease_seconds, on_pinned=on_pinned
    )


def most_held(directory: str) -> int:
    """Return how many rows or groups of its sources a stage of a directory holds at most; 0 before its first epoch."""
    with ExitStack() as held:
        temporary = held.enter_context(tempfile.TemporaryDirectory(prefix="zset_join-"))
        try:
            files, record = held.enter_context(_leased(directory, LEASE_SECONDS))
        except StateError as error:
            if error.code == "NOTHING_COMMITTED":
                return 0
            raise
        state = _state_at(
            directory, files, record, query_of(files.folder, read_format(files.folder) or {}, record), temporary, held
        )
        counts = HeldCounts(plan=state.plan, states=state.states, counted=state.counts)
        return max((one.rows for one in counts.of_sources([source.name for source in state.plan.sources])), default=0)


@contextmanager
def _leased(directory: str, seconds: float) -> Iterator[tuple[CheckpointFiles, CommitRecord]]:
    folder = checkpoint_folder(directory)
    known = read_format(folder)
    if known is None:
        raise no_checkpoint(directory)
    files = CheckpointFiles(folder, str(known["query_id"]))
    with leased_record(files, seconds) as record:
        if record is None:
            raise StateError(
                f"no epoch is committed in the checkpoint {directory}, so there is nothing to compare yet. Try again once the "
                "query has answered an epoch.",
                code="NOTHING_COMMITTED",
                location=directory,
            )
        yield files, record


def _state_at(
    directory: str, files: CheckpointFiles, record: CommitRecord, known: Mapping[str, Any], temporary: str, held: ExitStack
) -> EvolutionStart:
    """Return the state of the query after an epoch; states and views are read when they are used."""
    changed = changed_plan_of(files.folder, record)
    described = known["description"]
    check_kept_here(directory, described)
    plan = QueryPlan.from_json(plan_in(directory, known)["plan"])
    tick = Tick(record.epoch + 1, record.processing_time_us)
    watermarks = Watermarks(plan)
    watermarks.load(record.watermarks, record.late_rows)
    options = StageOptions(on_bad_input="quarantine", hash_seed=seed_of_query(files.query_id))
    views = {view.name: number for number, view in enumerate(plan.views)}

    def contents_of(name: str) -> Contents:
        schema = plan.output_of(name).schema
        rows, logged = Contents(schema), record.histories.get(f"{view_folder(plan, views[name])}/0", BucketHistory())
        for delta in view_rows(files, logged, schema):
            rows.add(delta)
        return rows

    history = InputHistory() if described["keeps_inputs"] else None
    if history is not None:
        sources = plan.sources if changed is None else tuple(map(PlanSource.from_json, changed.sources))
        load_inputs(files, record, sources, history, () if changed is None else changed.columns)

    def state_of(number: int) -> DurableOperator:
        node = plan.state_of[number]
        kept = record.histories.get(f"{node.name}/0", BucketHistory())
        context = StageContext(
            query_id=files.query_id,
            stage=node.name,
            tick=tick,
            root=files.folder.location,
            local_state_dir=str(Path(temporary) / "local"),
            digest="",
            histories={} if kept == BucketHistory() else {0: kept},
        )
        state = BucketState(context, 0, partial(node.stage.build, node.options(options)))
        held.callback(state.release)
        return operators_of(node, state.__enter__().operator)[node.number]

    return EvolutionStart(
        plan=plan,
        epoch=tick.epoch,
        processing_time_us=tick.processing_time_us,
        options=options,
        states=ReadWhenUsed((node.number for node in plan.states), state_of),
        shapes=shapes_of(plan, options, held),
        contents=ReadWhenUsed(views, contents_of) if described["keeps_view"] else None,
        history=history,
        known=watermarks.known,
        gone={} if changed is None else changed.gone,
        counts=record.progress.get("remembers", {}),
    )
