"""A directory with one file per epoch, each there whole or not at all: what sinks of plain files share.

    <directory>/<header>                        whose it is, and how it is written
    <directory>/<prefix><epoch>-<digest><suffix>    the epoch; without `-<digest>` where it came without a place in the chain
    <directory>/_<the same>                     an epoch without rows, where its file is not to be seen; empty

The law: an epoch becomes visible by one rename, and its name contains its epoch and chain (see `epoch_chain`); so
there is no moment at which the rows are present and their digest is not. A directory with files of somebody else is left alone.

Limits: one file system that renames in one step. Files with rows stay until somebody moves them away: those of the newest
hundred epochs must stay. Empty ones beyond the newest hundred are removed here.

Memory: the digests of the newest epochs. Cost of an epoch: its bytes, and a constant number of operations of the file system,
however many epochs there are: the names are listed again only when another program has added or removed one.
"""

from __future__ import annotations

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from zset_join.core.epoch_chain import ChainLink
from zset_join.core.errors import SinkError
from zset_join.core.relation import Relation
from zset_join.sinks.sink import DIGESTS_KEPT, SinkProgress, check_chunk, is_same_epoch
from zset_join.sinks.stored_epochs import StoredEpochs, marks_of
from zset_join.storage.local import (
    file_size,
    list_directory,
    make_directories,
    modified_at,
    read_bytes,
    remove_file,
    write_atomic,
)
from zset_join.zset import ZSet

__all__ = ["HEADERS", "EpochFiles", "EpochFilesSink", "stored_epochs"]

HEADERS = ("_query.json", "header.json")
"""The names of the file with the owner query, in the sinks of plain files."""

_FILE = re.compile(r"_?(?:epoch-)?(\d{12,20})(?:-([0-9a-zA-Z]*))?\.(?:csv|jsonl?|parquet)")
_HALF = re.compile(r"\.(.+)\.[0-9a-f]{32}")


class EpochFiles:
    """Keep the files of one sink.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     files = EpochFiles("the rows", Path(directory), header="_query.json", prefix="epoch-", width=4, suffix=".csv")
    ...     files.attach({"query_id": "doctest"})
    ...     files.put(0, ChainLink("d0"), b"k"), files.put(0, ChainLink("d0"), b"k"), list_directory(directory)
    (True, False, ['_query.json', 'epoch-0000-d0.csv'])
    """

    def __init__(self, described: str, directory: Path, *, header: str, prefix: str, width: int, suffix: str) -> None:
        self.directory = directory
        self._described = described
        self._header = header
        self._name = f"{prefix}{{epoch:0{width}d}}{{digest}}{suffix}"
        self._known: dict[int, str | None] = {}  # the newest epochs that are present, with their digests
        self._oldest = 0  # epochs from here on are all in it
        self._empty: dict[int, str] = {}  # names of the files of epochs without rows
        self._listed_at: float | None = None
        self._pattern = re.compile(rf"(_?){re.escape(prefix)}(\d{{{width}}})(?:-([0-9a-zA-Z]*))?{re.escape(suffix)}")

    def attach(self, header: Mapping[str, Any]) -> None:
        """Make the directory, or continue with it."""
        path = self.directory / self._header
        try:
            make_directories(self.directory)
            stored = read_bytes(path)
            if stored is None:
                self._refuse_strangers()
                stored = json.dumps(dict(header)).encode()
                write_atomic(path, stored)
            recorded = json.loads(stored)
            for name in list_directory(self.directory):
                half = _HALF.fullmatch(name)
                if half is not None and (half[1] == self._header or self._pattern.fullmatch(half[1])):
                    remove_file(self.directory / name)  # of a process that was killed while it wrote
        except (OSError, ValueError) as error:
            raise SinkError(f"{self._described} cannot be opened: {error}.", code="SINK_IO", path=str(path)) from error
        if not isinstance(recorded, dict):
            raise SinkError(f"{self._described} cannot be opened: {path} is not an object.", code="SINK_IO", path=str(path))
        self._refuse_difference(recorded, header)

    def last_epoch(self) -> int | None:
        """Return the last epoch that is present; None before the first."""
        return max(self._epochs(self._oldest), default=None)

    def has(self, epoch: int, link: ChainLink | None) -> bool:
        """Return whether an epoch is present already."""
        epochs = self._epochs(epoch - 1)
        return is_same_epoch(self._described, max(epochs, default=None), lambda one: epochs.get(one) or None, epoch, link)

    def put(self, epoch: int, link: ChainLink | None, data: bytes | None) -> bool:
        """Add the file of an epoch; False where somebody else has, meanwhile."""
        if self.has(epoch, link):
            return False
        name = self._name.format(epoch=epoch, digest="" if link is None else f"-{link.digest}")
        path = self.directory / (name if data is not None else f"_{name}")
        try:
            if file_size(path) is not None:
                self._listed_at = None  # by another driver, so shortly ago that the time of the directory is the same
                return False
            write_atomic(path, data or b"")
            self._known[epoch] = None if link is None else link.digest
            if data is None:
                self._empty[epoch] = path.name
            self._forget(epoch - DIGESTS_KEPT)
            self._listed_at = modified_at(self.directory)
        except OSError as error:
            raise SinkError(
                f"{self._described} could not be written: {error}. The epoch exists as a whole or not at all; correct "
                f"the location and start again.",
                code="SINK_IO",
                path=str(path),
            ) from error
        return True

    def _epochs(self, oldest: int) -> dict[int, str | None]:
        """Return the epochs that are present, with their digests: all of those from `oldest` on, and the last one."""
        changed_at = modified_at(self.directory)
        if self._listed_at is None or changed_at != self._listed_at or oldest < self._oldest:
            matches = [match for match in map(self._pattern.fullmatch, list_directory(self.directory)) if match is not None]
            self._known = {int(match[2]): match[3] for match in matches}
            self._empty = {int(match[2]): match[0] for match in matches if match[1]}
            self._oldest, self._listed_at = 0, changed_at
        return self._known

    def _forget(self, last: int) -> None:
        """Forget epochs before one, and remove the files of those without rows."""
        for epoch in [one for one in self._empty if one < last] if len(self._empty) > DIGESTS_KEPT else ():
            remove_file(self.directory / self._empty.pop(epoch))
        if len(self._known) > 2 * DIGESTS_KEPT:
            self._known = {epoch: digest for epoch, digest in self._known.items() if epoch >= last}
            self._oldest = last

    def _refuse_strangers(self) -> None:
        strangers = [name for name in list_directory(self.directory) if not name.startswith(f".{self._header}.")]
        if strangers:
            raise SinkError(
                f"{self._described}: the directory holds {strangers[0]}, which no query has written. Name an empty one.",
                code="SINK_NAME_TAKEN",
                path=str(self.directory),
            )

    def _refuse_difference(self, recorded: Mapping[str, Any], header: Mapping[str, Any]) -> None:
        if recorded.get("query_id") != header["query_id"]:
            raise SinkError(
                f'{self._described} belongs to query "{recorded.get("query_id")}", not to "{header["query_id"]}". Name another '
                "directory, or start that query.",
                code="SINK_QUERY_ID",
                expected=recorded.get("query_id"),
                actual=header["query_id"],
            )
        for name, value in header.items():
            if recorded.get(name) != value:
                raise SinkError(
                    f"{self._described} was written with other {name.replace('_', ' ')}: {recorded.get(name)}, and now with "
                    f"{value}. Name another directory, or write as before.",
                    code="SINK_SCHEMA",
                    different=name,
                    expected=recorded.get(name),
                    actual=value,
                )


