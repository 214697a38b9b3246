"""Event times as numbers, and watermarks beside them; options of every operator."""

from __future__ import annotations

from dataclasses import replace
from datetime import time
from decimal import Decimal

import pyarrow as pa
import pytest

from zset_join import Relation
from zset_join.core.errors import KeyTypeError, OptionError
from zset_join.shapes.event_time import EventTime
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.rows.order_words import time_words


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

    words, missing = time_words(times_of(pa.int64()), batch, 0)

    assert words[0] == 5
    assert missing.tolist() == [False, True]


ORDERED = {
    pa.float64(): [float("-inf"), -1.5, -0.0, 0.25, 1e300, float("inf"), float("nan")],
    pa.float32(): [-2.0, -1e-30, 0.0, 3.5],
    pa.bool_(): [False, True],
    pa.decimal128(18, 4): [Decimal("-1.5"), Decimal("0.0001"), Decimal(7)],
    pa.time64("us"): [time(0, 0), time(9, 30, 0, 1), time(23, 59)],
    pa.time32("s"): [time(0, 0, 1), time(0, 1)],
    pa.uint32(): [0, 2**31, 2**32 - 1],
}


@pytest.mark.parametrize("kind", ORDERED, ids=str)
def test_the_numbers_of_a_type_are_in_the_order_of_its_values_and_null_comes_first(kind):
    batch = pa.RecordBatch.from_arrays([pa.array([None, *ORDERED[kind]], kind)], names=["t"])

    words, missing = time_words(times_of(kind), batch, 0)

    assert (words[1:] > words[:-1]).all()
    assert missing.tolist() == [True] + [False] * len(ORDERED[kind])


@pytest.mark.parametrize("kind", [pa.string(), pa.uint64(), pa.decimal128(19, 0), pa.list_(pa.int64())], ids=str)
def test_what_has_no_order_of_64_bits_is_no_time(kind):
    with pytest.raises(KeyTypeError, match=r"TIME_TYPE.*float or a boolean"):
        times_of(kind)


def test_the_common_type_of_two_times_may_need_labels():
    relations = [Relation(name=str(kind), schema=pa.schema({"t": kind})) for kind in (pa.int64(), pa.uint64())]

    assert EventTime(relations, ["t", "t"], may_label=True).is_labelled
    with pytest.raises(KeyTypeError, match=r"TIME_TYPE.*decimal128"):
        EventTime([replace(relations[0], schema=pa.schema({"t": pa.decimal128(18, 0)})), relations[0]], ["t", "t"])


@pytest.mark.parametrize("kind", [pa.float64(), pa.bool_(), pa.time64("us")], ids=str)
def test_only_timestamps_dates_and_integers_have_watermarks(kind):
    relation = Relation(name="r", schema=pa.schema({"t": kind}), event_time="t")

    with pytest.raises(KeyTypeError, match=r"TIME_TYPE.*with a watermark"):
        EventTime([replace(relation, watermark_delay=0)], ["t"])
    with pytest.raises(KeyTypeError, match=r"TIME_TYPE.*with a watermark"):
        EventTime([relation], ["t"], has_watermark=True)


# ---------------------------------------------------------------- options of every operator


def test_a_policy_for_bad_input_that_does_not_exist_is_refused() -> None:
    with pytest.raises(OptionError, match="ignore") as refused:
        OperatorOptions(on_bad_input="ignore")
    assert refused.value.code == "UNKNOWN_POLICY"


@pytest.mark.parametrize("options", [{"chunk_rows": 0}, {"part_changes": 0}, {"hash_bits": 0}, {"hash_bits": 33}])
def test_chunks_without_rows_and_hashes_of_another_width_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(OptionError) as refused:
        OperatorOptions(**options)  # type: ignore[arg-type]
    assert refused.value.code == "OPTION_RANGE"
