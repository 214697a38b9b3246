"""Which queries read the source without rows that brings epochs without input: Spark counts the sources of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from zset_join.runners.spark.rows import baseline
from zset_join.runners.spark.rows.baseline import make_start, needs_start


@pytest.mark.parametrize(
    ("is_timed", "is_begun", "started_in", "expected"),
    [
        (True, False, None, True),
        (False, False, None, False),
        (True, True, None, False),
        (False, True, "cp", True),
    ],
)
def test_a_first_epoch_or_what_spark_has_noted_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_timed: bool, is_begun: bool, started_in: str | None, expected: bool
) -> None:
    location = str(tmp_path / "cp")
    monkeypatch.setattr(baseline, "has_commits", lambda _: is_begun)
    if started_in is not None:
        make_start(str(tmp_path / started_in))

    assert needs_start(location, is_timed=is_timed) == expected
