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

import pyarrow as pa

from zset_join.connectors.tables import postgres_url
from zset_join.core.errors import SqlError
from zset_join.lookup.secret import holds_credentials
from zset_join.lookup.source import LookupSource
from zset_join.sql_expressions.positions import Position

__all__ = ["external_source"]


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
