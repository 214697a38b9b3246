"""An HTTP service that answers with JSON, requested one or for many keys per request.

Two ways, distinguished by the URL:

- `https://crm/customers/{id}`: one request per key, the key's values put into the path. The answer is one object, or a list of
  them; 404 is a miss.
- `https://crm/customers` with `many="query"`: one request per batch, `?id=1&id=2`; with `many="body"`: one POST of `{"keys":
  [{"id": 1}, ...]}`. The answer is a list of objects, each with its key columns, or an object that has the list under
  `rows_at`.

The law: 404 of a single key is a miss; 408, 425, 429 and 5xx are transient, after `Retry-After` where the answer has it, and at
most after `error_max_delay`; any other status that is not 2xx is an error for good. Redirects are not followed. Answers are
parsed to the declared columns.

A key requests its own resource or none: whatever its values are, the URL differs from the template only inside the segments of
the path (or the parts of the query) that have placeholders, also after a server or proxy has decoded it as often as it likes.
Every character that has a meaning in a URL is written as `%XX`; a segment that would be empty, or that is or contains `.` or
`..` as a name between slashes, in any spelling, is refused. Placeholders are never in scheme, host or port.

A request has one deadline, `timeout_seconds`, for the whole exchange: connection and TLS (half of it for each), request,
interim answers, head, body and trailers. An answer takes at most `max_answer_bytes`, decompressed (see `_BoundedBody`), and a
small multiple of that in memory when it is parsed (see `bounded_json`).

Plain calls run on an event loop of their own, in a thread: a blocking socket has no deadline for a whole exchange.

Several requests are under way at a time with async, over at most `max_connections` connections. Needs `httpx` (extra `http`).
"""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar
from urllib.parse import quote, unquote

import pyarrow as pa
from typing_extensions import override

from zset_join.core.errors import LookupFailedError, OptionError
from zset_join.core.extras import needed_for
from zset_join.core.hidden_settings import is_secret_name
from zset_join.lookup.fetcher import LoopThread
from zset_join.lookup.secret import Secret, as_secret, refuse_credentials, secrets_of, without_secrets
from zset_join.lookup.source import LookupClient, Opening, SystemClock, TransientLookupError
from zset_join.lookup.sources.written import UnusableJsonError, WrittenSource, bounded_json, register_source, table_of_records

__all__ = ["COLUMN", "HttpSource", "UnnameableKeyError", "columns_before_the_path", "url_of_key"]

COLUMN = re.compile(r"\{([^{}]+)\}")
_HOST = re.compile(r"[^/?#]*(?://[^/?#]*)?")
_SEPARATORS = re.compile(r"[/\\]")
_MOST_DECODINGS = 8


class UnnameableKeyError(Exception):
    """A key whose URL would be that of another resource; the message gives the reason."""


def columns_before_the_path(template: str) -> list[str]:
    """Return the columns whose placeholders are part of scheme, host or port.

    >>> columns_before_the_path("https://{region}.crm/customers/{id}")
    ['region']
    """
    host = _HOST.match(template)
    return COLUMN.findall("" if host is None else host[0])


def url_of_key(template: str, key: Mapping[str, Any]) -> str:
    """Return the URL of a key.

    >>> url_of_key("https://crm/customers/{id}", {"id": "a/b c"})
    'https://crm/customers/a%2Fb%20c'
    """
    path, query_mark, query = template.partition("?")
    for segment in path.split("/"):
        if COLUMN.search(segment):
            _check_segment(_filled(segment, key, quoted=False), COLUMN.findall(segment), key)
    for name in COLUMN.findall(query):
        if str(key[name]) == "":
            raise UnnameableKeyError(f'"{name}" is empty, and the query of the URL would request everything')
    return _filled(path + query_mark + query, key, quoted=True)


def _filled(template: str, key: Mapping[str, Any], *, quoted: bool) -> str:
    def value(at: re.Match[str]) -> str:
        text = str(key[at[1]])
        return quote(text, safe="") if quoted else text

    return COLUMN.sub(value, template)


def _check_segment(segment: str, columns: Sequence[str], key: Mapping[str, Any]) -> None:
    shown = ", ".join(f'"{name}"={str(key[name])!r}' for name in columns)
    if not segment:
        raise UnnameableKeyError(f"{shown} leaves a segment of the path empty")
    for _ in range(_MOST_DECODINGS):
        names = [part.partition(";")[0].strip() for part in _SEPARATORS.split(segment)]
        if "." in names or ".." in names:
            raise UnnameableKeyError(f"{shown} makes the path that of another resource")
        decoded = unquote(segment)
        if decoded == segment:
            return
        segment = decoded
    raise UnnameableKeyError(f"{shown} is encoded more than {_MOST_DECODINGS} times over")


