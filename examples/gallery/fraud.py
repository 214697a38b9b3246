"""Cards that pay in two countries within minutes: a self-join with a residual condition, and the rows behind an alert."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from examples.gallery.story import Answers, Epoch, Run, Story
from zset_join import ZSet
from zset_join.expressions import left, right
from zset_join.pipeline import Pipeline, View, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs

__all__ = ["STORY"]

COUNTRIES, WITHIN = ("NO", "IT", "PE", "JP"), 300


def _views() -> dict[str, View]:
    columns = "id BIGINT, card BIGINT, country STRING, amount BIGINT, at BIGINT, cancelled BOOLEAN"
    payments = changes("payments", columns, keys="id", apply_as_deletes="cancelled", except_column_list=["cancelled"])
    apart = (left("country") != right("country")) & (left("at") < right("at")) & (right("at") - left("at") <= WITHIN)
    pairs = payments.join(payments, left("card") == right("card"), condition=apart)
    suspects = pairs.select("card", first=F.col("id"), second=F.col("id_right"), paid=F.col("amount") + F.col("amount_right"))
    cards = suspects.groupBy("card").agg(F.count().alias("pairs"), F.max("paid").alias("most"))
    return {"suspects": suspects, "alerts": cards.where(F.col("pairs") >= 2)}


def _epochs() -> list[Epoch]:
    rng = Random(8)  # noqa: S311 - data of an example
    homes = [rng.choice(COUNTRIES) for _ in range(60)]
    epochs, number = [], 0
    for epoch in range(10):
        rows = []
        for _ in range(40):
            card = rng.randrange(60)
            is_abroad = card % 20 == 7 or rng.random() < 0.02
            country = rng.choice(COUNTRIES) if is_abroad else homes[card]
            at = epoch * 600 + rng.randrange(600)
            rows.append(
                {"id": number, "card": card, "country": country, "amount": rng.randrange(5, 400), "at": at, "cancelled": False}
            )
            number += 1
        if epoch:
            cancelled = {"card": 0, "country": "", "amount": 0, "at": 0, "cancelled": True}
            rows += [{"id": gone, **cancelled} for gone in rng.sample(range(number - 40), 3)]
        epochs.append(Epoch({"payments": rows}))
    return epochs


def _begin() -> Run:
    epochs = _epochs()

    def facts(pipeline: Pipeline[dict[str, ZSet]], answers: Answers) -> Iterator[tuple[str, bool]]:
        live: dict[int, dict[str, Any]] = {}
        for epoch in epochs:
            for row in epoch.rows["payments"]:
                live.pop(row["id"], None)
                if not row["cancelled"]:
                    live[row["id"]] = row
        expected = {
            (one["card"], one["id"], two["id"])
            for one in live.values()
            for two in live.values()
            if one["card"] == two["card"] and one["country"] != two["country"] and 0 < two["at"] - one["at"] <= WITHIN
        }
        view = {(line["card"], line["first"], line["second"]) for line in pipeline.view("suspects").to_pylist()}
        yield (
            f"{len(view)} pairs of payments in two countries within {WITHIN} seconds, as nested loops find them",
            view == expected,
        )
        retracted = {row for answer in answers for row, weight in answer["alerts"].to_pylist() if weight < 0}
        yield (
            f"{pipeline.view('alerts').num_rows} cards are alerted on; {len(retracted)} alerts were replaced",
            bool(retracted),
        )

    return Run(_views(), epochs, facts)


STORY = Story("fraud", "payments of one card in two countries within minutes, cancelled ones retracted", _begin)
