"""A folder in a bucket of S3, Google Cloud Storage or Azure, by the library `obstore` (`pip install zset-join[objects]`).

    put          one request, atomic; a file above 16 MiB is sent in parts and is present once the last one is
    put_new      one request with `If-None-Match: *`: the store itself refuses a name that is taken
    names        one request per thousand names
    remove       one request

The law of `put_new`: it returns once the object is present and is this call's own, and raises `FileExistsError` once it is
another's. An answer that was lost on the way back (the store took the object, the client saw an error, and the request was sent
again) is no other writer: each call leaves a name of its own at the object, and the one that finds a taken name reads it.

Settings: those of `obstore` for the kind of store, from the environment (`AWS_REGION`, `AWS_ENDPOINT_URL`,
`AWS_ACCESS_KEY_ID`, ...), or behind a `?` in the URI (`s3://bucket/cp?region=eu-west-1`). `endpoint_override` and `scheme` are
those of pyarrow; `retry_seconds`, `timeout` and `connect_timeout` are ours. Messages show no settings.

A store that is down: a request is repeated for `retry_seconds` (20), and one under way then ends after `timeout` ("30s") at the
latest. What is raised names the option of the location, and that setting.

Limits: profiles in `~/.aws` are not read. The threads of obstore do not outlive a fork: a process that was forked behind its
first use is refused (`FORKED_STORE`), where it would wait for ever. Parts of a large file that was never completed stay in the
store, unseen, until its own rule for incomplete uploads removes them.

Memory: a file up to 16 MiB is kept until it is closed; of a larger one, the parts under way.
"""

from __future__ import annotations

import errno
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import pyarrow as pa

from zset_join.core.errors import OptionError, StateError
from zset_join.core.extras import needed_for
from zset_join.core.hidden_settings import shown
from zset_join.storage.object_folder import KEPT_BYTES, ObjectFile
from zset_join.storage.operations import perform

with needed_for("A folder in a bucket"):
    import obstore
    from obstore.exceptions import (
        AlreadyExistsError,
        BaseError,
        PermissionDeniedError,
        PreconditionError,
        UnauthenticatedError,
        UnknownConfigurationKeyError,
    )
    from obstore.store import from_url

__all__ = ["BucketFolder", "open_bucket"]

_WRITER = "zsetwriter"
"""Metadata of an object that was made with `put_new`: which call made it. Letters alone, as servers differ on others."""
_TIMES = 4
_RETRY_SECONDS = 20.0
_LONGEST_PAUSE = timedelta(seconds=2)
_RETRIES = 1000
"""More than fit into the seconds: these are the limit."""
_OF_CLIENT = ("timeout", "connect_timeout")
_FIRST_WAIT_SECONDS = 0.2
_UNANSWERED = ("response body", "error sending request")
_Result = TypeVar("_Result")
_used_by: list[int] = []
"""The process whose threads obstore has; empty before its first use."""


def open_bucket(uri: str, location: str, *, option: str) -> BucketFolder:
    base, _, query = uri.partition("?")
    config = _settings(dict(parse_qsl(query)))
    seconds = _retry_seconds(config.pop("retry_seconds", None), location, option)
    client = {name: config.pop(name) for name in _OF_CLIENT if name in config}
    plain = str(config.get("endpoint", os.environ.get("AWS_ENDPOINT_URL", ""))).startswith("http://")
    try:
        store: Any = from_url(  # type: ignore[call-overload]
            base,
            config=config,
            client_options={**client, **({"allow_http": True} if plain else {})},
            retry_config={
                "max_retries": _RETRIES,
                "retry_timeout": timedelta(seconds=seconds),
                "backoff": {"max_backoff": _LONGEST_PAUSE},
            },
        )
    except (BaseError, ValueError, UnknownConfigurationKeyError) as error:
        raise OptionError(
            f"{option}={location!r} is no place in an object store: {error}. Expected scheme://bucket/folder, and settings of "
            "obstore behind a question mark, such as ?region=eu-west-1.",
            code="FILE_SYSTEM",
            option=option,
            value=location,
        ) from error
    return BucketFolder(store, location, option=option, retry_seconds=seconds)


