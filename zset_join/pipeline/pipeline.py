"""A query that runs in this process: epochs of changes go in, the change of its view comes out. No Spark, no Java.

    orders = changes("orders", {"id": pa.int64(), "customer": pa.string(), "total": pa.int64()}, keys="id")
    revenue = orders.groupBy("customer").agg(F.sum("total").alias("revenue"))
    pipeline = Pipeline(revenue)
    pipeline.step({"orders": [{"id": 1, "customer": "Ada", "total": 30}]})

The law: after every epoch the sum of the deltas equals the batch query over the sum of the inputs. A step that raises has
changed nothing: correct the input and take the step again.

Remembers what `explain()` says, and the contents of the view where `keep_view` asks for them.

Known limits: one thread; a pipeline is not to be used by two threads at a time.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from zset_join.errors import OptionError, PlanError, StateError
from zset_join.pipeline.contents import Contents
from zset_join.pipeline.engine import AnsweredEpoch, Engine
from zset_join.pipeline.view import View
from zset_join.pipeline.watermarks import Watermarks
from zset_join.plan.query_plan import QueryPlan
from zset_join.row_conversion import conform
from zset_join.stages.stage import StageOptions
from zset_join.zset import ZSet

__all__ = ["Pipeline"]


class Pipeline:
    """Run a query in this process.

    Args:
        view: what to keep.
        keep_view: keep its contents, for `view()`.
        options: what operators take from the options of a query.
        idle_timeout_seconds: processing time after which a source without rows does not hold up watermarks; None for never.

    Raises:
        PlanError: the query cannot be planned, or only Spark can run it.

    >>> from zset_join.pipeline import changes, functions as F
    >>> orders = changes("orders", {"id": pa.int64(), "customer": pa.string(), "total": pa.int64()}, keys="id")
    >>> pipeline = Pipeline(orders.groupBy("customer").agg(F.sum("total").alias("revenue")))
    >>> pipeline.step({"orders": [{"id": 1, "customer": "Ada", "total": 30}]}).to_pylist()
    [(('Ada', 30), 1)]
    >>> pipeline.step({"orders": [{"id": 1, "customer": "Ada", "total": 40}]}).to_pylist()
    [(('Ada', 30), -1), (('Ada', 40), 1)]
    >>> pipeline.view().to_pylist()
    [{'customer': 'Ada', 'revenue': 40}]
    """

    def __init__(
        self,
        view: View,
        *,
        keep_view: bool = True,
        options: StageOptions | None = None,
        idle_timeout_seconds: float | None = None,
    ) -> None:
        self.plan: QueryPlan = view.plan()
        self._readings = {reading.source.name: reading for reading in view.readings}
        self._options = StageOptions() if options is None else options
        idle_us = None if idle_timeout_seconds is None else int(idle_timeout_seconds * 1_000_000)
        self._watermarks = Watermarks(self.plan, idle_timeout_us=idle_us)
        self._engine = Engine(self.plan, lambda node: node.stage.build(self._options, None), self._watermarks)
        self._relations = {source.name: source.relation for source in self.plan.sources}
        self._contents = Contents(self.plan.output.schema) if keep_view else None
        self._processing_time_us: int | None = None
        self._is_broken = False
        self.epoch = 0

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the view."""
        return self.plan.output.schema

    def step(self, rows: Mapping[str, Any] | None = None, *, processing_time: datetime.datetime | int | None = None) -> ZSet:
        """Take one epoch of changes, and return the change of the view.

        Args:
            rows: by the names of sources, what came: a list of dicts, a dict of columns, an Arrow table, or a ZSet. A source
                that is left out has no rows; an epoch without any lets time pass.
            processing_time: of the epoch, a datetime with a time zone or microseconds since 1970; default now. It never goes
                back.

        Returns:
            Every changed row once, with its weight; retractions come first.

        Raises:
            PlanError: an unknown source, or columns that do not fit.
            BadInputError: rows that break the contract of their source.
        """
        if self._is_broken:
            raise StateError(
                "an earlier epoch failed while it was folded in, so the state is no longer what it should be. Build the "
                "pipeline anew, or reopen it from its directory.",
                code="PIPELINE_BROKEN",
            )
        answered = self._engine.answer(self.epoch, self._deltas(rows or {}), self._time(processing_time))
        self._fold(answered)
        return answered.delta

    def view(self) -> pa.Table:
        """Return the contents of the view: a row stands there as often as its weight says.

        Raises:
            OptionError: the pipeline was told not to keep them.
        """
        rows = self._kept().rows()
        if (rows.weights == 1).all():
            return pa.Table.from_batches([rows.rows], self.schema)
        positions = pa.array([at for at, weight in enumerate(rows.weights.tolist()) for _ in range(weight)], pa.int64())
        return pa.Table.from_batches([rows.rows.take(positions)], self.schema)

    def contents(self) -> ZSet:
        """Return the contents of the view, each distinct row with its weight.

        Raises:
            OptionError: the pipeline was told not to keep them.
        """
        return self._kept().rows()

    def explanation(self) -> str:
        """Return what the query does and what it must remember."""
        return self.plan.explain(buckets=1)

    def explain(self) -> None:
        """Print what the query does and what it must remember."""
        print(self.explanation())  # noqa: T201 - printing is what explain() does in PySpark

    def close(self) -> None:
        """Let go of the state; the pipeline cannot be used afterwards."""
        self._engine.close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _fold(self, answered: AnsweredEpoch) -> None:
        self._is_broken = True
        self._engine.absorb(answered)
        self._is_broken = False
        self._processing_time_us = answered.processing_time_us
        self.epoch += 1
        if self._contents is not None:
            self._contents.add(answered.delta)

    def _deltas(self, rows: Mapping[str, Any]) -> dict[str, ZSet]:
        deltas = {}
        for name, given in rows.items():
            reading = self._readings.get(name)
            if reading is None:
                raise PlanError(
                    f'step() is given rows for "{name}"; the sources of this pipeline are {sorted(self._readings)}.',
                    code="UNKNOWN_SOURCE",
                    name=name,
                )
            delta = reading.delta(given)
            if delta.schema != self._relations[name].schema:
                delta = ZSet(conform(delta.rows, self._relations[name]), delta.weights)
            deltas[name] = delta
        return deltas

    def _time(self, given: datetime.datetime | int | None) -> int:
        if isinstance(given, datetime.datetime):
            if given.tzinfo is None:
                raise OptionError(
                    f"processing_time={given!r} has no time zone; give one, such as datetime.UTC.", code="PROCESSING_TIME"
                )
            wanted = int(given.timestamp() * 1_000_000)
        else:
            wanted = time.time_ns() // 1000 if given is None else given
        return wanted if self._processing_time_us is None else max(wanted, self._processing_time_us)

    def _kept(self) -> Contents:
        if self._contents is None:
            raise OptionError(
                "this pipeline was made with keep_view=False and keeps only what it needs; add its deltas up, or leave the "
                "option out.",
                code="VIEW_NOT_KEPT",
            )
        return self._contents
