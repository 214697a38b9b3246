"""Event times as numbers, and watermarks beside them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from zset_join import Relation
from zset_join.errors import KeyTypeError
from zset_join.state.time.event_time import EventTime


def times_of(kind):
    return EventTime([Relation(name="r", schema=pa.schema({"t": kind}), event_time="t")], ["t"])


@pytest.mark.parametrize(
    ("kind", "watermark", "passed"),
    [
        (pa.timestamp("us"), 1_999_999, 1_999_999),
        (pa.timestamp("ms"), 1_999_999, 1_999),
        (pa.timestamp("s"), 1_999_999, 1),
        (pa.timestamp("ns"), 2, 2_000),
        (pa.date32(), 86_399_999_999, 0),
        (pa.int16(), 7, 7),
    ],
)
def test_a_watermark_is_the_last_time_it_has_passed(kind, watermark, passed):
    times = times_of(kind)

    assert times.of_watermark(watermark) == passed
    assert times.of_watermark(times.as_watermark(passed)) == passed
    assert times.of_watermark(times.as_watermark(passed + 1) - 1) <= passed + 1


def test_a_row_without_a_time_is_marked():
    batch = pa.RecordBatch.from_pydict({"t": pa.array([5, None])})

    words, missing = times_of(pa.int64()).words(batch, 0)

    assert words[0] == 5
    assert missing.tolist() == [False, True]


def test_text_is_no_time():
    with pytest.raises(KeyTypeError, match=r"TIME_TYPE.*string"):
        times_of(pa.string())