_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_SECONDS = re.compile(r"[0-9]+")
_ACCEPTED_ENCODINGS = "gzip, deflate"
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_ZLIB_METHOD = 8


@dataclass(frozen=True, kw_only=True)
class HttpSource(WrittenSource):
    """Describe a service.

    Args:
        name: in plans and messages.
        schema: the columns that may be requested.
        url: of one key, with its columns in braces; or of many.
        many: how many keys are sent in one request: None, `query` or `body`.
        rows_at: the field of an answer with the list of objects; None: the answer itself.
        headers: sent with every request. A value may be a `Secret`; text under a name such as `X-Api-Key` is treated as one and
            never stored.
        token: a `Secret`, or text, sent as `Authorization: Bearer ...`.
        timeout_seconds: for one request, from the connection to the last byte of its answer.
        max_answer_bytes: the most bytes of one answer, decompressed; a larger one fails the epoch, and so does one that would
            take many times that in memory, such as millions of empty objects.

    >>> HttpSource(name="crm", schema=pa.schema({"id": pa.int64()}), url="https://crm/customers/{id}").explain()
    'HTTP https://crm/customers/{id}'
    """

    kind: ClassVar[str] = "http"
    secrets: ClassVar[tuple[str, ...]] = ("token",)

    name: str
    schema: pa.Schema
    url: str
    many: str | None = None
    rows_at: str | None = None
    headers: Mapping[str, str | Secret] = field(default_factory=dict)
    token: Secret | str | None = None
    timeout_seconds: float = 10.0
    max_answer_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        object.__setattr__(self, "token", as_secret(self.token))
        hidden = {name: as_secret(value) if is_secret_name(name) else value for name, value in self.headers.items()}
        object.__setattr__(self, "headers", hidden)
        refuse_credentials(self.name, self.url)
        if self.many not in (None, "query", "body") or (self.many is None) != bool(COLUMN.search(self.url)):
            raise OptionError(
                f"url={self.url!r} with many={self.many!r}: a URL of one key has its columns in braces and no `many`; one "
                f"of many keys "
                'has none and many="query" or "body".',
                code="OPTION_VALUE",
                option="many",
                value=self.many,
            )
        outside = columns_before_the_path(self.url)
        if outside:
            raise OptionError(
                f"url={self.url!r}: the columns {outside} would choose the host that is queried. Columns are in the path or in "
                "the query of a URL; describe one source per host.",
                code="OPTION_VALUE",
                option="url",
                value=self.url,
            )
        if not re.fullmatch(r"[1-9]\d*", str(self.max_answer_bytes)):
            raise OptionError(
                f"max_answer_bytes={self.max_answer_bytes!r}: expected a whole number of bytes, at least 1.",
                code="OPTION_VALUE",
                option="max_answer_bytes",
                value=self.max_answer_bytes,
            )

    @property
    def modes(self) -> frozenset[str]:
        return frozenset({"sync", "async"})

    def open(self, opening: Opening) -> LookupClient:
        return _HttpClient(self, opening)

    def unaskable(self, keys: pa.RecordBatch) -> Mapping[int, str]:
        if self.many is not None:
            return {}
        rows = keys.to_pylist()
        reasons = {tuple(key.values()): self._unnameable(key) for key in rows if None not in key.values()}
        reported = ((row, reasons.get(tuple(key.values()))) for row, key in enumerate(rows))
        return {row: reason for row, reason in reported if reason is not None}

    def _unnameable(self, key: Mapping[str, Any]) -> str | None:
        try:
            url_of_key(self.url, key)
        except UnnameableKeyError as error:
            return str(error)
        return None

    def explain(self) -> str:
        return f"HTTP {self.url.partition('?')[0]}"


register_source("http", HttpSource.from_json)


