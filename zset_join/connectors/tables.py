"""The options of a table in WITH: its path, Kafka's client, a database; and which output the table is.

Nothing is connected or opened here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from zset_join.connectors.connector import WrittenTable
from zset_join.core.errors import SqlError
from zset_join.lookup.secret import holds_credentials

if TYPE_CHECKING:
    from zset_join.sql_expressions.positions import Position

__all__ = ["duckdb_output", "jdbc_output", "kafka_config", "kafka_output", "local_path_of", "postgres_url"]

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
