"""Random views on the pipeline over random changes: what they answer equals DuckDB's batch query, whatever happens in between.

A view is drawn from the words of the fluent API over four sources: upserts, upserts with a hidden sequence, rows that are only
added, and a bag. Every node is brought back to the same three columns, so any of them can be behind any other. Nothing here
is decided by the engine: the rows, the legal retractions and the plan come from a seed.

The laws: after every epoch the view equals the batch query over everything that arrived (`Pipeline.verify`); a pipeline that is
opened again before every epoch, one that is saved and loaded, and one whose epochs are halved end up with the same view, and
the first two emit the same on the way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from property_tests.bags import bag_of
from zset_join.core.errors import BadInputError
from zset_join.expressions import col, left, lit, right
from zset_join.pipeline import Pipeline, View, appends, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.zset import ZSet

__all__ = ["ViewDiffersError", "drawn_steps", "drawn_view", "halved", "run_view", "search", "sources", "verified"]

_COLUMNS = {"k": pa.int64(), "s": pa.string(), "n": pa.int64()}
_HOWS = ("inner", "left", "right", "full", "semi", "anti")
Rows = dict[str, ZSet]


class ViewDiffersError(AssertionError):
    """A view is not the result of the batch query; the message holds the seed, the epoch and rows that differ."""


def sources() -> dict[str, View]:
    """Return the sources, by name."""
    keyed = {"id": pa.int64(), **_COLUMNS}
    return {
        "upserts": changes("upserts", keyed, keys="id"),
        "sequenced": changes("sequenced", {**keyed, "v": pa.int64()}, keys="id", sequence_by="v", except_column_list=["v"]),
        "added": appends("added", _COLUMNS),
        "bag": changes("bag", _COLUMNS),
    }


@dataclass
class _Drawing:
    """Draw a view from a seed."""

    rng: np.random.Generator
    sources: dict[str, View]

    def view(self, depth: int) -> View:
        """Return a view of at most so many words."""
        if depth == 0 or self.rng.random() < 0.1:
            return self.one(list(self.sources.values()))
        words = [self.where, self.computed, self.join, self.join, self.union, self.distinct, self.groups]
        word: Callable[[int], View] = self.one(words)
        return word(depth - 1)

    def one(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def where(self, depth: int) -> View:
        condition = self.one([col("n") > 1, col("k").isNotNull(), (col("n") % 2 == 0) | col("s").isNull(), ~(col("s") == "b")])
        return self.view(depth).where(condition)

    def computed(self, depth: int) -> View:
        view = self.view(depth)
        if "id" in view.columns and self.rng.random() < 0.6:
            return view.withColumn("n", col("n") + col("k"))
        return view.select("k", "s", n=self.one([col("n") * 2, col("k") - col("n"), lit(3).cast("bigint")]))

    def join(self, depth: int) -> View:
        one, other, how = self.view(depth), self.view(max(0, depth - 2)), self.one(_HOWS)
        less = (left("s") == right("s")) & (left("n") < right("n"))
        on: Any = self.one(["k", [("k", "n")], [(col("n") % 3, col("k") % 3)], less])
        joined = one.join(other, on, how, null_safe=not hasattr(on, "accept") and bool(self.rng.random() < 0.2))
        kept = {name: col(name) for name in ("k", "s", "n")}
        if how not in ("semi", "anti") and self.rng.random() < 0.5:
            kept["n"] = col(next(name for name in reversed(joined.columns) if name.startswith("n")))
        return joined.select(kept)

    def union(self, depth: int) -> View:
        return self.view(depth).select("k", "s", "n").union(self.view(depth // 2).select("k", "s", "n"))

    def distinct(self, depth: int) -> View:
        return self.view(depth).select("k", "s", "n").distinct()

    def groups(self, depth: int) -> View:
        view = self.view(depth)
        key = self.one(["k", "s"])
        if key == "k":
            return view.groupBy("k").agg(F.max("s").alias("s"), self.one([F.sum("n"), F.count(), F.min("n")]).alias("n"))
        number = self.one([F.sum("n"), F.max("n"), F.bit_xor("n"), F.bit_and("n")])
        counted = view.groupBy("s").agg(F.count_distinct("k").alias("k"), number.alias("n"))
        return counted.select("k", "s", "n")


def drawn_view(seed: int, *, depth: int = 5, over: dict[str, View] | None = None) -> View:
    """Return the view of a seed, over sources of these names; None: those of `sources`."""
    return _Drawing(np.random.default_rng([seed, 1]), sources() if over is None else over).view(depth)


def drawn_steps(seed: int, *, epochs: int = 6, rows: int = 12, nulls: bool = True) -> list[Rows]:
    """Return legal changes of all sources, epoch by epoch; some epochs have none. `nulls`: with NULL in the columns k and s."""
    rng = np.random.default_rng([seed, 2])
    bag: Counter[tuple[Any, ...]] = Counter()
    steps = []
    for epoch in range(epochs):
        step: Rows = {}
        for name, view in sources().items():
            if rng.random() < 0.25:
                continue
            schema = view.bindings[0].source.relation.schema
            made, weights = [], []
            for _ in range(int(rng.integers(1, rows))):
                row = _row(rng, epoch, nulls=nulls)
                weight = 1
                if name == "bag" and rng.random() < 0.4 and any(bag.values()):
                    row = dict(zip(_COLUMNS, [*bag.elements()][int(rng.integers(bag.total()))], strict=True))
                    weight = -1
                elif name in ("upserts", "sequenced") and rng.random() < 0.2:
                    weight = -1
                if name == "bag":
                    bag[tuple(row[column] for column in _COLUMNS)] += weight
                made.append(row)
                weights.append(weight)
            lines = [{column: row[column] for column in schema.names} for row in made]
            step[name] = ZSet(pa.RecordBatch.from_pylist(lines, schema=schema), np.array(weights, np.int64))
        steps.append(step)
    return steps


def _row(rng: np.random.Generator, epoch: int, *, nulls: bool) -> dict[str, Any]:
    key, text = int(rng.integers(7)), int(rng.integers(5))
    return {
        "id": int(rng.integers(10)),
        "k": None if key == 6 and nulls else key,
        "s": None if text == 4 and nulls else "abcde"[text],
        "n": int(rng.integers(5)),
        "v": epoch + int(rng.integers(-1, 2)),
    }


def halved(steps: Sequence[Rows]) -> list[Rows]:
    """Return the same changes in twice as many epochs."""
    parts: list[Rows] = []
    for step in steps:
        parts.append({name: ZSet(one.rows.slice(0, len(one) // 2), one.weights[: len(one) // 2]) for name, one in step.items()})
        parts.append({name: ZSet(one.rows.slice(len(one) // 2), one.weights[len(one) // 2 :]) for name, one in step.items()})
    return parts


def verified(pipeline: Pipeline, seed: int) -> int:
    """Compare a view with the batch query; return the rows compared.

    Raises:
        ViewDiffersError: they differ.
    """
    verification = pipeline.verify()
    if not verification.equal:
        raise ViewDiffersError(f"seed {seed}, epoch {verification.epoch}: {verification}\n{pipeline.explanation()}")
    return verification.expected_rows


def search(seeds: Sequence[int]) -> None:
    """Run views until one differs.

    Raises:
        ViewDiffersError: one does, or refuses legal changes.
    """
    for seed in seeds:
        pipeline = Pipeline(drawn_view(seed), keep_inputs=True)
        for step in drawn_steps(seed):
            try:
                pipeline.step({name: one for name, one in step.items() if name in pipeline.sources})
            except BadInputError as error:
                raise ViewDiffersError(f"seed {seed}: legal changes are refused: {error}") from error
            verified(pipeline, seed)


def run_view(seed: int, directory: Path) -> int:
    """The view of a seed against all laws; return the rows compared.

    The directory and the saved state are gone on with by another number of threads every time.

    Raises:
        ViewDiffersError: a law is broken.
    """
    view, steps = drawn_view(seed), drawn_steps(seed)
    plain, saved = Pipeline(view, keep_inputs=True), Pipeline(view)
    rows = 0
    for number, step in enumerate(steps):
        known = {name: one for name, one in step.items() if name in plain.sources}
        emitted = bag_of(plain.step(known, processing_time=number))
        rows += verified(plain, seed)
        threads = 1 + (seed + number) % 4
        with Pipeline(view, directory / "lasting", snapshot_after_bytes=2_000, threads=threads) as lasting:
            _same(emitted, bag_of(lasting.step(known, processing_time=number)), f"seed {seed}, epoch {number}: reopened")
            _same(emitted, bag_of(lasting.step(known, epoch=number)), f"seed {seed}, epoch {number}: answered again")
            _same(bag_of(plain.contents()), bag_of(lasting.contents()), f"seed {seed}, epoch {number}: the view of a directory")
        saved.save(directory / "saved")
        saved.close()
        saved = Pipeline(view, threads=5 - threads)
        saved.load(directory / "saved")
        _same(emitted, bag_of(saved.step(known, processing_time=number)), f"seed {seed}, epoch {number}: saved and loaded")
    parted = Pipeline(view, threads=2)
    for step in halved(steps):
        parted.step({name: one for name, one in step.items() if name in parted.sources})
    _same(bag_of(plain.contents()), bag_of(parted.contents()), f"seed {seed}: halved epochs")
    return rows


def _same(one: Counter[Any], other: Counter[Any], what: str) -> None:
    if one != other:
        missing, more = {row: n - other[row] for row, n in one.items() if n != other[row]}, set(other) - set(one)
        raise ViewDiffersError(f"{what}: {missing} and {more} differ")
