"""The options of a table in WITH: checked by the table of connectors (`zset_join.connectors`), and their meaning for records.

An option that is not in it is refused with the names that are near; one that is missing is named; one that other systems
list and that changes nothing here warns.

`properties.*` go to Kafka's client as they are, and are never shown.

`has_records`, `puts_aside`: how the records of a table are read: their format, their metadata, where a topic begins, and what
cannot be read.

`external_source`: outside tables as SQL declares them: CREATE TABLE dim (...) WITH ('connector' = 'jdbc', ...).

| connector | options |
|---|---|
| `jdbc` | `url`, `table-name`, `username`, `password` |
| `redis` | `host`, `port`, `database`, `key-pattern` (such as `customer:{id}`), `layout` (`hash` or `json`), `password` |

A `url` is `jdbc:postgresql://host:port/database`, `jdbc:sqlite:path` or `jdbc:duckdb:path`. Such a table is only ever looked
up: `JOIN dim FOR SYSTEM_TIME AS OF PROCTIME()`.

`SinkWriter`: tables that a query writes outside: Kafka, files, PostgreSQL, DuckDB, the screen, or nowhere.

    INSERT INTO t SELECT ...      CREATE SINK s AS SELECT ... WITH (...)      CREATE SINK s FROM v WITH (...)

The output of a table is decided by `zset_join.connectors`.

The law: what is written follows the query epoch by epoch; an epoch is written whole or not at all.

Known limits: a session in memory begins at epoch 0, so it writes only where nothing was written before.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa

from zset_join.changelog.formats import RECORD_FORMATS, RecordOptions
from zset_join.connectors import Option, TableSide, WrittenTable, sink_of_table, tables
from zset_join.connectors.connector import postgres_url
from zset_join.core.errors import SqlError
from zset_join.core.relation import Relation
from zset_join.lookup.secret import holds_credentials
from zset_join.lookup.source import LookupSource
from zset_join.sinks.sink import Sink
from zset_join.sql.parse.readers import lookup_of, lookup_without_effect
from zset_join.sql.tables.catalog import Table
from zset_join.sql.tables.settings import stage_options
from zset_join.sql_expressions.consumed import Position, near
from zset_join.zset import ZSet

__all__ = [
    "FORMATS",
    "SinkWriter",
    "check_options",
    "external_source",
    "form_of",
    "has_records",
    "holds_records",
    "is_outside",
    "metadata_of",
    "puts_aside",
    "record_options",
    "sink_of",
    "sink_options",
    "start_of",
    "texts_of",
]

FORMATS = tuple(sorted(("avro", "csv", "debezium-avro-confluent", "json", "orc", "parquet", "raw", *RECORD_FORMATS)))
"""Formats that some system writes; a connector names those it takes here."""

_ENCODINGS = {
    "binary": "binary",
    "database.include": "database",
    "decimals": "decimals",
    "table.include": "table",
    "time-unit": "time_unit",
    "unavailable-value-placeholder": "unavailable",
}
"""Options of a format of records, as `maxwell-json.table.include`, and what `RecordOptions` calls them."""
_NAMES = re.compile(r"[\w$-]+(\|[\w$-]+)*")
_OF_RECORDS = re.compile(
    rf"(key\.|value\.)?(json|{'|'.join(one for one in sorted(RECORD_FORMATS) if RECORD_FORMATS[one].table)})\.[\w.-]+"
)


_WITHOUT_CONNECTOR = ("format", "value.format")
_OF_FIELDS = ("kind", "start", "min", "max", "length")
_KINDS = ("random", "sequence")

_IN_KAFKA = {name: name for name in ("topic", "partition", "offset")}
_TIME_IN_KAFKA = "timestamp"
_OF_CHANGES = {
    "operation_time": ("db_operation_time", "event-timestamp", "op_ts", "operation_time", "source.timestamp",
                       "value.event-timestamp", "value.source.timestamp"),
    "record_time": ("ingestion-timestamp", "record_time", "timestamp", "value.ingestion-timestamp"),
    "position": ("lsn", "position"),
}  # fmt: skip
"""The metadata of a record of changes, as in `zset_join.changelog.formats`, and what statements call it."""


def form_of(options: Mapping[str, str]) -> str:
    """Return the format of what a connector reads."""
    form = options.get("format", options.get("value.format", "json"))
    return "upsert-json" if options.get("connector") == "upsert-kafka" and form == "json" else form


def holds_records(options: Mapping[str, str]) -> bool:
    """Return whether a connector reads change records, which are decoded."""
    return options.get("connector") in {"kafka", "upsert-kafka", "filesystem"} and form_of(options) in RECORD_FORMATS


def encodings_of(options: Mapping[str, str]) -> dict[str, Any]:
    """Return a statement's options for how the records of changes are written, and of which tables are read.

    >>> encodings_of({"connector": "kafka", "format": "canal-json", "canal-json.table.include": "orders|items"})
    {'table': ('orders', 'items')}
    """
    if not holds_records(options):
        return {}
    form = options.get("format", options.get("value.format", "json"))
    found: dict[str, Any] = {}
    for option, argument in _ENCODINGS.items():
        name = next((one for one in (f"{form}.{option}", f"value.{form}.{option}") if one in options), None)
        if name is None:
            continue
        value: Any = options[name]
        if option.endswith(".include"):
            if _NAMES.fullmatch(value) is None:
                raise SqlError(
                    f"'{name}' = '{value}' is not a name, or names separated by |.", code="OPTION_VALUE", option=name
                )
            value = tuple(value.split("|"))
        elif ":" in value and option == "time-unit":
            value = {column.strip(): unit.strip() for column, _, unit in (one.partition(":") for one in value.split(","))}
        found[argument] = value
    return found


def metadata_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of a connector: what METADATA FROM calls it, and what it is called inside.

    >>> sorted(metadata_of({"connector": "kafka", "format": "json"}))
    ['offset', 'partition', 'timestamp', 'topic']
    """
    is_kafka = options.get("connector") in {"kafka", "upsert-kafka"}
    record = RECORD_FORMATS.get(form_of(options))
    if record is None:
        return {**_IN_KAFKA, _TIME_IN_KAFKA: _TIME_IN_KAFKA} if is_kafka else {}
    if not is_kafka and options.get("connector") != "filesystem":
        return {}
    known = {*record.times, *(["position"] if record.position else [])}
    return {**_IN_KAFKA, **{name: what for what, names in _OF_CHANGES.items() if what in known for name in names}}


