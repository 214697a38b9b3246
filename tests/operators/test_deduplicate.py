"""The first and last rows of every key, by example and against the plain query over random histories."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.epochs import Epochs, delete, insert
from zset_join import Relation, Tick, ZSet
from zset_join.core.errors import BadInputError, OptionError, PlanError
from zset_join.operators.deduplicate import Deduplicate
from zset_join.shapes.deduplicate import OrderColumn
from zset_join.shapes.operator_options import OperatorOptions

BIDS = pa.schema({"item": pa.string(), "price": pa.int64(), "at": pa.int32()})
LONG = "a name that is longer than twelve letters"


def bids(mode="append"):
    return Relation(name="bids", schema=BIDS, mode=mode, event_time="at")


def test_the_first_row_of_a_key_stays_whatever_comes_later():
    first = Epochs(Deduplicate(bids(), keys=["item"], order_by=["at"]))

    assert first.feed(insert(("vase", 10, 5), ("vase", 12, 6))) == [(("vase", 10, 5), 1)]
    assert first.feed(insert(("vase", 14, 7))) == []


def test_an_earlier_row_takes_the_place_of_the_first():
    first = Epochs(Deduplicate(bids(), keys=["item"], order_by=["at"]))
    first.feed(insert(("vase", 10, 5)))

    assert first.feed(insert(("vase", 9, 4))) == [(("vase", 10, 5), -1), (("vase", 9, 4), 1)]


def test_keep_last_follows_the_newest_row():
    latest = Epochs(Deduplicate(bids(), keys=["item"], order_by=["at"], keep="last"))
    latest.feed(insert(("vase", 10, 5)))

    assert latest.feed(insert(("vase", 11, 8), ("vase", 12, 6))) == [(("vase", 10, 5), -1), (("vase", 11, 8), 1)]


def test_the_best_offer_is_the_highest_price_and_of_these_the_earliest():
    best = Epochs(Deduplicate(bids(), keys=["item"], order_by=["price desc", "at"]))
    best.feed(insert(("vase", 10, 5), ("vase", 12, 7), ("vase", 12, 6)))

    assert best.operator.snapshot()["rows"].num_rows == 1
    assert best.feed(insert(("vase", 12, 4))) == [(("vase", 12, 6), -1), (("vase", 12, 4), 1)]


def test_when_the_shown_row_is_retracted_the_next_one_shows():
    latest = Epochs(Deduplicate(bids("changelog"), keys=["item"], order_by=["at"], keep="last"))
    latest.feed(insert(("vase", 10, 5), ("vase", 11, 8)))

    assert latest.feed(delete(("vase", 11, 8))) == [(("vase", 11, 8), -1), (("vase", 10, 5), 1)]
    assert latest.feed(delete(("vase", 10, 5))) == [(("vase", 10, 5), -1)]
    assert latest.operator.statistics()["keys"] == 0


def test_the_best_two_rows_may_be_copies_of_one():
    best = Epochs(Deduplicate(bids("changelog"), keys=["item"], order_by=["price desc"], n=2))
    best.feed(insert(("vase", 10, 1)))

    assert best.feed(insert(("vase", 12, 2), copies=3)) == [(("vase", 10, 1), -1), (("vase", 12, 2), 2)]
    assert best.feed(delete(("vase", 12, 2), copies=2)) == [(("vase", 12, 2), -1), (("vase", 10, 1), 1)]


def test_an_append_only_input_leaves_only_what_is_shown_in_the_state():
    latest = Epochs(Deduplicate(bids(), keys=["item"], order_by=["at"], keep="last"))
    for at in range(20):
        latest.feed(insert((LONG, at, at)))

    assert latest.operator.statistics()["rows_rows"] == 1
    assert latest.operator.snapshot()["rows"].column("at").to_pylist() == [19]


def test_null_is_a_key_and_comes_first_in_ascending_order():
    first = Epochs(Deduplicate(bids(), keys=["item"], order_by=["at"]))

    assert first.feed(insert((None, 1, 5), (None, 2, None))) == [((None, 2, None), 1)]


def test_a_retraction_of_a_row_that_is_not_there_stops_the_epoch_and_names_it():
    dedup = Deduplicate(bids("changelog"), keys=["item"], order_by=["at"])
    delta = [ZSet.of({"item": ["vase"], "price": [1], "at": [1]}, [-1], schema=BIDS)]

    with pytest.raises(BadInputError, match=r"ABSENT_ROW.*bids.*vase") as caught:
        list(dedup.answer(Tick(0), delta))

    assert caught.value.facts["epoch"] == 0
    assert dedup.absorbed_epoch == -1


def test_a_bad_row_is_quarantined_and_the_rest_proceeds():
    dedup = Deduplicate(bids(), keys=["item"], order_by=["at"], options=OperatorOptions(on_bad_input="quarantine"))
    delta = [ZSet.of({"item": ["vase", "urn"], "price": [1, 2], "at": [1, 1]}, [-1, 1], schema=BIDS)]

    assert [chunk.to_pylist() for chunk in dedup.answer(Tick(0), delta)] == [[(("urn", 2, 1), 1)]]
    assert dedup.rejections(Tick(0), delta).select(["row", "code"]).to_pylist() == [{"row": 0, "code": "RETRACTION_IN_APPEND"}]
    dedup.absorb(Tick(0), delta)
    assert dedup.statistics()["rejected"] == 1


def test_a_dedup_by_event_time_that_keeps_the_last_row_is_versioned():
    assert Deduplicate(bids(), keys=["item"], order_by=["at"], keep="last").output.event_time == "at"
    assert Deduplicate(bids(), keys=["item"], order_by=["at desc"]).output.event_time == "at"
    assert Deduplicate(bids(), keys=["item"], order_by=["at"]).output.event_time is None
    assert Deduplicate(bids(), keys=["item"], order_by=["price"], keep="last").output.event_time is None


def test_what_cannot_be_deduplicated_is_refused_when_it_is_built():
    upserts = Relation(name="bids", schema=BIDS, primary_key=("item",), mode="upsert")

    with pytest.raises(PlanError, match="DEDUP_OF_UPSERTS"):
        Deduplicate(upserts, keys=["item"], order_by=["at"])
    with pytest.raises(PlanError, match=r"UNKNOWN_COLUMN.*when"):
        Deduplicate(bids(), keys=["item"], order_by=["when desc"])
    with pytest.raises(PlanError, match="DEDUP_COLUMNS"):
        Deduplicate(bids(), keys=["item"], order_by=[])
    with pytest.raises(OptionError, match=r"DEDUP_OPTION.*first, last"):
        Deduplicate(bids(), keys=["item"], order_by=["at"], keep="newest")


def test_an_order_is_written_with_its_direction():
    assert OrderColumn.of("unit price DESC") == OrderColumn("unit price", descending=True)
    assert str(OrderColumn.of("at asc")) == "at"


def test_rows_that_are_not_shown_are_not_stored_where_the_input_only_adds():
    best = Epochs(Deduplicate(bids("changelog"), keys=["item"], order_by=["at"], n=2, only_adds=True))
    best.feed(insert((LONG, 1, 5), (LONG, 2, 7)))
    assert best.feed(insert((LONG, 3, 7), (LONG, 4, 9))) == []

    assert best.feed(insert((LONG, 5, 6))) == [((LONG, 2, 7), -1), ((LONG, 5, 6), 1)]
    assert best.operator.statistics()["rows_rows"] == 2
