"""Stages of every kind emit the same over the columns that they read as over all columns; planted bugs are found.

`note` and `extra` are read by nothing and change all the time, so a stage whose answer follows from when a row changed last is
found where it is narrowed all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from property_tests.bags import text_bag_of
from zset_join.core.errors import ZsetJoinError
from zset_join.expressions import col, left, right
from zset_join.lookup import ArrowSource
from zset_join.pipeline import PROCESSING_TIME, Pipeline, StateTtl, View, appends, changes, versioned
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.plan.passes import prune_columns
from zset_join.stages.current_versions import CurrentVersionsStage
from zset_join.stages.deduplicate import DeduplicateStage
from zset_join.stages.expiring import ExpiringStage
from zset_join.stages.lookup_join import LookupJoinStage
from zset_join.stages.process_time_join import ProcessTimeJoinStage
from zset_join.stages.temporal_join import TemporalJoinStage
from zset_join.stages.timed_join import AsOfJoinStage

_SEEDS = 4
_MORE = {"note": pa.string(), "extra": pa.int64()}
_ROW = {"id": pa.int64(), "k": pa.int64(), "t": pa.int64(), "x": pa.int64(), **_MORE}
_RATE = {"k": pa.int64(), "at": pa.int64(), "x": pa.int64(), "y": pa.string(), **_MORE}
NAMES = ArrowSource(
    name="names", table=pa.table({"k": [0, 1, 2, 2], "city": ["a", "b", "c", "d"], "note": ["n", "o", "p", "q"]})
)


def clicks() -> View:
    return appends("clicks", _ROW, watermark=("t", 3))


def orders() -> View:
    return changes("orders", _ROW, keys="id", watermark=("t", 3))


def quotes() -> View:
    return appends("quotes", _RATE, watermark=("at", 3))


def rates() -> View:
    return versioned("rates", _RATE, keys="k", version_by="at", delay=3)


def rest() -> Any:
    return left("x") <= right("x")


VIEWS: dict[str, Callable[[], View]] = {
    "union": (lambda: clicks().union(orders()).groupBy("k").agg(F.sum("x").alias("s"))),
    "distinct union": (
        lambda: clicks().select("k", "x", "note").union(orders().select("x", "k", "note")).select("k").distinct()
    ),
    "dedup of appends": (lambda: clicks().dedup(keys="k", order_by="t").select("id", "x")),
    "top two of appends": (lambda: clicks().dedup(keys="k", order_by="x desc", n=2).select("x")),
    "dedup of changes": (lambda: orders().dedup(keys="k", order_by="t").select("x")),
    "dedup of changes in order": (lambda: orders().dedup(keys="k", order_by=["t", "id"]).select("x")),
    "dedup behind a join": (lambda: clicks().join(quotes(), "k").dedup(keys="id", order_by="at desc").select("id", "y")),
    "as of appends": (
        lambda: orders().join_asof(quotes(), on="k", left_time="t", right_time="at", how="left").select("id", "x_right")
    ),
    "as of changes": (
        lambda: clicks().join_asof(orders(), on="k", left_time="t", right_time="t", condition=rest()).select("id", "x_right")
    ),
    "as of changes by key": (
        lambda: clicks().join_asof(orders(), on="k", left_time="t", right_time="t", tie="smallest_key").select("id", "x_right")
    ),
    "temporal on watermark": (lambda: clicks().temporal_join(rates(), on="k", as_of="t").select("id", "y")),
    "temporal dropping": (
        lambda: clicks().temporal_join(rates(), on="k", as_of="t", how="left", late="drop", condition=rest()).select("id", "y")
    ),
    "temporal once": (
        lambda: clicks().temporal_join(rates(), on="k", as_of="t", emit="once", late="join").select("id", "x_right")
    ),
    "temporal eager": (
        lambda: orders().temporal_join(rates(), on="k", as_of="t", emit="eager", keep_probe_for=9).select("id", "y")
    ),
    "temporal of quotes": (
        lambda: (
            clicks()
            .temporal_join(quotes().dedup(keys="k", order_by="at", keep="last"), on="k", as_of="t", emit="eager")
            .select("id", "y")
        )
    ),
    "now": (
        lambda: (
            clicks().temporal_join(orders(), on=[("k", "id")], as_of=PROCESSING_TIME, condition=rest()).select("t", "x_right")
        )
    ),
    "now of changes": (lambda: orders().temporal_join(rates(), on="k", as_of=PROCESSING_TIME, how="left").select("id", "y")),
    "looked up": (lambda: clicks().lookup_join(NAMES, on=[(col("k") + 1, "k")], how="left").select("id", "city")),
    "looked up with names": (lambda: clicks().lookup_join(NAMES, on="k").select("id", "note_right")),
    "ending groups": (lambda: clicks().groupBy("k").agg(F.sum("x").alias("s"), state_ttl=StateTtl(4, by="event"))),
    "ending groups of changes": (
        lambda: orders().groupBy("k").agg(F.sum("x").alias("s"), state_ttl=StateTtl("2 seconds", of="row"))
    ),
    "ending join": (
        lambda: clicks().join(orders(), "k", "left", state_ttl=(StateTtl(4, by="event", of="row"), None)).select("k", "x_right")
    ),
    "subquery": (lambda: orders().join(clicks().where(col("x") > 3), "k", "anti").select("id")),
}
KEEPS_ALL = {
    "dedup of changes": 2,
    "as of changes": 2,
    "temporal on watermark": 1,
    "temporal eager": 2,
    "now of changes": 1,
    "ending groups of changes": 2,
}
"""Views whose answers follow from when rows of a changing input changed last: how many inputs of stages keep all columns."""


def steps(seed: int) -> list[dict[str, Any]]:
    """Return changes of all sources, epoch by epoch; what nothing reads differs in most of them."""
    rng = np.random.default_rng([seed, 44])
    found = []
    for epoch in range(8):

        def row(count: int, *names: str, now: int = epoch) -> list[dict[str, Any]]:
            return [
                {
                    **{name: int(rng.integers(4)) for name in names},
                    "x": int(rng.integers(6)),
                    "note": str(rng.integers(3)),
                    "extra": int(rng.integers(3)),
                    **{name: 2 * now + int(rng.integers(-4, 3)) for name in ({"t"} if "id" in names else {"at"})},
                    **({} if "id" in names else {"y": "pqr"[int(rng.integers(3))]}),
                }
                for _ in range(count)
            ]

        found.append(
            {
                "clicks": row(6, "id", "k"),
                "orders": [
                    {**one, **({} if rng.random() < 0.3 else {"k": one["id"] % 2, "x": one["id"], "t": 1})}
                    for one in row(4, "id", "k")
                ],
                "quotes": row(4, "k"),
                "rates": row(3, "k"),
            }
        )
    return found


def compared(name: str, seed: int) -> int:
    """Return how many changed rows of a view were compared, all equal.

    Raises:
        AssertionError: the view over fewer columns emits something else, or keeps what it does not read.
    """
    whole, narrow = Pipeline(VIEWS[name]()), Pipeline(VIEWS[name](), keep_state="needed")
    inputs = [given.relation.schema.names for node in narrow.plan.nodes for given in node.stage.inputs]
    assert sum("extra" in names for names in inputs) == KEEPS_ALL.get(name, 0), f"{name}: {inputs}"
    seen = 0
    for epoch, step in enumerate(steps(seed)):
        rows = {source: given for source, given in step.items() if source in whole.sources}
        expected, actual = (text_bag_of(one.step(rows, processing_time=epoch * 1_000_000)) for one in (whole, narrow))
        assert actual == expected, f"{name}, seed {seed}, epoch {epoch}: {actual} instead of {expected}"
        seen += len(expected)
    return seen


@pytest.mark.parametrize("name", VIEWS)
def test_a_stage_emits_over_what_it_reads_what_it_emits_over_all_columns(name: str) -> None:
    assert sum(compared(name, seed) for seed in range(_SEEDS)) > _SEEDS


def _narrows_all(kind: Any) -> Any:
    original = kind.needs

    def needs(self: Any, shown: Any) -> Any:
        read = original(self, shown)
        return tuple(_columns_but_unread(given) if one is None else one for one, given in zip(read, self.inputs, strict=True))

    return needs


def _columns_but_unread(given: Any) -> frozenset[str]:
    return frozenset(given.relation.schema.names) - {*_MORE}


def _forgets(kind: Any, side: int, *columns: str) -> Any:
    original = kind.needs

    def needs(self: Any, shown: Any) -> Any:
        read = list(original(self, shown))
        read[side] = None if read[side] is None else read[side] - {*columns}
        return tuple(read)

    return needs


BUGS: dict[str, tuple[str, Any, str, Any]] = {
    "a dedup of changes is narrowed": ("dedup of changes", DeduplicateStage, "needs", _narrows_all(DeduplicateStage)),
    "a dedup forgets its order": ("top two of appends", DeduplicateStage, "needs", _forgets(DeduplicateStage, 0, "x")),
    "changes that tie by arrival are narrowed": ("as of changes", AsOfJoinStage, "needs", _narrows_all(AsOfJoinStage)),
    "an as-of join forgets the rest of ON": ("as of changes", AsOfJoinStage, "needs", _forgets(AsOfJoinStage, 0, "x")),
    "left rows that change are narrowed": ("temporal eager", TemporalJoinStage, "needs", _narrows_all(TemporalJoinStage)),
    "a temporal join forgets the rest of ON": (
        "temporal dropping",
        TemporalJoinStage,
        "needs",
        _forgets(TemporalJoinStage, 1, "x"),
    ),
    "rows that change meet rows of another time": (
        "now of changes",
        ProcessTimeJoinStage,
        "needs",
        _narrows_all(ProcessTimeJoinStage),
    ),
    "the left column that names a right one is forgotten": (
        "now",
        ProcessTimeJoinStage,
        "needs",
        _forgets(ProcessTimeJoinStage, 0, "x"),
    ),
    "current versions forget what shows": (
        "now of changes",
        CurrentVersionsStage,
        "needs",
        _forgets(CurrentVersionsStage, 0, "y"),
    ),
    "a looked-up row forgets its key": (
        "looked up with names",
        LookupJoinStage,
        "needs",
        _forgets(LookupJoinStage, 0, "k"),
    ),
    "changes of any column let rows live on": (
        "ending groups of changes",
        ExpiringStage,
        "needs",
        _narrows_all(ExpiringStage),
    ),
    "a union narrows one part only": ("union", prune_columns, "_alike", lambda names, parts, needed: parts),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_of_narrowing_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    view, place, attribute, bug = BUGS[name]
    monkeypatch.setattr(place, attribute, bug)
    monkeypatch.setitem(KEEPS_ALL, view, 0 if "narrows_all" in getattr(bug, "__qualname__", "") else KEEPS_ALL.get(view, 0))

    with pytest.raises((AssertionError, KeyError, ZsetJoinError)):
        sum(compared(view, seed) for seed in range(2 * _SEEDS))
