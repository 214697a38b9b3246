"""A place without a checkpoint names those that are below it."""

from __future__ import annotations

from pathlib import Path

from zset_join.checkpoint.reading import no_checkpoint


def test_the_checkpoints_below_are_named_and_no_others(tmp_path: Path) -> None:
    for name in ("a", "jobs/b", "jobs/c/d", "one/two/three/too-deep"):
        (tmp_path / name / "zset").mkdir(parents=True)
        (tmp_path / name / "zset" / "format.json").touch()
    (tmp_path / "empty" / "zset").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "jobs")

    error = no_checkpoint(str(tmp_path))

    assert error.facts["below"] == [str(tmp_path / name) for name in ("a", "jobs/b", "jobs/c/d")]
    assert f"{tmp_path / 'a'}, " in str(error)


def test_where_nothing_is_below_it_the_cure_is_named(tmp_path: Path) -> None:
    for place in (str(tmp_path), str(tmp_path / "nowhere"), "s3://bucket/nowhere"):
        assert "the directory of a pipeline" in str(no_checkpoint(place))
