"""Views of every kind of stage that has a batch query, and pipelines that run them over random changes."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa

from zset_join.expressions import Call, col, left, lit, right
from zset_join.pipeline import PROCESSING_TIME, Pipeline, StateTtl, View, appends, changes, versioned
from zset_join.pipeline import functions as ZF  # noqa: N812 - as users write F

__all__ = ["VIEWS", "ran"]

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
DAY = "1 day"
NAMES = {"l": ("id", "t", "x"), "r": ("rid", "u", "y")}
NUMBER, DATE, STAMP, TEXT = pa.int64(), pa.date32(), pa.timestamp("us"), pa.string()

MORE = {"s": NUMBER, "op": pa.string()}  # of what is upserted
DELETES = col("op") == "d"


def columns(name: str, time: pa.DataType = NUMBER) -> dict[str, pa.DataType]:
    """Return a number, a time and an amount, by names that are the source's own, and a key."""
    number, at, amount = NAMES[name]
    return {number: NUMBER, "k": pa.string(), at: time, amount: pa.decimal128(9, 2)}


def upserts(name: str) -> View:
    return changes(
        name,
        columns(name) | MORE,
        keys=NAMES[name][0],
        sequence_by="s",
        apply_as_deletes=DELETES,
        except_column_list=["s", "op"],
    )


def log(name: str, time: pa.DataType = NUMBER, delay: Any = 1) -> View:
    watermark = None if delay is None else (NAMES[name][1], delay)
    return changes(name, {**columns(name, time), "w": NUMBER}, weight_column="w", watermark=watermark)


def events(name: str, time: pa.DataType = NUMBER, delay: Any = 1) -> View:
    return appends(name, columns(name, time), watermark=(NAMES[name][1], delay))


def versions(view: View) -> View:
    return view.dedup(keys="k", order_by="u", keep="last")


def joined(one: View, other: View, how: str) -> View:
    near = (left("t") <= right("u")) | (left("x") < right("y")) | (Call("instr", (left("k"), lit("c"))) == 1)
    return one.join(other, on="k", how=how, condition=near)


ON_TIME: dict[str, Any] = {"on": "k", "as_of": "t"}
BY_CLOCK: dict[str, Any] = {"on": "k", "as_of": PROCESSING_TIME, "snapshot": "previous"}
AS_OF: dict[str, Any] = {"on": "k", "left_time": "t", "right_time": "u"}
VIEWS: dict[str, View] = {
    **{how: joined(upserts("l"), log("r"), how) for how in ("inner", "left", "right", "full", "left_semi", "left_anti")},
    "groups": log("l").groupBy("k").agg(
        ZF.count().alias("n"), ZF.sum("x").alias("total"), ZF.avg("x").alias("mean"), ZF.min_by("id", "t").alias("first"),
        ZF.max_by("id", "t").alias("last"), ZF.count_distinct("t").alias("times"), ZF.max("t").alias("top"),
        ZF.collect_set("t").alias("set"), ZF.collect_list("id").alias("list"),
    ),
    "everything": upserts("l").where(col("t") > 1).agg(ZF.sum("t").alias("total")),
    "distinct behind steps": log("l").where(col("t") > 2).select("k", u=col("t") * 2).distinct(),
    "dedup": log("r").dedup(keys="k", order_by=["u desc"], keep="first", n=2),
    "as of": log("l").join_asof(log("r"), **AS_OF, op=">=", how="left", tolerance=2),
    "as of, days": log("l", DATE, DAY).join_asof(log("r", DATE, DAY), **AS_OF, op="<", tolerance="2 days"),
    "as of, text": log("l", TEXT, None).join_asof(log("r", TEXT, None), **AS_OF, op="<", how="left"),
    "eager, text": log("l", TEXT, None).versioned_by("t").temporal_join(
        versioned("r", {**columns("r", TEXT), **MORE}, keys="k", version_by="u", sequence_by="s", apply_as_deletes=DELETES),
        **ON_TIME, how="left", emit="eager", is_change_time=True,
    ),
    "once": events("l").temporal_join(versions(log("r")), **ON_TIME, how="left", emit="once"),
    "on watermark": events("l", STAMP, DAY).temporal_join(versions(log("r", STAMP, DAY)), **ON_TIME, emit="on_watermark"),
    "late joined": events("l").temporal_join(
        versions(log("r")), **ON_TIME, how="left", emit="on_watermark", late="join", condition=left("x") <= right("y")
    ),
    "eager": log("l", DATE, DAY).temporal_join(
        versions(log("r", DATE, DAY)), **ON_TIME, how="left", emit="eager", late="join", keep_probe_for="36 hours"
    ),
    "by the clock": events("l").temporal_join(upserts("r"), **BY_CLOCK, how="left", condition=left("t") >= right("u")),
    "versions by the clock": events("l", STAMP, DAY).temporal_join(versions(events("r", STAMP, DAY)), **BY_CLOCK),
    "what ends": events("l").join(upserts("r"), on="k", how="full", state_ttl=(StateTtl(2, by="event"), None)),
    "what ends by the clock": events("l").join(upserts("r"), on="k", state_ttl=("4 days", None)),
    "a chain": log("l").groupBy("k").count().join(upserts("r"), on="k", how="full").dedup(keys="k", order_by=["u", "rid"]),
    "a union": log("l").select("k", "t").union(events("r").select("k", t=col("u"))).groupBy("k").count(),
}  # fmt: skip


def ran(view: View, seed: int) -> Pipeline:
    """Return a pipeline after some epochs of random changes."""
    draw, number = random.Random(seed), 0
    pipeline = Pipeline(view, keep_inputs=True)
    live: dict[str, list[dict[str, Any]]] = {"l": [], "r": []}
    for epoch in range(5):
        deltas: dict[str, list[dict[str, Any]]] = {}
        for source in pipeline.plan.sources:
            name, schema = source.name, source.relation.schema
            is_upsert, has_weights = source.relation.mode == "upsert", source.relation.mode == "changelog"
            rows = []
            for _ in range(draw.randint(3, 6)):
                number += 1
                at = 3 * epoch + draw.randint(-3, 3)
                kind = schema.field(NAMES[name][1]).type
                day = START + dt.timedelta(days=at)
                times = {NUMBER: at, DATE: day.date(), STAMP: day.replace(tzinfo=None), TEXT: day.strftime("%d.%m.é")}
                values = (
                    draw.randint(1, 8) if is_upsert else number,
                    times[kind],
                    draw.choice([None, Decimal("1.25"), Decimal("2.5")]),
                )
                key = draw.choice("abc") if name == "r" else draw.choice(["a", "b", "c", None])
                row = {"k": key, **dict(zip(NAMES[name], values, strict=True))}
                rows.append(row | ({"s": number, "op": draw.choice("uuud")} if is_upsert else {}))
            if has_weights:
                live[name] += rows
                gone = draw.sample(live[name], 1)[0]
                live[name].remove(gone)
                rows = [row | {"w": 1} for row in rows] + [gone | {"w": -1}]
            deltas[name] = rows
        pipeline.step(deltas, processing_time=int((START + dt.timedelta(days=3 * epoch)).timestamp()) * 1_000_000)
    return pipeline
