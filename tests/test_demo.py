"""The first minute: a story from the wheel alone, and what is installed."""

from __future__ import annotations

import importlib.util
import subprocess
import urllib.request
from typing import Any

import pytest

from zset_join import demo
from zset_join.cli import main
from zset_join.console import Console
from zset_join.tools import doctor


def without(monkeypatch: pytest.MonkeyPatch, module: str, package: str) -> None:
    found = importlib.util.find_spec

    def find_spec(name: str, *more: Any) -> Any:
        return None if name.partition(".")[0] == package else found(name, *more)

    monkeypatch.setattr(f"{module}.importlib.util.find_spec", find_spec)


def test_the_story_ends_with_an_equal_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0

    reported = capsys.readouterr().out
    assert "    -1  London, 2, 32" in reported
    assert "because orders +1 {'order': 4," in reported
    assert "equal: 1 row expected, 1 answered, after epoch 3" in reported


def test_in_a_terminal_the_story_ends_with_the_address_of_a_page_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []
    pages: list[bytes] = []

    def interrupted(console: Console) -> None:
        with urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(reported[-1].split()[-1]) as answer:
            pages.append(answer.read())
        raise KeyboardInterrupt

    monkeypatch.setattr(Console, "wait", interrupted)

    assert demo.run_demo(reported.append, waits=True)
    assert b"<script" in pages[0]
    assert "until Ctrl-C: open http://127.0.0.1:" in reported[-1]


def test_without_duckdb_the_story_compares_with_arrow_and_notices_a_wrong_view(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "zset_join.demo", "duckdb")
    reported: list[str] = []

    assert demo.run_demo(reported.append)
    assert any("Arrow joins and groups the three tables as they are now: equal." in line for line in reported)

    right = demo._recomputed()
    monkeypatch.setattr(demo, "_recomputed", lambda: [{**right[0], "revenue": 55}])
    assert not demo.run_demo(reported.append)


def test_what_a_use_needs_is_a_note_and_what_every_use_needs_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch, "zset_join.tools.doctor", "pyspark")
    assert main(["doctor"]) == 0
    assert "pip install 'zset-join[spark]'" in capsys.readouterr().out

    without(monkeypatch, "zset_join.tools.doctor", "numba")
    assert main(["doctor"]) == 1
    assert "To be put right first: packages." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("printed", "outcome"),
    [('openjdk version "11.0.2"', "note"), ('openjdk version "21"', "ok"), ("Segmentation fault", "wrong")],
)
def test_java_is_judged_by_the_version_it_prints(monkeypatch: pytest.MonkeyPatch, printed: str, outcome: str) -> None:
    monkeypatch.setenv("JAVA_HOME", "/somewhere")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, "", printed))

    (check,) = doctor._java()
    assert check.outcome == outcome


def test_a_limit_of_the_control_group_counts_as_the_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(doctor, "_GROUPS", str(tmp_path))
    (tmp_path / "memory.max").write_text("536870912\n")

    (check,) = doctor._memory()
    assert check.outcome == "note"
    assert check.found.startswith("0.5 GiB of ")
