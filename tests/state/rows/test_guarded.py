"""Every kind of stage makes an operator that refuses wrong use, before anything is changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.stages.every_stage import CONTROLLED, EVENTS, QUOTES, STAGES, registered
from tests.state.rows.test_directory_lock import BAG
from zset_join.core.epochs import Tick
from zset_join.core.errors import BadInputError, OptionError, PlanError, StateError
from zset_join.expressions import left
from zset_join.operators.join import HashJoin
from zset_join.operators.partial_upserts import PartialUpserts
from zset_join.operators.stateless import Select, Union, Where
from zset_join.stages import Stage, StageOptions
from zset_join.state.rows.guarded import Answers
from zset_join.zset import ZSet

TICK = Tick(0, 1_000)
ROW = {"id": [1], "k": [1], "at": [None], "control": [0]}


def of_stage(stage: Stage) -> Callable[[], Any]:
    return lambda: stage.build(StageOptions(), None)


MAKERS: dict[str, Callable[[], Any]] = {
    **{kind: of_stage(stage) for kind, stage in STAGES.items()},
    "partial upserts": lambda: PartialUpserts(CONTROLLED, control="control"),
    "select": lambda: Select(EVENTS, ["k"]),
    "union": lambda: Union([EVENTS, QUOTES]),
    "where": lambda: Where(EVENTS, left("k") > 0),
}


@pytest.fixture(params=MAKERS)
def operator(request: pytest.FixtureRequest) -> Any:
    """Give an operator without state."""
    return MAKERS[request.param]()


def given(operator: Any) -> list[ZSet]:
    """Return a row, or none where it would have to be fetched first, for each input."""
    rows = [ZSet.of({name: ROW.get(name, [1]) for name in one.schema.names}, schema=one.schema) for one in operator.inputs[:1]]
    return rows + [ZSet.empty(one.schema) for one in operator.inputs[1:]]


def test_every_kind_of_stage_is_held_to_it() -> None:
    assert registered() - set(MAKERS) == set()


def test_another_number_of_deltas_is_refused(operator: Any) -> None:
    deltas = [*given(operator), given(operator)[0]]

    for use in (operator.answer, operator.absorb, operator.rejections):
        with pytest.raises(PlanError) as refused:
            list(use(TICK, deltas))
        assert refused.value.code == "DELTA_COUNT"

    assert operator.absorbed_epoch == -1


def test_what_is_no_snapshot_is_refused_and_changes_nothing(operator: Any) -> None:
    empty = [ZSet.empty(one.schema) for one in operator.inputs]
    operator.absorb(TICK, empty)
    before = operator.snapshot()

    for tables in ({}, {name: pa.table({"other": [1]}) for name in before}):
        with pytest.raises(StateError) as refused:
            operator.restore(tables)
        assert refused.value.code == "SNAPSHOT_TABLES"

    assert operator.snapshot() == before
    assert operator.absorbed_epoch == 0
    operator.restore(before)


@pytest.mark.parametrize("then", ["absorb", "restore", "close"])
def test_an_answer_that_is_read_when_the_state_has_changed_is_refused(operator: Any, then: str) -> None:
    empty, snapshot = [ZSet.empty(one.schema) for one in operator.inputs], operator.snapshot()
    late = operator.answer(TICK, empty)
    {
        "absorb": lambda: operator.absorb(TICK, empty),
        "restore": lambda: operator.restore(snapshot),
        "close": operator.close,
    }[then]()

    with pytest.raises(StateError) as refused:
        list(late)

    assert refused.value.code == "ANSWER_OUTDATED"


def test_an_epoch_that_is_refused_outdates_nothing() -> None:
    join = HashJoin(BAG, BAG)
    rows = ZSet.of({"id": [1, 2], "k": [1, 1]})
    unread = join.answer(TICK, [rows, rows])

    with pytest.raises(BadInputError, match="ABSENT_ROW"):
        join.absorb(TICK, [-rows, rows])

    assert sum(len(chunk) for chunk in unread) == 4


def test_what_was_read_before_stays_and_the_rest_is_refused() -> None:
    answers, rows = Answers(), ZSet.of({"id": [1]})
    chunks = answers.guarded(iter([rows, rows]))
    assert next(chunks) is rows

    answers.outdate()

    with pytest.raises(StateError, match="read it to its end first"):
        next(chunks)


def test_a_closed_operator_refuses_and_may_be_closed_again(operator: Any) -> None:
    deltas = given(operator)
    operator.close()

    for use in (operator.answer, operator.absorb, operator.rejections):
        with pytest.raises(StateError) as refused:
            list(use(TICK, deltas))
        assert refused.value.code == "OPERATOR_CLOSED"

    operator.close()


@pytest.mark.parametrize("kind", ["join", "lookup_join", "process_time_join"])
def test_a_listed_answer_is_refused_once_the_state_has_changed_or_is_closed(kind: str) -> None:
    operator = MAKERS[kind]()
    late = operator.listed()
    operator.absorb(TICK, [ZSet.empty(one.schema) for one in operator.inputs])

    with pytest.raises(StateError) as outdated:
        next(late)
    operator.close()
    with pytest.raises(StateError) as closed:
        operator.listed()

    assert [outdated.value.code, closed.value.code] == ["ANSWER_OUTDATED", "OPERATOR_CLOSED"]


@pytest.mark.parametrize("kind", sorted({*STAGES} - {"unchanged"}))
def test_a_directory_is_made_or_refused_by_name(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    STAGES[kind].build(StageOptions(), str(tmp_path / "a" / "b")).close()
    for seed, below in ((None, "file"), (None, "file/b"), (7, "file/b")):
        with pytest.raises(OptionError, match=r"\[DIRECTORY\] directory='.*' cannot be made"):
            STAGES[kind].build(StageOptions(hash_seed=seed), str(tmp_path / below))

    assert (tmp_path / "a" / "b").is_dir()
