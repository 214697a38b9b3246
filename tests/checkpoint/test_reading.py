"""What a query writes down of its plan is read without its program, or refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from zset_join.checkpoint.reading import PLAN_FILE, query_plan, stages_of
from zset_join.core.errors import StateError
from zset_join.expressions import col
from zset_join.pipeline import Pipeline, View, appends


def counted() -> View:
    return appends("clicks", {"page": pa.string(), "ms": pa.int64()}).where(col("ms") > 3).groupBy("page").count()


def test_the_plan_of_a_directory_is_that_of_its_pipeline(tmp_path: Path) -> None:
    with Pipeline(counted(), directory=tmp_path) as pipeline:
        plan = pipeline.plan

    assert query_plan(str(tmp_path)).to_json() == plan.to_json()
    assert list(stages_of(str(tmp_path))) == ["aggregate-0"]


def test_a_directory_without_a_checkpoint_has_no_plan(tmp_path: Path) -> None:
    with pytest.raises(StateError) as refused:
        query_plan(str(tmp_path))

    assert refused.value.code == "NO_CHECKPOINT"


@pytest.mark.parametrize("damage", ["missing", "cut off"])
def test_a_damaged_plan_is_refused_and_its_query_writes_it_again(tmp_path: Path, damage: str) -> None:
    with Pipeline(counted(), directory=tmp_path):
        pass
    path = tmp_path / "zset" / PLAN_FILE
    whole = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(whole[:-1])
    with pytest.raises(StateError) as refused:
        query_plan(str(tmp_path))
    with Pipeline(counted(), directory=tmp_path):
        pass

    assert refused.value.code == ("PLAN_MISSING" if damage == "missing" else "DAMAGED_FILE")
    assert query_plan(str(tmp_path)).to_json() == counted().plan().to_json()
