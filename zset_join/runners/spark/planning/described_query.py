"""Description by which a checkpoint recognises a query on executors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zset_join.runners.spark.planning.placed_query import PlacedQuery
from zset_join.runners.spark.rows.baseline import resolve_baselines
from zset_join.runners.spark.rows.user_functions import with_functions

__all__ = ["described_query", "names_of_streams"]


def described_query(
    query: PlacedQuery,
    stored: Mapping[str, Any] | None,
    *,
    is_loaded: bool,
    udf_version: str | None,
    limits: Mapping[str, Any] | None = None,
) -> Mapping[str, Any]:
    """Return the description by which a checkpoint recognises a query."""
    given = {**query.description(), **(limits or {})}
    description = resolve_baselines(given, stored, is_loaded=is_loaded)
    return with_functions(description, stored, query.functions, udf_version)


def names_of_streams(stored: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the names of the streams that a checkpoint remembers, in the order in which Spark reads them."""
    return () if stored is None else tuple(one["name"] for one in stored.get("inputs", ()) if "name" in one)
