"""Random sets of readers of two keyed tables: filters, projections, groups and joins, some of which read the table alike.

The law: whatever reads a table, every view answers in every epoch what a pipeline of this view alone answers, also where views
come and go, a change is undone, state is hybrid, or only needed columns are kept. A table has one stage, however many read it;
none where only joins do. What is fed alike is held once for each key that joins find it by.

So it is over the files of a directory, whose pipeline is closed or killed between two epochs, or killed between the states that
it opens for one, and opened again: with the local state of some stages lost, with that of epochs which a copy that was brought
back does not have, and with another number of threads.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

from property_tests.bags import text_bag_of
from property_tests.laws import LawBrokenError
from zset_join.checkpoint.bucket import BucketState
from zset_join.core.errors import ZsetJoinError
from zset_join.core.options import HotBudget
from zset_join.expressions import col, left, lit, right
from zset_join.pipeline import Pipeline, View, changes
from zset_join.pipeline import functions as ZF  # noqa: N812 - as users write F
from zset_join.runners.local.engine import MemoryStates
from zset_join.stages.stage import StageOptions
from zset_join.state.rows.side import SideState

__all__ = ["views_equal_themselves_alone"]

_COLUMNS = {"id": pa.int64(), "k": pa.string(), "n": pa.int64(), "x": pa.float64(), "v": pa.int64()}
_FEW = HotBudget(max_hot_keys=2)
_OPTIONS = [*2 * [StageOptions()], StageOptions(hot_budget=_FEW, table_budget=_FEW), StageOptions(on_bad_input="quarantine")]
_RESTARTS = ["closed", "killed", "killed while it opens", "lost", "brought back", "other threads"]


def _table(name: str) -> View:
    if name == "t":
        return changes(
            "t", {**_COLUMNS, "op": pa.string()}, keys="id", apply_as_deletes=col("op") == "d", except_column_list=["op"]
        )
    return changes("u", _COLUMNS, keys=["k", "id"], sequence_by="v", except_column_list=["v"])


def _condition(draw: random.Random) -> Any:
    number, text = draw.randint(-1, 4), draw.choice("abc")
    return draw.choice(
        [
            col("n") > number,
            col("n") > number,
            lit(number) < col("n"),
            col("n") != number,
            col("k") == text,
            (col("n") > number) & (col("k") != text),
            (col("n") > 1) & (col("x") < number),
            col("x").eqNullSafe(None) | (col("n") + number > 2),
            col("k").isin("a", text),
        ]
    )


def _view(draw: random.Random) -> View:
    """Return a reader of a table; the first conditions are often those of another one."""
    view = _table(draw.choice("ttu"))
    if draw.random() < 0.3:
        view = view.where(col("n") > 1)
    for _ in range(draw.randint(0, 2)):
        kind = draw.choice(["where", "where", "select", "computed"])
        if kind == "where":
            view = view.where(_condition(draw))
        elif kind == "select":
            view = view.select("k", "n", "x", *(["id"] if draw.random() < 0.5 and "id" in view.columns else []))
        else:
            view = view.withColumn("n", col("n") * 2)
    kind = draw.choice(["rows", "rows", "rows", "groups", "join", *3 * ["table join"], "distinct"])
    if kind == "table join":
        return _joined_tables(draw)
    if kind == "groups":
        return view.groupBy("k").agg(ZF.sum("n").alias("total"), ZF.max("x").alias("x"))
    if kind == "join":
        return view.select("k", "n").join(
            _table("t").select("id", "k").where(col("id") > 2), on="k", how=draw.choice(["inner", "left"])
        )
    return view.select("k", "n").distinct() if kind == "distinct" else view


def _joined_tables(draw: random.Random) -> View:
    """Return a join of whole tables, by a key or by other columns; each may be held once with what else reads it."""
    key: Any = draw.choice(["k", "k", "k", "id", [("n", "id")]])
    how = draw.choice(["inner", "inner", "left", "right", "full", "left_semi", "left_anti"])
    condition = left("n") != right("id") if draw.random() < 0.4 else None
    return _table(draw.choice("ttu")).join(_table(draw.choice("tu")).alias("other"), on=key, how=how, condition=condition)


def _rows(draw: random.Random) -> dict[str, list[dict[str, Any]]]:
    def row(keys: list[str | None]) -> dict[str, Any]:
        return {
            "id": draw.randint(1, 8),
            "k": draw.choice(keys),
            "n": draw.choice([None, 0, 1, 2, 3, 4]),
            "x": draw.choice([None, 0.0, float("nan"), 1.5]),
            "v": draw.randint(0, 30),
        }

    tables = {"t": [{**row([*"abc", None, None]), "op": draw.choice("uuuud")} for _ in range(draw.choice([0, 1, 6]))]}
    return {**tables, "u": [row([*"abc"]) for _ in range(draw.choice([0, 1, 6]))]}


def views_equal_themselves_alone(seed: int, directory: Path | None) -> int:
    """Run a set of views and each of them alone; return how many changed rows they had.

    Args:
        seed: what everything is drawn from.
        directory: where the pipeline lasts; it is opened again on the way. None: in memory.

    Raises:
        LawBrokenError: a view that answers otherwise than alone, or a table that is present, or held, twice.
    """
    draw = random.Random(seed)
    views = {f"view {number}": _view(draw) for number in range(draw.randint(2, 6))}
    views |= {"whole t": _table("t"), "whole u": _table("u")} if draw.random() < 0.6 else {}
    more: dict[str, Any] = {"options": draw.choice(_OPTIONS), "keep_state": draw.choice(["all", "all", "needed"])}
    more |= {} if directory is None else {"snapshot_after_bytes": draw.choice([1, 1000, 1 << 20])}
    pipeline = Pipeline(views, directory, **more)
    _check_held(seed, pipeline)
    restarts = _RESTARTS if directory is not None else []
    alone = {name: Pipeline({name: view}) for name, view in views.items()}
    sums = dict[str, Counter[Any]]()
    history, rows = list[dict[str, Any]](), 0
    for epoch in range(6):
        _check_stages(seed, pipeline)
        given = _rows(draw)
        history.append(_read_by(pipeline, given))
        answers = pipeline.step(_read_by(pipeline, given), processing_time=epoch)
        for name, one in alone.items():
            held = sums.setdefault(name, text_bag_of(one.contents()))
            wanted = one.step(_read_by(one, given), processing_time=epoch)[name]
            rows += len(wanted)
            held.update(text_bag_of(wanted))
            if text_bag_of(answers[name]) != text_bag_of(wanted):
                raise LawBrokenError(f"seed {seed}, epoch {epoch}, {name}: {answers[name]} is not {wanted}")
            shown = text_bag_of(pipeline.contents(name)) if draw.random() < 0.5 else +held
            if shown != +held:
                raise LawBrokenError(f"seed {seed}, epoch {epoch}, {name}: it holds {shown} and not {+held}")
        event = draw.choice(["", "", *restarts, "add", "drop", "undo"])
        if event in restarts and directory is not None:
            more |= {"threads": draw.choice([1, 3])} if event == "other threads" else {}
            writers = None if event == "other threads" else _writers(pipeline)
            opened = partial(Pipeline, views, directory, **more)
            _stop(draw, pipeline, directory, event, opened)
            pipeline = opened()
            more_often = {text for text, count in _writers(pipeline).items() if writers and count > writers[text]}
            if more_often:
                raise LawBrokenError(f"seed {seed}, epoch {epoch}: {event}, and {more_often} are held more often")
        elif event == "drop" and len(views) > 1:
            name = draw.choice(list(views))
            pipeline.drop_view(name)
            del views[name], alone[name]
        elif event in ("add", "undo"):
            _add(draw, pipeline, views, alone, history, is_undone=event == "undo")
    pipeline.close()
    return rows


def _add(draw: random.Random, pipeline: Any, views: Any, alone: Any, history: Any, *, is_undone: bool) -> None:
    """Add a view that the tables can build; perhaps undo that at once."""
    name, view = f"view {len(history)} later", _view(draw)
    later = Pipeline({name: view})
    for epoch, given in enumerate(history):
        later.step(_read_by(later, given), processing_time=epoch)
    try:
        diff = pipeline.add_view(name, view)
    except ZsetJoinError as error:
        if error.code not in {"EVOLVE_NO_ROWS", "EVOLVE_BY_TIME", "EVOLVE_SOURCE", "EVOLVE_DROPPED"}:
            raise
        return
    if text_bag_of(diff.views[name].added) != text_bag_of(later.contents()):
        raise LawBrokenError(f"{name} begins with {diff.views[name].added}, and not with {later.contents()}")
    if is_undone:
        pipeline.undo()
    else:
        views[name], alone[name] = view, later


def _stop(draw: random.Random, pipeline: Any, directory: Path, event: str, opened: Any) -> None:
    """End a pipeline in one of several ways, some of which lose local state, or epochs behind a copy."""
    if event == "killed while it opens":
        left_over, maintain = [draw.randint(0, 4)], BucketState._maintain

        def fail_late(state: BucketState) -> None:
            left_over[0] -= 1
            if left_over[0] < 0:
                raise KeyboardInterrupt
            maintain(state)

        failing = mock.patch.object(BucketState, "_maintain", fail_late)
        with suppress(KeyboardInterrupt), failing, pipeline._directory.reading() as epoch:
            for state in pipeline.plan.states:
                epoch.state(state.number, epoch.tick)
    if event.startswith("killed"):
        pipeline._directory._owner.release()  # and nothing else: what is open stays so
        return
    pipeline.close()
    if event == "brought back":
        shutil.copytree(directory / "zset", directory / "copied")
        with opened() as again:
            for _ in range(2):
                again.step(_read_by(again, _rows(draw)), processing_time=9)
        shutil.rmtree(directory / "zset")
        (directory / "copied").rename(directory / "zset")
    if event == "lost":
        for home in sorted((directory / "local").glob("*/*")):
            if draw.random() < 0.4:
                shutil.rmtree(home)


def _read_by(pipeline: Any, given: dict[str, Any]) -> dict[str, Any]:
    return {name: rows for name, rows in given.items() if name in pipeline.sources}


def _check_stages(seed: int, pipeline: Any) -> None:
    of = [feed.origin for node in pipeline.plan.nodes if node.stage.kind == "latest" for feed in node.feeds[0]]
    if len(of) > len(set(of)):
        raise LawBrokenError(f"seed {seed}: a table is present twice in\n{pipeline.plan.explain()}")


def _sides(pipeline: Any) -> dict[str, list[SideState]]:
    """Return the sides of a pipeline by what they are fed."""
    if pipeline._memory is not None:
        held: dict[str, list[SideState]] = pipeline._memory.fed_alike()
        return held
    with pipeline._directory.reading() as epoch:
        states = {one.number: epoch.state(one.number, epoch.tick) for one in pipeline.plan.states}
        return MemoryStates(pipeline.plan, StageOptions(), states).fed_alike(over_files=True)


def _writers(pipeline: Any) -> dict[str, int]:
    """Return by what sides are fed how many of them hold rows of their own."""
    return {text: sum(not one.follows for one in sides) for text, sides in _sides(pipeline).items()}


def _check_held(seed: int, pipeline: Any) -> None:
    """Check that a new pipeline holds what is fed alike once for each key that joins find it by."""
    for text, sides in _sides(pipeline).items():
        sides = [one for one in sides if not (one._is_hybrid or one.layout.degree_offset >= 0)]
        keys = {one._needs for one in sides} - {None}
        writers = sum(not one.follows for one in sides)
        if writers > max(1, len(keys)):
            raise LawBrokenError(f"seed {seed}: {text} is held {writers} times for {len(keys)} keys")
