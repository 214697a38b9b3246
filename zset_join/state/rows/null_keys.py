"""The rows of a delta that a side drops because NULL in their join key can match nothing (`zset_join.shapes.null_keys`).

Cost: nothing without such rows; else a look at the status of each row of the delta.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from zset_join.kernels.rows import changes as ch

__all__ = ["dropped_rows"]


def dropped_rows(prepared: Any, *, is_upsert: bool) -> int:
    """Return how many rows of a resolved delta a side drops for NULL in their key: their weight, or how many upserts."""
    unmatchable, weights, count = prepared.unmatchable, prepared.delta.weights, prepared.count
    if not is_upsert:
        return int(weights[(prepared.status[:count] == ch.NOTHING) & (unmatchable[:count] != 0)].sum())
    last = prepared.last_of[: prepared.entries]
    return int(np.count_nonzero((unmatchable[last] != 0) & (weights[last] > 0)))
