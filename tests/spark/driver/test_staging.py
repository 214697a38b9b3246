"""Batches that are written down for a client: they wait for it, and for nobody else."""

from __future__ import annotations

import threading
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from zset_join.core.errors import StateError
from zset_join.runners.spark.driver import staging
from zset_join.runners.spark.driver.staging import Staging, note_reader, staged_batches


def test_a_batch_waits_while_its_reader_is_there_and_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = threading.Semaphore(0)
    goes_on = threading.Semaphore(0)

    def look(seconds: float) -> None:
        assert seconds > 0
        looks.release()
        assert goes_on.acquire(timeout=30)

    monkeypatch.setattr(staging.time, "sleep", look)
    (tmp_path / "zset" / "batches").mkdir(parents=True)
    for number in (4, 5):
        (tmp_path / "zset" / "batches" / f"{number}.json").write_text(
            f'{{"number": {number}, "read": null, "query": null, "run": "r", "columns": []}}'
        )
    staged_batches(str(tmp_path), 3, -1, "mine")
    ended: list[StateError] = []
    batch = MagicMock()

    def write() -> None:
        with pytest.raises(StateError) as caught:
            Staging(str(tmp_path), "r", {}, "mine", 2)(batch, 6)
        ended.append(caught.value)

    writing = threading.Thread(target=write)
    writing.start()
    assert looks.acquire(timeout=30)
    goes_on.release()
    assert looks.acquire(timeout=30)
    assert not ended
    note_reader(str(tmp_path), "")
    goes_on.release()
    writing.join(30)

    assert [one.code for one in ended] == ["OWNER_LOST"]
    assert batch.mock_calls == []


def test_a_batch_that_comes_again_has_the_room_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "F", MagicMock())
    (tmp_path / "zset" / "batches").mkdir(parents=True)
    for number in (4, 5):
        (tmp_path / "zset" / "batches" / f"{number}.json").write_text("{}")
    batch = MagicMock()

    Staging(str(tmp_path), "r", {}, "mine", 2)(batch, 5)

    assert '"run": "r"' in (tmp_path / "zset" / "batches" / "5.json").read_text()
    assert batch.mock_calls
