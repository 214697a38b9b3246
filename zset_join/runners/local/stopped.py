"""Changes to the directory of a stopped pipeline without its program: the directory contains its query as a plan.

    diff_of_directory(path, view)       what another query would answer; no file of the checkpoint is written
    evolve_directory(path, view)        the other query from here on; outputs get the difference when it is started next
    undo_of_directory(path)             the query before the last change

The law: outputs are not looked at. The directory belongs to this process meanwhile, and is refused where another one has it. A
change counts by one commit record, as `Pipeline.evolve` of a directory.

Known limits: the operators are opened with the options of a pipeline that was given none, but that bad input is set aside: rows
that either query cannot take are counted, and omitted from both.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zset_join.checkpoint.reading import (
    changed_plan_of,
    checkpoint_folder,
    no_checkpoint,
    plan_before,
    query_plan,
    read_committed,
    reads_start,
    stored_description,
)
from zset_join.core.errors import OptionError, StateError
from zset_join.core.tick import Tick
from zset_join.evolution.changed_columns import ColumnWords
from zset_join.evolution.differences import PlanDiff
from zset_join.evolution.same_lookups import with_lookups_of
from zset_join.plan.query_plan import QueryPlan
from zset_join.query.several import PlannedQuery
from zset_join.query.view import View
from zset_join.runners.local.contents import Contents
from zset_join.runners.local.directory_plans import DirectoryChange, described_beside
from zset_join.runners.local.durable import PipelineDirectory
from zset_join.runners.local.durable_epoch import DurableEpoch
from zset_join.runners.local.engine import AnsweredEpoch
from zset_join.runners.local.evolving import Evolution, EvolutionStart
from zset_join.runners.local.history import InputHistory
from zset_join.runners.local.place import Place, place_of
from zset_join.runners.local.progress import epoch_counts
from zset_join.runners.local.query_changes import plan_of_program, readings_of_query
from zset_join.runners.local.rereading import read_again
from zset_join.runners.local.undoing import (
    UNDO_EPOCHS,
    check_undo,
    checked_undo_epochs,
    columns_not_given,
    columns_of_change,
    nothing_to_undo,
    words_back,
)
from zset_join.runners.local.watermarks import Watermarks
from zset_join.stages.stage import StageOptions
from zset_join.storage.folder import is_local

__all__ = ["check_kept_here", "check_streams", "diff_of_directory", "evolve_directory", "undo_of_directory"]

_SESSION = "session.json"
"""The file beside the pipeline of a session; see `zset_join.sql.runtime.in_directory`."""

_SNAPSHOT_AFTER_BYTES = 64 * 1024 * 1024


def diff_of_directory(
    directory: str | Path,
    view: View | Mapping[str, View] | PlannedQuery,
    *,
    words: ColumnWords | None = None,
    reread: Mapping[str, Any] | None = None,
    as_now: bool = False,
) -> PlanDiff:
    """Return how the answers of another query would differ over what a directory holds."""
    with _stopped(directory, view, words, reread, as_now=as_now) as (_, evolution):
        return evolution.diff()


def evolve_directory(
    directory: str | Path,
    view: View | Mapping[str, View] | PlannedQuery,
    *,
    words: ColumnWords | None = None,
    new_tables: Collection[str] = (),
    undo_epochs: int | None = None,
    reread: Mapping[str, Any] | None = None,
    as_now: bool = False,
) -> PlanDiff:
    """Change the query of a directory. The next start passes missing epochs to the outputs, this change last.

    That start makes the outputs of the views `new_tables` new, "" being the only view: they begin with all rows.
    """
    if undo_epochs is not None:
        checked_undo_epochs(undo_epochs)
    _refuse_session(_location(directory))
    with _stopped(directory, view, words, reread, as_now=as_now) as (stopped, evolution):
        filled = [evolution.plan.view(name or None).name for name in new_tables]
        origin, place = stopped.origin, stopped.place
        if origin.epoch:
            evolution.build()
        diff = evolution.diff()
        answers = diff.answers([one.name for one in evolution.plan.views])
        plan = evolution.durable_plan() if origin.epoch else evolution.plan
        answered = AnsweredEpoch(origin.epoch, origin.processing_time_us, answers, evolution.known_times())
        known = place.checkpoint.changed
        change = DirectoryChange(
            plan=plan,
            watermarks=stopped.watermarks.of_plan(plan, answered.times),
            contents=None if origin.contents is None else evolution.contents(origin.contents),
            answers=answers,
            begins=evolution.beginnings(answers) | {name: evolution.rows_after(name) for name in filled},
            bare_view=known.bare_view if known is not None else "" if len(stopped.plan.views) == 1 else None,
            positions={} if place.last is None else place.last.positions,
            progress=epoch_counts({}, answered, [], {}, last={} if place.last is None else place.last.progress),
            note=None,
            undo_epochs=(UNDO_EPOCHS if known is None else known.undo_epochs) if undo_epochs is None else undo_epochs,
            is_without_outputs=True,
            cancels=_undone_columns(place, evolution.plan) - {*filled},
        )
        place.begin()
        if not origin.epoch:
            place.change_at_once(change)
            return diff
        place.change(stopped.opened, evolution, change)
        return replace(diff, taken=origin.epoch)


def undo_of_directory(directory: str | Path, *, new_tables: Collection[str] = ()) -> PlanDiff:
    """Let a directory be one of the query before its last change: a change like any other, which a second undo restores."""
    location = _location(directory)
    committed = read_committed(location)
    last = None if committed is None else committed.last
    if committed is None and stored_description(location) is None:
        raise no_checkpoint(location)
    if committed is None or last is None or last.plan is None:
        raise nothing_to_undo(location, "zset-join evolve")
    changed = changed_plan_of(committed.files.folder, last)
    assert changed is not None  # noqa: S101 - its record names a plan
    if not changed.changes:  # it came from the other mode, and the plan before is of that one
        raise nothing_to_undo(location, "zset-join evolve")
    check_undo(last.epoch + 1, changed.epoch, changed.undo_epochs)
    plan = QueryPlan.from_json(plan_before(committed.files.folder, last)["plan"])
    query = PlannedQuery(plan=replace(plan, state_names=()), readings={}, has_several=len(plan.views) > 1)
    words = words_back(columns_of_change(changed), is_at_once=last.epoch == changed.epoch)
    return evolve_directory(location, query, words=words, new_tables=new_tables)


def _undone_columns(place: PipelineDirectory, plan: QueryPlan) -> frozenset[str]:
    """Return the views of a new plan that lose the columns which the newest change has given them, and no output has."""
    # There are none unless the plan is that of before: another one of the same columns has other rows, which outputs need.
    last, changed, folder = place.last, place.checkpoint.changed, place.checkpoint.files.folder
    names = () if last is None or changed is None else columns_not_given(folder, changed, last.epoch)
    if last is None or not names:
        return frozenset()
    before = QueryPlan.from_json(plan_before(folder, last)["plan"])
    if replace(before, state_names=()).to_json() != replace(plan, state_names=()).to_json():
        return frozenset()
    there = {view.name for view in plan.views}
    return frozenset(name for name in names if name in there)


def _refuse_session(location: str) -> None:
    """Refuse the pipeline of a session: the session could not be opened again, since its statements are kept beside it."""
    if is_local(location) and (Path(location).parent / _SESSION).is_file():
        raise OptionError(
            f"{location} is the pipeline of the session in {Path(location).parent}, whose views are changed by statements. "
            "Open the session, and run ALTER VIEW or ALTER MATERIALIZED VIEW; the text of before undoes a change.",
            code="NOT_FROM_HERE",
            what="evolve",
        )


def _location(directory: str | Path) -> str:
    return str(directory) if not is_local(str(directory)) else str(Path(directory).absolute())


@dataclass(frozen=True, kw_only=True)
class _Stopped:
    plan: QueryPlan
    place: PipelineDirectory
    origin: EvolutionStart
    watermarks: Watermarks
    opened: DurableEpoch


@contextmanager
def _stopped(
    directory: str | Path,
    view: View | Mapping[str, View] | PlannedQuery,
    words: ColumnWords | None,
    reread: Mapping[str, Any] | None = None,
    *,
    as_now: bool = False,
) -> Iterator[tuple[_Stopped, Evolution]]:
    """Open a directory at its newest epoch, and find how its query comes to another one."""
    location = _location(directory)
    plan, described = query_plan(location), stored_description(location) or {}
    check_kept_here(location, described)
    watermarks, options = Watermarks(plan), StageOptions(on_bad_input="quarantine")
    contents = {one.name: Contents(plan.output_of(one.name).schema) for one in plan.views} if described["keeps_view"] else None
    history = InputHistory() if described["keeps_inputs"] else None
    with tempfile.TemporaryDirectory(prefix="zset_join-") as temporary:
        place = PipelineDirectory(
            _place(location, temporary),
            plan,
            options,
            watermarks,
            contents,
            history,
            snapshot_after_bytes=_SNAPSHOT_AFTER_BYTES,
        )
        with closing(place):
            last, known = place.last, place.checkpoint.changed
            tick = Tick(0) if last is None else Tick(last.epoch + 1, last.processing_time_us)
            with place.epoch(tick) as opened:
                origin = EvolutionStart(
                    plan=plan,
                    epoch=tick.epoch,
                    processing_time_us=tick.processing_time_us,
                    options=options,
                    states={state.number: opened.state(state.number, tick) for state in plan.states} if tick.epoch else {},
                    contents=contents,
                    history=history,
                    known=watermarks.known,
                    gone={} if known is None else known.gone,
                    as_now=as_now,
                )
                stopped = _Stopped(plan=plan, place=place, origin=origin, watermarks=watermarks, opened=opened)
                plan = plan_of_program(view, plan)
                again = read_again(reread or {}, readings_of_query(view)) if reread else {}
                check_streams(stopped.plan, plan, described, view, has_clock=reads_start(checkpoint_folder(location)))
                origin = replace(origin.with_words(words), plan=with_lookups_of(stopped.plan, plan), reread=again)
                with closing(Evolution(origin, plan)) as evolution:
                    yield stopped, evolution


def _place(location: str, temporary: str) -> Place:
    """Return a directory as who runs it describes it; local state that is not its own lies elsewhere."""
    own = Path(location) / "local"
    local = str(own) if is_local(location) and own.is_dir() else temporary
    letters = place_of(location).dead_letters if is_local(location) else temporary
    return Place(location=location, local_state_dir=local, dead_letters=letters, described=described_beside)


def check_kept_here(location: str, described: Mapping[str, Any]) -> None:
    """Refuse a checkpoint whose state is not that of a pipeline."""
    if "keeps_view" not in described:
        raise OptionError(
            f"{location} is the checkpoint of a query whose state lies in Spark's executors; it is not changed here. "
            "Stop it and run zset-join evolve, or start its program and call query.evolve(view).",
            code="NOT_FROM_HERE",
            what="evolve",
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
