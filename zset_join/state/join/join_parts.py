"""Shared parts of the steps of a join, for rows in memory, streamed rows and rows of large keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zset_join.state.cold.cold_side import ColdSide
from zset_join.state.join.changed_groups import ChangedGroups, OutputArrays
from zset_join.state.rows.side import SideState

__all__ = ["JoinParts"]


@dataclass(frozen=True, slots=True)
class JoinParts:
    sides: Sequence[SideState]
    groups: ChangedGroups
    cold: Sequence[ColdSide]  # per side; none without a budget
    one_sided: tuple[int, int]  # per side, what the join shows of its rows alone (0: nothing)
    pairs: bool
    # Which pairs of left and right record addresses pass the rest of the condition.
    passes: Callable[[Any, Any], npt.NDArray[np.bool_]]
    output: OutputArrays
