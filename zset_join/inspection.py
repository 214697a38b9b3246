"""The public import path of `zset_join.tools.inspection`."""

from __future__ import annotations

from zset_join.tools.inspection import *  # noqa: F403 - a front door
from zset_join.tools.inspection import __all__ as __all__
