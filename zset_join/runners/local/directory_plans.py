"""The directory of a pipeline: where it lies, and the description of the plan in it.

`QueryBefore`: the query before the last change: how long it is kept, and how a directory stores it.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import pyarrow as pa

from zset_join.checkpoint.owner import Ownership, claimed_query_id
from zset_join.checkpoint.reading import changed_plan_of, checkpoint_folder, plan_before, stored_plan, stored_query_id
from zset_join.checkpoint.record import PLANS, note_given, was_given
from zset_join.core.errors import OptionError, StateError
from zset_join.core.options import KeepState
from zset_join.core.shown_values import counted
from zset_join.evolution.changed_columns import ChangeTerms, ColumnChange, ColumnWords
from zset_join.evolution.differences import with_lookups_of
from zset_join.expressions.rows import named, rewritten
from zset_join.lookup.secret import secrets_of
from zset_join.plan.query_plan import PlanSource, QueryPlan
from zset_join.query.reading import Reading
from zset_join.query.rows import PlannedQuery
from zset_join.query.view import View
from zset_join.runners.local.contents import Contents
from zset_join.runners.local.outputs import Outputs, OutputsByView
from zset_join.runners.local.watermarks import Watermarks
from zset_join.stages.effect import CHANGEABLE, has_effect
from zset_join.stages.stage import StageOptions
from zset_join.storage.folder import folder_below, is_local
from zset_join.zset import ZSet

if TYPE_CHECKING:
    from zset_join.checkpoint.checkpoint import Checkpoint
    from zset_join.checkpoint.record import ChangedPlan, CommitRecord
    from zset_join.storage.folder import Folder

__all__ = [
    "UNDO_EPOCHS",
    "DirectoryChange",
    "PipelineOptions",
    "Place",
    "QueryBefore",
    "check_kept_here",
    "check_same_columns",
    "check_undo",
    "checked_undo_epochs",
    "claimed",
    "columns_of_change",
    "described_beside",
    "described_plan",
    "digest_of",
    "note_given_change",
    "nothing_to_undo",
    "place_of",
    "plan_of_directory",
    "query_before",
    "refuse_second_change",
    "terms_back",
    "terms_of_undo",
    "written_plan",
]


class PipelineOptions(TypedDict, total=False):
    """Arguments of a pipeline besides its query and its directory; see `Pipeline`."""

    keep_view: bool
    keep_inputs: bool
    outputs: Outputs | OutputsByView
    options: StageOptions | None
    idle_timeout_seconds: float | None
    snapshot_after_bytes: int
    keep_state: KeepState
    undo_epochs: int
    threads: int
    before_begin: Callable[[Mapping[str, Any]], None] | None


@dataclass(frozen=True, kw_only=True)
class Place:
    """Storage of a pipeline."""

    location: str
    query_id: str | None = None  # the name of the query in its outputs; None: the one that is present, or a new one
    local_state_dir: str | None  # of mapped files, a cache on this machine's disk; None: in the temporary directory
    local_state_retention_seconds: int | None = None  # of unused state of others; None: the directory is this query's own
    dead_letters: str
    retain_input_log: bool = False
    # From the stored description, None where there is none, what the query is recognised by beside its plan; it refuses what
    # does not fit.
    described: Callable[[Mapping[str, Any] | None], Mapping[str, Any]] = field(default=lambda stored: {})  # noqa: ARG005


def place_of(directory: str | Path | Place) -> Place:
    """Return the place that a directory is. State of one on another file system is in the temporary directory."""
    if isinstance(directory, Place):
        return directory
    if not str(directory):
        raise OptionError("directory='' is not a directory; name one, or leave it out.", code="DIRECTORY", directory="")
    if not is_local(str(directory)):
        letters = folder_below(str(directory), "dead-letters", option="directory").location
        return Place(location=str(directory), local_state_dir=None, dead_letters=letters)
    path = Path(directory).absolute()
    return Place(location=str(path), local_state_dir=str(path / "local"), dead_letters=str(path / "dead-letters"))


def claimed(place: Place) -> tuple[Ownership, str]:
    """Take a directory for this process; return also the name of its query in the outputs."""
    location = place.location
    try:
        folder = checkpoint_folder(location)
        query_id = place.query_id or stored_query_id(location) or claimed_query_id(folder) or str(uuid.uuid4())
        return Ownership.claim(folder, query_id, on_trial=True), query_id
    except OSError as error:
        raise OptionError(
            f"the directory {location} cannot be used: {error}. Give one where this process may write.",
            code="DIRECTORY",
            directory=location,
        ) from error


_LINE = "line "


@dataclass(frozen=True, kw_only=True)
class DirectoryChange:
    """Parts that a pipeline keeps under another plan."""

    plan: QueryPlan
    watermarks: Watermarks
    contents: Mapping[str, Contents] | None
    answers: Mapping[str, ZSet]  # the difference; all rows of a view that is new or has other columns
    begins: Mapping[str, ZSet]  # all rows of the views whose new outputs begin here
    bare_view: str | None
    positions: Mapping[str, Any]
    progress: Mapping[str, Any]
    undo_epochs: int
    note: Any = None
    is_without_outputs: bool = False  # the next start gives outputs the epoch, and those before it that they lack


def described_beside(stored: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the description of a directory besides its plan, as stored."""
    return {key: value for key, value in (stored or {}).items() if not key.startswith(_LINE)}


