"""Joins by time over every type that has an order, against DuckDB."""

from __future__ import annotations

import itertools
from datetime import date, datetime, time, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from zset_join.core.errors import KeyTypeError, OptionError
from zset_join.pipeline import PROCESSING_TIME, Pipeline, appends, versioned

NAN, INFINITE = float("nan"), float("inf")
VALUES = {
    pa.float64(): [-INFINITE, -1.5, -0.0, 0.0, 0.1, 1e300, NAN],
    pa.float32(): [-2.0, -0.5, 0.0, 0.25, 3.0],
    pa.bool_(): [False, True],
    pa.decimal128(18, 3): [Decimal(-7), Decimal("0.001"), Decimal("12.5")],
    pa.time64("us"): [time(0, 0), time(9, 30, 0, 1), time(23, 59, 59)],
    pa.duration("us"): [timedelta(days=-40), timedelta(0), timedelta(microseconds=1), timedelta(days=31), timedelta(days=400)],
    pa.date32(): [date(1969, 12, 31), date(2020, 2, 29)],
    pa.timestamp("us"): [datetime(1969, 12, 31), datetime(2020, 2, 29, 1)],
    pa.int64(): [-5, 0, 7],
    pa.uint64(): [0, 1, 2**64 - 1],
    pa.decimal128(38, 3): [Decimal(-7), Decimal("0.001"), Decimal("12345678901234567890.5")],
    pa.string(): ["", "9", "A", "a", "ab", "é", "\uffff", "\U0001f600"],
    pa.binary(): [b"", b"\x00", b"a", b"\xff"],
}
SIDEWAYS = list(itertools.product((">=", ">", "<=", "<"), ("inner", "left")))
LOOKS = {kind: SIDEWAYS if kind == pa.int64() else [(">=", "inner"), ("<", "left")] for kind in VALUES}
WITHOUT_NEWEST = {pa.uint64(), pa.decimal128(38, 3), pa.string(), pa.binary()}


def fed(view, kind):
    """Return a pipeline that was given a right row of every second value, then left rows of all, then the other right rows."""
    pipeline, values = Pipeline(view, keep_inputs=True), VALUES[kind]
    right = [{"k": "a", "v": number, "at": value} for number, value in enumerate(values)]
    pipeline.step({"right": right[::2]}, processing_time=0)
    pipeline.step({"left": [{"k": "a", "t": value} for value in [*values, None]]}, processing_time=1)
    pipeline.step({"right": right[1::2]}, processing_time=2)
    return pipeline


def inputs(kind):
    left = {"k": pa.string(), "t": kind}
    right = {"k": pa.string(), "v": pa.int64(), "at": kind}
    return left, right


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_an_as_of_join_looks_both_ways_over_every_ordered_type(kind):
    left, right = inputs(kind)
    for op, how in LOOKS[kind]:
        view = appends("left", left).join_asof(appends("right", right), on="k", left_time="t", right_time="at", op=op, how=how)
        pipeline = fed(view, kind)

        assert pipeline.verify().equal, (op, pipeline.verify())
        assert pipeline.view().num_rows >= len(VALUES[kind]) - 2


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_a_temporal_join_takes_every_ordered_type_and_corrects(kind):
    left, right = inputs(kind)
    rights = versioned("right", right, keys="k", version_by="at")
    for emit in ("eager", "once"):
        joined = appends("left", left).temporal_join(rights, on="k", as_of="t", how="left", emit=emit)
        pipeline, values = Pipeline(joined, keep_inputs=True), VALUES[kind]
        rows = [{"k": "a", "v": number, "at": value} for number, value in enumerate(values)]
        pipeline.step({"right": rows[::2], "left": [{"k": "a", "t": value} for value in values]})
        pipeline.step({"right": rows[1::2]})

        assert pipeline.verify().equal, (emit, pipeline.verify())
    if kind in WITHOUT_NEWEST:
        with pytest.raises(KeyTypeError, match="TIME_TYPE"):
            appends("left", left).temporal_join(rights, on="k", as_of=PROCESSING_TIME).plan()
        return
    newest = Pipeline(appends("left", left).temporal_join(rights, on="k", as_of=PROCESSING_TIME), keep_inputs=True)
    newest.step({"right": rows, "left": [{"k": "a", "t": values[0]}]})
    assert newest.verify().equal


def test_what_has_no_distance_or_order_is_refused_by_name():
    left, right = inputs(pa.float64())
    with pytest.raises(OptionError, match=r"OPTION_VALUE.*double"):
        appends("left", left).join_asof(appends("right", right), on="k", left_time="t", right_time="at", tolerance=1)
    with pytest.raises(OptionError, match=r"OPTION_VALUE.*double"):
        appends("left", left, watermark=("t", 0))
    left, right = inputs(pa.list_(pa.string()))
    with pytest.raises(KeyTypeError, match=r"TIME_TYPE.*list.*text or bytes"):
        appends("left", left).join_asof(appends("right", right), on="k", left_time="t", right_time="at").plan()


def test_joins_by_a_time_of_text_share_a_table_and_go_on_from_their_checkpoint(tmp_path):
    left, right = inputs(pa.string())
    rights = versioned("right", right, keys="k", version_by="at")
    both = [
        appends(name, left).temporal_join(rights, on="k", as_of="t", how="left", emit="eager").select("t", "v") for name in "ab"
    ]
    view = both[0].union(both[1])
    with Pipeline(view, directory=tmp_path, keep_inputs=True) as pipeline:
        pipeline.step({"right": [{"k": "x", "v": 1, "at": "b"}], "a": [{"k": "x", "t": "c"}, {"k": "x", "t": "a"}]})
    with Pipeline(view, directory=tmp_path, keep_inputs=True) as pipeline:
        pipeline.step({"right": [{"k": "x", "v": 2, "at": "bb"}], "b": [{"k": "x", "t": "ba"}]})

        assert pipeline.verify().equal
        shown = [(row["t"], row["v"]) for row in pipeline.view().to_pylist()]
    assert sorted(shown, key=str) == [("a", None), ("ba", 1), ("c", 2)]
