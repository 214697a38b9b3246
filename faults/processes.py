"""Work in a child process that may die at any moment.

A child is forked from a parent that has imported and compiled everything, so it starts within milliseconds. What it sends is
written to a pipe at once, line by line, and survives its death; what is in its memory does not.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["EXIT_CODE", "Outcome", "Send", "exit_at", "forked"]

EXIT_CODE = 9
"""Of a process that `exit_at` ends."""

Send = Callable[[Any], None]
"""Takes something JSON-ready; the parent finds it in `Outcome.messages`."""

_FAILED = 70
_SOONEST_SECONDS = 1e-6  # 0 is never


@dataclass
class Outcome:
    """How a child ended.

    Args:
        signal: the signal it died of, or 0.
        error: the traceback of an exception, or "".
        messages: what it sent before.
        lived_seconds: how long the work took; None if it did not come to its end.
    """

    signal: int = 0
    error: str = ""
    messages: list[Any] = field(default_factory=list)
    lived_seconds: float | None = None


def forked(work: Callable[[Send], None], *, kill_after_seconds: float | None = None) -> Outcome:
    """Run work in a child and wait for its end.

    Args:
        work: is given the way to send; nothing it changes in memory is seen here.
        kill_after_seconds: end the child after so long, whatever it is doing; None for never. The kernel does it, by SIGALRM
            with no handler: it starts to count with the work, and does not wait for the parent to be scheduled.
    """
    reading, writing = os.pipe()
    child = _fork()
    if child == 0:
        os.close(reading)
        _work_and_exit(work, writing, kill_after_seconds)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        lines = pipe.read().splitlines(keepends=True)
    _, status = os.waitpid(child, 0)
    messages = [json.loads(line) for line in lines if line.endswith(b"\n")]
    errors = [message["error"] for message in messages if isinstance(message, dict) and "error" in message]
    lived_seconds = messages.pop()["lived_seconds"] if _is_end(messages) else None
    return Outcome(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, "\n".join(errors), messages, lived_seconds)


def _is_end(messages: list[Any]) -> bool:
    return bool(messages) and isinstance(messages[-1], dict) and "lived_seconds" in messages[-1]


def _fork() -> int:
    with warnings.catch_warnings():
        # Python 3.12+ warns when other threads run. Those here are pools that hold no lock of ours and start over in the child.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _work_and_exit(work: Callable[[Send], None], writing: int, kill_after_seconds: float | None) -> None:
    """Run in the child; never return."""
    gc.disable()  # a child is short; looking for garbage would copy the parent's pages

    def send(message: Any) -> None:
        os.write(writing, json.dumps(message).encode() + b"\n")

    code = _FAILED
    begun = time.monotonic()
    try:
        if kill_after_seconds is not None:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, max(kill_after_seconds, _SOONEST_SECONDS))
        work(send)
        signal.setitimer(signal.ITIMER_REAL, 0)
        send({"lived_seconds": time.monotonic() - begun})
        code = 0
    except BaseException:  # noqa: BLE001 - the parent must hear of everything, and nothing may run on behind the fork
        send({"error": traceback.format_exc()})
    finally:
        sys.stdout.flush()
        os._exit(code)


def write_the_same(place: Path, delta: Any) -> None:
    """Write the answer of an epoch, whole or not at all.

    Raises:
        AssertionError: the epoch was written before, with another answer.
    """
    text = json.dumps(sorted(delta.to_pylist(), key=repr))
    if place.exists() and place.read_text(encoding="utf-8") != text:
        raise AssertionError(f"epoch {place.name} was {place.read_text(encoding='utf-8')}, and is {text}")
    place.parent.mkdir(exist_ok=True)
    place.with_suffix(".new").write_text(text, encoding="utf-8")
    place.with_suffix(".new").replace(place)


def exit_at(number: int) -> Callable[[], None]:
    """Return a function that ends the process, without any handler, at its call of this number, from 0."""
    left = iter(range(number))

    def seam() -> None:
        if next(left, None) is None:
            os._exit(EXIT_CODE)

    return seam
