"""The directory of a session: of one session at a time, and of one layout.

shop/session.lock                           held as long as the session is open
shop/session.json                           how the directory is laid out
shop/catalog/000000000007.json              the statements that made the present content
shop/pipeline/                              one pipeline: the rows of tables, the queries, what sources were read
shop/read/                                  names of files that were read
shop/once/                                  under which id a statement wrote outside
"""

from __future__ import annotations

import shlex
import uuid
from pathlib import Path

from zset_join.checkpoint.reading import changed_plan_of, read_committed
from zset_join.core.errors import OptionError, StateError
from zset_join.sql.runtime.declarations import Declarations
from zset_join.sql.tables.file_names import file_name
from zset_join.storage import local
from zset_join.storage.local import FileLock
from zset_join.storage.sealed import UnknownFormatError, seal, unseal

__all__ = ["SessionDirectory"]

_LAYOUT = "session.json"
_LOCK = "session.lock"


class SessionDirectory:
    """Hold the directory of a session, and make it where it is missing.

    Args:
        place: of the directory.
        layout: 4: one pipeline; 5: one whose files and topics Spark reads.

    Raises:
        OptionError: it cannot be made.
        StateError: another session has it, or its layout is another one.
    """

    def __init__(self, place: str | Path, layout: int) -> None:
        self.path = Path(place).absolute()
        self.pipeline, self.read = self.path / "pipeline", self.path / "read"
        self._lock = _locked(self.path)
        try:
            _check_layout(self.path, layout)
        except BaseException:
            self._lock.release()
            raise
        self.declarations = Declarations(self.path / "catalog")

    def declarations_named(self) -> int | None:
        """Return the number of the declarations that the pipeline's last record names; None where there is none."""
        committed = read_committed(str(self.pipeline))
        if committed is None or committed.last is None:
            return None
        changed = changed_plan_of(committed.files.folder, committed.last)
        return None if changed is None or changed.note is None else int(changed.note["catalog"])

    def writer_id(self, statement: str) -> str:
        """Return under which id a statement writes outside, the same whenever it runs."""
        place = self.path / "once" / file_name(statement)
        known = local.read_bytes(place)
        if known is None:
            known = str(uuid.uuid4()).encode()
            local.make_directories(place.parent)
            local.write_atomic(place, known)
        return known.decode()

    def release(self) -> None:
        """Let other sessions have it."""
        self._lock.release()


def _locked(directory: Path) -> FileLock:
    try:
        local.make_directories(directory)
        lock = local.lock_file(directory / _LOCK)
    except OSError as error:
        raise OptionError(
            f"the directory {directory} cannot be used: {error}. Give one where this process may write.",
            code="DIRECTORY",
            directory=str(directory),
        ) from error
    if lock is None:
        raise StateError(
            f"{directory} is in use by another session, in this process or another one: two would not see each other's "
            "INSERTs. Close that session first.",
            code="DIRECTORY_IN_USE",
            directory=str(directory),
        )
    return lock


def _check_layout(directory: Path, layout: int) -> None:
    data = local.read_bytes(directory / _LAYOUT)
    if data is None and not local.list_directory(directory / "pipeline"):
        local.write_atomic(directory / _LAYOUT, seal({}, version=layout, name=_LAYOUT))
        return
    try:
        unseal(data or b"", version=layout, name=_LAYOUT)
    except UnknownFormatError as error:
        raise StateError(
            f"{directory} has the layout {error.found}, and this session reads the layout {layout} only: it was made by a "
            "session of the other engine (in this process, or inside Spark), which opens it, or by another version. Rebuild "
            f"it: rm -r {shlex.quote(str(directory))}, then run its statements again.",
            code="OLD_SESSION",
            directory=str(directory),
        ) from error
    except ValueError as error:
        raise StateError(
            f"{directory} has tables, and {_LAYOUT} is missing or cannot be used ({error}): the directory was written by "
            "another version, or copied in part. Restore the whole directory, or begin with a new one.",
            code="DAMAGED_FILE",
            file=str(directory / _LAYOUT),
        ) from error
