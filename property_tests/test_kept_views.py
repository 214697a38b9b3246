"""What a pipeline keeps of its view is the sum of its deltas, whenever it is read, and by whichever thread."""

from __future__ import annotations

import decimal
import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from property_tests.bank import bank_views
from property_tests.laws import LawBrokenError
from property_tests.pipeline_plans import drawn_steps, drawn_view
from property_tests.profiles import HUNT, profile_name
from property_tests.test_readers import beside, check
from zset_join.core.errors import BadInputError, StateError
from zset_join.core.options import HotBudget
from zset_join.pipeline import Pipeline, View, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as users write it
from zset_join.runners.local import contents as kept
from zset_join.runners.local import durable, stored_rows
from zset_join.runners.local.contents import Contents, HeldRows
from zset_join.runners.local.history import view_rows
from zset_join.runners.local.stored_rows import ListedGroups, list_view
from zset_join.stages.stage import StageOptions
from zset_join.zset import ZSet

PLANS = {"push": 12, "scout": 200, "nightly": 2_000}
EXAMPLES = {"push": 12, "scout": 60, "nightly": 400}
OPENED_AGAIN = 3
"""Before which epoch a directory is closed and opened again."""
LITTLE = mock.patch.object(kept, "_LEAST_ROWS", 2)
COLUMNS = {
    "k": pa.int64(),
    "f": pa.float64(),
    "s": pa.string(),
    "d": pa.decimal128(20, 2),
    "n": pa.list_(pa.struct({"a": pa.float32(), "b": pa.string()})),
}
VALUES: dict[str, Sequence[Any]] = {
    "k": [None, 0, 1],
    "f": [None, float("nan"), 0.0, -0.0, 1.5],
    "s": [None, "", "a", "long " * 9],
    "d": [None, decimal.Decimal("0.00"), decimal.Decimal("-12.34"), decimal.Decimal("999999999999999999.99")],
    "n": [None, [], [None], [{"a": -0.0, "b": None}], [{"a": float("nan"), "b": "x"}, {"a": 1.0, "b": ""}]],
}


def bag(rows: ZSet) -> Counter[str]:
    """Return rows by their text, in which NaN equals itself and -0.0 is not 0.0; each once, with a weight that is not 0."""
    lines = [(repr(row), weight) for row, weight in rows.to_pylist()]
    if len(_of_equal(Counter(dict(lines)))) < len(lines) or not all(weight for _, weight in lines):
        raise LawBrokenError(f"what is kept is not consolidated: {lines}")
    return Counter(dict(lines))


def _equal(row: str) -> str:
    return re.sub(r"-0\.0\b", "0.0", row)


def _of_equal(rows: Counter[str]) -> Counter[str]:
    """Return the weights of rows by what they are equal to: 0.0 is -0.0."""
    sums = Counter[str]()
    for row, weight in rows.items():
        sums[_equal(row)] += weight
    return sums


def add(expected: Counter[str], answer: ZSet) -> None:
    """Add an answer to a sum, in which a row stays, at any weight, while there are equal ones: these may be shown as it."""
    for row, weight in answer.to_pylist():
        expected[repr(row)] += weight
    sums = _of_equal(expected)
    for gone in [one for one in expected if not sums[_equal(one)]]:
        del expected[gone]


def same(found: ZSet, expected: Counter[str], what: str) -> None:
    """Compare rows with a sum: equal rows are one row, with the bits of one of them."""
    there = bag(found)
    if _of_equal(there) != _of_equal(expected) or not there.keys() <= expected.keys():
        raise LawBrokenError(f"{what}: expected {expected - there} and not {there - expected}")


@dataclass
class Reading:
    """Read a pipeline in one of the ways there are after each of its epochs, and compare it with the sum of its answers."""

    pipeline: Pipeline[ZSet]
    expected: Counter[str] = field(default_factory=Counter)
    held: list[tuple[HeldRows, Counter[str], int]] = field(default_factory=list)

    def step(self, rows: Any, way: str, number: int) -> None:
        """Take an epoch and read: `no`, `now`, `hold` what there is, or read what was held (`late`)."""
        add(self.expected, self.pipeline.step(rows, processing_time=number))
        if way == "now":
            same(self.pipeline.contents(), self.expected, f"after epoch {number}")
        if way == "hold":
            (one,) = self.pipeline.snapshot()._held.values()
            self.held.append((one, self.expected.copy(), number))
        if way == "late":
            self.finish()

    def finish(self) -> None:
        while self.held:
            one, expected, number = self.held.pop()
            same(one.rows(), expected, f"what was held after epoch {number}")


