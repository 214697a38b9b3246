"""Two operators on one directory: the second is refused, until the first is closed, dropped or dead."""

from __future__ import annotations

import subprocess
import sys
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
from zset_join.state.rows.directory_lock import locked_outside

SCHEMA = pa.schema({"id": pa.int64(), "k": pa.int64()})
BAG = Relation(name="bag", schema=SCHEMA, join_key=("k",), mode="changelog")
TABLE = Relation(name="table", schema=SCHEMA, join_key=("k",), primary_key=("id",), mode="upsert")
OTHER_PROCESS = """
import sys, os
from zset_join.state.rows.directory_lock import take_directory
lock = take_directory(sys.argv[1], "left")
print("taken", flush=True)
sys.stdin.read()
"""


def made(name: str, directory: Path) -> Any:
    where = str(directory)
    return {
        "join": lambda: HashJoin(BAG, BAG, options=OperatorOptions(directory=where)),
        "hybrid": lambda: HashJoin(BAG, BAG, options=OperatorOptions(directory=where, budget=HotBudget(max_hot_keys=0))),
        "route": lambda: Route(TABLE, options=OperatorOptions(directory=where)),
        "aggregate": lambda: Aggregate(BAG, ["k"], [AggregateCall("count")], options=OperatorOptions(directory=where)),
        "deduplicate": lambda: Deduplicate(BAG, keys=["k"], order_by=["id"], options=OperatorOptions(directory=where)),
    }[name]()


@pytest.mark.parametrize("name", ["join", "hybrid", "route", "aggregate", "deduplicate"])
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
