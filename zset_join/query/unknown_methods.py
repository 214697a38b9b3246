"""PySpark methods that views in process do not have, and their replacements."""

from __future__ import annotations

from collections.abc import Mapping

from zset_join.core.errors import MissingMethodError

__all__ = ["missing_on_grouped", "missing_on_view"]

_ROWS = (
    "a view describes rows and holds none; run it with pipeline = Pipeline(view), give rows to pipeline.step({...}), and read "
    "pipeline.view(), an Arrow table"
)
_BEFORE = "compute it with select(...) and withColumn(...), in the rows before step(), or in the Arrow table of pipeline.view()"
_OUTPUTS = "give outputs to the pipeline, Pipeline(view, directory, outputs=[sink(name, ...)])"
_SPREAD = "a pipeline is one process and keeps what it needs; leave it out"
_NAMES = "name what an SQL query reads with CREATE VIEW in a session of zset_join.sql"

_ON_VIEW: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "show", "collect", "toPandas", "toArrow", "take", "head", "first", "tail", "foreach", "foreachPartition", "toJSON",
            "toLocalIterator", "pandas_api", "rdd", "sample", "sampleBy", "randomSplit", "plot", "to_arrow", "to_pandas",
        ),
        _ROWS,
    ),
    **dict.fromkeys(("count", "isEmpty", "summary"), "count with agg(F.count()), which is kept up to date"),
    **dict.fromkeys(
        ("orderBy", "sort", "sortWithinPartitions", "limit", "offset"), "a view has no order; sort what is read of it"
    ),
    "dropDuplicatesWithinWatermark": "use dropDuplicates(), or dedup(keys=..., order_by=...), with state_ttl=...",
    **dict.fromkeys(("write", "writeStream", "writeTo", "mergeInto"), _OUTPUTS),
    **dict.fromkeys(
        ("cache", "persist", "unpersist", "checkpoint", "localCheckpoint", "coalesce", "hint", "repartition", "repartitionById",
         "repartitionByRange", "storageLevel"),
        _SPREAD,
    ),
    **dict.fromkeys(
        ("createGlobalTempView", "createOrReplaceGlobalTempView", "createOrReplaceTempView", "createTempView",
         "registerTempTable"),
        _NAMES,
    ),
    **dict.fromkeys(("crossJoin", "lateralJoin", "nearestByJoin"), "a cross join has no bounded change; use join or join_asof"),
    **dict.fromkeys(("cube", "rollup", "groupingSets"), "group several times, and union the views"),
    **dict.fromkeys(("printSchema", "dtypes", "metadataColumn"), "read its attribute schema, a pyarrow Schema"),
    **dict.fromkeys(("subtract", "exceptAll", "exists"), 'use join(other, on=..., how="anti")'),
    **dict.fromkeys(("intersect", "intersectAll"), 'use join(other, on=..., how="semi")'),
    "withWatermark": 'use versioned_by(column, delay="...")',
    "unionByName": "bring the columns into one order with select(...), then union(...)",
    **dict.fromkeys(("transform", "replace", "fillna", "dropna", "na", "toDF", "to", "colRegex"), _BEFORE),
    **dict.fromkeys(("mapInArrow", "mapInPandas", "melt", "unpivot", "transpose", "zip", "zipWithIndex", "stat", "corr", "cov",
                     "crosstab", "freqItems", "approxQuantile", "observe", "isStreaming", "asTable", "scalar"), _BEFORE),
}  # fmt: skip
_AGGREGATES = ("pivot", "apply", "applyInPandas", "applyInArrow", "cogroup")


def missing_on_view(name: str) -> AttributeError:
    cure = _ON_VIEW.get(name)
    if cure is None:
        return AttributeError(f"a view has no attribute {name!r}")
    return MissingMethodError(f"a view in process has no {name}, which PySpark has; {cure}.", method=name)


def missing_on_grouped(name: str) -> AttributeError:
    if name not in _AGGREGATES:
        return AttributeError(f"grouped rows have no attribute {name!r}")
    return MissingMethodError(
        f"grouped rows in process have no {name}, which PySpark has; use agg(...) with zset_join.pipeline.functions, such as "
        'agg(F.count(), F.sum("total").alias("revenue")).',
        method=name,
    )
