"""A query that keeps only the columns it reads emits what the whole query emits; planted bugs are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from property_tests.bags import text_bag_of
from property_tests.pipeline_plans import drawn_steps, drawn_view
from zset_join.core.errors import StateError, ZsetJoinError
from zset_join.pipeline import Pipeline, View, appends
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.plan import columns_kept
from zset_join.plan.passes import prune_columns
from zset_join.stages.aggregate import AggregateStage
from zset_join.stages.join import JoinStage

_SEEDS = 36


def narrow_view(seed: int) -> View:
    """Return a random view of which a selection or a group reads a part."""
    view = drawn_view(seed, depth=4)
    names = view.columns
    if seed % 3 == 0:
        return view.groupBy(names[seed % len(names)]).agg(F.count("*").alias("how_many"))
    return view.select(*[name for at, name in enumerate(names) if (at + seed) % 3 == 0] or names[:1])


def compared(seed: int) -> int:
    """Return how many columns are omitted from a query that answers as the whole one does.

    Raises:
        AssertionError: it does not.
    """
    view = narrow_view(seed)
    whole, narrow = Pipeline(view), Pipeline(view, keep_state="needed", keep_inputs=True)
    dropped = columns_kept.unread_of_sources(narrow.plan)
    if not dropped:
        return 0
    for epoch, step in enumerate(drawn_steps(seed)):
        rows = {name: given for name, given in step.items() if name in whole.sources}
        expected, actual = text_bag_of(whole.step(rows)), text_bag_of(narrow.step(rows))
        assert actual == expected, f"seed {seed}, epoch {epoch}: {actual} instead of {expected}"
    assert narrow.verify().equal, f"seed {seed}: {narrow.verify()}"
    return sum(map(len, dropped.values()))


def test_a_query_that_keeps_what_it_reads_emits_what_the_whole_one_emits() -> None:
    assert sum(compared(seed) for seed in range(_SEEDS)) >= 24


def _without(kind: Any, forgets: Callable[[frozenset[str]], frozenset[str]]) -> Any:
    original = kind.needs

    def needs(self: Any, shown: Any) -> Any:
        return tuple(None if one is None else forgets(one) for one in original(self, shown))

    return needs


@pytest.mark.parametrize(
    ("place", "name", "bug"),
    [
        (JoinStage, "needs", _without(JoinStage, lambda one: frozenset(sorted(one)[1:]))),
        (AggregateStage, "needs", _without(AggregateStage, lambda one: frozenset(sorted(one)[:-1]))),
        (prune_columns, "_kept_always", lambda node: set()),
    ],
)
def test_a_pass_that_forgets_what_is_read_is_found(place: Any, name: str, bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, name, bug)

    with pytest.raises((AssertionError, KeyError, ZsetJoinError)):
        sum(map(compared, range(_SEEDS)))


def shown_alike(seed: int) -> int:
    """Return how many columns `explain` shows as kept for later changes, of a query without unions.

    Raises:
        AssertionError: they are not those by which its stages are wider than with `keep_state="needed"`.
    """
    whole, narrow = (narrow_view(seed).plan(keep_state=one) for one in ("all", "needed"))
    shown = columns_kept.unread_of_stages(whole)
    if any(len(feeds) > 1 for node in whole.nodes for feeds in node.feeds) or len(whole.views[0].feeds) > 1:
        return 0
    if [node.name for node in whole.nodes] != [node.name for node in narrow.nodes]:  # a group is fed sums of both sides
        return 0
    for node, other in zip(whole.nodes, narrow.nodes, strict=True):
        for place, (given, less) in enumerate(zip(node.stage.inputs, other.stage.inputs, strict=True)):
            names = [name for name in given.relation.schema.names if name not in less.relation.schema.names]
            found = shown.get(node.number, ((),) * len(node.feeds))[place]
            assert list(found) == (names if place in node.stage.inputs_kept else []), f"seed {seed}, {node.name}: {found}"
    return sum(len(names) for inputs in shown.values() for names in inputs)


def test_the_columns_shown_as_kept_for_later_are_those_that_the_narrow_plan_has_not() -> None:
    assert sum(map(shown_alike, range(2 * _SEEDS))) >= 36


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("_identity", lambda relation: set()),
        ("_left_out", lambda step, wanted: frozenset(name for name, _ in step.columns)),
        ("columns_before", lambda step, after: frozenset(after)),
    ],
)
def test_a_wrong_list_of_columns_kept_for_later_is_found(name: str, bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_kept, name, bug)

    with pytest.raises(AssertionError):
        sum(map(shown_alike, range(2 * _SEEDS)))


def test_a_change_that_reads_a_dropped_column_is_refused_and_changes_nothing() -> None:
    clicks = appends("clicks", {"user": pa.int64(), "page": pa.string(), "note": pa.string()})
    pipeline = Pipeline(clicks.groupBy("user").count(), keep_state="needed", keep_view=False)
    pipeline.step({"clicks": [{"user": 1, "page": "a", "note": "x"}]})

    with pytest.raises(StateError, match=r"EVOLVE_DROPPED.*'page'.*keep_state=\"all\""):
        pipeline.evolve(clicks.groupBy("user", "page").count())

    assert columns_kept.unread_of_sources(pipeline.plan) == {"clicks": ("page", "note")}


def test_a_change_of_a_group_without_pairs_names_the_column_that_is_not_kept() -> None:
    joined = appends("a", "k BIGINT, note BIGINT").join(appends("b", "k BIGINT"), "k")
    pipeline = Pipeline(joined.groupBy("k").count(), keep_state="needed")
    pipeline.step({"a": [{"k": 1, "note": 3}]})

    with pytest.raises(StateError, match=r"EVOLVE_DROPPED.*'note'.*keep_state=\"all\""):
        pipeline.evolve(joined.groupBy("k").agg(F.sum("note").alias("s")))
