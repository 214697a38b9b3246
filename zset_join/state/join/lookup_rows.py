"""The second input of a lookup join: what was found for the keys that were looked up, one row per key at least."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from zset_join.core.key_types import storage_type
from zset_join.core.row_conversion import plain, take_rows
from zset_join.shapes.lookup import LookupShape, RetryPolicy
from zset_join.state.rows.hash_seed import HashTables
from zset_join.state.rows.keyed_rows import KeyedRows
from zset_join.zset import ZSet, single_batch

__all__ = ["fetched_rows"]


def fetched_rows(
    shape: LookupShape, keys: pa.RecordBatch, rows: pa.Table, policy: RetryPolicy, *, hash_seed: int | None = None
) -> ZSet:
    """Return the fetched rows for requested keys and what was found; rows of other keys are omitted."""
    table_rows = single_batch(rows.select(shape.table.schema.names).cast(shape.table.schema))
    kept = KeyedRows("fetched", shape.key_schema, shape.key_schema.names, tables=HashTables(hash_seed=hash_seed))
    kept.add(shape.table_keys_of(table_rows))
    positions, numbers = kept.find(keys)
    kept.close()
    missed = np.ones(keys.num_rows, np.bool_)
    missed[positions] = False
    misses = np.flatnonzero(missed).astype(np.int64)
    hits = take_rows(table_rows, numbers - 1)
    fetched = [
        pa.concat_arrays([plain(column, storage_type(column.type)), pa.nulls(len(misses), storage_type(column.type))]).cast(
            column.type
        )
        for column in hits.columns
    ]
    requested = take_rows(keys, np.concatenate([positions, misses])).columns
    is_found = np.concatenate([np.ones(len(positions), np.bool_), np.zeros(len(misses), np.bool_)])
    words = (
        policy.max_retries,
        policy.delay_us,
        int(policy.padded_first),
        policy.max_parked_rows,
        int(policy.pads_at_limit),
    )
    carried = [pa.array(np.full(len(is_found), word, np.int64)) for word in words]
    batch = pa.RecordBatch.from_arrays([*fetched, *requested, pa.array(is_found), *carried], schema=shape.fetched.schema)
    return ZSet(batch, np.ones(batch.num_rows, np.int64))
