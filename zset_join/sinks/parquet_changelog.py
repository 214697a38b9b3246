"""The changelog itself as Parquet files, one directory per epoch.

    changelog/ _changelog.json               query id, form, key, schema epoch=00000012/ _manifest.json
      epoch, files, rows, retractions part-00000-....parquet _staging/                     attempts that were not
      committed; readers pass over it, as they do over every `_` name

The law: an epoch is a directory with a manifest, and it appears by one rename, with everything in it already on the
disk. So readers, ours and any that reads `epoch=*` directories, see every epoch whole or not at all. An epoch that is
there is final: writing it again writes nothing. Two attempts never share a name.

Two ways to write, and both may be used in one changelog: the process that holds the answer calls
`ParquetChangelogSink.write`; a job of many tasks calls `write_part` in each task and `commit_epoch` where the task
results come together. An update whose retraction and insertion lie in different parts is written as `-D` and `+I`.

Memory: one chunk for the form `weight`, the whole epoch (of a part: the whole part) for the others, which look for
updates. Limits: local or mounted file systems with atomic rename.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from zset_join.errors import SinkError
from zset_join.relation import Relation
from zset_join.sinks.changelog_form import ChangelogForm, changelog_schema, to_changelog
from zset_join.sinks.sink import SinkProgress, check_chunk, check_output, is_replay
from zset_join.zset import ZSet

__all__ = ["ParquetChangelogSink", "PartFile", "commit_epoch", "committed_epochs", "read_changelog", "write_part"]

_FORMAT = 1
_HEADER = "_changelog.json"
_MANIFEST = "_manifest.json"
_STAGING = "_staging"
_EPOCH_DIRECTORY = re.compile(r"epoch=(\d{8,})")


@dataclass(frozen=True, slots=True)
class PartFile:
    """One file of an epoch, written and waiting for its commit.

    Args:
        name: file name, unique among all attempts.
        rows: lines in it, retractions included.
        retractions: lines in it that take a row away.
        bytes: its size.
    """

    name: str
    rows: int
    retractions: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Header:
    """What every writer and reader of a changelog has to know."""

    query_id: str
    form: ChangelogForm
    key: tuple[str, ...]
    schema: pa.Schema


class ParquetChangelogSink:
    """Write every delta down, one directory per epoch.

    Args:
        directory: where the changelog lies; made when it is not there.
        form: see `changelog_form`; with the key of the output relation, retraction and insertion of one key are an update.

    >>> import tempfile
    >>> from zset_join.relation import Relation
    >>> from zset_join.zset import ZSet
    >>> delta = ZSet.of({"k": [1, 2]}, [-1, 1])
    >>> directory = tempfile.mkdtemp()
    >>> changelog = ParquetChangelogSink(directory)
    >>> changelog.open(Relation(name="answer", schema=delta.schema, mode="changelog"), "doctest")
    >>> changelog.write(0, [delta]).retractions
    1
    >>> read_changelog(directory).column("_weight").to_pylist()
    [-1, 1]
    """

    def __init__(self, directory: str | Path, form: ChangelogForm = "weight") -> None:
        self.directory = Path(directory)
        self.form = form
        changelog_schema(pa.schema([]), form)
        self._opened: _Header | None = None
        self._last_epoch: int | None = None

    def __repr__(self) -> str:
        return f"ParquetChangelogSink({str(self.directory)!r}, {self.form!r})"

    def open(self, output: Relation, query_id: str) -> None:
        """Attach the changelog to a query, making it when it is not there yet; clear away what was never committed.

        Raises:
            SinkError: the changelog belongs to another query or has other columns or another form.
        """
        check_output(_described(self.directory), output)
        changelog_schema(output.schema, self.form)
        wanted = _Header(query_id, self.form, output.primary_key, output.schema.remove_metadata())
        with _files_of(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            if (self.directory / _HEADER).exists():
                _check_header(self.directory, wanted)
            elif any(self.directory.iterdir()):
                raise SinkError(
                    f"{_described(self.directory)}: the directory has files in it and is no changelog; choose an empty one.",
                    code="SINK_NAME_TAKEN",
                    directory=str(self.directory),
                )
            else:
                _write_json(self.directory / _HEADER, _encoded(wanted))
            shutil.rmtree(self.directory / _STAGING, ignore_errors=True)  # what a dying task still holds is cleared later
            self._last_epoch = max(committed_epochs(self.directory), default=None)
        self._opened = wanted

    def last_epoch(self) -> int | None:
        """Return the last epoch of the changelog; None before the first."""
        self._header()
        return self._last_epoch

    def write(self, epoch: int, chunks: Iterable[ZSet]) -> SinkProgress:
        """Write the answer of one epoch as one file.

        Raises:
            SinkError: the answer does not fit, an epoch is missing before this one, or a file cannot be written.
        """
        started = time.perf_counter()
        self._header()
        if is_replay(_described(self.directory), self._last_epoch, epoch):
            return SinkProgress(epoch, 0, 0, time.perf_counter() - started, replayed=True)
        part = write_part(self.directory, epoch, uuid.uuid4().hex, 0, chunks)
        progress = commit_epoch(self.directory, epoch, [part])
        self._last_epoch = epoch
        return SinkProgress(epoch, progress.rows, progress.retractions, time.perf_counter() - started)

    def close(self) -> None:
        """Detach from the query; the sink keeps no file open."""
        self._opened = None
        self._last_epoch = None

    def _header(self) -> _Header:
        if self._opened is None:
            raise SinkError(f"{_described(self.directory)} is closed; call open first.", code="SINK_CLOSED")
        return self._opened


def write_part(
    directory: str | Path,
    epoch: int,
    attempt: str,
    part: int,
    chunks: Iterable[ZSet],
    *,
    committed_at_us: int | None = None,
) -> PartFile:
    """Write one task's share of an epoch; nothing is visible before `commit_epoch`.

    Args:
        directory: a changelog that `ParquetChangelogSink.open` has made.
        epoch: the epoch it belongs to.
        attempt: unique among all attempts to write this part.
        part: number of the part within the epoch.
        chunks: the share of the answer.
        committed_at_us: microseconds since 1970-01-01 UTC for the form `change_data_feed`; default: now.

    Raises:
        SinkError: the directory is no changelog, the chunks do not fit it, or the file cannot be written.
    """
    root = Path(directory)
    header = _read_header(root)
    name = f"part-{part:05d}-{attempt}.parquet"
    path = _staged(root, epoch) / name
    moment = time.time_ns() // 1000 if committed_at_us is None else committed_at_us
    rows = retractions = 0
    with _files_of(root):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            with pq.ParquetWriter(file, changelog_schema(header.schema, header.form), compression="zstd") as writer:
                for delta in _deltas(root, epoch, header, chunks):
                    lines = to_changelog(delta, header.form, key=header.key, epoch=epoch, committed_at_us=moment)
                    writer.write_batch(lines)
                    rows += lines.num_rows
                    retractions += _retracted_lines(delta, header.form)
            file.flush()
            os.fsync(file.fileno())
        _sync_directory(path.parent)
        return PartFile(name, rows, retractions, path.stat().st_size)


def commit_epoch(directory: str | Path, epoch: int, parts: Sequence[PartFile]) -> SinkProgress:
    """Make an epoch visible: the given parts and nothing else. An epoch that is there already is left alone.

    A commit that fails halfway leaves the epoch absent; write its parts again.

    Args:
        directory: the changelog.
        epoch: the epoch after the last one.
        parts: one attempt of each part, as `write_part` returned them; none for an epoch that changes nothing.

    Raises:
        SinkError: a part is missing or has another size, or an epoch before this one is missing.
    """
    started = time.perf_counter()
    root = Path(directory)
    _read_header(root)
    with _files_of(root):
        if _is_committed(root, epoch):
            return SinkProgress(epoch, 0, 0, time.perf_counter() - started, replayed=True)
        if epoch and not _is_committed(root, epoch - 1):
            is_replay(_described(root), max(committed_epochs(root), default=None), epoch)
        staged, made = _staged(root, epoch), root / _STAGING / f"commit-{uuid.uuid4().hex}"
        made.mkdir(parents=True)
        for part in parts:
            _check_part(root, epoch, staged / part.name, part)
            (staged / part.name).rename(made / part.name)
        rows, retractions = sum(part.rows for part in parts), sum(part.retractions for part in parts)
        files = [asdict(part) for part in parts]
        _write_json(made / _MANIFEST, {"epoch": epoch, "files": files, "rows": rows, "retractions": retractions})
        target = _epoch_directory(root, epoch)
        if target.exists():  # without a manifest it is not an epoch, and was not made by a rename of ours
            shutil.rmtree(target)
        made.rename(target)
        _sync_directory(root)
        shutil.rmtree(staged, ignore_errors=True)  # a late twin may be writing here still; `open` clears what it leaves
    return SinkProgress(epoch, rows, retractions, time.perf_counter() - started)


def committed_epochs(directory: str | Path) -> list[int]:
    """Return the epochs of a changelog, in order."""
    root = Path(directory)
    found = (_EPOCH_DIRECTORY.fullmatch(entry.name) for entry in root.iterdir())
    return sorted(epoch for epoch in (int(match[1]) for match in found if match) if _is_committed(root, epoch))


def read_changelog(directory: str | Path, up_to_epoch: int | None = None) -> pa.Table:
    """Return the lines of a changelog, in the order of their epochs.

    Args:
        directory: the changelog.
        up_to_epoch: the last epoch to read; default: all.

    Raises: SinkError: the directory is no changelog, an epoch is missing in between, or a file is not what its
        manifest says.
    """
    root = Path(directory)
    header = _read_header(root)
    schema = changelog_schema(header.schema, header.form)
    with _files_of(root):
        epochs = [epoch for epoch in committed_epochs(root) if up_to_epoch is None or epoch <= up_to_epoch]
        if epochs != list(range(len(epochs))):
            raise SinkError(
                f"{_described(root)} has the epochs {epochs}; some in between are missing. Restore their directories.",
                code="SINK_EPOCH_GAP",
                directory=str(root),
                epochs=epochs,
            )
        return pa.concat_tables([schema.empty_table(), *_tables(root, epochs, schema)])


def _tables(root: Path, epochs: Iterable[int], schema: pa.Schema) -> Iterator[pa.Table]:
    for epoch in epochs:
        place = _epoch_directory(root, epoch)
        for file in json.loads((place / _MANIFEST).read_text(encoding="utf-8"))["files"]:
            _check_part(root, epoch, place / file["name"], PartFile(**file))
            yield pq.ParquetFile(place / file["name"]).read().cast(schema)


def _deltas(root: Path, epoch: int, header: _Header, chunks: Iterable[ZSet]) -> Iterator[ZSet]:
    """Check the chunks and yield what is to be looked at together: each alone, or all when updates are looked for."""
    checked = (chunk for chunk in chunks if _fits(root, epoch, header, chunk))
    if header.form == "weight" or not header.key:
        yield from checked
    else:
        yield ZSet.concat(checked, schema=header.schema)


def _fits(root: Path, epoch: int, header: _Header, chunk: ZSet) -> bool:
    check_chunk(_described(root), epoch, header.schema, chunk)
    return len(chunk) > 0


def _retracted_lines(delta: ZSet, form: ChangelogForm) -> int:
    negative = delta.weights[delta.weights < 0]
    return len(negative) if form == "weight" else -int(negative.sum(dtype=np.int64))


def _epoch_directory(root: Path, epoch: int) -> Path:
    return root / f"epoch={epoch:08d}"


def _staged(root: Path, epoch: int) -> Path:
    return root / _STAGING / f"epoch={epoch:08d}"


def _is_committed(root: Path, epoch: int) -> bool:
    return (_epoch_directory(root, epoch) / _MANIFEST).exists()


def _check_part(root: Path, epoch: int, path: Path, part: PartFile) -> None:
    size = path.stat().st_size if path.exists() else None
    if size != part.bytes:
        raise SinkError(
            f'{_described(root)}: file "{part.name}" of epoch {epoch} should have {part.bytes} bytes and '
            + ("is missing" if size is None else f"has {size}")
            + ". Restore it, or let the query write the epoch again.",
            code="SINK_PART",
            directory=str(root),
            epoch=epoch,
            file=part.name,
            expected=part.bytes,
            actual=size,
        )


def _check_header(root: Path, wanted: _Header) -> None:
    found = _read_header(root)
    if found.query_id != wanted.query_id:
        raise SinkError(
            f'{_described(root)} belongs to query "{found.query_id}", not to "{wanted.query_id}". Write to another '
            f"directory, or delete this one to start anew.",
            code="SINK_QUERY_ID",
            directory=str(root),
            expected=found.query_id,
            actual=wanted.query_id,
        )
    same_columns = found.schema.names == wanted.schema.names and found.schema.types == wanted.schema.types
    if (found.form, found.key) != (wanted.form, wanted.key) or not same_columns:
        raise SinkError(
            f"{_described(root)} was made with form={found.form!r}, key {list(found.key)} and columns "
            f"{_columns(found)}; the query now has form={wanted.form!r}, key {list(wanted.key)} and columns "
            f"{_columns(wanted)}. Bring the query back, or start a new changelog and checkpoint.",
            code="SINK_SCHEMA",
            directory=str(root),
        )


def _columns(header: _Header) -> str:
    return "[" + ", ".join(f"{field.name}: {field.type}" for field in header.schema) + "]"


def _described(root: Path) -> str:
    return f'changelog "{root}"'


def _encoded(header: _Header) -> dict[str, Any]:
    schema = base64.b64encode(header.schema.serialize().to_pybytes()).decode()
    return {
        "format": _FORMAT,
        "query_id": header.query_id,
        "form": header.form,
        "key": list(header.key),
        "schema": schema,
    }


def _read_header(root: Path) -> _Header:
    try:
        stored = json.loads((root / _HEADER).read_text(encoding="utf-8"))
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(stored["schema"])))
        return _Header(stored["query_id"], stored["form"], tuple(stored["key"]), schema)
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise SinkError(
            f"{_described(root)}: {_HEADER} cannot be read ({error}); ParquetChangelogSink.open makes it.",
            code="SINK_HEADER",
            directory=str(root),
        ) from error


def _write_json(path: Path, content: dict[str, Any]) -> None:
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    with temporary.open("x", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _files_of(root: Path) -> Iterator[None]:
    """Turn what the file system refuses into a SinkError."""
    try:
        yield
    except OSError as error:
        raise SinkError(
            f"{_described(root)} cannot be used: {error}. Check the path, its rights and the space on the disk.",
            code="SINK_IO",
            directory=str(root),
        ) from error
