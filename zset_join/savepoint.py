"""The public import path of `zset_join.tools.savepoint`."""

from __future__ import annotations

from zset_join.tools.savepoint import *  # noqa: F403 - a front door
from zset_join.tools.savepoint import __all__ as __all__
