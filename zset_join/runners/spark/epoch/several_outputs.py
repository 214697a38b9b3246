"""Several outputs of one query, kept at the same epoch.

The law: an epoch is committed once, in the checkpoint; then each output takes it, in the order in which they were chosen, and
the next epoch waits for all. An output that has it already is passed over, so after a failure or a restart each has every epoch
as it promises by itself: exactly once, or a function at least once. Between two epochs all show the same one.

The tasks write the answer once per way of writing: outputs that are fed by the driver share their parts, a changelog whose
files the tasks write has its own. A part carries the name of its way, so outputs may change places between two starts; a new
one that is chosen in the middle of a query is refused by itself (`SINK_EPOCH_GAP`).

Memory: with two ways of writing or more, the answer of a task, while it writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from zset_join.checkpoint.answer_parts import ArrowParts
from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.record import CommitRecord, PartEntry
from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.runners.common.rejected import Rejected
from zset_join.runners.spark.epoch.outputs import Output, SelectiveOutput
from zset_join.runners.spark.worker.parts import PartWriter
from zset_join.zset import ZSet

__all__ = ["SeveralOutputs"]


@dataclass(frozen=True)
class SharedParts:
    """Write the answer in several ways."""

    writers: Mapping[str, PartWriter]

    def write(
        self, files: CheckpointFiles, bucket: int, tick: Tick, schema: pa.Schema, chunks: Iterable[ZSet]
    ) -> list[PartEntry]:
        given = chunks if len(self.writers) == 1 else [chunk for chunk in chunks if len(chunk)]
        return [
            replace(part, way=way)
            for way, writer in self.writers.items()
            for part in writer.write(files, bucket, tick, schema, given)
        ]


class SeveralOutputs:
    """Write every epoch to one output after the other."""

    def __init__(self, outputs: Sequence[Output]) -> None:
        self._outputs = tuple(outputs)
        self._opened: list[Output] = []

    @property
    def quarantines(self) -> bool:
        """Return whether rows that an output can never hold are set aside."""
        return any(output.quarantines for output in self._outputs if isinstance(output, SelectiveOutput))

    @quarantines.setter
    def quarantines(self, chosen: bool) -> None:
        for output in self._outputs:
            if isinstance(output, SelectiveOutput):
                output.quarantines = chosen

    @property
    def dead_letter_path(self) -> str:
        """Return where tasks put rows that an output can never hold."""
        return next((output.dead_letter_path for output in self._outputs if isinstance(output, SelectiveOutput)), "")

    @dead_letter_path.setter
    def dead_letter_path(self, path: str) -> None:
        for output in self._outputs:
            if isinstance(output, SelectiveOutput):
                output.dead_letter_path = path

    def put_aside(self, files: CheckpointFiles, record: CommitRecord) -> dict[str, Rejected]:
        rejected: dict[str, Rejected] = {}
        for output in self._outputs:
            if isinstance(output, SelectiveOutput):
                rejected |= output.put_aside(files, _own(record, output))
        return rejected

    def unfit(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        flags = np.ones(rows.num_rows, np.bool_)
        for output in self._outputs:
            flags &= output.unfit(rows) if isinstance(output, SelectiveOutput) else False
        return flags

    def named(self, name: str) -> Output | None:
        """Return the output that `explain` calls so; None where there is none."""
        return next((output for output in self._outputs if output.describe() == name), None)

    @property
    def parts(self) -> PartWriter:
        return SharedParts({_way(output): output.parts for output in self._outputs})

    def describe(self) -> str:
        return "; ".join(output.describe() for output in self._outputs)

    def open(self, relation: Relation, query_id: str, *, may_lack_columns: bool = False) -> None:
        try:
            for output in self._outputs:
                self._opened.append(output)
                output.open(relation, query_id, may_lack_columns=may_lack_columns)
        except BaseException:
            self.close()
            raise

    def has(self, record: CommitRecord) -> bool:
        contained = [output.has(_own(record, output)) for output in self._outputs]
        return all(contained)

    def lacking(self, record: CommitRecord) -> tuple[str, ...]:
        return tuple(name for output in self._outputs for name in output.lacking(_own(record, output)))

    def can_publish(self, files: CheckpointFiles, record: CommitRecord) -> bool:
        return all(
            output.has(own) or ((bool(own.parts) or not record.parts) and output.can_publish(files, own))
            for output, own in ((output, _own(record, output)) for output in self._outputs)
        )

    def publish(self, session: SparkSession, files: CheckpointFiles, record: CommitRecord) -> None:
        for output in self._outputs:
            own = _own(record, output)
            if not output.has(own):
                output.publish(session, files, own)

    def check_altered(self, relation: Relation) -> None:
        for output in self._outputs:
            output.check_altered(relation)

    def check_change(self, epoch: int, rows: ZSet) -> None:
        for output in self._outputs:
            if isinstance(output, SelectiveOutput):
                output.check_change(epoch, rows)

    def give_change(
        self, session: SparkSession, files: CheckpointFiles, record: CommitRecord, rows: ZSet
    ) -> dict[str, Rejected]:
        rejected: dict[str, Rejected] = {}
        for output in self._outputs:
            if not output.has(record):
                rejected |= output.give_change(session, files, record, rows)
        return rejected

    def contents(self, session: SparkSession) -> DataFrame | None:
        return next(iter(self.readable(session).values()), None)

    def readable(self, session: SparkSession) -> dict[str, DataFrame]:
        """Read every output that can be read, by what `explain` calls it."""
        by_output = {output.describe(): output.contents(session) for output in self._outputs}
        return {name: contents for name, contents in by_output.items() if contents is not None}

    def at_rest(self) -> tuple[str, ...]:
        return tuple(place for output in self._outputs for place in output.at_rest())

    def close(self) -> None:
        failure: BaseException | None = None
        while self._opened:
            try:
                self._opened.pop().close()
            except Exception as error:  # noqa: BLE001 - raised below, once the others are closed
                failure = failure or error
        if failure is not None:
            raise failure


def _way(output: Output) -> str:
    """Return the name of the way in which parts of an output are written; the same after a restart."""
    return "arrow" if isinstance(output.parts, ArrowParts) else repr(output.parts)


def _own(record: CommitRecord, output: Output) -> CommitRecord:
    """Return the record with the parts of an output; those of a version with one output have no name."""
    way = _way(output)
    return replace(record, parts=tuple(part for part in record.parts if part.way in ("", way)))
