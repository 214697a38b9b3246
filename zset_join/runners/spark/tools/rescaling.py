"""Give the state of a stopped query another number of buckets, with one Spark job per stage.

    old bucket: snapshot + log -> the operator, as an epoch would find it -> its live rows, tombstones and counts
      -> repartitionById(new number, the bucket the stream would choose)
      -> new bucket: its rows as a snapshot
    -> one record that makes all of it true

The law: the query answers afterwards what it would have answered, row for row as a Z-set. Until the record is there nothing has
changed: a process that dies on the way leaves the old state. Nothing is removed before the query has committed its next epoch.

The rows of a join key come out of one old bucket and go into one new one, in the order in which they were linked; tombstones
keep sequence and time. A row goes by the columns the stream hashes (`Stage.state_tables`). A table without a key stays.

Memory: a worker holds the rows of one old bucket, then of one new one, as Arrow data. Disk: a second set of snapshots.

Limits: a query that drops rows at its limit cannot be rescaled: which rows it drops is decided by each bucket within its share
of the limit, so in other buckets it would have dropped others, and would drop others from now on. A log that was kept with
`retainInputLog` ends here; `verify()` starts from the new snapshots then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.checkpoint.bucket import BucketState, StageContext
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.files import attempt_name
from zset_join.checkpoint.owner import Ownership
from zset_join.checkpoint.reading import (
    checkpoint_folder,
    no_checkpoint,
    read_committed,
    stages_of,
    stored_description,
    stored_query_id,
)
from zset_join.checkpoint.record import BucketHistory
from zset_join.checkpoint.snapshot import write_snapshot
from zset_join.core.epochs import Tick
from zset_join.core.errors import OptionError, StateError, ZsetJoinError
from zset_join.core.options import QueryOptions
from zset_join.core.progress_line import progress_line
from zset_join.core.shown_values import counted
from zset_join.runners.spark.planning.job_settings import job_settings, wanted_settings
from zset_join.runners.spark.planning.normalise import slot_bucket
from zset_join.runners.spark.rows.layout import (
    SlotLayout,
    collect_rows,
    make_layout,
    pack_receipts,
    pack_rows,
    travelling_schema,
)
from zset_join.runners.spark.rows.schemas import spark_schema
from zset_join.runners.spark.session import check_session
from zset_join.runners.spark.worker.receipts import TaskReceipt, error_of_receipt
from zset_join.runners.spark.worker.tasks import TOO_LATE, task_bucket
from zset_join.stages import Stage, StageInput, StageOptions, TableKey
from zset_join.state.rows.side_snapshot import SNAPSHOT_WEIGHT
from zset_join.storage.operations import no_epoch, reporting_full_disk
from zset_join.zset import ZSet

__all__ = ["RescaleReport", "rescale", "rescaled_stage"]

_ROWS_AT_ONCE = 1 << 16
_NO_TOMBSTONE_EXPIRES = StageOptions(on_bad_input="quarantine", tombstone_retention_seconds=100_000 * 86_400)


@dataclass(frozen=True, kw_only=True)
class RescaleReport:
    """Report of `rescale`.

    Args:
        before: the number of buckets the checkpoint had.
        buckets: the number it has.
        epoch: the last committed epoch, of the moved state.
        rows: rows and tombstones of joins and routes, groups and single values of aggregates that were moved, over all
            stages; 0 if nothing was to be done.
    """

    before: int
    buckets: int
    epoch: int | None
    rows: int

    def __str__(self) -> str:
        if self.before == self.buckets:
            return f"the checkpoint has {counted(self.buckets, 'bucket')} already; nothing was done"
        return f"{counted(self.before, 'bucket')} became {self.buckets}: {counted(self.rows, 'row')}, after epoch {self.epoch}"


@reporting_full_disk("the checkpoint lies", {"none": "run it again"}, no_epoch)
@progress_line("rescaling the state")
def rescale(
    checkpoint: str | Path, *, buckets: int, session: SparkSession | None = None, local_state_dir: str | None = None
) -> RescaleReport:
    """Change the number of buckets of a stopped query.

    A checkpoint with this number is left unchanged, so the call may be repeated.

    Args:
        checkpoint: `checkpointLocation` of the query, a path or a URI.
        buckets: the new number, 1 to 4096.
        session: runs the jobs; default: the active session.
        local_state_dir: `localStateDir` of the query; existing state is used, missing state is built there.

    Returns:
        A report; `print` shows it.

    Raises:
        OptionError: an argument that is not allowed, or no session.
        StateError: there is no checkpoint, a driver runs on it, or a file of it is damaged or of another version; nothing was
            changed.

    Cost: every live row is read, shuffled and written once.
    """
    options = QueryOptions.from_options(
        {"checkpointLocation": checkpoint, "buckets": buckets, "localStateDir": local_state_dir}
    )
    if options.buckets is None:
        raise OptionError(f"buckets={buckets!r}: expected a whole number from 1 to 4096.", code="ARGUMENT", value=buckets)
    location = options.checkpoint_location
    chosen = SparkSession.getActiveSession() if session is None else session
    if chosen is None:
        raise OptionError(
            "rescale runs Spark jobs, and there is no active session. Make one first (zset_join.spark.local_session()), or "
            "pass session=...",
            code="NO_SESSION",
        )
    query_id, description = stored_query_id(location), stored_description(location)
    if query_id is None or description is None:
        raise no_checkpoint(location)
    check_session(chosen)
    owner = Ownership.claim(checkpoint_folder(location), query_id)
    try:
        committed = read_committed(location)
        before = 0 if committed is None else committed.buckets
        opened = Checkpoint(
            location,
            query_id=query_id,
            buckets=before,
            description=description,
            local_state_dir=options.local_state_dir,
            owner=owner,
        )
        epoch = None if opened.last is None else opened.last.epoch
        if before == options.buckets:
            return RescaleReport(before=before, buckets=before, epoch=epoch, rows=0)
        histories: dict[str, BucketHistory] = {}
        rows = 0
        for name, stage in _with_state(opened, stages_of(location)).items():
            new_histories, moved = _moved(name, stage, chosen, opened, options.buckets, _NO_TOMBSTONE_EXPIRES)
            histories |= new_histories
            rows += moved
        opened.rescale(options.buckets, histories)
        return RescaleReport(before=before, buckets=options.buckets, epoch=epoch, rows=rows)
    finally:
        owner.release()


def _moved(
    name: str, stage: Stage, session: SparkSession, opened: Checkpoint, buckets: int, folding: StageOptions
) -> tuple[dict[str, BucketHistory], int]:
    """Write the snapshots of the new buckets of a stage; return the files to list, and the number of moved rows."""
    if opened.last is None:
        return {}, 0
    last = opened.last
    context = opened.stage(name, Tick(last.epoch + 1, last.processing_time_us))
    return rescaled_stage(stage, session, context, (opened.buckets, buckets), folding)


def rescaled_stage(
    stage: Stage, session: SparkSession, context: StageContext, numbers: tuple[int, int], folding: StageOptions
) -> tuple[dict[str, BucketHistory], int]:
    """Write snapshots of new buckets of a stage by one Spark job; return the files to list and the number of rows."""
    old, buckets = numbers
    schemas = _schemas(stage, folding)
    plain = [pa.schema([field for field in schema if field.name != SNAPSHOT_WEIGHT]) for schema in schemas.values()]
    layout = make_layout(*plain, has_raw=False)
    context = replace(context, snapshot_buckets=frozenset(), merge_buckets=frozenset())
    read = _ReadBuckets(context=context, stage=stage, options=folding, layout=layout, names=tuple(schemas))
    write = _WriteBuckets(context=context, stage=stage, layout=layout, schemas=schemas, epoch=context.tick.epoch - 1)
    keys = [_rule(stage, stage.state_tables[table]) for table in schemas]
    wanted = wanted_settings(_ROWS_AT_ONCE, is_routed=True)
    with job_settings(session, wanted):
        rows = session.range(0, old, 1, old).mapInArrow(read, spark_schema(travelling_schema(layout)))
        rows = rows.select("*", slot_bucket(layout, keys, buckets)).repartitionById(buckets, F.col("bucket"))
        lines = rows.mapInArrow(write, "receipt string").collect()
    return _histories([TaskReceipt.from_json(line[0]) for line in lines], old, buckets)


def _rule(stage: Stage, table: TableKey) -> tuple[StageInput, tuple[str, ...]]:
    """Return the hash rule for the rows of a snapshot's table: an input they are like, and the columns of its key."""
    if not table.columns:
        return StageInput(relation=stage.inputs[0].relation), ()
    if table.of_input is not None:
        return stage.inputs[table.of_input], table.columns
    return replace(stage.inputs[0], unmatchable="by_key"), table.columns


