"""Whether an answer may still be read: an answer is made while it is read, from the state before its epoch.

The law: an answer that is requested, and read once the epoch was absorbed or the state was restored or closed, is refused with
`ANSWER_OUTDATED`, its first chunk like any other; it is never read from another state than the one it is about.

Remembers a number. Cost: a comparison per chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from zset_join.core.errors import StateError
from zset_join.zset import ZSet

__all__ = ["Answers"]


class Answers:
    """Guard the answers of one operator.

    >>> answers = Answers()
    >>> late = answers.guarded(iter([ZSet.of({"k": [1]})]))
    >>> answers.outdate()
    >>> next(late)
    Traceback (most recent call last):
        ...
    zset_join.core.errors.StateError: [ANSWER_OUTDATED] ...
    """

    def __init__(self) -> None:
        self._moment = 0

    def outdate(self) -> None:
        """Let no answer that was requested before be read on: the state is about to change."""
        self._moment += 1

    def guarded(self, chunks: Iterator[ZSet]) -> Iterator[ZSet]:
        """Return the chunks of an answer that is requested now, as long as it may be read."""
        return self._read(lambda: chunks, self._moment)

    def guarded_when_read(self, begin: Callable[[], Iterator[ZSet]]) -> Iterator[ZSet]:
        """Return the chunks of an answer that is requested now, and begun when its first chunk is read."""
        return self._read(begin, self._moment)

    def _read(self, begin: Callable[[], Iterator[ZSet]], moment: int) -> Iterator[ZSet]:
        self._check(moment)
        chunks = begin()
        for chunk in chunks:
            yield chunk
            self._check(moment)

    def _check(self, moment: int) -> None:
        if self._moment != moment:
            raise StateError(
                "an answer was read after its epoch had been absorbed, or after the state had been restored or closed. An "
                "answer is made while it is read: read it to its end first, for example with list(operator.answer(...)).",
                code="ANSWER_OUTDATED",
            )
