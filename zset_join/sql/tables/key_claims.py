"""Which rows claim the keys of a table that retracting queries write: at most one live row per key.

The law: for every key, the rows of all queries that retract and write into one table, and the row that nobody retracts (of an
INSERT, or of a query that never retracts), sum up to 0 or 1. A key that two live rows claim is refused before the epoch changes
anything: the table can keep only one of them, and would lose it with the other's retraction. For the same reason a DELETE of a
row that a query claims is refused: the query retracts it, or nobody does. Rows that nobody retracts are upserts among
themselves, where the later one wins. Rows that a stopped query has left behind claim nothing.

Memory: per key of these queries and of the other rows a count, and of the other rows the key. Where the key of the only such
query lies within the table's key, nothing is kept until other rows are in the table.

Known limit: in a session with a directory, rows that a query which never retracts wrote before the retracting query was started
are replaced by the rows of that query.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from zset_join.core.errors import SinkError
from zset_join.core.shown_values import shown_key
from zset_join.query import changes
from zset_join.query import functions as F  # noqa: N812 - as PySpark has it
from zset_join.runners.local.pipeline import Pipeline
from zset_join.sql.tables.catalog import Table
from zset_join.zset import ZSet, single_batch

__all__ = ["Claimed", "KeyClaims"]

_COUNT = "live_rows"
_NOTHING = "No table and no query took any of the rows."
Claimed: TypeAlias = tuple[ZSet, Sequence[str]]
"""Rows or a delta of a query, and the columns of the table that it gives, in their order."""


class KeyClaims:
    """Count the live rows that claim each key of a table."""

    def __init__(self, table: Table, held: pa.Table | ZSet, own: Sequence[Claimed] = ()) -> None:
        self._table = table
        names = [f"key_{number}" for number in range(len(table.primary_key))]
        kinds = [table.schema.field(name).type for name in table.primary_key]
        self._schema = pa.schema(list(zip(names, kinds, strict=True)))
        counted = changes("claims", self._schema).groupBy(*names).agg(F.count().alias(_COUNT))
        self._pipeline = Pipeline(counted, keep_view=False)
        self._others = Pipeline(changes("others", self._schema, keys=names))
        self._others.step({"others": self._keys_in_order(held)})
        claimed = self._keys(own)
        self._others.step({"others": ZSet(claimed.rows, -np.abs(claimed.weights))})
        self._pipeline.step({"claims": ZSet.concat([claimed, self._others.contents()], schema=self._schema).consolidated()})

    def check(self, claimed: Sequence[Claimed], query: str) -> None:
        """Refuse deltas of one epoch after which two live rows claim one key."""
        doubled = self._doubled(self._keys(claimed))
        if doubled is None:
            return
        key = shown_key(doubled.columns, 0)
        if not self._new_others(doubled):
            raise self._refused(
                f"has a row with the key {key} of ({self._key_names}) that no query retracts, and the query "
                f'"{query}" has one too; it would replace that row, and delete it with its next retraction. {_NOTHING} DELETE '
                "the row, change the rows that the query reads, or write into another table.",
                key,
                query=query,
            )
        raise self._refused(
            f"two live rows claim the key {key} of ({self._key_names}), of which the table can keep only one; the second comes "
            f'from the query "{query}". {_NOTHING} Give the table a key that identifies the rows of the query, or group the '
            "query by the key.",
            key,
            query=query,
        )

    def check_others(self, others: pa.Table | ZSet, claimed: Sequence[Claimed], origin: str) -> None:
        """Refuse rows that no retracting query wrote, inserted or deleted, where such a query claims their key."""
        touched = self._keys_in_order(others)
        new = self._new_others(touched.rows)
        doubled = self._doubled(ZSet.concat([*new, self._keys(claimed)], schema=self._schema).consolidated()) if new else None
        if doubled is None:
            return
        key = shown_key(doubled.columns, 0)
        if (touched.weights < 0).any():
            raise self._refused(
                f"a DELETE or UPDATE takes the row with the key {key} of ({self._key_names}), which a live row of a query that "
                f"writes into the table claims. {_NOTHING} Change the rows that the query reads, or stop the query first.",
                key,
            )
        raise self._refused(
            f"{origin} has a row with the key {key} of ({self._key_names}), which a live row of a query that writes into the "
            f"table claims; the query would delete it with its next retraction. {_NOTHING} Change the rows that the query "
            "reads, or write into another table.",
            key,
        )

    def add(self, claimed: Sequence[Claimed]) -> None:
        """Count deltas of an epoch that was taken."""
        self._pipeline.step({"claims": self._keys(claimed)})

    def add_others(self, others: pa.Table | ZSet) -> None:
        """Count rows of an epoch that was taken and that no retracting query wrote."""
        delta = self._others.step({"others": self._keys_in_order(others)})
        self._pipeline.step({"claims": delta})

    def close(self) -> None:
        self._pipeline.close()
        self._others.close()

    @property
    def _key_names(self) -> str:
        return ", ".join(self._table.primary_key)

    def _refused(self, text: str, key: tuple[object, ...], **facts: object) -> SinkError:
        return SinkError(f'table "{self._table.name}": {text}', code="SINK_KEY", key=key, table=self._table.name, **facts)

    def _doubled(self, keys: ZSet) -> pa.RecordBatch | None:
        """Return a key that more than one row claims after these are counted; None where there is none."""
        with self._pipeline.prepare({"claims": keys}) as prepared:
            rows, weights = prepared.delta.rows, prepared.delta.weights
            doubled = np.flatnonzero((rows.column(_COUNT).to_numpy(zero_copy_only=False) > 1) & (weights > 0))
            return rows.select(self._schema.names).take(pa.array(doubled[:1])) if len(doubled) else None

    def _new_others(self, keys: pa.RecordBatch) -> list[ZSet]:
        """Return those of some keys that no other row has, each once; nothing where there are none."""
        with self._others.prepare({"others": ZSet(keys, np.ones(keys.num_rows, np.int64))}) as prepared:
            return [prepared.delta] if len(prepared.delta) else []

    def _keys(self, claimed: Sequence[Claimed]) -> ZSet:
        parts = []
        for delta, names in claimed:
            columns = [delta.rows.column(list(names).index(name)) for name in self._table.primary_key]
            parts.append(ZSet(pa.RecordBatch.from_arrays(columns, schema=self._schema), delta.weights))
        return ZSet.concat(parts, schema=self._schema).consolidated()

    def _keys_in_order(self, rows: pa.Table | ZSet) -> ZSet:
        """Return the keys of rows, with the sign of what each does; a row without a key is no row of the table."""
        batch = rows.rows if isinstance(rows, ZSet) else single_batch(rows)
        signs = np.sign(rows.weights) if isinstance(rows, ZSet) else np.ones(batch.num_rows, np.int64)
        if self._table.delta_column is not None and not isinstance(rows, ZSet):
            signs = np.where(batch.column(self._table.delta_column).to_numpy(zero_copy_only=False) < 0, np.int64(-1), signs)
        columns = [batch.column(name) for name in self._table.primary_key]
        kept = np.ones(batch.num_rows, bool)
        for column in columns:
            kept &= column.is_valid().to_numpy(zero_copy_only=False)
        keys = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return ZSet(keys.filter(pa.array(kept)), signs[kept])
