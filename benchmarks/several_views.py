"""What do several views over one join cost as one pipeline, and filters over one table?

    python -m benchmarks.several_views [--rounds N] [--changes N] [--views K] [--output FILE]
    python -m benchmarks.several_views --filters

Orders (upserts) join customers (upserts), and K views group the answer by K columns: sum and count. Contestants, in turn, in
one process, with the same deltas, without keeping the views: *together*, one pipeline of K views; *apart*, K pipelines of one
view; *join*, a pipeline of the join alone; *tails*, one pipeline of the K groups, fed the answers of the join. Reported is CPU
time per change, and *together* as a ratio to *join* + *tails* (goal: at most 1.15) and to *apart*.

*--filters*: 1, 10 and 50 views that filter one table of 50,000 rows, alike or in five ways, in memory and in a directory: bytes
of state, and CPU time per epoch of one change that passes one filter, and that passes none; and a table that is read by three
joins, two of them by the same column, a group and a filter.

Before measuring, 100,000 orders and 10,000 customers are loaded; the deltas are made beforehand, as `ZSet`s. All contestants
must answer as many rows.

Known limits: one core; minimum and maximum of the rounds are reported, since neighbours on the machine show.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.report import machine_lines
from zset_join import ZSet
from zset_join.pipeline import Pipeline, View, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs

CUSTOMERS = pa.schema({"customer": pa.int64(), "city": pa.int64()})
ORDER_COUNT, CUSTOMER_COUNT, GROUPS, EPOCH = 100_000, 10_000, 1_000, 10_000
SEED = 5

Step = Callable[[dict[str, ZSet]], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line and return the exit code."""
    parser = argparse.ArgumentParser(description="Several views over one join as one pipeline.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--changes", type=int, default=300_000)
    parser.add_argument("--views", type=int, default=4)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--filters", action="store_true")
    given = parser.parse_args(arguments)
    lines = filtered() if given.filters else measured(given.rounds, given.changes, given.views)
    text = "\n".join([*machine_lines(), "", *lines])
    print(text)
    if given.output is not None:
        given.output.write_text(text + "\n", encoding="utf-8")
    return 0


