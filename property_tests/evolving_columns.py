"""Random queries whose sources get other columns while they run: added, dropped, widened and renamed ones.

The law: a pipeline that ran over the columns of before up to epoch E, and then over those of now, holds what one holds that
ran from the start over the accepted rows, each brought to the columns of now by this module. Stages that are kept do not run.
Undone at once it holds what it held. What is refused has changed nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from property_tests.bags import bag_of
from property_tests.evolving import Outcome, is_refusal, kept_do_not_run
from property_tests.laws import LawBrokenError
from property_tests.pipeline_plans import drawn_steps, drawn_view
from zset_join.core.errors import StateError
from zset_join.pipeline import Pipeline, View, appends, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.zset import ZSet

__all__ = ["changed_columns_hold"]

_BASE = {"k": pa.int64(), "s": pa.string(), "n": pa.int64(), "x": pa.int32(), "y": pa.string()}


@dataclass(frozen=True)
class _Change:
    """How the columns of every source change.

    Args:
        added: the value of a new column `z` in rows from before; None: NULL.
        adds: whether there is one.
        drops: `y` goes.
        widens: `x` becomes 64 bits wide.
        renames: `y` is called `w`; not where it goes.
    """

    added: int | None
    adds: bool
    drops: bool
    widens: bool
    renames: bool

    @property
    def columns(self) -> dict[str, pa.DataType]:
        """Return the columns of now."""
        columns = {**_BASE, **({"x": pa.int64()} if self.widens else {})}
        if self.drops or self.renames:
            del columns["y"]
        columns |= {"w": pa.string()} if self.renames and not self.drops else {}
        return {**columns, **({"z": pa.int64()} if self.adds else {})}

    def of_now(self, rows: ZSet, schema: pa.Schema) -> ZSet:
        """Return rows of before under the columns of now."""
        arrays = []
        for field in schema:
            if field.name == "z":
                arrays.append(pa.array([self.added] * len(rows), pa.int64()))
            else:
                arrays.append(pc.cast(rows.rows.column("y" if field.name == "w" else field.name), field.type))
        return ZSet(pa.RecordBatch.from_arrays(arrays, schema=schema), rows.weights)


def changed_columns_hold(seed: int, outcome: Outcome) -> None:
    """Change the columns of all sources of a random query.

    Raises:
        LawBrokenError: a law is broken.
    """
    rng = np.random.default_rng([seed, 5])
    flags = [bool(rng.random() < 0.5) for _ in range(4)]
    added = None if rng.random() < 0.5 else int(rng.integers(9))
    change = _Change(added, flags[0], flags[1], flags[2] or not any(flags), flags[3])
    over = [_sources(columns) for columns in (_BASE, change.columns)]
    old, new = (_views(seed, one) for one in over)
    words: dict[str, Any] = {"renamed": {}, "defaults": {}}
    pipeline = Pipeline(old, keep_inputs=bool(rng.random() < 0.3), keep_view=True)
    for name in pipeline.sources:
        words["renamed"] |= {name: {"y": "w"}} if change.renames and not change.drops else {}
        words["defaults"] |= {name: {"z": added}} if change.adds and added is not None else {}
    fresh, at = Pipeline(new), int(rng.integers(1, 5))
    for number, step in enumerate(drawn_steps(seed, epochs=6)):
        before = {name: _wide(rows, over[0][name]) for name, rows in step.items() if name in fresh.sources}
        after = {name: change.of_now(rows, _schema(over[1][name])) for name, rows in before.items()}
        if number == at and not _changed(pipeline, old, new, words, change, outcome, f"seed {seed}, {change}"):
            break
        if number == at:
            fresh.step({})
        pipeline.step(before if number < at else after)
        fresh.step(after)
        if number >= at:
            _compare(pipeline, fresh, outcome, f"seed {seed}, {change}, after epoch {number}")
    pipeline.close()
    fresh.close()


def _views(seed: int, over: dict[str, View]) -> dict[str, View]:
    """Return two random views, and sometimes one whose stages name `x`, a column that may change."""
    named = over["upserts"].join(over["sequenced"], on="x").groupBy("x").agg(F.count().alias("n"))
    drawn = {"a": drawn_view(seed, depth=4, over=over), "b": drawn_view(seed + 7, depth=3, over=over)}
    return {**drawn, "c": named} if seed % 3 == 0 else drawn


def _changed(
    pipeline: Pipeline[Any], old: Any, new: Any, words: dict[str, Any], change: _Change, outcome: Outcome, what: str
) -> bool:
    """Change the query; return whether it was not refused. Sometimes it is undone at once, and done again."""
    held = {name: bag_of(pipeline.contents(name)) for name in pipeline.views}
    try:
        with kept_do_not_run(pipeline, what):
            diff = pipeline.evolve(new, **words)
        if not change.drops and outcome.evolved % 2:
            pipeline.undo()
            if {name: bag_of(pipeline.contents(name)) for name in pipeline.views} != held:
                raise LawBrokenError(f"{what}: undone it does not hold what it held")
            pipeline.evolve(new, **words)
            outcome.returned += 1
    except StateError as error:
        if not is_refusal(error):
            raise
        outcome.refused += 1
        now = {name: bag_of(pipeline.contents(name)) for name in pipeline.views}
        if now != held:
            raise LawBrokenError(f"{what}: refused ({error}), and changed all the same") from error
        return False
    outcome.evolved += 1
    outcome.kept += len(diff.kept)
    outcome.rebuilt += len(diff.rebuilt)
    return True


def _compare(pipeline: Pipeline[Any], fresh: Pipeline[Any], outcome: Outcome, what: str) -> None:
    for name in fresh.views:
        one, other = bag_of(pipeline.contents(name)), bag_of(fresh.contents(name))
        outcome.rows += len(one)
        if one != other:
            raise LawBrokenError(f'{what}: view "{name}" is {one - other} too much and lacks {other - one}')


def _sources(columns: dict[str, pa.DataType]) -> dict[str, View]:
    keyed = {"id": pa.int64(), **columns}
    return {
        "upserts": changes("upserts", keyed, keys="id"),
        "sequenced": changes("sequenced", {**keyed, "v": pa.int64()}, keys="id", sequence_by="v", except_column_list=["v"]),
        "added": appends("added", columns),
        "bag": changes("bag", columns),
    }


def _schema(view: View) -> pa.Schema:
    return view.bindings[0].source.relation.schema


def _wide(rows: ZSet, view: View) -> ZSet:
    """Return drawn rows with the other columns, which follow from `n`: a retraction has those of its insertion."""
    numbers = rows.rows.column("n")
    more = {"x": pc.cast(pc.multiply(numbers, 3), pa.int32()), "y": pc.cast(numbers, pa.string())}
    schema = _schema(view)
    columns = [more[field.name] if field.name in more else rows.rows.column(field.name) for field in schema]
    return ZSet(pa.RecordBatch.from_arrays(columns, schema=schema), rows.weights)
