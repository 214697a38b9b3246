"""Frames of Python's stack for what recurses over a text or a plan: as many, however deep the caller is.

What recurses is bounded by limits of its own (brackets, nested queries, levels of a plan), so what was accepted once is
accepted everywhere. The limit of Python is the process's: it is raised while any thread is inside, and then restored.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["own_frames"]

_FRAMES = 10_000
_lock = threading.Lock()
_limits_before: list[int] = []


@contextmanager
def own_frames() -> Iterator[None]:
    """Run with 10,000 frames from here on."""
    depth, frame = 0, sys._getframe()
    while frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    with _lock:
        _limits_before.append(sys.getrecursionlimit())
        sys.setrecursionlimit(max(_limits_before[-1], depth + _FRAMES))
    try:
        yield
    finally:
        with _lock:
            # Threads leave in any order: the first entry is the limit of before all of them.
            last = _limits_before.pop()
            if not _limits_before:
                sys.setrecursionlimit(last)
