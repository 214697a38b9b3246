"""How the answers of another query would differ over a checkpoint: its files are read at one epoch, under a lease.

The law: nothing but the lease is written, and a query that runs waits for nothing. The answer is that of the epoch which
was the newest one when reading began, and names it (`PlanDiff.epoch`). Rows are read and compared under the lease.

Cost: the states and views whose rows the comparison needs are read, and built once more as mapped files below a temporary
directory; those of other stages are not. Then as `Pipeline.diff`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from zset_join.checkpoint.bucket import BucketState, StageContext
from zset_join.checkpoint.clearing import LEASE_SECONDS, leased_record
from zset_join.checkpoint.reading import (
    CommittedState,
    changed_plan_of,
    no_checkpoint,
    plan_in,
    query_of,
    read_committed,
    read_format,
    reads_start,
)
from zset_join.checkpoint.record import BucketHistory, CommitRecord
from zset_join.core.epochs import Tick
from zset_join.core.errors import StateError
from zset_join.core.extras import ReadWhenUsed
from zset_join.core.progress_line import progress_line
from zset_join.evolution.changed_columns import NO_TERMS, ChangeTerms, no_words
from zset_join.evolution.differences import PlanDiff, with_lookups_of
from zset_join.plan.query_plan import PlanSource, QueryPlan
from zset_join.query.rows import PlannedQuery
from zset_join.runners.local.contents import Contents
from zset_join.runners.local.directory_plans import check_kept_here
from zset_join.runners.local.engine import operators_of, shapes_of
from zset_join.runners.local.evolving import Evolution, EvolutionStart
from zset_join.runners.local.history import InputHistory, load_inputs, view_folder, view_rows
from zset_join.runners.local.pipeline_epochs import Query, plan_of_program, readings_of_query
from zset_join.runners.local.rebuilding import HeldCounts
from zset_join.runners.local.stored_rows import read_again
from zset_join.runners.local.watermarks import Watermarks
from zset_join.stages.stage import StageOptions
from zset_join.state.rows.directories import seed_of_query
from zset_join.zset.protocol import DurableOperator

__all__ = [
    "LeasedCheckpoint",
    "check_streams",
    "diff_of_checkpoint",
    "evolution_to",
    "leased_checkpoint",
    "most_held",
    "nothing_committed",
]


@dataclass(frozen=True, kw_only=True)
class LeasedCheckpoint:
    """A checkpoint whose newest epoch is held while it is read."""

    location: str
    committed: CommittedState
    known: Mapping[str, Any]  # description and plan of the query in that epoch
    temporary: str
    held: ExitStack  # closes what is opened of it

    @property
    def record(self) -> CommitRecord | None:
        return self.committed.last

    @property
    def described(self) -> Mapping[str, Any]:
        described: Mapping[str, Any] = self.known["description"]
        return described

    @property
    def tick(self) -> Tick:
        record = self.record
        return Tick(0) if record is None else Tick(record.epoch + 1, record.processing_time_us)

    def context(self, stage: str, bucket: int) -> StageContext:
        """Return where the state of a stage is read; it is built below the temporary directory."""
        kept = self.committed.histories.get(f"{stage}/{bucket}", BucketHistory())
        return StageContext(
            query_id=self.committed.files.query_id,
            stage=stage,
            tick=self.tick,
            root=self.committed.files.folder.location,
            local_state_dir=str(Path(self.temporary) / "local"),
            digest="",
            histories={} if kept == BucketHistory() else {bucket: kept},
        )


@contextmanager
def leased_checkpoint(
    location: str, *, lease_seconds: float = LEASE_SECONDS, on_pinned: Callable[[int], object] | None = None
) -> Iterator[LeasedCheckpoint]:
    """Give a checkpoint at its newest epoch, whose files stay to the end of the block or of the lease."""
    with ExitStack() as held:
        temporary = held.enter_context(tempfile.TemporaryDirectory(prefix="zset_join-"))
        found = read_committed(location)
        if found is None:
            raise no_checkpoint(location)
        with leased_record(found.files, lease_seconds) as record:
            if record is not None and on_pinned is not None:
                on_pinned(record.epoch)
            rescaling = found.rescaling
            if record is None or rescaling is None or rescaling.epoch != record.epoch:
                rescaling = None
            elif rescaling.plan is not None:
                record = replace(record, plan=rescaling.plan)
            folder = found.files.folder
            yield LeasedCheckpoint(
                location=location,
                committed=replace(found, last=record, rescaling=rescaling),
                known=query_of(folder, read_format(folder) or {}, record),
                temporary=temporary,
                held=held,
            )


def diff_of_checkpoint(
    location: str | Path,
    query: Query,
    *,
    terms: ChangeTerms = NO_TERMS,
    lease_seconds: float = LEASE_SECONDS,
    on_pinned: Callable[[int], object] | None = None,
    evolution_of: Callable[[LeasedCheckpoint, Query, ChangeTerms], Evolution] | None = None,  # None: of a pipeline's state
) -> PlanDiff:
    """Return how the answers of another query would differ over what a checkpoint holds, whose query may run."""
    with (
        leased_checkpoint(str(location), lease_seconds=lease_seconds, on_pinned=on_pinned) as leased,
        progress_line("comparing with another query"),
        closing((evolution_of or _evolution_of)(leased, query, terms)) as evolution,
    ):
        return evolution.diff()


def _evolution_of(leased: LeasedCheckpoint, query: Query, terms: ChangeTerms) -> Evolution:
    has_clock = reads_start(leased.committed.files.folder)
    return evolution_to(query, _start_of(leased), leased.described, terms, has_clock=has_clock)


def evolution_to(
    query: Query, start: EvolutionStart, described: Mapping[str, Any], terms: ChangeTerms, *, has_clock: bool
) -> Evolution:
    """Return how the query of a checkpoint comes to another one; lookups are made through the sources of that one."""
    plan = plan_of_program(query, start.plan)
    again = read_again(terms.reread, readings_of_query(query)) if terms.reread else {}
    check_streams(start.plan, plan, described, query, has_clock=has_clock)
    words = no_words() if terms.words is None else terms.words
    there = with_lookups_of(start.plan, plan)
    return Evolution(replace(start, plan=there, words=words, reread=again, as_now=terms.as_now), plan)


def most_held(directory: str) -> int:
    """Return how many rows or groups of its sources a stage of a directory holds at most; 0 before its first epoch."""
    with leased_checkpoint(directory) as leased:
        state = _start_of(leased)
        counts = HeldCounts(plan=state.plan, states=state.states, counted=state.counts)
        return max((one.rows for one in counts.of_sources([source.name for source in state.plan.sources])), default=0)


def nothing_committed(location: str) -> StateError:
    return StateError(
        f"no epoch is committed in the checkpoint {location}, so there is nothing to compare yet. Try again once the "
        "query has answered an epoch.",
        code="NOTHING_COMMITTED",
        location=location,
    )


def _start_of(leased: LeasedCheckpoint) -> EvolutionStart:
    """Return the state of the query after an epoch; states and views are read when they are used."""
    record, files, described = leased.record, leased.committed.files, leased.described
    changed = None if record is None else changed_plan_of(files.folder, record)
    check_kept_here(leased.location, described)
    plan = QueryPlan.from_json(plan_in(leased.location, leased.known)["plan"])
    tick, histories = leased.tick, leased.committed.histories
    watermarks = Watermarks(plan)
    if record is not None:
        watermarks.load(record.watermarks, record.late_rows)
    options = StageOptions(on_bad_input="quarantine", hash_seed=seed_of_query(files.query_id))
    views = {view.name: number for number, view in enumerate(plan.views)}

    def contents_of(name: str) -> Contents:
        schema = plan.output_of(name).schema
        rows = Contents(schema)
        for delta in view_rows(files, histories.get(f"{view_folder(plan, views[name])}/0", BucketHistory()), schema):
            rows.add(delta)
        return rows

    history = InputHistory() if described["keeps_inputs"] else None
    if history is not None and record is not None:
        sources = plan.sources if changed is None else tuple(map(PlanSource.from_json, changed.sources))
        load_inputs(files, record, sources, history, () if changed is None else changed.columns)

    def state_of(number: int) -> DurableOperator:
        node = plan.state_of[number]
        state = BucketState(leased.context(node.name, 0), 0, partial(node.stage.build, node.options(options)))
        leased.held.callback(state.release)
        return operators_of(node, state.__enter__().operator)[node.number]

    return EvolutionStart(
        plan=plan,
        epoch=tick.epoch,
        processing_time_us=tick.processing_time_us,
        options=options,
        states=ReadWhenUsed((node.number for node in plan.states), state_of) if record is not None else {},
        shapes=shapes_of(plan, options, leased.held),
        contents=ReadWhenUsed(views, contents_of) if described["keeps_view"] else None,
        history=history,
        known=watermarks.known,
        gone={} if changed is None else changed.gone,
        counts={} if record is None else record.progress.get("remembers", {}),
    )


def check_streams(
    before: QueryPlan, after: QueryPlan, described: Mapping[str, Any], query: Any = None, *, has_clock: bool = False
) -> None:
    """Refuse to change the streams of a query inside Spark, whose own files name them; a pipeline's may change.

    `has_clock`: its files name the source that brings epochs without input, since its first query waited.
    """
    if "inputs" not in described:
        return
    operations = {one["name"]: list(one["operation"]) for one in described["inputs"] if "operation" in one}
    for given in query.inputs if isinstance(query, PlannedQuery) else ():
        name, stored = given["name"], operations.get(given["name"])
        if stored is not None and stored != given["operation"]:
            raise StateError(
                f'what Spark computes from the stream "{name}" before the first stage was {stored} and is '
                f"{given['operation']}. "
                "The state holds the rows that resulted, so it is not changed in place. Put the new condition or column behind "
                "a join or group, or start the new query with a checkpointLocation and outputs of its own.",
                code="EVOLVE_STREAM",
                stream=name,
                before=stored,
                after=given["operation"],
            )
    known, wanted = ({source.name for source in one.sources} for one in (before, after))
    if known != wanted:
        raise StateError(
            f"the new query reads the streams {sorted(wanted)}, and the one in the checkpoint {sorted(known)}. Spark's own "
            "files beside it name its streams, so none can be added or removed in place. Keep the streams, or start the new "
            "query with a checkpointLocation and outputs of its own.",
            code="EVOLVE_STREAM",
            before=sorted(known),
            after=sorted(wanted),
        )
    based = {one["name"] for one in described["inputs"] if one.get("baseline")}
    too_late = sorted(source.name for source in after.sources if source.has_baseline and source.name not in based)
    if too_late:
        raise StateError(
            f"the new query gives the streams {too_late} a baseline, and the one in the checkpoint began without: its rows "
            "would come after changes that replace them. Leave baseline= out, or start the new query with a "
            "checkpointLocation and outputs of its own.",
            code="BASELINE_TOO_LATE",
            names=too_late,
        )
    has_clock = has_clock or any(one.get("baseline") for one in described["inputs"])
    waiting = [node.name for node in after.nodes if node.stage.waits_for_clock]
    if waiting and not has_clock:
        raise StateError(
            f"the stages {waiting} of the new query wait for a processing time, and the checkpoint began without stages that "
            "wait. Inside Spark they need one source more, which triggers epochs without input; Spark stores one offset per "
            "source with each batch, and rejects a checkpoint with another number of them. Start the new query with a "
            "checkpointLocation and outputs of its own.",
            code="EVOLVE_STREAM",
            before=sorted(known),
            after=sorted(wanted),
        )
