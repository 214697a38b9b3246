"""One line that shows that long work continues: in a terminal on standard error, in a notebook below the cell, else nowhere.

    with progress_line("verifying orders") as line:
        line.now("running the batch query")
        ...
        line.now("reading logs", done=3, of=12)

The law: nothing is written where standard error is no terminal and no notebook runs, nor for work shorter than a second; when
the work ends, however it ends, the line is removed. Work inside other work shows its steps on the line of the outer one.

`ZSET_JOIN_PROGRESS=off` keeps it quiet. Cost: where it is shown, a thread that writes four times a second; else nothing.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

__all__ = ["ProgressLine", "progress_line"]

_AFTER_SECONDS, _EVERY_SECONDS = 1.0, 0.25
_LONGEST = 100
_active = threading.local()


class _Screen(Protocol):
    def draw(self, text: str) -> None:
        """Show a text in place of the last one."""

    def clear(self) -> None:
        """Remove it."""


class ProgressLine:
    """Progress of running work; made by `progress_line`."""

    def __init__(self, title: str, screen: _Screen | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._title, self._screen, self._clock = title, screen, clock
        self._begun = clock()
        self._step = ""
        self._is_shown = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if screen is not None:
            self._thread = threading.Thread(target=self._redraw, name="zset_join progress", daemon=True)
            self._thread.start()

    def now(self, step: str, *, done: int | None = None, of: int | None = None) -> None:
        """Show which step the work is at."""
        counts = "" if done is None else f" {done:,}" + ("" if of is None else f" of {of:,}")
        self._step = f"{step}{counts}"

    @property
    def text(self) -> str:
        """Return the line as it is shown."""
        text = f"{self._title}: {self._step}" if self._step else self._title
        text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
        return f"{text}, {self._clock() - self._begun:.0f} s"

    def end(self) -> None:
        """Remove the line."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._is_shown and self._screen is not None:
            self._screen.clear()

    def _redraw(self) -> None:
        assert self._screen is not None  # noqa: S101 - the thread runs only with one
        waited = self._ended.wait(_AFTER_SECONDS)
        while not waited:
            self._is_shown = True
            self._screen.draw(self.text)
            waited = self._ended.wait(_EVERY_SECONDS)


@contextmanager
def progress_line(title: str) -> Iterator[ProgressLine]:
    """Show a line while work continues."""
    outer: ProgressLine | None = getattr(_active, "line", None)
    if outer is not None:
        outer.now(title)
        yield outer
        return
    line = _active.line = ProgressLine(title, _screen())
    try:
        yield line
    finally:
        _active.line = None
        line.end()


def _screen() -> _Screen | None:
    """Return where a line can be shown; None for nowhere."""
    if os.environ.get("ZSET_JOIN_PROGRESS", "").lower() in ("off", "0", "no", "false"):
        return None
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None and type(shell).__name__ == "ZMQInteractiveShell":
        return _Notebook()
    return _Terminal(sys.stderr) if sys.stderr is not None and sys.stderr.isatty() else None


class _Terminal:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def draw(self, text: str) -> None:
        self._write(f"\r\x1b[2K{text}")

    def clear(self) -> None:
        self._write("\r\x1b[2K")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal has gone; the work has not
            return


class _Notebook:
    def __init__(self) -> None:
        self._handle: Any = None

    def draw(self, text: str) -> None:
        shown = {"text/plain": text}
        if self._handle is None:
            display: Any = sys.modules["IPython"].display.display
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)

    def clear(self) -> None:
        self._handle.update({"text/plain": ""}, raw=True)
