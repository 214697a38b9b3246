"""A bar that shows how far a long Spark job is, where the package tqdm is installed.

Spark says how many tasks of a job are done; a thread asks it now and then. The jobs are told from others by their group.
"""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import SparkContext

__all__ = ["shown_progress"]

_ASK_SECONDS = 0.2
_GROUP = "spark.jobGroup.id"


@contextmanager
def shown_progress(context: SparkContext, *, what: str, tasks: int) -> Iterator[None]:
    """Show the progress of the jobs that this thread runs inside the context.

    Args:
        context: runs them.
        what: what to call the work.
        tasks: how many tasks there will be.
    """
    bar = _bar(what, tasks)
    if bar is None:
        yield
        return
    group, before = f"zset_join-{uuid.uuid4().hex}", context.getLocalProperty(_GROUP)
    is_over = threading.Event()

    def show() -> None:
        done = min(_done(context, group), tasks)
        if done > bar.n:
            bar.update(done - bar.n)

    def follow() -> None:
        while not is_over.wait(_ASK_SECONDS):
            show()

    follower = threading.Thread(target=follow, name="zset_join-progress", daemon=True)
    context.setLocalProperty(_GROUP, group)
    follower.start()
    try:
        yield
    finally:
        is_over.set()
        follower.join()
        context.setLocalProperty(_GROUP, before)  # type: ignore[arg-type]  # None takes the property away
        show()
        bar.close()


def _bar(what: str, tasks: int) -> Any:
    """Return a bar; None without the package that draws it."""
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        return None
    return tqdm(total=tasks, desc=what, unit="task", file=sys.stderr)


def _done(context: SparkContext, group: str) -> int:
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)
