"""Packages with their own stages, batch queries or table functions.

A package declares its module in the entry-point group `zset_join.extensions`; importing the module registers them:

    [project.entry-points."zset_join.extensions"]
    repeated = "my_package.repeated"

The modules are imported when a name is met that nobody has registered: the kind of a stage in a checkpoint, a function in FROM.
So a process that has not imported the package, such as a worker of Spark's or `zset-join`, can read its checkpoints and SQL.
"""

from __future__ import annotations

import importlib.metadata

__all__ = ["GROUP", "load_extensions"]

GROUP = "zset_join.extensions"


def load_extensions() -> None:
    """Import the modules of all installed packages with extensions."""
    for entry in importlib.metadata.entry_points(group=GROUP):
        entry.load()
