"""Random sets of views over views that change many times, with decimals and dates, restarts, and both kinds of `keep_state`.

The laws: after every epoch and every change each view holds what it holds in a pipeline in memory that ran the present query
from the start over the rows that were accepted. What `diff` lists `evolve` does; rows before and difference are the rows after.
`undo` brings back the query before. What is refused has changed nothing.

A view is nested tuples with the columns `k`, `m`, `t` and `n`. A view of the set may be made of another one, and follows where
that changes.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from property_tests.bags import bag_of
from property_tests.evolving import Outcome, References, compare_views
from property_tests.laws import LawBrokenError
from zset_join.core.errors import StateError
from zset_join.core.options import KeepState
from zset_join.expressions import col, lit
from zset_join.pipeline import Pipeline, View, appends, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs

__all__ = ["changed_sets_hold", "drawn_view"]

_REFUSED = {"EVOLVE_NO_ROWS", "EVOLVE_SOURCE", "EVOLVE_DROPPED", "UNDO_GONE", "UNDO_SOURCES", "NOTHING_TO_UNDO"}
_COLUMNS = {"k": pa.string(), "m": pa.decimal128(10, 2), "t": pa.date32(), "n": pa.int64()}
_SOURCES = ("upserts", "bag", "seen")
_START = date(2026, 1, 1)
_Drawn = tuple[Any, ...]
_Query = dict[str, _Drawn]
_Epoch = dict[str, list[dict[str, Any]]]


def written(drawn: _Drawn) -> View:
    """Return a view."""
    match drawn:
        case ("upserts",):
            fields = {"id": pa.int64(), **_COLUMNS, "op": pa.string()}
            rows = changes("upserts", fields, keys="id", apply_as_deletes=col("op") == "d", except_column_list=["op"])
            return _shaped(rows)
        case ("bag",):
            return _shaped(changes("bag", {**_COLUMNS, "w": pa.int64()}, weight_column="w"))
        case ("seen",):
            return _shaped(appends("seen", _COLUMNS))
        case ("where", condition, rows):
            return written(rows).where(_condition(condition))
        case ("select", rows):
            return _shaped(written(rows), m=col("m") * 2, t=F.date_add(col("t"), 1), n=col("n") + 1)
        case ("groups", key, function, rows):
            calls = {
                "m": F.sum("m") if function == "sum" else getattr(F, function)("m"),
                "t": F.max("t"),
                "n": F.count(),
                "k": F.min("k"),
            }
            grouped = written(rows).groupBy(key).agg(*(call.alias(name) for name, call in calls.items() if name != key))
            return _shaped(grouped)
        case ("join", how, rows, others):
            one, other = written(rows), written(others).select("k", other=col("m"), at=col("t"))
            joined = one.join(other, on="k", how=how)
            return _shaped(joined) if how == "left_semi" else _shaped(joined, m=F.coalesce(col("other"), col("m")), t=col("at"))
        case ("union", rows, others):
            return written(rows).union(written(others))
        case ("distinct", rows):
            return written(rows).distinct()
    raise AssertionError(drawn)


def _shaped(view: View, **values: Any) -> View:
    """Return the four columns in their types."""
    columns = {name: values.get(name, col(name)) for name in _COLUMNS}
    columns["m"] = columns["m"].cast("decimal(14,3)")
    return view.select(**{name: columns[name] for name in _COLUMNS})


def _condition(number: int) -> Any:
    return (
        col("n") > 2,
        col("m") > lit(Decimal("1.25")),
        col("t") >= lit(_START + timedelta(days=2)),
        col("k").isNotNull(),
    )[number]


def drawn_view(draw: random.Random, query: _Query, depth: int = 0) -> _Drawn:
    """Draw a view; often it is one of the set with something behind it."""
    if depth > 2 or draw.random() < 0.25:
        return draw.choice([*query.values(), *((name,) for name in _SOURCES)])
    below = drawn_view(draw, query, depth + 1)
    match draw.randrange(7):
        case 0 | 1:
            return "where", draw.randrange(4), below
        case 2:
            return "select", below
        case 3:
            return "groups", draw.choice("kt"), draw.choice(["sum", "max", "min"]), below
        case 4:
            how = draw.choice(["inner", "left", "full", "left_semi"])
            return "join", how, below, drawn_view(draw, query, depth + 1)
        case 5:
            return "union", below, drawn_view(draw, query, depth + 1)
        case _:
            return "distinct", below


def _replaced(drawn: _Drawn, old: _Drawn, new: _Drawn) -> _Drawn:
    if drawn == old:
        return new
    return tuple(_replaced(one, old, new) if isinstance(one, tuple) else one for one in drawn)


def _size(drawn: _Drawn) -> int:
    return 1 + sum(_size(one) for one in drawn if isinstance(one, tuple))


def _changed(draw: random.Random, query: _Query) -> _Query:
    """Draw another set of views."""
    after, name = dict(query), draw.choice([*query])
    match draw.randrange(4):
        case 0:
            after[draw.choice(["a", "b", "c", "d", "e"])] = drawn_view(draw, query)
        case 1 if len(query) > 1:
            del after[name]
        case 2:
            new = drawn_view(draw, {other: one for other, one in query.items() if other != name})
            after = {other: _replaced(one, query[name], new) for other, one in query.items()}
        case _:
            after[name] = draw.choice([("where", draw.randrange(4), query[name]), ("select", query[name])])
    small = {name: one for name, one in after.items() if _size(one) < 16}
    return small or query


class _Run:
    """One pipeline that changes.

    Args:
        draw: what everything is drawn from.
        directory: of it; None: in memory.
        outcome: counts.
        what: the case.
    """

    def __init__(self, draw: random.Random, directory: Path | None, outcome: Outcome, what: str) -> None:
        self.draw, self.outcome, self.what, self._directory = draw, outcome, what, directory
        self.keep_state: KeepState = draw.choice(["all", "needed"])
        query: _Query = {}
        for name in "abc"[: draw.randint(1, 3)]:
            query[name] = drawn_view(draw, query)
        if draw.random() < 0.5:
            query |= {f"all {name}": (name,) for name in _SOURCES}
        self.query = self._before = query
        self.views = self._views_before = self._written(query)
        self.accepted: list[Any] = []
        self.references = References(self.accepted)
        self.missed: set[str] = set()
        self.pipeline = self._opened()

    def _written(self, query: _Query) -> dict[str, View]:
        return {name: written(one) for name, one in query.items()}

    def _opened(self) -> Pipeline[Any]:
        return Pipeline(self.views, self._directory, keep_state=self.keep_state)

    def step(self, rows: _Epoch) -> None:
        """Take an epoch."""
        known = {name: one for name, one in rows.items() if name in self.pipeline.sources and name not in self.missed}
        self.missed |= {"bag"} & (rows.keys() - known.keys())  # a later change may retract what was not taken
        self.accepted.append(known)
        self.pipeline.step(known)
        self.check("epoch")

    def reopen(self) -> None:
        """Open the directory again."""
        if self._directory is not None and self.pipeline.epoch:
            self.pipeline.close()
            self.views = self._written(self.query)
            self.pipeline = self._opened()
            self.check("opened again")

    def change(self) -> None:
        """Change the query, or undo the last change."""
        undoes = self.draw.random() < 0.25
        query = self._before if undoes else _changed(self.draw, self.query)
        views = self._views_before if undoes else self._written(query)
        rows, epoch = {name: bag_of(self.pipeline.contents(name)) for name in self.pipeline.views}, self.pipeline.epoch
        what = f"{'undo to' if undoes else 'change to'} {query}"
        try:
            expected = None if undoes or self.draw.random() < 0.5 else self.pipeline.diff(views)
            diff = self.pipeline.undo() if undoes else self.pipeline.evolve(views)
        except StateError as error:
            if error.code not in _REFUSED:
                raise
            self.outcome.refused += 1
            self.outcome.codes[error.code] += 1
            if self.pipeline.epoch != epoch:
                raise LawBrokenError(f"{self.what}: {what}: refused ({error}), and changed all the same") from error
            self.check(f"{what}, refused")
            return
        if expected is not None and list(map(str, expected.views.values())) != list(map(str, diff.views.values())):
            raise LawBrokenError(f"{self.what}: {what}: diff listed\n{expected}\nand evolve did\n{diff}")
        for name, view in diff.views.items():
            total = Counter(rows.get(name, Counter()))
            total.subtract(bag_of(view.removed))
            total.update(bag_of(view.added))
            now = bag_of(self.pipeline.contents(name)) if name in self.pipeline.views else Counter()
            if Counter({row: n for row, n in total.items() if n}) != now:
                raise LawBrokenError(f'{self.what}: {what}: view "{name}" is not its rows before and the difference\n{diff}')
        if epoch:
            self.references.change()
        self._before, self.query = self.query, query
        self._views_before, self.views = self.views, views
        self.outcome.evolved += 1
        self.outcome.returned += undoes
        self.outcome.kept += len(diff.kept)
        self.outcome.rebuilt += len(diff.rebuilt)
        self.check(what)

    def check(self, what: str) -> None:
        """Compare it with one that ran the query from the start."""
        compare_views(self.pipeline, self.views, self.references, self.outcome, f"{self.what}: {what}: {self.query}")

    def close(self) -> None:
        """End it."""
        self.references.close()
        self.pipeline.close()


def changed_sets_hold(seed: int, directory: Path | None, outcome: Outcome) -> None:
    """Change a random set of views many times.

    Args:
        seed: what everything is drawn from.
        directory: an empty one; None: in memory.
        outcome: counts.

    Raises:
        LawBrokenError: a law is broken.
    """
    draw = random.Random(seed)
    run, live = _Run(draw, directory, outcome, f"seed {seed}"), list[dict[str, Any]]()
    try:
        for _ in range(6):
            if draw.random() < 0.4:
                run.reopen()
            for _ in range(draw.choice([0, 1, 1, 2])):
                run.change()
            run.step(_rows(draw, live))
    finally:
        run.close()


def _rows(draw: random.Random, live: list[dict[str, Any]]) -> _Epoch:
    def row() -> dict[str, Any]:
        return {
            "k": draw.choice(["a", "b", "c", None]),
            "m": draw.choice([None, *(Decimal(n) / 4 for n in range(-3, 12))]),
            "t": _START + timedelta(days=draw.randint(0, 4)),
            "n": draw.randint(0, 5),
        }

    gone = [live.pop(draw.randrange(len(live))) for _ in range(min(len(live), draw.randint(0, 3)))]
    new = [row() for _ in range(draw.randint(0, 4))]
    live += new
    given = {
        "upserts": [{"id": draw.randint(1, 6), **row(), "op": draw.choice("uuud")} for _ in range(draw.randint(0, 4))],
        "bag": [{**one, "w": 1} for one in new] + [{**one, "w": -1} for one in gone],
        "seen": [row() for _ in range(draw.randint(0, 3))],
    }
    return {name: rows for name, rows in given.items() if rows}
