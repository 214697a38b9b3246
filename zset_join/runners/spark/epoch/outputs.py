"""Outputs of an epoch, from the view of the driver.

An output decides how tasks leave their parts, takes the parts of a committed epoch exactly once, and, for `verify`, can be read
back as a Z-set. Three kinds: a sink on the driver (the views), a changelog whose files the tasks write themselves (Parquet
here, Delta in `delta_outputs`), and a user's function.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit
from typing_extensions import override

from zset_join.changelog import ChangelogForm, UpsertFormat, encoded_schema, format_named
from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.record import CommitRecord
from zset_join.core.epochs import Tick, accepts_argument
from zset_join.core.errors import PlanError, SinkError, StateError
from zset_join.core.relation import Relation
from zset_join.runners.common.rejected import Rejected, SinkEpochs
from zset_join.runners.spark.epoch.frame_sink import FrameSink
from zset_join.runners.spark.rows.names import quoted
from zset_join.runners.spark.rows.schemas import refuse_collations, spark_schema
from zset_join.runners.spark.worker.parts import (
    ArrowParts,
    ChangelogParts,
    FittingParts,
    ParquetParts,
    PartWriter,
    file_unfit_flags,
    read_arrow_parts,
)
from zset_join.runners.spark.worker.quarantine import DeadLetters
from zset_join.sinks.parquet_changelog import ParquetChangelogSink, PartFile, are_staged, commit_epoch, committed_files
from zset_join.sinks.sink import AlterableSink, Sink, has_epoch
from zset_join.storage.folder import is_local, local_path
from zset_join.zset import ZSet

__all__ = [
    "ChangelogOutput",
    "ChosenOutput",
    "FunctionOutput",
    "Output",
    "SelectiveOutput",
    "SinkOutput",
    "UpsertOutput",
    "read_lines",
    "weighted",
]

_ROW, _CLAIMS = "row", "claims"


class Output(Protocol):
    """The runner's interface to an output."""

    @property
    def parts(self) -> PartWriter:
        """Return the writer of a task's share of the answer."""

    def describe(self) -> str: ...

    def open(self, relation: Relation, query_id: str, *, may_lack_columns: bool = False) -> None:
        """Attach it to the query; columns that it may lack (`AlterableSink`) are added by `give_change`."""

    def has(self, record: CommitRecord) -> bool:
        """Return whether a committed epoch is in it already; refuse another epoch of this number, or of the one before."""

    def lacking(self, record: CommitRecord) -> tuple[str, ...]:
        """Return the titles of outputs without a committed epoch, for `explain`; one that keeps no epochs is not among them."""

    def can_publish(self, files: CheckpointFiles, record: CommitRecord) -> bool:
        """Return whether the parts of a committed epoch are still there."""

    def publish(self, session: SparkSession, files: CheckpointFiles, record: CommitRecord) -> None:
        """Take the answer of a committed epoch."""

    def check_altered(self, relation: Relation) -> None:
        """Refuse columns that the open output cannot be given; see `AlterableSink`."""

    def give_change(
        self, session: SparkSession, files: CheckpointFiles, record: CommitRecord, rows: ZSet
    ) -> dict[str, Rejected]:
        """Take the answer of an epoch in which the query changed; return what was set aside, by the name in `explain`."""

    def contents(self, session: SparkSession) -> DataFrame | None:
        """Return all answers, with or without `_weight`; None when the output cannot be read back."""

    def at_rest(self) -> tuple[str, ...]:
        """Close its files until their next use, and return where they lie; nothing where it is not made of files."""

    def close(self) -> None: ...


class ChosenOutput(Output, Protocol):
    @property
    def sink(self) -> Sink: ...


