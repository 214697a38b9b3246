"""Stock in warehouses with most of the state on disk: the budget holds fifty rows of a join, the tables have thousands."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from examples.gallery.story import Answers, Epoch, Run, Story
from zset_join import ZSet
from zset_join.core.options import HotBudget
from zset_join.pipeline import Pipeline, View, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.stages import StageOptions

__all__ = ["STORY"]

ITEMS, WAREHOUSES, HOT = 1_000, 4, 50


def _views() -> dict[str, View]:
    stock = changes("stock", "place BIGINT, item BIGINT, warehouse BIGINT, pieces BIGINT", keys="place")
    items = changes("items", "item BIGINT, kind STRING, least BIGINT", keys="item")
    valued = stock.join(items, on="item")
    low = valued.where(F.col("pieces") < F.col("least")).select("place", "item", "warehouse", "pieces", "least")
    return {"low": low, "by_kind": valued.groupBy("kind", "warehouse").agg(F.sum("pieces").alias("pieces"))}


def _epochs() -> list[Epoch]:
    rng = Random(3)  # noqa: S311 - data of an example
    items = [{"item": at, "kind": ("bolt", "nut", "gear")[at % 3], "least": at % 7} for at in range(ITEMS)]

    def place(number: int) -> dict[str, int]:
        return {"place": number, "item": number // WAREHOUSES, "warehouse": number % WAREHOUSES, "pieces": rng.randrange(40)}

    epochs = [Epoch({"items": items, "stock": [place(at) for at in range(ITEMS * WAREHOUSES)]})]
    changed = ([place(rng.randrange(ITEMS * WAREHOUSES)) for _ in range(30)] for _ in range(8))
    epochs.extend(Epoch({"stock": rows}) for rows in changed)
    return epochs


def _begin() -> Run:
    epochs = _epochs()

    def facts(pipeline: Pipeline[dict[str, ZSet]], answers: Answers) -> Iterator[tuple[str, bool]]:
        pieces = {row["place"]: row["pieces"] for epoch in epochs for row in epoch.rows["stock"]}
        expected = {place: left for place, left in pieces.items() if left < (place // WAREHOUSES) % 7}
        view = {line["place"]: line["pieces"] for line in pipeline.view("low").to_pylist()}
        yield f"{len(view)} places hold too little", view == expected
        state = pipeline.statistics()["join-0"]
        hot, cold = (state[f"left_{kind}_rows"] + state[f"right_{kind}_rows"] for kind in ("hot", "cold"))
        yield f"{hot} rows of the join are in memory, {cold} on disk", hot <= HOT and hot + cold == ITEMS * (WAREHOUSES + 1)
        yield f"the last epoch changed {len(answers[-1]['by_kind'].to_pylist())} lines by kind and warehouse", True

    options = StageOptions(hot_budget=HotBudget(max_hot_keys=HOT), table_budget=HotBudget(max_hot_keys=HOT))
    return Run(_views(), epochs, facts, options)


STORY = Story("inventory", f"five thousand rows of stock and items joined with at most {HOT} of them in memory", _begin)
