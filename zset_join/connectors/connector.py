"""A connector: a name for an output in Python and a table in SQL.

The law: the options of an output are the parameters of the function that makes it, so checks, reference and call cannot differ.
Those of a table are listed, because WITH holds texts.

`duckdb_output`, `jdbc_output`: the options of a table in WITH: its path, Kafka's client, a database; and which output the table
is.

Nothing is connected or opened here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints
from urllib.parse import SplitResult, unquote, urlsplit

from zset_join.core.errors import SqlError
from zset_join.lookup.secret import holds_credentials
from zset_join.sinks.sink import Sink

if TYPE_CHECKING:
    from zset_join.sql_expressions.consumed import Position

__all__ = [
    "Connector",
    "Option",
    "OutputSide",
    "TableSide",
    "WrittenTable",
    "duckdb_output",
    "jdbc_output",
    "kafka_config",
    "kafka_output",
    "local_path_of",
    "postgres_url",
]

Keeps: TypeAlias = Literal["a view", "every change", "a view, or every change", "nothing"]
Promise: TypeAlias = Literal["exactly once", "at least once", "no promise"]


@dataclass(frozen=True)
class Option:
    """One option.

    Args:
        name: as Python or WITH writes it.
        is_required: whether it must be given.
        default: value if it is not given; None: the connector decides.
        choices: the values it may have; empty where any is possible.
        least: the smallest allowed integer; None for other types.
        most: the largest.
        aliases: other names of the same.
        is_secret: its value is never kept as a literal nor shown.

    >>> Option("port", least=1, most=65_535).expected("0"), Option("port", least=1).expected("x"), Option("path").expected("x")
    ('a number from 1 to 65535', 'a whole number', None)
    """

    name: str
    is_required: bool = False
    default: Any = None
    choices: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    aliases: tuple[str, ...] = ()
    is_secret: bool = False

    def expected(self, value: str) -> str | None:
        """Return the expected values if a value is not allowed, else None."""
        if self.choices:
            return None if value in self.choices else " or ".join(f"'{one}'" for one in self.choices)
        if self.least is None:
            return None
        if not value.isdecimal():
            return "a whole number"
        if self.most is not None and not self.least <= int(value) <= self.most:
            return f"a number from {self.least} to {self.most}"
        return f"a whole number from {self.least}" if int(value) < self.least else None


@dataclass(frozen=True)
class OutputSide:
    """A connector as an output of a pipeline or of a query inside Spark.

    Args:
        make: makes the sink, not yet opened; its parameters are the options.
        keeps: "a view", "every change" or "nothing".
        promise: how often an epoch arrives, whatever was retried, replayed or killed.
        extra: the extra that pip installs for it, or None.
    """

    make: Callable[..., Sink]
    keeps: Keeps
    promise: Promise = "exactly once"
    extra: str | None = None

    @cached_property
    def options(self) -> Mapping[str, Option]:
        """Return the options by name."""
        nothing = inspect.Parameter.empty
        return {
            name: Option(name, is_required=one.default is nothing, default=None if one.default is nothing else one.default)
            for name, one in inspect.signature(self.make).parameters.items()
        }

    @property
    def choices(self) -> Mapping[str, tuple[str, ...]]:
        """Return the allowed texts of options by name, from their types."""
        hints = get_type_hints(self.make)
        return {name: _choices(hints.get(name)) for name in self.options}


@dataclass(frozen=True)
class WrittenTable:
    """A table of SQL that a query writes.

    Args:
        name: of the table.
        options: those of WITH, checked.
        key: columns that identify a row; may be empty.
        retracts: the query retracts rows.
    """

    name: str
    options: Mapping[str, str]
    key: tuple[str, ...] = ()
    retracts: bool = False


@dataclass(frozen=True)
class TableSide:
    """A connector as a table of SQL.

    Args:
        options: of WITH.
        ignored: options of other systems without effect here; they warn.
        prefixes: beginnings of options that are passed on.
        reads: formats it reads; empty: none.
        writes: formats it writes; empty: none, or rows go into it without a format.
        output: of a table and its options; None if it is only read.
        as_read: text on reading, for the reference; empty: it is not read.
        as_written: text on writing, for the reference.
        as_looked_up: text on lookups, for the reference; empty: no lookup joins.
    """

    options: tuple[Option, ...] = ()
    ignored: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    output: Callable[[WrittenTable], tuple[str, dict[str, Any]]] | None = None
    as_read: str = ""
    as_written: str = ""
    as_looked_up: str = ""

    @cached_property
    def by_name(self) -> Mapping[str, Option]:
        """Return the options by each of their names."""
        return {name: option for option in self.options for name in (option.name, *option.aliases)}

    @property
    def is_looked_up(self) -> bool:
        """Return whether lookup joins may read it."""
        return bool(self.as_looked_up)

    @property
    def is_row_sink(self) -> bool:
        """Return whether rows go into it without a format, and are never read."""
        return self.output is not None and not self.writes


@dataclass(frozen=True)
class Connector:
    """A named connector of outputs and SQL tables.

    Args:
        name: the name.
        output: for `sink(name, ...)`; None if it has no output.
        table: for `'connector' = name`; None if SQL has no such table.
    """

    name: str
    output: OutputSide | None = None
    table: TableSide | None = None


def _choices(hint: Any) -> tuple[str, ...]:
    """Return the texts that a type names."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    return tuple(choice for part in get_args(hint) for choice in _choices(part))