def read_in_all_ways(view: View, steps: Iterable[Any], ways: Sequence[str], folder: Path | None = None, **options: Any) -> int:
    """Return how many rows the view has in the end."""
    opened = partial(Pipeline, view, folder, threads=2 if ways[0] == "hold" else 1, **options)
    with LITTLE, ExitStack() as stack:
        pipeline = stack.enter_context(opened())
        reading = Reading(pipeline)
        for number, (step, way) in enumerate(zip(steps, ways, strict=True)):
            if folder is not None and number == OPENED_AGAIN:
                pipeline.close()
                reading.finish()  # its files are there until the next epoch
                pipeline = reading.pipeline = stack.enter_context(opened())
                if way == "now":
                    same(pipeline.contents(), reading.expected, "opened again")
            reading.step({name: one for name, one in step.items() if name in pipeline.sources}, way, number)
        if ways[-1] != "no":
            reading.finish()
        same(pipeline.contents(), reading.expected, "in the end")
    reading.finish()  # what is held is there after the pipeline
    return len(_of_equal(reading.expected))


def law_of(name: str) -> Callable[[], None]:
    """Return the law for one of `VIEWS`."""

    @given(st.lists(EPOCH, min_size=1, max_size=8))
    def law(epochs: Sequence[Any]) -> None:
        read_in_all_ways(VIEWS[name](), legal(epochs), [way for *_, way in epochs])

    return law


def ways_of(seed: int) -> list[str]:
    return [("no", "hold", "now", "no", "late")[(seed >> 3 * at) % 5] for at in range(6)]


@pytest.mark.parametrize("lasts", [False, True], ids=["in memory", "in a directory"])
def test_a_kept_view_is_the_sum_of_its_deltas_in_any_plan(tmp_path: Path, lasts: bool) -> None:
    rows = 0
    for seed in range(PLANS[profile_name()]):
        view, steps = drawn_view(seed), drawn_steps(seed)
        folder, kept_state = tmp_path / str(seed) if lasts else None, "needed" if seed % 2 else "all"
        rows += read_in_all_ways(view, steps, ways_of(seed * 7919), folder, keep_state=kept_state)

    assert rows > 20


def sources() -> tuple[View, View]:
    """Return upserts with all kinds of values, and a bag of them."""
    return changes("rows", {"id": pa.int64(), **COLUMNS}, keys="id"), changes("copies", COLUMNS)


VIEWS: dict[str, Callable[[], View]] = {
    "join": lambda: sources()[0].join(sources()[1], "k"),
    "left": lambda: sources()[0].join(sources()[1], "k", "left"),
    "full": lambda: sources()[0].join(sources()[1], "k", "full"),
    "semi": lambda: sources()[1].join(sources()[0], "k", "semi"),
    "anti": lambda: sources()[1].join(sources()[0], "k", "anti", null_safe=True),
    "rows made alike": lambda: sources()[0].join(sources()[1].select("k"), "k").select("s", "n"),
    "union": lambda: sources()[0].select("f", "s").distinct().union(sources()[1].select("f", "s").distinct()),
    "distinct": lambda: sources()[1].distinct(),
    "groups": lambda: (
        sources()[0]
        .groupBy("f", "s")
        .agg(F.sum("d").alias("d"), F.max("f").alias("m"), F.min("s").alias("n"), F.count().alias("c"))
    ),
    "one group": lambda: sources()[1].agg(F.sum("f").alias("f"), F.min("f").alias("m"), F.count_distinct("s").alias("c")),
    "source": lambda: sources()[1].where("k IS NOT NULL"),
}
ROW = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in VALUES.items()})
EPOCH = st.tuples(
    st.lists(st.tuples(st.integers(0, 3), ROW, st.booleans()), max_size=4),
    st.lists(st.tuples(st.integers(0, 5), ROW, st.integers(-2, 3)), max_size=4),
    st.sampled_from(["no", "no", "now", "hold", "late"]),
)


def legal(epochs: Sequence[Any]) -> list[dict[str, ZSet]]:
    """Return the changes of epochs: upserts with deletes, and rows of the bag, retracted no more often than there."""
    upserts, copies = (view.bindings[0].source.relation.schema for view in sources())
    there: list[Counter[str]] = [Counter()]
    steps = []
    for rows, more, _ in epochs:
        weights = []
        for _, row, weight in more:
            weight = max(weight, -there[0][repr(row)])
            there[0][repr(row)] += weight
            weights.append(weight)
        made = [{"id": number, **row} for number, row, _ in rows]
        steps.append(
            {
                "rows": ZSet(
                    pa.RecordBatch.from_pylist(made, schema=upserts),
                    np.array([1 if stays else -1 for *_, stays in rows], np.int64),
                ),
                "copies": ZSet(
                    pa.RecordBatch.from_pylist([row for _, row, _ in more], schema=copies), np.array(weights, np.int64)
                ),
            }
        )
    return steps


@pytest.mark.parametrize("name", VIEWS)
def test_a_kept_view_of_any_value_is_the_sum_of_its_deltas(name: str) -> None:
    settings(max_examples=EXAMPLES[profile_name()])(law_of(name))()


