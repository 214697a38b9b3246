"""Give the state of a stopped query another number of buckets, with one Spark job per stage.

    old bucket: snapshot + log -> the operator, as an epoch would find it -> its live rows, tombstones and counts
      -> repartitionById(new number, the bucket the stream would choose)
      -> new bucket: its rows as a snapshot
    -> one record that makes all of it true

The law: the query answers afterwards what it would have answered, row for row as a Z-set. Until the record is there nothing has
changed: whoever dies on the way leaves the old state. Nothing is removed before the query has committed its next epoch.

The rows of a join key come out of one old bucket and go into one new one, in the order in which they were linked. Tombstones
keep their sequence and their time; what expires meanwhile goes in the query's next epochs. A row goes by the columns that are
kept of it, which are those the stream hashes. A group goes by its key, with its sums and its values; the one group of an
aggregate without GROUP BY stays where it is.

Memory: a worker holds the rows of one old bucket, then of one new one, as Arrow data. Disk: a second set of snapshots.

Limits: a query that drops rows at its limit cannot be rescaled: which rows it drops is decided by each bucket within its share
of the limit, so in other buckets it would have dropped others, and would drop others from now on. A log that was kept with
`retainInputLog` ends here; `verify()` starts from the new snapshots then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.aggregates.grouped_input import groups_at
from zset_join.checkpoint.bucket import BucketState, StageContext
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.files import attempt_name
from zset_join.checkpoint.owner import Ownership
from zset_join.checkpoint.reading import (
    checkpoint_folder,
    no_checkpoint,
    read_standing,
    stored_description,
    stored_plan,
    stored_query_id,
)
from zset_join.checkpoint.record import BucketHistory
from zset_join.checkpoint.snapshot import write_snapshot
from zset_join.config import QueryOptions
from zset_join.errors import OptionError, StateError, ZsetJoinError
from zset_join.plan import JoinNode, RouteNode
from zset_join.protocol import DurableOperator
from zset_join.spark.buffer_limit import EVICTION
from zset_join.spark.epoch_plan import group_bucket
from zset_join.spark.job_progress import shown_progress
from zset_join.spark.job_settings import job_settings, wanted_settings
from zset_join.spark.layout import SlotLayout, collect_rows, make_layout, pack_notes, pack_rows, travelling_schema
from zset_join.spark.normalise import join_bucket, key_bucket
from zset_join.spark.notes import TaskNote, note_of_error
from zset_join.spark.operators import AggregateNode, OperatorOptions, aggregate_builder, join_builder, route_builder
from zset_join.spark.schemas import spark_schema
from zset_join.spark.session import check_session
from zset_join.spark.stacked_tables import StackedTables
from zset_join.spark.stage_names import JOIN_STAGE, aggregate_stage, join_stage, route_stage
from zset_join.spark.tasks import TOO_LATE, task_bucket
from zset_join.state.side_snapshot import SNAPSHOT_WEIGHT, regrouped_snapshot, snapshot_counts
from zset_join.tick import Tick
from zset_join.zset import ZSet

__all__ = ["RescaleReport", "rescale"]

_ROWS_AT_ONCE = 1 << 16
_NO_TOMBSTONE_EXPIRES = OperatorOptions(on_bad_input="quarantine", tombstone_retention_seconds=100_000 * 86_400)
_COUNTS = ("stale_rows", "unknown_deletes", "rejected_rows", "evicted_rows", "evicted_bytes")


@dataclass(frozen=True, kw_only=True)
class RescaleReport:
    """Say what `rescale` did.

    Args:
        before: the number of buckets the checkpoint had.
        buckets: the number it has.
        epoch: the last committed epoch, whose state it is.
        rows: rows and tombstones of joins and routes, groups and single values of aggregates that were moved, over all
            stages; 0 when there was nothing to do.
    """

    before: int
    buckets: int
    epoch: int | None
    rows: int

    def __str__(self) -> str:
        if self.before == self.buckets:
            return f"the checkpoint has {self.buckets} buckets already; nothing was done"
        return f"{self.before} buckets became {self.buckets}: {self.rows} rows, after epoch {self.epoch}"


def rescale(
    checkpoint: str | Path, *, buckets: int, session: SparkSession | None = None, local_state_dir: str | None = None
) -> RescaleReport:
    """Give the state of a stopped query another number of buckets.

    A checkpoint that has this number already is left as it is, so that a call may be repeated.

    Args:
        checkpoint: `checkpointLocation` of the query, a path or a URI.
        buckets: the new number, 1 to 4096.
        session: runs the jobs; default: the active session.
        local_state_dir: `localStateDir` of the query; state that is there is used, and other is built there.

    Returns:
        What was done; `print` shows it.

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
        standing = read_standing(location)
        before = 0 if standing is None else standing.buckets
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
        if EVICTION in description:
            raise StateError(
                f'the query of the checkpoint {location} drops rows at its limit (join_buffer_policy="evict_oldest"), each '
                "bucket within its share of it: which rows are there depends on the number of buckets. Start the query anew "
                "with a new checkpointLocation and output.",
                code="EVICTS_BY_BUCKET",
                location=location,
            )
        stages = _stages(opened, _nodes(stored_plan(location)))
        histories: dict[str, BucketHistory] = {}
        rows = 0
        for stage in stages:
            made, moved = stage.moved(chosen, opened, options.buckets)
            histories |= made
            rows += moved
        opened.rescale(options.buckets, histories)
        return RescaleReport(before=before, buckets=options.buckets, epoch=epoch, rows=rows)
    finally:
        owner.release()


