"""Changes to the directory of a stopped pipeline without its program: the directory contains its query as a plan.

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
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from typing_extensions import override

from zset_join.checkpoint.reading import (
    checkpoint_folder,
    plan_before,
    query_plan,
    read_committed,
    reads_start,
    stored_description,
)
from zset_join.core.errors import OptionError
from zset_join.evolution.changed_columns import NO_TERMS, ChangeTerms
from zset_join.evolution.differences import PlanDiff
from zset_join.plan.query_plan import QueryPlan
from zset_join.query.rows import PlannedQuery
from zset_join.runners.local.checkpoint_diff import evolution_to
from zset_join.runners.local.directory_plans import (
    UNDO_EPOCHS,
    DirectoryChange,
    Place,
    check_kept_here,
    checked_undo_epochs,
    described_beside,
    place_of,
    refuse_second_change,
    terms_of_undo,
)
from zset_join.runners.local.durable import PipelineDirectory
from zset_join.runners.local.evolving import Evolution
from zset_join.runners.local.pipeline_epochs import PipelineEpochs, Query
from zset_join.runners.local.prepared import DurableEpoch
from zset_join.stages.stage import StageOptions
from zset_join.storage.folder import is_local
from zset_join.zset.protocol import DurableOperator

__all__ = ["evolve_directory", "undo_of_directory"]

_SESSION = "session.json"
"""The file beside the pipeline of a session; see `zset_join.sql.runtime.in_directory`."""


def evolve_directory(
    directory: str | Path,
    view: Query,
    *,
    terms: ChangeTerms = NO_TERMS,
    new_tables: Collection[str] = (),
    undo_epochs: int | None = None,
) -> PlanDiff:
    """Change the query of a directory. The next start passes missing epochs to the outputs, this change last.

    That start makes the outputs of the views `new_tables` new, "" being the only view: they begin with all rows.
    """
    if undo_epochs is not None:
        checked_undo_epochs(undo_epochs)
    with _opened(directory, new_tables) as pipeline:
        pipeline.undo_epochs = undo_epochs
        return pipeline.evolve_with(view, terms)


def undo_of_directory(directory: str | Path, *, new_tables: Collection[str] = ()) -> PlanDiff:
    """Let a directory be one of the query before its last change: a change like any other, which a second undo restores."""
    with _opened(directory, new_tables) as pipeline:
        checkpoint = pipeline.directory.checkpoint
        terms = terms_of_undo(checkpoint, pipeline.directory.location, "zset-join evolve")
        assert checkpoint.last is not None  # noqa: S101 - it has changed behind an epoch
        before = QueryPlan.from_json(plan_before(checkpoint.files.folder, checkpoint.last)["plan"])
        return pipeline.evolve_with(_without_program(replace(before, state_names=())), terms)


@contextmanager
def _opened(directory: str | Path, new_tables: Collection[str]) -> Iterator[_StoppedPipeline]:
    location = _location(directory)
    _refuse_session(location)
    plan, described = query_plan(location), stored_description(location) or {}
    check_kept_here(location, described)
    committed = read_committed(location)
    if committed is not None:
        refuse_second_change(committed.files.folder, committed.last, location)
    with (
        tempfile.TemporaryDirectory(prefix="zset_join-") as temporary,
        _StoppedPipeline(
            _without_program(plan),
            _place(location, temporary),
            {
                "keep_view": described["keeps_view"],
                "keep_inputs": described["keeps_inputs"],
                "options": StageOptions(on_bad_input="quarantine"),
            },
        ) as pipeline,
    ):
        pipeline.new_tables = new_tables
        yield pipeline


def _without_program(plan: QueryPlan) -> PlannedQuery:
    return PlannedQuery(plan=plan, readings={}, has_several=len(plan.views) > 1)


class _StoppedPipeline(PipelineEpochs):
    """The pipeline of a directory, without its program and its outputs."""

    new_tables: Collection[str] = ()
    undo_epochs: int | None = None

    @override
    def _evolution(self, view: Query, terms: ChangeTerms, states: Mapping[int, DurableOperator]) -> Evolution:
        location = self.directory.location
        described, has_clock = stored_description(location) or {}, reads_start(checkpoint_folder(location))
        return evolution_to(view, self._start(states), described, terms, has_clock=has_clock)

    @override
    def _changed_durably(
        self,
        directory: PipelineDirectory,
        opened: DurableEpoch,
        evolution: Evolution,
        change: DirectoryChange,
        letters: pa.Table,
    ) -> Mapping[str, Any]:
        known, plan = directory.checkpoint.changed, evolution.plan
        filled = {plan.view(name or None).name for name in self.new_tables}
        kept = UNDO_EPOCHS if known is None else known.undo_epochs
        change = replace(
            change,
            begins={**change.begins, **{name: evolution.rows_after(name) for name in filled}},
            bare_view=known.bare_view if known is not None else "" if len(self.plan.views) == 1 else None,
            undo_epochs=kept if self.undo_epochs is None else self.undo_epochs,
            is_without_outputs=True,
        )
        return super()._changed_durably(directory, opened, evolution, change, letters)


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


def _place(location: str, temporary: str) -> Place:
    """Return a directory as who runs it describes it; local state that is not its own lies elsewhere."""
    own = Path(location) / "local"
    local = str(own) if is_local(location) and own.is_dir() else temporary
    letters = place_of(location).dead_letters if is_local(location) else temporary
    return Place(location=location, local_state_dir=local, dead_letters=letters, described=described_beside)
