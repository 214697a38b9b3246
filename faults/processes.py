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
from typing import Any

__all__ = ["Outcome", "Send", "forked"]

Send = Callable[[Any], None]
"""Takes something JSON-ready; the parent finds it in `Outcome.messages`."""

_FAILED = 70


@dataclass
class Outcome:
    """How a child ended.

    Args:
        signal: the signal it died of, or 0.
        error: the traceback of an exception, or "".
        messages: what it sent before.
    """

    signal: int = 0
    error: str = ""
    messages: list[Any] = field(default_factory=list)


def forked(work: Callable[[Send], None], *, kill_after_seconds: float | None = None) -> Outcome:
    """Run work in a child and wait for its end.

    Args:
        work: is given the way to send; nothing it changes in memory is seen here.
        kill_after_seconds: send SIGKILL after so long, whatever the child is doing; None for never.
    """
    reading, writing = os.pipe()
    child = _fork()
    if child == 0:
        os.close(reading)
        _work_and_exit(work, writing)
    os.close(writing)
    if kill_after_seconds is not None:
        time.sleep(kill_after_seconds)
        os.kill(child, signal.SIGKILL)  # a child that has ended waits to be asked for its status, and cannot be killed any more
    with os.fdopen(reading, "rb") as pipe:
        lines = pipe.read().splitlines(keepends=True)
    _, status = os.waitpid(child, 0)
    messages = [json.loads(line) for line in lines if line.endswith(b"\n")]
    errors = [message["error"] for message in messages if isinstance(message, dict) and "error" in message]
    return Outcome(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, "\n".join(errors), messages)


def _fork() -> int:
    with warnings.catch_warnings():
        # Python 3.12+ warns when other threads run. Those here are pools that hold no lock of ours and start anew in the child.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _work_and_exit(work: Callable[[Send], None], writing: int) -> None:
    """Run in the child; never return."""
    gc.disable()  # a child is short; looking for garbage would copy the parent's pages

    def send(message: Any) -> None:
        os.write(writing, json.dumps(message).encode() + b"\n")

    code = _FAILED
    try:
        work(send)
        code = 0
    except BaseException:  # noqa: BLE001 - the parent must hear of everything, and nothing may run on behind the fork
        send({"error": traceback.format_exc()})
    finally:
        sys.stdout.flush()
        os._exit(code)
