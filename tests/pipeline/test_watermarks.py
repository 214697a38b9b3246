"""Watermarks follow the rows of their sources, and stages wait for the slowest of theirs."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from zset_join import OptionError, PlanError, ZSet
from zset_join.pipeline import appends
from zset_join.runners.local.watermarks import Watermarks, time_values

CLICKS = {"user": pa.int64(), "at": pa.int64()}
SECOND = 1_000_000


def clicks(name, delay=2):
    return appends(name, CLICKS, watermark=("at", delay))


def joined():
    return clicks("left").join(clicks("right", delay=0), "user")


def delta(*times):
    return ZSet.of({"user": [1] * len(times), "at": list(times)}, schema=pa.schema(CLICKS))


def stages_after(watermarks, deltas, processing_time_us=0):
    watermarks.known = watermarks.after(deltas, processing_time_us)
    return watermarks.known.stages


def test_a_watermark_is_the_largest_time_minus_the_delay_and_never_goes_back():
    watermarks = Watermarks(clicks("left").distinct().plan())

    stages_after(watermarks, {"left": delta(10, 7)})
    stages_after(watermarks, {"left": delta(5)})

    assert watermarks.known.sources["left"].watermark_us == 8


def test_a_stage_waits_for_the_slowest_of_its_sources():
    watermarks = Watermarks(joined().plan())

    assert stages_after(watermarks, {"left": delta(12)}) == (None,)
    assert stages_after(watermarks, {"right": delta(8)}) == (8,)
    assert watermarks.holding(0) == "right"


def test_a_silent_source_does_not_hold_the_others_up_after_its_timeout():
    watermarks = Watermarks(joined().plan(), idle_timeout_us=5 * SECOND)
    stages_after(watermarks, {"left": delta(12), "right": delta(3)}, 0)

    assert stages_after(watermarks, {"left": delta(22)}, 4 * SECOND) == (3,)
    assert stages_after(watermarks, {"left": delta(32)}, 6 * SECOND) == (30,)


def test_a_source_without_rows_is_silent_since_the_first_epoch():
    watermarks = Watermarks(joined().plan(), idle_timeout_us=5 * SECOND)

    assert stages_after(watermarks, {"left": delta(12)}, 4 * SECOND) == (None,)
    assert watermarks.holding(0) == "right"
    assert stages_after(watermarks, {"left": delta(22)}, 9 * SECOND) == (20,)
    assert watermarks.holding(0) == "left"


def test_a_source_that_wakes_up_does_not_move_a_stage_backwards():
    watermarks = Watermarks(joined().plan(), idle_timeout_us=5 * SECOND)
    stages_after(watermarks, {"left": delta(12), "right": delta(3)}, 0)
    stages_after(watermarks, {"left": delta(32)}, 6 * SECOND)

    assert stages_after(watermarks, {"right": delta(4)}, 7 * SECOND) == (30,)


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([datetime.datetime(1970, 1, 1, 0, 0, 1)], pa.timestamp("us"), [SECOND]),
        ([datetime.datetime(1970, 1, 1, 0, 0, 1)], pa.timestamp("s"), [SECOND]),
        ([datetime.datetime(1970, 1, 1, 0, 0, 1)], pa.timestamp("ns"), [SECOND]),
        ([datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)], pa.timestamp("ms", tz="UTC"), [SECOND]),
        ([datetime.date(1970, 1, 2), None], pa.date32(), [86_400 * SECOND]),
        ([3, None], pa.int32(), [3]),
    ],
)
def test_every_kind_of_time_is_read_in_microseconds_and_integers_as_they_are(values, kind, expected):
    assert time_values(pa.array(values, kind)).tolist() == expected


def test_a_string_is_no_event_time():
    with pytest.raises(PlanError, match="not an event time"):
        time_values(pa.array(["x"]))


def test_the_delay_of_an_integer_time_is_a_number():
    with pytest.raises(OptionError, match="expected a whole number"):
        appends("x", CLICKS, watermark=("at", "10 seconds"))


def test_an_event_time_survives_a_selection_that_keeps_its_column_only():
    kept, lost = clicks("x").select("at"), clicks("x").select("user")

    assert kept.node.relation.watermark_delay == 2
    assert lost.node.relation.event_time is None
