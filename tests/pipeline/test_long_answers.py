"""A pipeline takes the answer of a join in one piece where the join makes it at once, so that it is not copied."""

from __future__ import annotations

import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.pipeline import Pipeline, changes
from zset_join.runners.local.engine import with_long_chunks
from zset_join.stages.join import JoinStage
from zset_join.stages.stage import StageOptions
from zset_join.zset import ZSet

ROWS = 520  # 270,400 pairs, more than 2^18
LEFT = Relation(
    name="l", schema=pa.schema({"k": pa.int64(), "a": pa.int64()}), join_key=("k",), primary_key=("a",), mode="upsert"
)
RIGHT = Relation(
    name="r", schema=pa.schema({"k": pa.int64(), "b": pa.int64()}), join_key=("k",), primary_key=("b",), mode="upsert"
)
DELTAS = [ZSet.of({"k": [7] * ROWS, name: list(range(ROWS))}) for name in ("a", "b")]


def test_an_answer_of_many_rows_is_one_chunk_and_is_listed_in_several() -> None:
    stage = JoinStage(left=LEFT, right=RIGHT)
    operator = stage.build(with_long_chunks(StageOptions()), None)

    answer = list(operator.answer(Tick(0), DELTAS))
    operator.absorb(Tick(0), DELTAS)
    listed = [len(chunk) for chunk in operator.listed()]  # type: ignore[attr-defined]

    assert [len(chunk) for chunk in answer] == [ROWS * ROWS]
    assert listed == [1 << 18, ROWS * ROWS - (1 << 18)]
    operator.close()


def test_retractions_of_an_answer_are_counted() -> None:
    rows = changes("rows", {"id": pa.int64(), "x": pa.int64()}, keys="id")
    with Pipeline({"all": rows, "positive": rows.filter("x > 0")}, keep_view=False) as pipeline:
        pipeline.step({"rows": [{"id": number, "x": number} for number in range(5)]})
        pipeline.step({"rows": [{"id": number, "x": number - 2} for number in range(1, 7)]})

        views = pipeline.progress["views"]

    assert views["all"] == {"answer_rows": 10, "retractions": 4}
    assert views["positive"] == {"answer_rows": 8, "retractions": 4}
    assert (pipeline.progress["answer_rows"], pipeline.progress["retractions"]) == (18, 8)
