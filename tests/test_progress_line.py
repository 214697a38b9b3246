"""The line that shows that long work continues."""

from __future__ import annotations

import io
import sys

import pytest

from zset_join.core import progress_line as module
from zset_join.core.progress_line import progress_line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AFTER_SECONDS", 0.01)
    monkeypatch.setattr(module, "_EVERY_SECONDS", 0.01)


def _worked() -> None:
    with progress_line("verifying orders") as line, progress_line("reading logs") as inner:
        assert inner is line
        line.now("reading logs", done=1_234, of=5_000)
        module.time.sleep(0.2)
        raise KeyboardInterrupt


def test_a_terminal_shows_the_newest_step_and_nothing_is_left_of_it(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(KeyboardInterrupt):
        _worked()
    shown = terminal.getvalue().split("\r\x1b[2K")
    assert shown[1] == "verifying orders: reading logs 1,234 of 5,000, 0 s"
    assert shown[-1] == ""
    with progress_line("another"):
        pass
    assert terminal.getvalue().split("\r\x1b[2K")[-1] == ""


def test_short_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_line("verifying orders"):
        pass
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_no_terminal_or_switched_off_is_quiet(quick: None, monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO]) -> None:
    written = stream()
    monkeypatch.setattr(sys, "stderr", written)
    if stream is Terminal:
        monkeypatch.setenv("ZSET_JOIN_PROGRESS", "off")
    with pytest.raises(KeyboardInterrupt):
        _worked()
    assert written.getvalue() == ""


def test_a_notebook_has_one_output_that_is_updated(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, found: dict[str, str], *, raw: bool) -> None:
            assert raw
            shown.append(found["text/plain"])

    class ZMQInteractiveShell:
        pass

    def display(found: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        shown.append(found["text/plain"])
        return Handle()

    python = type(sys)("IPython")
    python.get_ipython = ZMQInteractiveShell  # type: ignore[attr-defined]
    python.display = type(sys)("IPython.display")  # type: ignore[attr-defined]
    python.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", python)
    with pytest.raises(KeyboardInterrupt):
        _worked()
    assert shown[0].startswith("verifying orders: reading logs 1,234 of 5,000")
    assert shown[-1] == ""
