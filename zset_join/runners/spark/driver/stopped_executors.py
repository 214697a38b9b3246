"""The commands `evolve` and `undo` for the checkpoint of a stopped query on executors.

    the checkpoint is claimed -> its state in the driver's form -> `Evolution` -> snapshots in its buckets, the difference
      -> one commit record; the next start gives outputs the difference

The law: that of `changing_executors`. A process that dies before the record leaves the query before, one behind it the new one.

Limits: those of `executors_state`. Outputs are not looked at: one that cannot take more columns is refused by the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.owner import Ownership
from zset_join.checkpoint.reading import checkpoint_folder, no_checkpoint, read_committed, stored_description, stored_query_id
from zset_join.core.errors import SinkError, StateError
from zset_join.core.progress_line import progress_line
from zset_join.evolution.changed_columns import NO_TERMS, ChangeTerms
from zset_join.evolution.differences import PlanDiff
from zset_join.plan.query_plan import QueryPlan
from zset_join.query.rows import PlannedQuery
from zset_join.runners.local.directory_plans import (
    UNDO_EPOCHS,
    checked_undo_epochs,
    refuse_second_change,
    terms_of_undo,
)
from zset_join.runners.local.evolving import Evolution
from zset_join.runners.spark.driver.executors_change import (
    ChangedCheckpoint,
    ExecutorsForm,
    FormOf,
    form_before,
    planned_form,
)
from zset_join.runners.spark.driver.executors_state import ExecutorsState
from zset_join.runners.spark.epoch.batches import is_completed
from zset_join.runners.spark.planning.placed_query import PlacedQuery, described_query, names_of_streams

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["evolve_stopped_executors", "undo_stopped_executors"]


class PlannedWriter(Protocol):
    @property
    def planned(self) -> PlannedQuery:
        """Return it as the driver runs it."""

    @property
    def placed(self) -> PlacedQuery:
        """Return it as executors run it."""

    @property
    def udf_version(self) -> str | None: ...


@progress_line("changing the query")
def evolve_stopped_executors(
    location: str,
    writer: PlannedWriter,
    *,
    terms: ChangeTerms = NO_TERMS,
    new_tables: Collection[str] = (),
    undo_epochs: int | None = None,
) -> PlanDiff:
    """Let the checkpoint of a stopped query on executors be one of another query."""
    if undo_epochs is not None:
        checked_undo_epochs(undo_epochs)
    query, placed = writer.planned, writer.placed.in_order(names_of_streams(stored_description(location)))

    def form(state: ExecutorsState, evolution: Evolution, stored: Mapping[str, Any]) -> ExecutorsForm:
        described = described_query(placed, stored, is_loaded=True, udf_version=writer.udf_version)
        return planned_form(placed, described, state, evolution)

    with _claimed(location) as checkpoint:
        known = checkpoint.changed
        kept = UNDO_EPOCHS if known is None else known.undo_epochs
        changed = ChangedCheckpoint(
            location=location,
            checkpoint=checkpoint,
            session=lambda: placed.session,
            undo_epochs=kept if undo_epochs is None else undo_epochs,
        )
        return _changed(changed, query, form, new_tables, terms)


@progress_line("changing the query")
def undo_stopped_executors(location: str, session: Callable[[], SparkSession], *, new_tables: Collection[str] = ()) -> PlanDiff:
    """Let the checkpoint of a stopped query on executors be one of the query before its last change."""
    with _claimed(location) as checkpoint:
        terms, changed = terms_of_undo(checkpoint, location, "zset-join evolve"), checkpoint.changed
        assert changed is not None  # noqa: S101 - it can be undone
        before = form_before(changed)
        plan = replace(QueryPlan.from_json(before.on_driver.plan["plan"]), state_names=())
        query = PlannedQuery(plan=plan, readings={}, has_several=len(plan.views) > 1)
        stopped = ChangedCheckpoint(location=location, checkpoint=checkpoint, session=session, undo_epochs=changed.undo_epochs)
        return _changed(stopped, query, lambda *_: before, new_tables, terms)


@contextmanager
def _claimed(location: str) -> Iterator[Checkpoint]:
    """Open the checkpoint of a query that does not run."""
    query_id, description = stored_query_id(location), stored_description(location)
    committed = read_committed(location)
    if query_id is None or description is None or committed is None:
        raise no_checkpoint(location)
    owner = Ownership.claim(checkpoint_folder(location), query_id)
    try:
        with owner.reporting_lost_ownership():
            checkpoint = Checkpoint(
                location, query_id=query_id, buckets=committed.buckets, description=description, owner=owner
            )
            _check_finished(location, checkpoint)
            refuse_second_change(checkpoint.files.folder, checkpoint.last, location)
            yield checkpoint
    finally:
        owner.release()


def _check_finished(location: str, checkpoint: Checkpoint) -> None:
    last, changed = checkpoint.last, checkpoint.changed
    if last is None:
        raise StateError(
            f"no epoch is committed in the checkpoint {location}, so there is nothing to change. Start the new query instead.",
            code="NOTHING_COMMITTED",
            location=location,
        )
    if not is_completed(location, last.epoch - (0 if changed is None else changed.changes)):
        raise StateError(
            f"epoch {last.epoch} of the query in {location} is committed, and its outputs may lack it: Spark has not "
            "completed it. Nothing was changed. Start the query once as it is, stop it, and call this again.",
            code="EPOCH_UNFINISHED",
            epoch=last.epoch,
        )


def _changed(
    changed: ChangedCheckpoint, query: PlannedQuery, form: FormOf, new_tables: Collection[str], terms: ChangeTerms
) -> PlanDiff:
    """Build the changed stages and commit them; the next start passes the difference to the outputs."""

    def check(evolution: Evolution) -> None:
        for view in {one.name for one in evolution.plan.views} - {*evolution.new_views(new_tables)}:
            _check_columns_of_view(evolution, view)

    with changed.built(query, form, terms=terms, check=check) as change:
        return change.commit(change.evolution.new_views(new_tables))


def _check_columns_of_view(evolution: Evolution, name: str) -> None:
    """Reject columns that a kept output cannot store."""
    before, after = (plan.output_of(name) for plan in (evolution.origin.plan, evolution.plan))
    is_longer = not evolution.begins(name) or evolution.adds_columns(name)
    if is_longer and before.primary_key == after.primary_key:
        return
    raise SinkError(
        f'view "{name}" has the columns {before.schema.names} with the key {list(before.primary_key)}, and would have '
        f"{after.schema.names}, or other types, with the key {list(after.primary_key)}. Outputs that stay are given columns "
        "behind those they have, and nothing else. Add --new-table, and start the new query with new outputs: they begin with "
        "all rows.",
        code="EVOLVE_OUTPUT",
        before=before.schema.names,
        after=after.schema.names,
    )
