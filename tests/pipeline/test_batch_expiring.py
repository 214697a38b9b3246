"""State that ends by time in a pipeline, verified by DuckDB where it can be."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from zset_join.core.errors import PlanError
from zset_join.pipeline import Pipeline, StateTtl, View, appends, changes
from zset_join.pipeline import functions as F  # noqa: N812 - PySpark's own habit

ORDERS = appends("orders", {"id": pa.int64(), "who": pa.string(), "at": pa.int64()}).versioned_by("at", delay=0)
PEOPLE = changes("people", {"who": pa.string(), "name": pa.string()}, keys="who")
SECOND = 1_000_000


def run(view: View, directory: Path | None = None) -> Pipeline:
    def opened() -> Pipeline:
        if directory is None:
            return Pipeline(view, keep_view=True, keep_inputs=True)
        return Pipeline(view, directory=directory, keep_view=True, keep_inputs=True)

    pipeline = opened()
    people = {"people": [{"who": "A", "name": "Ada"}]} if "people" in [source.name for source in view.plan().sources] else {}
    pipeline.step({"orders": [{"id": 1, "who": "A", "at": 1}, {"id": 2, "who": "B", "at": 5}], **people}, processing_time=0)
    if directory is not None:
        pipeline.close()
        pipeline = opened()
    pipeline.step({"orders": [{"id": 3, "who": "B", "at": 11}]}, processing_time=5 * SECOND)
    pipeline.step({"orders": [{"id": 4, "who": "A", "at": 30}]}, processing_time=11 * SECOND)
    return pipeline


@pytest.mark.parametrize(
    ("view", "rows"),
    [
        (ORDERS.join(PEOPLE, on="who", how="left", state_ttl=(StateTtl(10, by="event"), None)), 1),
        (ORDERS.join(PEOPLE, on="who", how="full", state_ttl=("10 seconds", None)), 2),
        (ORDERS.groupBy("who").agg(F.count().alias("n"), state_ttl=StateTtl("10 seconds", of="row")), 2),
        (ORDERS.dedup(keys="who", order_by="at", state_ttl=StateTtl(10, by="event", of="row")), 1),
    ],
)
def test_the_view_is_the_batch_query_over_the_rows_alive(view: View, rows: int, tmp_path: Path) -> None:
    for pipeline in (run(view), run(view, tmp_path / "pipeline")):
        report = pipeline.verify()
        assert (report.equal, report.actual_rows) == (True, rows)


def test_what_does_not_follow_from_the_rows_is_refused_by_name() -> None:
    pipeline = run(ORDERS.groupBy("who").count(state_ttl="10 seconds"))

    with pytest.raises(PlanError, match='"orders" are alive: the rows of a key live as long as the newest'):
        pipeline.verify()


def test_a_step_without_rows_retracts_expired_rows() -> None:
    pipeline = Pipeline(ORDERS.dedup(keys="who", order_by="at", state_ttl="10 seconds"))
    pipeline.step({"orders": [{"id": 1, "who": "A", "at": 1}]}, processing_time=0)

    assert pipeline.step(processing_time=10 * SECOND).to_pylist() == [((1, "A", 1), -1)]
