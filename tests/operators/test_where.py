"""WHERE by example, and HAVING behind an aggregate."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.epochs import Epochs, delete, insert
from zset_join.aggregates import AggregateCall
from zset_join.core.errors import BadInputError, PlanError, StateError
from zset_join.core.relation import Relation
from zset_join.core.tick import Tick
from zset_join.expressions import left
from zset_join.operators.aggregate import Aggregate
from zset_join.operators.stateless import Where
from zset_join.zset.protocol import Operator

SALES = Relation(name="sales", schema=pa.schema({"shop": pa.string(), "price": pa.int64()}), mode="changelog")


def test_where_is_an_operator() -> None:
    assert isinstance(Where(SALES, left("price") > 5), Operator)


def test_rows_pass_in_both_directions_and_null_does_not() -> None:
    dear = Epochs(Where(SALES, left("price") > 5))

    assert dear.feed(insert(("A", 9), ("B", 3), ("C", None))) == [(("A", 9), 1)]
    assert dear.feed([*delete(("A", 9), ("B", 3)), *insert(("A", 7))]) == [(("A", 9), -1), (("A", 7), 1)]


def test_having_shows_a_group_when_it_qualifies_and_retracts_it_when_it_does_not() -> None:
    totals = Aggregate(SALES, ["shop"], [AggregateCall("sum", "price", name="total")])
    groups, large = Epochs(totals), Epochs(Where(totals.output, left("total") > 10))

    answers = [
        large.feed(groups.feed(changes)) for changes in (insert(("A", 9)), insert(("A", 9)), insert(("A", 1)), delete(("A", 9)))
    ]

    assert answers == [[], [(("A", 18), 1)], [(("A", 18), -1), (("A", 19), 1)], [(("A", 19), -1)]]


def test_a_delta_that_cancels_out_emits_nothing() -> None:
    assert Epochs(Where(SALES, left("price") > 5)).feed([*insert(("A", 9)), *delete(("A", 9))]) == []


def test_an_answer_comes_in_bounded_chunks() -> None:
    dear = Epochs(Where(SALES, left("price") > 5, chunk_rows=2))

    assert [len(chunk) for chunk in dear.chunks(insert(("A", 7), ("A", 8), ("A", 9)))] == [2, 1]


def test_a_condition_over_other_columns_is_refused() -> None:
    with pytest.raises(PlanError, match='no column "cost"'):
        Where(SALES, left("cost") > 5)


def test_an_append_only_input_takes_no_retraction() -> None:
    dear = Where(Relation(name="sales", schema=SALES.schema), left("price") > 5)

    with pytest.raises(BadInputError, match=r'"sales", epoch 0: the change with key \(\'A\', 9\) and weight -1'):
        Epochs(dear).feed(delete(("A", 9)))


def test_under_quarantine_retractions_from_an_append_only_input_are_listed_and_left_out() -> None:
    relation = Relation(name="sales", schema=SALES.schema)
    dear = Epochs(Where(relation, left("price") > 5, on_bad_input="quarantine"))
    changes = [*insert(("A", 9)), *delete(("A", 8))]

    listed = dear.operator.rejections(Tick(0), dear.deltas(changes)).to_pylist()

    assert [(line["row"], line["weight"], line["code"]) for line in listed] == [(1, -1, "RETRACTION_IN_APPEND")]
    assert dear.feed(changes) == [(("A", 9), 1)]
    assert dear.operator.statistics() == {"rejected_rows": 1}  # type: ignore[attr-defined]


def test_a_snapshot_carries_the_epoch_and_nothing_else() -> None:
    first = Epochs(Where(SALES, left("price") > 5))
    first.feed(insert(("A", 9)))
    second = Where(SALES, left("price") > 5)

    second.restore(first.operator.snapshot())

    assert (second.absorbed_epoch, second.resident_bytes()) == (0, 0)
    with pytest.raises(StateError, match="epoch 0 was absorbed before"):
        second.absorb(Tick(0), first.deltas())
