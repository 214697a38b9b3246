"""The public import path of `zset_join.core.epochs`."""

from __future__ import annotations

from zset_join.core.epochs import *  # noqa: F403 - a front door
from zset_join.core.epochs import __all__ as __all__
