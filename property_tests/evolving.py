"""Random queries that are changed while they run, over the sources of `pipeline_plans`.

The laws: a pipeline that ran P up to epoch E and then Q holds what one holds that ran Q from the start over the rows that were
accepted; so it continues. The rows before plus the difference are the rows after; `diff` lists what `evolve` does. Stages that
both queries have keep their operator, which does not run. Back to P it holds what a pipeline holds that was never changed.
What is refused has changed nothing. Of joins whose type, condition and filters are changed (`changed_joins_hold`), a change is
refused only where a row with NULL in a key came (of a changelog: lives) that an earlier join dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from property_tests.bags import bag_of
from property_tests.laws import LawBrokenError
from property_tests.pipeline_plans import Rows, drawn_steps, drawn_view, sources
from zset_join.core.errors import StateError
from zset_join.evolution.differences import PlanDiff
from zset_join.expressions import col, left, right
from zset_join.pipeline import Pipeline, View
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.plan.fingerprints import Fingerprints
from zset_join.zset import ZSet

__all__ = [
    "Outcome",
    "References",
    "change_query",
    "changed_joins_hold",
    "changed_queries_hold",
    "compare_views",
    "drawn_queries",
    "is_refusal",
    "kept_do_not_run",
]

_REFUSED = {"EVOLVE_NO_ROWS", "EVOLVE_SOURCE"}
_REFUSED_BY_TIME = {*_REFUSED, "EVOLVE_BY_TIME", "EVOLVE_JOURNAL"}


@dataclass
class Outcome:
    """Count what random changes came to."""

    evolved: int = 0
    refused: int = 0
    kept: int = 0
    rebuilt: int = 0
    returned: int = 0
    rows: int = 0
    codes: Counter[str] = field(default_factory=Counter)


class References:
    """Run queries from the start over the rows that were accepted, each once: they are fed all later epochs when they are read.

    Args:
        accepted: the epochs so far; it grows.
        feed: gives a pipeline the epoch of a number.
    """

    def __init__(self, accepted: list[Rows], feed: Callable[[Pipeline[Any], int, Rows], object] | None = None) -> None:
        self._accepted = accepted
        self._feed = feed or (lambda fresh, _, rows: fresh.step(rows))
        self._running: dict[int, tuple[Mapping[str, View], Pipeline[Any], int]] = {}

    def of(self, query: Mapping[str, View]) -> Pipeline[Any]:
        """Return a query that has run from the start."""
        if id(query) not in self._running:
            self._running[id(query)] = (query, Pipeline(query), 0)
        _, fresh, fed = self._running[id(query)]
        for number, step in enumerate(self._accepted[fed:], fed):
            self._feed(fresh, number, {name: one for name, one in step.items() if name in fresh.sources})
        self._running[id(query)] = (query, fresh, len(self._accepted))
        return fresh

    def change(self) -> None:
        """Take an epoch without rows: that of a change."""
        self._accepted.append({})

    def close(self) -> None:
        """Release their state."""
        for _, fresh, _ in self._running.values():
            fresh.close()


def changed_queries_hold(seed: int, outcome: Outcome) -> None:
    """Change a random query to another one and back, at random epochs.

    Raises:
        LawBrokenError: a law is broken.
    """
    rng = np.random.default_rng([seed, 3])
    before, after = drawn_queries(rng, seed)
    steps = drawn_steps(seed, epochs=7)
    first, second = sorted(int(at) for at in rng.choice(np.arange(0, 7), 2, replace=False))
    keeps = bool(rng.random() < 0.5)
    pipeline = Pipeline(before, keep_inputs=keeps, keep_view=keeps or bool(rng.random() < 0.8))
    reads = not keeps and pipeline._contents is None
    accepted: list[Rows] = []
    references = References(accepted)
    query: Mapping[str, View] = before
    missed: set[str] = set()
    for number, step in enumerate(steps):
        if number in (first, second):
            wanted = after if number == first else before
            if change_query(
                pipeline, query, wanted, references, outcome, f"seed {seed}, before epoch {number}", reads_nothing=reads
            ):
                outcome.returned += number == second and query is after
                query = wanted
        known = {name: one for name, one in step.items() if name in pipeline.sources and name not in missed}
        missed |= {"bag"} & (step.keys() - known.keys())  # a later change may retract what was not taken
        accepted.append(known)
        pipeline.step(known)
        if not reads:
            compare_views(pipeline, query, references, outcome, f"seed {seed}, after epoch {number}")
    references.close()
    pipeline.close()


def drawn_queries(rng: np.random.Generator, seed: int) -> tuple[dict[str, View], dict[str, View]]:
    """Return two queries that have something in common."""
    one, other = drawn_view(seed, depth=4), drawn_view(seed + 1_000_000, depth=3)
    before = {"a": one, "b": other}
    match int(rng.integers(8)):
        case 0:
            after = {"a": one.where(col("n") > 1), "b": other}
        case 1:
            after = {"a": one.groupBy("k").agg(F.sum("n").alias("n"), F.count().alias("c")), "b": other}
            before = {"a": one.groupBy("k").agg(F.max("n").alias("n"), F.count().alias("c")), "b": other}
        case 2:
            before, after = {"a": one.join(other, on="k")}, {"a": one.join(other, on="k", how="left"), "c": other}
        case 3:
            after = {"a": one.select("k", "s", "n").union(other.select("k", "s", "n")), "b": other}
        case 4:
            after = {"b": other, "a": one, "c": one.join(other, on="k", how="full")}
        case 5:
            after = {"a": one}
        case 6:
            after = {"a": other, "b": one.select("k", "s", n=col("n") + 1)}
        case _:
            after = {"a": drawn_view(seed + 2_000_000, depth=4), "b": one}
    return (before, after) if rng.random() < 0.7 else (after, before)


def change_query(
    pipeline: Pipeline[Any],
    query: Mapping[str, View],
    wanted: Mapping[str, View],
    references: References,
    outcome: Outcome,
    what: str,
    *,
    reads_nothing: bool = False,
    by_time: bool = False,
    as_now: bool = False,
) -> PlanDiff | None:
    """Change a query; return the difference, None where it was refused.

    Args:
        pipeline: it.
        query: of it.
        wanted: the new query.
        references: both, from the start.
        outcome: counts.
        what: the case.
        reads_nothing: contents of views cannot be read.
        by_time: answers that follow from time may refuse it, too.
        as_now: as in `Pipeline.evolve`.

    Raises:
        LawBrokenError: a law is broken.
    """
    rows = {} if reads_nothing else {name: pipeline.contents(name) for name in pipeline.views}
    old, states, epoch = pipeline.plan, dict(pipeline._memory.states), pipeline.epoch  # type: ignore[union-attr]
    try:
        with _ran(states) as ran:
            expected = None if as_now else pipeline.diff(wanted)
            diff = pipeline.evolve(wanted, as_now=as_now)
    except StateError as error:
        if not is_refusal(error, by_time=by_time):
            raise
        outcome.refused += 1
        outcome.codes[error.code] += 1
        if pipeline.plan is not old or pipeline.epoch != epoch:
            raise LawBrokenError(f"{what}: refused ({error}), and changed all the same") from error
        return None
    if ran:
        raise LawBrokenError(f"{what}: kept operators of {ran} have run\n{diff}")
    if expected is not None and list(map(str, expected.views.values())) != list(map(str, diff.views.values())):
        raise LawBrokenError(f"{what}: diff listed\n{expected}\nand evolve did\n{diff}")
    _check_kept(old, pipeline, states, what)
    for name, before in rows.items():
        _check_sum(pipeline, diff, name, before, what)
    if epoch:
        references.change()
    outcome.evolved += 1
    outcome.kept += len(diff.kept)
    outcome.rebuilt += len(diff.rebuilt)
    if not reads_nothing:
        compare_views(pipeline, wanted, references, outcome, f"{what}, changed")
    return diff


@contextmanager
def _ran(states: Mapping[int, Any]) -> Iterator[set[str]]:
    """Note which of some operators are fed rows inside."""
    ours, ran = {id(operator) for operator in states.values()}, set[str]()
    classes = {type(operator) for operator in states.values()}
    originals = [(kind, name, getattr(kind, name)) for kind in classes for name in ("answer", "absorb", "restore")]

    def noting(name: str, original: Any) -> Any:
        def called(self: Any, *given: Any) -> Any:
            if id(self) in ours:
                ran.add(f"{type(self).__name__}.{name}")
            return original(self, *given)

        return called

    for kind, name, original in originals:
        setattr(kind, name, noting(name, original))
    try:
        yield ran
    finally:
        for kind, name, original in originals:
            setattr(kind, name, original)


@contextmanager
def kept_do_not_run(pipeline: Pipeline[Any], what: str) -> Iterator[None]:
    """Refuse that operators of a pipeline are fed rows inside.

    Raises:
        LawBrokenError: one was.
    """
    with _ran(pipeline._memory.states) as ran:  # type: ignore[union-attr]
        yield
    if ran:
        raise LawBrokenError(f"{what}: kept operators of {ran} have run")


def _check_kept(old: Any, pipeline: Pipeline[Any], states: Mapping[int, Any], what: str) -> None:
    """Compare the operators that a pipeline has with those that it must have kept."""
    before, after = Fingerprints(old), Fingerprints(pipeline.plan)
    there = {id(operator) for operator in states.values()}
    now = [number for number, operator in pipeline._memory.states.items() if id(operator) in there]  # type: ignore[union-attr]
    common = Counter(before.states.values()) & Counter(after.states.values())
    if len(now) != common.total():
        raise LawBrokenError(f"{what}: {common.total()} stages are the same, and {len(now)} operators were kept")


def _check_sum(pipeline: Pipeline[Any], diff: PlanDiff, name: str, before: ZSet, what: str) -> None:
    view = diff.views[name]
    rest = bag_of(before)
    rest.subtract(bag_of(view.removed))
    if view.status == "columns":
        if any(rest.values()):
            raise LawBrokenError(f'{what}: of view "{name}" {rest} is left under other columns')
        rest = Counter()
    rest.update(bag_of(view.added))
    now = bag_of(pipeline.contents(name)) if name in pipeline.views else Counter()
    if Counter({row: n for row, n in rest.items() if n}) != now:
        raise LawBrokenError(f'{what}: view "{name}" is {now}, not the rows before and the difference, {rest}\n{diff}')


def compare_views(
    pipeline: Pipeline[Any], query: Mapping[str, View], references: References, outcome: Outcome, what: str
) -> None:
    """Compare a pipeline with one that ran its query from the start."""
    fresh = references.of(query)
    for name in query:
        one, other = bag_of(pipeline.contents(name)), bag_of(fresh.contents(name))
        outcome.rows += len(one)
        if one != other:
            raise LawBrokenError(
                f'{what}: view "{name}" is {one - other} too much and lacks {other - one}\n{pipeline.explanation()}'
            )


def is_refusal(error: StateError, *, by_time: bool = False) -> bool:
    """Return whether an error refuses a change whose rows are absent; `by_time`: or whose answers follow from time."""
    return error.code in (_REFUSED_BY_TIME if by_time else _REFUSED)


_HOWS = ("inner", "inner", "left", "right", "full", "semi", "anti")
_CHANGES = 4


def changed_joins_hold(seed: int, outcome: Outcome) -> None:
    """Change a join a few times.

    Raises:
        LawBrokenError: a law is broken.
    """
    rng = np.random.default_rng([seed, 9])
    one, other = (list(sources().values())[int(at)] for at in rng.choice(4, 2, replace=False))
    nulls = bool(rng.random() < 0.6)
    steps = _without_some_nulls(drawn_steps(seed, epochs=2 * _CHANGES, rows=6, nulls=nulls), rng)
    on: Any = "k" if rng.random() < 0.7 else ["k", "s"]
    is_filtered, query = _drawn_join(rng, one, other, on)
    pipeline = Pipeline(query, keep_view=bool(rng.random() < 0.8))
    reads = pipeline._contents is None
    accepted: list[Rows] = []
    references = References(accepted)
    for number, step in enumerate(steps):
        if number % 2 and number > 1:
            will_be_filtered, wanted = _drawn_join(rng, one, other, on)
            what = f"seed {seed}, before epoch {number}"
            refused = outcome.codes["EVOLVE_NO_ROWS"]
            if change_query(pipeline, query, wanted, references, outcome, what, reads_nothing=reads):
                is_filtered, query = will_be_filtered, wanted
            elif not (nulls or is_filtered) and outcome.codes["EVOLVE_NO_ROWS"] > refused:
                raise LawBrokenError(f"{what}: refused, and no NULL has come\n{pipeline.explanation()}\n{wanted}")
        known = {name: rows for name, rows in step.items() if name in pipeline.sources}
        accepted.append(known)
        pipeline.step(known)
        if not reads:
            compare_views(pipeline, query, references, outcome, f"seed {seed}, after epoch {number}")
    references.close()
    pipeline.close()


def _drawn_join(rng: np.random.Generator, one: View, other: View, on: Any) -> tuple[bool, dict[str, View]]:
    """Return a query, and whether a condition drops rows before the join."""
    less = (left("k") == right("k")) & (left("n") < right("n"))
    how = _HOWS[int(rng.integers(len(_HOWS)))]
    is_filtered = bool(rng.random() < 0.15)
    if is_filtered:
        one = one.where(col("k").isNotNull())
    joined = one.join(other, less if rng.random() < 0.2 else on, how, null_safe=False)
    return is_filtered, {"a": joined.select("k", "s", "n")}


def _without_some_nulls(steps: list[Rows], rng: np.random.Generator) -> list[Rows]:
    """Return changes of which the bag loses all its rows with NULL in one epoch, or has none from one epoch on."""
    if rng.random() < 0.5:
        return steps
    at, live, made = int(rng.integers(1, 5)), Counter[tuple[Any, ...]](), list[Rows]()
    for number, step in enumerate(steps):
        step = dict(step)
        given = step.get("bag")
        lines = [] if given is None else list(zip(given.rows.to_pylist(), given.weights.tolist(), strict=True))
        if number >= at:
            lines = [(row, weight) for row, weight in lines if None not in row.values()]
        if number == at:
            lines += [(dict(row), -weight) for row, weight in live.items() if weight]
        for row, weight in lines:
            if None in row.values():
                live[tuple(row.items())] += weight
        if given is not None or lines:
            schema = sources()["bag"].bindings[0].source.relation.schema
            weights = np.array([weight for _, weight in lines], np.int64)
            step["bag"] = ZSet(pa.RecordBatch.from_pylist([row for row, _ in lines], schema=schema), weights)
        made.append(step)
    return made
