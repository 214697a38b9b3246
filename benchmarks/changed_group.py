"""A group changes behind a join: what `evolve` costs against a pipeline that is built again over the same rows.

    python -m benchmarks.changed_group --rows 4000000

Figures are CPU seconds of this process of one run of each: the change, the rebuild, and beside them the pairs of the join
listed once and the group loaded with them, each alone.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import pyarrow as pa

from zset_join.core.tick import Tick
from zset_join.operators.aggregate import Aggregate
from zset_join.operators.join import HashJoin
from zset_join.pipeline import Pipeline, appends, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs

__all__ = ["main", "measured"]


def _rows(count: int, people: int) -> dict[str, pa.Table]:
    rng = np.random.default_rng(42)
    orders = pa.table(
        {
            "id": np.arange(count),
            "who": rng.integers(0, people, count),
            "kind": rng.integers(0, 50, count),
            "total": rng.integers(0, 1000, count),
        }
    )
    return {"orders": orders, "people": pa.table({"who": np.arange(people), "city": np.arange(people) % 500})}


def measured(count: int) -> dict[str, Any]:
    """Return the CPU seconds of a change and of a rebuild, and their ratios.

    Args:
        count: rows of the larger side.
    """
    integers = {name: pa.int64() for name in ("id", "who", "kind", "total")}
    orders = appends("orders", integers)
    people = changes("people", {"who": pa.int64(), "city": pa.int64()}, keys="who")
    joined = orders.join(people, on="who")
    before = joined.groupBy("city").agg(F.sum("total").alias("t"))
    after = joined.groupBy("kind").agg(F.sum("total").alias("t"))
    rows, parts = _rows(count, max(1, count // 40)), dict[str, float]()
    with Pipeline(before) as pipeline:
        pipeline.step(rows)
        begun = time.process_time()
        diff = pipeline.evolve(after)
        change, view = time.process_time() - begun, pipeline.view()
        states: Any = pipeline._memory.states.values()  # type: ignore[union-attr]
        join, group = (next(one for one in states if isinstance(one, kind)) for kind in (HashJoin, Aggregate))
        begun = time.process_time()
        pairs = list(join.listed(group.inputs[0].schema.names))
        parts["pairing"] = time.process_time() - begun
        alone = Aggregate(group.inputs[0], ["kind"], group.calls)
        begun = time.process_time()
        for epoch, chunk in enumerate(pairs):
            alone.absorb(Tick(epoch), [chunk])
        parts["loading"] = time.process_time() - begun
    begun = time.process_time()
    with Pipeline(after) as fresh:
        fresh.step(rows)
        rebuild = time.process_time() - begun
        if sorted(map(str, fresh.view().to_pylist())) != sorted(map(str, view.to_pylist())):
            raise ValueError("the changed view is not that of a rebuild")
    return {
        "rows": count,
        "kept": list(diff.kept),
        "change": round(change, 2),
        "rebuild": round(rebuild, 2),
        "parts": {name: round(seconds, 2) for name, seconds in parts.items()},
        "change_of_rebuild": round(change / rebuild, 2),
        "change_of_parts": round(change / sum(parts.values()), 2),
    }


def main() -> None:
    """Print the figures as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=4_000_000)
    print(json.dumps(measured(parser.parse_args().rows)))


if __name__ == "__main__":
    main()