def _schemas(stage: Stage, options: StageOptions) -> dict[str, pa.Schema]:
    """Return the columns of each table of a snapshot."""
    operator = stage.build(options, None)
    try:
        return {name: table.schema.remove_metadata() for name, table in operator.snapshot().items()}
    finally:
        operator.close()


@dataclass(frozen=True, kw_only=True)
class _ReadBuckets:
    """Send the rows of old buckets and a receipt for each; callable, for `mapInArrow` over their numbers."""

    context: StageContext
    stage: Stage
    options: StageOptions
    layout: SlotLayout
    names: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for bucket in batch.column(0).to_pylist():
                receipt = TaskReceipt(stage=self.context.stage, bucket=bucket)
                try:
                    yield from self._rows(bucket, receipt)
                except ZsetJoinError as error:
                    if error.code == TOO_LATE:
                        raise
                    receipt.refuse(error)
                yield pack_receipts([receipt.to_json()], self.layout)

    def _rows(self, bucket: int, receipt: TaskReceipt) -> Iterator[pa.RecordBatch]:
        with BucketState(self.context, bucket, partial(self.stage.build, self.options)) as state:
            tables = state.operator.snapshot()
        sent = 0
        receipt.rows_in = [tables[name].num_rows for name in self.names]
        facts = {name: _text_of(tables[name].schema.metadata) for name in self.names}
        receipt.facts = {name: fact for name, fact in facts.items() if fact}
        for side, name in enumerate(self.names):
            for batch in tables[name].to_batches(max_chunksize=_ROWS_AT_ONCE):
                rows = ZSet(batch.select(self.layout.schemas[side].names), _weights(batch))
                yield pack_rows(rows, self.layout, side=side, sender=bucket, sent=sent)
                sent += len(rows)


