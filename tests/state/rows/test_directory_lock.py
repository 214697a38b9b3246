"""A directory has one owner: until it is closed, dropped or dead, another is refused; what a dead one left is removed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from zset_join.core.errors import StateError
from zset_join.core.options import HotBudget
from zset_join.core.relation import Relation
from zset_join.operators.aggregate import Aggregate
from zset_join.operators.deduplicate import Deduplicate
from zset_join.operators.join import HashJoin
from zset_join.operators.upsert_table import Route
from zset_join.shapes.aggregate import AggregateCall
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.rows.directories import PrivateDirectory, locked_outside

SCHEMA = pa.schema({"id": pa.int64(), "k": pa.int64()})
BAG = Relation(name="bag", schema=SCHEMA, join_key=("k",), mode="changelog")
TABLE = Relation(name="table", schema=SCHEMA, join_key=("k",), primary_key=("id",), mode="upsert")
OTHER_PROCESS = """
import sys, os
from zset_join.state.rows.directories import take_directory
lock = take_directory(sys.argv[1], "left")
print("taken", flush=True)
sys.stdin.read()
"""


def _in(directory: str, **options: Any) -> OperatorOptions:
    return OperatorOptions(directory=directory, **options)


DURABLE: dict[str, Callable[[str], Any]] = {
    "join": lambda place: HashJoin(BAG, BAG, options=_in(place)),
    "hybrid": lambda place: HashJoin(BAG, BAG, options=_in(place, budget=HotBudget(max_hot_keys=0))),
    "route": lambda place: Route(TABLE, options=_in(place)),
    "aggregate": lambda place: Aggregate(BAG, ["k"], [AggregateCall("count")], options=_in(place)),
    "deduplicate": lambda place: Deduplicate(BAG, keys=["k"], order_by=["id"], options=_in(place)),
}


def made(name: str, directory: Path) -> Any:
    return DURABLE[name](str(directory))


@pytest.mark.parametrize("name", DURABLE)
def test_a_second_operator_is_refused_until_the_first_is_closed(name: str, tmp_path: Path) -> None:
    first = made(name, tmp_path)

    with pytest.raises(StateError, match="Close the other one first") as refused:
        made(name, tmp_path)
    assert refused.value.code == "DIRECTORY_IN_USE"
    assert "process" in refused.value.facts["owner"]

    first.close()
    made(name, tmp_path).close()


def test_a_dropped_operator_is_released(tmp_path: Path) -> None:
    made("join", tmp_path)

    made("join", tmp_path).close()


def test_operators_of_other_names_may_share_a_directory(tmp_path: Path) -> None:
    route, join = made("route", tmp_path), made("join", tmp_path)

    route.close()
    join.close()


def test_another_process_has_the_lock_until_it_dies(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"taken\n"
        with pytest.raises(StateError, match=f"process {other.pid} on"):
            made("join", tmp_path)
        other.kill()

    made("join", tmp_path).close()


def test_where_a_lock_is_held_outside_none_is_taken(tmp_path: Path) -> None:
    with locked_outside():
        first, second = made("join", tmp_path), made("join", tmp_path)

    assert not list(tmp_path.glob("*.lock"))
    first.close()
    second.close()


def test_what_cannot_be_opened_leaves_no_lock(tmp_path: Path) -> None:
    made("join", tmp_path).close()

    for _ in range(2):
        with pytest.raises(StateError, match="STATE_FINGERPRINT"):
            HashJoin(TABLE, TABLE, options=OperatorOptions(directory=str(tmp_path)))
    made("join", tmp_path).close()


# ---------------------------------------------------------------- directories that nobody names

OWNER = """
import sys
from zset_join.state.rows.directories import PrivateDirectory
held = PrivateDirectory(sys.argv[1])
(held.path / "rows").write_bytes(b"rows")
print(held.path, flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_left_goes_when_the_next_directory_is_made(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        left = Path(owner.stdout.readline().strip())

        while_it_lived = PrivateDirectory(str(tmp_path))
        assert (left / "rows").read_bytes() == b"rows"
        owner.kill()
        owner.wait()
        assert left.is_dir()

        after_it = PrivateDirectory(str(tmp_path))

    assert set(tmp_path.iterdir()) == {while_it_lived.path, after_it.path}


def test_a_directory_goes_when_it_is_removed(tmp_path: Path) -> None:
    first, second = PrivateDirectory(str(tmp_path)), PrivateDirectory(str(tmp_path))
    (first.path / "rows").write_bytes(b"rows")

    first.remove()
    first.remove()

    assert list(tmp_path.iterdir()) == [second.path]


def test_what_others_have_in_the_same_place_stays(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "lock").touch()
    place = tmp_path / "temporary"
    (place / "zset_join-cold-is-just-being-made").mkdir(parents=True)
    (place / "other").mkdir()
    (place / "other" / "lock").touch()
    (place / "zset_join-cold-link").symlink_to(outside)
    before = set(place.iterdir())

    made = PrivateDirectory(str(place))

    assert set(place.iterdir()) == before | {made.path}
    assert (outside / "lock").is_file()


def test_a_place_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        PrivateDirectory(str(tmp_path / "missing"))
