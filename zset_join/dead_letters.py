"""The public import path of `zset_join.tools.dead_letters`."""

from __future__ import annotations

from zset_join.tools.dead_letters import *  # noqa: F403 - a front door
from zset_join.tools.dead_letters import __all__ as __all__
