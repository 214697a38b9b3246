"""Hashes, or JSON texts, of a Redis server, looked up by key in one pipeline per batch.

The law: a key's values, put into `key_pattern` (such as `customer:{id}`), name a Redis key. With `layout="hash"` its fields
are the
columns; with `layout="json"` its value is the text of one JSON object, or of a list of them, which are several matches. A key
that is not there is a miss. Only the wanted columns are requested, where Redis can: `HMGET`, not `HGETALL`.

Values in Redis are text: they are parsed to the declared types, and one that cannot be fails the epoch with its column. Sync
and async; a batch is one pipeline on one connection, and at most `max_connections` are open.

Needs `redis` (extra `redis`). Limits: text keys in a hash have no NULL: a field that is missing is NULL; nested values only as
JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from typing_extensions import override

from zset_join.core.errors import LookupFailedError, OptionError
from zset_join.core.extras import needed_for
from zset_join.lookup.secret import Secret, as_secret, refuse_credentials, without_secrets
from zset_join.lookup.source import LookupClient, Opening, TransientLookupError
from zset_join.lookup.sources.written import UnusableJsonError, WrittenSource, bounded_json, register_source, table_of_records

__all__ = ["RedisSource"]


@dataclass(frozen=True, kw_only=True)
class RedisSource(WrittenSource):
    """Describe rows in Redis.

    Args:
        name: in plans and messages.
        schema: the columns that may be requested, those of the key among them.
        key_pattern: pattern of a Redis key: `customer:{id}`.
        layout: `hash` or `json`.
        host: where the server is.
        port: of the server.
        database: its number.
        user: of the connection; None: the default user.
        password: a `Secret`, or text, which is never stored.
        ssl: whether to connect by TLS.
        timeout_seconds: for connecting, and for one pipeline.

    >>> RedisSource(name="c", schema=pa.schema({"id": pa.int64()}), key_pattern="customer:{id}").explain()
    'Redis hash customer:{id} at localhost:6379/0'
    """

    kind: ClassVar[str] = "redis"
    secrets: ClassVar[tuple[str, ...]] = ("password",)

    name: str
    schema: pa.Schema
    key_pattern: str
    layout: str = "hash"
    host: str = "localhost"
    port: int = 6379
    database: int = 0
    user: str | None = None
    password: Secret | str | None = None
    ssl: bool = False
    timeout_seconds: float = 10.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "password", as_secret(self.password))
        refuse_credentials(self.name, self.host)
        if self.layout not in ("hash", "json"):
            raise OptionError(
                f'layout={self.layout!r} is unknown; use "hash" or "json".',
                code="OPTION_VALUE",
                option="layout",
                value=self.layout,
            )
        unknown = sorted(set(self.pattern_columns) - set(self.schema.names))
        if unknown or not self.pattern_columns:
            raise OptionError(
                f"key_pattern={self.key_pattern!r} must name columns of the schema in braces, and names {unknown or 'none'}.",
                code="OPTION_VALUE",
                option="key_pattern",
                value=self.key_pattern,
            )

    @property
    def pattern_columns(self) -> list[str]:
        """Return the columns of the pattern."""
        return re.findall(r"\{([^{}]+)\}", self.key_pattern)

    @property
    def modes(self) -> frozenset[str]:
        return frozenset({"sync", "async"})

    def open(self, opening: Opening) -> LookupClient:
        if set(opening.key) != set(self.pattern_columns):
            raise OptionError(
                f'the lookup source "{self.name}" finds rows by {self.pattern_columns}, as key_pattern={self.key_pattern!r} '
                f"has them, "
                f"and the join is on {list(opening.key)}.",
                code="LOOKUP_KEY",
                source=self.name,
            )
        return _RedisClient(self, opening)

    def explain(self) -> str:
        return f"Redis {self.layout} {self.key_pattern} at {self.host}:{self.port}/{self.database}"


register_source("redis", RedisSource.from_json)


class _RedisClient(LookupClient):
    def __init__(self, source: RedisSource, opening: Opening) -> None:
        self._redis, self._asyncio = _libraries()
        self._source = source
        self._opening = opening
        self._wanted = pa.schema([source.schema.field(name) for name in opening.columns])
        self._fields = [name for name in opening.columns if name not in opening.key]
        self._sync: Any = None
        self._async: Any = None

    def _options(self) -> dict[str, Any]:
        source, secret = self._source, as_secret(self._source.password)
        return {
            "host": source.host,
            "port": source.port,
            "db": source.database,
            "username": source.user,
            "password": None if secret is None else secret.value(),
            "ssl": source.ssl,
            "socket_timeout": source.timeout_seconds,
            "socket_connect_timeout": source.timeout_seconds,
            "decode_responses": True,
        }

    def _once(self, retry: Any) -> dict[str, Any]:
        """Return options that leave trying again to the fetch step, which counts and bounds it."""
        return {"retry": retry(self._redis.backoff.NoBackoff(), 0)}

    @override
    def lookup(self, keys: pa.Table) -> pa.Table:
        requested = self._fetch(keys)
        try:
            if self._sync is None:
                self._sync = self._redis.Redis(**self._options(), **self._once(self._redis.retry.Retry))
            pipeline = self._sync.pipeline(transaction=False)
            self._queue(pipeline, requested)
            answers = pipeline.execute()
        except self._redis.RedisError as error:
            raise self._translated(error) from None
        return self._found(requested, answers)

    @override
    async def lookup_async(self, keys: pa.Table) -> pa.Table:
        requested = self._fetch(keys)
        try:
            if self._async is None:
                pool = self._asyncio.BlockingConnectionPool(
                    max_connections=self._opening.max_connections,
                    timeout=None,
                    **self._once(self._asyncio.retry.Retry),
                    **{name: value for name, value in self._options().items() if name != "ssl"},
                    **({"connection_class": self._asyncio.SSLConnection} if self._source.ssl else {}),
                )
                self._async = self._asyncio.Redis.from_pool(pool)
            pipeline = self._async.pipeline(transaction=False)
            self._queue(pipeline, requested)
            answers = await pipeline.execute()
        except self._redis.RedisError as error:
            raise self._translated(error) from None
        return self._found(requested, answers)

    @override
    async def aclose(self) -> None:
        client, self._async = self._async, None
        if client is not None:
            await client.aclose()

    @override
    def close(self) -> None:
        client, self._sync = self._sync, None
        if client is not None:
            client.close()

    def _fetch(self, keys: pa.Table) -> list[dict[str, Any]]:
        requested: list[dict[str, Any]] = keys.select(list(self._opening.key)).to_pylist()
        return requested

    def _queue(self, pipeline: Any, requested: Sequence[Mapping[str, Any]]) -> None:
        pattern = self._source.key_pattern
        for key in requested:
            name = re.sub(r"\{([^{}]+)\}", lambda at, key=key: str(key[at[1]]), pattern)  # type: ignore[misc]
            if self._source.layout == "json":
                pipeline.get(name)
            elif self._fields:
                pipeline.hmget(name, self._fields)
                pipeline.exists(name)
            else:
                pipeline.exists(name)

    def _found(self, requested: Sequence[dict[str, Any]], answers: Sequence[Any]) -> pa.Table:
        records: list[dict[str, Any]] = []
        if self._source.layout == "json":
            for key, text in zip(requested, answers, strict=True):
                records += [{**record, **key} for record in self._parsed(text)]
        elif self._fields:
            for key, values, there in zip(requested, answers[::2], answers[1::2], strict=True):
                if there:
                    records.append({**dict(zip(self._fields, values, strict=True)), **key})
        else:
            records = [key for key, there in zip(requested, answers, strict=True) if there]
        if self._source.layout == "hash":
            return self._typed(records)
        return table_of_records(self._wanted, records, source=self._source.name)

    def _typed(self, records: list[dict[str, Any]]) -> pa.Table:
        columns = []
        for field in self._wanted:
            values = [record.get(field.name) for record in records]
            if field.name in self._opening.key:
                columns.append(table_of_records(pa.schema([field]), records, source=self._source.name).column(0))
                continue
            try:
                columns.append(pa.array(values, pa.string()).cast(field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise LookupFailedError(
                    f'the lookup source "{self._source.name}" has a text in "{field.name}" that is not a {field.type} '
                    f"({error}); the "
                    "epoch was not applied. Correct the data, or the schema it was declared with.",
                    code="LOOKUP_ANSWER",
                    source=self._source.name,
                    column=field.name,
                ) from error
        return pa.Table.from_arrays(columns, schema=self._wanted)

    def _parsed(self, text: str | None) -> list[dict[str, Any]]:
        if text is None:
            return []
        try:
            content = bounded_json(text)
        except UnusableJsonError as error:
            raise self._malformed(str(error)) from error
        records = content if isinstance(content, list) else [content]
        if not all(isinstance(record, dict) for record in records):
            raise self._malformed("JSON that is neither an object nor a list of them")
        return records

    def _malformed(self, what: str) -> LookupFailedError:
        return LookupFailedError(
            f'the lookup source "{self._source.name}" ({self._source.explain()}) holds {what}; the epoch was not applied. '
            f"Correct the "
            "value.",
            code="LOOKUP_ANSWER",
            source=self._source.name,
        )

    def _translated(self, error: Exception) -> Exception:
        cause = without_secrets(str(error), as_secret(self._source.password))
        exceptions = self._redis.exceptions
        for_good = (exceptions.AuthenticationError, exceptions.NoPermissionError)
        passing = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.BusyLoadingError, exceptions.TryAgainError)
        if isinstance(error, passing) and not isinstance(error, for_good):
            return TransientLookupError(cause)
        return LookupFailedError(
            f'the lookup source "{self._source.name}" ({self._source.explain()}) refused: {cause}. The epoch was not '
            f"applied. Correct "
            "the connection or the layout.",
            code="LOOKUP_REFUSED",
            source=self._source.name,
        )


def _libraries() -> tuple[Any, Any]:
    with needed_for("a Redis lookup"):
        import redis
        import redis.asyncio
        import redis.asyncio.retry
        import redis.backoff
        import redis.retry
    return redis, redis.asyncio
