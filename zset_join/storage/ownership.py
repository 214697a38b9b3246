"""Ownership of directories and files: only the owner may be able to write what is loaded as code or mapped as state.

The law: nothing is taken from a place that another user of the host could have written. A place is *own* if it belongs to the
user of this process and neither its group (but the user's own one, for state) nor others may write to it. A directory that
everybody may write to is good enough for own files in it only where it is sticky, as the host's temporary directory is.

Limits: access lists beyond the permission bits are not looked at; root can write anywhere.

A token in a file is readable by its owner alone, or the file is refused.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from zset_join.core.errors import OptionError, StateError

__all__ = ["is_own", "kept_token", "refuse_foreign", "why_foreign"]


def why_foreign(status: os.stat_result, *, own_group: bool = False) -> str | None:
    """Return why something is not to be trusted; None where it is."""
    user = os.geteuid()
    if status.st_uid != user:
        return f"it belongs to user {status.st_uid}, not to user {user} who runs this process"
    if status.st_mode & stat.S_IWOTH:
        return "every user of the host may write to it"
    if status.st_mode & stat.S_IWGRP and not (own_group and status.st_gid == os.getegid()):
        return f"its group {status.st_gid} may write to it"
    return None


def is_own(path: str | Path) -> bool:
    """Return whether a path is present and nobody else may write to it; a link is not followed."""
    try:
        return why_foreign(os.lstat(path)) is None
    except OSError:
        return False


def refuse_foreign(path: str, status: os.stat_result) -> None:
    """Refuse a file that is to be mapped, where it or its directory is not the user's own."""
    reason, place = why_foreign(status, own_group=True), path
    if reason is None:
        above = Path(path).parent.stat()
        place = str(Path(path).parent)
        is_shared = above.st_mode & stat.S_ISVTX and above.st_uid in (0, os.geteuid())
        reason = None if is_shared else why_foreign(above, own_group=True)
    if reason is not None:
        raise StateError(
            f"{place} is not trusted with local state: {reason}. Give a directory of your own (localStateDir, directory=), or "
            "take the right to write from others; local state is a cache and is rebuilt from the checkpoint.",
            code="FOREIGN_FILE",
            path=place,
        )


_SHORTEST = 16


def kept_token(path: str | Path) -> str:
    """Return the token in a file; where there is none, it is made, with mode 600."""
    try:
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            mode, token = stat.S_IMODE(os.stat(path).st_mode), Path(path).read_text(encoding="utf-8").strip()  # noqa: PTH116
        else:
            mode, token = 0o600, secrets.token_urlsafe(32)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(token + "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise _refused(path, str(error)) from error
    if mode & 0o077:
        raise _refused(path, f"it has mode {mode:o}, so that others may use it: chmod 600 {path}")
    if len(token) < _SHORTEST:
        raise _refused(path, f"it has {len(token)} characters; expected {_SHORTEST} or more")
    return token


def _refused(path: str | Path, why: str) -> OptionError:
    return OptionError(f"the token file {path}: {why}.", code="OPTION_VALUE", name="metrics-token-file", value=str(path))