class EpochFilesSink(ABC):
    """Write the answer of every epoch to a file of its own; a subclass makes its bytes."""

    def __init__(self, described: str, files: EpochFiles) -> None:
        self._described = described
        self._files = files
        self._output: Relation | None = None

    def last_epoch(self) -> int | None:
        return self._files.last_epoch()

    def has(self, epoch: int, link: ChainLink | None) -> bool:
        return self._files.has(epoch, link)

    def write(self, epoch: int, chunks: Iterable[ZSet], *, link: ChainLink | None = None) -> SinkProgress:
        started = time.perf_counter()
        output = self._opened()
        if self.has(epoch, link):
            return SinkProgress(epoch, 0, 0, time.perf_counter() - started, replayed=True)
        parts = []
        for chunk in chunks:
            check_chunk(self._described, epoch, output.schema, chunk)
            parts.append(chunk)
        data, rows, retractions = self._written(epoch, ZSet.concat(parts, schema=output.schema))
        if not self._files.put(epoch, link, data):
            return SinkProgress(epoch, 0, 0, time.perf_counter() - started, replayed=True)
        return SinkProgress(epoch, rows, retractions, time.perf_counter() - started)

    def close(self) -> None:
        self._output = None

    @abstractmethod
    def _written(self, epoch: int, delta: ZSet) -> tuple[bytes | None, int, int]:
        """Return the file of an epoch, None for one that is not to be seen, with its rows and how many are retractions."""

    def _opened(self) -> Relation:
        if self._output is None:
            raise SinkError(f"{self._described} is closed; call open first.", code="SINK_CLOSED")
        return self._output


def stored_epochs(directory: Path) -> StoredEpochs:
    """Return which epochs a directory of a sink of plain files holds; it is only read."""
    try:
        headers = [stored for name in HEADERS if (stored := read_bytes(directory / name)) is not None]
        recorded = json.loads(headers[0]) if headers else {}
        query_id, form = recorded["query_id"], recorded.get("form", "")
        matches = [match for match in map(_FILE.fullmatch, list_directory(directory)) if match is not None]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SinkError(
            f"the files in {directory} cannot be read: {error!r}. Expected {' or '.join(HEADERS)}, as sinks write it.",
            code="SINK_IO",
            path=str(directory),
        ) from error
    digests = {int(match[1]): match[2] for match in matches}
    return StoredEpochs(query_id, max(digests, default=None), marks_of(digests), detail=form)
