"""The clock of the fetch step, which a test replaces to let hours pass at once.

`SystemClock` is the real one. `zset_join.testing.FakeClock` is one whose sleeps return at once and whose time continues by what
was slept, for plain calls and for asyncio alike.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """The clock of the fetch step."""

    def now_us(self) -> int:
        """Return microseconds since 1970-01-01 UTC."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return when so many seconds have passed."""
        ...

    def event_loop(self) -> asyncio.AbstractEventLoop:
        """Return a new event loop whose sleeps follow this clock."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now_us(self) -> int:
        """Return microseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1000

    def sleep(self, seconds: float) -> None:
        """Return when so many seconds have passed."""
        time.sleep(seconds)

    def event_loop(self) -> asyncio.AbstractEventLoop:
        """Return a new event loop."""
        return asyncio.new_event_loop()
