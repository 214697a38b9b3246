"""How rows reach the buckets of a stage: in this process, between threads, or through a shuffle.

    rows of an input -> route: a delete goes where the row of its key is, an upsert where it belongs -> a part per bucket

A *route* is there where upserts are named by a key that does not divide the stage, so that a row may move to another bucket. It
is part of the exchange, not of the plan: its table is the side that it feeds, without the payload, and follows from that.

The law: a stage in any number of buckets, each given its parts, answers what one operator answers that is given all rows, and
its snapshots put together are the snapshot of that operator. Changes of a key keep their order.

The bucket of a row follows from its key. A row whose key has a NULL that matches nothing goes by its identity, so that such
rows spread out and a later change finds them. Rows without a key go to bucket 0, and those that concern all buckets to all.

Remembers of a routed input, per primary key: the key that divides the stage, the sequence, a tombstone for a while.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zset_join.core.epochs import Tick
from zset_join.core.errors import KeyTypeError
from zset_join.core.key_types import check_key_type, storage_type
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import take_rows
from zset_join.operators.upsert_table import Route
from zset_join.runners.common.key_buckets import KeyBuckets
from zset_join.stages.stage import Stage, StageInput, StageOptions
from zset_join.state.rows.side_snapshot import EPOCH, SNAPSHOT_WEIGHT, snapshot_epoch
from zset_join.zset import ZSet, single_batch

__all__ = ["Exchange", "RowBuckets", "apart", "moves", "side_table", "together"]

_Buckets = npt.NDArray[np.int64]


def moves(given: StageInput) -> bool:
    """Return whether a row of an input may move to another bucket, while its change does not name the one it was in."""
    return given.relation.mode == "upsert" and bool(given.key) and not set(given.key) <= set(given.relation.primary_key)


def side_table(stage: Stage, number: int) -> str | None:
    """Return the table of a snapshot that has all live rows of an input; None: there is none."""
    return next((name for name, table in stage.state_tables.items() if table.is_whole and table.of_input == number), None)


class RowBuckets:
    """Find the buckets of the rows of an input; one thread at a time uses it.

    Args:
        given: the input.
        buckets: how many there are.
        columns: the key in the rows, where it is called otherwise there.
    """

    def __init__(self, given: StageInput, buckets: int, *, schema: pa.Schema, columns: Sequence[str] | None = None) -> None:
        key = given.key if columns is None else tuple(columns)
        self._by_key = KeyBuckets(schema, key, given.key_types, buckets) if key else None
        self._equal = [name for name, is_value in zip(key, given.null_is_value, strict=False) if not is_value]
        names = _identity(given.relation) if self._equal else []
        self._by_identity = KeyBuckets(schema, names, [schema.field(name).type for name in names], buckets) if names else None

    def of(self, rows: pa.RecordBatch) -> _Buckets:
        """Return the bucket of each row."""
        if self._by_key is None:
            return np.zeros(rows.num_rows, np.int64)
        buckets = self._by_key.of(rows)
        nulls = [rows.column(name).is_null() for name in self._equal if rows.column(name).null_count]
        if nulls and self._by_identity is not None:
            lost = np.flatnonzero(np.logical_or.reduce([one.to_numpy(zero_copy_only=False) for one in nulls]))
            buckets[lost] = self._by_identity.of(take_rows(rows, lost))
        return buckets


class Exchange:
    """Bring the rows of one input of a stage to its buckets."""

    def __init__(self, given: StageInput, buckets: int, options: StageOptions, *, directory: str | None = None) -> None:
        self.buckets, self._everywhere = buckets, given.everywhere
        self.route: Route | None = None
        if moves(given):
            self.route = Route(replace(given.relation, join_key=given.key), options=options.of_operator(directory))
        self._by_row = RowBuckets(given, buckets, schema=given.fed.schema)

    def routed(self, tick: Tick, delta: ZSet) -> ZSet:
        """Return the changes that go to the buckets, by the state before the epoch: called twice it gives the same twice."""
        if self.route is None or not len(delta):
            return delta
        return ZSet.concat(list(self.route.answer(tick, [delta])), schema=self.route.output.schema)

    def split(self, tick: Tick, delta: ZSet) -> list[ZSet]:
        """Return the part of every bucket, in which rows keep their order."""
        changes = self.routed(tick, delta)
        buckets = self._by_row.of(changes.rows)
        spread = np.zeros(len(changes), np.bool_)
        if self._everywhere is not None:
            spread = pc.less(changes.rows.column(self._everywhere), 0).fill_null(False).to_numpy(zero_copy_only=False)
        return [_taken(changes, np.flatnonzero((buckets == bucket) | spread)) for bucket in range(self.buckets)]

    def absorb(self, tick: Tick, delta: ZSet) -> None:
        """Fold in an epoch that counts."""
        if self.route is not None:
            self.route.absorb(tick, [delta])

    def restore(self, side: pa.Table) -> None:
        """Continue from all rows of the side that the input feeds."""
        if self.route is None:
            return
        rows = side.select(self.route.snapshot()["route"].schema.names)
        self.route.restore({"route": rows.replace_schema_metadata(_without_counts(side.schema.metadata or {}))})

    def settled(self, parts: Sequence[pa.Table]) -> list[pa.Table]:
        """Return the rows of the side in all buckets: of a key that left one, only the tombstone that the route has."""
        if self.route is None:
            return list(parts)
        deleted = self.route.snapshot()["route"]
        deleted = deleted.filter(pc.equal(deleted.column(SNAPSHOT_WEIGHT), 0))
        live = [part.filter(pc.not_equal(part.column(SNAPSHOT_WEIGHT), 0)) for part in parts]
        return [*live, _with_columns(deleted, parts[0].schema)]

    def close(self) -> None:
        if self.route is not None:
            self.route.close()


def together(
    stage: Stage, taken: Sequence[Mapping[str, pa.Table]], exchanges: Mapping[int, Exchange], *, epoch: int
) -> dict[str, pa.Table]:
    """Return the snapshots of all buckets as that of one operator; `exchanges`: by input, those with a route."""
    tables = {}
    for name in taken[0]:
        parts = [one[name] for one in taken]
        rule = stage.state_tables[name]
        exchange = exchanges.get(rule.of_input) if rule.is_whole and rule.of_input is not None else None
        parts = parts if exchange is None else exchange.settled(parts)
        metadata = [part.schema.metadata or {} for part in parts]
        table = pa.concat_tables([part.replace_schema_metadata(None) for part in parts])
        tables[name] = stage.regrouped(table, epoch=epoch, metadata=metadata)
    return tables


def apart(stage: Stage, tables: Mapping[str, pa.Table], buckets: int) -> list[dict[str, pa.Table]]:
    """Return the snapshot of one operator as those of so many buckets; what it counts is in bucket 0."""
    parts: list[dict[str, pa.Table]] = [{} for _ in range(buckets)]
    for name, table in tables.items():
        rule = stage.state_tables[name]
        metadata = table.schema.metadata or {}
        given = replace(stage.inputs[0], unmatchable="by_key") if rule.of_input is None else stage.inputs[rule.of_input]
        rows = RowBuckets(replace(given, key=rule.columns), buckets, schema=table.schema) if rule.columns else None
        of_row = np.zeros(table.num_rows, np.int64) if rows is None else rows.of(single_batch(table))
        for bucket in range(buckets):
            own = table.take(pa.array(np.flatnonzero(of_row == bucket))).replace_schema_metadata(None)
            facts = metadata if bucket == 0 else _without_counts(metadata)
            parts[bucket][name] = stage.regrouped(own, epoch=snapshot_epoch(table), metadata=[facts])
    return parts


def _identity(relation: Relation) -> list[str]:
    """Return the columns that distinguish rows, as far as they can be hashed."""
    if relation.primary_key:
        return list(relation.primary_key)
    return [field.name for field in relation.schema if _is_hashed(field)]


def _is_hashed(field: pa.Field) -> bool:
    try:
        check_key_type(storage_type(field.type), relation="", column=field.name)
    except KeyTypeError:
        return False
    return True


def _taken(changes: ZSet, positions: _Buckets) -> ZSet:
    if len(positions) == len(changes):
        return changes
    return ZSet(take_rows(changes.rows, positions), np.ascontiguousarray(changes.weights[positions]))


def _with_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with the columns of a schema, those that it lacks without values, and 0 in what the engine counts."""
    columns = []
    for field in schema:
        if field.name in table.schema.names:
            columns.append(table.column(field.name).cast(field.type))
        elif field.name.startswith("_zset_"):
            columns.append(pa.array(np.zeros(table.num_rows, np.int64)))
        else:
            columns.append(pa.nulls(table.num_rows, field.type))
    return pa.table(columns, schema=schema.with_metadata(table.schema.metadata))


def _without_counts(metadata: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return of the metadata of a table the epoch, and the times by name: these hold for every bucket."""
    return {name: text for name, text in metadata.items() if text.startswith(b"{") or name == EPOCH}
