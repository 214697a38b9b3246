"""The public path of the functions of Spark's views, `from zset_join.spark import functions as ZF`; `zset_join.query` has them.

    flights.groupBy("carrier").agg(ZF.count().alias("flights"), ZF.max("arr_delay").alias("latest"))

An argument of an aggregate may also be any Column of Spark's that is computed from one row.
"""

from __future__ import annotations

from zset_join.query.functions import *  # noqa: F403 - a front door has every name of the room behind it
from zset_join.query.functions import __all__ as __all__
