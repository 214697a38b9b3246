"""`step` returns every changed row once, also where equal rows arrive."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from zset_join.pipeline import PROCESSING_TIME, Pipeline, appends, changes, versioned

LEFT = {"id": pa.int64(), "k": pa.string(), "t": pa.int64()}
RIGHT = {"k": pa.string(), "v": pa.int64(), "at": pa.int64()}


def left():
    return appends("l", LEFT, watermark=("t", 0))


def temporal(emit):
    versions = versioned("r", RIGHT, keys="k", version_by="at", delay=0)
    return left().temporal_join(versions, on="k", as_of="t", emit=emit, how="left")


VIEWS = {
    "join": lambda: left().join(appends("r", RIGHT), on="k"),
    "once": lambda: temporal("once"),
    "on_watermark": lambda: temporal("on_watermark"),
    "eager": lambda: temporal("eager"),
    "as_of": lambda: left().join_asof(appends("r", RIGHT), on="k", left_time="t", right_time="at", how="left"),
    "process_time": lambda: left().temporal_join(changes("r", RIGHT, keys="k"), on="k", as_of=PROCESSING_TIME, how="left"),
}


@pytest.mark.parametrize("kind", VIEWS)
def test_equal_rows_are_one_line_of_the_answer_and_retractions_come_first(kind):
    pipeline = Pipeline(VIEWS[kind]())
    twice = [{"id": 1, "k": "a", "t": 5}] * 2
    epochs = [
        {"l": twice, "r": [{"k": "a", "v": 1, "at": 3}]},
        {"l": twice, "r": [{"k": "a", "v": 2, "at": 4}]},
        {"l": [{"id": 9, "k": "z", "t": 9}], "r": [{"k": "z", "v": 1, "at": 9}]},
    ]

    answers = [pipeline.step(rows).to_pylist() for rows in epochs]

    assert all(max(Counter(row for row, _ in answer).values(), default=1) == 1 for answer in answers)
    assert all([weight > 0 for _, weight in answer] == sorted(weight > 0 for _, weight in answer) for answer in answers)
    assert max(weight for answer in answers for _, weight in answer) >= 2