_RISINGWAVE_JDBC = {"jdbc.url": "url", "table.name": "table-name", "user": "username"}


def sink_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return options under the names used here: RisingWave's `jdbc.url`, `table.name` and `type` go."""
    named = dict(options)
    connector = named.get("connector")
    if connector == "jdbc":
        named = {_RISINGWAVE_JDBC.get(name, name): value for name, value in named.items()}
    if named.get("type") in {"append-only", "upsert", "debezium"}:
        kind = named.pop("type")
        if "format" not in named and connector == "kafka":
            named["format"] = {"append-only": "json", "upsert": "upsert-json", "debezium": "debezium-json"}[kind]
    if options.get("force_append_only", "").lower() == "false":
        named.pop("force_append_only")
    return named


def _is_encoding(options: Mapping[str, str], option: str) -> bool:
    """Return whether an option is about how the records of changes are written."""
    form = options.get("format", options.get("value.format", "json"))
    return holds_records(options) and option.removeprefix("value.").removeprefix(f"{form}.") in _ENCODINGS


def _is_of_format(connector: TableSide, option: str) -> bool:
    """Return whether an option is one of Flink's for a format of JSON, whose records are read here with any value of it."""
    return bool(connector.reads) and _OF_RECORDS.fullmatch(option) is not None


def _check_value(option: str, known: Option | None, value: str, columns: Collection[str], at: Position | None) -> None:
    """Refuse a value that an option cannot have, and an option of a column that does not exist."""
    expected = None if known is None else known.expected(value)
    if option.startswith("fields."):
        column, _, what = option.removeprefix("fields.").rpartition(".")
        if what not in _OF_FIELDS or column not in columns:
            named = [f"fields.{one}.{other}" for one in columns for other in _OF_FIELDS]
            raise SqlError(
                f"the option '{option}' is not known.{near(option, named)}", code="UNKNOWN_OPTION", at=at, name=option
            )
        if what == "kind":
            expected = None if value in _KINDS else " or ".join(f"'{one}'" for one in _KINDS)
        elif not value.removeprefix("-").isdecimal():
            expected = "a whole number"
    if expected is not None:
        raise SqlError(f"'{option}' = '{value}'; expected {expected}.", code="OPTION_VALUE", at=at, name=option)


