"""The state of a query on executors as a pipeline has it, so that another query is compared with it.

    the states that are needed -> every bucket, as an epoch would find it -> the tables of the driver's form -> its operators
    -> `Evolution`

The law: nothing of the checkpoint is written but a lease; the rows are those of one epoch, whether the query runs or not. What
the query would be on the driver its program has written down at its start (`checkpoint/other_mode.py`).

A stage that continues has the watermark that it had, whatever it is called; others go by that of their streams. What had to be
answered at a time is answered at that time, or in the next epoch.

Memory: the states whose rows are needed as Arrow data, twice; disk: once more, below a temporary directory.

Limit: rows that only the log of `retainInputLog` has are not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from zset_join.checkpoint.bucket import BucketState
from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.reading import CommittedState, changed_plan_of, reads_start, stored_description, stored_plan
from zset_join.checkpoint.record import BucketHistory, CommitRecord
from zset_join.checkpoint.snapshot import read_snapshot, write_snapshot
from zset_join.core.errors import StateError
from zset_join.core.extras import ReadWhenUsed
from zset_join.core.shown_values import counted
from zset_join.evolution.changed_columns import ChangeTerms
from zset_join.evolution.differences import PlanDiff
from zset_join.plan.query_plan import QueryPlan
from zset_join.runners.local.checkpoint_diff import LeasedCheckpoint, diff_of_checkpoint, evolution_to, nothing_committed
from zset_join.runners.local.engine import operators_of, shapes_of
from zset_join.runners.local.evolving import Evolution, EvolutionStart
from zset_join.runners.local.pipeline_epochs import Query
from zset_join.runners.local.watermarks import KnownTimes, SourceTime, Watermarks, stage_watermark
from zset_join.runners.spark.driver.moved_tables import MovedTables, stages_by_name
from zset_join.runners.spark.planning.other_mode import (
    OtherMode,
    StatePair,
    description_digest,
    is_comparable,
    other_mode_of,
    read_other_mode,
)
from zset_join.stages import Stage, StageOptions
from zset_join.state.rows.directories import seed_of_query
from zset_join.storage.folder import open_folder
from zset_join.zset.protocol import NOTHING_DUE, DurableOperator, NextDue, earliest

__all__ = [
    "ExecutorsState",
    "diff_of_executors",
    "kept_dues",
    "state_on_driver",
    "times_on_driver",
    "times_on_executors",
]

_ANY_WATERMARK = -(1 << 62)


def times_on_driver(plan: QueryPlan, pairs: Sequence[StatePair], record: CommitRecord) -> KnownTimes:
    """Return the event times after an epoch of executors, as the driver has them."""
    fresh, late = Watermarks(plan).known, record.late_rows
    sources = {name: SourceTime(record.watermarks.get(name), None, late.get(name, 0)) for name in fresh.sources}
    readers = {pair.driver: pair.readers for pair in pairs}
    stages: list[int | None] = [None] * len(plan.nodes)
    for state in plan.states:
        for number, name in zip(state.readers, readers[state.name], strict=True):
            stages[number] = record.watermarks.get(stage_watermark(name))
    return KnownTimes(sources, tuple(stages))


def times_on_executors(evolution: Evolution, pairs: Sequence[StatePair], record: CommitRecord) -> dict[str, int]:
    """Return the watermarks of a commit record of executors, of the new query."""
    known = evolution.known_times()
    readers = {state.name: state.readers for state in evolution.plan.states}
    watermarks: dict[str, int | None] = {name: record.watermarks.get(name) for name in known.sources}
    for pair in pairs:
        numbers = zip(pair.readers, readers[pair.driver], strict=True)
        watermarks |= {stage_watermark(name): known.stages[number] for name, number in numbers}
    return {name: watermark for name, watermark in watermarks.items() if watermark is not None}


def kept_dues(
    pair: StatePair, stage: Stage, histories: Mapping[str, BucketHistory], record: CommitRecord
) -> dict[str, NextDue]:
    """Return when the buckets of a stage that keeps its files must answer though no row arrives."""
    # Rows of the last epoch are folded only by the next one, so when they are due is not known yet: such a bucket is due in
    # the next epoch, which comes at once where rows may wait for a processing time alone.
    own = {key: history for key, history in histories.items() if key.rpartition("/")[0] == pair.executors}
    dues = {key: due for key, due in record.dues.items() if key in own}
    by_watermark = any(stage_watermark(name) in record.watermarks for name in pair.readers) and not stage.parks
    next_epoch = NextDue(watermark_us=_ANY_WATERMARK) if by_watermark else NextDue(processing_time_us=0)
    for key, history in own.items():
        snapshot = -1 if history.snapshot is None else history.snapshot.through_epoch
        if record.epoch in (snapshot, *(log.last_epoch for log in history.logs[-1:])):
            dues[key] = earliest([dues.get(key, NOTHING_DUE), next_epoch])  # older rows may wait for a processing time
    return dues


_ANY_TOMBSTONE = 100_000 * 86_400


@dataclass(frozen=True, kw_only=True)
class ExecutorsState:
    """The state of a query on executors after an epoch, in the form of the driver."""

    committed: CommittedState
    other: OtherMode
    start: EvolutionStart
    moved: MovedTables = field(repr=False)

    def evolution_to(self, query: Query, terms: ChangeTerms) -> Evolution:
        """Return how the query comes to another one; one of other streams is refused."""
        clock = reads_start(self.committed.files.folder)
        return evolution_to(query, self.start, self.other.description, terms, has_clock=clock)


def diff_of_executors(location: str, query: Query, **given: Any) -> PlanDiff:
    """Return how the answers of another query would differ over the checkpoint of a query on executors, which may run."""

    def evolution_of(leased: LeasedCheckpoint, query: Query, terms: ChangeTerms) -> Evolution:
        return state_on_driver(leased).evolution_to(query, terms)

    return diff_of_checkpoint(location, query, evolution_of=evolution_of, **given)


def state_on_driver(leased: LeasedCheckpoint) -> ExecutorsState:
    """Return the state of a query on executors in the form of the driver; what is needed of it is read when it is used."""
    location, committed, record = leased.location, leased.committed, leased.record
    if record is None:
        raise nothing_committed(location)
    other, files = _other_mode(location, committed), committed.files
    before = stages_by_name(stored_plan(location))
    options = StageOptions(
        on_bad_input="quarantine", tombstone_retention_seconds=_ANY_TOMBSTONE, hash_seed=seed_of_query(files.query_id)
    )

    def read(name: str) -> dict[str, list[pa.Table]]:
        found: dict[str, list[pa.Table]] = {}
        for bucket in range(committed.buckets):
            with BucketState(leased.context(name, bucket), bucket, partial(before[name].build, options)) as state:
                for table, rows in state.operator.snapshot().items():
                    found.setdefault(table, []).append(rows)
        return found

    moved = MovedTables(before=before, after=stages_by_name(other.plan), options=options, epoch=record.epoch, read=read)
    plan = QueryPlan.from_json(other.plan["plan"])
    copy = CheckpointFiles(open_folder(str(Path(leased.temporary) / "copy")), files.query_id)
    pairs = {pair.driver: pair for pair in other.pairs}

    def state_of(number: int) -> DurableOperator:
        node = plan.state_of[number]
        tables = moved.to_driver(pairs[node.name])
        snapshot = write_snapshot(copy, f"snapshot/{node.name}-0", tables, through_epoch=record.epoch, identity="moved")
        operator = node.stage.build(options, None)
        leased.held.callback(operator.close)
        operator.restore(read_snapshot(copy, snapshot))
        return operators_of(node, operator)[node.number]

    start = EvolutionStart(
        plan=plan,
        epoch=leased.tick.epoch,
        processing_time_us=leased.tick.processing_time_us,
        options=options,
        states=ReadWhenUsed((node.number for node in plan.states), state_of),
        shapes=shapes_of(plan, options, leased.held),
        contents=None,
        history=None,
        known=times_on_driver(plan, other.pairs, record),
    )
    return ExecutorsState(committed=committed, other=other, start=start, moved=moved)


def _other_mode(location: str, committed: CommittedState) -> OtherMode:
    description, other = stored_description(location) or {}, read_other_mode(committed.files.folder)
    if other is None or other.of != description_digest(description):
        other = _noted(committed)
    if other is None or other.of != description_digest(description) or other.mode != "driver":
        raise StateError(
            f"the checkpoint {location} does not hold what its query would be on the driver, in whose form it is compared: it "
            "was used by an older version of the library, or was changed since. Start the query once with this version in a "
            "classic session; an epoch is not needed.",
            code="MOVE_UNKNOWN",
            location=location,
            expected="driver",
        )
    reason = None if is_comparable(other.refused) else other.refused
    if reason is not None:
        raise _refused(location, reason, _rows_held(committed.last))
    return other


def _noted(committed: CommittedState) -> OtherMode | None:
    """Return the note of the last change about the query on the driver; None if there is none."""
    changed = None if committed.last is None else changed_plan_of(committed.files.folder, committed.last)
    written = None if changed is None else (changed.note or {}).get("on_driver")
    return None if written is None else other_mode_of(written)


def _rows_held(record: CommitRecord | None) -> int | None:
    """Return how many rows and groups joins and aggregates hold, as the last epoch has counted them; None: it has not."""
    counts = {} if record is None else record.progress
    kinds = ("joins", "aggregates", "stages")
    states = [counts.get("state", {}), *(one for kind in kinds for one in counts.get(kind, {}).values())]
    known = [state[name] for state in states for name in ("left_rows", "right_rows", "rows_rows", "groups") if name in state]
    return sum(known) if known else None


def _refused(location: str, reason: str, rows: int | None = None) -> StateError:
    holds = "" if rows is None else f" It holds {counted(rows, 'row')}, which the new query would lack."
    return StateError(
        f"the state of the query in {location}, which lies in Spark's executors, cannot be compared or changed in place: "
        f"{reason}.{holds} Start the new query beside it with a checkpointLocation and outputs of its own; begun with "
        'execution="driver", such a query is changed in place.',
        code="MOVE_REFUSED",
        location=location,
        reason=reason,
        rows=rows,
    )
