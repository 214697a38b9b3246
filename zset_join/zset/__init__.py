"""Z-sets: tables whose rows carry signed counts, how their rows are laid out, and the protocol of what changes them."""

from __future__ import annotations

from zset_join.zset.zset import ZSet, single_batch

__all__ = ["ZSet", "single_batch"]
