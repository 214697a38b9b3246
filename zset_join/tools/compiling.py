"""Compile beforehand what queries need first, in several processes at once: `zset-join compile`.

A kernel is compiled when it is first called and then kept for this version and user. A query waits for the kernels of its own
stages only. The first pipeline or query of a user runs this in the background (`zset_join.tools.first_kernels`), so that
the next kind of stage does not wait; `make setup` and the build of an image run it and wait.

What is compiled is what a row on its way in and out of every kind of stage calls, in memory and, for joins, routes and
groups, with the state on disk. Rare kernels (compacting, merging runs) are compiled when they are first needed, in a second
or two each.

Cost: about a minute on two cores; almost nothing when all of it is present. The processes end with the one that started them.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing.connection import wait

import pyarrow as pa

from zset_join.expressions import left, right
from zset_join.kernels.machine.compiled import compiled_kernels_directory
from zset_join.kernels.machine.first_use import mark_complete
from zset_join.plan.query_plan import QueryPlan
from zset_join.query import View, appends, changes
from zset_join.query import functions as F  # noqa: N812 - PySpark's own habit
from zset_join.stages.effect import warm_up
from zset_join.stages.stage import Stage

__all__ = ["GROUPS", "compile_kernels"]

_COLUMNS = {
    "id": pa.int64(),
    "k": pa.string(),
    "n": pa.int64(),
    "x": pa.float64(),
    "d": pa.decimal128(12, 2),
    "at": pa.timestamp("us"),
    "ts": pa.int64(),
}
_JOIN_TYPES = ("inner", "left", "right", "full", "left_semi", "left_anti")


def _changes(name: str) -> View:
    return changes(name, _COLUMNS, keys="id", sequence_by="ts", watermark=("at", "1 second"))


def _appends(name: str) -> View:
    return appends(name, _COLUMNS, watermark=("at", "1 second"))


def _joins() -> Iterator[View]:
    for how in _JOIN_TYPES:
        yield _changes("a").join(_changes("b"), on="k", how=how)
        yield _appends("a").join(_changes("b"), on="n", how=how, condition=left("x") <= right("x"))
    yield _appends("a").join(_appends("b"), on=["k", "n"])


def _groups() -> Iterator[View]:
    for column in ("n", "x", "d"):
        sums = (F.sum(column), F.avg(column), F.min(column), F.max(column), F.stddev(column))
        named = [call.alias(f"c{at}") for at, call in enumerate(sums)]
        yield _changes("a").groupBy("k").agg(F.count().alias("rows"), *named)
    yield _changes("a").groupBy("k").agg(F.count_distinct("n").alias("c"), F.min("k").alias("least"))
    yield _changes("a").agg(F.count().alias("rows"))
    yield _appends("a").select("k", "n").distinct()


def _timed() -> Iterator[View]:
    rates = _changes("rates").drop("ts")
    yield _appends("a").dedup(keys="k", order_by="at desc")
    yield _changes("a").dedup(keys="k", order_by="n")
    for how in ("inner", "left"):
        yield _appends("a").join_asof(rates, on="k", left_time="at", right_time="at", how=how)


GROUPS: dict[str, tuple[Callable[[], Iterator[View]], bool]] = {
    "groups": (_groups, False),
    "joins": (_joins, False),
    "times": (_timed, False),
    "joins on disk": (_joins, True),
    "groups on disk": (_groups, True),
}
"""What is compiled together, by name: the views whose stages are warmed up, and whether their state goes to the disk.

Before it, the background compiles what a first query calls (`zset_join.tools.first_kernels`).
"""


def compile_kernels(
    names: Sequence[str] = tuple(GROUPS), *, report: Callable[[str], None] = print, processes: int | None = None
) -> float:
    """Compile groups of kernels, each in a process of its own."""
    started = time.monotonic()
    report(f"compiling the kernels of this version into {compiled_kernels_directory}")
    context = multiprocessing.get_context("spawn")
    workers = min(len(names), processes or os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, context, initializer=_end_with_parent) as pool:
        waiting = {pool.submit(_compile, name): name for name in names}
        for number, done in enumerate(as_completed(waiting), start=1):
            report(f"  {number} of {len(names)}: {waiting[done]}, {done.result():.0f} s")
    if set(names) == set(GROUPS):
        mark_complete()
    seconds = time.monotonic() - started
    report(f"done in {seconds:.0f} s; later programs of this user load them")
    return seconds


def _end_with_parent() -> None:
    """End this worker as soon as the process that started it is gone: a worker waits for work that nobody would give it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=[parent.sentinel], name="end with parent", daemon=True).start()


def _end_after(parent: int) -> None:
    wait([parent])
    os._exit(1)


def _compile(name: str) -> float:
    started = time.monotonic()
    views, is_hybrid = GROUPS[name]
    for view in views():
        warm_up(_stages(view.plan(), is_hybrid=is_hybrid), is_hybrid=is_hybrid, has_cold_groups=is_hybrid)
    return time.monotonic() - started


def _stages(plan: QueryPlan, *, is_hybrid: bool) -> list[Stage]:
    stages = [node.stage for node in plan.nodes]
    return [stage for stage in stages if stage.cold_state is not None] if is_hybrid else stages