def _check_generated(options: Mapping[str, str], at: Position | None) -> list[str]:
    """Refuse a range of generated numbers that is empty; return warnings about options without effect."""
    notes = []
    for column in dict.fromkeys(option.split(".")[1] for option in options if option.startswith("fields.")):
        given = {what: options[f"fields.{column}.{what}"] for what in _OF_FIELDS if f"fields.{column}.{what}" in options}
        is_sequence = given.get("kind") == "sequence"
        unused = ("min", "max", "length") if is_sequence else ("start",)
        notes += [
            f"the option 'fields.{column}.{what}' changes nothing beside 'kind' = '{'sequence' if is_sequence else 'random'}'."
            for what in unused
            if what in given
        ]
        low, high = int(given.get("min", "0")), int(given.get("max", "100"))
        if not is_sequence and low > high:
            raise SqlError(
                f"'fields.{column}.min' is {low} and 'fields.{column}.max' {high}: there is no number between them. Give both.",
                code="OPTION_VALUE",
                at=at,
            )
    return notes


def _without_effect(name: str, options: Mapping[str, str]) -> list[str]:
    """Return the warnings about options that a connector takes and that change nothing beside the others."""
    of_format = [option for option in options if option.startswith("csv.") and form_of(options) != "csv"]
    of_server: tuple[str, ...] = ()
    if name == "jdbc" and options.get("url", "").startswith(("jdbc:sqlite:", "jdbc:duckdb:")):
        of_server = ("password", "username")
    notes = [f"the option '{option}' changes nothing for the format '{form_of(options)}'." for option in of_format]
    notes += [f"the option '{option}' changes nothing for a database in a file." for option in of_server if option in options]
    if name in {"blackhole", "memory", "print"} and form_of(options) not in {"json", *RECORD_FORMATS}:
        notes.append(f"the option 'format' changes nothing for the connector '{name}'.")
    if "properties.group.id" in options:
        notes.append("the option 'properties.group.id' changes nothing here: each query keeps its own position.")
    return notes


def check_options(options: Mapping[str, str], *, at: Position | None, columns: Collection[str] = ()) -> list[str]:
    """Refuse a connector, an option or a format that is not known, is missing, or has a value it cannot have."""
    name = options.get("connector")
    form = options.get("format", options.get("value.format"))
    known_tables = tables()
    if name is not None and name not in known_tables:
        raise SqlError(f"the connector '{name}' is not known.{near(name, known_tables)}", code="UNKNOWN_CONNECTOR", at=at)
    if form is not None and form not in FORMATS:
        raise SqlError(f"the format '{form}' is not known.{near(form, FORMATS)}", code="UNKNOWN_FORMAT", at=at)
    if "format" in options and "value.format" in options:
        raise SqlError("'format' and 'value.format' mean the same. Keep one.", code="SAID_TWICE", at=at)
    if name is None:
        unknown = [option for option in options if option not in _WITHOUT_CONNECTOR]
        if unknown:
            known = ["connector", *_WITHOUT_CONNECTOR, *(one for each in known_tables.values() for one in sorted(each.by_name))]
            raise SqlError(
                f"the option '{unknown[0]}' means nothing without a connector: the table is fed by INSERT."
                f"{near(unknown[0], known)}",
                code="UNKNOWN_OPTION",
                at=at,
                name=unknown[0],
            )
        return []
    connector = known_tables[name]
    warnings = _without_effect(name, options)
    if "lookup." in connector.prefixes:
        lookup_of(options, at=at)
        warnings += lookup_without_effect(options)
    for option in options:
        if option == "connector":
            continue
        if option in connector.by_name or option.startswith(connector.prefixes):
            _check_value(option, connector.by_name.get(option), options[option], columns, at)
            continue
        if _is_encoding(options, option):
            continue
        if option == "value.fields-include" and options[option].upper() == "EXCEPT_KEY" and form_of(options) == "json":
            raise SqlError(
                "'value.fields-include' = 'EXCEPT_KEY' is not supported for rows of JSON: they are read from the value of a "
                "record, and the columns of its key would be NULL. Write the key into the value too, or read it as "
                "'upsert-kafka'.",
                code="NOT_OFFERED",
                at=at,
            )
        if option.endswith(".ignore-parse-errors") and options[option].lower() == "true" and _is_of_format(connector, option):
            warnings.append(
                f"the option '{option}' changes nothing here: what cannot be read stops the query, or is put aside by SET "
                "on_bad_input = 'quarantine'."
            )
            continue
        if option in connector.ignored or option == "force_append_only" or _is_of_format(connector, option):
            warnings.append(f"the option '{option}' of the connector '{name}' changes nothing here.")
            continue
        known = [*sorted(connector.by_name), *connector.ignored]
        raise SqlError(
            f"the option '{option}' of the connector '{name}' is not known.{near(option, known)}",
            code="UNKNOWN_OPTION",
            at=at,
        )
    required = [option for option in connector.options if option.is_required]
    missing = [one.name for one in required if not any(options.get(named) for named in (one.name, *one.aliases))]
    if missing:
        raise SqlError(
            f"the connector '{name}' needs the option '{missing[0]}'. Add it to WITH (...).",
            code="MISSING_OPTION",
            at=at,
        )
    offered = {*connector.reads, *connector.writes}
    if form is not None and offered and form not in offered:
        raise SqlError(f"the connector '{name}' takes no '{form}'.{near(form, sorted(offered))}", code="UNKNOWN_FORMAT", at=at)
    return warnings + (_check_generated(options, at) if name == "datagen" else [])


