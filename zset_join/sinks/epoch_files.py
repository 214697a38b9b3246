"""A directory with one file per epoch, each there whole or not at all: what sinks of plain files share.

    <directory>/<header>                        whose it is, and how it is written
    <directory>/<prefix><epoch>-<digest><suffix>    the epoch; without `-<digest>` where it came without a place in the chain
    <directory>/_<the same>                     an epoch without rows, where its file is not to be seen; empty

The law: an epoch becomes visible by one rename, and its name contains its epoch and chain (see `epoch_chain`); so
there is no moment at which the rows are present and their digest is not. A directory with files of somebody else is left alone.

Limits: one file system that renames in one step. Files with rows stay until somebody moves them away: those of the newest
hundred epochs must stay. Empty ones beyond the newest hundred are removed here.

Memory: the rows of the epoch, and the digests of the newest epochs. Cost of an epoch: its bytes, and a constant number of
operations of the file system, however many epochs there are: the names are listed again only when another program has added or
removed one.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path

from typing_extensions import override

from zset_join.core.epochs import ChainLink
from zset_join.core.errors import OptionError, SinkError
from zset_join.sinks.epoch_sink import EpochSink, Position, check_layout
from zset_join.sinks.sink import DIGESTS_KEPT, StoredEpochs, is_same_epoch, marks_of
from zset_join.sinks.unfit_values import fitting
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

__all__ = ["HEADERS", "EpochFilesSink", "stored_epochs"]

HEADERS = ("_query.json", "header.json")
"""The names of the file with the owner query, in the sinks of plain files."""

_FILE = re.compile(r"_?(?:epoch-)?(\d{12,20})(?:-([0-9a-zA-Z]*))?\.(?:csv|jsonl?|parquet)")
_HALF = re.compile(r"\.(.+)\.[0-9a-f]{32}")


class EpochFilesSink(EpochSink):
    """Write the answer of every epoch to a file of its own; a subclass makes its bytes."""

    header = "_query.json"
    prefix, width = "epoch-", 12

    def __init__(self, path: str | Path, form: str, forms: Sequence[str], *, suffix: str) -> None:
        if form not in forms or not str(path):
            raise OptionError(
                f"path={str(path)!r}, form={form!r}: a form is one of {', '.join(forms)}; name a directory.",
                code="SINK_OPTION",
                form=form,
            )
        self.path = Path(path)
        self._name = f"{self.prefix}{{epoch:0{self.width}d}}{{digest}}{suffix}"
        self._known: dict[int, str | None] = {}  # the newest epochs that are present, with their digests
        self._oldest = 0  # epochs from here on are all in it
        self._empty: dict[int, str] = {}  # names of the files of epochs without rows
        self._listed_at: float | None = None
        prefix = re.escape(self.prefix)
        self._pattern = re.compile(rf"(_?){prefix}(\d{{{self.width}}})(?:-([0-9a-zA-Z]*))?{re.escape(suffix)}")

    @abstractmethod
    def _encoded(self, epoch: int, delta: ZSet) -> tuple[bytes | None, int, int]:
        """Return the file of an epoch, None for one that is not to be seen, with its lines and how many are retractions."""

    @override
    def _attach(self) -> None:
        path, wanted = self.path / self.header, self._layout()
        make_directories(self.path)
        stored = read_bytes(path)
        if stored is None:
            self._refuse_strangers()
            stored = json.dumps(wanted).encode()
            write_atomic(path, stored)
        try:
            recorded = json.loads(stored)
        except ValueError as error:
            raise self._failed("opened", f"{path}: {error}") from error
        if not isinstance(recorded, dict):
            raise self._failed("opened", f"{path} is not an object")
        for name in list_directory(self.path):
            half = _HALF.fullmatch(name)
            if half is not None and (half[1] == self.header or self._pattern.fullmatch(half[1])):
                remove_file(self.path / name)  # of a process that was killed while it wrote
        check_layout(self._described, recorded, wanted)

    @override
    def _position(self) -> Position:
        epochs = self._epochs(self._oldest)
        return max(epochs, default=None), lambda epoch: epochs.get(epoch) or None

    @override
    def _is_there(self, epoch: int, link: ChainLink | None) -> bool:
        epochs = self._epochs(epoch - 1)
        return is_same_epoch(self._described, max(epochs, default=None), lambda one: epochs.get(one) or None, epoch, link)

    @override
    def _put(self, epoch: int, chunks: Iterable[ZSet], link: ChainLink | None) -> tuple[int, int] | None:
        delta = fitting(self, self._delta(epoch, chunks), drops=False, epoch=epoch)
        data, rows, retractions = self._encoded(epoch, delta)
        if self._is_there(epoch, link):
            return None
        name = self._name.format(epoch=epoch, digest="" if link is None else f"-{link.digest}")
        path = self.path / (name if data is not None else f"_{name}")
        if file_size(path) is not None:
            self._listed_at = None  # by another driver, so shortly ago that the time of the directory is the same
            return None
        write_atomic(path, data or b"")
        self._known[epoch] = None if link is None else link.digest
        if data is None:
            self._empty[epoch] = path.name
        self._forget(epoch - DIGESTS_KEPT)
        self._listed_at = modified_at(self.path)
        return rows, retractions

    def _epochs(self, oldest: int) -> dict[int, str | None]:
        """Return the epochs that are present, with their digests: all of those from `oldest` on, and the last one."""
        changed_at = modified_at(self.path)
        if self._listed_at is None or changed_at != self._listed_at or oldest < self._oldest:
            matches = [match for match in map(self._pattern.fullmatch, list_directory(self.path)) if match is not None]
            self._known = {int(match[2]): match[3] for match in matches}
            self._empty = {int(match[2]): match[0] for match in matches if match[1]}
            self._oldest, self._listed_at = 0, changed_at
        return self._known

    def _forget(self, last: int) -> None:
        """Forget epochs before one, and remove the files of those without rows."""
        for epoch in [one for one in self._empty if one < last] if len(self._empty) > DIGESTS_KEPT else ():
            remove_file(self.path / self._empty.pop(epoch))
        if len(self._known) > 2 * DIGESTS_KEPT:
            self._known = {epoch: digest for epoch, digest in self._known.items() if epoch >= last}
            self._oldest = last

    def _refuse_strangers(self) -> None:
        strangers = [name for name in list_directory(self.path) if not name.startswith(f".{self.header}.")]
        if strangers:
            raise SinkError(
                f"{self._described}: the directory holds {strangers[0]}, which no query has written. Name an empty one.",
                code="SINK_NAME_TAKEN",
                path=str(self.path),
            )


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
