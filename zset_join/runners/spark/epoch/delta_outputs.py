"""Delta tables as outputs: the view, written by the driver, and the changelog, whose files the tasks write.

Needs the package `deltalake`, on the driver alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.record import CommitRecord
from zset_join.core.relation import Relation
from zset_join.runners.common.rejected import Rejected
from zset_join.runners.spark.epoch.outputs import SinkOutput, check_sink_altered, fitting_parts, given_by_sink, read_lines
from zset_join.runners.spark.rows.schemas import spark_schema
from zset_join.runners.spark.worker.fitting_parts import file_unfit_flags
from zset_join.runners.spark.worker.parts import DeltaParts, PartWriter
from zset_join.sinks.delta_changelog import DeltaChangelogSink
from zset_join.sinks.delta_files import DataFile
from zset_join.sinks.delta_view import DeltaViewSink
from zset_join.sinks.sink import Sink
from zset_join.zset import ZSet

__all__ = ["DeltaChangelogOutput", "DeltaViewOutput"]


class DeltaViewOutput(SinkOutput):
    """Keep a Delta table equal to the join.

    Args:
        sink: the view.
    """

    def __init__(self, sink: DeltaViewSink) -> None:
        super().__init__(sink)
        self._view = sink

    def open(self, relation: Relation, query_id: str, *, may_lack_columns: bool = False) -> None:
        """Open the view."""
        super().open(relation, query_id, may_lack_columns=may_lack_columns)
        self._rows = relation.schema

    def contents(self, session: SparkSession) -> DataFrame | None:
        """Let Spark read the files of the newest version."""
        paths = [self._view.log.folder.uri(file.name) for file in self._view.log.files()]
        schema = spark_schema(self._rows)
        return session.read.schema(schema).parquet(*paths) if paths else session.createDataFrame([], schema)

    def at_rest(self) -> tuple[str, ...]:
        """Return its directory."""
        return (self._view.log.location,)


class DeltaChangelogOutput:
    """Let the tasks write the files of a Delta changelog.

    Args:
        sink: the changelog.
    """

    def __init__(self, sink: DeltaChangelogSink) -> None:
        self._sink = sink
        self.quarantines = False
        self.dead_letter_path = ""
        self.parts: PartWriter = DeltaParts(sink.log.location, sink.form)

    @property
    def sink(self) -> Sink:
        """Return the changelog."""
        return self._sink

    def describe(self) -> str:
        """Return path and form."""
        return f"Delta changelog {self._sink.log.location} ({self._sink.form})"

    def open(self, relation: Relation, query_id: str, *, may_lack_columns: bool = False) -> None:
        """Make or check the table."""
        self._rows = relation.schema
        self._sink.open(relation, query_id, may_lack_columns=may_lack_columns)
        writer = DeltaParts(self._sink.log.location, self._sink.form, relation.primary_key)
        self.parts = fitting_parts(self, writer, relation, query_id)

    def has(self, record: CommitRecord) -> bool:
        """Read the table."""
        return self._sink.has(record.epoch, record.link)

    def lacking(self, record: CommitRecord) -> tuple[str, ...]:
        """Read the table."""
        return () if self.has(record) else (self.describe(),)

    def put_aside(self, files: CheckpointFiles, record: CommitRecord) -> dict[str, Rejected]:  # noqa: ARG002 - for other outputs
        """Return nothing: the tasks have refused such rows, or put them aside."""
        return {}

    def unfit(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return the rows that the tasks put aside."""
        return file_unfit_flags(rows)

    def can_publish(self, files: CheckpointFiles, record: CommitRecord) -> bool:  # noqa: ARG002 - for other outputs
        """Look whether all files are still there; only VACUUM takes them away."""
        folder = self._sink.log.folder
        return all(folder.size(part.file.name) == part.file.bytes for part in record.parts)

    def publish(self, session: SparkSession, files: CheckpointFiles, record: CommitRecord) -> None:  # noqa: ARG002 - for other outputs
        """Commit the files."""
        written = [DataFile(part.file.name, part.file.bytes, part.file.rows) for part in record.parts]
        self._sink.commit_parts(record.epoch, written, link=record.link)

    def check_altered(self, relation: Relation) -> None:
        """Return the answer of the table."""
        check_sink_altered(self._sink, relation)

    def give_change(
        self,
        session: SparkSession,  # noqa: ARG002 - for other outputs
        files: CheckpointFiles,  # noqa: ARG002 - for other outputs
        record: CommitRecord,
        rows: ZSet,
    ) -> dict[str, Rejected]:
        """Write the epoch."""
        return given_by_sink(self._sink, self.describe(), record, rows, quarantines=self.quarantines)

    def contents(self, session: SparkSession) -> DataFrame | None:
        """Let Spark read the files of the newest version."""
        log = self._sink.log
        return read_lines(session, [log.folder.uri(file.name) for file in log.files()], self._rows, self._sink.form)

    def at_rest(self) -> tuple[str, ...]:
        """Return its directory."""
        return (self._sink.log.location,)

    def close(self) -> None:
        """Release the table."""
        self._sink.close()
