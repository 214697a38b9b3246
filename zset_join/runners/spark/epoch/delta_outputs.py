"""Delta tables as outputs: the view and the changelog, both written by the driver.

Needs the package `deltalake`, on the driver alone.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from zset_join.core.relation import Relation
from zset_join.runners.spark.epoch.outputs import SinkOutput, read_lines
from zset_join.runners.spark.rows.schemas import spark_schema
from zset_join.sinks.delta_changelog import DeltaChangelogSink
from zset_join.sinks.delta_view import DeltaViewSink

__all__ = ["DeltaOutput"]


class DeltaOutput(SinkOutput):
    """Write every epoch to a Delta table, and read it by Spark."""

    def __init__(self, sink: DeltaViewSink | DeltaChangelogSink) -> None:
        super().__init__(sink)
        self._table = sink

    def open(self, relation: Relation, query_id: str, *, may_lack_columns: bool = False) -> None:
        super().open(relation, query_id, may_lack_columns=may_lack_columns)
        self._rows = relation.schema

    def contents(self, session: SparkSession) -> DataFrame | None:
        paths = [self._table.log.folder.uri(file.name) for file in self._table.log.files()]
        if isinstance(self._table, DeltaChangelogSink):
            return read_lines(session, paths, self._rows, self._table.form)
        schema = spark_schema(self._rows)
        return session.read.schema(schema).parquet(*paths) if paths else session.createDataFrame([], schema)

    def at_rest(self) -> tuple[str, ...]:
        return (self._table.log.location,)
