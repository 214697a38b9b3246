"""The directory of a session: of one session at a time, and of one layout.

shop/session.lock                           held as long as the session is open
shop/session.json                           how the directory is laid out
"""

from __future__ import annotations

import shlex
from pathlib import Path

from zset_join.checkpoint.reading import changed_plan_of, read_committed
from zset_join.core.errors import OptionError, StateError
from zset_join.storage import local
from zset_join.storage.local import FileLock
from zset_join.storage.sealed import UnknownFormatError, seal, unseal

__all__ = ["claim_directory", "declarations_named"]

_LAYOUT = "session.json"
_LOCK = "session.lock"


def claim_directory(directory: Path, layout: int) -> FileLock:
    """Take a directory for a session, and make it where it is missing."""
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
    try:
        _check_layout(directory, layout)
    except BaseException:
        lock.release()
        raise
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


def declarations_named(pipeline: Path) -> int | None:
    """Return the number of the declarations that the pipeline's last record names; None where there is none."""
    committed = read_committed(str(pipeline))
    if committed is None or committed.last is None:
        return None
    changed = changed_plan_of(committed.files.folder, committed.last)
    return None if changed is None or changed.note is None else int(changed.note["catalog"])