@dataclass(frozen=True, kw_only=True)
class _Stage:
    """One stage to be moved.

    Args:
        name: name of the stage.
        build: makes its operator over a directory, or in memory when given None.
        bucket: the bucket of rows in slots, given how they lie and the number of buckets.
        keys: of an aggregate, how many key columns its groups have; None where the tables of a snapshot are sides.
    """

    name: str
    build: Callable[[str | None], DurableOperator]
    bucket: Callable[[SlotLayout, int], Column]
    keys: int | None = None

    def moved(self, session: SparkSession, opened: Checkpoint, buckets: int) -> tuple[dict[str, BucketHistory], int]:
        """Write the snapshots of the new buckets; return what to list, and the rows moved."""
        if opened.last is None:
            return {}, 0
        old, last = opened.buckets, opened.last
        schemas, stack = self._schemas(), None
        if self.keys is not None:
            stack = StackedTables(schemas, keys=self.keys, weight=SNAPSHOT_WEIGHT)
            schemas = {self.name: stack.schema}
        plain = [pa.schema([field for field in schema if field.name != SNAPSHOT_WEIGHT]) for schema in schemas.values()]
        layout = make_layout(plain[0], plain[1] if len(plain) > 1 else pa.schema([]), has_raw=False)
        context = opened.stage(self.name, Tick(last.epoch + 1, last.processing_time_us))
        context = replace(context, snapshot_buckets=frozenset(), merge_buckets=frozenset())
        read = _ReadBuckets(context=context, build=self.build, layout=layout, names=tuple(schemas), stack=stack)
        write = _WriteBuckets(context=context, layout=layout, schemas=schemas, stack=stack, epoch=last.epoch)
        wanted = wanted_settings(_ROWS_AT_ONCE, is_routed=True)
        shown = shown_progress(session.sparkContext, what=f"rescale {self.name}", tasks=old + buckets)
        with job_settings(session, wanted), shown:
            rows = session.range(0, old, 1, old).mapInArrow(read, spark_schema(travelling_schema(layout)))
            rows = rows.select("*", self.bucket(layout, buckets)).repartitionById(buckets, F.col("bucket"))
            lines = rows.mapInArrow(write, "note string").collect()
        return _histories([TaskNote.from_json(line[0]) for line in lines], old, buckets)

    def _schemas(self) -> dict[str, pa.Schema]:
        """Return the columns of each table of a snapshot."""
        operator = self.build(None)
        try:
            return {name: table.schema.remove_metadata() for name, table in operator.snapshot().items()}
        finally:
            operator.close()


@dataclass(frozen=True, kw_only=True)
class _ReadBuckets:
    """Send on what old buckets hold, and a note for each; callable, for `mapInArrow` over their numbers."""

    context: StageContext
    build: Callable[[str | None], DurableOperator]
    layout: SlotLayout
    names: tuple[str, ...]
    stack: StackedTables | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for bucket in batch.column(0).to_pylist():
                note = TaskNote(stage=self.context.stage, bucket=bucket)
                try:
                    yield from self._rows(bucket, note)
                except ZsetJoinError as error:
                    if error.code == TOO_LATE:
                        raise
                    note.refuse(error)
                yield pack_notes([note.to_json()], self.layout)

    def _rows(self, bucket: int, note: TaskNote) -> Iterator[pa.RecordBatch]:
        with BucketState(self.context, bucket, self.build) as state:
            tables = state.operator.snapshot()
        if self.stack is not None:
            tables = {self.context.stage: self.stack.stacked(tables)}
        sent = 0
        for side, name in enumerate(self.names):
            table = tables[name]
            note.rows_in[side] = table.num_rows
            note.statistics |= {f"{name}.{what}": n for what, n in zip(_COUNTS, snapshot_counts(table), strict=True)}
            for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
                weights = batch.column(SNAPSHOT_WEIGHT).to_numpy(zero_copy_only=False)
                rows = ZSet(batch.select(self.layout.schemas[side].names), weights)
                yield pack_rows(rows, self.layout, side=side, sender=bucket, sent=sent)
                sent += len(rows)


