"""One epoch of a join, resolved against the state before it and not absorbed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from zset_join.core.epochs import Tick
from zset_join.state.join.append_buffer import BufferedEpoch
from zset_join.state.join.residual_pairs import JudgedEpoch
from zset_join.state.rows.side import PreparedSide
from zset_join.zset import ZSet

__all__ = ["PreparedEpoch"]


@dataclass(slots=True)
class PreparedEpoch:
    tick: Tick
    deltas: tuple[ZSet, ZSet]
    sides: tuple[PreparedSide | None, PreparedSide | None]  # None for an empty delta
    rejected: int
    buffered: BufferedEpoch | None = None
    oversized_codes: tuple[npt.NDArray[np.int64], ...] = ()  # per side, hashes of keys whose rows stay on disk
    streams: tuple[bool, ...] = ()  # per side, whether rows on disk are read as they are needed
    judged: JudgedEpoch = field(default_factory=JudgedEpoch)
