"""Reconciliation: what was invoiced against what was paid, with FULL OUTER, and an alert while they differ."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from examples.gallery.story import Answers, Epoch, Run, Story
from zset_join import ZSet
from zset_join.pipeline import FunctionSink, Pipeline, View, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs

__all__ = ["STORY"]


def _views() -> dict[str, View]:
    invoices = changes("invoices", "invoice BIGINT, due BIGINT", keys="invoice")
    payments = changes("payments", "payment BIGINT, invoice BIGINT, amount BIGINT", keys="payment")
    paid = payments.groupBy("invoice").agg(F.sum("amount").alias("paid"))
    both = invoices.join(paid, on="invoice", how="full")
    state = (
        F.when(F.col("due").is_null(), "no invoice")
        .when(F.col("paid").is_null(), "unpaid")
        .when(F.col("paid") < F.col("due"), "too little")
        .when(F.col("paid") > F.col("due"), "too much")
        .otherwise("settled")
    )
    reconciled = both.withColumn("state", state)
    return {"reconciled": reconciled, "alerts": reconciled.where(F.col("state").isin("no invoice", "too much"))}


def _epochs() -> list[Epoch]:
    rng = Random(13)  # noqa: S311 - data of an example
    epochs: list[Epoch] = []
    dues: dict[int, int] = {}
    payment = 0
    for epoch in range(10):
        invoices = [{"invoice": epoch * 10 + at, "due": rng.randrange(1, 9) * 100} for at in range(10)]
        dues |= {row["invoice"]: row["due"] for row in invoices}
        payments = []
        for invoice in rng.sample(sorted(dues), min(len(dues), 9)):
            amount = dues[invoice] if rng.random() < 0.7 else dues[invoice] // 2
            payments.append(
                {"payment": payment, "invoice": invoice if rng.random() < 0.95 else 900 + payment, "amount": amount}
            )
            payment += 1
        if epoch > 2:  # a transfer that was booked on a wrong invoice is booked again
            payments.append({"payment": rng.randrange(payment), "invoice": rng.choice(sorted(dues)), "amount": 100})
        epochs.append(Epoch({"invoices": invoices, "payments": payments}))
    return epochs


def _begin() -> Run:
    epochs = _epochs()
    open_alerts: dict[int, str] = {}
    sent: list[str] = []

    def alert(epoch: int, delta: ZSet) -> None:
        for row, weight in delta.to_pylist():  # retractions come first: an alert that only changes is not closed
            line = dict(zip(delta.schema.names, row, strict=True))
            if weight < 0:
                del open_alerts[line["invoice"]]
            else:
                open_alerts[line["invoice"]] = line["state"]
                sent.append(f"epoch {epoch}: invoice {line['invoice']}: {line['state']}")

    def facts(pipeline: Pipeline[dict[str, ZSet]], answers: Answers) -> Iterator[tuple[str, bool]]:
        dues: dict[int, int] = {}
        payments: dict[int, dict[str, Any]] = {}
        for epoch in epochs:
            dues |= {row["invoice"]: row["due"] for row in epoch.rows["invoices"]}
            payments |= {row["payment"]: row for row in epoch.rows["payments"]}
        paid: dict[int, int] = {}
        for row in payments.values():
            paid[row["invoice"]] = paid.get(row["invoice"], 0) + row["amount"]
        view = {line["invoice"]: (line["due"], line["paid"]) for line in pipeline.view("reconciled").to_pylist()}
        yield (
            f"{len(view)} invoices and payments are side by side",
            view == {key: (dues.get(key), paid.get(key)) for key in dues.keys() | paid.keys()},
        )
        expected = {line["invoice"]: line["state"] for line in pipeline.view("alerts").to_pylist()}
        yield (
            f"{len(sent)} alerts were sent, {len(open_alerts)} are open",
            open_alerts == expected and len(sent) > len(expected),
        )
        yield f"the last one: {sent[-1]}", len(answers) == len(epochs)

    return Run(_views(), epochs, facts, outputs={"alerts": [FunctionSink(alert)]})


STORY = Story("payments", "invoices against payments with FULL OUTER; an alert opens and closes with its difference", _begin)
