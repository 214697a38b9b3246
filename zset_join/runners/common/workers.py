"""Threads that work on the buckets of a stage at the same time.

The law: `run` returns, or raises, once every task has ended; what is raised is that of the first task in their order.

Cost: about 30 microseconds for tasks that run apart. Kernels and Arrow release the interpreter's lock; Python between them
does not run at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TypeVar

from zset_join.core.errors import OptionError

__all__ = ["MOST_THREADS", "Workers", "usable_threads"]

MOST_THREADS = 64

_Result = TypeVar("_Result")


class Workers:
    """Run tasks on some threads, the caller's among them.

    >>> with_two = Workers(2)
    >>> with_two.run([lambda: 1, lambda: 2])
    [1, 2]
    >>> with_two.close()
    """

    def __init__(self, threads: int) -> None:
        if type(threads) is not int or not 1 <= threads <= MOST_THREADS:
            raise OptionError(
                f"threads={threads!r} is not a whole number from 1 to {MOST_THREADS}; give the number of threads that work on "
                f"an epoch, such as {usable_threads()}, or leave it out for 1.",
                code="OPTION_VALUE",
                value=threads,
            )
        self.threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def run(self, tasks: Sequence[Callable[[], _Result]], *, apart: bool = True) -> list[_Result]:
        """Run tasks, none of which waits for another, and return their results in order."""
        if not apart or self.threads == 1 or len(tasks) < 2:
            return [task() for task in tasks]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads - 1, "zset-join")
        given = list[Future[_Result]]()
        with suppress(RuntimeError):  # no thread begins at the end of the interpreter: the caller does the rest
            for task in tasks[1:]:
                given.append(self._pool.submit(task))
        futures = list(given)
        try:
            ended = [_ended(tasks[0])]
            for at in range(len(given) - 1, -1, -1):  # the caller does what no other thread has begun
                if given[at].cancel():
                    futures[at] = _ended(tasks[at + 1])
            futures += [_ended(task) for task in tasks[1 + len(given) :]]
        finally:
            _wait([future for future in given if not future.cancelled()])
        return [future.result() for future in (*ended, *futures)]

    def close(self) -> None:
        """End the threads. Closing twice is allowed, and a later `run` starts others."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()


def _wait(futures: Sequence[Future[_Result]]) -> None:
    """Wait until all have ended; an interrupt, such as Ctrl-C, is raised behind that."""
    interrupt: BaseException | None = None
    while True:
        try:
            wait(futures)
            break
        except BaseException as error:  # noqa: BLE001 - raised below
            interrupt = error
    if interrupt is not None:
        raise interrupt


def usable_threads() -> int:
    """Return how many processors this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _ended(task: Callable[[], _Result]) -> Future[_Result]:
    """Return the result or error of a task; interrupts are raised."""
    future: Future[_Result] = Future()
    try:
        future.set_result(task())
    except Exception as error:  # noqa: BLE001 - `run` raises it once the other tasks have ended
        future.set_exception(error)
    return future