@dataclass(frozen=True, kw_only=True)
class _WriteBuckets:
    """Write the snapshot of a new bucket; callable, for `mapInArrow`. Yields its receipt, in bucket 0 also the readers'."""

    context: StageContext
    stage: Stage
    layout: SlotLayout
    schemas: Mapping[str, pa.Schema]
    epoch: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        receipt = TaskReceipt(stage=self.context.stage, bucket=task_bucket(), rows_in=[0] * len(self.schemas))
        rows, lines = collect_rows(batches, self.layout)
        readers = [TaskReceipt.from_json(line) for line in lines]
        tables = {}
        for side, (name, schema) in enumerate(self.schemas.items()):
            # A table counts for the bucket as a whole, and all that matters is the sum: it goes with the receipts.
            metadata = [_bytes_of(reader.facts[name]) for reader in readers if name in reader.facts]
            table = _table(rows[side], schema)
            receipt.rows_in[side] = table.num_rows
            tables[name] = self.stage.regrouped(table, epoch=self.epoch, metadata=metadata)
        receipt.snapshot = write_snapshot(
            self.context.files,
            f"snapshot/{self.context.stage}-{receipt.bucket}",
            tables,
            through_epoch=self.epoch,
            identity=attempt_name(self.epoch, "-rescaled"),
        )
        yield pa.RecordBatch.from_pydict({"receipt": [*lines, receipt.to_json()]})


def _weights(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the weights of the rows of a table; 1 where it has none."""
    at = batch.schema.get_field_index(SNAPSHOT_WEIGHT)
    return np.ones(batch.num_rows, np.int64) if at < 0 else batch.column(at).to_numpy(zero_copy_only=False)


def _text_of(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in (metadata or {}).items()}


def _bytes_of(facts: Mapping[str, str]) -> dict[bytes, bytes]:
    return {key.encode(): value.encode() for key, value in facts.items()}


def _table(pieces: list[ZSet], schema: pa.Schema) -> pa.Table:
    batches = []
    for piece in pieces:
        columns = dict(zip(piece.schema.names, piece.rows.columns, strict=True))
        columns[SNAPSHOT_WEIGHT] = pa.array(piece.weights)
        batches.append(pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema))
    return pa.Table.from_batches(batches, schema)


def _with_state(opened: Checkpoint, stages: Mapping[str, Stage]) -> dict[str, Stage]:
    """Return the stages that have state, by their names."""
    names = {key.partition("/")[0] for key in opened.histories}
    unknown = sorted(names - set(stages))
    if unknown:
        raise StateError(
            f"the checkpoint {opened.files.folder.location} holds state of the stages {unknown}, which its stored "
            f"plan does not describe: it was made by another version of the library. Nothing was changed. Keep the number of "
            "buckets, or start the query again with a new checkpointLocation and output.",
            code="UNKNOWN_STAGE",
            stages=unknown,
        )
    return {name: stage for name, stage in stages.items() if name in names}


def _histories(receipts: list[TaskReceipt], old: int, buckets: int) -> tuple[dict[str, BucketHistory], int]:
    """Return the files to list and the rows of all buckets, once the receipts show that nothing is missing."""
    for receipt in receipts:
        error = error_of_receipt(receipt)
        if error is not None:
            raise error
    read = [receipt for receipt in receipts if receipt.snapshot is None]
    written = [receipt for receipt in receipts if receipt.snapshot is not None]
    came, left = (sum(sum(receipt.rows_in) for receipt in receipts_of) for receipts_of in (read, written))
    numbers: list[Any] = [sorted(receipt.bucket for receipt in receipts_of) for receipts_of in (read, written)]
    if came != left or numbers != [list(range(old)), list(range(buckets))]:
        raise StateError(
            f"rescaling: rows read {came}, written {left}, buckets read {numbers[0]}, written {numbers[1]}; rows were lost on "
            "the way, and nothing was changed. Try again; if it happens again, report it.",
            code="ROWS_LOST",
        )
    return {receipt.key: BucketHistory(receipt.snapshot) for receipt in written}, left
