"""Random sets of views over two shared tables, each view written apart from the others.

The law: after every epoch every view equals its batch query over the same inputs, also where the pipeline was opened again from
its directory on the way; and a stage is present once, however many views are made of it.

A view is drawn as nested tuples, so that what two of them have in common is known without the planner: every tuple of a kind
that has a state is one stage. A view may be made of another one of the set.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from property_tests.laws import LawBrokenError
from zset_join.expressions import col, left, right
from zset_join.pipeline import Pipeline, View, appends, changes
from zset_join.pipeline import functions as ZF  # noqa: N812 - as users write F

__all__ = ["drawn_views", "stages_appear_once", "views_equal_their_queries", "written"]

LEFT = {"id": pa.int64(), "k": pa.string(), "x": pa.int64()}
RIGHT = {"k": pa.string(), "rid": pa.int64(), "y": pa.int64()}
_HOWS = ("inner", "left", "full", "left_semi")
_Drawn = tuple[Any, ...]


def written(drawn: _Drawn) -> View:
    """Return a view again; nothing of it is an object that another one has."""
    match drawn:
        case ("l",):
            return changes("l", {**LEFT, "w": pa.int64()}, weight_column="w")
        case ("r",):
            return changes(
                "r", {**RIGHT, "op": pa.string()}, keys="rid", apply_as_deletes=col("op") == "d", except_column_list=["op"]
            )
        case ("seen",):
            return appends("seen", {"k": pa.string(), "x": pa.int64()})
        case ("where", limit, rows):
            view = written(rows)
            return view.where(col(view.columns[-1]) > limit)
        case ("select", rows):
            view = written(rows)
            return view.select(*view.columns[:-1]) if len(view.columns) > 1 else view.withColumn("one", col(view.columns[0]))
        case ("join", how, limit, rows, others):
            one, other = written(rows), written(others)
            condition = None if limit is None else left("x") < right("y") + limit
            return one.join(other, on="k", how=how, condition=condition)
        case ("groups", function, rows):
            view = written(rows)
            measured = view.columns[-1]
            return view.groupBy(view.columns[0]).agg(ZF.count().alias("n"), getattr(ZF, function)(measured).alias("m"))
        case ("newest", rows):
            view = written(rows)
            return view.dedup(keys=view.columns[0], order_by=[f"{name} desc" for name in view.columns[1:]] or view.columns[0])
    raise AssertionError(drawn)


def drawn_views(draw: random.Random) -> dict[str, _Drawn]:
    """Draw a set of views; numbers come from a few, so that views often have something in common."""
    joins = [
        ("join", draw.choice(_HOWS), draw.choice([None, 0]), ("l",), draw.choice([("r",), ("where", 2, ("r",))]))
        for _ in range(2)
    ]
    views: dict[str, _Drawn] = {}
    for number in range(draw.randint(2, 5)):
        view: _Drawn = draw.choice([*joins, *joins, *views.values(), ("seen",), ("r",)])
        for _ in range(draw.randint(0, 3)):
            kind = draw.choice(["where", "select", "groups", "groups", "newest"])
            if kind == "groups":
                view = ("groups", draw.choice(["sum", "max"]), view)
            else:
                view = ("where", draw.choice([0, 3]), view) if kind == "where" else (kind, view)
            if not _is_possible(view):
                view = view[-1]
        views[f"view {number}"] = view
    return views


def _is_possible(drawn: _Drawn) -> bool:
    """Return whether the last column is a number and the first one is no number of the same name, as conditions need."""
    view = written(drawn[-1])
    return pa.types.is_integer(view.arrow_schema.types[-1]) and len(view.columns) > 1


def _stages(drawn: _Drawn) -> Iterator[_Drawn]:
    """Yield what has a state: once for every place where it is written."""
    kind, *_ = drawn
    below = [one for one in drawn if isinstance(one, tuple)]
    for one in below:
        yield from _stages(one)
        if _is_upserts(one) and kind not in ("join", "where") and not _stays_upserts(drawn):
            yield ("latest",)  # one table, whatever steps are behind it
    if kind in ("join", "groups", "newest"):
        yield drawn


def _is_upserts(drawn: _Drawn) -> bool:
    return drawn == ("r",) or (drawn[0] == "where" and _is_upserts(drawn[-1])) or _stays_upserts(drawn)


def _stays_upserts(drawn: _Drawn) -> bool:
    """Return whether it is a selection that leaves upserts what they are: the key is kept."""
    return drawn[0] == "select" and _is_upserts(drawn[-1]) and "rid" in written(drawn).columns


def stages_appear_once(views: dict[str, _Drawn], pipeline: Pipeline[Any]) -> None:
    """Compare the stages of a plan with those that the views were drawn with.

    Raises:
        LawBrokenError: there are more or fewer.
    """
    expected = {stage for view in views.values() for stage in _stages(view)}
    expected |= {("latest",) for view in views.values() if _is_upserts(view)}
    if len(pipeline.plan.nodes) != len(expected):
        raise LawBrokenError(f"{len(expected)} stages were drawn: {expected}; the plan is\n{pipeline.plan.explain()}")


def views_equal_their_queries(seed: int, directory: Path | None) -> int:
    """Run a set of views; return how many rows they had in common with their batch queries.

    Args:
        seed: what everything is drawn from.
        directory: where the pipeline lasts; it is opened again on the way. None: in memory.

    Raises:
        LawBrokenError: a view that is not its batch query, or a stage that is present twice.
    """
    draw = random.Random(seed)
    views = drawn_views(draw)
    pipeline, rows, live = _opened(views, directory), 0, list[dict[str, Any]]()
    stages_appear_once(views, pipeline)
    for epoch in range(3):
        if directory is not None and epoch and draw.random() < 0.5:
            pipeline.close()
            pipeline = _opened(views, directory)
        pipeline.step({name: given for name, given in _changes(draw, live).items() if name in pipeline.sources})
        for name in views:
            found = pipeline.verify(view=name)
            rows += found.actual_rows
            if not found.equal:
                raise LawBrokenError(f'seed {seed}, epoch {epoch}, view "{name}" {views[name]}: {found}')
    pipeline.close()
    return rows


def _opened(views: dict[str, _Drawn], directory: Path | None) -> Pipeline[Any]:
    return Pipeline({name: written(view) for name, view in views.items()}, directory, keep_inputs=True)


def _changes(draw: random.Random, live: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    gone = [live.pop(draw.randrange(len(live))) for _ in range(min(len(live), 2))]
    new = [{"id": draw.randint(1, 9), "k": draw.choice(["a", "b", None]), "x": draw.randint(0, 5)} for _ in range(5)]
    live += new
    upserts = [
        {"rid": draw.randint(1, 6), "k": draw.choice("ab"), "y": draw.randint(0, 5), "op": draw.choice("uuud")}
        for _ in range(4)
    ]
    return {
        "l": [{**row, "w": 1} for row in new] + [{**row, "w": -1} for row in gone],
        "r": upserts,
        "seen": [{"k": draw.choice("ab"), "x": draw.randint(0, 5)} for _ in range(3)],
    }
