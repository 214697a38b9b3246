"""A checkpoint and its outputs, copied and brought back together."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from tests.checkpoint.conftest import no_driver_stays  # noqa: F401 - a fixture of every test
from tests.checkpoint.query_by_hand import QueryByHand, left_rows, right_rows
from zset_join.core.errors import OptionError, StateError
from zset_join.core.relation import Relation
from zset_join.sinks.parquet_changelog import ParquetChangelogSink, read_changelog
from zset_join.storage.trusted_files import seal, unseal
from zset_join.tools.savepoint import backup, restore
from zset_join.zset import ZSet

ROWS = ZSet.of({"k": [1, 2]})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Give a directory with the checkpoint `cp` of a stopped query and its changelog `log`, both after epoch 0."""
    query = QueryByHand(str(tmp_path / "cp"), tmp_path / "local")
    query.run(left_rows((1, 1, "a")), right_rows((1, 0.5)))
    query.stop()
    changelog = ParquetChangelogSink(tmp_path / "log")
    changelog.open(Relation(name="answer", schema=ROWS.schema, mode="changelog"), "q")
    changelog.write(0, [ROWS])
    return tmp_path


def test_both_come_back_as_they_were(place: Path) -> None:
    made = backup(place / "cp", place / "saved", outputs=[place / "log"])
    (place / "log" / "epoch=00000000").rename(place / "lost")

    found = restore(place / "saved", replace=True)

    assert (made.epoch, found.epoch, found.checkpoint, found.outputs) == (0, 0, str(place / "cp"), (str(place / "log"),))
    assert read_changelog(place / "log").num_rows == 2
    query = QueryByHand(str(place / "cp"), place / "local")
    assert (query.next_epoch, query.rebuilt) == (1, 0)
    query.stop()
    assert [Path(new).is_dir() for _, new in found.moved] == [True, True]
    assert "moved aside" in str(found)


def test_they_can_be_brought_to_another_place(place: Path) -> None:
    backup(place / "cp", place / "saved", outputs=[place / "log"])

    restore(place / "saved", checkpoint=place / "cp2", outputs=[place / "log2"])

    assert read_changelog(place / "log2").equals(read_changelog(place / "log"))
    with pytest.raises(OptionError, match="1 outputs"):
        restore(place / "saved", checkpoint=place / "cp3", outputs=[])


def test_a_place_that_is_taken_is_left_alone(place: Path) -> None:
    backup(place / "cp", place / "saved", outputs=[place / "log"])

    with pytest.raises(OptionError, match="--replace") as taken:
        restore(place / "saved")
    with pytest.raises(OptionError, match="a directory of its own"):
        backup(place / "cp", place / "saved")

    assert taken.value.code == "PLACE_TAKEN"


def test_a_query_that_runs_is_not_copied_nor_replaced_from_outside(place: Path) -> None:
    backup(place / "cp", place / "saved")
    query = QueryByHand(str(place / "cp"), place / "local")

    with pytest.raises(StateError) as copied:
        backup(place / "cp", place / "again")
    with pytest.raises(StateError) as replaced:
        restore(place / "saved", replace=True)
    held = backup(place / "cp", place / "held", is_held=True)
    query.stop()

    assert (copied.value.code, replaced.value.code) == ("CHECKPOINT_IN_USE", "CHECKPOINT_IN_USE")
    assert held.epoch == 0


def test_a_damaged_or_unfinished_savepoint_moves_nothing(place: Path) -> None:
    backup(place / "cp", place / "saved")
    record = next((place / "saved" / "checkpoint" / "zset" / "commits").iterdir())
    record.write_bytes(record.read_bytes()[:-1] + b"?")

    with pytest.raises(StateError, match="Nothing was restored"):
        restore(place / "saved", replace=True)
    (place / "saved" / "_savepoint.json").unlink()
    with pytest.raises(StateError) as unfinished:
        restore(place / "saved", replace=True)

    assert unfinished.value.code == "NO_SAVEPOINT"
    assert not list(place.glob("cp.before*"))


def test_what_is_not_there_cannot_be_copied(place: Path) -> None:
    with pytest.raises(StateError, match="there is no checkpoint"):
        backup(place / "nowhere", place / "saved")
    with pytest.raises(OptionError, match="does not exist"):
        backup(place / "cp", place / "saved", outputs=[place / "nothing"])


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint/../../saved/evil",
        "checkpoint/zset/../../../evil",
        "checkpoint//etc/evil",
        "checkpoint/",
        "checkpoint",
        "/tmp/evil",
        "../evil",
        "evil",
        "output-0/file/../../evil",
        "output-0/fileevil",
        "output-0/tree/../evil",
        "output-0/evil",
        "output-1/tree/evil",
        "output-0x/tree/evil",
        "checkpoint/./evil",
        "checkpoint/zset/format.json",
    ],
)
def test_a_savepoint_with_names_that_no_backup_gives_is_refused_before_anything_is_moved(place: Path, name: str) -> None:
    backup(place / "cp", place / "saved", outputs=[place / "log"])
    header = place / "saved" / "_savepoint.json"
    body = unseal(header.read_bytes(), version=1, name=header.name)
    body["files"].append({"name": name, "bytes": 4, "crc32": zlib.crc32(b"evil")})
    header.write_bytes(seal(body, version=1, name=header.name))
    before = sorted(place.rglob("*"))

    with pytest.raises(StateError, match="Nothing was restored"):
        restore(place / "saved", replace=True)

    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize("linked", ["checkpoint/zset/format.json", "checkpoint/zset"])
def test_a_savepoint_with_links_is_refused(place: Path, linked: str) -> None:
    backup(place / "cp", place / "saved")
    (place / "saved" / linked).rename(place / "elsewhere")
    (place / "saved" / linked).symlink_to(place / "elsewhere")

    with pytest.raises(StateError, match="symbolic link"):
        restore(place / "saved", checkpoint=place / "new")

    assert not (place / "new").exists()


def test_a_place_with_a_link_in_it_is_taken(place: Path) -> None:
    backup(place / "cp", place / "saved")
    (place / "outside").mkdir()
    (place / "new").mkdir()
    (place / "new" / "zset").symlink_to(place / "outside")

    with pytest.raises(OptionError, match="Pass replace"):
        restore(place / "saved", checkpoint=place / "new")

    assert list((place / "outside").iterdir()) == []
