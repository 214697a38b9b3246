"""Timed queries in the form of executors, without Spark: what Spark does between buckets is here, the rest is the product's.

A checkpoint of two buckets holds a query as executors write it down: a history per stage and bucket, logs that the next epoch
folds, watermarks and what is due in the commit record, and beside it what the query is on the driver. `ExecutorsRun` runs its
epochs bucket by bucket, and changes it as `zset-join evolve` does.

Limits: streams have the key that their first stage has, since there are no routes; no lookups; one view.

The law: epochs of P, the change, and epochs of Q answer the view of P, the difference, and the view of Q; a run that is opened
again before every epoch answers the same. A first stage that waits for event time is built, by `as_now`, as a pipeline in
memory builds it, and no source is added for it. What waits for a time is answered when it is where Q ran from the start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock
from zlib import crc32

import numpy as np
import pyarrow as pa

from property_tests.bags import bag_of
from property_tests.evolving import Outcome, References, is_refusal
from property_tests.evolving_timed import PEOPLE, SECOND, SEEN, SOURCES, Moments, drawn_core, drawn_timed_steps
from property_tests.laws import LawBrokenError
from property_tests.pipeline_plans import Rows
from zset_join.checkpoint.bucket import BucketState, StageContext
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.files import attempt_name
from zset_join.checkpoint.owner import Ownership
from zset_join.checkpoint.reading import START_FILE, checkpoint_folder
from zset_join.checkpoint.record import BucketHistory, CommitRecord
from zset_join.checkpoint.snapshot import write_snapshot
from zset_join.core.epochs import Tick
from zset_join.core.errors import StateError
from zset_join.evolution.changed_columns import ChangeTerms
from zset_join.evolution.differences import PlanDiff
from zset_join.expressions import col
from zset_join.pipeline import Pipeline, View, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.plan.query_plan import QueryPlan, StateNode
from zset_join.runners.common import stage_bucket
from zset_join.runners.common.stage_bucket import BucketReceipt, StageBucket, log_input, report, report_due
from zset_join.runners.local.directory_plans import described_plan, written_plan
from zset_join.runners.local.evolving import Evolution
from zset_join.runners.local.feeding import Feeding
from zset_join.runners.local.watermarks import KnownTimes, SourceTime, Watermarks, stage_watermark
from zset_join.runners.spark.driver import executors_change
from zset_join.runners.spark.driver.executors_change import ChangedCheckpoint, ExecutorsForm
from zset_join.runners.spark.driver.executors_state import ExecutorsState
from zset_join.runners.spark.planning.other_mode import OtherMode, StatePair, description_digest, write_other_mode
from zset_join.stages import Stage, StageOptions
from zset_join.zset import ZSet

__all__ = ["TIMED_KINDS", "ExecutorsRun", "as_now_holds", "changed_executors_hold", "drawn_views"]

BUCKETS = 2
TIMED_KINDS = ("temporal", "as_of", "moment", "dedup", "living", "groups")
BUILT_KINDS = ("moment", "dedup", "living", "groups")
"""Those whose rows a join keeps: it has no versions of before."""
_QUERY_ID = "5f0c7a52-0000-4000-8000-000000000042"
_OPTIONS = StageOptions()
_TOWNS = changes("towns", {"k": pa.int64(), "town": pa.int64()}, keys="k")
_STREAMS = {**SOURCES, "towns": _TOWNS}


def _named(name: str) -> str:
    """Return what executors call a state of the driver."""
    return f"x_{name}"


def _pair(plan: QueryPlan, state: StateNode) -> StatePair:
    readers = tuple(_named(plan.nodes[number].name) for number in state.readers)
    return StatePair(executors=_named(state.name), driver=state.name, readers=readers, routes={})


def _form(plan: QueryPlan) -> tuple[dict[str, Any], dict[str, Any], OtherMode]:
    """Return the description and the plan of a query on executors, and what it is on the driver."""
    on_driver = written_plan(plan)
    description = {**described_plan(plan), "inputs": [{"name": source.name} for source in plan.sources]}
    stages = [{**one, "name": _named(one["name"])} for one in on_driver["stages"]]
    other = OtherMode(
        of=description_digest(description),
        mode="driver",
        description=described_plan(plan),
        plan=on_driver,
        sources=tuple(source.to_json() for source in plan.sources),
        pairs=tuple(_pair(plan, state) for state in plan.states),
    )
    return description, {**on_driver, "stages": stages}, other


class ExecutorsRun:
    """One process of a query, in a directory."""

    def __init__(self, place: Path, view: View) -> None:
        with Pipeline(view) as planned:
            self.plan = planned.plan
        self.location = str(place / "checkpoint")
        description, plan, other = _form(self.plan)
        self._owner = Ownership.claim(checkpoint_folder(self.location), _QUERY_ID)
        try:
            self.checkpoint = Checkpoint(
                self.location,
                query_id=_QUERY_ID,
                buckets=BUCKETS,
                description=description,
                plan=plan,
                local_state_dir=str(place / "local"),
                snapshot_after_bytes=3_000,
                owner=self._owner,
            )
            write_other_mode(self.checkpoint.files.folder, other)
            if self.checkpoint.last is None and any(node.stage.waits_for_time for node in self.plan.nodes):
                self.checkpoint.files.folder.put(START_FILE, b"")  # a first start reads the source without rows
        except BaseException:
            self._owner.release()
            raise

    @property
    def epoch(self) -> int:
        """Return the number of the next epoch."""
        return 0 if self.checkpoint.last is None else self.checkpoint.last.epoch + 1

    def close(self) -> None:
        """Release the checkpoint."""
        self._owner.release()

    def step(self, rows: Rows, processing_time_us: int) -> ZSet:
        """Run an epoch; return what the view answers."""
        times = Watermarks(self.plan)
        before = times.known = self._known(times.known)
        after = times.after(rows, processing_time_us)
        deltas: dict[str | int, ZSet] = {**rows}
        receipts: list[BucketReceipt] = []
        for node in self.plan.nodes:
            tick = Tick(self.epoch, processing_time_us, before.stages[node.number], after.stages[node.number])
            fed = [_fed(self.plan, given, feeds, deltas) for given, feeds in zip(node.stage.inputs, node.feeds, strict=True)]
            answers = []
            for bucket in range(BUCKETS):
                own = [_of_bucket(rows, given.key, bucket) for rows, given in zip(fed, node.stage.inputs, strict=True)]
                answer, receipt = self._bucket(node.stage, _named(node.name), tick, bucket, own)
                answers += answer
                receipts += [] if receipt is None else [receipt]
            deltas[node.number] = ZSet.concat(answers, schema=node.stage.output.schema)
        last = self.checkpoint.last
        watermarks = {name: one.watermark_us for name, one in after.sources.items()}
        watermarks |= {stage_watermark(_named(node.name)): after.stages[node.number] for node in self.plan.nodes}
        self.checkpoint.commit(
            CommitRecord(
                query_id=_QUERY_ID,
                epoch=self.epoch,
                processing_time_us=processing_time_us,
                histories=stage_bucket.histories_after(self.checkpoint.before(self.epoch), receipts, {}),
                watermarks={name: at for name, at in watermarks.items() if at is not None},
                dues=stage_bucket.dues_after({} if last is None else last.dues, receipts),
            )
        )
        view = self.plan.view()
        return Feeding(self.plan, view.feeds, self.plan.output_of(view.name).schema).collect(deltas)

    def _known(self, fresh: KnownTimes) -> KnownTimes:
        written: Mapping[str, int] = {} if self.checkpoint.last is None else self.checkpoint.last.watermarks
        stages = tuple(written.get(stage_watermark(_named(node.name))) for node in self.plan.nodes)
        return KnownTimes({name: SourceTime(written.get(name)) for name in fresh.sources}, stages)

    def _bucket(
        self, stage: Stage, name: str, tick: Tick, bucket: int, deltas: Sequence[ZSet]
    ) -> tuple[list[ZSet], BucketReceipt | None]:
        context, one = self.checkpoint.stage(name, tick), StageBucket.of(stage)
        is_opened = any(map(len, deltas)) or context.is_work_due(bucket) or self._is_due(stage, context, tick, bucket)
        if not is_opened and not one.begins(bucket, is_first=tick.epoch == 0):
            return [], None
        receipt = BucketReceipt(stage=name, bucket=bucket)
        with BucketState(context, bucket, partial(stage.build, _OPTIONS)) as state:
            is_due = report_due(state.operator, tick, receipt)
            answer = list(one.answer(state.operator, tick, deltas))
            log_input(state, deltas, receipt, is_due=is_due)
            report(state, receipt)
        return answer, receipt

    def _is_due(self, stage: Stage, context: StageContext, tick: Tick, bucket: int) -> bool:
        """Return whether a bucket may have rows to emit, as `EpochPlan` decides it."""
        last, history = self.checkpoint.last, context.histories.get(bucket)
        if not stage.waits_for_time or last is None or history is None:
            return False
        folded = -1 if history.snapshot is None else history.snapshot.through_epoch
        due = last.dues.get(f"{context.stage}/{bucket}")
        has_come = due is not None and due.is_due(watermark_us=tick.watermark_us, processing_time_us=tick.processing_time_us)
        return has_come or last.epoch in (folded, *(log.last_epoch for log in history.logs[-1:]))

    def evolve(self, view: View, *, as_now: bool = False) -> PlanDiff:
        """Let the checkpoint be one of another query; this run ends with it."""

        def form(_: ExecutorsState, evolution: Evolution, __: Mapping[str, Any]) -> ExecutorsForm:
            description, plan, other = _form(evolution.plan)
            return ExecutorsForm(description=description, plan=plan, on_driver=other)

        changed = ChangedCheckpoint(
            location=self.location,
            checkpoint=self.checkpoint,
            session=lambda: None,
            undo_epochs=5,  # type: ignore[arg-type, return-value]
        )
        query: Any = view
        with _dealing(), changed.built(query, form, terms=ChangeTerms(as_now=as_now)) as change:
            return change.commit(())


def _fed(plan: QueryPlan, given: Any, feeds: Any, deltas: dict[str | int, ZSet]) -> ZSet:
    rows = Feeding(plan, feeds, given.relation.schema).collect(deltas)
    reduced: ZSet = rows if given.reduce is None else given.reduce.reduce(rows)
    return reduced


def _bucket_of(line: Mapping[str, Any], key: Sequence[str]) -> int:
    return crc32(repr([line[name] for name in key]).encode()) % BUCKETS


def _of_bucket(rows: ZSet, key: Sequence[str], bucket: int) -> ZSet:
    chosen = [at for at, line in enumerate(rows.rows.to_pylist()) if _bucket_of(line, key) == bucket]
    return ZSet(rows.rows.take(pa.array(chosen, pa.int64())), rows.weights[np.array(chosen, np.int64)])


@contextmanager
def _dealing() -> Iterator[None]:
    """Deal the tables of a stage to buckets here, as the job of a rescaling does."""

    def dealt(
        stage: Stage, _: Any, context: StageContext, numbers: tuple[int, int], options: StageOptions
    ) -> tuple[dict[str, BucketHistory], int]:
        as_it_is = replace(context, snapshot_buckets=frozenset(), merge_buckets=frozenset())
        with BucketState(as_it_is, 0, partial(stage.build, options)) as state:
            held = dict(state.operator.snapshot())
        made: dict[str, BucketHistory] = {}
        epoch = context.tick.epoch - 1
        for bucket in range(numbers[1]):
            tables = {
                name: stage.regrouped(
                    _rows_of(table, stage.state_tables[name].columns, bucket),
                    epoch=epoch,
                    metadata=[] if bucket else [dict(table.schema.metadata or {})],
                )
                for name, table in held.items()
            }
            snapshot = write_snapshot(
                context.files,
                f"snapshot/{context.stage}-{bucket}",
                tables,
                through_epoch=epoch,
                identity=attempt_name(epoch, "-rescaled"),
            )
            made[f"{context.stage}/{bucket}"] = BucketHistory(snapshot)
        return made, sum(table.num_rows for table in held.values())

    with mock.patch.object(executors_change, "rescaled_stage", dealt):
        yield


def _rows_of(table: pa.Table, key: Sequence[str], bucket: int) -> pa.Table:
    return table.filter(pa.array([_bucket_of(line, key) == bucket for line in table.to_pylist()], pa.bool_()))


def drawn_views(rng: np.random.Generator, kinds: Sequence[str] = TIMED_KINDS) -> tuple[str, View, View]:
    """Return a name and two views with a timed core in common, in front of a join that keeps its rows."""
    kind = str(rng.choice(list(kinds)))
    core, _ = drawn_core(kind, rng, Moments(0), only_adds=True)
    named = core.join(_TOWNS, on="k", how=str(rng.choice(["inner", "left"])))
    first, second = (_behind(named, int(which)) for which in rng.choice(6, 2, replace=False))
    return kind, first, second


def _behind(rows: View, which: int) -> View:
    match which:
        case 0:
            return rows.groupBy("town").agg(F.sum("r").alias("v"), F.count().alias("c"))
        case 1:
            return rows.groupBy("town").agg(F.max("n").alias("v"), F.count().alias("c"))
        case 2:
            return rows.groupBy("k").agg(F.min("r").alias("v"), F.count().alias("c"))
        case 3:
            return rows.where(col("n") > 1).groupBy("town").agg(F.sum("n").alias("v"), F.count().alias("c"))
        case 4:
            return rows.select("town", v=col("r") + 1, c=col("n"))
        case _:
            return rows.select("k", "town").distinct()


def changed_executors_hold(seed: int, outcome: Outcome, place: Path, kinds: Sequence[str] = TIMED_KINDS) -> None:
    """Change a random timed query on executors to another one, and back.

    Raises:
        LawBrokenError: a law is broken.
    """
    rng = np.random.default_rng([seed, 7])
    kind, before, after = drawn_views(rng, kinds)
    steps = drawn_timed_steps(rng, 6, _STREAMS, late=0.4)
    first, second = sorted(int(at) for at in rng.integers(1, 6, 2))
    what, reopens = f"seed {seed}, {kind}", bool(rng.random() < 0.5)
    accepted: list[Rows] = []
    moments: list[int] = []
    references = References(accepted, lambda fresh, number, rows: fresh.step(rows, processing_time=moments[number] * SECOND))
    run, query = ExecutorsRun(place, before), {"v": before}
    queries = {id(before): query, id(after): {"v": after}}
    held: Counter[Any] = Counter()
    for number, step in enumerate(steps):
        for wanted in [one for at, one in ((first, after), (second, before)) if at == number]:
            try:
                diff = run.evolve(wanted)
            except StateError as error:
                if not is_refusal(error, by_time=True):
                    raise
                outcome.refused += 1
                outcome.codes[error.code] += 1
                continue
            finally:
                run.close()
            accepted.append({})
            moments.append(moments[-1])
            query = queries[id(wanted)]
            (changed,) = diff.views.values()
            if changed.status == "columns":
                held = Counter()
            else:
                held.subtract(bag_of(changed.removed))
            held.update(bag_of(changed.added))
            outcome.evolved += 1
            outcome.kept += len(diff.kept)
            outcome.rebuilt += len(diff.rebuilt)
            outcome.returned += wanted is before
            run = ExecutorsRun(place, query["v"])
            _compare(held, references, query, outcome, f"{what}, changed before epoch {number}")
        if reopens:
            run.close()
            run = ExecutorsRun(place, query["v"])
        rows = {name: one for name, one in step.items() if name in {source.name for source in run.plan.sources}}
        accepted.append(rows)
        moments.append(number)
        held.update(bag_of(run.step(rows, number * SECOND)))
        _compare(held, references, query, outcome, f"{what}, after epoch {number}")
    run.close()
    references.close()


def as_now_holds(seed: int, outcome: Outcome, place: Path, kinds: Sequence[str] = BUILT_KINDS) -> None:
    """Change a query in which nothing waits to a timed one, as if all rows came now; a pipeline in memory does the same.

    Raises:
        LawBrokenError: they answer otherwise.
    """
    rng = np.random.default_rng([seed, 8])
    kind = str(rng.choice(list(kinds)))
    core, _ = drawn_core(kind, rng, Moments(0), only_adds=True)
    beside = {"people": (PEOPLE, "p")}
    with Pipeline(core) as planned:
        read = [source.name for source in planned.plan.sources]
    before: View = SEEN
    for table, key in (beside[name] for name in read if name in beside):
        before = before.join(table, on=[("k", key)], how="left")
    before = before.join(_TOWNS, on="k", how="left")
    after = _behind(core.join(_TOWNS, on="k", how="left"), int(rng.integers(6)))
    steps, change = drawn_timed_steps(rng, 6, _STREAMS), int(rng.integers(1, 5))
    run = ExecutorsRun(place, before)
    names = {source.name for source in run.plan.sources}
    found: Counter[Any] = Counter()
    expected: Counter[Any] = Counter()
    with Pipeline(before) as pipeline:
        for number, step in enumerate(steps):
            if number == change:
                codes = [_changed_as_now(one, after, held) for one, held in ((pipeline, expected), (run, found))]
                run.close()
                if codes[0] != codes[1]:
                    raise LawBrokenError(f"seed {seed}, {kind}: changed by {codes[0] or 'none'} and {codes[1] or 'none'}")
                outcome.refused += codes[0] is not None
                outcome.evolved += codes[0] is None
                run = ExecutorsRun(place, before if codes[0] else after)
            rows = {name: one for name, one in step.items() if name in names}
            expected.update(bag_of(pipeline.step(rows, processing_time=number * SECOND)))
            found.update(bag_of(run.step(rows, number * SECOND)))
            if {row: n for row, n in found.items() if n} != {row: n for row, n in expected.items() if n}:
                raise LawBrokenError(f"seed {seed}, {kind}, after epoch {number}: {found - expected} and {expected - found}")
    run.close()


def _changed_as_now(one: Pipeline[Any] | ExecutorsRun, after: View, held: Counter[Any]) -> str | None:
    """Change a query, and what its view holds; return the code of a refusal."""
    try:
        diff = one.evolve(after, as_now=True)
    except StateError as error:
        return error.code
    (changed,) = diff.views.values()
    if changed.status == "columns":
        held.clear()
    else:
        held.subtract(bag_of(changed.removed))
    held.update(bag_of(changed.added))
    return None


def _compare(held: Counter[Any], references: References, query: Mapping[str, View], outcome: Outcome, what: str) -> None:
    now, wanted = Counter({row: n for row, n in held.items() if n}), bag_of(references.of(query).contents("v"))
    outcome.rows += len(wanted)
    if now != wanted:
        raise LawBrokenError(f"{what}: the answers add up to {now - wanted} too much, and lack {wanted - now}")
