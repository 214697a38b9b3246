"""Tables that a query writes outside: Kafka, files, PostgreSQL, DuckDB, the screen, or nowhere.

    INSERT INTO t SELECT ...      CREATE SINK s AS SELECT ... WITH (...)      CREATE SINK s FROM v WITH (...)

| connector | what is written |
|---|---|
| `upsert-kafka`, or `kafka` with `upsert-json` | the newest row of every key, nothing where it is gone |
| `kafka` with `debezium-json` | envelopes with `before`, `after`, `op` |
| `kafka` with `json` | the rows of a query that takes none back; of any other every change, with `_weight` |
| `filesystem` | a file per epoch; `_tp_delta` of a query that takes rows back |
| `jdbc` with PostgreSQL or DuckDB, `duckdb` | the view, kept equal to the query |
| `print` | lines of JSON with `_tp_delta` |

The law: what is written follows the query epoch by epoch; an epoch is written whole or not at all.

Known limits: a session in memory begins at epoch 0, so it writes only where nothing was written before.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, TextIO

import pyarrow as pa

from zset_join.core.errors import SinkError, SqlError
from zset_join.core.relation import Relation
from zset_join.lookup.secret import holds_credentials
from zset_join.sinks.sink import Sink
from zset_join.sql.tables.catalog import Table
from zset_join.sql.tables.connectors import CONNECTORS
from zset_join.sql.tables.feeds import kafka_config
from zset_join.sql.tables.files import path_of
from zset_join.sql.tables.outside import postgres_url
from zset_join.zset import ZSet

__all__ = ["PrintSink", "SinkWriter", "is_outside", "sink_of"]


def is_outside(table: Table) -> bool:
    """Say whether what is inserted into a table goes outside."""
    connector = table.options.get("connector")
    if connector is None:
        return False
    return CONNECTORS[connector].is_row_sink or bool(CONNECTORS[connector].writes)


def sink_of(table: Table, *, takes_back: bool, query_key: tuple[str, ...] = ()) -> Sink:
    """Return the sink that a table is; it is not opened yet.

    Args:
        table: with a connector that can be written.
        takes_back: the query retracts rows.
        query_key: the columns that identify a row of the query, where the table names no key.

    Raises:
        SqlError: it cannot be written so.
    """
    options, key = table.options, table.primary_key or query_key
    match options["connector"]:
        case "print":
            return PrintSink(options.get("print-identifier", ""))
        case "blackhole":
            return PrintSink("", stream=None, is_silent=True)
        case "kafka" | "upsert-kafka":
            return _kafka(table, key, takes_back)
        case "filesystem":
            from zset_join.sinks.row_files import RowFilesSink

            form: Any = options.get("format", "json")
            return RowFilesSink(path_of(table), form, with_weights=takes_back)
        case "duckdb":
            return _duckdb(options["path"], options.get("table-name", table.name), key)
        case "jdbc":
            return _jdbc(table, key)
    raise SqlError(
        f"\"{table.name}\": the connector '{options['connector']}' is only read.", code="NOT_OFFERED", name=table.name
    )


def _kafka(table: Table, key: tuple[str, ...], takes_back: bool) -> Sink:
    from zset_join.sinks.kafka_topic import KafkaTopicSink

    options = table.options
    written = options.get("format", options.get("value.format", "json"))
    forms: dict[str, Any] = {"debezium-json": "debezium", "upsert-json": "upsert", "json": "weight" if takes_back else "append"}
    if options["connector"] == "upsert-kafka":
        forms["json"] = "upsert"
    form: Any = options.get("sink.form", forms.get(written))
    if form is None:
        raise SqlError(
            f"\"{table.name}\": Kafka is written as {', '.join(sorted(forms))}, not as '{written}'.",
            code="UNKNOWN_FORMAT",
            name=table.name,
        )
    if form == "upsert" and not key:
        raise SqlError(
            f'"{table.name}" keeps the newest row of every key, and names none. Add PRIMARY KEY (...) NOT ENFORCED.',
            code="NO_PRIMARY_KEY",
            name=table.name,
        )
    return KafkaTopicSink(kafka_config(table), options["topic"], form, list(key))


def _duckdb(path: str, table: str, key: tuple[str, ...]) -> Sink:
    from zset_join.sinks.duckdb_view import DuckDBViewSink

    return DuckDBViewSink(path, table, list(key))


def _jdbc(table: Table, key: tuple[str, ...]) -> Sink:
    options = table.options
    if holds_credentials(options["url"]):
        raise SqlError(
            f"\"{table.name}\": the url holds credentials, which would be shown; give them as the options 'username' and "
            "'password'.",
            code="SECRET_IN_URL",
            name=table.name,
        )
    kind, _, rest = options["url"].removeprefix("jdbc:").partition(":")
    if kind == "duckdb":
        return _duckdb(rest, options["table-name"], key)
    if kind != "postgresql":
        raise SqlError(
            f"\"{table.name}\": '{options['url']}' is only read; PostgreSQL and DuckDB are written.",
            code="NOT_OFFERED",
            name=table.name,
        )
    from zset_join.sinks.postgres_view import PostgresViewSink

    parts = postgres_url(options["url"])
    connection: dict[str, Any] = {
        "host": parts.hostname or "localhost",
        "port": parts.port or 5432,
        "dbname": parts.path.lstrip("/") or "postgres",
        "user": options.get("username", parts.username or "postgres"),
    }
    if options.get("password", parts.password):
        connection["password"] = options.get("password", parts.password)
    return PostgresViewSink(_conninfo(connection), options["table-name"], list(key))


def _conninfo(told: Mapping[str, Any]) -> str:
    """Return what libpq takes, every value quoted."""
    quoted = {name: str(value).replace("\\", "\\\\").replace("'", "\\'") for name, value in told.items()}
    return " ".join(f"{name}='{value}'" for name, value in quoted.items())


class PrintSink:
    """Print every change as a line of JSON, or nothing.

    Args:
        prefix: stands before every line.
        stream: where to; default: the standard output as it is then.
        is_silent: print nothing.

    Attributes:
        keeps_epochs: no; what another process printed is not known, so a start with committed epochs is no gap.
    """

    keeps_epochs = False

    def __init__(self, prefix: str = "", *, stream: TextIO | None = None, is_silent: bool = False) -> None:
        self._prefix = f"{prefix}> " if prefix else ""
        self._stream = stream
        self._is_silent = is_silent
        self._last: int | None = None

    def open(self, output: Relation, query_id: str) -> None:  # noqa: ARG002 - as the protocol has it
        """Begin."""
        self._last = None

    def last_epoch(self) -> int | None:
        """Return the last epoch that was printed."""
        return self._last

    def has(self, epoch: int, link: object) -> bool:  # noqa: ARG002 - as the protocol has it
        """Say whether an epoch was printed by this object; what another process printed is not known."""
        return self._last is not None and epoch <= self._last

    def write(self, epoch: int, chunks: Any, *, link: object = None) -> Any:  # noqa: ARG002 - as `has`
        """Print the changes of an epoch."""
        from zset_join.sinks.sink import SinkProgress

        rows = 0
        for chunk in chunks:
            rows += len(chunk)
            for row, weight in zip(chunk.rows.to_pylist(), chunk.weights.tolist(), strict=True) if not self._is_silent else ():
                line = json.dumps({**row, "_tp_delta": weight}, default=str, ensure_ascii=False)
                print(f"{self._prefix}{line}", file=self._stream or sys.stdout)
        self._last = epoch
        return SinkProgress(epoch, rows, 0, 0.0)

    def __call__(self, delta: ZSet) -> None:
        """Print the changes of the next epoch; what `session.start` takes as `output`."""
        self.write(0 if self._last is None else self._last + 1, [delta])

    def close(self) -> None:
        """Do nothing."""


class SinkWriter:
    """Write the deltas of a running query into a sink; what `session.start` takes as `output`.

    Args:
        table: the sink's table.
        sink: it; opened by `begin`.
        schema: the columns as the table names them.
        key: columns that identify a row.
        query_id: whose deltas they are.
    """

    def __init__(self, table: Table, sink: Sink, schema: pa.Schema, key: tuple[str, ...], query_id: str) -> None:
        self.table_name = table.name
        self.sink = sink
        self._schema = schema
        self._key = key
        self._query_id = query_id
        self._epoch = 0

    def begin(self) -> None:
        """Open the sink for a query that runs in this process.

        Raises:
            SinkError: it cannot be opened, or something was written there before.
        """
        self.sink.open(self._relation, self._query_id)
        last = self.sink.last_epoch()
        if last is not None:
            self.sink.close()
            raise SinkError(
                f'"{self.table_name}" has epochs up to {last}, and this session begins at 0, in memory. Name a new topic, '
                "directory or table.",
                code="SINK_EPOCH_GAP",
                last_epoch=last,
            )

    def begin_once(self) -> bool:
        """Open the sink for the one epoch of a statement; say whether it is still to be written.

        Raises:
            SinkError: it cannot be opened, or somebody else wrote there.
        """
        self.sink.open(self._relation, self._query_id)
        return self.sink.last_epoch() is None

    def __call__(self, delta: ZSet) -> None:
        """Write the next epoch."""
        rows = pa.RecordBatch.from_arrays(delta.rows.columns, schema=self._schema)
        self.sink.write(self._epoch, [ZSet(rows, delta.weights)] if len(delta) else [])
        self._epoch += 1

    @property
    def _relation(self) -> Relation:
        return Relation(name=self.table_name, schema=self._schema, primary_key=self._key, mode="changelog")

    def close(self) -> None:
        """Close the sink; what was written stays."""
        self.sink.close()
