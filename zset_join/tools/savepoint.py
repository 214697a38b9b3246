"""A savepoint: the checkpoint and the outputs of a query, copied together, and brought back together.

    savepoint/
      checkpoint/...        everything below `checkpointLocation` but its owners
      output-0/...          the outputs, in the order they were given: a directory, or a file and its log
      _savepoint.json       what belongs to it, with bytes and checksums; written last, so an unfinished one is none

The law: a savepoint that was made is the query at the end of an epoch; a query that starts on what was restored continues after
it, and its outputs are right after every epoch, whatever was read, written or lost since. It is made while nobody runs
epochs: the checkpoint is claimed as by a driver, or `backup` is called by the driver itself between two epochs. Files are
brought back inside the checkpoint and the outputs only: a savepoint that lists other names, or holds links, is refused.

A restored checkpoint becomes one with its last file, `zset/format.json`; before that no query starts on it. What was at the
place is moved aside, never deleted; on an object store the place must be empty.

Limits: outputs that are files or directories: a DuckDB file, a Delta table, a Parquet changelog, rows or
JSON lines in files. A database, a topic and what a
function wrote are backed up by their own tools at the same time; `SINK_OTHER_CHAIN` is raised when that went wrong. A DuckDB
file is copied whole, with the views of others in it.

Memory: one file. Cost: every byte is read once and written once.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from zset_join.checkpoint.owner import Ownership
from zset_join.checkpoint.reading import (
    FORMAT_FILE,
    checkpoint_folder,
    no_checkpoint,
    read_committed,
    stored_query_id,
)
from zset_join.core.errors import OptionError, StateError
from zset_join.core.shown_values import counted
from zset_join.storage import local
from zset_join.storage.folder import Folder, is_local, local_path, open_folder
from zset_join.storage.operations import no_epoch, reporting_full_disk
from zset_join.storage.trusted_files import seal, unseal

__all__ = ["Savepoint", "backup", "restore"]

_FORMAT = 1
_HEADER = "_savepoint.json"
_OWNERS = "zset/owners/"
_LAST = f"zset/{FORMAT_FILE}"
# Spark reads `commits`, then the `offsets` they refer to, then what those refer to; copied in this order they fit.
_FIRST = ("commits/", "offsets/")
_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Savepoint:
    """Description of a savepoint.

    Args:
        query_id: the query.
        epoch: the last epoch in it; None before the first.
        checkpoint: where the checkpoint was, or is now.
        outputs: where its outputs were, or are now.
        files: how many files it has.
        bytes: their size.
        moved: by a restore, the old and the new path of files in the way.
    """

    query_id: str
    epoch: int | None
    checkpoint: str
    outputs: tuple[str, ...]
    files: int
    bytes: int
    moved: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        after = "before its first epoch" if self.epoch is None else f"after epoch {self.epoch}"
        outputs = ", ".join(self.outputs) or "no output; restore one of the same time by its own tools"
        size = f"{counted(self.files, 'file')}, {counted(self.bytes, 'byte')}"
        lines = [f"query {self.query_id} {after}: {size}; {self.checkpoint} with {outputs}"]
        return "\n".join([*lines, *(f"moved aside: {old} is {new} now" for old, new in self.moved)])


_reporting_full_disk = reporting_full_disk("savepoint, checkpoint and outputs lie", {"none": "run it again"}, no_epoch)


@_reporting_full_disk
def backup(
    checkpoint: str | Path, directory: str | Path, *, outputs: Sequence[str | Path] = (), is_held: bool = False
) -> Savepoint:
    """Copy a checkpoint and its outputs.

    Args:
        checkpoint: `checkpointLocation`, a path or URI.
        directory: of the savepoint, a path or URI; empty or missing.
        outputs: DuckDB files, Delta tables, Parquet changelogs and directories of rows or JSON lines of the query.
        is_held: the caller is the driver of the query, and runs no epoch meanwhile.

    Returns:
        Description of a savepoint.

    Raises:
        OptionError: the directory has files in it, or an output is absent.
        StateError: there is no checkpoint, or a driver runs on it.

    Cost: see the module.
    """
    location, places = str(checkpoint), [str(output) for output in outputs]
    query_id = stored_query_id(location)
    if query_id is None:
        raise no_checkpoint(location)
    target = open_folder(str(directory), option="directory of the savepoint")
    _refuse_used(target)
    with ExitStack() as stack:
        if not is_held:
            owner = Ownership.claim(checkpoint_folder(location), query_id)
            stack.callback(owner.release)
        committed = read_committed(location)
        epoch = None if committed is None or committed.last is None else committed.last.epoch
        source = open_folder(location)
        listed = [_copied(source, name, target, f"checkpoint/{name}") for name in _checkpoint_files(source)]
        for number, place in enumerate(places):
            listed += _copied_output(place, target, f"output-{number}")
    body = {
        "query_id": query_id,
        "epoch": epoch,
        "checkpoint": _absolute(location),
        "outputs": [_absolute(place) for place in places],
        "made_at": time.time(),
        "files": listed,
    }
    target.put_new(_HEADER, seal(body, version=_FORMAT, name=_HEADER))
    return _savepoint(body)


@_reporting_full_disk
def restore(
    directory: str | Path,
    *,
    checkpoint: str | Path | None = None,
    outputs: Sequence[str | Path] | None = None,
    replace: bool = False,
) -> Savepoint:
    """Bring a savepoint back, checkpoint and outputs.

    Args:
        directory: the savepoint.
        checkpoint: where the checkpoint is to be; default: where it was.
        outputs: where the outputs are to be, in the order of `backup`; default: where they were.
        replace: move existing content aside; else it is an error.

    Returns:
        A description of the restored and the moved files.

    Raises:
        OptionError: a target exists, or the number of outputs differs.
        StateError: the savepoint is unfinished or damaged, or a driver runs on the checkpoint.

    Cost: see the module.
    """
    source = open_folder(str(directory), option="directory of the savepoint")
    body = _header(source)
    location = body["checkpoint"] if checkpoint is None else _absolute(str(checkpoint))
    places = body["outputs"] if outputs is None else [_absolute(str(output)) for output in outputs]
    if len(places) != len(body["outputs"]):
        raise OptionError(
            f"the savepoint {source.location} has {len(body['outputs'])} outputs ({', '.join(body['outputs'])}), and "
            f"{len(places)} places were given for them. Give one for each, in this order, or none.",
            code="ARGUMENT",
            outputs=body["outputs"],
            given=places,
        )
    _check_files(source, body)  # before anything is moved
    moved = _cleared([location, *places], body["query_id"], location, replace=replace)
    for number, place in enumerate(places):
        _restored_output(source, body, f"output-{number}", place)
    target = open_folder(location)
    names = [file["name"] for file in body["files"] if file["name"].startswith("checkpoint/")]
    for name in sorted(names, key=lambda name: name.removeprefix("checkpoint/") == _LAST):
        _copied(source, name, target, name.removeprefix("checkpoint/"))
    return _savepoint({**body, "checkpoint": location, "outputs": places}, moved)


def _savepoint(body: Mapping[str, Any], moved: Sequence[tuple[str, str]] = ()) -> Savepoint:
    files = body["files"]
    size = sum(file["bytes"] for file in files)
    return Savepoint(
        body["query_id"], body["epoch"], body["checkpoint"], tuple(body["outputs"]), len(files), size, tuple(moved)
    )


def _absolute(location: str) -> str:
    return str(local_path(location)) if is_local(location) else location


def _names(folder: Folder) -> list[str]:
    return sorted(name.lstrip("/") for name in folder.names(""))


def _checkpoint_files(folder: Folder) -> Iterator[str]:
    """Yield the files of a checkpoint, in the order in which they are copied; `format.json` is the last."""
    names = [name for name in _names(folder) if not name.startswith(_OWNERS) and not name.endswith(".tmp")]
    first = [name for prefix in _FIRST for name in names if name.startswith(prefix)]
    yield from first
    yield from (name for name in names if name not in set(first) and name != _LAST)
    yield _LAST


def _copied(source: Folder, name: str, target: Folder, new_name: str) -> dict[str, Any]:
    """Copy a file; return its header's entry."""
    data = source.view(name)
    if data is None:
        raise StateError(
            f"{source.uri(name)} vanished while it was copied: a query or a tool is at work there. Stop it and try again.",
            code="DAMAGED_FILE",
            file=source.uri(name),
        )
    file, checksum = target.create(new_name), 0
    try:
        view = memoryview(data)
        for begin in range(0, len(view), _CHUNK_BYTES):
            piece = view[begin : begin + _CHUNK_BYTES]
            checksum = zlib.crc32(piece, checksum)
            file.write(piece)
        file.close(durable=True)
    except BaseException:
        file.discard()
        raise
    return {"name": new_name, "bytes": data.size, "crc32": checksum}


