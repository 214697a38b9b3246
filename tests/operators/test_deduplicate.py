"""The first and last rows of every key, by example and against the plain query over random histories."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from tests.built import built
from tests.epochs import Epochs, delete, insert
from zset_join import Relation, Tick, ZSet
from zset_join.core.errors import BadInputError, OptionError, PlanError
from zset_join.operators.deduplicate import Deduplicate
from zset_join.shapes.deduplicate import OrderColumn
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.testing.comparison import OperatorRun, exact_tables
from zset_join.testing.reference_temporal import first_rows

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


@pytest.mark.parametrize(("keep", "shown"), [("first", ("vase", 10, 5)), ("last", ("vase", 11, 5))])
def test_equal_times_are_ordered_by_arrival(keep, shown):
    dedup = Epochs(Deduplicate(bids(), keys=["item"], order_by=["at"], keep=keep))

    assert dedup.feed(insert(("vase", 10, 5), ("vase", 11, 5))) == [(shown, 1)]


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


def test_a_row_replaced_by_an_equal_one_emits_nothing():
    latest = Epochs(Deduplicate(bids(), keys=["item"], order_by=["at"], keep="last"))
    latest.feed(insert(("vase", 10, 5)))

    assert latest.feed(insert(("vase", 10, 5))) == []


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


def test_the_state_lies_in_files_and_is_opened_again(tmp_path):
    made = Deduplicate(bids(), keys=["item"], order_by=["at"], keep="last", options=OperatorOptions(directory=str(tmp_path)))
    made.absorb(Tick(0), [ZSet.of({"item": [LONG], "price": [1], "at": [1]}, schema=BIDS)])
    made.close()

    found = Deduplicate(bids(), keys=["item"], order_by=["at"], keep="last", options=OperatorOptions(directory=str(tmp_path)))

    assert found.absorbed_epoch == 0
    assert found.is_current()
    later = [ZSet.of({"item": [LONG], "price": [2], "at": [2]}, schema=BIDS)]
    assert [chunk.to_pylist() for chunk in found.answer(Tick(1), later)] == [[((LONG, 1, 1), -1)], [((LONG, 2, 2), 1)]]
    found.close()


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


def _random_epoch(draw: random.Random, live: list, mode: str):
    """Draw the changes of an epoch, and what is live after it, oldest first."""
    made = [
        ((draw.choice(["x", None, LONG]), draw.choice([1, 2, None]), draw.choice([1, 2, None])), draw.choice([1, 1, 2]))
        for _ in range(draw.randint(0, 6))
    ]
    pool = live + [row for row, weight in made for _ in range(weight)]
    draw.shuffle(pool)
    gone = [(row, -1) for row in pool[: draw.randint(0, 4)]] if mode == "changelog" else []
    changes = made + gone
    draw.shuffle(changes)
    live = live + [row for row, weight in changes for _ in range(max(weight, 0))]
    for row, _ in gone:
        live.remove(row)
    return changes, live


@pytest.mark.parametrize("seed", range(40))
def test_after_every_epoch_the_answers_sum_up_to_the_plain_query(seed):
    draw = random.Random(seed)
    mode, n, keep = draw.choice(["append", "changelog"]), draw.choice([1, 1, 2, 3]), draw.choice(["first", "last"])
    order = draw.choice([["at"], ["price desc", "at"], ["at desc"]])
    options = {"keys": ["item"], "order_by": order, "keep": keep, "n": n, "hash_bits": draw.choice([32, 2])}
    run = OperatorRun(built(Deduplicate, bids(mode), **options))
    descending = [column.descending != (keep == "last") for column in run.operator.order_by]
    places = [BIDS.names.index(column.name) for column in run.operator.order_by]
    live: list = []
    for _ in range(8):
        changes, live = _random_epoch(draw, live, mode)

        run.step([changes])

        rows = [((row[0],), tuple(row[place] for place in places), row) for row in live]
        assert run.emitted.counts() == first_rows(rows, descending=descending, n=n)
        restored = built(Deduplicate, bids(mode), **options)
        restored.restore(run.operator.snapshot())
        assert exact_tables(restored.snapshot()) == exact_tables(run.operator.snapshot())
        run.operator = restored


def test_rows_that_are_not_shown_are_not_stored_where_the_input_only_adds():
    best = Epochs(Deduplicate(bids("changelog"), keys=["item"], order_by=["at"], n=2, only_adds=True))
    best.feed(insert((LONG, 1, 5), (LONG, 2, 7)))
    assert best.feed(insert((LONG, 3, 7), (LONG, 4, 9))) == []

    assert best.feed(insert((LONG, 5, 6))) == [((LONG, 2, 7), -1), ((LONG, 5, 6), 1)]
    assert best.operator.statistics()["rows_rows"] == 2
