"""History of a table (slowly changing dimension, type 2) from its changes: from when to when each row was valid."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from random import Random

from examples.gallery.story import Answers, Epoch, Run, Story
from zset_join import ZSet
from zset_join.pipeline import Pipeline, View, appends
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs

__all__ = ["STORY"]

CUSTOMERS = 30


def _views() -> dict[str, View]:
    changed = appends("changed", "customer BIGINT, city STRING, operation STRING, at BIGINT")
    nexts = changed.select("customer", valid_to=F.col("at"))
    history = changed.join_asof(nexts, on="customer", left_time="at", right_time="valid_to", op="<", how="left")
    kept = history.where("operation <> 'delete'").select("customer", "city", valid_from=F.col("at"), valid_to=F.col("valid_to"))
    now = kept.where(F.col("valid_to").is_null()).select("customer", "city")
    return {"history": kept, "now": now}


def _epochs() -> list[Epoch]:
    rng = Random(21)  # noqa: S311 - data of an example
    events = []
    for customer in range(CUSTOMERS):
        for at in sorted(rng.sample(range(1_000), rng.randrange(1, 9))):
            is_deleted = rng.random() < 0.15
            city = None if is_deleted else rng.choice(("Oslo", "Rome", "Lima", "Kobe"))
            events.append({"customer": customer, "city": city, "operation": "delete" if is_deleted else "update", "at": at})
    events.sort(key=lambda event: event["at"] + (rng.randrange(400) if rng.random() < 0.1 else 0))  # some come late
    return [Epoch({"changed": events[at : at + 20]}) for at in range(0, len(events), 20)]


def _begin() -> Run:
    epochs = _epochs()

    def facts(pipeline: Pipeline[dict[str, ZSet]], answers: Answers) -> Iterator[tuple[str, bool]]:
        by_customer = defaultdict(list)
        for epoch in epochs:
            for event in epoch.rows["changed"]:
                by_customer[event["customer"]].append((event["at"], event["city"]))
        expected = set()
        for customer, events in by_customer.items():
            events.sort()
            ends = [at for at, _ in events[1:]] + [None]
            expected |= {(customer, city, at, end) for (at, city), end in zip(events, ends, strict=True) if city is not None}
        view = {tuple(line.values()) for line in pipeline.view("history").to_pylist()}
        yield f"{len(view)} periods of {len(by_customer)} customers, without gaps but after deletes", view == expected
        closed = sum(1 for answer in answers for row, weight in answer["history"].to_pylist() if weight < 0 and row[3] is None)
        split = sum(
            1 for answer in answers for row, weight in answer["history"].to_pylist() if weight < 0 and row[3] is not None
        )
        yield (
            f"{closed} open periods were closed, {split} closed ones were split by changes that came late",
            closed > 0 and split > 0,
        )

    return Run(_views(), epochs, facts)


STORY = Story("history", "from when to when each row of a table was valid, from its changes, late ones included", _begin)
