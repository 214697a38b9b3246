"""How a Parquet changelog is in its folder, and how an epoch becomes visible there.

    changelog/
      _changelog.json                query id, form, key, schema
      epoch=00000012/
        _manifest.json               query id, epoch, files, rows, retractions
        part-00000-....parquet
      _staging/                      local disks only: what is not committed; readers pass over every `_` name

The law: an epoch is a directory with a manifest, and the manifest is the last thing to appear. The manifest lists every file
with bytes and checksum; header and manifests carry a checksum of their own. Each checksum starts from where the file belongs
(and a part's from the query's id), so that a file of another epoch or of another query is caught as well as a damaged one.

- On a local or mounted disk the parts wait in `_staging`; a commit moves them into a directory beside, adds the manifest,
  syncs, and renames the directory. Any reader of `epoch=*` directories sees an epoch whole or not at all.
- An object store cannot rename. Parts lie where they belong from the start, and the manifest is put when all are present, under
  a name that must be free. A reader that lists files sees the parts of attempts too, until their epoch is committed and they
  are
  removed: read what the manifests list (`committed_files`).

Nothing is removed before there is a manifest that does not list it.

`ChangelogLines`, `NewParquetFile`: the lines of a changelog: the chunks of one epoch's answer, checked, written down in a form,
and counted.

The law: lines in = chunks out; a line is called an update only when its other half is among the same chunks. So what is to be
looked at together is given together: all chunks of an epoch, or those of one task.

Memory: one chunk for the form `weight`; for the others, when there is a key to recognise updates by, all chunks.

`NewParquetFile` is the file they are written to, and the rows of views too: counted, and on the disk once it is finished.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import re
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from zset_join.changelog import ChangelogForm, encode, encoded_schema, format_named
from zset_join.core.epochs import ChainLink
from zset_join.core.errors import SinkError
from zset_join.sinks.sink import check_chunk, is_same_epoch
from zset_join.storage import local
from zset_join.storage.folder import Folder, is_local, open_folder
from zset_join.storage.trusted_files import seal, unseal
from zset_join.zset import ZSet

__all__ = ["ChangelogDirectory", "ChangelogLines", "Header", "NewParquetFile", "PartFile", "first_checksum", "published_name"]


class ChangelogLines:
    """Iterate over the lines of one epoch, once.

    >>> gone = ZSet.of({"k": [1]}, [-2])
    >>> lines = ChangelogLines("log", gone.schema, "row_kind", (), [gone], epoch=3)
    >>> [line["_row_kind"] for batch in lines for line in batch.to_pylist()], lines.retractions
    (['-D', '-D'], 2)
    """

    def __init__(
        self,
        described: str,
        rows: pa.Schema,
        form: ChangelogForm,
        key: tuple[str, ...],
        chunks: Iterable[ZSet],
        *,
        epoch: int,
        committed_at_us: int | None = None,
    ) -> None:
        self.schema = encoded_schema(rows, format_named(form))
        self.rows = 0
        self.retractions = 0
        self.described = described
        self.of = rows
        self.form = form
        self._key = key
        self._chunks = chunks
        self.epoch = epoch
        self._committed_at_us = time.time_ns() // 1000 if committed_at_us is None else committed_at_us

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for delta in self._together():
            lines = encode(delta, self._key, format_named(self.form), epoch=self.epoch, committed_at_us=self._committed_at_us)
            self.rows += lines.num_rows
            self.retractions += self._retracted(delta)
            yield lines

    def _together(self) -> Iterator[ZSet]:
        """Yield the groups of chunks to examine: each chunk alone, or all when updates are detected."""
        checked = (chunk for chunk in self._chunks if self._fits(chunk))
        if self.form == "weight" or not self._key:
            yield from checked
            return
        whole = ZSet.concat(checked, schema=self.of)
        if len(whole):
            yield whole

    def _fits(self, chunk: ZSet) -> bool:
        check_chunk(self.described, self.epoch, self.of, chunk)
        return len(chunk) > 0

    def _retracted(self, delta: ZSet) -> int:
        negative = delta.weights[delta.weights < 0]
        return len(negative) if self.form == "weight" else -int(negative.sum(dtype=np.int64))


class NewParquetFile:
    """A Parquet file of a folder, being written.

    Args:
        folder: where.
        name: of the file.
        schema: of its rows.
        crc32: what its checksum starts from.
    """

    def __init__(self, folder: Folder, name: str, schema: pa.Schema, crc32: int = 0) -> None:
        self.name = name
        self.bytes = self.rows = 0
        self.crc32 = crc32
        self.metadata: list[Any] = []
        self.closed = False
        self._file = folder.create(name)
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self, mode="w"),
            schema,
            compression="zstd",
            compression_level=1,
            # Dictionaries pay for texts; for numbers they cost as much as everything else together.
            use_dictionary=[column.name for column in schema if pt.is_string(column.type)],
            metadata_collector=self.metadata,
        )

    def add(self, rows: pa.RecordBatch) -> None:
        self.rows += rows.num_rows
        self._writer.write_batch(rows)

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.crc32 = zlib.crc32(view, self.crc32)
        self.bytes += view.nbytes
        self._file.write(view)
        return view.nbytes

    def flush(self) -> None:
        """Do nothing: what waits is written when the file is finished."""

    def close(self) -> None:
        pass

    def finish(self) -> None:
        """Close the file; it is on the disk then."""
        self._writer.close()
        self._file.close(durable=True)
        self.closed = True

    def discard(self) -> None:
        self.closed = True
        self._file.discard()


_FORMAT = 2
_HEADER = "_changelog.json"
_MANIFEST = "_manifest.json"
_STAGING = "_staging"
_EPOCH_DIRECTORY = re.compile(r"epoch=(\d{8,})")
_EPOCH_MANIFEST = re.compile(r"epoch=(\d{8,})/_manifest\.json")
_STAGED = re.compile(r"(\d{8,})-part-.*")
_NOT_EMPTY = frozenset({errno.ENOTEMPTY, errno.EEXIST})


@dataclass(frozen=True, slots=True)
class PartFile:
    """One file of an epoch, written and waiting for its commit."""

    name: str
    rows: int
    retractions: int
    bytes: int
    crc32: int


@dataclass(frozen=True, slots=True)
class Header:
    """Header of a changelog, for its writers and readers."""

    query_id: str
    form: ChangelogForm
    key: tuple[str, ...]
    schema: pa.Schema

    def layout(self) -> dict[str, Any]:
        """Return what must be the same next time."""
        columns = [f"{field.name}: {field.type}" for field in self.schema]
        return {"query_id": self.query_id, "form": self.form, "key": list(self.key), "columns": columns}


@dataclass(frozen=True, slots=True)
class Manifest:
    """Content of an epoch."""

    query_id: str
    epoch: int
    files: tuple[PartFile, ...]
    digest: str | None = None
    begins: bool = False  # no epoch is before it: it has all rows of a view that was present earlier


class ChangelogDirectory:
    """The files of one changelog."""

    def __init__(self, location: str | Path) -> None:
        self.folder = open_folder(location, option="path of the changelog")
        self.location = self.folder.location
        self._is_local = is_local(str(location))

    def __str__(self) -> str:
        return f'changelog "{self.location}"'

    # -- header -------------------------------------------------------------------------------------------------------

    def make(self, header: Header) -> None:
        """Make the changelog, or leave the one that is present alone."""
        if self.folder.size(_HEADER) is not None:
            return
        if self._has_files():
            raise SinkError(
                f"{self}: the directory has files and is not a changelog; choose an empty one.",
                code="SINK_NAME_TAKEN",
                directory=self.location,
            )
        with contextlib.suppress(FileExistsError):  # made by somebody else at the same moment: the caller compares it
            self.folder.put_new(_HEADER, _sealed_header(header))

    def replace_header(self, header: Header) -> None:
        """Put another header in the place of the one that is present, whole or not at all."""
        self.folder.put(_HEADER, _sealed_header(header))

    def header(self) -> Header:
        try:
            header = self.folder.read(_HEADER)
            if header is None:
                raise FileNotFoundError(f"there is no {_HEADER}")
            body = unseal(header.to_pybytes(), version=_FORMAT, name=_HEADER)
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(body["schema"])))
            return Header(body["query_id"], body["form"], tuple(body["key"]), schema)
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            raise SinkError(
                f"{self}: {_HEADER} cannot be read ({error}); ParquetChangelogSink.open makes it.",
                code="SINK_HEADER",
                directory=self.location,
            ) from error

    # -- epochs -------------------------------------------------------------------------------------------------------

    def epochs(self) -> list[int]:
        """Return the epochs, in order."""
        if self._is_local:
            names = local.list_directory(self.location)
            epochs = (int(match[1]) for match in map(_EPOCH_DIRECTORY.fullmatch, names) if match)
            return sorted(epoch for epoch in epochs if self.is_committed(epoch))
        listed = (name.lstrip("/") for name in self.folder.names(""))
        return sorted(int(match[1]) for match in map(_EPOCH_MANIFEST.fullmatch, listed) if match)

    def is_committed(self, epoch: int) -> bool:
        return self.folder.size(published_name(epoch, _MANIFEST)) is not None

    def manifest(self, header: Header, epoch: int) -> Manifest:
        """Return the manifest of an epoch that is present."""
        name = published_name(epoch, _MANIFEST)
        manifest = self.folder.read(name)
        try:
            body = unseal(b"" if manifest is None else manifest.to_pybytes(), version=_FORMAT, name=name)
            if body["query_id"] != header.query_id:
                raise ValueError(f'it belongs to query "{body["query_id"]}", not to "{header.query_id}"')
        except ValueError as error:
            raise self.damaged(epoch, _MANIFEST, f"cannot be used: {error}") from error
        files = tuple(PartFile(**file) for file in body["files"])
        return Manifest(body["query_id"], body["epoch"], files, body.get("chain"), body.get("begins", False))

    def manifests(self, header: Header, up_to_epoch: int | None = None) -> Iterator[Manifest]:
        """Return the manifests of all epochs, in order; refuse a hole between them."""
        epochs = [epoch for epoch in self.epochs() if up_to_epoch is None or epoch <= up_to_epoch]
        first = epochs[0] if epochs and self.manifest(header, epochs[0]).begins else 0
        if epochs != list(range(first, first + len(epochs))):
            raise SinkError(
                f"{self} has the epochs {epochs}; some in between are missing. Restore their directories.",
                code="SINK_EPOCH_GAP",
                directory=self.location,
                epochs=epochs,
            )
        return (self.manifest(header, epoch) for epoch in epochs)

    def digest_of(self, header: Header, epoch: int) -> str | None:
        """Return the digest of an epoch, where it is present and has one."""
        return self.manifest(header, epoch).digest if self.is_committed(epoch) else None

    def has(self, header: Header, epoch: int, link: ChainLink | None) -> bool:
        """Return whether an epoch is present; refuse one that would leave a hole, and one of another chain."""
        if self.is_committed(epoch):
            last: int | None = epoch
        elif epoch == 0 or self.is_committed(epoch - 1):
            last = epoch - 1 if epoch else None
        else:
            last = max(self.epochs(), default=None)
        return is_same_epoch(str(self), last, lambda number: self.digest_of(header, number), epoch, link)

    def read_part(self, header: Header, epoch: int, part: PartFile) -> pa.Buffer:
        """Return all bytes of a listed file."""
        name = published_name(epoch, part.name)
        data = self.folder.read(name)
        if data is None:
            raise self.damaged(epoch, part.name, f"should have {part.bytes} bytes and is missing")
        if data.size != part.bytes:
            raise self.damaged(epoch, part.name, f"should have {part.bytes} bytes and has {data.size}")
        if zlib.crc32(data, first_checksum(header.query_id, epoch, part.name)) != part.crc32:
            raise self.damaged(epoch, part.name, "does not have the checksum it was written with")
        return data

    def part_uri(self, epoch: int, part: PartFile) -> str:
        """Return a URI by which other systems can open a listed file."""
        return self.folder.uri(published_name(epoch, part.name))

    # -- writing ------------------------------------------------------------------------------------------------------

    def staged(self, epoch: int, name: str) -> str:
        """Return where a part waits for its commit."""
        return f"{_STAGING}/{epoch:08d}-{name}" if self._is_local else published_name(epoch, name)

    def has_staged(self, epoch: int, part: PartFile) -> bool:
        """Return whether a part waits for its commit, in its full length."""
        return self.folder.size(self.staged(epoch, part.name)) == part.bytes

    def publish(self, header: Header, epoch: int, parts: Sequence[PartFile], link: ChainLink | None) -> bool:
        """Make an epoch visible: the given parts and nothing else; return False for one that is present already."""
        if self.has(header, epoch, link):
            return False
        for part in parts:
            size = self.folder.size(self.staged(epoch, part.name))
            if size != part.bytes:
                there = "is missing" if size is None else f"has {size}"
                raise self.damaged(epoch, part.name, f"should have {part.bytes} bytes and {there}")
        body = {
            "query_id": header.query_id,
            "epoch": epoch,
            "files": [asdict(part) for part in parts],
            "rows": sum(part.rows for part in parts),
            "retractions": sum(part.retractions for part in parts),
            "chain": None if link is None else link.digest,
            **({"begins": True} if link is not None and link.begins else {}),
        }
        sealed = seal(body, version=_FORMAT, name=published_name(epoch, _MANIFEST))
        is_ours = self._rename_into_place(epoch, parts, sealed) if self._is_local else self._put_manifest(epoch, sealed)
        self._remove_attempts(epoch, {part.name for part in parts} if is_ours else None)
        if not is_ours:
            self.has(header, epoch, link)  # another chain is refused
        return is_ours

    def clear(self, through_epoch: int | None) -> None:
        """Remove half-made directories, and what was staged for epochs that are present; later parts may still be committed."""
        if not self._is_local:
            return
        last = -1 if through_epoch is None else through_epoch
        for name in local.list_directory(f"{self.location}/{_STAGING}"):
            path = f"{self.location}/{_STAGING}/{name}"
            staged = _STAGED.fullmatch(name)
            if staged is None and Path(path).is_dir():
                _remove_half_made(path)
            elif staged is None or int(staged[1]) <= last:
                local.remove_file(path)

    def damaged(self, epoch: int, name: str, what: str) -> SinkError:
        """Return the error for a file that is not what it should be."""
        return SinkError(
            f'{self}: file "{name}" of epoch {epoch} {what}. Restore it, or let the query write the epoch again.',
            code="SINK_PART",
            directory=self.location,
            epoch=epoch,
            file=name,
        )

    @contextlib.contextmanager
    def failures(self) -> Iterator[None]:
        """Convert errors of the file system into a SinkError."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise SinkError(
                f"{self} cannot be used: {error}. Check the path, its rights and the space on the disk.",
                code="SINK_IO",
                directory=self.location,
            ) from error

    def _has_files(self) -> bool:
        """Return whether somebody else's files are present; names with a dot are left-overs of our own."""
        if self._is_local:
            return any(not name.startswith(".") for name in local.list_directory(self.location))
        return any(True for _ in self.folder.names(""))

    def _rename_into_place(self, epoch: int, parts: Sequence[PartFile], sealed: bytes) -> bool:
        moved = f"{self.location}/{_STAGING}/commit-{uuid.uuid4().hex}"
        target = f"{self.location}/epoch={epoch:08d}"
        local.make_directories(moved, durable=False)
        for part in parts:
            local.rename(self.folder.uri(self.staged(epoch, part.name)), f"{moved}/{part.name}")
        local.write_new(f"{moved}/{_MANIFEST}", sealed)  # syncs the directory as well, with the parts in it
        try:
            local.rename(moved, target)
        except OSError as error:
            if error.errno not in _NOT_EMPTY:
                raise
            if self.is_committed(epoch):
                local.remove_tree(moved)
                return False
            local.remove_tree(target)  # without a manifest it is not an epoch, and was not made by a rename of ours
            local.rename(moved, target)
        local.sync_directory(self.location)
        return True

    def _put_manifest(self, epoch: int, sealed: bytes) -> bool:
        try:
            self.folder.put_new(published_name(epoch, _MANIFEST), sealed)
        except FileExistsError:
            return False
        return True

    def _remove_attempts(self, epoch: int, listed: set[str] | None) -> None:
        """Remove the files of other attempts for a present epoch; a late twin's file goes when `open` clears."""
        if self._is_local:
            for name in local.list_directory(f"{self.location}/{_STAGING}"):
                staged = _STAGED.fullmatch(name)
                if staged is not None and int(staged[1]) <= epoch:
                    local.remove_file(f"{self.location}/{_STAGING}/{name}")
        elif listed is not None:
            for name in self.folder.names(f"epoch={epoch:08d}"):
                if name.rpartition("/")[2] not in listed | {_MANIFEST}:
                    self.folder.remove(name)


def _sealed_header(header: Header) -> bytes:
    schema = base64.b64encode(header.schema.serialize().to_pybytes()).decode()
    body = {"query_id": header.query_id, "form": header.form, "key": list(header.key), "schema": schema}
    return seal(body, version=_FORMAT, name=_HEADER)


def _remove_half_made(path: str) -> None:
    """Remove a directory in such a way that a driver that comes back late cannot publish what is left of it."""
    gone = f"{path}.gone"
    try:
        local.rename(path, gone)
    except FileNotFoundError:
        return  # it was published, or somebody else clears
    local.remove_tree(gone)


def first_checksum(query_id: str, epoch: int, name: str) -> int:
    return zlib.crc32(json.dumps([query_id, epoch, name]).encode())


def published_name(epoch: int, name: str) -> str:
    """Return the name in the directory of a part of a committed epoch."""
    return f"epoch={epoch:08d}/{name}"