@runtime_checkable
class SelectiveOutput(Output, Protocol):
    """An output that may never be able to hold some rows, which is decided before an epoch is committed.

    Attributes:
        quarantines: such rows are set aside and omitted; else they are refused.
        dead_letter_path: where tasks put them that write the output themselves.
    """

    quarantines: bool
    dead_letter_path: str

    def put_aside(self, files: CheckpointFiles, record: CommitRecord) -> dict[str, Rejected]:
        """Return the rows of an answered epoch that the output can never hold, by what `explain` calls it, or refuse them."""

    def check_change(self, epoch: int, rows: ZSet) -> None:
        """Refuse rows of a change of the query that the output can never hold, unless they are set aside."""

    def unfit(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return which rows of the view the output can never hold; it is open."""


class ChangesOfSinks(ABC):
    """Give the change of a query to the sink of an output, which sets rows that it can never hold aside, or refuses them."""

    quarantines = False

    @property
    @abstractmethod
    def sink(self) -> Sink: ...

    @abstractmethod
    def describe(self) -> str: ...

    @property
    def _epochs(self) -> SinkEpochs:
        return SinkEpochs(self.sink, quarantines=self.quarantines)

    def check_altered(self, relation: Relation) -> None:
        check_sink_altered(self.sink, relation)

    def check_change(self, epoch: int, rows: ZSet) -> None:
        self._epochs.put_aside(epoch, [rows])

    def give_change(
        self,
        session: SparkSession,  # noqa: ARG002 - for other outputs
        files: CheckpointFiles,  # noqa: ARG002 - for other outputs
        record: CommitRecord,
        rows: ZSet,
    ) -> dict[str, Rejected]:
        rejected = self._epochs.put_aside(record.epoch, [rows])
        self._epochs.write(record.epoch, retractions_first(rows), record.link)
        return {self.describe(): rejected} if len(rejected) else {}


class SinkOutput(ChangesOfSinks):
    """Pass the answer to a sink on the driver."""

    def __init__(self, sink: Sink) -> None:
        self.parts: PartWriter = ArrowParts()
        self.dead_letter_path = ""
        self._sink = sink

    @property
    @override
    def sink(self) -> Sink:
        return self._sink

    @override
    def describe(self) -> str:
        return repr(self._sink)

    def open(self, relation: Relation, query_id: str, *, may_lack_columns: bool = False) -> None:
        open_sink(self._sink, relation, query_id, may_lack_columns=may_lack_columns)

    def has(self, record: CommitRecord) -> bool:
        return has_epoch(self._sink, record.epoch, record.link)

    def lacking(self, record: CommitRecord) -> tuple[str, ...]:
        """Return the answer of the sink, unless it forgets its epochs with its process."""
        forgets = not getattr(self._sink, "keeps_epochs", True)
        return () if forgets or self.has(record) else (self.describe(),)

    def can_publish(self, files: CheckpointFiles, record: CommitRecord) -> bool:
        return _are_there(files, record)

    def publish(self, session: SparkSession, files: CheckpointFiles, record: CommitRecord) -> None:  # noqa: ARG002 - for other outputs
        self._epochs.write(record.epoch, read_arrow_parts(files, record.parts), record.link)

    def put_aside(self, files: CheckpointFiles, record: CommitRecord) -> dict[str, Rejected]:
        """Return the answer of the sink, where it has such rows; the rows are then read again than they are written."""
        rejected = self._epochs.put_aside(record.epoch, read_arrow_parts(files, record.parts))
        return {self.describe(): rejected} if len(rejected) else {}

    def unfit(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return the answer of the sink; one that does not list such rows holds all."""
        return self._epochs.unfit(rows)

    def contents(self, session: SparkSession) -> DataFrame | None:
        read: Callable[[], pa.Table] | None = getattr(self._sink, "read", None)
        return None if read is None else session.createDataFrame(read())

    def at_rest(self) -> tuple[str, ...]:
        rest: Callable[[], tuple[str, ...]] | None = getattr(self._sink, "at_rest", None)
        return () if rest is None else rest()

    def close(self) -> None:
        self._sink.close()


class ChangelogOutput(ChangesOfSinks):
    """Let the tasks write the files of a Parquet changelog."""

    def __init__(self, directory: str, form: ChangelogForm) -> None:
        self._directory = str(local_path(directory)) if is_local(directory) else directory
        self._form = form
        self._sink = ParquetChangelogSink(self._directory, form)
        self.dead_letter_path = ""
        self.parts: PartWriter = ChangelogParts(self._directory)

    @property
    @override
    def sink(self) -> Sink:
        return self._sink

    @override
    def describe(self) -> str:
        return f"Parquet changelog {self._directory} ({self._form})"

    def open(self, relation: Relation, query_id: str, *, may_lack_columns: bool = False) -> None:
        self._rows = relation.schema
        self._sink.open(relation, query_id, may_lack_columns=may_lack_columns)
        letters = DeadLetters(
            directory=self.dead_letter_path, query_id=query_id, names=(self.describe(),), schemas=(relation.schema,)
        )
        writer = self.parts.writer if isinstance(self.parts, FittingParts) else self.parts  # opened again: the same writer
        self.parts = FittingParts(writer, self.describe(), letters if self.quarantines else None)

    def has(self, record: CommitRecord) -> bool:
        return self._sink.has(record.epoch, record.link)

    def lacking(self, record: CommitRecord) -> tuple[str, ...]:
        return () if self.has(record) else (self.describe(),)

    def can_publish(self, files: CheckpointFiles, record: CommitRecord) -> bool:  # noqa: ARG002 - for other outputs
        return are_staged(self._directory, record.epoch, _part_files(record))

    def publish(self, session: SparkSession, files: CheckpointFiles, record: CommitRecord) -> None:  # noqa: ARG002 - for other outputs
        commit_epoch(self._directory, record.epoch, _part_files(record), link=record.link)

    def put_aside(self, files: CheckpointFiles, record: CommitRecord) -> dict[str, Rejected]:  # noqa: ARG002 - for other outputs
        """Return nothing: the tasks have refused such rows, or put them aside."""
        return {}

    def unfit(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return the rows that the tasks set aside."""
        return file_unfit_flags(rows)

    def contents(self, session: SparkSession) -> DataFrame | None:
        return read_lines(session, committed_files(self._directory), self._rows, self._form)

    def at_rest(self) -> tuple[str, ...]:
        return (self._directory,)

    def close(self) -> None:
        self._sink.close()


class FunctionOutput:
    """Call a user's function with the answer as a DataFrame.

    The function is called at least once per epoch, every time with the same rows.
    """

    def __init__(self, function: Callable[..., Any], form: ChangelogForm) -> None:
        self._function = function
        self._takes_chain = accepts_argument(function, "chain")
        self._form = form
        self.parts: PartWriter = ParquetParts(form)

    @property
    def form(self) -> ChangelogForm:
        return self._form

    @property
    def sink(self) -> Sink:
        return FrameSink(self)

    def describe(self) -> str:
        return f"function {getattr(self._function, '__qualname__', repr(self._function))} ({self._form})"

    def open(
        self,
        relation: Relation,
        query_id: str,  # noqa: ARG002 - a function has no memory
        *,
        may_lack_columns: bool = False,  # noqa: ARG002 - as above
    ) -> None:
        self._schema = encoded_schema(relation.schema, format_named(self._form))
        self.parts = ParquetParts(self._form, relation.primary_key)

    def has(self, record: CommitRecord) -> bool:  # noqa: ARG002 - a function has no memory
        """Return False: only the function could have the answer."""
        return False

    def lacking(self, record: CommitRecord) -> tuple[str, ...]:  # noqa: ARG002 - a function has no memory
        """Return nothing: a function keeps no epochs."""
        return ()

    def can_publish(self, files: CheckpointFiles, record: CommitRecord) -> bool:
        return _are_there(files, record)

    def publish(self, session: SparkSession, files: CheckpointFiles, record: CommitRecord) -> None:
        self.give(self.answer(session, files, record), record.epoch, None if record.link is None else record.link.digest)

    def check_altered(self, relation: Relation) -> None:
        """Do nothing: a function is given whatever columns there are."""

    def give_change(
        self, session: SparkSession, files: CheckpointFiles, record: CommitRecord, rows: ZSet
    ) -> dict[str, Rejected]:
        tick = Tick(record.epoch, record.processing_time_us)
        parts = self.parts.write(files, 0, tick, rows.schema, retractions_first(rows))
        self.publish(session, files, replace(record, parts=tuple(parts)))
        return {}

    def give(self, rows: DataFrame, epoch: int, digest: str | None) -> None:
        if self._takes_chain:
            self._function(rows, epoch, chain=digest)
        else:
            self._function(rows, epoch)

    def answer(self, session: SparkSession, files: CheckpointFiles, record: CommitRecord) -> DataFrame:
        """Return the answer of an epoch, after looking at every byte of its parts."""
        paths = [files.check(part.file) for part in record.parts]
        schema = spark_schema(self._schema)
        return session.read.schema(schema).parquet(*paths) if paths else session.createDataFrame([], schema)

    def contents(self, session: SparkSession) -> DataFrame | None:  # noqa: ARG002 - a function has no memory
        """Return None: what the function did with the rows is its own affair."""
        return None

    def at_rest(self) -> tuple[str, ...]:
        """Return nothing: what the function wrote is its own affair."""
        return ()

    def close(self) -> None:
        """Do nothing."""


class UpsertOutput(FunctionOutput):
    """Call a function with one net change per key.

    The function is called at least once per epoch, every time with the same rows.
    """

    def __init__(self, function: Callable[..., Any], key: Sequence[str] | None) -> None:
        super().__init__(function, "weight")
        self._wanted_key = None if key is None else tuple(key)

    @override
    def describe(self) -> str:
        return super().describe().replace("(weight)", "(upsert)")

    @override
    def open(self, relation: Relation, query_id: str, *, may_lack_columns: bool = False) -> None:
        super().open(relation, query_id, may_lack_columns=may_lack_columns)
        encoded_schema(relation.schema, UpsertFormat())
        self._key = relation.primary_key if self._wanted_key is None else self._wanted_key
        if not self._key:
            raise PlanError(
                f'form="upsert" needs a key, and the inputs of "{relation.name}" imply none; pass key=[...], the columns that '
                "identify a row of the output.",
                code="MISSING_PRIMARY_KEY",
            )
        missing = [name for name in self._key if name not in relation.schema.names]
        refuse_collations(relation.schema, {*self._key} - {*missing}, relation=relation.name, use='a key of form="upsert"')
        if missing:
            raise PlanError(
                f"key={list(self._key)} names {missing}, which is not among the columns {relation.schema.names}.",
                code="UNKNOWN_COLUMN",
                missing=missing,
            )

    @override
    def give(self, rows: DataFrame, epoch: int, digest: str | None) -> None:
        delta = rows
        names = [name for name in delta.columns if name != "_weight"]
        is_there = F.col("_weight") > 0
        net = delta.groupBy(*(quoted(name) for name in self._key)).agg(
            F.sum(F.when(is_there, F.col("_weight")).otherwise(F.lit(0))).alias(_CLAIMS),
            F.max_by(F.struct(*map(quoted, names)), is_there.cast("int")).alias(_ROW),
        )
        net = net.select(_ROW, _CLAIMS)
        self._refuse_doubled(net, epoch)
        row = [F.col(_ROW).getField(name).alias(name) for name in names]
        super().give(net.select(*row, (F.col(_CLAIMS) == 0).alias(UpsertFormat().column)), epoch, digest)

    def _refuse_doubled(self, net: DataFrame, epoch: int) -> None:
        doubled = net.where(F.col(_CLAIMS) > 1).limit(1).collect()
        if doubled:
            key = {name: doubled[0][_ROW][name] for name in self._key}
            raise SinkError(
                f"after epoch {epoch} more than one live row claims the key {key}, of which an upsert can keep only one. Add "
                "columns to key= until it identifies a row, or take a form with retractions.",
                code="KEY_CLAIMED_TWICE",
                key=tuple(key.values()),
                columns=list(self._key),
                epoch=epoch,
            )


def open_sink(sink: Sink, relation: Relation, query_id: str, *, may_lack_columns: bool) -> None:
    """Open a sink, which may lack columns that a change of the query adds to it."""
    if may_lack_columns and isinstance(sink, AlterableSink):
        sink.open(relation, query_id, may_lack_columns=True)
    else:
        sink.open(relation, query_id)


def check_sink_altered(sink: Sink, relation: Relation) -> None:
    """Refuse columns that an open sink cannot be given."""
    if not isinstance(sink, AlterableSink):
        raise SinkError(
            f"the view gets other columns or another key, and the output {sink!r} has those of before. Give the view a new "
            "output, such as evolve(view.writeStream.toDuckDB(path, table)); it is filled at once.",
            code="EVOLVE_OUTPUT",
        )
    sink.check_altered(relation)


def retractions_first(rows: ZSet) -> list[ZSet]:
    """Return an answer as outputs take it: retractions, then insertions."""
    return list(rows.tidy_chunks(max(1, len(rows)))) if len(rows) else []


def read_lines(session: SparkSession, paths: Sequence[str], rows: pa.Schema, form: ChangelogForm) -> DataFrame:
    """Return the lines of a changelog with a column `_weight`; a line of another form than `weight` represents one copy."""
    schema = spark_schema(encoded_schema(rows, format_named(form)))
    return weighted(session.read.schema(schema).parquet(*paths) if paths else session.createDataFrame([], schema), form)


def weighted(lines: DataFrame, form: ChangelogForm) -> DataFrame:
    """Return lines with a column `_weight`; a line of another form than `weight` represents one copy."""
    if form == "weight":
        return lines
    change = F.col("_row_kind" if form == "row_kind" else "_change_type")
    gone = change.isin("-U", "-D", "update_preimage", "delete")
    return lines.withColumn("_weight", F.when(gone, F.lit(-1)).otherwise(F.lit(1)).cast("long"))


def _part_files(record: CommitRecord) -> list[PartFile]:
    return [
        PartFile(part.file.name, part.file.rows, part.retractions, part.file.bytes, part.file.crc32) for part in record.parts
    ]


def _are_there(files: CheckpointFiles, record: CommitRecord) -> bool:
    try:
        for part in record.parts:
            files.check(part.file)
    except StateError:
        return False  # parts are not synced to the disk; the caller answers the epoch again
    return True
