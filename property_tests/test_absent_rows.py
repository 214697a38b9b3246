"""A retraction of an absent row never shows in a view without a stage: the input's policy decides, whatever came before.

The model is a bag: where the copies of a row would fall below nothing in an epoch, insertions count first, then each retraction
that finds its copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zset_join.core.errors import BadInputError
from zset_join.pipeline import Pipeline, View, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users write it
from zset_join.plan import planner
from zset_join.stages import StageOptions

Change = tuple[int, int, int]

VIEWS: dict[str, tuple[Callable[[View], View], Callable[[int, int], list[tuple[int, ...]]]]] = {
    "table": (lambda t: t, lambda k, v: [(k, v)]),
    "where": (lambda t: t.where("v > 0"), lambda k, v: [(k, v)] * (v > 0)),
    "select": (lambda t: t.select("k"), lambda k, _: [(k,)]),
    "union": (lambda t: t.union(t), lambda k, v: [(k, v), (k, v)]),
    "union beside a group": (
        lambda t: t.select("k").union(t.groupBy("k").agg(F.count().alias("n")).where("n < 0").select("k")),
        lambda k, _: [(k,)],
    ),
}
EPOCHS = st.lists(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.sampled_from([1, 1, -1, 2, -2])), min_size=1, max_size=6),
    min_size=1,
    max_size=5,
)


def accepted(bag: Counter[tuple[int, int]], epoch: list[Change]) -> Counter[tuple[int, int]]:
    """Return the bag after an epoch."""
    after = Counter(bag)
    for k, v, w in epoch:
        after[k, v] += w
    for row in [row for row, copies in after.items() if copies < 0]:
        after[row] = bag[row]
        for k, v, w in sorted(epoch, key=lambda one: one[2] < 0):
            if (k, v) == row and after[row] + w >= 0:
                after[row] += w
    return +after


def check(name: str, epochs: list[list[Change]], *, directory: Path | None = None) -> None:
    view, rows_of = VIEWS[name]
    options = StageOptions(on_bad_input="quarantine")
    bag: Counter[tuple[int, int]] = Counter()
    given_out: Counter[tuple[int, ...]] = Counter()

    def opened() -> Pipeline:
        return Pipeline(view(changes("t", "k INT, v INT, w INT", weight_column="w")), options=options, directory=directory)

    pipeline = opened()
    for epoch in epochs:
        for row, weight in pipeline.step({"t": [dict(zip("kvw", one, strict=True)) for one in epoch]}).to_pylist():
            given_out[row] += weight
        bag = accepted(bag, epoch)
        expected: Counter[tuple[int, ...]] = Counter()
        for (k, v), copies in bag.items():
            for row in rows_of(k, v):
                expected[row] += copies
        assert {row: copies for row, copies in given_out.items() if copies} == dict(expected)
        assert Counter(tuple(one.values()) for one in pipeline.view().to_pylist()) == expected
        if directory is not None:
            pipeline.close()
            pipeline = opened()
    pipeline.close()


@pytest.mark.parametrize("name", VIEWS)
@given(epochs=EPOCHS)
def test_a_view_without_a_stage_is_the_query_over_what_its_input_accepted(name: str, epochs: list[list[Change]]) -> None:
    check(name, epochs)


@given(epochs=EPOCHS)
def test_the_copies_of_rows_are_there_when_a_directory_is_opened_again(epochs: list[list[Change]]) -> None:
    with TemporaryDirectory() as directory:
        check("where", epochs, directory=Path(directory))


@pytest.mark.parametrize("name", VIEWS)
def test_a_plan_that_counts_no_rows_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "count_rows", lambda root: root)

    with pytest.raises((AssertionError, BadInputError)):
        check(name, [[(1, 1, 1)], [(0, 1, -1), (1, 1, 1)]])


@pytest.mark.parametrize("name", VIEWS)
def test_by_default_the_epoch_fails_and_nothing_of_it_counts(name: str) -> None:
    with Pipeline(VIEWS[name][0](changes("t", "k INT, v INT, w INT", weight_column="w"))) as pipeline:
        pipeline.step({"t": [{"k": 1, "v": 1, "w": 1}]})
        before = pipeline.view()
        with pytest.raises(BadInputError, match=r'relation "t", epoch 1: .* weight -1') as refused:
            pipeline.step({"t": [{"k": 0, "v": 1, "w": -1}, {"k": 1, "v": 1, "w": 1}]})

        assert refused.value.code == "ABSENT_ROW"
        assert pipeline.view().equals(before)
