"""A view goes, and the joins of others that looked up in the same table continue with what they remember."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from zset_join.pipeline import PROCESSING_TIME, Pipeline, View, appends, changes, versioned
from zset_join.zset import ZSet

COLUMNS = {"id": pa.int64(), "k": pa.string(), "t": pa.int64()}
RATES = versioned("rates", {"k": pa.string(), "rate": pa.int64(), "at": pa.int64()}, keys="k", version_by="at", delay=0)
NOW = changes("rates", {"k": pa.string(), "rate": pa.int64(), "at": pa.int64()}, keys="k")


def view(kind: str, least: int) -> View:
    if kind == "now":
        return changes("orders", COLUMNS, keys="id").where(f"id > {least}").temporal_join(NOW, on="k", as_of=PROCESSING_TIME)
    left = appends("orders", COLUMNS, watermark=("t", 0)).where(f"id > {least}")
    return left.temporal_join(RATES, on="k", as_of="t", emit=kind, **({"keep_probe_for": 50} if kind == "eager" else {}))


def rate(rate: int, at: int) -> dict[str, Any]:
    return {"k": "x", "rate": rate, "at": at}


def order(number: int, at: int, key: str = "x") -> dict[str, Any]:
    return {"id": number, "k": key, "t": at}


@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("kind", ["on_watermark", "eager", "now"])
@pytest.mark.parametrize("stay", [("b", "c"), ("c",)])
def test_joins_that_stay_answer_as_if_they_had_a_table_of_their_own(
    tmp_path: Path, kind: str, stay: tuple[str, ...], lasts: bool
) -> None:
    where = tmp_path if lasts else None
    views = {name: view(kind, least) for least, name in enumerate("abc")}
    pipeline = Pipeline(views, where)
    alone = {name: Pipeline(views[name]) for name in stay}
    assert pipeline.plan.states[-1].is_shared

    def step(rates: list[dict[str, Any]], orders: list[dict[str, Any]]) -> None:
        shown = pipeline.step({"rates": rates, "orders": orders})
        for name, one in alone.items():
            wanted = one.step({"rates": rates, "orders": orders})
            wanted = wanted if isinstance(wanted, ZSet) else wanted[name]
            assert sorted(map(repr, shown[name].to_pylist())) == sorted(map(repr, wanted.to_pylist())), name

    step([rate(1, 1)], [order(1, 5), order(2, 5), order(3, 9)])
    step([rate(2, 4)], [order(4, 8), order(5, 6)])

    diff = pipeline.evolve({name: views[name] for name in stay})

    assert (diff.rebuilt, all(diff.views[name].status == "unchanged" for name in stay)) == ({}, True)
    if lasts:
        pipeline.close()
        pipeline = Pipeline({name: views[name] for name in stay}, where)
    step([rate(3, 7)], [order(3, 9, "gone")] if kind == "now" else [order(6, 20)])
    step([rate(4, 30)], [order(7, 30)])
    assert all(len(pipeline.view(name).to_pylist()) for name in stay)
    pipeline.close()
