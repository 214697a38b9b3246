"""Bring an epoch when something is due though no row arrives.

Spark runs an epoch when a source has something new. A query with stages that wait for a processing time therefore has a source
without rows from its first start on (`baseline.with_start`): an empty file put there brings an epoch.

The law: after every epoch at most one file is put, named by that epoch, and only when a time has come that a stage waits for.
So a query of which nothing is due has no epochs of its own accord.

Cost: a thread on the driver that sleeps until the next time; an empty file per epoch it brings, of which the newest hundred
    stay.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from zset_join.storage.folder import Folder

__all__ = ["Heartbeat"]

_KEPT = 100
_PREFIX = "start/beat-"


class Heartbeat:
    def __init__(self, folder: Folder, next_due: Callable[[], tuple[int, int] | None]) -> None:
        self._folder = folder
        self._next_due = next_due
        self._is_stopped = threading.Event()
        self._wakes = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zset_join-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Note that an epoch was committed: other times may be due."""
        self._wakes.set()

    def stop(self) -> None:
        self._is_stopped.set()
        self._wakes.set()
        if self._thread.is_alive():
            self._thread.join()

    def beat_if_due(self, now_us: int) -> float | None:
        """Put a file when a time has come; else return the seconds until then, None where only another epoch can bring one."""
        next_due = self._next_due()
        if next_due is None:
            return None
        epoch, due_us = next_due
        if due_us > now_us:
            return (due_us - now_us) / 1e6
        name = f"{_PREFIX}{epoch:020d}"
        if self._folder.size(name) is None:
            self._folder.put(name, b"")
            self._folder_cleared(epoch)
        return None

    def _folder_cleared(self, epoch: int) -> None:
        """Remove files that no epoch which may come again reads."""
        oldest = f"{_PREFIX}{max(0, epoch - _KEPT):020d}"
        for name in [one for one in self._folder.names("start") if one.startswith(_PREFIX) and one < oldest]:
            self._folder.remove(name)

    def _run(self) -> None:
        while True:
            pause = self.beat_if_due(time.time_ns() // 1000)
            self._wakes.wait(pause)
            if self._is_stopped.is_set():
                return
            self._wakes.clear()
