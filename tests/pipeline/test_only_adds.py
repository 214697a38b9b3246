"""A dedup behind stages that never retract a row remembers what it shows, and no more."""

from __future__ import annotations

import pyarrow as pa
import pytest

from zset_join.core.errors import BadInputError
from zset_join.pipeline import Pipeline, appends, changes
from zset_join.stages.join import JoinStage

AUCTIONS = {"id": pa.int64(), "item": pa.string()}
BIDS = {"auction": pa.int64(), "price": pa.int64()}


def best(how, *, bids=appends):
    auctions, given = appends("auctions", AUCTIONS), bids("bids", BIDS, **({} if bids is appends else {"keys": "price"}))
    joined = auctions.join(given, auctions["id"] == given["auction"], how)
    return joined.where("item <> 'x'").dedup(keys="id", order_by="price desc")


def stepped(pipeline):
    """Return the rows that the dedup holds after epochs in which the best bid comes first."""
    pipeline.step({"auctions": [{"id": 1, "item": "a"}, {"id": 2, "item": "b"}], "bids": [{"auction": 1, "price": 9}]})
    for price in range(5):
        pipeline.step({"bids": [{"auction": 1, "price": price}, {"auction": 2, "price": price}]})
    rows = pipeline.view().sort_by("id").select(["id", "price"]).to_pylist()
    assert rows == [{"id": 1, "price": 9}, {"id": 2, "price": 4}]
    return pipeline.statistics()["deduplicate-1"]["rows_rows"]


@pytest.mark.parametrize(("how", "held"), [("inner", 2), ("left", 11)])
def test_rows_that_are_not_shown_are_forgotten_where_none_is_retracted(how, held):
    assert stepped(Pipeline(best(how))) == held


def test_rows_that_a_table_may_retract_are_kept():
    pipeline = Pipeline(best("inner", bids=changes))
    pipeline.step({"auctions": [{"id": 1, "item": "a"}], "bids": [{"auction": 1, "price": price} for price in (1, 2, 3)]})

    assert pipeline.statistics()["deduplicate-1"]["rows_rows"] == 3


def test_a_dedup_that_took_an_outer_join_for_one_that_only_adds_is_found(monkeypatch):
    monkeypatch.setattr(JoinStage, "only_adds", lambda self, inputs: all(inputs))  # noqa: ARG005
    auctions, bids = appends("auctions", AUCTIONS), appends("bids", BIDS)
    padded_first = auctions.join(bids, auctions["id"] == bids["auction"], "left").dedup(keys="item", order_by="price")
    rows = [{"auctions": [{"id": 1, "item": "a"}, {"id": 2, "item": "a"}]}, {"bids": [{"auction": 1, "price": 5}]}]
    rows += [{"bids": [{"auction": 2, "price": 4}]}]

    def shown():
        pipeline = Pipeline(padded_first)
        for epoch in rows:
            pipeline.step(epoch)
        return pipeline.view().select(["id", "price"]).to_pylist()

    with pytest.raises((AssertionError, BadInputError)):
        assert shown() == [{"id": 2, "price": 4}]
    monkeypatch.undo()
    assert shown() == [{"id": 2, "price": 4}]
