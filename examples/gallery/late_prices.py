"""The price that was valid when an order was made: answered at once, corrected when a price comes late."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from random import Random
from typing import Any

from examples.gallery.story import Answers, Epoch, Run, Story
from zset_join import ZSet
from zset_join.pipeline import Pipeline, View, appends, versioned
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs

__all__ = ["STORY"]

ITEMS = ("vase", "lamp", "rug")
SECOND = 1_000_000


def _views() -> dict[str, View]:
    orders = appends("orders", "id BIGINT, item STRING, at BIGINT", watermark=("at", 60 * SECOND))
    prices = versioned("prices", "item STRING, price BIGINT, since BIGINT", keys="item", version_by="since", delay=60 * SECOND)
    priced = orders.temporal_join(
        prices, on="item", as_of="at", how="left", emit="eager", keep_probe_for=600 * SECOND, late="join"
    ).select("id", "item", "at", "price")
    return {"priced": priced, "revenue": priced.groupBy("item").agg(F.sum("price").alias("revenue"), F.count().alias("orders"))}


def _epochs() -> list[Epoch]:
    rng = Random(5)  # noqa: S311 - data of an example
    epochs, late, number = [], [], 0
    for minute in range(12):
        begin = minute * 20 * SECOND
        orders = [{"id": number + at, "item": rng.choice(ITEMS), "at": begin + rng.randrange(20 * SECOND)} for at in range(12)]
        number += len(orders)
        prices = [{"item": item, "price": rng.randrange(20, 90), "since": begin + rng.randrange(20 * SECOND)} for item in ITEMS]
        held = prices.pop() if minute % 3 == 1 else None  # it comes with the next ones
        epochs.append(Epoch({"orders": orders, "prices": prices + late}))
        late = [] if held is None else [held]
    return epochs


def _begin() -> Run:
    epochs = _epochs()

    def facts(pipeline: Pipeline[dict[str, ZSet]], answers: Answers) -> Iterator[tuple[str, bool]]:
        since: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for epoch in epochs:
            for version in epoch.rows["prices"]:
                since[version["item"]].append((version["since"], version["price"]))
        for versions in since.values():
            versions.sort()
        orders = {order["id"]: order for epoch in epochs for order in epoch.rows["orders"]}

        def price(order: dict[str, Any]) -> int | None:
            at = bisect_right(since[order["item"]], (order["at"], 1 << 60))
            return since[order["item"]][at - 1][1] if at else None

        view = {line["id"]: line["price"] for line in pipeline.view("priced").to_pylist()}
        yield f"{len(view)} orders have the price of their time", view == {key: price(row) for key, row in orders.items()}
        retracted = sum(-weight for answer in answers for _, weight in answer["priced"].to_pylist() if weight < 0)
        yield f"{retracted} of them had been answered with an older price, and were corrected", retracted > 0

    return Run(_views(), epochs, facts)


STORY = Story(
    "late_prices", "orders at the price of their time, with prices that come late and correct what was answered", _begin
)
