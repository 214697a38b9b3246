"""Random queries of a directory that are changed, closed and opened again, over the sources of `pipeline_plans`.

The laws: run P to E, change to Q, close, open, continue to F: views hold what a pipeline in memory holds that ran Q from the
start over the rows that were accepted, and outputs that continued add up to them. `diff` is the difference of two batch
queries. Changed back to P by `evolve`, closed and opened again, it is P's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from property_tests.bags import bag_of
from property_tests.evolving import Outcome, drawn_queries, is_refusal
from property_tests.laws import LawBrokenError
from property_tests.pipeline_plans import Rows, drawn_steps, drawn_view
from zset_join.core.errors import SinkError, StateError
from zset_join.core.relation import Relation, adds_columns
from zset_join.evolution.differences import PlanDiff
from zset_join.expressions import col
from zset_join.pipeline import Pipeline, View
from zset_join.sinks.sink import SinkProgress, check_adds_columns
from zset_join.zset import ZSet

__all__ = ["changed_directories_hold"]


class Lasting:
    """An output that outlasts the pipelines that write to it: the sum of its epochs."""

    def __init__(self) -> None:
        self.rows: Counter[Any] = Counter()
        self.output: Relation | None = None
        self._last: int | None = None

    def open(self, output: Relation, query_id: str, *, may_lack_columns: bool = False) -> None:  # noqa: ARG002 - as any sink
        """Attach to a query; columns come only where they may."""
        if self.output is not None and self.output.schema.names != output.schema.names and not may_lack_columns:
            raise SinkError("the output has other columns", code="SINK_SCHEMA")
        self.alter(output)

    def check_altered(self, output: Relation) -> None:
        """Reject changes other than added columns."""
        assert self.output is not None
        before = self.output
        check_adds_columns("the output", before.schema, output.schema, before.primary_key, output.primary_key)

    def alter(self, output: Relation) -> None:
        """Give the rows that are present NULL in the new columns."""
        more = 0 if self.output is None else len(output.schema) - len(self.output.schema)
        self.rows = Counter({(*row, *[None] * more): weight for row, weight in self.rows.items()})
        self.output = output

    def last_epoch(self) -> int | None:
        """Return the last epoch."""
        return self._last

    def write(self, epoch: int, chunks: Iterable[ZSet]) -> SinkProgress:
        """Add the rows of an epoch."""
        for chunk in chunks:
            for row, weight in chunk.to_pylist():
                self.rows[row] += weight
        self._last = epoch
        return SinkProgress(epoch, 0, 0, 0.0)

    def close(self) -> None:
        """Stay."""


def changed_directories_hold(seed: int, outcome: Outcome, place: Path) -> None:
    """Change a random query of a directory to another one and back.

    Raises:
        LawBrokenError: a law is broken.
    """
    rng = np.random.default_rng([seed, 4])
    before, after = drawn_queries(rng, seed)
    if rng.random() < 0.25:
        one = drawn_view(seed, depth=3)
        before, after = {"a": one.select("k", "s", "n")}, {"a": one.select("k", "s", "n", more=col("n") + 1)}
    steps, at, keeps = drawn_steps(seed, epochs=6), int(rng.integers(1, 4)), bool(rng.random() < 0.5)
    outputs: dict[str, Lasting] = {name: Lasting() for name in before}
    accepted: list[Rows] = []
    pipeline = Pipeline(before, place, keep_inputs=keeps, outputs=outputs)
    try:
        _go_on(pipeline, steps[:at], accepted)
        there = {source.name for source in pipeline.plan.sources}
        if not _changed(pipeline, before, after, accepted, outputs, outcome, f"seed {seed}"):
            return
        pipeline.close()
        pipeline = Pipeline(after, place, keep_inputs=keeps, outputs=outputs)
        _compare(pipeline, after, accepted, outputs, outcome, f"seed {seed}, opened again")
        common = {source.name for source in pipeline.plan.sources} & there
        _go_on(pipeline, steps[at:], accepted, only=common)
        _compare(pipeline, after, accepted, outputs, outcome, f"seed {seed}, gone on")
        if not _changed(pipeline, after, before, accepted, outputs, outcome, f"seed {seed}, back"):
            return
        outcome.returned += 1
        pipeline.close()
        pipeline = Pipeline(before, place, keep_inputs=keeps, outputs=outputs)
        _compare(pipeline, before, accepted, outputs, outcome, f"seed {seed}, back and opened again")
    finally:
        pipeline.close()


def _go_on(pipeline: Pipeline[Any], steps: Iterable[Rows], accepted: list[Rows], only: set[str] | None = None) -> None:
    for step in steps:
        known = {name: one for name, one in step.items() if name in pipeline.sources and (only is None or name in only)}
        accepted.append(known)
        pipeline.step(known)


def _changed(
    pipeline: Pipeline[Any],
    before: Mapping[str, View],
    after: Mapping[str, View],
    accepted: list[Rows],
    outputs: dict[str, Lasting],
    outcome: Outcome,
    what: str,
) -> bool:
    """Change a query; return whether it was not refused."""
    try:
        expected = pipeline.diff(after)
    except StateError as error:
        if not is_refusal(error):
            raise
        outcome.refused += 1
        return False
    _check_batches(expected, before, after, accepted, what)
    new = {name: Lasting() for name in after if name not in outputs or _replaces(pipeline, after, name)}
    pipeline.evolve(after, outputs=new or None)
    accepted.append({})
    kept = {name: sink for name, sink in outputs.items() if name in after}
    outputs.clear()
    outputs.update({**kept, **new})
    outcome.evolved += 1
    outcome.kept += len(expected.kept)
    outcome.rebuilt += len(expected.rebuilt)
    return True


def _replaces(pipeline: Pipeline[Any], after: Mapping[str, View], name: str) -> bool:
    """Return whether an output cannot continue with the rows of a changed view."""
    old, new = pipeline.plan.output_of(name), Pipeline(after).plan.output_of(name)
    same = (old.schema.names, old.schema.types) == (new.schema.names, new.schema.types)
    return old.primary_key != new.primary_key or not (same or adds_columns(old.schema, new.schema))


def _batch(query: Mapping[str, View], accepted: list[Rows]) -> dict[str, Counter[Any]]:
    with Pipeline(query) as fresh:
        for step in accepted:
            fresh.step({name: one for name, one in step.items() if name in fresh.sources})
        return {name: bag_of(fresh.contents(name)) for name in query}


def _check_batches(
    diff: PlanDiff, before: Mapping[str, View], after: Mapping[str, View], accepted: list[Rows], what: str
) -> None:
    old, new = _batch(before, accepted), _batch(after, accepted)
    for name, view in diff.views.items():
        one, other = old.get(name, Counter()), new.get(name, Counter())
        removed, added = (one, other) if view.status in ("columns", "added", "dropped") else (one - other, other - one)
        if (bag_of(view.removed), bag_of(view.added)) != (removed, added):
            raise LawBrokenError(f'{what}: the difference of view "{name}" is not that of two batch queries\n{diff}')


def _compare(
    pipeline: Pipeline[Any],
    query: Mapping[str, View],
    accepted: list[Rows],
    outputs: Mapping[str, Lasting],
    outcome: Outcome,
    what: str,
) -> None:
    for name, wanted in _batch(query, accepted).items():
        outcome.rows += len(wanted)
        if bag_of(pipeline.contents(name)) != wanted:
            raise LawBrokenError(f'{what}: view "{name}" is {bag_of(pipeline.contents(name))}, not {wanted}')
        if Counter({row: n for row, n in outputs[name].rows.items() if n}) != wanted:
            raise LawBrokenError(f'{what}: the output of view "{name}" adds up to {outputs[name].rows}, not {wanted}')