def has_records(table: Table) -> bool:
    return table.word != "SINK" and holds_records(table.options)


def puts_aside(settings: Mapping[str, str]) -> bool:
    """Return whether unreadable rows become dead letters."""
    return stage_options(settings).on_bad_input == "quarantine"


def record_options(table: Table) -> RecordOptions:
    """Return how records of changes are read: which columns hold their metadata."""
    known = metadata_of(table.options)
    metadata = {known[one.metadata]: one.name for one in table.columns if one.metadata is not None}
    return RecordOptions(metadata=metadata, **encodings_of(table.options))


def texts_of(records: pa.Table) -> pa.Table:
    """Return records as the decoder of a query takes them."""
    return pa.table(
        {
            # As bytes: a record that is no UTF-8 is bad input of its own.
            name: records.column(name)
            for name in ("key", "value", "topic", "partition", "offset")
        }
    )


def start_of(table: Table, offered: tuple[str, ...]) -> str:
    """Return where a topic is read from: `earliest`, or `latest`."""
    given = table.options.get("scan.startup.mode", "earliest")
    mode = given.removesuffix("-offset")
    if mode not in offered:
        raise SqlError(
            f"\"{table.name}\": scan.startup.mode='{given}' is not supported; "
            f"{' and '.join(f'{one}-offset' for one in offered)} {'is' if len(offered) == 1 else 'are'}.",
            code="NOT_OFFERED",
            name=table.name,
        )
    return mode


def external_source(name: str, schema: pa.Schema, options: Mapping[str, str], *, at: Position) -> LookupSource:
    """Return the external table that a declaration describes; nothing is connected yet."""
    source: LookupSource = (
        _redis(name, schema, options) if options["connector"] == "redis" else _jdbc(name, schema, options, at)
    )
    return source


def _redis(name: str, schema: pa.Schema, options: Mapping[str, str]) -> LookupSource:
    from zset_join.lookup.sources.redis import RedisSource

    return RedisSource(
        name=name,
        schema=schema,
        key_pattern=options["key-pattern"],
        layout=options.get("layout", "hash"),
        host=options.get("host", "localhost"),
        user=options.get("username"),
        password=options.get("password"),
        port=int(options.get("port", "6379")),
        database=int(options.get("database", "0")),
    )


def _jdbc(name: str, schema: pa.Schema, options: Mapping[str, str], at: Position) -> Any:
    url, table = options["url"], options["table-name"]
    if holds_credentials(url):
        raise SqlError(
            "the url holds credentials, which would be shown; give them as the options 'username' and 'password'.",
            code="SECRET_IN_URL",
            at=at,
        )
    kind, _, rest = url.removeprefix("jdbc:").partition(":")
    if kind == "postgresql":
        from zset_join.lookup.sources.postgres import PostgresSource

        parts = postgres_url(url, at=at)
        return PostgresSource(
            name=name,
            schema=schema,
            table=table,
            host=parts.hostname or "localhost",
            port=parts.port or 5432,
            database=parts.path.lstrip("/") or "postgres",
            user=options.get("username", "postgres"),
            password=options.get("password"),
        )
    if kind in {"sqlite", "duckdb"}:
        from zset_join.lookup.sources.database_file import DuckDBFileSource, SQLiteFileSource

        files = {"sqlite": SQLiteFileSource, "duckdb": DuckDBFileSource}
        return files[kind](name=name, schema=schema, path=rest, table=table)
    raise SqlError(
        f"'{url}': there is jdbc:postgresql://host:port/database, jdbc:sqlite:path and jdbc:duckdb:path. Read another database "
        "with session.register_lookup(FunctionSource(...)).",
        code="UNKNOWN_CONNECTOR",
        at=at,
    )


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
