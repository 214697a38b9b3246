"""A stage that waits for a time runs at that time, even without input; with a directory the wait survives."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest

from zset_join import ZSet
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import take_rows
from zset_join.expressions import col
from zset_join.pipeline import Pipeline, appends
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.stages.request import InputRows, StageRequest
from zset_join.stages.stage import OutputKey, Stage, StageInput, TableKey, register_stage
from zset_join.stages.written import read_relation, write_relation
from zset_join.zset.protocol import NOTHING_DUE, NextDue

CLICKS = {"user": pa.int64(), "at": pa.int64()}


class Waiting:
    """Hold rows back until the watermark has passed them."""

    def __init__(self, relation):
        self.inputs, self.output = (relation,), relation
        self.held = ZSet.empty(relation.schema)
        self.absorbed_epoch = -1

    def _parted(self, tick, delta):
        rows = ZSet.concat([self.held, delta], schema=self.output.schema)
        times = rows.rows.column(self.output.event_time).to_numpy()
        passed = np.zeros(len(rows), bool) if tick.watermark_us is None else times <= tick.watermark_us
        return [ZSet(take_rows(rows.rows, np.flatnonzero(one)), rows.weights[one]) for one in (passed, ~passed)]

    def answer(self, tick, deltas):
        yield from (chunk for chunk in self._parted(tick, deltas[0])[:1] if len(chunk))

    def absorb(self, tick, deltas):
        self.held = self._parted(tick, deltas[0])[1]
        self.absorbed_epoch = tick.epoch

    def next_due(self):
        times = self.held.rows.column(self.output.event_time).to_pylist()
        return NextDue(watermark_us=min(times)) if times else NOTHING_DUE

    def snapshot(self):
        table = pa.Table.from_batches([self.held.rows]).append_column("__weight", pa.array(self.held.weights))
        return {"held": table.replace_schema_metadata({b"zset_join.absorbed_epoch": json.dumps(self.absorbed_epoch).encode()})}

    def snapshot_readers(self):
        return {name: table.to_reader() for name, table in self.snapshot().items()}

    def restore(self, tables):
        table = tables["held"]
        table = table if isinstance(table, pa.Table) else table.read_all()
        self.absorbed_epoch = json.loads(table.schema.metadata[b"zset_join.absorbed_epoch"])
        self.held = ZSet.of(table.drop_columns(["__weight"]), table.column("__weight").to_numpy())

    def rejections(self, _tick, _deltas):
        return pa.table({})

    def statistics(self):
        return {"pending_rows": len(self.held)}

    def resident_bytes(self):
        return 0

    working_bytes = resident_bytes

    def is_current(self):
        return True

    def close(self):
        pass


@dataclass(frozen=True, kw_only=True)
class WaitingStage(Stage):
    source: Relation

    @property
    def kind(self):
        return "test_waiting"

    @property
    def inputs(self):
        return (StageInput(relation=self.source),)

    @property
    def output(self):
        return replace(self.source, mode="changelog")

    @property
    def output_key(self):
        return OutputKey()

    @property
    def state_tables(self):
        return {"held": TableKey()}

    @property
    def waits_for_time(self):
        return True

    def build(self, _options, _directory):
        return Waiting(self.output)

    def explain(self, _buckets):
        return ["Wait for the watermark"]

    def to_json(self):
        return {"kind": self.kind, "source": write_relation(self.source)}


register_stage("test_waiting", lambda written: WaitingStage(source=read_relation(written["source"])))


class WaitingRequest(StageRequest):
    def stage(self, inputs: list[InputRows]):
        return WaitingStage(source=inputs[0].relation)


def waiting():
    clicks = appends("clicks", CLICKS, watermark=("at", 0))
    return clicks.operate(WaitingRequest())


def both():
    """Wait for the clicks of one side with the watermark of two."""
    clicks, others = appends("clicks", CLICKS, watermark=("at", 0)), appends("others", CLICKS, watermark=("at", 0))
    return clicks.where(col("user") > 0).union(others).operate(WaitingRequest())


def clicks(*times, user=1):
    return [{"user": user, "at": at} for at in times]


@pytest.fixture(params=["memory", "directory"])
def opened(request, tmp_path):
    """Return what opens a pipeline, again where there is a directory."""
    if request.param == "directory":
        return lambda view: Pipeline(view, tmp_path)
    kept = []
    return lambda view: kept[0] if kept else kept.append(Pipeline(view)) or kept[0]


def test_rows_are_released_by_the_watermark_of_the_epoch_that_passes_them(opened):
    pipeline = opened(both())

    assert pipeline.step({"clicks": clicks(5, 7, 9)}).to_pylist() == []
    assert pipeline.step({"others": clicks(8, user=2)}).to_pylist() == [((1, 5), 1), ((1, 7), 1), ((2, 8), 1)]


def test_a_stage_runs_without_rows_when_another_source_moves_its_watermark(opened):
    view = both().groupBy("user").agg(F.count().alias("n"))
    pipeline = opened(view)
    pipeline.step({"clicks": clicks(5, 7, 9)})

    # The row does not pass the filter, so nothing reaches the stage but the time.
    delta = pipeline.step({"clicks": clicks(20, user=0), "others": []})
    assert delta.to_pylist() == []
    assert pipeline.step({"others": clicks(7, user=3)}).to_pylist() == [((1, 2), 1), ((3, 1), 1)]


def test_what_waits_is_known_before_the_next_step(opened):
    pipeline = opened(waiting())
    pipeline.step({"clicks": clicks(5)})
    assert pipeline.next_due() == NOTHING_DUE


def test_rows_wait_through_a_restart(tmp_path):
    with Pipeline(both(), tmp_path) as pipeline:
        pipeline.step({"clicks": clicks(5, 9)})

    with Pipeline(both(), tmp_path) as again:
        again.step({})
        assert again.next_due() == NextDue(watermark_us=5)

    with Pipeline(both(), tmp_path, snapshot_after_bytes=0) as again:
        assert again.step({"others": clicks(6, user=0)}).to_pylist() == [((1, 5), 1), ((0, 6), 1)]


def test_an_epoch_without_rows_that_was_due_is_in_the_log_and_folded_once(tmp_path):
    filtered = appends("clicks", CLICKS, watermark=("at", 0)).where(col("user") > 0).operate(WaitingRequest())
    other = appends("late", CLICKS, watermark=("at", 4)).where(col("user") > 0).operate(WaitingRequest())
    view = filtered.union(other)
    with Pipeline(view, tmp_path) as pipeline:
        pipeline.step({"late": clicks(5)})
        released = pipeline.step({"late": clicks(9, user=0)})
        pipeline.step({})

    with Pipeline(view, tmp_path) as again:
        assert again.step({"late": clicks(20, user=0)}).to_pylist() == []

    assert released.to_pylist() == [((1, 5), 1)]


def as_bytes(delta):
    return delta.rows.serialize().to_pybytes() + delta.weights.tobytes()


def test_an_epoch_that_only_time_opened_is_answered_again_byte_for_byte(tmp_path):
    view = appends("late", CLICKS, watermark=("at", 2)).where(col("user") > 0).operate(WaitingRequest())
    place, twin = tmp_path / "a", tmp_path / "b"
    with Pipeline(view, place) as pipeline:
        pipeline.step({"late": clicks(5, 7, 8, 6)})
    shutil.copytree(place, twin)
    passes_time = {"late": clicks(9, user=0)}  # filtered out: its stage is opened because something is due, with an empty delta

    answers = []
    for directory, given in ((place, passes_time), (twin, passes_time), (place, {})):
        with Pipeline(view, directory) as again:
            answers.append(again.step(given, epoch=1))

    assert answers[0].to_pylist() == [((1, 7), 1)]
    assert len(set(map(as_bytes, answers))) == 1
