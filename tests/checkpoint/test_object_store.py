"""A whole query on a file system without rename, append and directories: every part of a checkpoint, restarts included."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoint.query_by_hand import QueryByHand, left_rows, right_rows
from tests.storage.object_store import ObjectStore, install
from zset_join.checkpoint.owner import Ownership
from zset_join.checkpoint.reading import checkpoint_folder, stored_query_id
from zset_join.core.errors import StateError

LOCATION = "objects://bucket/orders"


@pytest.fixture
def query(tmp_path: Path) -> Iterator[QueryByHand]:
    install()
    query = QueryByHand(LOCATION, tmp_path / "local")
    yield query
    query.stop()


def test_an_epoch_sees_those_before_it(query: QueryByHand) -> None:
    query.run(left_rows((1, 4, "a"), (2, 5, "b")), right_rows())

    assert query.run(left_rows(), right_rows((4, 1.5))) == [
        ((1, 4, "a", 4, 1.5), 1),
        ((1, 4, "a", None, None), -1),
    ]


def test_a_restart_without_local_state_goes_on(query: QueryByHand) -> None:
    query.run(left_rows((1, 4, "a"), (2, 5, "b")), right_rows((5, 2.0)))
    shutil.rmtree(query.local)
    query.restart()

    found = query.run(left_rows((2, 5, ""), weights=[-1]), right_rows())

    assert found == [((2, 5, "b", 5, 2.0), -1), ((None, None, None, 5, 2.0), 1)]


def test_snapshots_and_merged_logs_are_written_read_and_cleared_away(query: QueryByHand) -> None:
    query.options = {"snapshot_after_bytes": 1}
    query.restart()
    for number in range(12):
        query.run(left_rows((number, number, f"row {number}")), right_rows((number, float(number))))
    query.options = {"retain_input_log": True}
    query.restart()
    for number in range(140):
        query.run(left_rows((1000 + number % 2, number % 2, f"epoch {number}")), right_rows())
    shutil.rmtree(query.local)
    query.restart()

    found = query.run(left_rows(), right_rows((3, 3.0), (11, 11.0), weights=[-1, -1]))

    assert found == [
        ((11, 11, "row 11", 11, 11.0), -1),
        ((11, 11, "row 11", None, None), 1),
        ((3, 3, "row 3", 3, 3.0), -1),
        ((3, 3, "row 3", None, None), 1),
    ]
    kinds = {key.partition("/zset/")[2].partition("/")[0] for key in ObjectStore.objects}
    merged = [key for key in ObjectStore.objects if key.endswith("-merged.arrows")]
    assert kinds == {"commits", "format.json", "log", "owners", "snapshot"}
    assert 0 < len(merged) <= 4
    assert len([key for key in ObjectStore.objects if "/snapshot/" in key]) <= 8


def test_a_commit_is_one_put_that_is_refused_when_the_record_exists(query: QueryByHand) -> None:
    _, record = query.answer(left_rows((1, 4, "a")), right_rows())
    before = ObjectStore.counts["put_new"]
    query.checkpoint.commit(record)
    puts = ObjectStore.counts["put_new"] - before
    query.checkpoint.last = None  # as another driver that has not seen it
    _, another = query.answer(left_rows((1, 4, "b")), right_rows())

    with pytest.raises(StateError, match="committed already") as refused:
        query.checkpoint.commit(another)

    assert puts == 1
    assert refused.value.code == "COMMITTED_TWICE"


def test_an_answer_that_was_lost_on_the_way_back_from_our_own_put_is_no_second_driver(query: QueryByHand) -> None:
    _, record = query.answer(left_rows((1, 4, "a")), right_rows())
    query.checkpoint.commit(record)
    query.checkpoint.last = None  # as if the first put had raised after the store took it

    committed = query.checkpoint.commit(record)

    assert committed == query.checkpoint.last


def test_a_second_driver_is_refused_while_the_first_one_gives_signs_of_life(query: QueryByHand) -> None:
    with pytest.raises(StateError, match="is in use by process") as refused:
        Ownership.claim(checkpoint_folder(LOCATION), "q")

    assert refused.value.code == "CHECKPOINT_IN_USE"
    assert stored_query_id(LOCATION) == "q"


def test_every_changed_byte_of_every_object_is_noticed(query: QueryByHand) -> None:
    query.options = {"snapshot_after_bytes": 1}
    query.restart()
    query.run(left_rows((1, 4, "a")), right_rows((4, 1.0)))
    query.run(left_rows((2, 4, "b")), right_rows())
    last = query.checkpoint.last
    assert last is not None
    query.stop()
    truth = dict(ObjectStore.objects)
    needed = {"format.json", *last.state_files()}
    state = [key for key in truth if "/commits/" in key or key.partition("/zset/")[2] in needed]

    unnoticed = [(key, at) for key in state for at in range(0, len(truth[key]), 23) if _answers_with(query, key, at, truth)]
    ObjectStore.objects.update(truth)
    query.start()

    assert {key.partition("/zset/")[2].partition("/")[0] for key in state} == {"commits", "format.json", "log", "snapshot"}
    assert unnoticed == []


def _answers_with(query: QueryByHand, key: str, at: int, truth: dict[str, bytes]) -> bool:
    """Return whether a restart without local state gets past one changed byte."""
    ObjectStore.objects.clear()
    ObjectStore.objects.update(truth)
    ObjectStore.objects[key] = truth[key][:at] + bytes([truth[key][at] ^ 0x40]) + truth[key][at + 1 :]
    shutil.rmtree(query.local, ignore_errors=True)
    try:
        query.start()
        query.answer(left_rows(), right_rows((4, 9.0)))
    except StateError:
        return False
    finally:
        query.stop()
    return True
