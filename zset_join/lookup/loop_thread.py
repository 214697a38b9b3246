"""An event loop on a thread of its own, so that async lookups work from any caller, also inside another loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from zset_join.lookup.clock import Clock

__all__ = ["LoopThread"]

_Result = TypeVar("_Result")


class LoopThread:
    """Run coroutines, one caller at a time; connections that they open stay with this loop.

    Args:
        clock: whose event loop it is.
    """

    def __init__(self, clock: Clock) -> None:
        self._loop = clock.event_loop()
        self._thread = threading.Thread(target=self._run, name="zset-join-lookups", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Return what a coroutine returns; where the caller is interrupted, it is cancelled."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop; closed already is no error."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
