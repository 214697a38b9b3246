"""The clauses of CREATE TABLE beside its columns: options, formats, layouts, conflicts, and checks of what columns are called.

| clause | read as |
|---|---|
| `FORMAT PLAIN ENCODE JSON` | `'format' = 'json'` |
| `USING parquet` | `'connector' = 'filesystem', 'format' = 'parquet'` |
| `SETTINGS type = 'kafka', brokers = ...` | the connector `kafka` |
| `ON CONFLICT OVERWRITE [WITH VERSION COLUMN (c)]` | an upsert, of the larger `c` |
| `PARTITIONED BY`, `DISTRIBUTED BY` | nothing; it warns |
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from zset_join.connectors import tables
from zset_join.core.errors import SqlError
from zset_join.expressions.type_rules import kind_of
from zset_join.sql.parse.readers import Reader, with_environment
from zset_join.sql.tables.catalog import ColumnDefinition
from zset_join.sql_expressions.consumed import Position, SqlWarning, near
from zset_join.sql_expressions.dialects import Statement

__all__ = [
    "add_options",
    "check_event_time",
    "encoding",
    "external_stream",
    "files_of",
    "layout",
    "on_conflict",
]

_ENCODINGS = {"PLAIN": "json", "APPEND": "json", "UPSERT": "upsert-json", "DEBEZIUM": "debezium-json",
              "MAXWELL": "maxwell-json", "CANAL": "canal-json"}  # fmt: skip
LAYOUTS = frozenset({"DISTRIBUTED", "DISTRIBUTED BY", "PARTITIONED", "PARTITIONED BY"})


def add_options(options: dict[str, str], more: Mapping[str, str], statement: Statement, at: Position) -> None:
    for name, value in more.items():
        if name in options:
            raise SqlError(f"'{name}' is given twice. Keep one.", code="SAID_TWICE", at=at, name=name)
        options[name] = with_environment(name, value, statement, at)


def files_of(reader: Reader) -> dict[str, str]:
    """Read Spark's USING format: a table of files."""
    at = reader.statement.place(reader.index)
    form = reader.name("a format").lower()
    formats = tables()["filesystem"].reads
    if form not in formats:
        raise SqlError(f"USING {form} is not supported.{near(form, formats)}", code="UNKNOWN_FORMAT", at=at)
    return {"connector": "filesystem", "format": form}


def on_conflict(reader: Reader) -> str | None:
    """Read RisingWave's ON CONFLICT clause; return the version column."""
    at = reader.statement.place(reader.index)
    if not (reader.has("OVERWRITE") or reader.has("DO", "UPDATE", "FULL")):
        raise SqlError(
            "ON CONFLICT is supported as OVERWRITE [WITH VERSION COLUMN (c)]: a row replaces the one of its key. To keep the "
            "first row of a key, insert into a table without PRIMARY KEY, and keep WHERE rn = 1 over ROW_NUMBER().",
            code="NOT_OFFERED",
            at=at,
        )
    if not reader.has("WITH", "VERSION", "COLUMN"):
        return None
    at = reader.statement.place(reader.index)
    names = reader.names() if reader.word == "(" else (reader.name("a column"),)
    if len(names) != 1:
        raise SqlError("a version is one column.", code="NOT_OFFERED", at=at)
    return names[0]


def layout(reader: Reader, options: dict[str, str], columns: Sequence[str]) -> None:
    """Take PARTITIONED BY and DISTRIBUTED BY: rows are laid out by the plan."""
    # PARTITIONED BY (a, bucket(16, b))    DISTRIBUTED BY [HASH | RANGE] (a) [INTO 4 BUCKETS]    DISTRIBUTED INTO 4 BUCKETS
    at = reader.statement.place(reader.index)
    word = reader.word.split()[0]
    is_by = reader.has(word, "BY")
    if not is_by:
        reader.expect(word)
    if is_by:
        if word == "DISTRIBUTED" and not reader.has("HASH"):
            reader.has("RANGE")
        _columns_of_layout(reader, columns)
    if word == "DISTRIBUTED" and (not is_by or reader.word == "INTO"):
        reader.expect("INTO")
        if not reader.value().isdecimal():
            reader.index -= 1
            reader.fail("expected a number of buckets")
        reader.expect("BUCKETS")
    elif not is_by:
        reader.fail("expected BY")
    if word == "PARTITIONED" and options.get("connector", "filesystem") == "filesystem" and _is_of_files(reader, options):
        raise SqlError(
            "PARTITIONED BY is not supported for files: values are read from files, not from the names of directories. Leave "
            "it out, and give every directory a table of its own.",
            code="NOT_OFFERED",
            at=at,
        )
    warnings.warn(SqlWarning(f"{word} BY changes nothing here: rows are laid out by the plan."), stacklevel=7)


