"""Random queries with answers of their moment that are changed while they run: lookups, processing time, event time, lifetimes.

A core is a lookup join in a table whose rows change with every epoch, a join by processing time, a temporal join, an as-of
join, a dedup, or a join or group whose rows expire. Two queries have a core in common, and differ in what is behind it, beside
it or in place of it.

The laws are those of `evolving`; the query from the start is given the table, and the processing time, that each epoch had. So
an answer that was looked up stays as it was, a row that waits is answered when it would have been, and nothing is late or
expired that was not. The answers of all epochs and the differences add up to the views.

A pair whose new stages find their rows in a view, in a source of rows, or in a core that lists its answer must not be refused;
nor one with `as_now`, whose new core holds what it would hold had all rows come in the epoch of the change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from property_tests.bags import bag_of
from property_tests.evolving import Outcome, References, change_query, compare_views
from property_tests.laws import LawBrokenError
from property_tests.pipeline_plans import Rows
from zset_join.expressions import col, left, right
from zset_join.lookup import FunctionSource, Lookup
from zset_join.pipeline import PROCESSING_TIME, Pipeline, StateTtl, View, appends, changes, versioned
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.zset import ZSet

__all__ = [
    "CORES",
    "SOURCES",
    "Moments",
    "TimedPair",
    "changed_timed_queries_hold",
    "drawn_core",
    "drawn_pair",
    "drawn_timed_steps",
]

SECOND = 1_000_000
EPOCHS = 7
_AS_NOW, _BESIDE = 10, 5
CORES = ("lookup", "moment", "temporal", "as_of", "dedup", "living", "groups")
_LISTS = frozenset({"lookup", "moment"})
"""Cores whose state lists their answer, over rows that may be retracted."""

ORDERS = changes("orders", {"id": pa.int64(), "k": pa.int64(), "n": pa.int64(), "t": pa.int64()}, keys="id")
SEEN = appends("seen", {"k": pa.int64(), "n": pa.int64(), "t": pa.int64()}, watermark=("t", 3))
PEOPLE = changes("people", {"p": pa.int64(), "r": pa.int64()}, keys="p")
QUOTES = appends("quotes", {"q": pa.int64(), "at": pa.int64(), "r": pa.int64()})
RATES = versioned(
    "rates",
    {"k": pa.int64(), "r": pa.int64(), "at": pa.int64()},
    keys="k",
    version_by="at",
    delay=2,
    apply_as_deletes=col("r") < 0,
)
SOURCES = {"orders": ORDERS, "seen": SEEN, "people": PEOPLE, "quotes": QUOTES, "rates": RATES}


class Moments:
    """An external table with other rows in every epoch: they follow from the seed, the epoch and the key.

    Args:
        seed: of its rows.

    Attributes:
        now: the epoch.
        calls: keys that were looked up.
    """

    def __init__(self, seed: int) -> None:
        self._seed, self.now, self.calls = seed, 0, 0
        schema = pa.schema({"p": pa.int64(), "r": pa.int64()})
        self.source = FunctionSource(name="moments", schema=schema, function=self.found)

    def found(self, keys: pa.Table) -> pa.Table:
        """Return the rows of keys now: none, one or two each."""
        self.calls += keys.num_rows
        found = []
        for key in keys.column("p").to_pylist():
            rng = np.random.default_rng([self._seed, self.now, key])
            found += [{"p": key, "r": int(rng.integers(5))} for _ in range(int(rng.integers(3)))]
        return pa.Table.from_pylist(found, schema=self.source.schema)


@dataclass(frozen=True)
class TimedPair:
    """Hold two queries.

    Args:
        name: what they are, for messages.
        before: the query that runs.
        after: the one it is changed to.
        must: neither direction may be refused once all sources are there: `both`, `there`; or `may`.
        as_now: new stages take all rows now.
    """

    name: str
    before: dict[str, View]
    after: dict[str, View]
    must: str = "both"
    as_now: bool = False


def drawn_core(
    kind: str,
    rng: np.random.Generator,
    moments: Moments,
    *,
    is_tied_by_content: bool = False,
    only_adds: bool = False,
    more: int = 0,
) -> tuple[View, bool]:
    """Return a view with the columns k, n and r, and whether its state lists its answer.

    Args:
        kind: one of `CORES`.
        rng: what it is drawn from.
        moments: where it looks up.
        is_tied_by_content: a dedup chooses by content alone, and not by which row came first.
        only_adds: of rows that are only added, not of upserts.
        more: how much longer rows live that expire.
    """

    def one(*choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    how = one("inner", "left")
    upserts = bool(rng.random() < 0.5) and not only_adds
    rows = ORDERS if upserts else SEEN
    residual = (left("n") <= right("r")) if rng.random() < 0.3 else None
    match kind:
        case "lookup":
            waits = Lookup(
                retry_predicate="lookup_miss",
                retry_strategy="fixed_delay",
                fixed_delay=one("1s", "2s"),
                max_attempts=one(1, 2),
                park="epochs",
            )
            view = rows.lookup_join(moments.source, on=[("k", "p")], how=how, hint=one(waits, None), condition=residual)
        case "moment":
            snapshot = one("current", "previous")
            on = [("k", "p")]
            view = rows.temporal_join(PEOPLE, on, how, as_of=PROCESSING_TIME, snapshot=snapshot, condition=residual)
        case "temporal":
            emit = one("on_watermark", "on_watermark", "eager", "once")
            more = {"keep_probe_for": one(5, 40)} if emit == "eager" else {}
            view = SEEN.temporal_join(RATES, "k", how, as_of="t", emit=emit, is_change_time=True, condition=residual, **more)
        case "as_of":
            op, tolerance = one(">=", ">", "<=", "<"), one(None, 6)
            view = rows.join_asof(
                QUOTES, [("k", "q")], how, left_time="t", right_time="at", op=op, tolerance=tolerance, condition=residual
            )
        case "dedup":
            order, keep = one("t", "n desc", "t desc"), one("first", "last")
            order_by = [order, "n"] if is_tied_by_content else [order]
            view = rows.dedup("k", order_by=order_by, keep=keep, n=one(1, 2)).select("k", "n", r=col("t"))
            return view, False
        case "living":
            ttl = StateTtl(one(8, 25) + more, by="event")
            view = SEEN.join(PEOPLE, [("k", "p")], how, condition=residual, state_ttl=(ttl, None))
        case _:
            ttl = StateTtl(one(8, 25) + more, by="event", of=one("row", "key"))
            view = SEEN.groupBy("k").agg(F.sum("n").alias("n"), F.max("t").alias("r"), state_ttl=ttl)
            return view, False
    return view.select("k", "n", "r"), upserts and kind in _LISTS


def _groups(view: View, which: int, *, by: str) -> View:
    number = (F.sum("r"), F.max("n"), F.min("r"), F.count_distinct("n"))[which]
    return view.groupBy(by).agg(number.alias("v"), F.count().alias("c"))


def drawn_pair(rng: np.random.Generator, moments: Moments, kinds: tuple[str, ...] = CORES) -> TimedPair:
    """Return two queries with a core in common, or with one that is dropped, added or built."""

    def one(*choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    kind, other = one(*kinds), one(*kinds)
    case, own = int(rng.integers(11)), int(rng.integers(1 << 30))
    core, lists = drawn_core(kind, np.random.default_rng(own), moments, is_tied_by_content=case == _AS_NOW)
    beside, _ = drawn_core(other, rng, moments)
    if case == _BESIDE and kind in ("living", "groups"):  # the same, and its rows live longer
        other, (beside, _) = kind, drawn_core(kind, np.random.default_rng(own), moments, more=9)
    first, second = rng.choice(4, 2, replace=False)
    by, other_by = one(("k", "k"), ("k", "n"))
    people = PEOPLE.select("r", k=col("p"))
    name = f"{kind}, case {case}"
    match case:
        case 0:
            return TimedPair(name, {"a": core}, {"a": core.where(one(col("n") > 1, col("r").isNotNull()))}, "there")
        case 1:
            before, after = _groups(core, first, by=by), _groups(core, second, by=other_by)
            return TimedPair(name, {"a": core, "g": before}, {"a": core, "g": after})
        case 2:
            before, after = _groups(core, first, by=by), _groups(core, second, by=other_by)
            return TimedPair(name, {"g": before}, {"g": after}, "both" if lists else "may")
        case 3:
            joined = core.join(people, on="k", how=one("inner", "left", "full", "semi", "anti"))
            return TimedPair(name, {"a": core, "p": people}, {"a": core, "p": people, "b": joined.select("k", "n")})
        case 4:
            return TimedPair(f"{name}, with {other}", {"a": core, "b": beside}, {"a": core}, "there")
        case 5:
            moved = {"b": core.select("k", "r", "n", m=col("n") + 1), "a": beside}
            return TimedPair(f"{name}, with {other}", {"a": core, "b": beside}, moved)
        case 6:
            union = core.union(beside) if core.columns == beside.columns else core
            return TimedPair(f"{name}, with {other}", {"a": core, "c": beside}, {"a": core, "c": beside, "u": union.distinct()})
        case 7:
            source = one("orders", "seen", "rates")
            there = SOURCES[source].select("k", v=col("r" if source == "rates" else "n"))
            return TimedPair(name, {"a": core}, {"a": core, "s": there}, "may")
        case 8:
            kind = "as_of" if kind in ("living", "groups") else kind  # another lifetime is no other stage
            other_seed = own if kind == "lookup" else own + 1
            elsewhere, _ = drawn_core(kind, np.random.default_rng(other_seed), Moments(own))
            return TimedPair(f"{name}, another {kind}", {"a": core}, {"a": core, "b": elsewhere}, "may")
        case 9:
            return TimedPair(
                name, {"p": ORDERS, "x": SEEN, "y": people}, {"p": ORDERS, "x": SEEN, "y": people, "a": core}, "may"
            )
        case _:
            views = {"p": ORDERS, "s": SEEN, "y": people, "q": QUOTES}
            must = "may" if kind in ("temporal", "groups", "living") else "there"
            return TimedPair(f"{name}, as now", views, {**views, "a": core}, must, as_now=True)


def drawn_timed_steps(
    rng: np.random.Generator,
    epochs: int = EPOCHS,
    sources: Mapping[str, View] = MappingProxyType(SOURCES),
    *,
    late: float = 0.15,
) -> list[Rows]:
    """Return legal changes of all sources, epoch by epoch: some late, some versions deleted, some epochs without rows.

    Args:
        rng: what they are drawn from.
        epochs: how many.
        sources: by name.
        late: the part of rows that may be late.
    """
    steps = []
    for epoch in range(epochs):
        step: Rows = {}
        for name, view in sources.items():
            if rng.random() < 0.3:
                continue
            schema = view.bindings[0].source.relation.schema
            lines = [_row(rng, name, epoch, late) for _ in range(int(rng.integers(1, 9)))]
            if name == "rates":
                lines = list({(line["k"], line["at"]): line for line in lines}.values())
            gone = [name in ("orders", "people", "towns") and rng.random() < 0.2 for _ in lines]
            rows = pa.RecordBatch.from_pylist(
                [{column: line[column] for column in schema.names} for line in lines], schema=schema
            )
            step[name] = ZSet(rows, np.where(gone, -1, 1).astype(np.int64))
        steps.append(step)
    return steps


def _row(rng: np.random.Generator, name: str, epoch: int, late: float) -> dict[str, Any]:
    key = int(rng.integers(5))
    time = max(0, 6 * epoch + int(rng.integers(-12 if rng.random() < late else -2, 7)))
    rate = int(rng.integers(5))
    if name == "rates" and rng.random() < 0.2:
        rate = -1
    nullable = None if rng.random() < 0.1 and name in ("orders", "seen") else key
    return {
        "id": int(rng.integers(12)),
        "k": nullable,
        "p": key,
        "q": key,
        "n": int(rng.integers(5)),
        "t": time,
        "at": time,
        "r": rate,
        "town": int(rng.integers(3)),
    }


class _Life:
    """One pipeline, its references and the sum of what it has answered.

    Args:
        pair: its queries.
        moments: the table that is looked up in.
        options: of the pipeline.
    """

    def __init__(self, pair: TimedPair, moments: Moments, **options: Any) -> None:
        self.pair, self.query, self._moments = pair, pair.before, moments
        self.pipeline: Pipeline[Any] = Pipeline(pair.before, keep_view=True, **options)
        self._accepted: list[Rows] = []
        self._references = References(self._accepted, self._feed)
        self._moment_of: list[int] = []  # by epoch; a change has that of the epoch before
        self._sums: dict[str, Counter[Any]] = {name: Counter() for name in pair.before}

    def _feed(self, pipeline: Pipeline[Any], number: int, rows: Rows) -> Mapping[str, ZSet]:
        self._moments.now = self._moment_of[number]
        answers: Mapping[str, ZSet] = pipeline.step(rows, processing_time=self._moments.now * SECOND)
        return answers

    def step(self, rows: Rows, outcome: Outcome, what: str) -> None:
        """Take an epoch, and compare."""
        known = {name: one for name, one in rows.items() if name in self.pipeline.sources}
        self._accepted.append(known)
        self._moment_of.append(self._moment_of[-1] + 1 if self._moment_of else 0)
        for name, answer in self._feed(self.pipeline, len(self._accepted) - 1, known).items():
            self._sums[name].update(bag_of(answer))
        compare_views(self.pipeline, self.query, self._references, outcome, what)
        self._check_sums(what)

    def turn(self, wanted: dict[str, View], outcome: Outcome, what: str) -> None:
        """Change the query, unless it is refused and may be."""
        if wanted is self.query:
            return
        is_after = wanted is self.pair.after
        as_now, references, accepted = self.pair.as_now and is_after, self._references, self._accepted
        if as_now and accepted:
            accepted = [*({} for _ in accepted[1:]), _all_of(accepted)]
            references = References(accepted, self._feed)
        self._moment_of += self._moment_of[-1:]
        self._moments.now = self._moment_of[-1] if accepted else 0
        diff = change_query(self.pipeline, self.query, wanted, references, outcome, what, by_time=True, as_now=as_now)
        if diff is None:
            self._moment_of = self._moment_of[: len(accepted)]
            if self.pair.must == "both" or (self.pair.must == "there" and is_after):
                raise LawBrokenError(f"{what}: refused, though its rows are kept: {outcome.codes}")
            return
        self.query, self._references, self._accepted = wanted, references, accepted
        outcome.returned += not is_after
        for name, view in diff.views.items():
            if view.status in ("columns", "added", "dropped"):
                self._sums[name] = Counter()
            elif bag_of(view.added) & bag_of(view.removed):
                raise LawBrokenError(f'{what}: the difference of view "{name}" adds what it removes')
            else:
                self._sums[name].subtract(bag_of(view.removed))
            self._sums[name].update(bag_of(view.added))
        self._check_sums(what)

    def _check_sums(self, what: str) -> None:
        for name in self.pipeline.views:
            summed = {row: n for row, n in self._sums[name].items() if n}
            held = bag_of(self.pipeline.contents(name))
            if summed != held:
                raise LawBrokenError(f'{what}: the answers of view "{name}" add up to {summed}, not {held}')

    def close(self) -> None:
        """Release all state."""
        self._references.close()
        self.pipeline.close()


def _all_of(accepted: list[Rows]) -> Rows:
    """Return the rows of all epochs as those of one."""
    return {
        name: ZSet.concat(
            [step[name] for step in accepted if name in step], schema=SOURCES[name].bindings[0].source.relation.schema
        )
        for name in {name for step in accepted for name in step}
    }


def changed_timed_queries_hold(seed: int, outcome: Outcome, kinds: tuple[str, ...] = CORES) -> None:
    """Change a random timed query to another one and back, at random epochs.

    Raises:
        LawBrokenError: a law is broken.
    """
    rng = np.random.default_rng([seed, 6])
    moments = Moments(seed)
    keeps = bool(np.random.default_rng([seed, 9]).random() < 0.2)
    pair, steps = drawn_pair(rng, moments, kinds), drawn_timed_steps(rng, late=0.4 if keeps else 0.15)
    first = int(rng.integers(0, EPOCHS))
    second = int(rng.integers(first, EPOCHS)) if rng.random() < 0.8 else first
    what = f"seed {seed}, {pair.name}"
    life = _Life(pair, moments, keep_inputs=keeps)
    for number, step in enumerate(steps):
        if number == first:
            life.turn(pair.after, outcome, f"{what}, before epoch {number}")
        if number == second:
            life.turn(pair.before, outcome, f"{what}, back before epoch {number}")
        life.step(step, outcome, f"{what}, after epoch {number}")
    life.close()
