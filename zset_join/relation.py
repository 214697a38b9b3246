"""The public import path of `zset_join.core.relation`."""

from __future__ import annotations

from zset_join.core.relation import *  # noqa: F403 - a front door
from zset_join.core.relation import __all__ as __all__
