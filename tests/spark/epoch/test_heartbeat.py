"""An epoch arrives when a time has come that a stage waits for, and only then."""

from __future__ import annotations

from pathlib import Path

from zset_join.checkpoint.reading import checkpoint_folder
from zset_join.runners.spark.epoch.heartbeat import Heartbeat


def beats(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "zset" / "start").glob("beat-*"))


def test_a_file_is_put_when_the_time_has_come_and_once_per_epoch(tmp_path: Path) -> None:
    due: list[tuple[int, int] | None] = [(7, 2_000_000)]
    heartbeat = Heartbeat(checkpoint_folder(str(tmp_path)), lambda: due[0])

    assert heartbeat.beat_if_due(500_000) == 1.5
    assert beats(tmp_path) == []
    assert heartbeat.beat_if_due(2_000_000) is None
    assert heartbeat.beat_if_due(2_000_001) is None
    assert beats(tmp_path) == [f"beat-{7:020d}"]


def test_nothing_is_put_when_nothing_is_due(tmp_path: Path) -> None:
    heartbeat = Heartbeat(checkpoint_folder(str(tmp_path)), lambda: None)

    assert heartbeat.beat_if_due(1) is None
    assert beats(tmp_path) == []


def test_files_that_no_epoch_reads_again_are_removed(tmp_path: Path) -> None:
    epoch = [0]
    heartbeat = Heartbeat(checkpoint_folder(str(tmp_path)), lambda: (epoch[0], 0))
    heartbeat.beat_if_due(1)
    epoch[0] = 1_000

    heartbeat.beat_if_due(1)

    assert beats(tmp_path) == [f"beat-{1_000:020d}"]


def test_the_thread_beats_by_itself_and_ends(tmp_path: Path) -> None:
    heartbeat = Heartbeat(checkpoint_folder(str(tmp_path)), lambda: (3, 0))

    heartbeat.start()
    heartbeat.stop()

    assert beats(tmp_path) == [f"beat-{3:020d}"]
