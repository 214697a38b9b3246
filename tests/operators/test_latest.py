"""The latest rows of upserts: every change is emitted with the row it replaces."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.built import built
from zset_join import BadInputError, PlanError, Relation, Tick, ZSet
from zset_join.operators.upsert_table import Latest

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "v": pa.int64()})
LONG = "a name that does not fit into twelve bytes"


def latest(**options):
    relation = Relation(name="customers", schema=SCHEMA, primary_key=("id",), sequence_by=("v",), mode="upsert")
    return built(Latest, relation, hidden=["v"], **options)


def rows(*lines, weights=None):
    return [ZSet.from_rows(lines, SCHEMA, weights=weights)]


def reported(operator, epoch, delta):
    return [row for chunk in operator.answer(Tick(epoch), delta) for row in chunk.to_pylist()]


def test_an_update_emits_the_old_row_first():
    operator = latest()
    operator.absorb(Tick(0), rows((1, LONG, 1), (2, "Bob", 1)))

    assert reported(operator, 1, rows((1, LONG + "!", 2), (2, None, 2))) == [
        ((1, LONG), -1),
        ((2, "Bob"), -1),
        ((1, LONG + "!"), 1),
        ((2, None), 1),
    ]


def test_a_change_of_the_sequence_alone_emits_nothing():
    operator = latest()
    operator.absorb(Tick(0), rows((1, "Ada", 1)))

    assert reported(operator, 1, rows((1, "Ada", 2))) == []


def test_an_older_change_is_ignored_also_behind_a_delete():
    operator = latest()
    operator.absorb(Tick(0), rows((1, "Ada", 5)))
    operator.absorb(Tick(1), rows((1, None, 6), weights=[-1]))

    assert reported(operator, 2, rows((1, "Eve", 5))) == []
    assert reported(operator, 2, rows((1, "Eve", 7))) == [((1, "Eve"), 1)]


def test_the_state_comes_back_from_a_snapshot():
    operator, again = latest(), latest()
    operator.absorb(Tick(0), rows((1, "Ada", 1)))
    again.restore(operator.snapshot())

    assert reported(again, 1, rows((1, "Eve", 2))) == [((1, "Ada"), -1), ((1, "Eve"), 1)]


def test_a_null_in_the_primary_key_is_refused():
    with pytest.raises(BadInputError, match="primary key"):
        reported(latest(), 0, rows((None, "Ada", 1)))


def test_rows_that_are_no_upserts_need_no_such_table():
    with pytest.raises(PlanError, match="only upserts"):
        Latest(Relation(name="x", schema=SCHEMA, mode="changelog"))
