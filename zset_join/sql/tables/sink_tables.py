"""Tables that a query writes outside: Kafka, files, PostgreSQL, DuckDB, the screen, or nowhere.

    INSERT INTO t SELECT ...      CREATE SINK s AS SELECT ... WITH (...)      CREATE SINK s FROM v WITH (...)

The output of a table is decided by `zset_join.connectors`.

The law: what is written follows the query epoch by epoch; an epoch is written whole or not at all.

Known limits: a session in memory begins at epoch 0, so it writes only where nothing was written before.
"""

from __future__ import annotations

import pyarrow as pa

from zset_join.connectors import WrittenTable, sink_of_table, tables
from zset_join.core.relation import Relation
from zset_join.sinks.sink import Sink
from zset_join.sql.tables.catalog import Table
from zset_join.zset import ZSet

__all__ = ["SinkWriter", "is_outside", "sink_of"]


def is_outside(table: Table) -> bool:
    """Return whether rows inserted into a table go to an external system."""
    connector = table.options.get("connector")
    return connector is not None and tables()[connector].output is not None


def sink_of(table: Table, *, retracts: bool, query_key: tuple[str, ...] = ()) -> Sink:
    """Return the sink that a table is; it is not opened yet."""
    return sink_of_table(WrittenTable(table.name, table.options, table.primary_key or query_key, retracts))


class SinkWriter:
    """Write the deltas of a running query into a sink; what `session.start` takes as `output`."""

    def __init__(self, table: Table, sink: Sink, schema: pa.Schema, key: tuple[str, ...], query_id: str) -> None:
        self.table_name = table.name
        self.sink = sink
        self._schema = schema
        self._key = key
        self._query_id = query_id
        self._epoch = 0

    def begin_once(self) -> bool:
        """Open the sink for the one epoch of a statement; return whether it is still to be written."""
        self.sink.open(self._relation, self._query_id)
        return self.sink.last_epoch() is None

    def __call__(self, delta: ZSet) -> None:
        rows = pa.RecordBatch.from_arrays(delta.rows.columns, schema=self._schema)
        self.sink.write(self._epoch, [ZSet(rows, delta.weights)] if len(delta) else [])
        self._epoch += 1

    @property
    def _relation(self) -> Relation:
        return Relation(name=self.table_name, schema=self._schema, primary_key=self._key, mode="changelog")

    def close(self) -> None:
        """Close the sink; what was written stays."""
        self.sink.close()
