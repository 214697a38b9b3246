"""The one place every file operation goes through, so that faults can be injected in one place.

The law: whatever the project does to a file is one `Operation`, announced before it happens. An observer is given the
operation and the act; it performs the act (or not), may raise before or after it, may write half of the bytes itself, may
end the process. Without an observer an operation costs one test more than the act alone.

Not covered: what other libraries do to files on their own (DuckDB as an output, delta-rs), and stores to mapped memory. Of a
DuckDB file with cold rows each statement is one operation, whatever files it touches.

>>> seen = []
>>> def note(operation, act):
...     seen.append(operation.kind)
...     return act()
>>> with observe(note):
...     perform("size", "/data/cp/format.json", lambda: 17)
17
>>> seen
['size']
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["Observer", "Operation", "is_observed", "observe", "perform"]

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Operation:
    """A file operation that is about to run."""

    kind: str
    path: str
    target: str | None = None
    data: memoryview | None = None


Observer = Callable[[Operation, Callable[[], Any]], Any]
"""Is given an operation and the act; returns the act's result, or raises."""

_observer: Observer | None = None


@contextmanager
def observe(observer: Observer) -> Iterator[None]:
    """Put an observer between the project and its files; process-wide, until the context ends."""
    global _observer
    before = _observer
    _observer = observer
    try:
        yield
    finally:
        _observer = before


def is_observed() -> bool:
    """Return whether an observer is given the operations."""
    return _observer is not None


def perform(
    kind: str, path: str, act: Callable[[], _Result], *, target: str | None = None, data: memoryview | None = None
) -> _Result:
    """Do one file operation, by way of the observer if there is one."""
    observer = _observer
    if observer is None:
        return act()
    result: _Result = observer(Operation(kind, path, target, data), act)
    return result