@dataclass(frozen=True, kw_only=True)
class _WriteBuckets:
    """Write the snapshot of a new bucket; callable, for `mapInArrow`. Yields its note, and in bucket 0 those of the readers."""

    context: StageContext
    layout: SlotLayout
    schemas: Mapping[str, pa.Schema]
    stack: StackedTables | None
    epoch: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        note = TaskNote(stage=self.context.stage, bucket=task_bucket())
        rows, lines = collect_rows(batches, self.layout)
        readers = [TaskNote.from_json(line) for line in lines]
        tables = {}
        for side, (name, schema) in enumerate(self.schemas.items()):
            # The side counts for the bucket as a whole, and all that matters is the sum: it goes with the notes.
            counts = [sum(reader.statistics.get(f"{name}.{what}", 0) for reader in readers) for what in _COUNTS]
            table = _table(rows[side], schema)
            note.rows_in[side] = table.num_rows
            tables[name] = regrouped_snapshot(table, epoch=self.epoch, counts=counts) if self.stack is None else table
        if self.stack is not None:
            parted = self.stack.parted(tables[self.context.stage])
            tables = {name: groups_at(table, epoch=self.epoch) for name, table in parted.items()}
        note.snapshot = write_snapshot(
            self.context.files,
            f"snapshot/{self.context.stage}-{note.bucket}",
            tables,
            through_epoch=self.epoch,
            identity=attempt_name(self.epoch, "-rescaled"),
        )
        yield pa.RecordBatch.from_pydict({"note": [*lines, note.to_json()]})


def _table(pieces: list[ZSet], schema: pa.Schema) -> pa.Table:
    """Return pieces of a side as a table with the columns of its snapshot."""
    batches = [piece.rows.append_column(SNAPSHOT_WEIGHT, pa.array(piece.weights)).select(schema.names) for piece in pieces]
    return pa.Table.from_batches([pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches], schema)


def _nodes(plan: Mapping[str, Any]) -> dict[int, JoinNode | AggregateNode]:
    """Return the joins and aggregates of a plan by the numbers of their stages."""
    further = {aggregate_stage(number): found for number, found in enumerate(plan.get("aggregates", ()), start=1)}
    nodes: dict[int, JoinNode | AggregateNode] = {0: JoinNode.from_json(plan)}
    for stage, found in {**further, **plan.get("stages", {})}.items():
        kind, _, number = stage.partition("-")
        nodes[int(number)] = JoinNode.from_json(found) if kind == JOIN_STAGE else AggregateNode.from_json(found)
    return nodes


def _stages(opened: Checkpoint, nodes: Mapping[int, JoinNode | AggregateNode]) -> list[_Stage]:
    """Return the stages that have state.

    Raises:
        StateError: there is state of a stage that the plan does not have.
    """
    found = {key.partition("/")[0] for key in opened.histories}
    known: list[_Stage] = []
    for number, node in nodes.items():
        known += [_aggregate(aggregate_stage(number), node)] if isinstance(node, AggregateNode) else _join(number, node)
    unknown = sorted(found - {stage.name for stage in known})
    if unknown:
        raise StateError(
            f"the checkpoint {opened.files.folder.location} holds state of the stages {unknown}, which the plan written down "
            "in it does not describe: it was made by another version of the library. Nothing was changed. Keep the number of "
            "buckets, or start the query anew with a new checkpointLocation and output.",
            code="UNKNOWN_STAGE",
            stages=unknown,
        )
    return [stage for stage in known if stage.name in found]


def _join(number: int, node: JoinNode) -> list[_Stage]:
    """Return the stages of a join and of its routes."""
    join = _Stage(
        name=join_stage(number),
        build=join_builder(node, _NO_TOMBSTONE_EXPIRES),
        bucket=lambda layout, buckets: join_bucket(layout, node, buckets),
    )
    routes = [
        _route(route_stage(side, number), source) for side, source in enumerate(node.sides) if isinstance(source, RouteNode)
    ]
    return [join, *routes]


def _route(name: str, node: RouteNode) -> _Stage:
    return _Stage(
        name=name,
        build=route_builder(node, _NO_TOMBSTONE_EXPIRES),
        bucket=lambda layout, buckets: key_bucket(layout, node.relation.primary_key, buckets),
    )


def _aggregate(name: str, node: AggregateNode) -> _Stage:
    keys = tuple(f"k{at}" for at in range(len(node.group_by)))
    return _Stage(
        name=name,
        build=aggregate_builder(node, _NO_TOMBSTONE_EXPIRES),
        bucket=lambda layout, buckets: group_bucket(layout, keys, buckets),
        keys=len(keys),
    )


def _histories(notes: list[TaskNote], old: int, buckets: int) -> tuple[dict[str, BucketHistory], int]:
    """Return what to list and the rows of all buckets, once the notes say that nothing is missing."""
    for note in notes:
        error = note_of_error(note)
        if error is not None:
            raise error
    read = [note for note in notes if note.snapshot is None]
    written = [note for note in notes if note.snapshot is not None]
    came, left = (sum(sum(note.rows_in) for note in told) for told in (read, written))
    numbers: list[Any] = [sorted(note.bucket for note in told) for told in (read, written)]
    if came != left or numbers != [list(range(old)), list(range(buckets))]:
        raise StateError(
            f"rescaling: rows read {came}, written {left}, buckets read {numbers[0]}, written {numbers[1]}; rows were lost on "
            "the way, and nothing was changed. Try again; if it happens again, report it.",
            code="ROWS_LOST",
        )
    return {note.key: BucketHistory(note.snapshot) for note in written}, left
