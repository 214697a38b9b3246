"""Wrong use of an operator is refused in its own words, before anything is changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.built import built
from zset_join.core.errors import OptionError, PlanError, StateError
from zset_join.core.relation import Relation
from zset_join.core.tick import Tick
from zset_join.operators.aggregate import Aggregate
from zset_join.operators.join import HashJoin
from zset_join.operators.upsert_table import Route
from zset_join.zset import ZSet

SCHEMA = pa.schema({"id": pa.int64(), "k": pa.int64()})
LEFT = Relation(name="orders", schema=SCHEMA, join_key=("k",), primary_key=("id",), mode="upsert")
RIGHT = Relation(name="prices", schema=SCHEMA, join_key=("k",), mode="changelog")
ROW = ZSet.of({"id": [1], "k": [1]}, schema=SCHEMA)
TICK = Tick(0, 1_000)

MAKERS: dict[str, tuple[Callable[..., Any], int]] = {
    "join": (lambda **options: built(HashJoin, LEFT, RIGHT, **options), 2),
    "route": (lambda **options: built(Route, LEFT, **options), 1),
    "aggregate": (lambda **options: built(Aggregate, RIGHT, ["k"], [], **options), 1),
}


@pytest.fixture(params=MAKERS)
def made(request: pytest.FixtureRequest) -> tuple[Callable[..., Any], int]:
    """Give what makes an operator, and its number of inputs."""
    return MAKERS[request.param]


def test_another_number_of_deltas_is_refused(made: tuple[Callable[..., Any], int]) -> None:
    make, inputs = made
    operator = make()

    for use in (lambda deltas: list(operator.answer(TICK, deltas)), lambda deltas: operator.absorb(TICK, deltas)):
        with pytest.raises(PlanError, match="give one for each") as refused:
            use([ROW] * (inputs + 1))
        assert refused.value.code == "DELTA_COUNT"
    operator.absorb(TICK, [ROW] * inputs)


def test_what_is_no_snapshot_is_refused_and_changes_nothing(made: tuple[Callable[..., Any], int]) -> None:
    make, inputs = made
    operator = make()
    operator.absorb(TICK, [ROW] * inputs)
    before = operator.snapshot()

    for tables in ({}, {name: pa.table({"other": [1]}) for name in before}):
        with pytest.raises(StateError, match="Give what snapshot") as refused:
            operator.restore(tables)
        assert refused.value.code == "SNAPSHOT_TABLES"

    assert operator.snapshot() == before


def test_a_closed_operator_refuses(made: tuple[Callable[..., Any], int]) -> None:
    make, inputs = made
    operator = make()
    operator.close()

    given = [ROW] * inputs
    for use in (
        lambda: list(operator.answer(TICK, given)),
        lambda: operator.absorb(TICK, given),
        lambda: operator.rejections(TICK, given),
    ):
        with pytest.raises(StateError, match="was closed; make a new one") as refused:
            use()
        assert refused.value.code == "OPERATOR_CLOSED"


def test_a_directory_is_made_or_refused_by_name(made: tuple[Callable[..., Any], int], tmp_path: Path) -> None:
    make, _ = made
    (tmp_path / "file").write_text("")

    make(directory=str(tmp_path / "a" / "b")).close()
    with pytest.raises(OptionError, match="cannot be made") as refused:
        make(directory=str(tmp_path / "file" / "b"))

    assert (refused.value.code, (tmp_path / "a" / "b").is_dir()) == ("DIRECTORY", True)
