"""The public path of the functions of a query, `from zset_join.pipeline import functions as F`; `zset_join.query` has them."""

from __future__ import annotations

from zset_join.query.functions import *  # noqa: F403 - a front door has every name of the room behind it
from zset_join.query.functions import __all__ as __all__
