"""Joins whose type, condition and filters are changed again and again, over histories with NULL in their keys and without.

The law: as in `evolving`, and a change is refused only where a row with NULL in a key came (of a changelog: lives) that an
earlier join dropped. An inner join that is built from another one dropped the same rows.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa

from property_tests.evolving import Outcome, References, change_query, compare_views
from property_tests.laws import LawBrokenError
from property_tests.pipeline_plans import Rows, drawn_steps, sources
from zset_join.expressions import col, left, right
from zset_join.pipeline import Pipeline, View
from zset_join.zset import ZSet

__all__ = ["changed_joins_hold"]

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
