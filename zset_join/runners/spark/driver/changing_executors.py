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

from collections.abc import Collection, Mapping
from typing import Any

from zset_join.checkpoint.record import CommitRecord
from zset_join.core.epochs import ChainLink
from zset_join.core.errors import OptionError, StateError
from zset_join.evolution.changed_columns import NO_TERMS, ChangeTerms
from zset_join.evolution.differences import PlanDiff
from zset_join.query.rows import PlannedQuery
from zset_join.runners.local.directory_plans import nothing_to_undo, terms_of_undo
from zset_join.runners.local.evolving import Evolution
from zset_join.runners.spark.driver.executors_change import ChangedCheckpoint, ExecutorsForm, planned_form
from zset_join.runners.spark.driver.executors_state import ExecutorsState
from zset_join.runners.spark.epoch.runner import EpochRunner
from zset_join.zset import ZSet

__all__ = ["evolve_executors", "undo_executors"]


def evolve_executors(
    runner: EpochRunner,
    query: PlannedQuery,
    after: EpochRunner,
    *,
    given: Collection[str] = (),
    terms: ChangeTerms = NO_TERMS,
    gives_difference: bool = False,
) -> PlanDiff:
    """Change a query between two epochs; its runner takes no epoch any more. `given`: the views whose outputs are new."""
    with runner.lock:
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

        def check_outputs(evolution: Evolution) -> None:
            new = evolution.new_views(given)
            _check_new(after, new, checkpoint.query_id, last.epoch + 1)
            for view in {one.name for one in evolution.plan.views} - {*new}:
                before, relation = (plan.output_of(view) for plan in (evolution.origin.plan, evolution.plan))
                if evolution.begins(view) or before.primary_key != relation.primary_key:
                    runner.output.check_altered(view, relation)

        try:
            with changed.built(query, form, terms=terms, check=check_outputs) as change:
                new, plan = change.evolution.new_views(given), change.evolution.origin.plan

                def check_rows(view: str, rows: ZSet) -> None:
                    if view not in new and rows.schema.names == plan.output_of(view).schema.names:
                        runner.output.check_change(view, last.epoch + 1, rows)

                diff = change.commit(new, check_rows=check_rows)
        finally:
            runner.has_ended = checkpoint.last is not last  # what fails behind the commit undoes nothing
        if gives_difference:
            _give_difference(runner, after, checkpoint.query_id)
        return diff


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
        if checkpoint is None:
            raise nothing_to_undo(place, "evolve()")
        terms = terms_of_undo(checkpoint, place, "evolve()")
        if before is None:
            raise OptionError(
                f"the query in {place} was changed by another process, and on executors the program of the query before is "
                f"needed to run it. Give evolve() that query; or stop this one, run zset-join undo {place}, and start the "
                "program of before.",
                code="NOT_FROM_HERE",
                what="undo",
            )
        return evolve_executors(runner, *before, terms=terms, gives_difference=gives_difference)


def _check_new(after: EpochRunner, views: Collection[str], query_id: str, epoch: int) -> None:
    """Refuse new outputs that have epochs: they would hold rows of before twice."""
    outputs = after.output.of_views(views)
    outputs.open(after.relations, query_id)
    try:
        link = ChainLink("", begins=True)
        outputs.lacking(CommitRecord(query_id=query_id, epoch=epoch, processing_time_us=None, link=link))
    finally:
        outputs.close()
