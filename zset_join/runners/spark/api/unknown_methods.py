"""Methods that PySpark users look for on a view or its writer, and that do not exist: what to use instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from zset_join.core.errors import MissingMethodError, OptionError

__all__ = ["missing_on_view", "missing_on_writer", "not_for_views"]

_ROWS = "a view has rows only while its query runs: write it with writeStream to an output, and read that"
_ON_VIEW: Mapping[str, str] = {
    **dict.fromkeys(("show", "collect", "toPandas", "toArrow", "take", "head", "first", "toLocalIterator", "foreach"), _ROWS),
    **dict.fromkeys(("count", "isEmpty", "summary"), "count with agg(F.count(...)), which is kept up to date"),
    **dict.fromkeys(("orderBy", "sort", "limit", "offset"), "a view has no order; sort where the view is read"),
    "dropDuplicatesWithinWatermark": "use dropDuplicates(), or dedup(keys=..., order_by=...), with state_ttl=...",
    **dict.fromkeys(("write", "writeTo"), "the view streams: use writeStream"),
    "withWatermark": "give watermark=... to changes(...) or appends(...)",
    "crossJoin": "a cross join has no bounded change; join on a key",
}
_ON_WRITER: Mapping[str, str] = {
    **dict.fromkeys(
        ("table", "format", "foreach", "partitionBy", "clusterBy"),
        "outputs here are to(name, ...), toDuckDB, toTable and foreachBatch",
    ),
    "outputMode": "the output is a changelog; choose their form with form=...",
}


def missing_on_view(name: str) -> AttributeError:
    return _missing("view", name, _ON_VIEW.get(name), is_of_spark=hasattr(DataFrame, name))


def missing_on_writer(name: str) -> AttributeError:
    return _missing("writer of a view", name, _ON_WRITER.get(name), is_of_spark=hasattr(DataStreamWriter, name))


def _missing(owner: str, name: str, cure: str | None, *, is_of_spark: bool) -> AttributeError:
    if not is_of_spark:
        return AttributeError(f"a {owner} has no attribute {name!r}")
    return MissingMethodError(
        f"a {owner} has no {name}, which PySpark has; {cure or 'compute it in the DataFrame before, or where it is read'}.",
        method=name,
    )


def not_for_views(method: str, value: Any, cure: str) -> OptionError:
    """Return the error for a method of Spark's writer that a view has no use for."""
    return OptionError(f"{method}({value!r}) does not apply to a view: {cure}.", code="NOT_APPLICABLE", method=method)
