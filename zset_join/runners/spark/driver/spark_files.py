"""Spark's own files of a query whose checkpoint is where Spark cannot write: on an object store, without a JAR for it.

    checkpointLocation        s3://bucket/orders: our part below `zset/`, and a copy of Spark's files beside it
    sparkCheckpointLocation   a directory that Spark writes; scratch, which may be empty at every start

The law: at a start the directory holds what the checkpoint has of Spark's files, and nothing else of them. Before an epoch is
committed, what Spark has planned it from is in the checkpoint: so a run that lost its disk plans the epoch again with the same
input, or continues behind it. A copy never replaces another: a second driver that planned the same epoch is refused. Each start
leaves a mark of its own in the directory; a run that finds the mark of another one copies and removes nothing more.

Limits: the processes of Spark's server see one directory: on one machine any, on several a volume. What Spark notes at the end
of a run, that its last epoch is done, is copied by the process that started the query; over Spark Connect by a job of the
client. Where that process has died, it is not: the next run requests that epoch again, and its answer is known.

Cost: one put per new file of Spark's, two or three of a few hundred bytes in an epoch; a start reads each once.
"""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Iterator

from zset_join.core.errors import OptionError, StateError
from zset_join.storage.folder import folder_below, local_path, open_folder

__all__ = ["SparkFiles", "copied_end", "restored_files"]

_FOLDERS = ("sources", "offsets", "commits")
"""In the order in which Spark writes them."""
_METADATA = "metadata"
_MARK = "scratch-of-zset-join"
_OPTION = "sparkCheckpointLocation"
_EMPTIED = "emptied"
"""Instead of the name of a start, while that start fills the directory."""