def _later_is_now(moment: Any) -> tuple[ZSet | None, list[ZSet]]:
    while moment.rows is None and moment.following is not None:
        moment = moment.following
    return moment.rows, []


def _forgets_to_stop(contents: Contents) -> None:
    rows = contents._listing.rows()  # type: ignore[union-attr]
    contents._consolidated, contents._pending, contents._newest.rows = rows, [], rows


BUGS: dict[str, tuple[Any, str, Any, str]] = {
    "what is held is read as it is now": (kept, "_from", _later_is_now, "left"),
    "copies of input rows are weights": (
        stored_rows,
        "ListedGroups",
        lambda operator, relation, **_: ListedGroups(operator, relation, keeps_copies=True),
        "distinct",
    ),
    "rows made alike stay apart": (stored_rows, "emits_distinct_rows", lambda *_: True, "rows made alike"),
    "the newest rows are those of a moment for ever": (Contents, "keep", _forgets_to_stop, "join"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_law_finds_a_view_that_is_read_wrongly(bug: str) -> None:
    owner, name, planted, view = BUGS[bug]
    with mock.patch.object(owner, name, planted), pytest.raises(LawBrokenError):
        HUNT(law_of(view))()


@pytest.mark.parametrize("name", VIEWS)
def test_what_state_can_list_is_listed(name: str) -> None:
    with Pipeline(VIEWS[name]()) as pipeline:
        assert pipeline._memory is not None
        listed = list_view(pipeline.plan, pipeline.plan.view(), pipeline._memory.operators, pipeline._options)

    assert listed is not None


@pytest.mark.parametrize("times", [200, pytest.param(50_000, marks=[pytest.mark.long, pytest.mark.timeout(0)])])
def test_a_reader_beside_the_writer_gets_one_epoch_of_views_that_are_listed(times: int) -> None:
    with LITTLE, Pipeline(bank_views()) as pipeline:
        seen, held = set[int | None](), list[Any]()

        def read() -> None:
            held.append(pipeline.snapshot())
            if len(held) > 3:
                check(one := held.pop(0))
                seen.add(one.epoch)

        epochs = beside(pipeline, read, times, seen)
        check(pipeline.snapshot())

    assert len(seen) > 3
    assert epochs > 10


def test_a_held_moment_keeps_no_more_deltas_than_the_view_has_rows() -> None:
    view = VIEWS["join"]()
    with LITTLE, Pipeline(view) as pipeline:
        for epoch in range(3):
            pipeline.step(_pairs(epoch))
        snapshot = pipeline.snapshot()
        contents = pipeline._contents[pipeline.views[0]]  # type: ignore[index]
        listed = mock.Mock(side_effect=contents._listing.rows)  # type: ignore[union-attr]
        contents.list_by(replace(contents._listing, rows=listed))  # type: ignore[type-var]
        for epoch in range(3, 40):
            pipeline.step(_pairs(epoch))
        followed, moment = 0, snapshot._held[pipeline.views[0]]._read.args[0]  # type: ignore[union-attr]
        while moment.following is not None:
            followed, moment = followed + len(moment.delta), moment.following

        assert followed < 12
        assert listed.call_count < 5
        assert snapshot.table().num_rows == 3


def _pairs(epoch: int) -> dict[str, Any]:
    row = {"k": epoch, "f": None, "s": None, "d": None, "n": None}
    return {"rows": [{"id": epoch, **row}], "copies": [row]}


def test_a_pipeline_that_was_interrupted_lists_nothing() -> None:
    with LITTLE:
        pipeline = Pipeline(VIEWS["join"]())
        for epoch in range(4):
            pipeline.step(_pairs(epoch))
        before = pipeline.snapshot()
        with mock.patch.object(pipeline._engine, "take", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            pipeline.step(_pairs(4))

        with pytest.raises(StateError, match="interrupted"):
            pipeline.contents()
        with pytest.raises(StateError, match="interrupted"):
            before.contents()
        pipeline.close()
        with pytest.raises(StateError, match="closed"):
            pipeline.contents()


@pytest.mark.parametrize("name", ["join", "groups"])
def test_views_that_were_not_read_are_read_after_close_and_after_a_step_that_was_refused(name: str) -> None:
    with LITTLE, Pipeline(VIEWS[name]()) as pipeline:
        reading = Reading(pipeline)
        for epoch in range(4):
            reading.step({source: rows for source, rows in _pairs(epoch).items() if source in pipeline.sources}, "no", epoch)
        with pytest.raises(BadInputError):
            pipeline.step({"rows": [{"id": 9, "k": "no number"}]})
        refused = pipeline.snapshot()
    same(pipeline.contents(), reading.expected, "after close")
    same(refused.contents(), reading.expected, "held")
    same(pipeline.snapshot().contents(), reading.expected, "taken after close")


@pytest.mark.parametrize("lasts", [False, True], ids=["in memory", "in a directory"])
def test_closing_and_opening_read_no_view(tmp_path: Path, lasts: bool) -> None:
    with LITTLE:
        pipeline, reads = Pipeline(VIEWS["join"](), tmp_path if lasts else None), mock.Mock(side_effect=view_rows)
        reading = Reading(pipeline)
        for epoch in range(4):
            reading.step(_pairs(epoch), "hold" if epoch == 1 else "no", epoch)
        with mock.patch.object(durable, "view_rows", reads), mock.patch.object(Contents, "keep", side_effect=AssertionError):
            pipeline.close()
            again = Pipeline(VIEWS["join"](), tmp_path) if lasts else pipeline
            again.close()

        assert not reads.called
        reading.finish()
        for closed in (pipeline, again):
            same(closed.contents(), reading.expected, "after close")
            assert closed._contents[closed.views[0]]._listing is None  # type: ignore[index]


def test_a_view_that_was_not_read_is_gone_with_the_files_of_its_directory(tmp_path: Path) -> None:
    with LITTLE:
        pipeline = Pipeline(VIEWS["join"](), tmp_path)
        for epoch in range(4):
            pipeline.step(_pairs(epoch))
        pipeline.close()
        again = Pipeline(VIEWS["join"](), tmp_path)  # has no epoch of its own
        again.close()
        shutil.rmtree(tmp_path / "zset")

        for closed in (pipeline, again):
            with pytest.raises(StateError, match="was not read before this pipeline was closed"):
                closed.contents()


def test_closing_releases_the_states_that_no_unread_view_is_listed_from() -> None:
    join = VIEWS["join"]()
    with LITTLE:
        pipeline = Pipeline({"groups": join.groupBy("k").agg(F.count().alias("n"))})
        for epoch in range(4):
            pipeline.step(_pairs(epoch))
        assert pipeline._memory is not None
        states = pipeline._memory.states
        pipeline.close()

        assert [state for state in states if not _is_open(states[state])] == [0]
        assert pipeline.view("groups").num_rows == 4


def _is_open(operator: Any) -> bool:
    try:
        return bool(operator.absorbed_epoch)
    except StateError:
        return False


def test_groups_that_get_a_budget_are_summed_from_then_on(tmp_path: Path) -> None:
    view, first = VIEWS["distinct"]().groupBy("k").agg(F.count().alias("n")), 0
    budget = StageOptions(table_budget=HotBudget(max_hot_keys=1))
    reading: Any = None
    for options in (None, budget, None):
        with LITTLE, Pipeline(view, tmp_path, options=options) as pipeline:
            reading = Reading(pipeline) if reading is None else reading
            reading.pipeline = pipeline
            for epoch in range(first, first + 4):
                reading.step({"copies": _pairs(epoch)["copies"]}, "no", epoch)
            same(pipeline.contents(), reading.expected, f"opened at epoch {first}")
        first += 4


def test_views_go_on_over_changes_of_the_query_and_saved_states(tmp_path: Path) -> None:
    with LITTLE:
        join, other = VIEWS["join"](), VIEWS["join"]().select("id")
        pipeline = Pipeline({"join": join})
        for epoch in range(4):
            pipeline.step(_pairs(epoch))
        early = pipeline.snapshot()
        pipeline.evolve({"join": join, "ids": other})
        pipeline.step(_pairs(4))
        pipeline.step(_pairs(5))
        held = pipeline.snapshot()
        pipeline.evolve({"ids": other})
        pipeline.undo()
        pipeline.save(tmp_path / "saved")
        for epoch in range(6, 10):
            pipeline.step(_pairs(epoch))
        late = pipeline.snapshot()
        pipeline.load(tmp_path / "saved")

        rows = [early.table("join").num_rows, *(held.table(name).num_rows for name in ("join", "ids"))]
        assert rows == [4, 6, 6]
        assert [late.table(name).num_rows for name in ("join", "ids")] == [10, 10]
        assert [pipeline.view(name).num_rows for name in ("join", "ids")] == [6, 6]


def test_a_thread_that_waits_for_a_view_gets_it_from_the_writer() -> None:
    with LITTLE, Pipeline(VIEWS["join"]()) as pipeline:
        for epoch in range(4):
            pipeline.step(_pairs(epoch))
        snapshot, found = pipeline.snapshot(), list[int]()
        reader = threading.Thread(target=lambda: found.append(snapshot.table().num_rows))
        with pipeline._watching.lock:
            reader.start()
            for epoch in range(4, 1_000):
                pipeline.step(_pairs(epoch))
                reader.join(0.01)
                if found:
                    break
        reader.join()

        assert found == [4]
