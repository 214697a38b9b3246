"""Sources of a classic session's streams: the same source as a batch, and the type of JSON texts."""

from __future__ import annotations

import json
from typing import Any, cast

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

__all__ = ["batch_of_source", "type_of_json"]


def batch_of_source(rows: DataFrame) -> DataFrame | None:
    """Return the only source of a stream as a batch; None where it has several, or none that can be read so."""
    leaves: Any = rows._jdf.queryExecution().analyzed().collectLeaves()
    leaf: Any = leaves.apply(0) if leaves.size() == 1 else None
    kind = None if leaf is None else str(leaf.getClass().getSimpleName())
    reader = rows.sparkSession.read
    if kind == "StreamingRelation":
        source = leaf.dataSource()
        reader = reader.format(str(source.className()))
        if source.userSpecifiedSchema().isDefined():
            reader = reader.schema(StructType.fromJson(json.loads(source.userSpecifiedSchema().get().json())))
        given = source.options()
    elif kind == "StreamingRelationV2":
        reader, given = reader.format(str(leaf.sourceName())), leaf.extraOptions().asCaseSensitiveMap()
    else:
        return None
    options = _pairs(rows, given)
    options |= {"startingOffsets": "earliest", "endingOffsets": "latest"} if "kafka" in str(options).lower() else {}
    return reader.options(**options).load()


def type_of_json(texts: DataFrame) -> StructType:
    """Return the type of JSON texts, as Spark infers it."""
    session: Any = texts.sparkSession
    typed = getattr(texts._jdf, "as")(session.sparkContext._gateway.jvm.org.apache.spark.sql.Encoders.STRING())
    parsed = session._jsparkSession.read().json(typed)
    return StructType.fromJson(json.loads(parsed.schema().json()))


def _pairs(rows: DataFrame, given: Any) -> dict[str, str]:
    """Return the entries of a map of Scala or Java."""
    gateway = cast("Any", rows).sparkSession.sparkContext._gateway
    if hasattr(given, "entrySet") and "scala" not in str(given.getClass().getName()):
        return {str(one.getKey()): str(one.getValue()) for one in given.entrySet()}
    options = gateway.jvm.scala.jdk.javaapi.CollectionConverters.asJava(given)
    return {str(name): str(value) for name, value in options.items()}
