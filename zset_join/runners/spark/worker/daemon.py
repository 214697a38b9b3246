"""The process Spark forks Python workers from, with the engine already in it.

Spark starts one daemon per executor and forks a worker from it for every task that finds none idle; workers end when they are
idle for a minute. A worker that must import the engine and load its compiled kernels pays for it with every fork.

    spark.python.daemon.module = zset_join.runners.spark.worker.daemon   (when the session is made; `cluster_settings` has it)

The law: nothing else changes; the rest of this process is PySpark's own daemon. Kernels that are not compiled yet are left to
the first task; one that cannot be loaded is reported on standard error, and the task that needs it fails.

Memory: that of the imported engine, about 150 MB of address space that all workers of an executor share.

Limits: `zset_join` must be importable by the workers' Python, else no Python worker of the session starts. Not on Windows:
Spark forks no workers there. When a worker is forked, the only other thread is that of Arrow's allocator, which is rebuilt.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
from pyspark.daemon import manager

from zset_join.core.errors import ZsetJoinError
from zset_join.core.relation import Relation
from zset_join.kernels.machine.compiled import compiled_kernels_directory
from zset_join.runners.spark.worker.gc_tuning import Spared
from zset_join.stages import JoinStage, RouteStage
from zset_join.stages.effect import warm_up

__all__ = ["load_kernels", "main"]


def load_kernels() -> None:
    """Load the kernels of joins over plain columns: upserts by key, weights, and rows that are only added."""
    schema = pa.schema({"id": pa.int64(), "key": pa.string(), "at": pa.timestamp("us", tz="UTC"), "amount": pa.float64()})
    left = Relation(name="left", schema=schema, join_key=("key",), primary_key=("id",), sequence_by=("at",), mode="upsert")
    right = Relation(name="right", schema=schema, join_key=("key",), mode="changelog")
    route = RouteStage(source=left)
    warm_up([route, JoinStage(left=route.output, right=right, how="full")])


def main() -> None:
    """Load, then do what PySpark's daemon does."""
    try:
        if any(Path(compiled_kernels_directory).rglob("*.nbc")):
            load_kernels()
            Spared.loaded()
    except (ZsetJoinError, OSError, RuntimeError) as error:
        print(f"zset_join: workers start slowly, because kernels could not be loaded: {error!r}", file=sys.stderr)  # noqa: T201
    manager()


if __name__ == "__main__":
    main()