def measured(rounds: int, count: int, views: int) -> list[str]:
    """Return the lines of the report."""
    spent: dict[str, list[float]] = {name: [] for name in ("together", "apart", "join", "tails")}
    for number in range(rounds):
        rng = np.random.default_rng([SEED, number])
        customers = np.arange(CUSTOMER_COUNT)
        beginning = {
            "orders": orders(rng, np.arange(ORDER_COUNT), views),
            "customers": ZSet.of({"customer": customers, "city": customers % GROUPS}, schema=CUSTOMERS),
        }
        epochs = [{"orders": orders(rng, rng.integers(0, ORDER_COUNT, EPOCH), views)} for _ in range(count // EPOCH)]
        answers: list[ZSet] = []
        rows = {"join": timed(spent["join"], joined_alone(views, answers), beginning, epochs, count)}
        fed = [{"joined": answer} for answer in answers]
        contestants = {"together": together(views), "apart": apart(views)}
        for name, step in contestants.items():
            rows[name] = timed(spent[name], step, beginning, epochs, count)
        rows["tails"] = timed(spent["tails"], tails(views), fed[0], fed[1:], count)
        if len({rows[name] for name in ("together", "apart", "tails")}) > 1:
            raise AssertionError(f"the contestants answered otherwise: {rows}")
    lines = [f"{views} views over one join, nanoseconds of CPU per change, {count:,} changes, median (minimum to maximum):"]
    lines += [f"  {name:9} {statistics.median(one):8,.0f} ({min(one):,.0f} to {max(one):,.0f})" for name, one in spent.items()]
    parts = [join + tail for join, tail in zip(spent["join"], spent["tails"], strict=True)]
    lines.append(f"  together / (join + tails): {ratios(spent['together'], parts)}")
    lines.append(f"  together / apart:          {ratios(spent['together'], spent['apart'])}")
    return lines


def filtered() -> list[str]:
    """Return the lines of the report on filters over one table."""
    table = changes("t", {"id": pa.int32(), "a": pa.int32(), "b": pa.int32()}, keys="id")
    numbers = np.arange(50_000, dtype=np.int32)
    rows = pa.table({"id": numbers, "a": numbers, "b": numbers})
    lines = [f"{'filters':>16} {'place':>9} {'state MB':>9} {'one passes ms':>14} {'none passes ms':>15}"]
    for kinds, place, count in [
        *((kinds, place, count) for kinds in (1, 5) for place in ("memory", "directory") for count in (1, 10, 50)),
    ]:
        texts = ["a > {0}", "a + b > {0}", "a >= {0} AND b >= {0}", "b BETWEEN {0} AND 60000", "NOT (b < {0})"][:kinds]
        views = {f"v{at}": table.where(texts[at % kinds].format(40_000 + at * 100)) for at in range(count)}
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "checkpoint"
            pipeline = stack.enter_context(Pipeline(views, None if place == "memory" else directory))
            pipeline.step({"t": rows})
            one, none = (_median_ms(pipeline, [(5, low + at % 2) for at in range(60)]) for low in (40_050, 7))
            held = sum(stage.get("resident_bytes", 0) for stage in pipeline.statistics().values())
        lines.append(f"{count:>9} ({kinds} kind) {place:>9} {held / 1e6:9.1f} {one:14.2f} {none:15.2f}")
    other = changes("u", {"b": pa.int32(), "name": pa.string()}, keys="b")
    mart = {"joined": table.join(other, on="b"), "groups": table.groupBy("b").count(), "filtered": table.where("a > 5")}
    mart |= {"all": table.join(other, on="b", how="left"), "by a": table.join(other, on=[("a", "b")])}
    for place in ("memory", "directory"):
        with tempfile.TemporaryDirectory() as made:
            directory = None if place == "memory" else Path(made) / "checkpoint"
            with Pipeline(mart, directory) as pipeline:
                pipeline.step({"t": rows})
                spent = _median_ms(pipeline, [(5, 7 + at % 2) for at in range(60)])
                counts = {name: one for name, one in pipeline.statistics().items() if one.keys() - {"watermark_us"}}
            mapped = sum(512 * file.stat().st_blocks for file in Path(made).glob("*/local/**/state/*"))
        held = {name: sum(size for of, size in one.items() if of.endswith("_bytes")) / 1e6 for name, one in counts.items()}
        sizes = ", ".join(f"{name} {size:.1f}" for name, size in held.items())
        lines.append(f"joins, group and filter, {place}: {spent:.2f} ms; MB: {sizes}; files of local state {mapped / 1e6:.1f}")
    return lines


def _median_ms(pipeline: Pipeline[Any], changed: Sequence[tuple[int, int]]) -> float:
    """Return the CPU time per epoch of one change each, of an id to a value."""
    spent = []
    for number, value in changed:
        row = pa.table({name: pa.array([one], pa.int32()) for name, one in (("id", number), ("a", value), ("b", value))})
        began = time.process_time()
        pipeline.step({"t": row})
        spent.append(1e3 * (time.process_time() - began))
    return statistics.median(spent[10:])


def ratios(ones: Sequence[float], others: Sequence[float]) -> str:
    """Return the median of paired ratios, with the smallest and the largest."""
    found = [one / other for one, other in zip(ones, others, strict=True)]
    return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def timed(spent: list[float], step: Step, beginning: dict[str, ZSet], epochs: Sequence[dict[str, ZSet]], count: int) -> int:
    """Run a contestant, note its time per change, and return how many rows it answered."""
    step(beginning)
    began = time.process_time()
    rows = sum(step(epoch) for epoch in epochs)
    spent.append(1e9 * (time.process_time() - began) / count)
    return rows


def schema(views: int) -> pa.Schema:
    """Return the columns of orders: one per view to group by."""
    return pa.schema(
        {"id": pa.int64(), "customer": pa.int64(), "total": pa.int64(), **{f"g{at}": pa.int64() for at in range(views)}}
    )


def orders(rng: np.random.Generator, ids: np.ndarray, views: int) -> ZSet:
    """Return upserts of orders."""
    columns = {"id": ids, "customer": rng.integers(0, CUSTOMER_COUNT, len(ids)), "total": rng.integers(0, 1_000, len(ids))}
    return ZSet.of(columns | {f"g{at}": rng.integers(0, GROUPS, len(ids)) for at in range(views)}, schema=schema(views))


def joined(views: int) -> View:
    """Return orders with their cities."""
    return changes("orders", schema(views), keys="id").join(changes("customers", CUSTOMERS, keys="customer"), on="customer")


def groups(rows: View, views: int) -> dict[str, View]:
    """Return the views."""
    calls = [F.sum("total").alias("total"), F.count().alias("orders")]
    return {f"view {at}": rows.groupBy(f"g{at}").agg(*calls) for at in range(views)}


def together(views: int) -> Step:
    """Return the step of one pipeline; every view is written apart from the others."""
    named = {f"view {at}": groups(joined(views), views)[f"view {at}"] for at in range(views)}
    pipeline = Pipeline(named, keep_view=False)
    return lambda rows: sum(map(len, pipeline.step(rows).values()))


def apart(views: int) -> Step:
    """Return the step of a pipeline per view."""
    pipelines = [Pipeline(view, keep_view=False) for view in groups(joined(views), views).values()]
    return lambda rows: sum(len(pipeline.step(rows)) for pipeline in pipelines)


def joined_alone(views: int, answers: list[ZSet]) -> Step:
    """Return the step of the join alone, which keeps its answers."""
    pipeline = Pipeline(joined(views), keep_view=False)

    def step(rows: dict[str, ZSet]) -> int:
        answers.append(pipeline.step(rows))
        return len(answers[-1])

    return step


def tails(views: int) -> Step:
    """Return the step of the groups over what the join answers."""
    columns = {**{field.name: field.type for field in joined(views).arrow_schema}, "w": pa.int64()}
    pipeline = Pipeline(groups(changes("joined", columns, weight_column="w"), views), keep_view=False)
    return lambda rows: sum(map(len, pipeline.step(rows).values()))


if __name__ == "__main__":
    raise SystemExit(main())
