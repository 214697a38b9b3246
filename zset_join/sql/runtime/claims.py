"""Which rows of queries own the keys of the tables that they write.

Two live rows of queries never claim one key of a table, nor goes a row that no query retracts over a claimed key; see
`zset_join.sql.runtime.claims`.

`KeyClaims`: which rows claim the keys of a table that retracting queries write: at most one live row per key.

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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from zset_join.core.errors import SinkError
from zset_join.core.shown_values import shown_key
from zset_join.evolution.differences import PlanDiff
from zset_join.query import changes
from zset_join.query import functions as F  # noqa: N812 - as PySpark has it
from zset_join.runners.local.pipeline import Pipeline
from zset_join.runners.local.prepared import PreparedEpoch
from zset_join.runners.local.taking import PartlyRead
from zset_join.sql.runtime.written_tables import Rows
from zset_join.sql.tables.catalog import Catalog, Table
from zset_join.sql.tables.results import Running, TableWriter
from zset_join.zset import ZSet, single_batch

__all__ = ["KeyClaims", "TableClaims", "WrittenRows"]

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


@dataclass(frozen=True)
class WrittenRows:
    """Rows of a query that the table which it writes takes; see `zset_join.sql.runtime.written_tables.is_fed`."""

    running: Running
    writer: TableWriter
    delta: ZSet
    rows: Rows  # with all columns of the table

    def is_same(self, other: WrittenRows) -> bool:
        mine, its = self.delta, other.delta
        is_alike = self.running is other.running and len(mine) == len(its)
        return is_alike and bool((mine.weights == its.weights).all()) and mine.rows.equals(its.rows)


class TableClaims:
    """Count the claims of running queries, by table."""

    def __init__(self, catalog: Catalog, running: list[Running], held: Callable[[Table], ZSet]) -> None:
        self._catalog, self._running, self._held = catalog, running, held
        self._tables: dict[str, KeyClaims] = {}

    def of(self, name: str) -> KeyClaims | None:
        """Return which keys of a table are claimed; None where no running query claims any."""
        table = self._catalog.tables.get(name)
        is_claimed = any(one.writes == name and one.retracts for one in self._running)
        if name not in self._tables and is_claimed and table is not None and table.primary_key:
            return self._begun(table, self._held(table))
        return self._tables.get(name)

    def beside(self, running: Running) -> KeyClaims | None:
        """Return which keys are claimed of the table that a query writes; None where no two rows may claim one."""
        writer = running.writer
        if writer is None or not writer.table.primary_key or not running.retracts:
            return None
        claims = self._tables.get(writer.table.name)
        if claims is not None:
            return claims
        others = [one for one in self._running if one.writes == running.writes and one is not running]
        key = running.query.bound.view.node.relation.primary_key
        held = self._held(writer.table)
        if not others and key and set(key) <= set(writer.table.primary_key) and not len(held):
            return None
        return self._begun(writer.table, held)

    def drop(self, name: str | None) -> None:
        """Forget the claims of a table; they are counted again when they are needed."""
        claims = None if name is None else self._tables.pop(name, None)
        if claims is not None:
            claims.close()

    def close(self) -> None:
        for name in [*self._tables]:
            self.drop(name)

    def count(self, running: Running, delta: ZSet) -> None:
        """Count a delta of a query that became another one."""
        if running.writer is not None and running.retracts and running.writes in self._tables:
            self._tables[running.writer.table.name].add([(delta, running.writer.names)])

    def check_change(self, changed: Iterable[Running], differences: Callable[[], PlanDiff]) -> None:
        """Refuse a change of queries after which two live rows would claim a key of a table."""
        writers = [one for one in changed if one.writer is not None and not one.is_paused]
        claims = {one: self.beside(one) for one in writers}
        if not any(claims.values()):
            return
        diff = differences()
        by_table: dict[str, list[Running]] = {}
        for running in writers:
            if claims[running] is not None and running.writes is not None and diff.views[running.name].status == "changed":
                by_table.setdefault(running.writes, []).append(running)
        for queries in by_table.values():
            claimed = [(diff.views[one.name].delta, one.writer.names) for one in queries if one.writer is not None]
            held = claims[queries[0]]
            assert held is not None  # noqa: S101 - only these are listed
            held.check(claimed, queries[0].name)

    def check_epoch(
        self, prepared: PreparedEpoch, given: Mapping[str, Any], written: Sequence[WrittenRows], origin: str
    ) -> list[Callable[[], None]]:
        """Refuse an epoch in which two live rows claim a key; return what counts its rows once it is taken."""
        counts: list[Callable[[], None]] = []
        by_table: dict[str, list[Claimed]] = {}
        for running in self._running:
            claims = None if running.writes is None or running.is_paused else self._tables.get(running.writes)
            if claims is None or running.writer is None or not running.retracts:
                continue
            delta = running.answer_in(prepared)
            if len(delta):
                by_table.setdefault(running.writer.table.name, []).append((delta, running.writer.names))
                claims.check(by_table[running.writer.table.name], running.name)
        for name, claimed in by_table.items():
            counts.append(lambda name=name, claimed=claimed: self._tables[name].add(claimed))  # type: ignore[misc]
        others = [
            (one.writer.table.name, one.rows, f'the query "{one.running.name}"') for one in written if not one.running.retracts
        ]
        others += [(name, one.rows if isinstance(one, PartlyRead) else one, origin) for name, one in given.items()]
        for name, rows, whose in others:
            claims = self.of(name)
            if claims is not None:
                claims.check_others(rows, by_table.get(name, []), whose)
                counts.append(lambda claims=claims, rows=rows: claims.add_others(rows))  # type: ignore[misc]
        return counts

    def _begun(self, table: Table, held: ZSet) -> KeyClaims:
        """Count the rows of the queries that retract and write into a table, and of the others that it holds."""
        own: list[Claimed] = [
            (one.pipeline.contents(), one.writer.names)
            for one in self._running
            if one.writer is not None and one.writes == table.name and one.retracts
        ]
        claims = self._tables[table.name] = KeyClaims(table, held, own)
        return claims
