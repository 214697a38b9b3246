"""All connectors by name: outputs of Python and of Spark, tables of SQL. One table, `CONNECTORS`, that all of them read.

    sink("csv", path="changes")                                 an output of `Pipeline(outputs=[...])`
    Pipeline(view, outputs={"csv": {"path": "changes"}})        the same
    view.writeStream.to("csv", path="changes")                  the same, inside Spark
    CREATE TABLE t (...) WITH ('connector' = 'filesystem', 'format' = 'csv', 'path' = 'changes')

The law: who adds an output writes its file, and one entry here; Python, Spark, SQL and the reference pages have it then.

No package of an extra is imported before an output that needs it is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from zset_join.changelog import ChangelogForm, RecordForm, format_named
from zset_join.changelog.formats import RECORD_FORMATS
from zset_join.connectors.connector import (
    Connector,
    Option,
    OutputSide,
    TableSide,
    WrittenTable,
    duckdb_output,
    jdbc_output,
    kafka_output,
    local_path_of,
)
from zset_join.core.errors import OptionError, SqlError
from zset_join.core.shown_values import near
from zset_join.sinks.csv_files import CsvForm
from zset_join.sinks.sink import Sink

__all__ = ["CONNECTORS", "register", "sink", "sink_of_table", "sinks_of", "tables"]


# ---------------------------------------------------------------- how outputs are made


def _blackhole() -> Sink:
    from zset_join.sinks.printed import PrintSink

    return PrintSink(is_silent=True)


def _csv(path: str | Path, *, form: CsvForm = "weight") -> Sink:
    from zset_join.sinks.csv_files import CsvFilesSink

    return CsvFilesSink(path, form)


def _delta(
    path: str | Path,
    *,
    form: ChangelogForm | None = None,
    key: Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    vacuum_hours: int | None = None,
) -> Sink:
    if form is None:
        from zset_join.sinks.delta_view import DeltaViewSink

        return DeltaViewSink(path, key, storage_options=storage_options, vacuum_hours=vacuum_hours)
    format_named(form)
    if key is not None or vacuum_hours is not None:
        raise OptionError(
            f"a Delta table with form={form!r}, key={key!r}, vacuum_hours={vacuum_hours!r}: key and vacuum_hours are for a "
            "view, form is for a changelog. Leave out the one or the other.",
            code="ARGUMENT",
            form=form,
            key=key,
        )
    from zset_join.sinks.delta_view import DeltaChangelogSink

    return DeltaChangelogSink(path, form, storage_options=storage_options)


def _duckdb(
    path: str | Path,
    table: str,
    *,
    key: Sequence[str] | None = None,
    hold_seconds: float | None = None,
    patience_seconds: float | None = None,
) -> Sink:
    from zset_join.sinks.duckdb_view import DuckDBViewSink

    given = {"hold_seconds": hold_seconds, "patience_seconds": patience_seconds}
    times: dict[str, Any] = {name: seconds for name, seconds in given.items() if seconds is not None}
    return DuckDBViewSink(path, table, key, **times)


def _files(path: str | Path, *, form: Literal["json", "parquet"] = "json", with_weights: bool = False) -> Sink:
    from zset_join.sinks.json_lines import RowFilesSink

    return RowFilesSink(path, form, with_weights=with_weights)


def _files_output(table: WrittenTable) -> tuple[str, dict[str, Any]]:
    """Return the files that a table of the connector `filesystem` is written as."""
    path, form = local_path_of(table.name, table.options), table.options.get("format", "json")
    if form == "csv":
        return "csv", {"path": path, "form": "tp_delta" if table.retracts else "append"}
    return "filesystem", {"path": path, "form": form, "with_weights": table.retracts}


def _json_lines(path: str | Path, *, form: RecordForm = "upsert", key: Sequence[str] | None = None) -> Sink:
    from zset_join.sinks.json_lines import JsonLinesSink

    return JsonLinesSink(path, form, key)


def _kafka(config: Mapping[str, Any], topic: str, *, form: RecordForm = "upsert", key: Sequence[str] | None = None) -> Sink:
    from zset_join.sinks.kafka_topic import KafkaTopicSink

    return KafkaTopicSink(config, topic, form, key)


def _parquet(path: str | Path, *, form: ChangelogForm = "weight") -> Sink:
    from zset_join.sinks.parquet_changelog import ParquetChangelogSink

    return ParquetChangelogSink(path, form)


def _postgres(conninfo: str, table: str, *, key: Sequence[str] | None = None) -> Sink:
    from zset_join.sinks.postgres_view import PostgresViewSink

    return PostgresViewSink(conninfo, table, key)


def _print(prefix: str = "") -> Sink:
    from zset_join.sinks.printed import PrintSink

    return PrintSink(prefix)


# ---------------------------------------------------------------- the table

_CDC = tuple(sorted(RECORD_FORMATS))
_FORMAT = Option("format")
_USER = (Option("username"), Option("password", is_secret=True))
_OF_JSON = ("json.fail-on-missing-field", "json.ignore-parse-errors", "json.timestamp-format.standard")
_OF_FILES = ("sink.parallelism", "sink.rolling-policy.check-interval", "sink.rolling-policy.file-size",
             "sink.rolling-policy.rollover-interval", "source.monitor-interval", *_OF_JSON)  # fmt: skip
_OF_KAFKA = ("key.fields", "key.format", "scan.topic-partition-discovery.interval", "sink.buffer-flush.interval",
             "sink.buffer-flush.max-rows", "sink.delivery-guarantee", "sink.parallelism", "sink.transactional-id-prefix",
             "value.fields-include", *_OF_JSON)  # fmt: skip
_OF_JDBC = ("driver", "sink.buffer-flush.interval", "sink.buffer-flush.max-rows", "sink.max-retries", "sink.parallelism",
            "connection.max-retry-timeout", "scan.fetch-size", "scan.auto-commit")  # fmt: skip
_KAFKA = TableSide(
    options=(
        Option("topic", is_required=True),
        Option("properties.bootstrap.servers", is_required=True, aliases=("properties.bootstrap.server",)),
        _FORMAT,
        Option("value.format"),
        Option("scan.startup.mode", choices=("earliest", "earliest-offset", "latest", "latest-offset")),
        Option("sink.form", choices=get_args(RecordForm)),
    ),
    ignored=_OF_KAFKA,
    prefixes=("properties.",),
    reads=("json", *_CDC),
    writes=("json", "debezium-json", "upsert-json"),
    output=kafka_output,
    as_read="records from the beginning of a topic",
    as_written="records, by the format",
)

_ALL = (
    Connector(
        "blackhole",
        OutputSide(_blackhole, "nothing", "no promise"),
        TableSide((_FORMAT,), output=lambda _: ("blackhole", {}), as_written="nowhere"),
    ),
    Connector("csv", OutputSide(_csv, "every change")),
    Connector(
        "datagen",
        table=TableSide(
            (Option("number-of-rows", is_required=True, least=0), Option("rows-per-second", least=1), Option("seed", least=0)),
            prefixes=("fields.",),
            as_read="numbers and letters, the same for the same seed",
        ),
    ),
    Connector("delta", OutputSide(_delta, "a view, or every change", extra="delta")),
    Connector(
        "duckdb",
        OutputSide(_duckdb, "a view", extra="duckdb"),
        TableSide(
            (Option("path", is_required=True), Option("table-name")),
            output=duckdb_output,
            as_written="a table of a file, kept equal to the query",
        ),
    ),
    Connector(
        "filesystem",
        OutputSide(_files, "every change"),
        TableSide(
            (
                Option("path", is_required=True),
                _FORMAT,
                *(Option(f"csv.{name}") for name in ("field-delimiter", "quote-character", "null-literal")),
            ),
            ignored=_OF_FILES,
            reads=("csv", "json", "parquet", *_CDC),
            writes=("csv", "json", "parquet"),
            output=_files_output,
            as_read="a file, or the files of a directory in the order of their names, each an epoch; with a primary key the "
            "row of the [last file by name](#files-with-a-primary-key) counts, of a file the last one",
            as_written="a file per epoch; of a query that retracts rows with `_tp_delta`",
        ),
    ),
    Connector(
        "jdbc",
        table=TableSide(
            (Option("url", is_required=True), Option("table-name", is_required=True), *_USER),
            ignored=_OF_JDBC,
            prefixes=("lookup.",),
            output=jdbc_output,
            as_written="a table of PostgreSQL or DuckDB, kept equal to the query",
            as_looked_up="PostgreSQL, SQLite, DuckDB",
        ),
    ),
    Connector("json_lines", OutputSide(_json_lines, "every change", extra="duckdb")),
    Connector("kafka", OutputSide(_kafka, "every change", extra="kafka"), _KAFKA),
    Connector("memory", table=TableSide((_FORMAT,), as_read="rows that are inserted", as_written="the table of the session")),
    Connector("parquet", OutputSide(_parquet, "every change")),
    Connector("postgres", OutputSide(_postgres, "a view", extra="postgres")),
    Connector(
        "print",
        OutputSide(_print, "nothing", "no promise"),
        TableSide(
            (Option("print-identifier"), _FORMAT),
            ignored=("standard-error", "sink.parallelism"),
            output=lambda table: ("print", {"prefix": table.options.get("print-identifier", "")}),
            as_written="lines of JSON on the screen",
        ),
    ),
    Connector(
        "redis",
        table=TableSide(
            (
                Option("key-pattern", is_required=True),
                Option("host"),
                Option("port", least=1, most=65_535),
                Option("database", least=0),
                Option("layout", choices=("hash", "json")),
                *_USER,
            ),
            prefixes=("lookup.",),
            as_looked_up="hashes or JSON by key",
        ),
    ),
    Connector(
        "upsert-kafka",
        table=replace(_KAFKA, as_read="the newest record of every key; an empty value deletes", as_written="the same"),
    ),
)

CONNECTORS: dict[str, Connector] = {connector.name: connector for connector in _ALL}
"""By name; `register` adds to it."""


def register(connector: Connector) -> None:
    """Add a connector, or replace the one of its name."""
    CONNECTORS[connector.name] = connector


# ---------------------------------------------------------------- what reads it


def tables() -> dict[str, TableSide]:
    """Return the connectors that SQL has, by name."""
    return {name: connector.table for name, connector in CONNECTORS.items() if connector.table is not None}


def sink(connector: str, /, **options: Any) -> Sink:
    """Return the output of a name, not yet opened; see the reference of outputs for names and options.

    Args:
        connector: its name.
        options: those of the connector.

    Raises:
        OptionError: no output has this name, or an option is not known, missing, or has a value that is not allowed.
        MissingPackageError: a package of its extra is not installed.

    >>> type(sink("parquet", path="changes", form="row_kind")).__name__
    'ParquetChangelogSink'
    """
    output = CONNECTORS[connector].output if connector in CONNECTORS else None
    if output is None:
        known = [name for name, one in CONNECTORS.items() if one.output is not None]
        raise OptionError(
            f"there is no output {connector!r}.{near(str(connector), known)}", code="UNKNOWN_CONNECTOR", connector=connector
        )
    for name in options:
        if name not in output.options:
            raise OptionError(
                f"the option {name!r} of the output {connector!r} is unknown.{near(name, output.options)}",
                code="UNKNOWN_OPTION",
                option=name,
            )
    for option in output.options.values():
        if option.is_required and option.name not in options:
            raise OptionError(
                f"the output {connector!r} needs the option {option.name!r}, as in sink({connector!r}, {option.name}=...).",
                code="MISSING_OPTION",
                option=option.name,
            )
    return output.make(**options)


def sinks_of(outputs: Sequence[Sink] | Mapping[str, Mapping[str, Any]]) -> tuple[Sink, ...]:
    """Return the sinks of outputs given as sinks, or by name with options."""
    if isinstance(outputs, Mapping):
        return tuple(sink(name, **options) for name, options in outputs.items())
    return tuple(outputs)


def sink_of_table(table: WrittenTable) -> Sink:
    """Return the output that a table of SQL is, not yet opened.

    Args:
        table: with a connector that is known.

    Raises:
        SqlError: the table is read-only, or its options do not allow writing.
    """
    connector = table.options["connector"]
    output = tables()[connector].output
    if output is None:
        raise SqlError(f"\"{table.name}\": the connector '{connector}' is only read.", code="NOT_OFFERED", name=table.name)
    name, options = output(table)
    return sink(name, **options)
