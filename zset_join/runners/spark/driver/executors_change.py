"""Parts of a change of a query on executors: its form there, the state, the difference, and their record.

    the new query in both forms -> what `Evolution` has built, as the tables of executors, in as many buckets -> one record

The law: stages that are in both queries, under one name and written alike, keep their files; others are written once. The form
of the query before goes into the plan of the change, so that `undo` needs no program.

Disk: snapshots of what is built. One Spark job per stage that is built, where there are several buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.files import attempt_name
from zset_join.checkpoint.reading import stored_description
from zset_join.checkpoint.record import LATE_ROWS_TOTAL, BucketHistory, ChangedPlan, CommitRecord
from zset_join.checkpoint.snapshot import write_snapshot
from zset_join.core.epochs import Tick
from zset_join.core.errors import StateError
from zset_join.evolution.changed_columns import NO_TERMS, ChangeTerms
from zset_join.evolution.differences import PlanDiff
from zset_join.query.rows import PlannedQuery
from zset_join.runners.common.rejected import late_change_counts
from zset_join.runners.local.checkpoint_diff import leased_checkpoint
from zset_join.runners.local.directory_plans import described_plan, written_plan
from zset_join.runners.local.evolving import Evolution
from zset_join.runners.spark.driver.executors_state import ExecutorsState, kept_dues, state_on_driver, times_on_executors
from zset_join.runners.spark.driver.moved_tables import MovedTables, StateTables, stages_by_name
from zset_join.runners.spark.epoch.batches import written_parts
from zset_join.runners.spark.planning.other_mode import OtherMode, StatePair, description_digest, other_mode_of
from zset_join.runners.spark.planning.placed_query import PlacedQuery
from zset_join.runners.spark.tools.rescaling import rescaled_stage
from zset_join.stages import Stage
from zset_join.zset import ZSet
from zset_join.zset.protocol import NOTHING_DUE, NextDue, due_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ChangedCheckpoint", "ExecutorsChange", "ExecutorsForm", "FormOf", "form_before", "planned_form"]


@dataclass(frozen=True, kw_only=True)
class ExecutorsForm:
    """A query as executors run it, without its program."""

    description: Mapping[str, Any]
    plan: Mapping[str, Any]
    on_driver: OtherMode

    def to_json(self) -> dict[str, Any]:
        return {"description": self.description, "plan": self.plan, "on_driver": asdict(self.on_driver)}


FormOf = Callable[[ExecutorsState, Evolution, Mapping[str, Any]], ExecutorsForm]
"""Gives the form of the new query, of the state, the evolution and what the checkpoint describes."""


def planned_form(
    placed: PlacedQuery, description: Mapping[str, Any], state: ExecutorsState, evolution: Evolution
) -> ExecutorsForm:
    """Return the form of a query to which another one changes."""
    on_driver = OtherMode(
        of=description_digest(description),
        mode="driver",
        description={**state.other.description, **described_plan(evolution.plan)},
        plan=written_plan(evolution.plan),
        sources=tuple(source.to_json() for source in evolution.plan.sources),
        pairs=placed.state_pairs(evolution.plan),
    )
    return ExecutorsForm(description=description, plan=placed.to_json(), on_driver=on_driver)


def _stored_form(description: Mapping[str, Any], plan: Mapping[str, Any], state: ExecutorsState) -> ExecutorsForm:
    return ExecutorsForm(description=description, plan=plan, on_driver=state.other)


def form_before(changed: ChangedPlan) -> ExecutorsForm:
    """Return the form of the query before the last change."""
    written = changed.note["before"]
    on_driver = other_mode_of(written["on_driver"])
    return ExecutorsForm(description=written["description"], plan=written["plan"], on_driver=on_driver)


@dataclass(frozen=True, kw_only=True)
class ExecutorsChange:
    """Writer of a change."""

    checkpoint: Checkpoint
    state: ExecutorsState
    evolution: Evolution
    before: ExecutorsForm
    after: ExecutorsForm
    undo_epochs: int
    session: Callable[[], SparkSession]

    @property
    def tick(self) -> Tick:
        return Tick(self._last.epoch + 1, self._last.processing_time_us)

    @property
    def _last(self) -> CommitRecord:
        last = self.checkpoint.last
        assert last is not None  # noqa: S101 - without an epoch there is nothing to change
        return last

    def commit(self, new: Collection[str], *, check_rows: Callable[[str, ZSet], None] = lambda *_: None) -> PlanDiff:
        """Let the change count: its snapshots and what outputs are given are written, then the record that names them.

        Args:
            new: the views whose outputs are new, and are given all rows; others are given the difference, with columns that may
                come behind those that they have.
            check_rows: refuses the difference of a view.
        """
        checkpoint, tick, known = self.checkpoint, self.tick, self.checkpoint.changed
        views = [view.name for view in self.evolution.plan.views]
        diff = self.evolution.diff()
        answers = diff.answers(views)
        for view, answer in answers.items():
            check_rows(view, answer)
        altered = tuple(view for view in views if view not in new and self.evolution.adds_columns(view))
        histories, dues = self._histories()
        rows = {view: self.evolution.rows_after(view) for view in views if view in new}
        record = CommitRecord(
            query_id=checkpoint.query_id,
            epoch=tick.epoch,
            processing_time_us=tick.processing_time_us,
            histories=histories,
            dues=dues,
            parts=tuple(written_parts(checkpoint.files, tick, answers, rows)),
            progress={
                "epoch": tick.epoch,
                "rows_in": {},
                "retractions_in": {},
                "quarantined": {},
                "delta_rows": sum(map(len, answers.values())),
                "retractions": sum(int((answer.weights < 0).sum()) for answer in answers.values()),
                LATE_ROWS_TOTAL: dict(self._last.late_rows),
                **late_change_counts((), self._last.progress),
            },
            watermarks=times_on_executors(self.evolution, self.after.on_driver.pairs, self._last),
            positions=self._last.positions,
        )
        changed = ChangedPlan(
            epoch=tick.epoch,
            changes=1 + (0 if known is None else known.changes),
            before=checkpoint.plan_digest,
            description=self.after.description,
            plan=self.after.plan,
            sources=tuple(self.after.plan["plan"]["sources"]),
            begins=(*rows, *altered),
            altered=altered,
            is_unseen=True,
            undo_epochs=self.undo_epochs,
            columns=self._columns(),
            note={"on_driver": asdict(self.after.on_driver), "before": self.before.to_json()},
        )
        checkpoint.commit_change(record, changed)
        return replace(diff, taken=tick.epoch)

    def _columns(self) -> tuple[Mapping[str, Any], ...]:
        """Return how columns of streams have changed, those of this change last."""
        known = self.checkpoint.changed
        places = [source["relation"]["name"] for source in self.after.plan["plan"]["sources"]]
        now = [
            {**change.to_json(), "epoch": self.tick.epoch, "slot": places.index(name)}
            for name, change in self.evolution.columns.items()
        ]
        return (*(() if known is None else known.columns), *now)

    def _histories(self) -> tuple[dict[str, BucketHistory], dict[str, NextDue]]:
        """Return the files of the state, those that are kept and snapshots that are written here, and what waits for when."""
        evolution = self.evolution
        before, after = self.state.moved.before, stages_by_name(self.after.plan)
        pairs = {pair.driver: pair for pair in self.after.on_driver.pairs}
        known = {pair.driver: pair for pair in self.state.other.pairs}
        histories: dict[str, BucketHistory] = {}
        dues: dict[str, NextDue] = {}
        for node in evolution.plan.states:
            pair, old = pairs[node.name], evolution.unbuilt.get(node.number)
            was = None if old is None else known[self.state.start.plan.state_of[old].name]
            names = (pair.executors, *pair.routes.values())
            if was is not None and _is_same(was, pair) and all(_written(before[one]) == _written(after[one]) for one in names):
                kept = {key: one for key, one in self.state.committed.histories.items() if key.rpartition("/")[0] in names}
                histories |= kept
                if node.stage.waits_for_time:
                    dues |= kept_dues(pair, after[pair.executors], kept, self._last)
                continue
            operator = evolution.operator(node.number)
            tables = {table: [rows] for table, rows in operator.snapshot().items()}
            moved = MovedTables(
                before={node.name: node.stage},
                after=after,
                options=self.state.start.options,
                epoch=self._last.epoch,
                read=lambda _, given=tables: given,  # type: ignore[misc]  # of this state
            )
            for one, written in moved.to_executors(pair).items():
                histories |= self._buckets(one, after[one], written)
            due = due_of(operator) if node.stage.waits_for_time else NOTHING_DUE
            if due != NOTHING_DUE:  # that of all buckets: an earlier one than a bucket has does no harm
                dues |= {f"{pair.executors}/{bucket}": due for bucket in range(self.checkpoint.buckets)}
        return histories, dues

    def _buckets(self, name: str, stage: Stage, tables: StateTables) -> dict[str, BucketHistory]:
        """Write the snapshots of a stage, one per bucket."""
        checkpoint, buckets, epoch = self.checkpoint, self.checkpoint.buckets, self._last.epoch
        snapshot = write_snapshot(
            checkpoint.files, f"snapshot/{name}-0", tables, through_epoch=epoch, identity=attempt_name(epoch, "-changed")
        )
        if buckets == 1:
            return {f"{name}/0": BucketHistory(snapshot)}
        context = replace(checkpoint.stage(name, self.tick), histories={0: BucketHistory(snapshot)})
        written, _ = rescaled_stage(stage, self.session(), context, (1, buckets), self.state.start.options)
        for table in snapshot.tables.values():
            checkpoint.files.folder.remove(table.name)
        return written


@dataclass(frozen=True, kw_only=True)
class ChangedCheckpoint:
    """Read a checkpoint that is owned in the driver's form, and build what another query needs."""

    location: str
    checkpoint: Checkpoint
    session: Callable[[], SparkSession]
    undo_epochs: int

    @contextmanager
    def built(
        self,
        query: PlannedQuery,
        form: FormOf,
        *,
        terms: ChangeTerms = NO_TERMS,
        check: Callable[[Evolution], None] | None = None,
    ) -> Iterator[ExecutorsChange]:
        """Yield the change; nothing is committed."""
        stored = stored_description(self.location) or {}
        with leased_checkpoint(self.location) as leased:
            state = state_on_driver(leased)
            with closing(state.evolution_to(query, terms)) as evolution:
                after = form(state, evolution, stored)
                _check_order(stored, after.description)
                if check is not None:
                    check(evolution)
                evolution.build()
                yield ExecutorsChange(
                    checkpoint=self.checkpoint,
                    state=state,
                    evolution=evolution,
                    before=_stored_form(stored, self.checkpoint.plan, state),
                    after=after,
                    undo_epochs=self.undo_epochs,
                    session=self.session,
                )


def _is_same(before: StatePair, after: StatePair) -> bool:
    return (before.executors, dict(before.routes)) == (after.executors, dict(after.routes))


def _written(stage: Stage) -> Any:
    return stage.to_json()


def _check_order(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Refuse streams in another order: Spark's own files name its sources by it."""
    known, wanted = ([stream["name"] for stream in one["inputs"]] for one in (before, after))
    if known != wanted:
        raise StateError(
            f"the new query reads the streams {wanted}, and that of the checkpoint {known}. Spark's own files beside the "
            "checkpoint number what is read. Let the new query read each of them as often, or start it with a "
            "checkpointLocation and outputs of its own.",
            code="EVOLVE_STREAM",
            before=known,
            after=wanted,
        )
