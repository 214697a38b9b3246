"""Change a query on executors while it runs: between two epochs, and continue with Spark's next batch.

    the lock of the epochs is taken -> the state is read in the driver's form -> `Evolution` builds what differs -> its tables
    in the form of executors, in as many buckets -> one commit record with plan, state and difference -> Spark's query is
    stopped -> the new one is started on the same checkpoint, and gives outputs the difference (over Spark Connect the
    process that commits gives it, since the process of the new one begins with its first batch)

The law: the view and the state are those of the new query over everything that was accepted. Until the record is there nothing
has changed; from then on the checkpoint is the new query's, whatever dies. Stages that are in both queries, under one name,
keep their files and are fed nothing; others are written once.

Memory: the whole state as Arrow data, twice, in this process. Disk: snapshots of what is built. One Spark job per stage that is
built, where there are several buckets.

Limits: those of `executors_state`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from zset_join.checkpoint.record import CommitRecord
from zset_join.core.epoch_chain import ChainLink
from zset_join.core.errors import OptionError, StateError
from zset_join.evolution.changed_columns import NO_TERMS, ChangeTerms
from zset_join.evolution.differences import PlanDiff
from zset_join.query.several import PlannedQuery
from zset_join.runners.local.evolving import Evolution
from zset_join.runners.local.undoing import check_undo, columns_of_change, nothing_to_undo, words_back
from zset_join.runners.spark.driver.executors_change import ChangedCheckpoint, ExecutorsChange, ExecutorsForm, planned_form
from zset_join.runners.spark.driver.executors_state import ExecutorsState
from zset_join.runners.spark.epoch.runner import EpochRunner

__all__ = ["evolve_executors", "undo_executors"]


def evolve_executors(
    runner: EpochRunner,
    query: PlannedQuery,
    after: EpochRunner,
    *,
    is_given: bool = False,
    terms: ChangeTerms = NO_TERMS,
    gives_difference: bool = False,
) -> PlanDiff:
    """Change a query between two epochs; its runner takes no epoch any more."""
    with runner.lock:
        return _evolved(runner, query, after, is_given=is_given, terms=terms, gives_difference=gives_difference)


def _evolved(
    runner: EpochRunner,
    query: PlannedQuery,
    after: EpochRunner,
    *,
    is_given: bool = False,
    terms: ChangeTerms,
    gives_difference: bool,
) -> PlanDiff:
    checkpoint = runner.checkpoint
    last = None if checkpoint is None else checkpoint.last
    if checkpoint is None or last is None:
        raise StateError(
            "no epoch is committed yet, so there is nothing to change. Call evolve() once the query has answered an epoch.",
            code="NOTHING_COMMITTED",
            location=runner.options.checkpoint_location,
        )
    changed = ChangedCheckpoint(
        location=runner.options.checkpoint_location,
        checkpoint=checkpoint,
        session=lambda: after.query.session,
        undo_epochs=runner.options.undo_epochs,
    )

    def form(state: ExecutorsState, evolution: Evolution, stored: Mapping[str, Any]) -> ExecutorsForm:
        return planned_form(after.query, after.described(stored), state, evolution)

    try:
        with changed.built(query, form, terms=terms) as change:
            diff = change.evolution.diff()
            _commit(runner, after, change, diff, is_given=is_given)
    finally:
        runner.has_ended = checkpoint.last is not last  # what fails behind the commit undoes nothing
    if gives_difference:
        _give_difference(runner, after, checkpoint.query_id)
    return replace(diff, taken=last.epoch + 1)


def _give_difference(runner: EpochRunner, after: EpochRunner, query_id: str) -> None:
    """Give outputs the difference of a change that counts, under the claim of before, and release the checkpoint."""
    runner.output.close()
    after.attach(query_id, runner.owner)
    try:
        after.begin()
    finally:
        after.close()


def undo_executors(
    runner: EpochRunner, before: tuple[PlannedQuery, EpochRunner] | None, *, gives_difference: bool = False
) -> PlanDiff:
    """Go back to the query before the last change; its runner takes no epoch any more."""
    with runner.lock:
        place, checkpoint = runner.options.checkpoint_location, runner.checkpoint
        changed = None if checkpoint is None else checkpoint.changed
        if checkpoint is None or checkpoint.last is None or changed is None or not changed.changes:
            raise nothing_to_undo(place, "evolve()")
        check_undo(checkpoint.last.epoch + 1, changed.epoch, changed.undo_epochs)
        if before is None:
            raise OptionError(
                f"the query in {place} was changed by another process, and on executors the program of the query before is "
                f"needed to run it. Give evolve() that query; or stop this one, run zset-join undo {place}, and start the "
                "program of before.",
                code="NOT_FROM_HERE",
                what="undo",
            )
        words = words_back(columns_of_change(changed), is_at_once=checkpoint.last.epoch == changed.epoch)
        return _evolved(runner, *before, terms=ChangeTerms(words=words), gives_difference=gives_difference)


def _commit(runner: EpochRunner, after: EpochRunner, change: ExecutorsChange, diff: PlanDiff, *, is_given: bool) -> None:
    """Let the change count, unless an output refuses it."""
    checkpoint, evolution = change.checkpoint, change.evolution
    begins = evolution.begins(evolution.plan.view().name)
    if not is_given and runner.relation.primary_key != after.relation.primary_key:
        runner.output.check_altered(after.relation)
    if not is_given and not begins:
        name = evolution.plan.view().name
        difference = diff.answers([name])[name]
        parts = runner.output.parts.write(checkpoint.files, 0, change.tick, runner.schema, [_under(difference, runner.schema)])
        record, changed = change.record(diff, parts)
        checkpoint.commit_change(runner.checked_output(checkpoint, record), changed)
        return
    if is_given:
        after.output.open(after.relation, checkpoint.query_id)
        try:
            link = ChainLink("", begins=True)
            begin = CommitRecord(query_id=checkpoint.query_id, epoch=change.tick.epoch, processing_time_us=None, link=link)
            after.output.lacking(begin)  # refuses outputs that have epochs: they would hold rows of before twice
        finally:
            after.output.close()
    else:
        runner.output.check_altered(after.relation)
    parts = change.neutral_parts(diff, begins=is_given)
    checkpoint.commit_change(*change.record(diff, parts, begins=is_given, alters=not is_given))


def _under(rows: Any, schema: pa.Schema) -> Any:
    return type(rows)(pa.RecordBatch.from_arrays(rows.rows.columns, schema=schema), rows.weights)
