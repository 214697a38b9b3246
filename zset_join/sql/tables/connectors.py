"""The options of a table in WITH: checked by the table of connectors (`zset_join.connectors`), and their meaning for records.

An option that is not in it is refused with the names that are near; one that is missing is named; one that other systems
list and that changes nothing here warns.

`properties.*` go to Kafka's client as they are, and are never shown.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from zset_join.changelog.formats import RECORD_FORMATS
from zset_join.connectors import Option, TableSide, tables
from zset_join.core.errors import SqlError
from zset_join.sql.parse.lookup_options import lookup_of, lookup_without_effect
from zset_join.sql_expressions.positions import Position, near

__all__ = [
    "FORMATS",
    "check_options",
    "encodings_of",
    "form_of",
    "holds_records",
    "metadata_of",
    "sink_options",
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