class BucketFolder:
    """Keep files below a prefix of a bucket."""

    def __init__(self, store: Any, location: str, *, option: str, retry_seconds: float) -> None:
        self.location = location
        self._store = store
        self._option = option
        self._retry_seconds = retry_seconds

    def __repr__(self) -> str:
        return f"BucketFolder({shown(self.location)!r})"

    def uri(self, name: str) -> str:
        base = self.location.partition("?")[0].rstrip("/")
        return f"{base}/{name}" if name else base

    def create(self, name: str) -> ObjectFile:
        return ObjectFile(self, name)

    def put(self, name: str, data: bytes) -> None:
        act = self._as_file(name, lambda: obstore.put(self._store, name, data, use_multipart=False))
        perform("put", self.uri(name), act, data=memoryview(data))

    def put_new(self, name: str, data: bytes) -> None:
        perform("put_new", self.uri(name), lambda: self._put_new(name, data), data=memoryview(data))

    def read(self, name: str) -> pa.Buffer | None:
        act = self._as_file(name, lambda: pa.py_buffer(obstore.get(self._store, name).bytes()))
        try:
            return perform("read", self.uri(name), act)
        except FileNotFoundError:
            return None

    def view(self, name: str) -> pa.Buffer | None:
        return self.read(name)

    def size(self, name: str) -> int | None:
        act = self._as_file(name, lambda: int(obstore.head(self._store, name)["size"]))
        try:
            return perform("size", self.uri(name), act)
        except FileNotFoundError:
            return None

    def names(self, under: str) -> Iterator[str]:
        def act() -> list[str]:
            return [one["path"] for page in obstore.list(self._store, under or None, chunk_size=1000) for one in page]

        yield from perform("list", self.uri(under), self._as_file(under, act))

    def move(self, name: str, target: str) -> None:
        act = self._as_file(name, lambda: obstore.copy(self._store, name, target))
        perform("put", self.uri(target), act)
        self.remove(name)

    def remove(self, name: str) -> None:
        try:
            perform("remove", self.uri(name), self._as_file(name, lambda: obstore.delete(self._store, name)))
        except FileNotFoundError:
            return

    def remove_unfinished(self, *folders: str) -> None:
        """Do nothing: an object that was not completed has no name."""

    def sync_names(self, under: str) -> None:
        """Do nothing: what can be seen is stored."""

    def begin_stream(self, name: str) -> Any:
        act = self._as_file(name, lambda: obstore.open_writer(self._store, name, buffer_size=KEPT_BYTES, max_concurrency=2))
        return perform("create", self.uri(name), act)

    def append(self, stream: Any, name: str, view: memoryview) -> None:
        perform("write", self.uri(name), self._as_file(name, lambda: stream.write(view)), data=view)

    def end_stream(self, stream: Any, name: str) -> None:
        perform("close", self.uri(name), self._as_file(name, stream.close))

    def give_up_stream(self, stream: Any, name: str) -> None:
        if not stream.closed():
            self.end_stream(stream, name)

    def _put_new(self, name: str, data: bytes) -> None:
        """Make an object under a name that is free, and find out whose it is where the answer was lost."""
        _refuse_forked(self.location)
        writer, wait = uuid.uuid4().hex, _FIRST_WAIT_SECONDS
        ends = time.monotonic() + self._retry_seconds
        for time_left in reversed(range(_TIMES)):
            try:
                obstore.put(self._store, name, data, mode="create", use_multipart=False, attributes={_WRITER: writer})
            except (AlreadyExistsError, PreconditionError) as error:
                if self._writer_of(name) == writer:
                    return
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.uri(name)) from error
            except (PermissionDeniedError, UnauthenticatedError) as error:
                raise self._failed(name, error) from error
            except BaseError as error:  # the store may have taken it
                if not time_left or time.monotonic() + wait > ends:
                    raise self._failed(name, error) from error
            else:
                return
            time.sleep(wait)
            wait *= 2

    def _writer_of(self, name: str) -> str | None:
        found = self._as_file(name, lambda: obstore.get(self._store, name).attributes)
        try:
            return dict(found()).get(_WRITER)
        except FileNotFoundError:
            return None

    def _as_file(self, name: str, act: Callable[[], _Result]) -> Callable[[], _Result]:
        """Return an act whose failures are those of a file."""

        def guarded() -> _Result:
            _refuse_forked(self.location)
            ends = time.monotonic() + self._retry_seconds
            while True:
                try:
                    return act()
                except BaseError as error:
                    # The library repeats no request whose answer ends early, and no DELETE that is not answered.
                    if not any(text in str(error) for text in _UNANSWERED) or time.monotonic() >= ends:
                        raise self._failed(name, error) from error
                time.sleep(_FIRST_WAIT_SECONDS)

        return guarded

    def _failed(self, name: str, error: BaseError) -> OSError:
        text = " ".join(str(error).split("\n\nDebug source:")[0].split())
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            return OSError(errno.EACCES, text, self.uri(name))
        text += (
            f" (requests are repeated for {self._retry_seconds:g} seconds: check that the store of {self._option} is reachable "
            f"and its endpoint right; the setting retry_seconds behind the ? of {self._option} waits longer)"
        )
        return OSError(errno.EIO, text, self.uri(name))


def _refuse_forked(location: str) -> None:
    """Refuse to wait for threads that a fork has not taken along."""
    if not _used_by:
        _used_by.append(os.getpid())
    if _used_by[0] != os.getpid():
        raise StateError(
            f"process {os.getpid()} was forked from process {_used_by[0]} after that had used an object store, and cannot use "
            f"{location}. Start processes with multiprocessing's spawn or forkserver, or fork before the first use.",
            code="FORKED_STORE",
            location=location,
        )


def _retry_seconds(given: str | None, location: str, option: str) -> float:
    """Return how long a request is repeated."""
    if given is None:
        return _RETRY_SECONDS
    if re.fullmatch(r"\d{1,6}(\.\d{1,6})?", given) is None:
        raise OptionError(
            f"retry_seconds={given!r} behind {option}={location!r} is no number of seconds. Expected a number, such as 60.",
            code="FILE_SYSTEM",
            option=option,
            value=location,
        )
    return float(given)


def _settings(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a URI as obstore calls them."""
    config: dict[str, Any] = dict(given)
    scheme, host = config.pop("scheme", "https"), config.pop("endpoint_override", None)
    if host is not None:
        config["endpoint"] = host if "://" in host else f"{scheme}://{host}"
    return config