def check_kept_here(location: str, described: Mapping[str, Any]) -> None:
    """Refuse a checkpoint whose state is not that of a pipeline."""
    if "keeps_view" not in described:
        raise OptionError(
            f"{location} is the checkpoint of a query whose state lies in Spark's executors; it is not changed here. "
            "Stop it and run zset-join evolve, or start its program and call query.evolve(view).",
            code="NOT_FROM_HERE",
            what="evolve",
        )


def plan_of_directory(directory: str | Path | Place, plan: QueryPlan, *, has_names: bool) -> QueryPlan:
    """Return a plan with the names that a directory gives its states, and its only view; whether it fits, a start sees."""
    location = place_of(directory).location
    try:
        has_changed = next(iter(checkpoint_folder(location).names(PLANS)), None) is not None
    except OSError:  # claiming the directory fails as well, with the reason
        return plan
    if not has_changed:
        return plan
    known = QueryPlan.from_json(stored_plan(location)["plan"])
    if len(known.views) == len(plan.views) == 1 and not has_names:
        plan = replace(plan, views=(replace(plan.view(), name=known.name),))
    return replace(plan, state_names=known.state_names) if len(known.states) == len(plan.states) else plan


def written_plan(plan: QueryPlan) -> dict[str, Any]:
    """Return a description that can build the operators of a plan without its program, JSON-ready."""
    return {
        "stages": [
            {"name": state.name, "stage": state.stage.to_json(), **({} if state.own is None else {"own": state.own.to_json()})}
            for state in plan.states
        ],
        "plan": plan.to_json(),
    }


def described_plan(plan: QueryPlan) -> dict[str, Any]:
    """Return the description of a plan, line by line, so that a message can show the difference."""
    # Another run may have another bound, and a baseline that is loaded need not be given again.
    unbounded = tuple(replace(source, max_watermark_jump=None, has_baseline=False) for source in plan.sources)
    explained = replace(plan, sources=unbounded).explain(buckets=1)
    lines = [line for line in explained.splitlines() if not line.startswith(CHANGEABLE)]
    schemas = [f"{source.name}: {_columns(source.relation.schema)}" for source in plan.sources]
    return {f"{_LINE}{number:03}": line for number, line in enumerate([*lines, *schemas])}


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def digest_of(deltas: Mapping[str, ZSet]) -> str:
    """Return a digest of what an epoch was fed: the same rows in the same order have the same one."""
    digest = hashlib.blake2b(digest_size=16)
    for name, delta in sorted(deltas.items()):
        if not len(delta):
            continue
        digest.update(f"{name} {len(delta)} ".encode())
        digest.update(delta.weights.tobytes())
        digest.update(delta.rows.serialize())
    return digest.hexdigest()


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
