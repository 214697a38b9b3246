"""A token in a file: of scrapers, when the console is started again, and the key of a user.

The law: the file is readable by its owner alone, or it is refused.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from zset_join.core.errors import OptionError

__all__ = ["kept_token"]

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
