"""Rows whose event time is too far ahead of the watermark of their source, whatever the query does with them."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from zset_join.core.errors import BadInputError, OptionError
from zset_join.expressions import col
from zset_join.pipeline import Pipeline, StateTtl, appends, changes, versioned
from zset_join.query.records import records
from zset_join.stages.stage import StageOptions

QUARANTINE = StageOptions(on_bad_input="quarantine")
ORDERS = {"id": pa.int64(), "k": pa.int64(), "t": pa.int64()}
QUOTES = {"k": pa.int64(), "rate": pa.int64(), "at": pa.int64()}
BOUGHT = appends("orders", ORDERS, watermark=("t", 0), max_watermark_jump=100)
QUOTED = appends("quotes", QUOTES, watermark=("at", 0), max_watermark_jump=100)
TTL = StateTtl(1_000, by="event", on_expire="retract")
VIEWS = {
    "as-of join": BOUGHT.join_asof(QUOTED, on="k", left_time="t", right_time="at", how="left"),
    "dedup": BOUGHT.join(QUOTED.dedup(keys="k", order_by="at", keep="last"), "k", how="left"),
    "state that ends by event time": BOUGHT.join(QUOTED, "k", how="left", state_ttl=TTL),
    "a table that nothing is done to": BOUGHT.union(QUOTED.select(id=col("rate"), k=col("k"), t=col("at"))),
}
FIRST = {"orders": [{"id": 1, "k": 1, "t": 10}], "quotes": [{"k": 1, "rate": 7, "at": 10}]}
GOOD = {"orders": [{"id": 2, "k": 1, "t": 110}], "quotes": [{"k": 1, "rate": 8, "at": 109}]}
FAR = {"orders": {"id": 9, "k": 1, "t": 111}, "quotes": {"k": 1, "rate": 9, "at": 5_000}}


@pytest.mark.parametrize("source", FAR)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_row_from_far_in_the_future_is_put_aside_before_any_operator_and_moves_no_watermark(view, source):
    without, beside = Pipeline(view), Pipeline(view, options=QUARANTINE, keep_inputs=True)
    for pipeline in (without, beside):
        pipeline.step(FIRST)

    answer = beside.step({**GOOD, source: [FAR[source], *GOOD[source]]})

    assert answer.to_pylist() == without.step(GOOD).to_pylist()
    assert beside.progress["rows"] == {"orders": 1, "quotes": 1, source: 2}
    assert beside.progress["rejected_rows"] == 1
    assert [(one["source"], one["code"], one["weight"]) for one in beside.dead_letters.to_pylist()] == [
        (source, "TIME_JUMP", 1)
    ]
    assert beside.statistics()["source orders"]["watermark_us"] == 110
    assert beside.statistics()["source quotes"]["watermark_us"] == 109


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_it_stops_the_epoch_where_bad_input_does_and_nothing_of_it_was_applied(view):
    strict = Pipeline(view)
    strict.step(FIRST)

    with pytest.raises(BadInputError, match=r'TIME_JUMP.*source "quotes", epoch 1.*expected at most 110') as reported:
        strict.step({**GOOD, "quotes": [FAR["quotes"]]})

    facts = {"relation": "quotes", "weight": 1, "epoch": 1, "rejected_rows": 1}
    assert facts.items() <= reported.value.facts.items()
    other = Pipeline(view)
    other.step(FIRST)
    assert strict.step(GOOD).to_pylist() == other.step(GOOD).to_pylist()


def test_with_a_directory_the_bound_holds_after_a_restart_and_may_be_another_one(tmp_path):
    def opened(jump):
        quotes = appends("quotes", QUOTES, watermark=("at", 0), max_watermark_jump=jump)
        return Pipeline(quotes.dedup(keys="k", order_by="at", keep="last"), tmp_path, options=QUARANTINE)

    far = {"quotes": [{"k": 1, "rate": 8, "at": 200}]}
    with opened(100) as pipeline:
        pipeline.step({"quotes": FIRST["quotes"]})
    with opened(100) as pipeline:
        assert len(pipeline.step(far)) == 0
        assert pipeline.progress["rows"] == {"quotes": 1}
    with opened(1_000) as pipeline:
        assert pipeline.step(far).to_pylist() == [((1, 7, 10), -1), ((1, 8, 200), 1)]


SECOND = datetime.datetime(2026, 1, 1, 0, 0, 1)
KINDS = {
    "seconds": (pa.timestamp("s"), SECOND, datetime.datetime(2026, 1, 1, 1, 0, 1)),
    "milliseconds": (pa.timestamp("ms"), SECOND, datetime.datetime(2026, 1, 1, 1, 0, 1)),
    "microseconds with a zone": (pa.timestamp("us", tz="UTC"), SECOND, datetime.datetime(2026, 1, 1, 1, 0, 1)),
    "nanoseconds": (pa.timestamp("ns"), SECOND, datetime.datetime(2026, 1, 1, 1, 0, 1)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_itself_is_taken_and_what_is_beyond_it_is_not_in_every_type_of_time(kind):
    of_type, first, bound = KINDS[kind]
    source = appends("s", {"t": of_type}, watermark=("t", "0 seconds"), max_watermark_jump="1 hour")
    pipeline = Pipeline(source, options=QUARANTINE)
    pipeline.step({"s": [{"t": first}, {"t": None}]})

    pipeline.step({"s": [{"t": bound}, {"t": bound + datetime.timedelta(seconds=1)}, {"t": None}]})

    assert pipeline.progress["rejected_rows"] == 1
    assert pipeline.view().num_rows == 4


def test_a_time_that_has_no_microseconds_is_beyond_every_bound():
    source = appends("s", {"t": pa.timestamp("s")}, watermark=("t", "0 seconds"), max_watermark_jump="1 hour")
    pipeline = Pipeline(source, options=QUARANTINE)
    pipeline.step({"s": [{"t": SECOND}]})

    pipeline.step({"s": pa.table({"t": pa.array([1 << 62], pa.timestamp("s"))})})

    assert pipeline.progress["rejected_rows"] == 1


def test_days_are_compared_by_their_midnights():
    source = appends("s", {"t": pa.date32()}, watermark=("t", "0 seconds"), max_watermark_jump="1 day")
    pipeline = Pipeline(source, options=QUARANTINE)
    pipeline.step({"s": [{"t": datetime.date(2026, 1, 1)}]})

    pipeline.step({"s": [{"t": datetime.date(2026, 1, 2)}, {"t": datetime.date(2026, 1, 3)}]})

    assert pipeline.progress["rejected_rows"] == 1


def test_every_description_of_a_source_takes_a_bound_and_shows_it():
    jump = {"max_watermark_jump": 5}
    sources = [
        changes("s", QUOTES, keys="k", watermark=("at", 0), **jump),
        versioned("s", QUOTES, keys="k", version_by="at", delay=0, **jump),
        records("s", "upsert-json", QUOTES, keys="k", watermark=("at", 0), **jump),
        appends("s", QUOTES).versioned_by("at", delay=0, **jump),
    ]

    assert [view.plan().sources[0].max_watermark_jump for view in sources] == [5, 5, 5, 5]
    assert "with a watermark 0 behind, rows at most 5 ahead of it" in sources[0].plan().explain(buckets=1)


def test_without_a_watermark_there_is_nothing_to_be_ahead_of():
    with pytest.raises(OptionError, match=r"CONFLICTING_ARGUMENTS.*measured from the watermark"):
        appends("s", QUOTES, event_time="at", max_watermark_jump=5)
