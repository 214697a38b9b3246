"""A folder in a bucket of S3, Google Cloud Storage or Azure, by the library `obstore` (`pip install zset-join[objects]`).

    put          one request, atomic; a file above 16 MiB is sent in parts and is there once the last one is
    put_new      one request with `If-None-Match: *`: the store itself refuses a name that is taken
    names        one request per thousand names
    remove       one request

The law of `put_new`: it returns once the object is there and is this call's own, and raises `FileExistsError` once it is
another's. An answer that was lost on the way back (the store took the object, the client saw an error, and the request was sent
again) is no other writer: each call leaves a name of its own at the object, and the one that finds a taken name reads it.

Settings: those of `obstore` for the kind of store, from the environment (`AWS_REGION`, `AWS_ENDPOINT_URL`,
`AWS_ACCESS_KEY_ID`, ...), or behind a `?` in the URI (`s3://bucket/cp?region=eu-west-1`). `endpoint_override` and `scheme` are
those of pyarrow. Secrets belong into the environment: locations are shown in messages.

Limits: profiles in `~/.aws` are not read. The threads of obstore do not outlive a fork: a process that was forked behind its
first use is refused (`FORKED_STORE`), where it would wait for ever. Parts of a large file that was never completed stay in the
store, unseen, until its own rule for incomplete uploads removes them.

Memory: a file up to 16 MiB is kept until it is closed; of a larger one, the parts under way.
"""

from __future__ import annotations

import errno
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import pyarrow as pa

from zset_join.core.errors import OptionError, StateError
from zset_join.core.extras import needed_for
from zset_join.storage.object_file import KEPT_BYTES, ObjectFile
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
_FIRST_WAIT_SECONDS = 0.2
_Result = TypeVar("_Result")
_used_by: list[int] = []
"""The process whose threads obstore has; empty before its first use."""


def open_bucket(uri: str, location: str, *, option: str) -> BucketFolder:
    """Return the folder at a URI of an object store.

    Args:
        uri: `s3://bucket/folder`, with settings behind a `?`.
        location: the same as it was given, with the scheme that others, such as Spark, open it by.
        option: name of the option it came from, for the message.

    Raises:
        OptionError: `FILE_SYSTEM`: the URI names no bucket, or a setting that there is not.

    Cost: no request.
    """
    base, _, query = uri.partition("?")
    config = _settings(dict(parse_qsl(query)))
    plain = str(config.get("endpoint", os.environ.get("AWS_ENDPOINT_URL", ""))).startswith("http://")
    try:
        store: Any = from_url(base, config=config, client_options={"allow_http": True} if plain else None)  # type: ignore[call-overload]
    except (BaseError, ValueError, UnknownConfigurationKeyError) as error:
        raise OptionError(
            f"{option}={location!r} is no place in an object store: {error}. Expected scheme://bucket/folder, and settings of "
            "obstore behind a question mark, such as ?region=eu-west-1.",
            code="FILE_SYSTEM",
            option=option,
            value=location,
        ) from error
    return BucketFolder(store, location)


