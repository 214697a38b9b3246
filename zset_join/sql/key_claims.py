"""Which rows of queries claim the keys of a table that these queries write: at most one live row per key.

The law: for every key, the rows of all queries that retract and write into one table sum up to 0 or 1. A key that two live rows
claim is refused before the epoch changes anything: the table can keep only one of them, and would lose it with the other's
retraction. Queries that never retract are upserts, where the later row wins, and claim nothing;
their rows, and those of an INSERT, may not go over a key that is claimed: the next retraction would delete them.

Memory: per key of these queries a count. Where the key of the only such query lies within the table's key, nothing is kept
until other rows come into the table.

Known limit: a row of an INSERT that is there before a query claims its key is replaced by the row of the query.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from zset_join.errors import SinkError
from zset_join.pipeline import Pipeline
from zset_join.query import changes
from zset_join.query import functions as F  # noqa: N812 - as PySpark has it
from zset_join.shown_values import shown_key
from zset_join.sql.catalog import Table
from zset_join.zset import ZSet, single_batch

__all__ = ["KeyClaims"]

_COUNT = "live_rows"


class KeyClaims:
    """Count the live rows that claim each key of a table.

    Args:
        table: a table with a primary key.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        names = [f"key_{number}" for number in range(len(table.primary_key))]
        kinds = [table.schema.field(name).type for name in table.primary_key]
        self._schema = pa.schema(list(zip(names, kinds, strict=True)))
        counted = changes("claims", self._schema).groupBy(*names).agg(F.count().alias(_COUNT))
        self._pipeline = Pipeline(counted, keep_view=False)

    def check(self, deltas: Sequence[ZSet], names: Sequence[str], query: str) -> None:
        """Refuse deltas of one epoch after which two live rows claim one key.

        Args:
            deltas: of queries, their columns as `names`.
            names: the columns of the table that the queries give.
            query: the name of the query that was answered last.

        Raises:
            SinkError: `SINK_KEY`, with the key.
        """
        with self._pipeline.prepare({"claims": self._keys(deltas, names)}) as prepared:
            counts = prepared.delta.rows.column(_COUNT).to_numpy(zero_copy_only=False)
            doubled = np.flatnonzero((counts > 1) & (prepared.delta.weights > 0))
            if not len(doubled):
                return
            columns = [prepared.delta.rows.column(name) for name in self._schema.names]
            key = shown_key(columns, int(doubled[0]))
        named = ", ".join(self._table.primary_key)
        raise SinkError(
            f'table "{self._table.name}": two live rows claim the key {key} of ({named}), of which '
            f'the table can keep only one; the second comes from the query "{query}". No table and no query took any of the '
            "rows. Give the table a key that identifies the rows of the query, or group the query by the key.",
            code="SINK_KEY",
            key=key,
            table=self._table.name,
            query=query,
        )

    def check_others(self, others: pa.Table | ZSet, claimed: Sequence[tuple[ZSet, Sequence[str]]], origin: str) -> None:
        """Refuse rows that no retracting query wrote, where such a query claims their key.

        Args:
            others: rows of the table; those that delete are not checked.
            claimed: deltas of the queries in the same epoch, each with the columns of the table that it gives.
            origin: where the rows come from, for the message.

        Raises:
            SinkError: `SINK_KEY`, with the key.
        """
        keys = self._inserted_keys(others)
        if not len(keys):
            return
        changed = [self._keys([delta], names) for delta, names in claimed]
        with self._pipeline.prepare({"claims": ZSet.concat([keys, *changed], schema=self._schema).consolidated()}) as prepared:
            rows, weights = prepared.delta.rows, prepared.delta.weights
            doubled = (rows.column(_COUNT).to_numpy(zero_copy_only=False) > 1) & (weights > 0)
            if not doubled.any():
                return
            key = shown_key([rows.column(name) for name in self._schema.names], int(doubled.argmax()))
        named = ", ".join(self._table.primary_key)
        raise SinkError(
            f'table "{self._table.name}": {origin} has a row with the key {key} of ({named}), which a live row of a query that '
            "writes into the table claims; the query would delete it with its next retraction. No table and no query took any "
            "of the rows. Change the rows that the query reads, or write into another table.",
            code="SINK_KEY",
            key=key,
            table=self._table.name,
        )

    def add(self, deltas: Sequence[ZSet], names: Sequence[str]) -> None:
        """Count deltas of an epoch that was taken."""
        self._pipeline.step({"claims": self._keys(deltas, names)})

    def close(self) -> None:
        """Release the counts."""
        self._pipeline.close()

    def _keys(self, deltas: Sequence[ZSet], names: Sequence[str]) -> ZSet:
        places = [list(names).index(name) for name in self._table.primary_key]
        schema = self._schema
        parts = [
            ZSet(pa.RecordBatch.from_arrays([delta.rows.column(at) for at in places], schema=schema), delta.weights)
            for delta in deltas
        ]
        return ZSet.concat(parts, schema=schema).consolidated()

    def _inserted_keys(self, rows: pa.Table | ZSet) -> ZSet:
        """Return the keys of rows that insert, each once."""
        table = pa.Table.from_batches([rows.rows]) if isinstance(rows, ZSet) else rows
        inserts = rows.weights > 0 if isinstance(rows, ZSet) else np.ones(len(table), bool)
        if self._table.delta_column is not None:
            inserts &= table.column(self._table.delta_column).to_numpy() > 0
        keys = table.select(list(self._table.primary_key)).filter(pa.array(inserts))
        distinct = keys.group_by(keys.column_names).aggregate([]).select(keys.column_names)
        return ZSet(
            single_batch(distinct.rename_columns(self._schema.names).cast(self._schema)), np.ones(len(distinct), np.int64)
        )