def _is_file(place: str) -> bool:
    return is_local(place) and local_path(place).is_file()


def _beside(place: str) -> tuple[Folder, str]:
    """Return the folder of a local file and its name there."""
    path = local_path(place)
    return open_folder(str(path.parent)), path.name


def _copied_output(place: str, target: Folder, prefix: str) -> list[dict[str, Any]]:
    if _is_file(place):
        folder, name = _beside(place)
        logs = [log for log in (f"{name}.wal",) if folder.size(log) is not None]
        return [_copied(folder, one, target, f"{prefix}/{one.replace(name, 'file', 1)}") for one in [name, *logs]]
    folder = open_folder(place, option="output")
    names = _names(folder)
    if not names:
        raise OptionError(
            f"the output {place} does not exist or is empty. Give the DuckDB file, the Delta table or the Parquet changelog "
            "of the query.",
            code="ARGUMENT",
            output=place,
        )
    return [_copied(folder, name, target, f"{prefix}/tree/{name}") for name in names]


def _restored_output(source: Folder, body: Mapping[str, Any], prefix: str, place: str) -> None:
    names = [file["name"] for file in body["files"] if file["name"].startswith(f"{prefix}/")]
    if any(name.startswith(f"{prefix}/file") for name in names):
        folder, file_name = _beside(place)
        for name in names:
            _copied(source, name, folder, file_name + name.removeprefix(f"{prefix}/file"))
        return
    folder = open_folder(place, option="output")
    for name in names:
        _copied(source, name, folder, name.removeprefix(f"{prefix}/tree/"))


