"""The runner inside Spark; the public import path is `zset_join.spark`.

Rooms, from the bottom up: `rows` (DataFrames to rows), `worker` (the task of a bucket), `planning` (a view's stages), `epoch`
(one epoch on the driver), `tools` (verify, sample, explain a row, rescale), `driver` (epochs without executors), `api` (the
words a user writes).
"""

from __future__ import annotations

import zset_join.runners.spark.installed  # noqa: F401 - first of all: it reports a missing package