class _HttpClient(LookupClient):
    def __init__(self, source: HttpSource, opening: Opening) -> None:
        self._httpx = _library()
        self._source = source
        self._opening = opening
        self._wanted = pa.schema([source.schema.field(name) for name in opening.columns])
        self._client: Any = None
        self._loop: LoopThread | None = None

    def _options(self) -> dict[str, Any]:
        secret = as_secret(self._source.token)
        headers = {name: value.value() if isinstance(value, Secret) else value for name, value in self._source.headers.items()}
        headers = {**headers, "Accept-Encoding": _ACCEPTED_ENCODINGS}
        if secret is not None:
            headers["Authorization"] = f"Bearer {secret.value()}"
        limits = self._httpx.Limits(max_connections=self._opening.max_connections)
        # httpx leaves the socket of a cancelled handshake open: connecting ends by itself before the deadline of the exchange.
        timeout = self._httpx.Timeout(None, connect=self._source.timeout_seconds / 2)
        return {"headers": headers, "timeout": timeout, "limits": limits, "follow_redirects": False}

    @override
    def lookup(self, keys: pa.Table) -> pa.Table:
        if self._loop is None:
            self._loop = LoopThread(SystemClock())
        return self._loop.run(self._rows_of(keys, at_a_time=1))

    @override
    async def lookup_async(self, keys: pa.Table) -> pa.Table:
        return await self._rows_of(keys, at_a_time=self._opening.max_connections)

    async def _rows_of(self, keys: pa.Table, *, at_a_time: int) -> pa.Table:
        if self._client is None:
            self._client = self._httpx.AsyncClient(**self._options())
        places = asyncio.Semaphore(at_a_time)

        async def one(request: dict[str, Any], key: dict[str, Any] | None) -> list[dict[str, Any]]:
            async with places:
                return self._records(await self._answer(request, key), key)

        tasks = [asyncio.create_task(one(request, key)) for request, key in self._requests(keys)]
        try:
            answers = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return table_of_records(self._wanted, [record for records in answers for record in records], source=self._source.name)

    async def _answer(self, request: dict[str, Any], key: dict[str, Any] | None) -> _BoundedBody | None:
        """Return the body of the answer to a request; the whole exchange has one deadline."""
        try:
            async with asyncio.timeout(self._source.timeout_seconds), self._client.stream(**request) as response:
                body = self._body(response, key)
                if body is not None:
                    async for piece in response.aiter_raw():
                        body.add(piece)
                return body
        except TimeoutError:
            raise TransientLookupError(
                f"Timeout: the answer took longer than timeout_seconds={self._source.timeout_seconds:g}"
            ) from None
        except _BodyError as error:
            raise self._malformed(str(error)) from error
        except self._httpx.HTTPError as error:
            raise self._translated(error) from None

    @override
    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    @override
    def close(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            try:
                loop.run(self.aclose())
            finally:
                loop.close()

    def _requests(self, keys: pa.Table) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
        requested: list[dict[str, Any]] = keys.select(list(self._opening.key)).to_pylist()
        if self._source.many == "query":
            parameters = [(name, str(value)) for key in requested for name, value in key.items()]
            return [({"method": "GET", "url": self._source.url, "params": parameters}, None)]
        if self._source.many == "body":
            content = json.dumps({"keys": requested}, default=str).encode()
            headers = {"Content-Type": "application/json"}
            return [({"method": "POST", "url": self._source.url, "content": content, "headers": headers}, None)]
        return [({"method": "GET", "url": self._url_of(key)}, key) for key in requested]

    def _url_of(self, key: Mapping[str, Any]) -> str:
        try:
            return url_of_key(self._source.url, key)
        except UnnameableKeyError as error:
            raise LookupFailedError(
                f'the lookup source "{self._source.name}" ({self._source.explain()}) cannot look a key up: {error}. It '
                "was not requested, the epoch was not applied. Leave such rows out with where(...) before the lookup, or use a "
                'service that takes keys in a body, many="body".',
                code="LOOKUP_KEY_VALUE",
                source=self._source.name,
                key=dict(key),
            ) from error

    def _body(self, response: Any, key: dict[str, Any] | None) -> _BoundedBody | None:
        """Check the status of a response and return the receiver of its bytes; None without a body."""
        status = response.status_code
        if status == 404 and key is not None:
            return None
        if status in _TRANSIENT:
            raise TransientLookupError(f"HTTP {status}", retry_after_seconds=_retry_after(response.headers.get("Retry-After")))
        if not 200 <= status < 300:
            raise self._refused(f"HTTP {status}")
        if status == 204:
            return None
        return _BoundedBody(response.headers.get("Content-Encoding"), most_bytes=self._source.max_answer_bytes)

    def _records(self, body: _BoundedBody | None, key: dict[str, Any] | None) -> list[dict[str, Any]]:
        try:
            text = b"" if body is None else body.content()
            if not text:
                return []
            content = bounded_json(text, most_bytes=self._source.max_answer_bytes)
        except (_BodyError, UnusableJsonError) as error:
            raise self._malformed(str(error)) from error
        if self._source.rows_at is not None:
            content = content.get(self._source.rows_at) if isinstance(content, dict) else None
        records: Sequence[Any] = content if isinstance(content, list) else [content]
        if not all(isinstance(record, dict) for record in records):
            raise self._malformed("JSON that is neither an object nor a list of them")
        if key is None:
            lacking = [name for name in self._opening.key if any(name not in record for record in records)]
            if lacking:
                raise self._malformed(f"objects without the key columns {lacking}")
            return list(records)
        for record in records:
            record.update(key)
        return list(records)

    def _malformed(self, what: str) -> LookupFailedError:
        return LookupFailedError(
            f'the lookup source "{self._source.name}" ({self._source.explain()}) answered with {what}; the epoch was not '
            f"applied. "
            "Correct the service, or url, many and rows_at.",
            code="LOOKUP_ANSWER",
            source=self._source.name,
        )

    def _refused(self, cause: str) -> LookupFailedError:
        return LookupFailedError(
            f'the lookup source "{self._source.name}" ({self._source.explain()}) refused: {cause}. The epoch was not '
            f"applied. Correct the "
            "URL or the token.",
            code="LOOKUP_REFUSED",
            source=self._source.name,
        )

    def _translated(self, error: Exception) -> Exception:
        cause = without_secrets(f"{type(error).__name__}: {error}", *secrets_of(self._source))
        if isinstance(error, self._httpx.TransportError) and not isinstance(error, self._httpx.UnsupportedProtocol):
            return TransientLookupError(cause)
        return self._refused(cause)


def _retry_after(text: str | None) -> float | None:
    """Return the seconds that a Retry-After header requests, as a number or as a date; None where it is neither."""
    if text is None:
        return None
    if _SECONDS.fullmatch(text.strip()):
        return float(text)
    try:
        at = parsedate_to_datetime(text)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
        return max(0.0, (at - datetime.now(UTC)).total_seconds())
    except (ValueError, OverflowError):
        return None


def _library() -> Any:
    with needed_for("an HTTP lookup"):
        import httpx
    return httpx


# The law of a body: memory follows the bound, not what the service sends. Compressed bytes are decompressed piece by piece, and
# reading stops with the first byte beyond the bound. Only encodings that can be read so are offered, one of them at a time.


class _BodyError(Exception):
    """A body that cannot be read; the message completes "answered with"."""


class _BoundedBody:
    """Collect the bytes of an answer as they come.

    >>> body = _BoundedBody("gzip", most_bytes=10)
    >>> body.add(zlib.compress(b"[]", wbits=16 + zlib.MAX_WBITS))
    >>> body.content()
    b'[]'
    """

    def __init__(self, encoding: str | None, *, most_bytes: int) -> None:
        names = [name.strip().lower() for name in (encoding or "").split(",")]
        encodings = [name for name in names if name not in ("", "identity")]
        if len(encodings) > 1 or any(name not in _WINDOWS for name in encodings):
            raise _BodyError(f"the encoding {', '.join(encodings)!r}, where one of {_ACCEPTED_ENCODINGS} was offered")
        self._encoding = encodings[0] if encodings else None
        self._most_bytes = most_bytes
        self._decoded = bytearray()
        self._is_begun = False
        self._stream = None if self._encoding is None else zlib.decompressobj(_WINDOWS[self._encoding])

    def add(self, piece: bytes) -> None:
        """Take the next bytes."""
        if self._stream is None:
            self._decoded += piece
            self._check_size()
            return
        try:
            self._decompress(piece)
        except zlib.error as error:
            raise _BodyError(f"bytes that are not {self._encoding} ({error})") from error

    def content(self) -> bytes:
        """Return the decoded body."""
        if self._stream is not None and self._is_begun and not self._stream.eof:
            raise _BodyError(f"a {self._encoding} body that ends too early")
        return bytes(self._decoded)

    def _decompress(self, piece: bytes) -> None:
        if piece and not self._is_begun:
            self._is_begun = True
            if self._encoding == "deflate" and piece[0] & 0x0F != _ZLIB_METHOD:
                self._stream = zlib.decompressobj(-zlib.MAX_WBITS)  # raw, as some servers send it
        while piece and self._stream is not None:
            if self._stream.eof:  # the next member of a gzip stream
                self._stream = zlib.decompressobj(_WINDOWS[self._encoding or ""])
            self._decoded += self._stream.decompress(piece, self._most_bytes + 1 - len(self._decoded))
            self._check_size()
            piece = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail

    def _check_size(self) -> None:
        if len(self._decoded) > self._most_bytes:
            raise _BodyError(f"more than max_answer_bytes={self._most_bytes}")
