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
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zset_join.core.epochs import Tick
from zset_join.core.errors import KeyTypeError
from zset_join.core.key_types import check_key_type, storage_type
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import take_rows
from zset_join.kernels.values.keys import hash_rows
from zset_join.operators.upsert_table import Route
from zset_join.stages.stage import Stage, StageInput, StageOptions
from zset_join.state.rows.side_snapshot import EPOCH, SNAPSHOT_WEIGHT, snapshot_epoch
from zset_join.zset import ZSet, single_batch
from zset_join.zset.row_layout import RowLayout

__all__ = ["Exchange", "KeyBuckets", "MovedKeys", "RowBuckets", "apart", "side_table", "together"]

_Words = npt.NDArray[np.int64]

# Not the seed of any table, so that rows of one bucket spread over all of its slots.
_HASH_KEY = (0x2C7A9F35 << 32) | 0xFFFFFFFF


class KeyBuckets:
    """Find the buckets of rows; one thread at a time uses it."""

    def __init__(self, schema: pa.Schema, key: Sequence[str], key_types: Sequence[pa.DataType], buckets: int) -> None:
        self._names = list(dict.fromkeys(key))
        keys = pa.schema([schema.field(name) for name in self._names])
        casts = [
            (name, kind)
            for name, kind in zip(key, key_types, strict=True)
            if storage_type(keys.field(name).type) != storage_type(kind)
        ]
        self._layout = RowLayout(keys, key_casts=casts)
        self._columns = self._layout.columns(tuple(key), null_safe=[True] * len(key), as_key=True)
        self._schema = keys
        self._buckets = buckets

    def hashes(self, rows: pa.RecordBatch) -> _Words:
        """Return a hash of 32 bits per row."""
        count = rows.num_rows
        hashes, nulls = np.empty(count, np.int64), np.empty(count, np.uint8)
        if count:
            keys = pa.RecordBatch.from_arrays([rows.column(name) for name in self._names], schema=self._schema)
            stride = self._layout.stride
            records = np.empty(count * stride, np.uint8)
            encoded = self._layout.encode(keys, [], records, int(records.ctypes.data))
            places = int(hashes.ctypes.data), int(nulls.ctypes.data)
            hash_rows(encoded.address, stride, count, self._columns.address, _HASH_KEY, *places)
        return hashes

    def of(self, rows: pa.RecordBatch) -> _Words:
        return (self.hashes(rows) * self._buckets) >> 32


class MovedKeys:
    """Remember in which buckets the row of a primary key may be.

    A bucket that may have one is given a delete of it whenever its row goes elsewhere: one that is not there is no change. So a
    bucket too many costs a look, and none is ever missing: between two calls of `clear` buckets are only added, keys share
    places, and an epoch that is refused leaves what it added.

    Memory: a byte, or a word of more than 8 buckets, for each of 8 to 16 times as many places as there were keys; at least
    `2 ** bits` places.
    """

    def __init__(self, buckets: int, *, bits: int = 22) -> None:
        self._kind = np.uint8 if buckets <= 8 else np.uint64
        self._buckets, self._least_bits = buckets, bits
        self.clear(0)

    def clear(self, keys: int) -> None:
        """Forget all, before so many keys are noted."""
        self._bits = min(32, max(self._least_bits, (8 * keys).bit_length()))
        self._places: npt.NDArray[Any] = np.zeros(1 << self._bits, self._kind)
        self._noted = self._counted = self._followed = 0
        self._keys = keys

    def note(self, hashes: _Words, buckets: _Words) -> None:
        """Note rows, by the hashes of their primary keys, and the buckets they go to."""
        places = hashes >> (32 - self._bits)
        for bucket in range(self._buckets):
            self._places[places[buckets == bucket]] |= self._kind(1 << bucket)
        self._noted += len(hashes)

    def of(self, hashes: _Words) -> npt.NDArray[Any]:
        """Return, per row, the buckets that may have its primary key, a bit for each."""
        holders: npt.NDArray[Any] = self._places[hashes >> (32 - self._bits)]
        return holders

    def follow(self, deletes: int) -> bool:
        """Note that so many deletes went to buckets that may have a row; return whether noting all rows again pays off."""
        # It does where keys share too many places, or where most buckets that may have a row have lost it.
        self._followed += deletes
        if self._noted > len(self._places) // 8:
            self._counted, self._noted = int(np.count_nonzero(self._places)), 0
        is_crowded = self._bits < 32 and 4 * self._counted > len(self._places)
        return is_crowded or self._followed > 2 * max(self._keys, self._counted, 1 << 16)


_Buckets = npt.NDArray[np.int64]


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
        if given.moves:
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