Request = tuple[str, dict[str, Any]]


def local_path_of(table: str, options: Mapping[str, str]) -> Path:
    """Return the path of a table of files; `file:///data/orders` is `/data/orders`."""
    given = options.get("path", "")
    if "://" not in given and not given.startswith("file:"):
        return Path(given)
    parts = urlsplit(given)
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"}:
        raise SqlError(
            f"\"{table}\": '{given}' is not on this machine. Mount it, or copy it here, and give a path.",
            code="NOT_OFFERED",
            name=table,
        )
    return Path(unquote(parts.path))


def kafka_config(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of Kafka's client from a table's options."""
    config: dict[str, Any] = {
        option.removeprefix("properties."): value
        for option, value in options.items()
        if option.startswith("properties.") and option != "properties.group.id"
    }
    if "bootstrap.server" in config:
        config["bootstrap.servers"] = config.pop("bootstrap.server")
    return config


def postgres_url(url: str, *, at: Position | None = None) -> SplitResult:
    """Return the parts of jdbc:postgresql://host:port/database."""
    parts = urlsplit(url.removeprefix("jdbc:"))
    try:
        is_port = parts.port is None or parts.port > 0
    except ValueError:
        is_port = False
    if not is_port:
        raise SqlError(f"'{url}': the port is a number from 1 to 65535.", code="OPTION_VALUE", at=at)
    if parts.query or parts.fragment:
        raise SqlError(
            f"'{url}': the part after the name of the database ('{parts.query or parts.fragment}') is not read. Leave it "
            "out; libpq takes such settings from its environment, as PGSSLMODE.",
            code="NOT_OFFERED",
            at=at,
        )
    return parts


def duckdb_output(table: WrittenTable) -> Request:
    options = table.options
    return "duckdb", {"path": options["path"], "table": options.get("table-name", table.name), "key": list(table.key)}


def kafka_output(table: WrittenTable) -> Request:
    """Return the topic that a table is, and its form."""
    options = table.options
    written = options.get("format", options.get("value.format", "json"))
    forms = {"debezium-json": "debezium", "upsert-json": "upsert", "json": "weight" if table.retracts else "append"}
    if options["connector"] == "upsert-kafka":
        forms["json"] = "upsert"
    form = options.get("sink.form", forms.get(written))
    if form is None:
        raise SqlError(
            f"\"{table.name}\": Kafka is written as {', '.join(sorted(forms))}, not as '{written}'.",
            code="UNKNOWN_FORMAT",
            name=table.name,
        )
    if form == "upsert" and not table.key:
        raise SqlError(
            f'"{table.name}" keeps the newest row of every key, and names none. Add PRIMARY KEY (...) NOT ENFORCED.',
            code="NO_PRIMARY_KEY",
            name=table.name,
        )
    return "kafka", {"config": kafka_config(options), "topic": options["topic"], "form": form, "key": list(table.key)}


def jdbc_output(table: WrittenTable) -> Request:
    """Return the view in a database that a table is."""
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
        return "duckdb", {"path": rest, "table": options["table-name"], "key": list(table.key)}
    if kind != "postgresql":
        raise SqlError(
            f"\"{table.name}\": '{options['url']}' is only read; PostgreSQL and DuckDB are written.",
            code="NOT_OFFERED",
            name=table.name,
        )
    parts = postgres_url(options["url"])
    connection: dict[str, Any] = {
        "host": parts.hostname or "localhost",
        "port": parts.port or 5432,
        "dbname": parts.path.lstrip("/") or "postgres",
        "user": options.get("username", parts.username or "postgres"),
    }
    if options.get("password", parts.password):
        connection["password"] = options.get("password", parts.password)
    return "postgres", {"conninfo": _conninfo(connection), "table": options["table-name"], "key": list(table.key)}


def _conninfo(given: Mapping[str, Any]) -> str:
    """Return the connection string of libpq, every value quoted."""
    quoted = {name: str(value).replace("\\", "\\\\").replace("'", "\\'") for name, value in given.items()}
    return " ".join(f"{name}='{value}'" for name, value in quoted.items())