class BucketFolder:
    """Keep files below a prefix of a bucket.

    Args:
        store: of obstore, with the prefix.
        location: the URI it was opened by.
    """

    def __init__(self, store: Any, location: str) -> None:
        self.location = location
        self._store = store

    def __repr__(self) -> str:
        return f"BucketFolder({self.location!r})"

    def uri(self, name: str) -> str:
        """Return the URI."""
        base = self.location.partition("?")[0].rstrip("/")
        return f"{base}/{name}" if name else base

    def create(self, name: str) -> ObjectFile:
        """Begin a new file."""
        return ObjectFile(self, name)

    def put(self, name: str, data: bytes) -> None:
        """Make or replace an object."""
        act = self._as_file(name, lambda: obstore.put(self._store, name, data, use_multipart=False))
        perform("put", self.uri(name), act, data=memoryview(data))

    def put_new(self, name: str, data: bytes) -> None:
        """Make an object, if there is none of that name."""
        perform("put_new", self.uri(name), lambda: self._put_new(name, data), data=memoryview(data))

    def read(self, name: str) -> pa.Buffer | None:
        """Return all bytes of an object."""
        act = self._as_file(name, lambda: pa.py_buffer(obstore.get(self._store, name).bytes()))
        try:
            return perform("read", self.uri(name), act)
        except FileNotFoundError:
            return None

    def view(self, name: str) -> pa.Buffer | None:
        """Return all bytes of an object; nothing can be mapped."""
        return self.read(name)

    def size(self, name: str) -> int | None:
        """Return the bytes of an object."""
        act = self._as_file(name, lambda: int(obstore.head(self._store, name)["size"]))
        try:
            return perform("size", self.uri(name), act)
        except FileNotFoundError:
            return None

    def names(self, under: str) -> Iterator[str]:
        """Yield the names below."""

        def act() -> list[str]:
            return [one["path"] for page in obstore.list(self._store, under or None, chunk_size=1000) for one in page]

        yield from perform("list", self.uri(under), self._as_file(under, act))

    def move(self, name: str, target: str) -> None:
        """Copy and remove: the name is new when the copy is whole."""
        act = self._as_file(name, lambda: obstore.copy(self._store, name, target))
        perform("put", self.uri(target), act)
        self.remove(name)

    def remove(self, name: str) -> None:
        """Remove an object."""
        try:
            perform("remove", self.uri(name), self._as_file(name, lambda: obstore.delete(self._store, name)))
        except FileNotFoundError:
            return

    def remove_unfinished(self, *folders: str) -> None:
        """Do nothing: an object that was not completed has no name."""

    def sync_names(self, under: str) -> None:
        """Do nothing: what can be seen is stored."""

    def begin_stream(self, name: str) -> Any:
        """Open an object that is there once the stream is closed."""
        act = self._as_file(name, lambda: obstore.open_writer(self._store, name, buffer_size=KEPT_BYTES, max_concurrency=2))
        return perform("create", self.uri(name), act)

    def append(self, stream: Any, name: str, view: memoryview) -> None:
        """Write to a stream."""
        perform("write", self.uri(name), self._as_file(name, lambda: stream.write(view)), data=view)

    def end_stream(self, stream: Any, name: str) -> None:
        """Complete an object."""
        perform("close", self.uri(name), self._as_file(name, stream.close))

    def give_up_stream(self, stream: Any, name: str) -> None:
        """Complete an object that is not wanted, unless its stream is closed."""
        if not stream.closed():
            self.end_stream(stream, name)

    def _put_new(self, name: str, data: bytes) -> None:
        """Make an object under a name that is free, and find out whose it is where the answer was lost."""
        _refuse_forked(self.location)
        writer, wait = uuid.uuid4().hex, _FIRST_WAIT_SECONDS
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
                if not time_left:
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
            try:
                return act()
            except BaseError as error:
                raise self._failed(name, error) from error

        return guarded

    def _failed(self, name: str, error: BaseError) -> OSError:
        is_refused = isinstance(error, PermissionDeniedError | UnauthenticatedError)
        text = " ".join(str(error).split("\n\nDebug source:")[0].split())
        return OSError(errno.EACCES if is_refused else errno.EIO, text, self.uri(name))


def _refuse_forked(location: str) -> None:
    """Refuse to wait for threads that a fork has not taken along.

    Raises:
        StateError: `FORKED_STORE`.
    """
    if not _used_by:
        _used_by.append(os.getpid())
    if _used_by[0] != os.getpid():
        raise StateError(
            f"process {os.getpid()} was forked from process {_used_by[0]} after that had used an object store, and cannot use "
            f"{location}. Start processes with multiprocessing's spawn or forkserver, or fork before the first use.",
            code="FORKED_STORE",
            location=location,
        )


def _settings(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a URI as obstore calls them."""
    config: dict[str, Any] = dict(given)
    scheme, host = config.pop("scheme", "https"), config.pop("endpoint_override", None)
    if host is not None:
        config["endpoint"] = host if "://" in host else f"{scheme}://{host}"
    return config
