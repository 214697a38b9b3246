"""Reaction to a failing external system: a bounded back-off, then a circuit breaker.

The law: a call that meets a transient error is made at most `error_attempts` times, each later one after a wait that doubles
from `error_delay` to `error_max_delay`, with jitter (half of it is random), or after the delay that the external system
requested, which `error_max_delay` bounds too. Then the epoch fails. While the circuit is open no call is made at all;
afterwards one is, without retries, and only its success closes the circuit. So a runner that tries an epoch again and again
does not hammer a source that is down.
"""

from __future__ import annotations

from random import Random

from zset_join.core.errors import LookupFailedError
from zset_join.core.shown_values import counted
from zset_join.lookup.clock import Clock
from zset_join.lookup.options import LookupSettings
from zset_join.lookup.source import TransientLookupError

__all__ = ["BackOff", "Circuit"]

_MOST_DOUBLINGS = 6


class BackOff:
    """How long to wait before a call is repeated."""

    def __init__(self, settings: LookupSettings, random: Random) -> None:
        self._settings = settings
        self._random = random

    def wait_seconds(self, attempt: int, error: TransientLookupError) -> float:
        """Return the wait after so many failed attempts, the first being 1."""
        if error.retry_after_seconds is not None:
            return max(0.0, min(error.retry_after_seconds, self._settings.error_max_delay_us / 1_000_000))
        longest: int = min(self._settings.error_max_delay_us, self._settings.error_delay_us << min(attempt - 1, 40))
        return longest * (0.5 + self._random.random() / 2) / 1_000_000


class Circuit:
    """Remember that a source is down."""

    def __init__(self, name: str, open_us: int, clock: Clock) -> None:
        self._name = name
        self._open_us = open_us
        self._clock = clock
        self._failures = 0
        self._open_until_us = 0

    @property
    def is_half_open(self) -> bool:
        """Return whether the next call decides."""
        return self._failures > 0

    def check(self) -> None:
        """Raise while it is open."""
        left_us = self._open_until_us - self._clock.now_us()
        if self._failures and left_us > 0:
            raise LookupFailedError(
                f'the lookup source "{self._name}" failed {counted(self._failures, "time")} and is not called for another '
                f"{left_us / 1_000_000:.1f} s; it was not called and nothing was applied. Restart it, or shorten circuit_open.",
                code="LOOKUP_CIRCUIT_OPEN",
                source=self._name,
                failures=self._failures,
                wait_seconds=left_us / 1_000_000,
            )

    def failed(self) -> None:
        """Open it, each time for twice as long."""
        self._failures += 1
        self._open_until_us = self._clock.now_us() + self._open_us * 2 ** min(self._failures - 1, _MOST_DOUBLINGS)

    def succeeded(self) -> None:
        """Close it."""
        self._failures = 0
