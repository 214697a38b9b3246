"""The public import path of `zset_join.core.errors`."""

from __future__ import annotations

from zset_join.core.errors import *  # noqa: F403 - a front door
from zset_join.core.errors import __all__ as __all__
