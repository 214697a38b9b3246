"""Outside tables as SQL declares them: CREATE TABLE dim (...) WITH ('connector' = 'jdbc', ...).

| connector | options |
|---|---|
| `jdbc` | `url`, `table-name`, `username`, `password` |
| `redis` | `host`, `port`, `database`, `key-pattern` (such as `customer:{id}`), `layout` (`hash` or `json`), `password` |

A `url` is `jdbc:postgresql://host:port/database`, `jdbc:sqlite:path` or `jdbc:duckdb:path`. Such a table is only ever looked
up: `JOIN dim FOR SYSTEM_TIME AS OF PROCTIME()`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

import pyarrow as pa

from zset_join.core.errors import SqlError
from zset_join.lookup.secret import holds_credentials
from zset_join.lookup.source import LookupSource
from zset_join.sql_expressions.places import Place

__all__ = ["OUTSIDE_CONNECTORS", "outside_source", "postgres_url"]

OUTSIDE_CONNECTORS = ("jdbc", "redis")


def outside_source(name: str, schema: pa.Schema, options: Mapping[str, str], *, at: Place) -> LookupSource:
    """Return the outside table that a declaration describes; nothing is connected yet.

    Raises:
        SqlError: an option that is not known, is missing, or names a database that is not offered.
    """
    connector = options["connector"]
    looked_up: Any = _redis(name, schema, options, at) if connector == "redis" else _jdbc(name, schema, options, at)
    source: LookupSource = looked_up
    return source


def postgres_url(url: str, *, at: Place | None = None) -> SplitResult:
    """Return the parts of jdbc:postgresql://host:port/database.

    Raises:
        SqlError: a port that is none, or parameters, which are not read.
    """
    parts = urlsplit(url.removeprefix("jdbc:"))
    try:
        is_port = parts.port is None or parts.port > 0
    except ValueError:
        is_port = False
    if not is_port:
        raise SqlError(f"'{url}': the port is a number from 1 to 65535.", code="OPTION_VALUE", at=at)
    if parts.query or parts.fragment:
        raise SqlError(
            f"'{url}': what stands behind the name of the database ('{parts.query or parts.fragment}') is not read. Leave it "
            "out; libpq takes such settings from its environment, as PGSSLMODE.",
            code="NOT_OFFERED",
            at=at,
        )
    return parts


def _needed(options: Mapping[str, str], option: str, at: Place) -> str:
    if option not in options:
        raise SqlError(f"the option '{option}' is missing.", code="MISSING_OPTION", at=at)
    return options[option]


def _redis(name: str, schema: pa.Schema, options: Mapping[str, str], at: Place) -> Any:
    from zset_join.lookup.sources.redis import RedisSource

    return RedisSource(
        name=name,
        schema=schema,
        key_pattern=_needed(options, "key-pattern", at),
        layout=options.get("layout", "hash"),
        host=options.get("host", "localhost"),
        user=options.get("username"),
        password=options.get("password"),
        port=int(options.get("port", "6379")),
        database=int(options.get("database", "0")),
    )


def _jdbc(name: str, schema: pa.Schema, options: Mapping[str, str], at: Place) -> Any:
    url, table = _needed(options, "url", at), _needed(options, "table-name", at)
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
