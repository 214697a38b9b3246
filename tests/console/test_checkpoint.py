"""The console shows a checkpoint: running, stopped or damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.console.shop import HOSTILE, run, shop
from zset_join.console import WatchedCheckpoint
from zset_join.console.watched_checkpoint import QueryAnswers
from zset_join.core.errors import OptionError


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("console") / "shop"
    with shop(place) as pipeline:
        run(pipeline, 6)
    return place


def test_numbers_of_an_epoch_are_those_the_pipeline_recorded(directory: Path) -> None:
    newest = WatchedCheckpoint(directory).epochs(-1)[-1]
    assert (newest["epoch"], newest["rows_in"], newest["put_aside"]) == (5, {"orders": 5, "customers": 0}, 0)
    assert newest["stages"]["join-0"]["rows_in"] == 5
    assert newest["stages"]["aggregate-1"]["seconds"] > 0
    assert newest["remembers"]["join-0"]["left_rows"] == 17  # before the epoch


def test_an_epoch_learns_what_committing_it_took_from_the_next_one(directory: Path) -> None:
    before, newest = WatchedCheckpoint(directory).epochs(-1)[-2:]
    assert before["seconds"]["commit"] > 0
    assert "commit" not in newest["seconds"]


def test_polling_reads_only_what_is_new(tmp_path: Path) -> None:
    watched = WatchedCheckpoint(tmp_path)
    with shop(tmp_path) as pipeline:
        run(pipeline, 2)
        assert [one["epoch"] for one in watched.epochs(-1)] == [0, 1]
        run(pipeline, 1, first=2)
        assert [one["epoch"] for one in watched.epochs(1)] == [2]
        assert watched.overview()["owner"]["state"] == "running"
    assert watched.overview()["owner"]["state"] == "stopped"


def test_the_tail_and_the_search_have_the_rows_of_the_views(directory: Path) -> None:
    watched = WatchedCheckpoint(directory)
    newest = watched.changes()["epochs"][-1]
    assert newest["epoch"] == 5
    assert any(weight < 0 for weight in newest["weights"])
    found = watched.rows("by_order", {"customer": HOSTILE})
    assert found["total"] > 0
    assert {row[1] for row in found["rows"]} == {HOSTILE}
    assert watched.rows("join_0_left", {"id": "3"})["total"] == 1


def test_a_search_for_an_unknown_column_names_those_there_are(directory: Path) -> None:
    with pytest.raises(OptionError, match="no column 'nothing'"):
        WatchedCheckpoint(directory).rows("by_order", {"nothing": "1"})


def test_hottest_keys_count_rows_and_pairs(directory: Path) -> None:
    by_table = {(one["table"], one["unit"]): one for one in WatchedCheckpoint(directory).hot_keys()["stages"]}
    left, pairs = by_table["join_0_left", "rows"], by_table["join-0", "pairs"]
    assert sum(count for _, count in left["keys"]) == left["rows"] == 20
    assert sum(count for _, count in pairs["keys"]) == 20  # every order has one customer


def test_dead_letters_come_with_reason_and_record(directory: Path) -> None:
    (letter,) = WatchedCheckpoint(directory).dead_letters()["letters"]
    assert (letter["epoch"], letter["code"]) == (3, "NULL_PRIMARY_KEY")
    assert json.loads(letter["raw"])["customer"] == HOSTILE


def test_a_damaged_file_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    with shop(tmp_path) as pipeline:
        run(pipeline, 3)
    watched = WatchedCheckpoint(tmp_path)
    assert watched.damage()["found"] == []
    log = next((tmp_path / "zset" / "log" / "join-0-0").iterdir())
    log.write_bytes(log.read_bytes()[:-1] + b"?")
    (found,) = watched.damage()["found"]
    assert (found["code"], found["file"]) == ("DAMAGED_FILE", str(log))
    assert len(watched.epochs(-1)) == 3
    assert watched.rows("revenue", {})["total"] > 0


def test_a_commit_record_that_is_missing_between_two_is_damage_and_one_that_was_cleared_away_is_not(tmp_path: Path) -> None:
    commits = tmp_path / "zset" / "commits"
    with shop(tmp_path) as pipeline:
        run(pipeline, 1)
        (first,) = commits.iterdir()
        content = first.read_bytes()
        run(pipeline, 11, first=1)
    first.write_bytes(content)  # as if it could not be removed when the next one was
    watched = WatchedCheckpoint(tmp_path)
    assert (len(list(commits.iterdir())), watched.damage()["found"]) == (11, [])

    missing = commits / f"{5:020d}.json"
    missing.unlink()

    (found,) = watched.damage()["found"]
    assert (found["code"], found["file"]) == ("DAMAGED_FILE", str(missing))


def test_settings_of_a_place_are_not_on_the_page(tmp_path: Path) -> None:
    options = {"deadLetterPath": "s3://bucket/letters?aws_secret_access_key=hunter2"}
    watched = WatchedCheckpoint(f"file://{tmp_path}/nothing?token=hunter2", QueryAnswers(options=options))

    overview, damage = watched.overview(), watched.damage()

    assert overview["in_force"] == {"deadLetterPath": "s3://bucket/letters?..."}
    assert "hunter2" not in json.dumps([overview, damage])


def test_a_damaged_plan_is_trouble_and_not_the_end_of_the_page(tmp_path: Path) -> None:
    with shop(tmp_path) as pipeline:
        run(pipeline, 1)
    (tmp_path / "zset" / "stages.json").write_text("{}")
    overview = WatchedCheckpoint(tmp_path).overview()
    assert overview["plan"] is None
    assert "stages.json" in overview["trouble"][0]