class SparkFiles:
    """Keep Spark's files of one query in its checkpoint."""

    def __init__(self, scratch: str, location: str) -> None:
        self._scratch = local_path(scratch, option=_OPTION)
        self._location = location
        self._shown = location.partition("?")[0]  # settings behind it may be secrets
        self._folder = open_folder(location)
        self._kept: set[str] | None = None
        self._start: str | None = None

    def restore(self) -> str:
        """Make the directory hold what the checkpoint has; return the name of this start."""
        self._take()
        for name in (*_FOLDERS, "state"):
            shutil.rmtree(self._scratch / name, ignore_errors=True)
        for name in (_METADATA, f".{_METADATA}.crc"):
            (self._scratch / name).unlink(missing_ok=True)
        for name in [_METADATA, *self._stored()]:
            content = self._folder.read(name)
            if content is not None:
                place = self._scratch / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content.to_pybytes())
        start = uuid.uuid4().hex
        self._mark(start)
        return start

    def take_over(self, start: str) -> None:
        """Act for the process that ran the epochs of a start, which has ended."""
        self._start, self._kept = start, set(self._stored())

    def keep(self, epoch: int) -> None:
        """Copy new files of the directory up to the plan of an epoch, and remove files that Spark has removed."""
        self._start = self._start or self._marked()[1]
        kept = self._older(epoch) if self._kept is None else self._kept
        found = [name for name in self._written() if not (name.startswith("offsets/") and int(name[8:]) > epoch)]
        copied = [(name, (self._scratch / name).read_bytes()) for name in found if name not in kept]
        if self._start == _EMPTIED or self._marked()[1] != self._start:
            raise self._replaced(epoch)
        for name, content in copied:
            self._copy(name, content, epoch)
        for name in kept.difference(found):
            if name != _METADATA:
                self._folder.remove(name)
        self._kept = set(found)

    def keep_ended(self) -> None:
        """Copy Spark's notes of finished epochs after its query has ended; nothing where another start came."""
        kept = self._kept or set()
        ended = [name for name in self._written() if name.startswith("commits/") and name not in kept]
        copied = [(name, (self._scratch / name).read_bytes()) for name in ended]
        if self._kept is None or self._start == _EMPTIED or self._marked()[1] != self._start:
            return
        for name, content in copied:
            self._copy(name, content, _number(name))
        self._kept.update(ended)

    def _older(self, epoch: int) -> set[str]:
        """Return the names that the checkpoint has, but those that a driver beside this one may have put meanwhile."""
        names = set(self._stored())
        newest: dict[str, int] = {}
        for name in names:
            newest[name.rpartition("/")[0]] = max(newest.get(name.rpartition("/")[0], 0), _number(name))
        return {
            name
            for name in names
            if _number(name) < (epoch if name.startswith("offsets/") else newest[name.rpartition("/")[0]])
        }

    def _copy(self, name: str, content: bytes, epoch: int) -> None:
        try:
            self._folder.put_new(name, content)
        except FileExistsError as error:
            stored = self._folder.read(name)
            if stored is None or stored.to_pybytes() != content:
                raise StateError(
                    f"{name} of the checkpoint {self._shown} differs from what Spark has written in {self._scratch}: "
                    f"another driver has planned epoch {epoch} too. Stop one of them and start this query again: it takes up "
                    "the files that are there.",
                    code="SPARK_FILES_DIFFER",
                    file=name,
                    epoch=epoch,
                ) from error

    def _take(self) -> None:
        """Mark the directory, so that no other checkpoint's files are ever removed from it."""
        self._scratch.mkdir(parents=True, exist_ok=True)
        owner = self._marked()[0]
        has_files = any((self._scratch / name).exists() for name in (_METADATA, *_FOLDERS))
        if owner != self._shown and (owner or has_files):
            raise OptionError(
                f"{_OPTION}={str(self._scratch)!r} holds files of another query, or of this one without the option; they would "
                f"be replaced by those of {self._shown}. Give a directory of its own.",
                code="SCRATCH_FOREIGN",
                value=str(self._scratch),
            )
        self._mark(_EMPTIED)

    def _mark(self, start: str) -> None:
        beside = self._scratch / f"{_MARK}.{uuid.uuid4().hex}"
        beside.write_text(f"{self._shown}\n{start}", encoding="utf-8")
        beside.replace(self._scratch / _MARK)

    def _marked(self) -> tuple[str, str]:
        """Return the checkpoint that the directory is of and the start that has filled it; empty where it has no mark."""
        try:
            owner, _, start = (self._scratch / _MARK).read_text(encoding="utf-8").partition("\n")
        except FileNotFoundError:
            return "", ""
        return owner.partition("?")[0], start

    def _replaced(self, epoch: int) -> StateError:
        return StateError(
            f"another start of this query has taken {self._scratch} ({_OPTION}) since this one began, so epoch {epoch} is not "
            f"taken. Stop one of them and start this query again: it takes up the files that {self._shown} has.",
            code="SPARK_FILES_DIFFER",
            file=_MARK,
            epoch=epoch,
        )

    def _stored(self) -> Iterator[str]:
        """Yield the names that the checkpoint has, but that of the metadata."""
        for under in _FOLDERS:
            for name in folder_below(self._location, under).names(""):
                yield f"{under}/{name}"

    def _written(self) -> Iterator[str]:
        """Yield the names of Spark's files in the directory, in the order in which they are to be copied."""
        if (self._scratch / _METADATA).exists():
            yield _METADATA
        for under in _FOLDERS:
            for path in sorted((self._scratch / under).rglob("*")):
                name = path.relative_to(self._scratch).as_posix()
                if path.is_file() and not path.name.startswith(".") and (under == "sources" or path.name.isdecimal()):
                    yield name


def _number(name: str) -> int:
    """Return the number that a file of Spark's begins with; 0 without."""
    found = re.match(r"\d+", name.rpartition("/")[2])
    return 0 if found is None else int(found[0])


def restored_files(scratch: str | None, location: str) -> str | None:
    """Restore the files of a query that has the option, and return the name of the start; see `SparkFiles.restore`."""
    return None if scratch is None else SparkFiles(scratch, location).restore()


def copied_end(scratch: str, location: str, start: str) -> None:
    """Copy Spark's notes of finished epochs once a query has ended whose epochs another process ran."""
    files = SparkFiles(scratch, location)
    files.take_over(start)
    files.keep_ended()
