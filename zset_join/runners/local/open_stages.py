"""The stages of a directory that are open: those of the epoch that is answered, or those that are read between two epochs.

The law: states are closed by who opened them, or released by who comes next where an interrupt kept that one from it; and who
reads the stages of an open epoch in another thread has read them before they are closed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from zset_join.checkpoint.bucket import BucketState
from zset_join.runners.local.durable_epoch import DurableEpoch

__all__ = ["OpenStages"]

Opening = Callable[[ExitStack, list[BucketState]], DurableEpoch]
"""Returns an epoch whose states are closed with the stack, and noted in the list before they are opened."""


class OpenStages:
    def __init__(self) -> None:
        self._entered: list[BucketState] = []
        self._epoch: DurableEpoch | None = None
        self._reading = threading.RLock()

    @contextmanager
    def epoch(self, opening: Opening) -> Iterator[DurableEpoch]:
        """Open an epoch; its stages can be read until the end."""
        self.release_interrupted()
        stack, epoch = ExitStack(), None
        try:
            epoch = self._epoch = opening(stack, self._entered)
            yield epoch
        except BaseException:
            with self._reading:
                self._forget(epoch)
                stack.__exit__(*sys.exc_info())
            raise
        with self._reading:
            if not self._forget(epoch):  # its states were released since
                stack.pop_all()
                return
            stack.close()
            self._entered.clear()

    @contextmanager
    def reading(self, number: int, opening: Opening) -> Iterator[DurableEpoch]:
        """Open the stages in the state before an epoch, to read them; where it is open, return it."""
        with self._reading, ExitStack() as stack:
            epoch = self._epoch
            if epoch is not None and epoch.tick.epoch == number:
                yield epoch
                return
            self.release_interrupted()
            yield opening(stack, self._entered)
            stack.close()
            self._entered.clear()

    def release_interrupted(self) -> None:
        """Release the states of an epoch that was interrupted, or is not closed: its own end then finds nothing to close."""
        self._epoch = None
        while self._entered:
            self._entered[-1].release()
            self._entered.pop()

    def _forget(self, epoch: DurableEpoch | None) -> bool:
        """Return whether an epoch is the one that is open, and let none be."""
        if self._epoch is not epoch:
            return False
        self._epoch = None
        return True
