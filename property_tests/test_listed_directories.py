"""A view of a directory is the sum of its deltas, whatever ends a process between the commit of an epoch and its folding."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.bank import bank_views
from property_tests.laws import LawBrokenError
from property_tests.test_kept_views import LITTLE, ROW, VIEWS, add, legal, same
from property_tests.test_readers import beside, check
from zset_join.checkpoint.bucket import BucketState
from zset_join.core.options import HotBudget
from zset_join.lookup import ArrowSource
from zset_join.pipeline import Pipeline, appends, changes
from zset_join.runners.local import snapshots
from zset_join.runners.local.contents import HeldRows
from zset_join.runners.local.durable import PipelineDirectory
from zset_join.stages.stage import StageOptions
from zset_join.zset import ZSet

NAMES = ArrowSource(name="names", table=pa.table({"number": [0], "name": ["none"]}))
ALWAYS = {
    **{name: VIEWS[name]() for name in ("left", "groups", "rows made alike", "source")},
    "looked up": VIEWS["source"]().lookup_join(NAMES, on=[("k", "number")], how="left"),
}
MORE = {**ALWAYS, "ids": VIEWS["left"]().select("id")}
WAYS = ("no", "no", "no", "now", "hold", "late", "prepare", "close", "kill", "read and kill", "evolve", "undo")
EPOCHS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 3), ROW, st.booleans()), max_size=4),
        st.lists(st.tuples(st.integers(0, 5), ROW, st.integers(-2, 3)), max_size=4),
        st.sampled_from(WAYS),
    ),
    min_size=2,
    max_size=9,
)


@dataclass
class Lives:
    """Run a directory through the lives of several processes, beside a pipeline that keeps nothing and answers all views."""

    root: Path
    stack: ExitStack
    options: StageOptions | None = None
    number: int = 0
    views: dict[str, Any] = field(default_factory=lambda: dict(ALWAYS))
    expected: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in MORE})
    held: list[tuple[HeldRows, Counter[str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.beside = self.stack.enter_context(Pipeline(MORE, keep_view=False))
        if self.options is not None:
            del self.views["looked up"]  # takes no budget
        self.pipeline = self.opened()

    def opened(self) -> Pipeline[dict[str, ZSet]]:
        """Open the directory, each time with another number of threads."""
        folder, threads = self.root / str(self.number), 1 + self.number % 2
        return self.stack.enter_context(
            Pipeline(self.views, folder, threads=threads, snapshot_after_bytes=3_000, options=self.options)
        )

    def step(self, rows: Any, way: str) -> None:
        for name, answer in self.beside.step(rows).items():
            add(self.expected[name], answer)
        if way == "prepare":
            with self.pipeline.prepare(rows):
                self.pipeline.contents("left")  # of the epoch before
        self.pipeline.step(rows)
        if way in ("now", "read and kill"):
            self.check()
        if way == "hold":
            self.held += [(one, self.expected[name].copy()) for name, one in self.pipeline.snapshot()._held.items()]
        if way == "late":
            self.read_held()
        if way in ("kill", "read and kill"):
            self.number += 1
            shutil.copytree(self.root / str(self.number - 1), self.root / str(self.number))
            self.pipeline = self.opened()
        if way == "close":
            self.pipeline.close()
            self.check()
            self.number += 2
            shutil.copytree(self.root / str(self.number - 2), self.root / str(self.number))
            self.pipeline = self.opened()
        if way == "evolve":
            self.views = dict(MORE if self.views == ALWAYS else ALWAYS)
            self.pipeline.evolve(self.views)
            self.beside.step({})
        if way == "undo" and "ids" in self.views and self.pipeline._before is not None:
            self.pipeline.undo()
            self.views = dict(ALWAYS if self.views == MORE else MORE)
            self.beside.step({})

    def check(self) -> None:
        for name in self.pipeline.views:
            same(self.pipeline.contents(name), self.expected[name], f"view {name}")

    def read_held(self) -> None:
        while self.held:
            one, expected = self.held.pop()
            same(one.rows(), expected, "what was held")


def lives(epochs: Sequence[Any], options: StageOptions | None = None) -> tuple[int, set[str]]:
    """Return how often a view was listed, and the views that can be."""
    reading = PipelineDirectory.reading
    listed = mock.Mock(side_effect=reading)
    with (
        tempfile.TemporaryDirectory() as folder,
        LITTLE,
        mock.patch.object(PipelineDirectory, "reading", lambda self: listed(self)),
        ExitStack() as stack,
    ):
        one = Lives(Path(folder), stack, options)
        for rows, (*_, way) in zip(legal(epochs), epochs, strict=True):
            one.step(rows, way)
        one.check()
        one.read_held()
        contents = one.pipeline._contents or {}
        return listed.call_count, {name for name, held in contents.items() if held._listing is not None}


@given(EPOCHS)
def law(epochs: Sequence[Any]) -> None:
    _, listed = lives(epochs)
    if not listed >= {"left", "groups", "rows made alike", "source"} or "looked up" in listed:
        raise LawBrokenError(f"listed: {listed}")


def test_a_view_of_a_directory_is_the_sum_of_its_deltas_over_the_lives_of_its_processes() -> None:
    law()


def epochs_of(ways: Sequence[str]) -> list[Any]:
    """Return epochs that change a few rows, and read in these ways."""
    row = {"k": 0, "f": 1.5, "s": "a", "d": None, "n": None}
    return [
        ([(at % 3, {**row, "k": at % 2}, at % 5 != 4), (3, row, True)], [(0, {**row, "f": at / 2}, 1)], way)
        for at, way in enumerate(ways)
    ]


def test_views_of_a_directory_are_listed() -> None:
    count, listed = lives(epochs_of([*WAYS, "no", "no", *WAYS[3:]]))

    assert count > 5
    assert listed >= {"left", "groups", "rows made alike", "source"}


def test_views_of_state_with_a_budget_are_summed() -> None:
    budgets = StageOptions(table_budget=HotBudget(max_hot_keys=1), hot_budget=HotBudget(max_hot_keys=1))
    count, listed = lives(epochs_of(["no", "kill", "no", "now"]), budgets)

    assert (count, listed) == (0, set())


def test_a_reader_beside_the_writer_gets_one_epoch_of_a_directory(tmp_path: Path) -> None:
    with LITTLE, Pipeline(bank_views(), tmp_path) as pipeline:
        seen, held = set[int | None](), list[Any]()

        def read() -> None:
            held.append(pipeline.snapshot())
            if len(held) > 3:
                check(one := held.pop(0))
                seen.add(one.epoch)

        epochs = beside(pipeline, read, 60, seen)
        check(pipeline.snapshot())
        listed = [name for name, one in (pipeline._contents or {}).items() if one._listing is not None]

    assert len(seen) > 1
    assert epochs > 3
    assert listed


_rows = snapshots._rows


def _not_folded(*given: Any) -> ZSet:
    with mock.patch.object(BucketState, "_fold", return_value=None):
        return _rows(*given)


def _folded_and_added(directory: PipelineDirectory, name: str, *given: Any) -> ZSet:
    rows, last = _rows(directory, name, *given), directory.last
    return rows if last is None else ZSet.concat([rows, directory.answers(last)[name]], schema=rows.schema).consolidated()


@pytest.mark.parametrize("planted", [_not_folded, _folded_and_added], ids=["left out", "counted twice"])
def test_the_law_finds_an_epoch_that_is_not_folded_and(planted: Any) -> None:
    with mock.patch.object(snapshots, "_rows", planted), pytest.raises(LawBrokenError):
        lives(epochs_of(["no"] * 6))


def test_a_view_is_listed_once_its_state_has_no_budget_any_more(tmp_path: Path) -> None:
    budgets = StageOptions(table_budget=HotBudget(max_hot_keys=1))
    rows = changes("rows", {"id": pa.int64(), "k": pa.int64()}, keys="id")
    views = {"counts": rows.groupBy("k").count()}
    with LITTLE, Pipeline(views, tmp_path, options=budgets) as pipeline:
        pipeline.step({"rows": {"id": list(range(9)), "k": [number % 5 for number in range(9)]}})
    with LITTLE, Pipeline(views, tmp_path) as pipeline:
        for number in range(9, 30):
            pipeline.step({"rows": [{"id": number, "k": number % 5}, {"id": number - 9, "k": 7}]})
        assert (pipeline._contents or {})["counts"]._consolidated is None
        assert pipeline.contents("counts").to_pylist() != []


def test_a_state_that_is_read_keeps_the_tick_of_the_epoch_that_is_prepared(tmp_path: Path) -> None:
    rows = appends("rows", {"id": pa.int64(), "at": pa.int64()}, watermark=("at", 1))
    with Pipeline({"counts": rows.groupBy("id").count()}, tmp_path) as pipeline:
        pipeline.step({"rows": [{"id": 1, "at": 10}]})
        (pipeline._contents or {})["counts"]._consolidated = None
        with pipeline.prepare({"rows": [{"id": 2, "at": 20}]}) as prepared:
            assert prepared.opened is not None
            ticks = [state.context.tick for state in prepared.opened.states.values()]
            assert pipeline.contents("counts").to_pylist() == [((1, 1), 1)]
            assert [state.context.tick for state in prepared.opened.states.values()] == ticks
            assert [tick.watermark_us for tick in ticks] == [19]
