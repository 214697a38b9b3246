"""Delta tables as outputs: the view, written by the driver, and the changelog, whose files the tasks write.

Needs the package `deltalake`, on the driver alone.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.record import CommitRecord
from zset_join.core.relation import Relation
from zset_join.runners.spark.epoch.outputs import SinkOutput, TaskFiles, read_lines
from zset_join.runners.spark.rows.schemas import spark_schema
from zset_join.runners.spark.worker.parts import DeltaParts, PartWriter
from zset_join.sinks.delta_changelog import DeltaChangelogSink
from zset_join.sinks.delta_files import DataFile
from zset_join.sinks.delta_view import DeltaViewSink

__all__ = ["DeltaChangelogOutput", "DeltaViewOutput"]


class DeltaViewOutput(SinkOutput):
    """Keep a Delta table equal to the join."""

    def __init__(self, sink: DeltaViewSink) -> None:
        super().__init__(sink)
        self._view = sink

    def open(self, relation: Relation, query_id: str, *, may_lack_columns: bool = False) -> None:
        super().open(relation, query_id, may_lack_columns=may_lack_columns)
        self._rows = relation.schema

    def contents(self, session: SparkSession) -> DataFrame | None:
        paths = [self._view.log.folder.uri(file.name) for file in self._view.log.files()]
        schema = spark_schema(self._rows)
        return session.read.schema(schema).parquet(*paths) if paths else session.createDataFrame([], schema)

    def at_rest(self) -> tuple[str, ...]:
        return (self._view.log.location,)


class DeltaChangelogOutput(TaskFiles):
    """Let the tasks write the files of a Delta changelog."""

    def __init__(self, sink: DeltaChangelogSink) -> None:
        self._changelog = sink
        location = sink.log.location
        super().__init__(sink, f"Delta changelog {location} ({sink.form})", DeltaParts(location, sink.form))

    def can_publish(self, files: CheckpointFiles, record: CommitRecord) -> bool:  # noqa: ARG002 - for other outputs
        """Look whether all files are still there; only VACUUM takes them away."""
        folder = self._changelog.log.folder
        return all(folder.size(part.file.name) == part.file.bytes for part in record.parts)

    def publish(self, session: SparkSession, files: CheckpointFiles, record: CommitRecord) -> None:  # noqa: ARG002 - for other outputs
        written = [DataFile(part.file.name, part.file.bytes, part.file.rows) for part in record.parts]
        self._changelog.commit_parts(record.epoch, written, link=record.link)

    def contents(self, session: SparkSession) -> DataFrame | None:
        log = self._changelog.log
        return read_lines(session, [log.folder.uri(file.name) for file in log.files()], self._rows, self._changelog.form)

    def at_rest(self) -> tuple[str, ...]:
        return (self._changelog.log.location,)

    def _writer(self, relation: Relation) -> PartWriter:
        return DeltaParts(self._changelog.log.location, self._changelog.form, relation.primary_key)
