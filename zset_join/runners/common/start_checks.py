"""Checks before a start writes a file: stages that cannot be built with the options of the query are rejected.

The law: a refused start leaves every file as it was (`tests/pipeline/test_refused_start.py`).

Cost: an empty operator per stage, made and closed.
"""

from __future__ import annotations

from collections.abc import Iterable

from zset_join.stages import Stage, StageOptions

__all__ = ["check_stages"]


def check_stages(stages: Iterable[Stage], options: StageOptions) -> None:
    """Build the operator of every stage in memory and close it."""
    for stage in stages:
        stage.build(options, None).close()
