"""Durable state: the epoch log, snapshots and commit records of a query, and the local state rebuilt from them.

`files` is the only module that touches the file system of a checkpoint; `log` and `snapshot` write and read the two
kinds of data files; `record` is the commit record of an epoch; `checkpoint` is the driver's view of all of it;
`bucket` is the worker's: one part of one stage, brought to the state before the epoch. Nothing here depends on Spark or a
particular operator.
"""

from __future__ import annotations
