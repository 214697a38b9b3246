"""UNION ALL by example."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.epochs import Epochs, delete, insert
from zset_join.core.errors import PlanError
from zset_join.core.relation import Relation
from zset_join.operators.distinct import Distinct
from zset_join.operators.stateless import Union
from zset_join.zset.protocol import Operator

SCHEMA = pa.schema({"x": pa.int64(), "s": pa.string()})
A = Relation(name="a", schema=SCHEMA, mode="changelog")
B = Relation(name="b", schema=pa.schema({"y": pa.int64(), "t": pa.string()}), mode="changelog")


def test_a_union_is_an_operator() -> None:
    assert isinstance(Union([A, B]), Operator)


def test_copies_of_both_inputs_add_up_under_the_names_of_the_first() -> None:
    both = Epochs(Union([A, B]))

    assert both.feed(insert((1, "a")), insert((1, "a"), (2, None))) == [((1, "a"), 2), ((2, None), 1)]
    assert both.operator.output.schema.names == ["x", "s"]


def test_a_row_that_moves_from_one_input_to_the_other_emits_nothing() -> None:
    both = Epochs(Union([A, B]))
    both.feed(insert((1, "a")), [])

    assert both.feed(delete((1, "a")), insert((1, "a"))) == []


def test_distinct_behind_a_union_gives_the_set() -> None:
    both = Union([A, B])
    rows = Epochs(Distinct(both.output))
    joined = Epochs(both)

    first = rows.feed(joined.feed(insert((1, "a")), insert((1, "a"))))
    second = rows.feed(joined.feed(delete((1, "a")), []))

    assert (first, second) == ([((1, "a"), 1)], [])


def test_append_only_inputs_make_an_append_only_output() -> None:
    relations = [Relation(name=name, schema=SCHEMA) for name in "ab"]

    assert (Union(relations).output.mode, Union([A, relations[1]]).output.mode) == ("append", "changelog")


def test_inputs_of_other_types_are_refused() -> None:
    other = Relation(name="b", schema=pa.schema({"x": pa.int32(), "s": pa.string()}))

    with pytest.raises(PlanError, match="a union goes by position"):
        Union([A, other])


@pytest.mark.parametrize("relations", [[A], [A, A]], ids=["one", "one name"])
def test_one_input_or_two_of_one_name_are_refused(relations: list[Relation]) -> None:
    with pytest.raises(PlanError, match="two inputs or more, of different names"):
        Union(relations)