def _refuse_used(target: Folder) -> None:
    if next(iter(target.names("")), None) is not None:
        raise OptionError(
            f"{target.location} has files in it; a savepoint is made in a directory of its own. Choose an empty one.",
            code="PLACE_TAKEN",
            place=target.location,
        )


def _header(source: Folder) -> dict[str, Any]:
    data = source.read(_HEADER)
    if data is None:
        raise StateError(
            f"{source.location} is not a completed savepoint: it has no {_HEADER}. Give the directory of a "
            "backup that was completed.",
            code="NO_SAVEPOINT",
            location=source.location,
        )
    try:
        body = unseal(data.to_pybytes(), version=_FORMAT, name=_HEADER)
        _check_names([file["name"] for file in body["files"]], len(body["outputs"]))
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(source.uri(_HEADER), str(error)) from error
    return body


def _check_names(names: Sequence[str], outputs: int) -> None:
    """Make sure that every file stays inside the checkpoint or output it belongs to."""
    places = ["checkpoint", *(f"output-{number}" for number in range(outputs))]
    for name in names:
        first, *below = name.split("/")
        is_inside = first in places and bool(below) and not any(part in ("", ".", "..") for part in below)
        is_of_output = first == "checkpoint" or below in (["file"], ["file.wal"]) or (below[:1] == ["tree"] and len(below) > 1)
        if not is_inside or not is_of_output or "\0" in name:
            raise ValueError(f"it lists {name!r}, which is no file of its checkpoint or outputs")
    if len(set(names)) != len(names):
        raise ValueError("it lists a file twice")


def _damaged(path: str, what: str) -> StateError:
    return StateError(
        f"{path} of the savepoint cannot be used: {what}. Nothing was restored. Take another savepoint.",
        code="DAMAGED_FILE",
        file=path,
    )


def _check_files(source: Folder, body: Mapping[str, Any]) -> None:
    """Compare every file with what was written down, before anything else is touched."""
    for file in body["files"]:
        _refuse_link(source, file["name"])
        data = source.view(file["name"])
        if data is None or data.size != file["bytes"] or _checksum(data) != file["crc32"]:
            raise _damaged(source.uri(file["name"]), "it is missing or damaged")


def _refuse_link(folder: Folder, name: str) -> None:
    """Refuse a file that is elsewhere: through a link, a savepoint could bring any file of this host to the restored place."""
    if not is_local(folder.location):
        return
    path = local_path(folder.location)
    for part in name.split("/"):
        path /= part
        if path.is_symlink():
            raise _damaged(str(path), "it is a symbolic link")


def _checksum(data: pa.Buffer) -> int:
    return zlib.crc32(memoryview(data))


def _cleared(places: Sequence[str], query_id: str, checkpoint: str, *, replace: bool) -> list[tuple[str, str]]:
    """Move aside what is at the places; the checkpoint first, so that no query starts on half of it."""
    taken = [place for place in places if _is_taken(place)]
    fixed = [place for place in taken if not is_local(place)]
    if fixed or (taken and not replace):
        raise OptionError(
            f"{', '.join(fixed or taken)} has files in it. "
            + (
                "Empty it first: an object store cannot move it aside."
                if fixed
                else "Pass replace (--replace) to move it aside."
            ),
            code="PLACE_TAKEN",
            places=fixed or taken,
        )
    if checkpoint in taken:
        try:
            Ownership.claim(checkpoint_folder(checkpoint), query_id).release()
        except StateError as error:
            if error.code == "CHECKPOINT_IN_USE":
                raise  # anything else is what is wrong with the checkpoint that is replaced
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    return [move for place in taken for move in _moved_aside(place, stamp)]


def _is_taken(place: str) -> bool:
    """Return whether files are present, or links, which would bring what is written below them to another place."""
    if _is_file(place) or next(iter(open_folder(place).names("")), None) is not None:
        return True
    return is_local(place) and any(path.is_symlink() for path in local_path(place).rglob("*"))


def _moved_aside(place: str, stamp: str) -> Iterator[tuple[str, str]]:
    path = local_path(place)
    for old in [path, path.with_name(f"{path.name}.wal")] if path.is_file() else [path]:
        if not old.exists():
            continue
        new, number = old.with_name(f"{old.name}.before-{stamp}"), 1
        while new.exists():
            new, number = old.with_name(f"{old.name}.before-{stamp}-{number}"), number + 1
        local.rename(old, new)
        yield str(old), str(new)