def _columns_of_layout(reader: Reader, columns: Sequence[str]) -> None:
    """Read columns in brackets, or functions of a column as Spark has them."""
    known = {column.lower() for column in columns}
    reader.expect("(")
    while True:
        at = reader.statement.place(reader.index)
        name = reader.name("a column")
        if reader.has("("):
            inner = reader.until()
            while reader.has(","):
                inner = reader.until()
            reader.expect(")")
            name = inner[0].text if len(inner) == 1 else ""
        if name.lower() not in known:
            raise SqlError(f"the table has no column {name}.{near(name, columns)}", code="UNKNOWN_COLUMN", at=at, name=name)
        if not reader.has(","):
            break
    reader.expect(")")


def _is_of_files(reader: Reader, options: dict[str, str]) -> bool:
    """Return whether a table is one of files; WITH may still be to come."""
    texts = [token.text for token in reader.tokens[reader.index :]]
    return "filesystem" in texts or options.get("connector") == "filesystem"


def encoding(reader: Reader) -> dict[str, str]:
    """Read RisingWave's FORMAT ... ENCODE ... as a format."""
    at = reader.statement.place(reader.index)
    reader.expect("FORMAT")
    what = reader.name("a format").upper()
    reader.expect("ENCODE")
    how = reader.name("an encoding").upper()
    if what not in _ENCODINGS or how != "JSON":
        formats = "" if what in _ENCODINGS else near(what, _ENCODINGS)
        raise SqlError(
            f"FORMAT {what} ENCODE {how} is not supported.{formats} The encoding is JSON.",
            code="UNKNOWN_FORMAT",
            at=at,
        )
    given = {"format": _ENCODINGS[what]}
    if reader.has("("):
        for option, value in reader.options().items():
            if option == "force_append_only":
                given[option] = value
            else:
                warnings.warn(SqlWarning(f"the option '{option}' of ENCODE JSON changes nothing here."), stacklevel=6)
        reader.expect(")")
    return given


def external_stream(settings: dict[str, str], options: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    left = {name: value for name, value in settings.items() if name not in {"type", "brokers", "topic", "data_format"}}
    of_kafka = {
        "connector": "kafka",
        "topic": settings.get("topic", ""),
        "properties.bootstrap.servers": settings.get("brokers", ""),
        "format": {"JSONEachRow": "json"}.get(settings.get("data_format", "JSONEachRow"), settings.get("data_format", "json")),
    }
    return {**options, **of_kafka}, left


def check_event_time(column: ColumnDefinition, at: Position) -> None:
    """Refuse an event time that is no point in time, which no INSERT could fill."""
    if column.is_processing_time:
        raise SqlError(
            f'"{column.name}" is the processing time, which has no WATERMARK. Name the column that holds the event time.',
            code="WATERMARK",
            at=at,
        )
    if kind_of(column.type) not in {"timestamp", "instant"}:
        cures = {
            "integer": f"TO_TIMESTAMP_LTZ({column.name}, 3), or 0 where it counts seconds",
            "string": f"TO_TIMESTAMP({column.name})",
        }
        cure = cures.get(kind_of(column.type), f"CAST({column.name} AS TIMESTAMP)")
        raise SqlError(
            f'the WATERMARK is for "{column.name}", of type {column.type}; an event time is a TIMESTAMP. Compute one, and '
            f"name that: event_time AS {cure}, WATERMARK FOR event_time AS event_time.",
            code="WATERMARK",
            at=at,
        )
