"""Files of one step that wait for the disk at the same time instead of one after the other.

    with synced_together():
        files.create("log/...")             closed, and not yet on the disk
        folder.put_new("commits/...")       waits for all of them and for its own bytes at once; then gives the name

The law: what this thread closes durably inside is on the disk, with its name, before `put_new` gives a name and when the
context ends. Files that still wait when it ends with an error are removed.

While operations are observed, waits come one after the other: what a power cut may leave between them is all that it may leave
while they run at once.

Where a wait took less than `_WORTH_SECONDS`, as in memory, the next ones come one after the other too: threads would cost more.

Cost: by the clock, as much as the longest wait; of many files, one for every `_MOST_WAITING`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from zset_join.storage.operations import is_observed

__all__ = ["later", "sync_with_others", "synced_together"]

_THREADS = 8
_MOST_WAITING = 32  # each holds a descriptor
_WORTH_SECONDS = 0.0005


@dataclass(frozen=True)
class _Waiting:
    """A closed file that is not yet on the disk."""

    syncs: Sequence[Callable[[], object]]
    close: Callable[[], object]
    discard: Callable[[], object]


class _Group(threading.local):
    """The files of this thread that wait; None outside of `synced_together`."""

    waiting: list[_Waiting] | None = None


_group = _Group()
_pool: ThreadPoolExecutor | None = None
_is_worth_it = True


@contextmanager
def synced_together() -> Iterator[None]:
    """Let the durable files that this thread closes inside wait for the disk at the same time."""
    before, waiting = _group.waiting, list[_Waiting]()
    _group.waiting = waiting
    try:
        yield
        sync_with_others()
    finally:
        _group.waiting = before
        _discard(waiting)


def later(syncs: Sequence[Callable[[], object]], close: Callable[[], object], discard: Callable[[], object]) -> bool:
    """Put off the waits of a file to those of its group; return whether there is one."""
    if _group.waiting is None:
        return False
    _group.waiting.append(_Waiting(syncs, close, discard))
    if len(_group.waiting) == _MOST_WAITING:
        sync_with_others()
    return True


def sync_with_others(*syncs: Callable[[], object]) -> None:
    """Wait for the disk, together with the files of the group that wait."""
    waiting = [] if _group.waiting is None else _group.waiting
    _all_at_once([*(sync for one in waiting for sync in one.syncs), *syncs])
    while waiting:
        waiting.pop().close()


def _all_at_once(syncs: Sequence[Callable[[], object]]) -> None:
    global _is_worth_it
    is_threaded = _is_worth_it and len(syncs) > 1 and not is_observed()
    begun, own = list[Future[object]](), list(syncs[:1] if is_threaded else syncs)
    try:
        for sync in syncs[1:] if is_threaded else ():
            try:
                begun.append(_threads().submit(sync))
            except RuntimeError:  # no thread begins at the end of the interpreter
                own.append(sync)
        for number, sync in enumerate(own):
            started = time.perf_counter()
            sync()
            if not number:
                _is_worth_it = time.perf_counter() - started > _WORTH_SECONDS
    finally:
        wait(begun)
    for one in begun:
        one.result()


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(_THREADS, "zset-join-sync")
    return _pool


def _forget_threads() -> None:
    """Begin without threads in a process that was forked: it has none of them."""
    global _pool
    _pool = None


def _discard(waiting: list[_Waiting]) -> None:
    with suppress(OSError), ExitStack() as discarded:  # the error before counts; no record names these files
        for one in waiting:
            discarded.callback(one.discard)


os.register_at_fork(after_in_child=_forget_threads)
