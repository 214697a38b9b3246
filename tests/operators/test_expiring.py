"""State that ends by time, as a reader learns it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from zset_join.core.epochs import Tick
from zset_join.core.errors import BadInputError
from zset_join.core.relation import Relation
from zset_join.operators.aggregate import Aggregate
from zset_join.operators.expiring import Expiring, ExpiringInput, TimeToLive
from zset_join.operators.join import HashJoin
from zset_join.shapes.aggregate import AggregateCall
from zset_join.zset import ZSet
from zset_join.zset.protocol import NextDue

ROWS = pa.schema({"k": pa.int64(), "v": pa.string()})


def join(**ttl: Any) -> Expiring:
    left, right = (Relation(name=name, schema=ROWS, join_key=("k",), mode="changelog") for name in ("l", "r"))
    inputs = [
        ExpiringInput(relation=one, key=("k",), key_types=(pa.int64(),), null_safe=(False,), ttl=lives)
        for one, lives in ((left, TimeToLive(after=10, **ttl)), (right, None))
    ]
    return Expiring(HashJoin(left, right), inputs)


def delta(*rows: tuple[int, str], weight: int = 1) -> ZSet:
    return ZSet.from_rows(list(rows), ROWS, weights=[weight] * len(rows))


def step(operator: Expiring, epoch: int, now: int, *deltas: ZSet) -> list[tuple[Any, ...]]:
    given = list(deltas) or [delta() for _ in operator.inputs]
    tick = Tick(epoch, processing_time_us=now)
    answer = [line for chunk in operator.answer(tick, given) for line in chunk.to_pylist()]
    operator.absorb(tick, given)
    return answer


def test_a_row_that_expires_retracts_its_joined_rows() -> None:
    operator = join()
    step(operator, 0, 0, delta((1, "x")), delta((1, "y")))

    assert operator.next_due() == NextDue(processing_time_us=10)
    assert step(operator, 1, 9) == []
    assert step(operator, 2, 10) == [((1, "x", 1, "y"), -1)]
    assert operator.statistics()["ttl_0_expired"] == 1
    assert operator.next_due() == NextDue()


def test_a_forgotten_row_keeps_its_output_and_meets_nothing_more() -> None:
    operator = join(forgets=True)
    step(operator, 0, 0, delta((1, "x")), delta((1, "y")))

    assert step(operator, 1, 10) == []
    assert step(operator, 2, 11, delta(), delta((1, "z"))) == []


def test_a_read_restarts_the_time_where_reads_count() -> None:
    operator = join(reads=True)
    step(operator, 0, 0, delta((1, "x"), (2, "x")), delta((1, "y"), (2, "y")))
    step(operator, 1, 5, delta(), delta((1, "z")))

    assert step(operator, 2, 10) == [((2, "x", 2, "y"), -1)]
    assert sorted(step(operator, 3, 15)) == [((1, "x", 1, "y"), -1), ((1, "x", 1, "z"), -1)]


def test_a_group_lives_as_long_as_it_is_written_and_ends_as_a_whole() -> None:
    source = Relation(name="s", schema=ROWS, mode="append")
    inside: Any = Aggregate(Relation(name="s", schema=ROWS, mode="changelog"), ("k",), (AggregateCall("count", (), name="n"),))
    ttl = TimeToLive(after=10, by_key=True)
    given = ExpiringInput(relation=source, key=("k",), key_types=(pa.int64(),), null_safe=(True,), ttl=ttl)
    operator = Expiring(inside, [given])
    step(operator, 0, 0, delta((1, "x"), (2, "x")))
    step(operator, 1, 8, delta((1, "y")))

    assert step(operator, 2, 10) == [((2, 1), -1)]
    assert step(operator, 3, 18) == [((1, 2), -1)]


def test_a_retraction_of_an_expired_row_is_counted_and_not_refused() -> None:
    operator = join()
    step(operator, 0, 0, delta((1, "x")), delta((1, "y")))
    step(operator, 1, 10)

    assert step(operator, 2, 11, delta((1, "x"), weight=-1), delta()) == []
    assert operator.statistics()["ttl_0_already_gone"] == 1


def test_other_bad_rows_are_refused_as_everywhere() -> None:
    operator = join()

    with pytest.raises(BadInputError, match="ABSENT_ROW"):
        step(operator, 0, 0, delta(), delta((1, "x"), weight=-1))
