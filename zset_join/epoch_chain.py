"""The public import path of `zset_join.core.epoch_chain`."""

from __future__ import annotations

from zset_join.core.epoch_chain import *  # noqa: F403 - a front door
from zset_join.core.epoch_chain import __all__ as __all__
