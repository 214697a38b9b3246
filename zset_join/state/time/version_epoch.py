"""One epoch of a join by key and time, resolved against the state before it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from zset_join.core.epochs import Tick
from zset_join.state.time.key_runs import KeyGroups
from zset_join.state.time.rejections import GivenRows
from zset_join.state.time.versioned_rows import PreparedRows
from zset_join.zset import ZSet

__all__ = ["VersionEpoch"]


@dataclass(slots=True)
class VersionEpoch:
    tick: Tick
    deltas: tuple[ZSet, ZSet]
    groups: KeyGroups
    right: PreparedRows
    left: PreparedRows | None  # None where left rows are not kept in runs
    left_address: int  # of the records of the left rows
    left_times: npt.NDArray[np.int64]  # that the left rows request
    given: tuple[GivenRows, GivenRows]
    counts: dict[str, int] = field(default_factory=dict)
    owners: list[Any] = field(default_factory=list)  # keep what addresses point to
