"""What this process has open below a directory; files of other tests, which garbage may close at any time, do not count."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["open_below"]


def open_below(directory: Path) -> list[str]:
    """Return the files below a directory that this process has open, once per descriptor, removed ones too."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208 - a Path for each would be made for nothing
        try:
            path = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - not a path that leads anywhere
        except FileNotFoundError:
            continue  # closed since it was listed, as the one that listed them is
        if path.startswith(f"{directory}{os.sep}"):
            found.append(path.removesuffix(" (deleted)"))
    return sorted(found)
