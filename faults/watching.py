"""Observers: what file operations a piece of work does, and where they happen.

>>> describe_path("/data/q", "/data/q/checkpoint/zset/log/join-1/00000000000000000007-0123456789abcdef0123456789abcdef.arrows")
'checkpoint/zset/log/join-#/#.arrows'
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zset_join.storage.operations import Operation

__all__ = ["Act", "OperationList", "describe", "describe_path", "is_below", "work"]

Act = Callable[[], Any]

work: list[str] = []
"""The named work that the process is in, the outermost first, as descriptions end with it; see `faults.cold_work`."""

_NUMBERS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}|\d+")
_REPEATED = re.compile(r"#(?:[-.]#)+")


def describe_path(root: str | Path, path: str) -> str:
    """Return a path without the numbers and names that differ from run to run."""
    relative = path.removeprefix(f"{root}/")
    return _REPEATED.sub("#", _NUMBERS.sub("#", relative))


def is_below(root: str | Path, operation: Operation) -> bool:
    """Return whether an operation is about a directory or something in it; what is read of the host itself is not."""
    return operation.path == str(root) or operation.path.startswith(f"{root}/")


def describe(root: str | Path, operation: Operation) -> str:
    """Return what an operation does, to what kind of file, and the work it is part of, where that has a name."""
    reported = f"{operation.kind} {describe_path(root, operation.path)}"
    if operation.target is not None:
        reported = f"{reported} -> {describe_path(root, operation.target)}"
    return reported + (work[0] if work else "")


@dataclass
class OperationList:
    """Observe a piece of work and list its operations below a directory.

    Args:
        root: the directory; paths are shown relative to it.
    """

    root: Path
    described: list[str] = field(default_factory=list)

    def __call__(self, operation: Operation, act: Act) -> Any:
        """Note the operation and do it."""
        if is_below(self.root, operation):
            self.described.append(describe(self.root, operation))
        return act()
