"""CREATE TABLE, STREAM, SOURCE and SINK: columns, keys, watermarks, options.

    CREATE TABLE name (column type [NOT NULL] [DEFAULT literal] [PRIMARY KEY], column AS expression, column AS PROCTIME(),
                       column type METADATA [FROM 'field'], column type AS SYSTEM_METADATA('field'),
                       PRIMARY KEY (a, b) [NOT ENFORCED], WATERMARK FOR column AS column [- INTERVAL '5' SECOND])
           [APPEND ONLY] [PRIMARY KEY (a, b)] [WITH ('key' = 'value')] [SETTINGS key = 'value']

What its rows mean:

| declared | mode |
|---|---|
| `MUTABLE STREAM`, `mode='versioned_kv'`, a primary key without a connector or with `filesystem`, `upsert-kafka` | upsert |
| `mode='changelog_kv'` | upsert, and `_tp_delta = -1` deletes |
| a format of changes, such as `debezium-json` or `dms-json` | upsert by primary key, changelog without |
| `APPEND ONLY`, `STREAM`, `SOURCE`, any other format | append; a primary key is then trusted to be unique |
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from zset_join.changelog.formats import RECORD_FORMATS
from zset_join.connectors import tables
from zset_join.core.errors import SqlError
from zset_join.sql.ddl.table_clauses import (
    LAYOUTS,
    add_options,
    check_event_time,
    encoding,
    external_stream,
    files_of,
    layout,
    on_conflict,
)
from zset_join.sql.parse.readers import Reader, default_of, read_type
from zset_join.sql.tables.catalog import PROCESSING_TIME_TYPE, ColumnDefinition, Mode, Table
from zset_join.sql.tables.connectors import check_options, external_source, form_of, holds_records, metadata_of, sink_options
from zset_join.sql_expressions.consumed import Position, SqlWarning, check_consumed, check_distinct, near
from zset_join.sql_expressions.dialects import parse_expression
from zset_join.sql_expressions.unknown import DECLARATIONS

__all__ = ["Model", "find_like", "model_of", "read_columns", "read_table"]

_CHANGELOG_FORMATS = frozenset({"debezium-avro-confluent", *RECORD_FORMATS})
_MODES = ("append", "changelog", "changelog_kv", "versioned_kv")
_INTERVALS = {
    "MICROSECOND": 1, "MILLISECOND": 1000, "SECOND": 10**6, "MINUTE": 60 * 10**6, "HOUR": 3600 * 10**6, "DAY": 86400 * 10**6,
    "US": 1, "MS": 1000, "S": 10**6, "M": 60 * 10**6, "H": 3600 * 10**6, "D": 86400 * 10**6,
}  # fmt: skip
_TP_TIME = "_tp_time"
TP_DELTA = "_tp_delta"


@dataclass
class _Declared:
    columns: list[ColumnDefinition]
    primary_key: tuple[str, ...] = ()
    watermark: tuple[str, int] | None = None
    given: set[str] = field(default_factory=set)

    def refuse_second(self, what: str, cure: str, at: Position) -> None:
        """Record a clause that may occur once; it replaces the one copied by LIKE."""
        if what in self.given:
            raise SqlError(f"there are two of {what}. {cure}", code="SAID_TWICE", at=at)
        self.given.add(what)

    def set_key(self, names: tuple[str, ...], at: Position) -> None:
        self.refuse_second("PRIMARY KEY", "Name all its columns in one: PRIMARY KEY (a, b).", at)
        self.primary_key = names


@dataclass(frozen=True)
class Model:
    """Parts that a declaration copies from the table it is LIKE."""

    columns: tuple[ColumnDefinition, ...]
    primary_key: tuple[str, ...]
    watermark: tuple[str, int] | None
    options: dict[str, str]
    settings: dict[str, str]
    is_append_only: bool
    end: int


def read_table(reader: Reader, word: str, *, model: Model | None = None) -> tuple[Table, bool]:
    """Read a declaration from behind its first words on."""
    may_exist = reader.has("IF", "NOT", "EXISTS")
    place = reader.statement.place(reader.index)
    name = reader.name("the name of the table")
    declared = _Declared([]) if model is None else _Declared([*model.columns], model.primary_key, model.watermark)
    if reader.has("("):
        _elements(reader, declared)
        _replace_copied(declared, 0 if model is None else len(model.columns))
    options: dict[str, str] = {}
    settings: dict[str, str] = {}
    version_column: str | None = None
    is_append_only = model is not None and model.is_append_only and bool(model.primary_key)
    while not reader.is_done:
        at = reader.statement.place(reader.index)
        if reader.has("PRIMARY", "KEY"):
            declared.set_key(reader.names() if reader.word == "(" else (reader.name("a column"),), at)
            reader.has("NOT", "ENFORCED")
        elif reader.has("WITH"):
            reader.expect("(")
            add_options(options, reader.options(), reader.statement, at)
            reader.expect(")")
        elif reader.has("SETTINGS"):
            add_options(settings, reader.options(), reader.statement, at)
        elif model is not None and reader.word == "LIKE":
            declared.refuse_second("LIKE", "A table is like one other.", at)
            reader.index = model.end
        elif reader.word in LAYOUTS:
            declared.refuse_second(reader.word.split()[0] + " BY", "Keep one.", at)
            layout(
                reader,
                options if model is None else {**model.options, **options},
                [column.name for column in declared.columns],
            )
        elif reader.word == "FORMAT":
            add_options(options, encoding(reader), reader.statement, at)
        elif reader.has("ON", "CONFLICT"):
            declared.refuse_second("ON CONFLICT", "Keep one.", at)
            version_column = on_conflict(reader) or version_column
        elif reader.has("APPEND", "ONLY"):
            declared.refuse_second("APPEND ONLY", "Keep one.", at)
            is_append_only = True
        elif reader.has("COMMENT"):
            declared.refuse_second("COMMENT", "Keep one.", at)
            reader.string("a comment")
        elif reader.has("USING"):
            add_options(options, files_of(reader), reader.statement, at)
        else:
            other = next((phrase for phrase in DECLARATIONS if reader.has(*phrase.split())), None)
            if other is not None:
                raise SqlError(f"{other} is not supported here. {DECLARATIONS[other]}.", code="NOT_OFFERED", at=at)
            reader.fail("expected PRIMARY KEY, WITH (...), SETTINGS or the end")
    if model is not None:
        options, settings = {**model.options, **options}, {**model.settings, **settings}
    if settings.get("type") == "kafka":
        options, settings = external_stream(settings, options)
    options = sink_options(options) if options else options
    if not declared.columns:
        raise SqlError(f'"{name}" has no columns; name them in brackets.', code="SQL_SYNTAX", at=place)
    _check(declared, name, reader)
    _check_metadata(declared, options, name, at=place)
    if "version_column" in settings:
        if version_column is not None:
            declared.refuse_second("ON CONFLICT", "The version column is named there, and by SETTINGS.", place)
        version_column = settings["version_column"]
    elif version_column is not None:
        settings["version_column"] = version_column
    mode, delta = _mode(reader, word, declared, options, settings, is_append_only)
    columns = list(declared.columns)
    if delta is not None and delta not in {column.name for column in columns}:
        columns.append(ColumnDefinition(delta, pa.int8()))
    if reader.statement.dialect == "timeplus" and _TP_TIME not in {column.name for column in columns}:
        columns.append(ColumnDefinition(_TP_TIME, PROCESSING_TIME_TYPE, is_processing_time=True))
    virtual: set[str] = set()
    if mode == "upsert":
        # A processing time in a row that is kept by its key would make every repetition of the row a change.
        virtual = {column.name for column in columns if column.is_processing_time and reader.statement.dialect != "timeplus"}
        columns = [column for column in columns if column.name not in virtual]
        if virtual:
            warnings.warn(
                SqlWarning(
                    f'"{name}" keeps the row of a key, so {", ".join(sorted(virtual))} is not one of its columns: it is the '
                    "processing time in FOR SYSTEM_TIME AS OF, and * leaves it out."
                ),
                stacklevel=5,
            )
    connector = tables().get(options.get("connector", ""))
    is_looked_up = connector is not None and connector.is_looked_up
    for warning in _never_read(name, options, declared):
        warnings.warn(SqlWarning(warning), stacklevel=5)
    table = Table(
        lookup=external_source(name, _schema(columns), options, at=place) if is_looked_up else None,
        name=name,
        word=word,
        columns=tuple(columns),
        mode=mode,
        primary_key=declared.primary_key,
        watermark=declared.watermark,
        options=options,
        settings=settings,
        delta_column=delta,
        version_column=_version_column(version_column, declared, mode, options, name, place),
        processing_times=tuple(sorted(virtual)),
        is_ordered_by_file=mode == "upsert" and _is_of_files(word, options),
    )
    return table, may_exist


def _never_read(name: str, options: Mapping[str, str], declared: _Declared) -> list[str]:
    """Return the warnings about clauses that mean something where rows are read, of a table whose rows never are."""
    connector = tables().get(options.get("connector", ""))
    if connector is None or not connector.is_row_sink:
        return []
    made = [column.name for column in declared.columns if not column.is_given and not connector.is_looked_up]
    notes = [f"its computed columns ({', '.join(made)}) are left out"] if made else []
    notes += [f"its WATERMARK for {declared.watermark[0]} changes nothing"] if declared.watermark else []
    return [f"\"{name}\": the rows of the connector '{options['connector']}' are never read here, so {one}." for one in notes]


def _is_of_files(word: str, options: Mapping[str, str]) -> bool:
    """Return whether a table reads rows of files; records of changes have an order of their own."""
    return word != "SINK" and options.get("connector") == "filesystem" and not holds_records(options)


def _version_column(
    given: str | None, declared: _Declared, mode: Mode, options: Mapping[str, str], name: str, at: Position
) -> str | None:
    if given is None:
        return None
    known = {column.name.lower(): column.name for column in declared.columns if not column.is_processing_time}
    if given.lower() not in known:
        raise SqlError(
            f'the version column {given} is not in "{name}".{near(given, known.values())}', code="UNKNOWN_COLUMN", at=at
        )
    if mode != "upsert":
        raise SqlError(
            "a version column defines the newest row of a key, and rows have no key here. Add PRIMARY KEY (...).",
            code="NO_PRIMARY_KEY",
            at=at,
        )
    if options.get("connector") not in {None, "memory"}:
        raise SqlError(
            f"a version column is not supported for the connector '{options['connector']}': the later row wins. Keep the "
            f"newest rows by WHERE rn = 1 over ROW_NUMBER() OVER (PARTITION BY ... ORDER BY {given} DESC) instead.",
            code="NOT_OFFERED",
            at=at,
        )
    return known[given.lower()]


def _replace_copied(declared: _Declared, copied: int) -> None:
    """Let computed columns and metadata that are declared again replace those that LIKE copies."""
    new_names = {column.name for column in declared.columns[copied:]}
    kept = [one for one in declared.columns[:copied] if one.name not in new_names or (one.is_given and one.metadata is None)]
    declared.columns[:copied] = kept


def _schema(columns: list[ColumnDefinition]) -> pa.Schema:
    return pa.schema([(column.name, column.type) for column in columns if column.is_given])


def read_columns(reader: Reader, table: Table) -> list[ColumnDefinition]:
    """Read columns that a table gets: one, or several in brackets."""
    declared = _Declared([])
    at = reader.statement.place(reader.index)
    if reader.has("("):
        _elements(reader, declared)
    else:
        _column(reader, declared)
    if declared.primary_key or declared.watermark is not None:
        raise SqlError(
            f'"{table.name}" keeps its key and its watermark. Make a new table with others, and INSERT the rows into it.',
            code="NOT_OFFERED",
            at=at,
            name=table.name,
        )
    return declared.columns


def _elements(reader: Reader, declared: _Declared) -> None:
    while not reader.has(")"):
        if reader.word == "CONSTRAINT":
            reader.index += 1
            reader.name("the name of the constraint")
            if reader.word.split()[:1] != ["PRIMARY"]:
                reader.fail("expected PRIMARY KEY")
        at = reader.statement.place(reader.index)
        if reader.has("PRIMARY", "KEY"):
            declared.set_key(reader.names(), at)
            reader.has("NOT", "ENFORCED")
        elif reader.has("WATERMARK", "FOR"):
            declared.refuse_second("WATERMARK", "A table has one event time.", at)
            declared.watermark = _watermark(reader)
        else:
            _column(reader, declared)
        if not reader.has(",") and reader.word != ")":
            reader.fail("expected a comma or a closing bracket")
        if reader.word == ")" and reader.tokens[reader.index - 1].text == ",":
            reader.fail("expected a column after the comma")


def _watermark(reader: Reader) -> tuple[str, int]:
    column = reader.name("the event-time column")
    reader.expect("AS")
    place = reader.statement.place(reader.index)
    root = node = parse_expression(reader.statement, reader.until())
    delay = 0
    if isinstance(node, exp.Sub) and isinstance(node.expression, exp.Interval):
        unit = ("" if node.expression.unit is None else node.expression.unit.name).upper().removesuffix("S") or "SECOND"
        amount = node.expression.this
        text = amount.name if isinstance(amount, exp.Literal) else ""
        parts = text.split()
        if len(parts) == 2:
            text, unit = parts[0], parts[1].upper().removesuffix("S")
        number = re.fullmatch(r"(\d{1,12})(?:\.(\d{1,6}))?", text)
        if unit not in _INTERVALS or number is None:
            raise SqlError(
                "the delay of a watermark is a number of seconds, minutes, hours or days, as in INTERVAL '5' SECOND.",
                code="WATERMARK",
                at=place,
            )
        delay = (int(number[1]) * 10**6 + int((number[2] or "").ljust(6, "0"))) * _INTERVALS[unit] // 10**6
        node = node.this
    if not isinstance(node, exp.Column) or node.name.lower() != column.lower():
        raise SqlError(
            f"a watermark is {column} or {column} - INTERVAL '...' SECOND, nothing else.", code="WATERMARK", at=place
        )
    check_consumed(root, reader.statement.text, place)
    return column, delay


def _column(reader: Reader, declared: _Declared) -> None:
    name = reader.name("a column")
    if reader.has("AS"):
        node = parse_expression(reader.statement, reader.until())
        if isinstance(node, exp.Anonymous) and node.name.upper() == "PROCTIME":
            check_consumed(node, reader.statement.text)
            declared.columns.append(ColumnDefinition(name, PROCESSING_TIME_TYPE, is_processing_time=True))
            return
        kind = _computed_type(node, declared, reader)
        check_consumed(node, reader.statement.text)
        declared.columns.append(ColumnDefinition(name, kind, computed=node))
        return
    kind = read_type(reader)
    metadata: str | None = None
    default: pa.Scalar | None = None
    clauses: set[str] = set()

    def once(clause: str, at: Position) -> None:
        if clause in clauses:
            raise SqlError(f'"{name}" has two of {clause}. Keep one.', code="SAID_TWICE", at=at)
        clauses.add(clause)

    while True:
        at = reader.statement.place(reader.index)
        if reader.has("NOT", "NULL"):
            once("NULL and NOT NULL", at)
            clauses.add("NOT NULL")
        elif reader.has("NULL"):
            once("NULL and NOT NULL", at)
        elif metadata is not None and reader.has("VIRTUAL"):
            once("VIRTUAL", at)
        elif reader.has("PRIMARY", "KEY"):
            declared.set_key((name,), at)
            reader.has("NOT", "ENFORCED")
        elif metadata is None and default is None and reader.has("METADATA"):
            metadata = reader.string("the name of the metadata") if reader.has("FROM") else name
        elif metadata is None and reader.has("AS", "SYSTEM_METADATA"):
            reader.expect("(")
            metadata = reader.string("the name of the metadata")
            reader.expect(")")
        elif reader.has("COMMENT"):
            once("COMMENT", at)
            reader.string("a comment")
        elif metadata is None and reader.has("DEFAULT"):
            once("DEFAULT", at)
            default = default_of(reader.statement, reader.until("NOT", "COMMENT", "PRIMARY"), kind, name)
        else:
            break
    is_required = "NOT NULL" in clauses
    declared.columns.append(ColumnDefinition(name, kind, metadata=metadata, is_required=is_required, default=default))


def _computed_type(node: exp.Expr, declared: _Declared, reader: Reader) -> pa.DataType:
    from zset_join.expressions.rows import value_type
    from zset_join.sql_expressions.scalars import ScalarBinder

    # A name that is present twice is refused when all columns are read.
    schema = pa.schema({column.name: column.type for column in declared.columns})
    binder = ScalarBinder.over(schema, reader.statement)
    return value_type(binder.bind(node), schema)


def _check(declared: _Declared, name: str, reader: Reader) -> None:
    names = [column.name for column in declared.columns]
    place = reader.statement.place(0)
    check_distinct(names, f'"{name}"', place)
    check_distinct(declared.primary_key, f'the PRIMARY KEY of "{name}"', place)
    lower = {one.lower(): one for one in names}
    for what, wanted in (
        ("PRIMARY KEY", declared.primary_key),
        ("WATERMARK", declared.watermark[:1] if declared.watermark else ()),
    ):
        missing = [str(one) for one in wanted if str(one).lower() not in lower]
        if missing:
            raise SqlError(
                f'{what} names {", ".join(missing)}, which "{name}" does not have.{near(missing[0], names)}',
                code="UNKNOWN_COLUMN",
                at=place,
            )
    declared.primary_key = tuple(lower[one.lower()] for one in declared.primary_key)
    if declared.watermark is not None:
        declared.watermark = (lower[declared.watermark[0].lower()], declared.watermark[1])
        column = next(one for one in declared.columns if one.name == declared.watermark[0])
        check_event_time(column, place)


def _check_metadata(declared: _Declared, options: dict[str, str], name: str, *, at: Position) -> None:
    """Refuse a column for metadata that the connector does not have; a table without one is given it by INSERT."""
    wanted = {column.name: column.metadata for column in declared.columns if column.metadata is not None}
    if not wanted or options.get("connector") in {None, "memory"}:
        return
    known = metadata_of(options)
    unknown = [(column, of) for column, of in wanted.items() if of not in known]
    if unknown:
        column, of = unknown[0]
        known_keys = f"there is {', '.join(sorted(known))}" if known else "it has nothing beside its rows"
        raise SqlError(
            f"\"{name}\": {column} METADATA FROM '{of}': of the connector '{options['connector']}' with "
            f"'{form_of(options)}' {known_keys}.",
            code="UNKNOWN_COLUMN",
            at=at,
            name=name,
        )
    if form_of(options) != "json" and not declared.primary_key:
        warnings.warn(
            SqlWarning(
                f'"{name}" has metadata and no primary key: an update retracts the row as it came, which had other metadata, '
                "and is refused then. Add PRIMARY KEY (...) NOT ENFORCED."
            ),
            stacklevel=6,
        )
    taken: dict[str, str] = {}
    for column, of in wanted.items():
        if form_of(options) != "json" and taken.setdefault(known[of], column) != column:
            raise SqlError(
                f'"{name}": {taken[known[of]]} and {column} hold the same metadata. Keep one, and compute the other from it.',
                code="DUPLICATE_COLUMN",
                at=at,
                name=name,
            )


def _mode(
    reader: Reader,
    word: str,
    declared: _Declared,
    options: dict[str, str],
    settings: dict[str, str],
    is_append_only: bool,
) -> tuple[Mode, str | None]:
    place = reader.statement.place(0)
    connector, form = options.get("connector"), options.get("format", options.get("value.format"))
    for warning in check_options(options, at=place, columns=[column.name for column in declared.columns if column.is_given]):
        warnings.warn(SqlWarning(warning), stacklevel=6)
    wanted = settings.get("mode")
    if wanted is not None and wanted not in _MODES:
        raise SqlError(f"mode='{wanted}' is not known.{near(wanted, _MODES)}", code="UNKNOWN_SETTING", at=place)
    unknown = [key for key in settings if key not in {"mode", "version_column"}]
    if "keep_versions" in unknown:
        raise SqlError(
            "keep_versions is not supported: a table with a PRIMARY KEY and WATERMARK FOR its event time keeps the versions "
            "that joins as of a time still need. Leave it out, and declare the WATERMARK.",
            code="NOT_OFFERED",
            at=place,
        )
    if unknown:
        raise SqlError(
            f"the setting {unknown[0]} of a stream is not known.{near(unknown[0], ('mode', 'version_column'))}",
            code="UNKNOWN_SETTING",
            at=place,
        )
    needs_key = word == "MUTABLE STREAM" or wanted in {"versioned_kv", "changelog_kv"} or connector == "upsert-kafka"
    if needs_key and not declared.primary_key:
        raise SqlError(
            "rows are kept by their key here, and there is none. Add PRIMARY KEY (...).", code="NO_PRIMARY_KEY", at=place
        )
    if wanted in {"changelog_kv", "changelog"}:
        return ("upsert" if declared.primary_key else "changelog"), TP_DELTA
    if needs_key:
        return "upsert", None
    if form in _CHANGELOG_FORMATS:
        return ("upsert" if declared.primary_key else "changelog"), None
    is_of_files = connector == "filesystem" and bool(declared.primary_key)
    if is_append_only or wanted == "append" or word in {"STREAM", "SOURCE"} or (form is not None and not is_of_files):
        return "append", None
    return ("upsert" if declared.primary_key else "append"), None


# CREATE TABLE t (...) LIKE s (...): the columns of `s` come first, those in brackets behind them. INCLUDING, EXCLUDING or
# OVERWRITING choose what else is copied; as in Flink, INCLUDING ALL and OVERWRITING OPTIONS by default. DISTRIBUTION and
# PARTITIONS are nothing, as tables have none here. A clause that is given again replaces the copied one, with INCLUDING too.


_PARTS = ("CONSTRAINTS", "DISTRIBUTION", "GENERATED", "METADATA", "OPTIONS", "PARTITIONS", "WATERMARKS")
_STRATEGIES = ("EXCLUDING", "INCLUDING", "OVERWRITING")


@dataclass(frozen=True)
class LikeClause:
    name: str
    name_index: int
    end: int  # the token behind the clause
    taken: frozenset[str]


def find_like(reader: Reader) -> LikeClause | None:
    """Return the LIKE clause of a declaration; None where it has none. The reader stays where it is."""
    depth = 0
    for index in range(reader.index, len(reader.tokens)):
        token = reader.tokens[index]
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        if depth == 0 and token.text.upper() == "LIKE" and token.token_type == TokenType.LIKE:
            return _clause(Reader(reader.statement, index + 1))
    return None


def _clause(reader: Reader) -> LikeClause:
    at = reader.index
    name = reader.name("the name of a table")
    taken = set(_PARTS)
    if reader.has("("):
        while not reader.has(")"):
            strategy = reader.word
            if strategy not in _STRATEGIES:
                reader.fail(f"expected {', '.join(_STRATEGIES)} or a closing bracket")
            reader.index += 1
            place = reader.statement.place(reader.index)
            part = reader.name("a part of a table").upper()
            if part not in {*_PARTS, "ALL"}:
                raise SqlError(f"a table has no {part}.{near(part, ('ALL', *_PARTS))}", code="SQL_SYNTAX", at=place)
            parts = set(_PARTS) if part == "ALL" else {part}
            taken = taken - parts if strategy == "EXCLUDING" else taken | parts
            reader.has(",")
    return LikeClause(name, at, reader.index, frozenset(taken))


def model_of(table: Table, clause: LikeClause) -> Model:
    times = [ColumnDefinition(name, PROCESSING_TIME_TYPE, is_processing_time=True) for name in table.processing_times]
    columns = tuple(column for column in (*table.columns, *times) if _is_taken(column, table, clause.taken))
    names = {column.name for column in columns}
    has_key = "CONSTRAINTS" in clause.taken and set(table.primary_key) <= names
    has_watermark = "WATERMARKS" in clause.taken and table.watermark is not None and table.watermark[0] in names
    return Model(
        columns=columns,
        primary_key=table.primary_key if has_key else (),
        watermark=table.watermark if has_watermark else None,
        options=dict(table.options) if "OPTIONS" in clause.taken else {},
        settings=dict(table.settings) if has_key else {},
        is_append_only=table.mode == "append",
        end=clause.end,
    )


def _is_taken(column: ColumnDefinition, table: Table, taken: frozenset[str]) -> bool:
    if column.name == table.delta_column:
        return False
    if column.metadata is not None:
        return "METADATA" in taken
    return "GENERATED" in taken or column.is_given
