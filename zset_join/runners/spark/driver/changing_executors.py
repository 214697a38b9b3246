"""Change a query on executors while it runs: between two epochs, and go on with Spark's next batch.

    the lock of the epochs is taken -> the state is read in the driver's form -> `Evolution` builds what differs -> its tables
    in the form of executors, in as many buckets -> one commit record with plan, state and difference -> Spark's query is
    stopped -> the new one is started on the same checkpoint, and gives outputs the difference

The law: the view and the state are those of the new query over everything that was accepted. Until the record is there nothing
has changed; from then on the checkpoint is the new query's, whatever dies. Stages that are in both queries, under one name,
keep their files and are fed nothing; others are written once.

Memory: the whole state as Arrow data, twice, in this process. Disk: snapshots of what is built. One Spark job per stage that is
built, where there are several buckets.

Limits: those of `executors_state`; outputs stay, and so do the columns of the view.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from zset_join.checkpoint.changed_plans import ChangedPlan
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.files import attempt_name
from zset_join.checkpoint.leases import LEASE_SECONDS
from zset_join.checkpoint.other_mode import StatePair
from zset_join.checkpoint.reading import stored_description
from zset_join.checkpoint.record import BucketHistory, CommitRecord
from zset_join.checkpoint.snapshot import write_snapshot
from zset_join.core.errors import OptionError, SinkError, StateError
from zset_join.core.tick import Tick
from zset_join.evolution.differences import PlanDiff
from zset_join.evolution.refusals import source_changed
from zset_join.plan.query_plan import QueryPlan
from zset_join.query.several import PlannedQuery
from zset_join.runners.local.evolving import Evolution
from zset_join.runners.local.query_changes import plan_of_program
from zset_join.runners.spark.driver.executors_state import ExecutorsState, leased_state
from zset_join.runners.spark.driver.moved_tables import MovedTables, StateTables, stages_by_name
from zset_join.runners.spark.epoch.runner import EpochRunner
from zset_join.runners.spark.planning.mode_pairs import mode_pairs
from zset_join.runners.spark.planning.placed_query import PlacedQuery
from zset_join.runners.spark.tools.rescaling import rescaled_stage
from zset_join.stages import Stage

__all__ = ["evolve_executors"]


def evolve_executors(runner: EpochRunner, query: PlannedQuery, after: EpochRunner) -> PlanDiff:
    """Change a query between two epochs; its runner takes no epoch any more.

    Args:
        runner: runs its epochs, and holds its checkpoint.
        query: the new query, as the driver would run it.
        after: what is to run the epochs of the new query.

    Raises:
        StateError: as `Pipeline.evolve`; `MOVE_UNKNOWN` or `MOVE_REFUSED`: one of the queries has no form on the driver.
        SinkError: `EVOLVE_OUTPUT`: the view would have other columns.
        OptionError: `NOT_FROM_HERE`: the states of the new query cannot be paired.

    Cost: every live row is read once; what is built is written once.
    """
    with runner.lock:
        checkpoint = runner.checkpoint
        last = None if checkpoint is None else checkpoint.last
        if checkpoint is None or last is None:
            raise StateError(
                "no epoch is committed yet, so there is nothing to change. Call evolve() once the query has answered an epoch.",
                code="NOTHING_COMMITTED",
                location=runner.options.checkpoint_location,
            )
        _check_output(runner, after.query)
        _check_order(runner.query, after.query)
        with leased_state(runner.options.checkpoint_location, lease_seconds=LEASE_SECONDS) as state:
            plan = plan_of_program(query, state.start.plan)
            state.check(plan, query)
            _check_columns(state, plan)
            with closing(Evolution(state.start, plan)) as evolution:
                evolution.build()
                diff = evolution.diff()
                change = _Change(runner, after, state, evolution, checkpoint, last)
                checkpoint.commit_change(*change.record(diff))
        runner.has_ended = True
    return replace(diff, taken=last.epoch + 1)


@dataclass(frozen=True)
class _Change:
    """Write what a change consists of.

    Args:
        runner: of the query before.
        after: of the new one.
        state: of the query before, in the driver's form.
        evolution: to the new plan, built.
        checkpoint: of both.
        last: its last record.
    """

    runner: EpochRunner
    after: EpochRunner
    state: ExecutorsState
    evolution: Evolution
    checkpoint: Checkpoint
    last: CommitRecord

    def record(self, diff: PlanDiff) -> tuple[CommitRecord, ChangedPlan]:
        """Write snapshots and the answer; return the record that makes them true, and the plan that it names."""
        checkpoint, tick = self.checkpoint, Tick(self.last.epoch + 1, self.last.processing_time_us)
        histories = self._histories()
        (answer,) = diff.answers([one.name for one in self.evolution.plan.views]).values()
        parts = self.runner.output.parts.write(
            checkpoint.files, 0, tick, self.runner.schema, [_under(answer, self.runner.schema)]
        )
        known = checkpoint.changed
        record = CommitRecord(
            query_id=checkpoint.query_id,
            epoch=tick.epoch,
            processing_time_us=tick.processing_time_us,
            histories=histories,
            parts=tuple(parts),
            progress={
                "epoch": tick.epoch,
                "rows_in": {},
                "retractions_in": {},
                "quarantined": {},
                "delta_rows": len(answer),
                "retractions": int((answer.weights < 0).sum()),
            },
            watermarks=self.last.watermarks,
            positions=self.last.positions,
        )
        changed = ChangedPlan(
            epoch=tick.epoch,
            changes=1 + (0 if known is None else known.changes),
            before=checkpoint.plan_digest,
            description=self.after.described(stored_description(self.runner.options.checkpoint_location)),
            plan=self.after.query.to_json(),
            sources=tuple(source.to_json() for source in self.after.query.query_plan.sources),
        )
        return self.runner.checked_output(checkpoint, record), changed

    def _histories(self) -> dict[str, BucketHistory]:
        """Return what the state is made of: files that are kept, and snapshots that are written here."""
        placed, evolution = self.after.query, self.evolution
        before, after = self.state.moved.before, stages_by_name(placed.to_json())
        named = {number: state.name for number, state in ((one.number, one) for one in evolution.plan.states)}
        pairs = {pair.driver: pair for pair in _pairs(placed, evolution)}
        known = {pair.driver: pair for pair in self.state.other.pairs}
        operators = evolution.operators()
        histories: dict[str, BucketHistory] = {}
        for number, name in named.items():
            pair, old = pairs[name], evolution.unbuilt.get(number)
            was = None if old is None else known[self.state.start.plan.state_of[old].name]
            names = (pair.executors, *pair.routes.values())
            if was is not None and _is_same(was, pair) and all(_written(before[one]) == _written(after[one]) for one in names):
                histories |= {
                    key: one for key, one in self.state.committed.histories.items() if key.rpartition("/")[0] in names
                }
                continue
            tables = {table: [rows] for table, rows in operators[number].snapshot().items()}
            moved = MovedTables(
                before={name: evolution.plan.state_of[number].stage},
                after=after,
                options=self.state.start.options,
                epoch=self.last.epoch,
                read=lambda _, given=tables: given,  # type: ignore[misc]  # of this state
            )
            for one, written in moved.to_executors(pair).items():
                histories |= self._buckets(one, after[one], written)
        return histories

    def _buckets(self, name: str, stage: Stage, tables: StateTables) -> dict[str, BucketHistory]:
        """Write the snapshots of a stage, one per bucket."""
        checkpoint, buckets, epoch = self.checkpoint, self.checkpoint.buckets, self.last.epoch
        tick = Tick(epoch + 1, self.last.processing_time_us)
        snapshot = write_snapshot(
            checkpoint.files, f"snapshot/{name}-0", tables, through_epoch=epoch, identity=attempt_name(epoch, "-changed")
        )
        if buckets == 1:
            return {f"{name}/0": BucketHistory(snapshot)}
        context = replace(checkpoint.stage(name, tick), histories={0: BucketHistory(snapshot)})
        written, _ = rescaled_stage(stage, self.after.query.session, context, (1, buckets), self.state.start.options)
        for table in snapshot.tables.values():
            checkpoint.files.folder.remove(table.name)
        return written


def _check_output(runner: EpochRunner, placed: PlacedQuery) -> None:
    """Refuse other columns: outputs stay."""
    before, after = runner.relation, placed.output
    if (before.schema.names, before.schema.types, before.primary_key) != (
        after.schema.names,
        after.schema.types,
        after.primary_key,
    ):
        raise SinkError(
            f"the view has the columns {_listed(before.schema)} with the key {list(before.primary_key)}, and would have "
            f"{_listed(after.schema)} with the key {list(after.primary_key)}. On executors its outputs stay as they are: start "
            "the new query with a checkpointLocation and outputs of its own, or run it on the driver.",
            code="EVOLVE_OUTPUT",
            before=before.schema.names,
            after=after.schema.names,
        )


def _check_columns(state: ExecutorsState, plan: QueryPlan) -> None:
    """Refuse other columns of a stream: logs that are kept hold those of before."""
    for source in plan.sources:
        if source.relation.schema != state.start.plan.source(source.name).relation.schema:
            raise source_changed(source.name, was_dropped=False)


def _check_order(before: PlacedQuery, after: PlacedQuery) -> None:
    """Refuse streams in another order: Spark's own files name its sources by it."""
    known, wanted = ([stream.name for stream in placed.streams] for placed in (before, after))
    if known != wanted:
        raise StateError(
            f"the new query reads the streams {wanted}, and the one that runs {known}, in this order. Spark's own files beside "
            "the checkpoint number its streams. Write the new query in their order, or start it with a checkpointLocation and "
            "outputs of its own.",
            code="EVOLVE_STREAM",
            before=known,
            after=wanted,
        )


def _pairs(placed: PlacedQuery, evolution: Evolution) -> tuple[StatePair, ...]:
    """Return which state of the new query is which in both modes.

    Raises:
        OptionError: `NOT_FROM_HERE`: they cannot be paired.
    """
    pairs = mode_pairs(placed.query_plan, {one.number: one.name for one in placed.planned_stages}, evolution.plan)
    if isinstance(pairs, str):
        raise OptionError(
            f"the new query cannot be built from the state that executors have: {pairs}. Start it with a checkpointLocation "
            "and outputs of its own.",
            code="NOT_FROM_HERE",
            what="evolve",
        )
    return pairs


def _is_same(before: StatePair, after: StatePair) -> bool:
    return (before.executors, dict(before.routes)) == (after.executors, dict(after.routes))


def _written(stage: Stage) -> Any:
    return stage.to_json()


def _under(rows: Any, schema: pa.Schema) -> Any:
    return type(rows)(pa.RecordBatch.from_arrays(rows.rows.columns, schema=schema), rows.weights)


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
