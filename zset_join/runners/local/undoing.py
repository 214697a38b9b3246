"""The query before the last change: how long it is kept, and how a directory stores it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from zset_join.checkpoint.changed_plans import note_given, was_given
from zset_join.checkpoint.reading import changed_plan_of, plan_before
from zset_join.core.errors import OptionError, StateError
from zset_join.core.shown_values import counted
from zset_join.evolution.changed_columns import ChangeTerms, ColumnChange, ColumnWords
from zset_join.evolution.same_lookups import with_lookups_of
from zset_join.expressions.rows import named, rewritten
from zset_join.lookup.secret import secrets_of
from zset_join.plan.query_plan import PlanSource, QueryPlan
from zset_join.query.reading import Reading
from zset_join.query.several import PlannedQuery
from zset_join.query.view import View
from zset_join.stages.effect import has_effect

if TYPE_CHECKING:
    from zset_join.checkpoint.changed_plans import ChangedPlan
    from zset_join.checkpoint.checkpoint import Checkpoint
    from zset_join.checkpoint.record import CommitRecord
    from zset_join.storage.folder import Folder

__all__ = [
    "UNDO_EPOCHS",
    "QueryBefore",
    "check_same_columns",
    "check_undo",
    "checked_undo_epochs",
    "columns_of_change",
    "note_given_change",
    "nothing_to_undo",
    "query_before",
    "refuse_second_change",
    "terms_back",
    "terms_of_undo",
]

UNDO_EPOCHS = 1000
"""How many epochs behind a change it can be undone, where nothing else is requested."""


@dataclass(frozen=True)
class QueryBefore:
    """The query before the last change."""

    epoch: int  # of the change
    views: Mapping[str, View] | None  # as given; None where it was one, or is read from the directory
    query: PlannedQuery
    columns: tuple[ColumnChange, ...] = ()  # what the change did to columns of sources


def checked_undo_epochs(epochs: int) -> int:
    if isinstance(epochs, bool) or epochs < 0:
        raise OptionError(
            f"undo_epochs={epochs!r} is not a whole number from 0 on: for so many epochs behind a change of the query it can "
            f"be undone. Leave it out for {UNDO_EPOCHS}.",
            code="UNDO_EPOCHS",
            value=epochs,
        )
    return epochs


def terms_of_undo(checkpoint: Checkpoint, where: str, by: str) -> ChangeTerms:
    """Return the terms of the change back to the query before, or refuse it; `by` is what changes queries there."""
    last, changed = checkpoint.last, checkpoint.changed
    if last is None or changed is None or not changed.changes:  # without, it came from the other mode
        raise nothing_to_undo(where, by)
    check_undo(last.epoch + 1, changed.epoch, changed.undo_epochs)
    return terms_back(columns_of_change(changed), is_at_once=last.epoch == changed.epoch)


def check_undo(epoch: int, change: int, undo_epochs: int) -> None:
    """Refuse to undo a change that is too long ago."""
    behind = max(0, epoch - change - 1)
    if behind > undo_epochs:
        raise StateError(
            f"the query was changed in epoch {change}, {counted(behind, 'epoch')} ago, and undo_epochs={undo_epochs}: the "
            "query before is no longer kept. Change to it with evolve, which takes any query.",
            code="UNDO_GONE",
            epoch=change,
            undo_epochs=undo_epochs,
        )


def check_same_columns(before: QueryPlan, after: QueryPlan) -> None:
    """Refuse to undo a change of columns that was made before the first epoch: it is not known which column is which."""
    now = {source.name: source.relation.schema for source in after.sources}
    for source in before.sources:
        if source.name in now and not source.relation.schema.equals(now[source.name]):
            raise _columns_gone(source.name, "was made before the first epoch, when rows had no columns to keep")


def refuse_second_change(folder: Folder, last: CommitRecord | None, location: str) -> None:
    """Refuse to change a stopped query once more whose outputs have not been given the last change."""
    changed = None if last is None else changed_plan_of(folder, last)
    if last is None or changed is None or changed.epoch != last.epoch or not changed.is_unseen:
        return
    if not was_given(folder, changed.digest):
        raise StateError(
            f"the query in {location} was changed since it last ran, and its outputs lack that change. Start it once, so that "
            "they get it, stop it, and change it again.",
            code="EVOLVE_UNSEEN",
            epoch=last.epoch,
        )


def note_given_change(checkpoint: Checkpoint) -> None:
    """Write down that outputs have the last change, where it was made without them."""
    last, changed = checkpoint.last, checkpoint.changed
    if last is not None and changed is not None and changed.epoch == last.epoch and changed.is_unseen:
        note_given(checkpoint.files.folder, changed.digest)


def nothing_to_undo(where: str, by: str) -> StateError:
    return StateError(
        f"the query in {where} has no change to undo. Change it with {by}.", code="NOTHING_TO_UNDO", location=where
    )


def columns_of_change(changed: ChangedPlan) -> tuple[ColumnChange, ...]:
    """Return the changes of source columns by the last change of a directory."""
    return tuple(ColumnChange.from_json(one) for one in changed.columns if one["epoch"] == changed.epoch)


def terms_back(changes: Sequence[ColumnChange], *, is_at_once: bool) -> ChangeTerms:
    """Return the inverse of a change of source columns."""
    for change in changes:
        why = None
        if change.dropped:
            why = f"dropped the columns {list(change.dropped)}, whose values are not kept"
        elif change.is_widened and not is_at_once:
            why = "widened the type of a column, and later values may not fit the old type"
        if why is not None:
            raise _columns_gone(change.source, why)
    renamed = {one.source: {now: name for name, now in one.renamed.items()} for one in changes if one.renamed}
    return ChangeTerms(words=ColumnWords(renamed=renamed, may_narrow=frozenset(one.source for one in changes)))


def _columns_gone(source: str, why: str) -> StateError:
    return StateError(
        f'the change of the source "{source}" {why}. Go to a query over the columns of before with evolve(): '
        "columns that were dropped are filled from `defaults`, or with NULL.",
        code="UNDO_COLUMNS",
        source=source,
    )


def query_before(checkpoint: Checkpoint, readings: Mapping[str, Reading], now: QueryPlan, *, has_several: bool) -> PlannedQuery:
    """Return the query before the last change, as the directory has it written down, with the lookups of the present one."""
    last = checkpoint.last
    assert last is not None  # noqa: S101 - it has changed behind an epoch
    plan = with_lookups_of(QueryPlan.from_json(plan_before(checkpoint.files.folder, last)["plan"]), now)
    for source in [getattr(node.stage, "source", None) for node in plan.nodes if has_effect(node.stage)]:
        for secret in secrets_of(source):
            secret.check_allowed()
    missing = [source.name for source in plan.sources if source.name not in readings]
    if missing:
        raise StateError(
            f"the previous query reads the sources {missing}, and how their rows are read is not written down. Change to it "
            "with evolve(), given the query itself.",
            code="UNDO_SOURCES",
            sources=missing,
        )
    assert checkpoint.changed is not None  # noqa: S101 - as above
    changes = {change.source: change for change in columns_of_change(checkpoint.changed)}
    mine = {source.name: _as_before(readings[source.name], source, changes.get(source.name)) for source in plan.sources}
    return PlannedQuery(plan=replace(plan, state_names=()), readings=mine, has_several=has_several or len(plan.views) > 1)


def _as_before(reading: Reading, source: PlanSource, change: ColumnChange | None) -> Reading:
    """Return how the rows of a source are read under the columns that it had."""
    if change is None:
        return reading
    shown = {field.name for field in change.after}
    given = [*(change.before.field(name) for name in source.visible), *(one for one in reading.given if one.name not in shown)]
    called = {now: name for name, now in change.renamed.items()}
    deletes = reading.deletes
    if deletes is not None:
        deletes = rewritten(deletes, lambda column: named(called.get(column.name, column.name)))
    return replace(reading, source=source, given=pa.schema(given), deletes=deletes)
