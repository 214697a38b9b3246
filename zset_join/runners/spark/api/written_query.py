"""A query as its writer needs it: one view, or several."""

from __future__ import annotations

from typing import Protocol

from pyspark.sql import SparkSession

from zset_join.runners.spark.planning.placed_query import PlacedQuery

__all__ = ["WrittenQuery"]


class WrittenQuery(Protocol):
    @property
    def name(self) -> str:
        """Return the name for messages."""
        ...

    @property
    def session(self) -> SparkSession: ...

    @property
    def placed(self) -> PlacedQuery:
        """Return it as executors run it.

        Raises:
            OptionError: they do not run it.
        """
        ...
