"""Several views as one query inside Spark: they share what they have in common, and one checkpoint.

    query = (
        writeStream({"by_city": by_city, "by_day": by_day})
        .options(checkpointLocation="/data/cp", execution="driver")
        .view("by_city").toDuckDB("/data/views.duckdb", "by_city")
        .view("by_day").toDuckDB("/data/views.duckdb", "by_day")
        .start()
    )

The law: an epoch is one of all views or of none; every output gets it once, and those in one database in one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from pyspark.sql import SparkSession

from zset_join.core.errors import OptionError
from zset_join.core.options import KeepState
from zset_join.plan.tree import Views
from zset_join.runners.spark.api.other_queries import register_writer_of_several
from zset_join.runners.spark.api.views import View
from zset_join.runners.spark.api.writer import JoinStreamWriter
from zset_join.runners.spark.driver.chosen_sink import ChosenSink
from zset_join.runners.spark.driver.driver_query import DriverQuery, driver_query
from zset_join.runners.spark.epoch.outputs import ChosenOutput
from zset_join.runners.spark.planning.lowering import lowered_query
from zset_join.runners.spark.planning.placed_query import PlacedQuery

__all__ = ["SeveralStreamWriter", "writeStream"]


@dataclass(frozen=True)
class _Several:
    """Several views, which the driver runs."""

    views: Mapping[str, View]

    @property
    def name(self) -> str:
        return " and ".join(self.views)

    @property
    def session(self) -> SparkSession:
        return next(iter(self.views.values())).session

    @property
    def placed(self) -> PlacedQuery:
        raise OptionError(
            f"the views {list(self.views)} are one query on the driver only; executors run one view. Add "
            '.option("execution", "driver"), or start a query for each view.',
            code="NOT_APPLICABLE",
            views=list(self.views),
        )

    def on_driver(self, keep_state: KeepState) -> DriverQuery:
        """Return the views as the driver runs them; `keep_state` chooses which columns of sources they store."""
        streams = {known: stream for view in self.views.values() for known, stream in view.streams.items()}
        steps = {id(one.step): one.bound for view in self.views.values() for one in view.steps}
        root = Views(tuple(self.views), tuple(view.node for view in self.views.values()))
        return driver_query(lowered_query(root, streams, steps), name=self.name, keep_state=keep_state)


class SeveralStreamWriter(JoinStreamWriter):
    """Settings of a query of several views; made by `writeStream`. An output is of the view that was named last."""

    def __init__(self, views: Mapping[str, View]) -> None:
        several = _Several(views)
        super().__init__(several, several.on_driver)
        self._sinks = {}
        self._view = ""
        self._names = tuple(views)

    def view(self, name: str) -> Self:
        """Set which view the outputs behind this call are of."""
        if name not in self._names:
            raise _no_view(f"view({name!r}) is none of the views", self._names, name)
        self._view = name
        return self

    @property
    def _view_names(self) -> tuple[str, ...]:
        return self._names

    def _to(self, output: ChosenOutput, sink: ChosenSink | None = None) -> JoinStreamWriter:
        if not self._view:
            raise _no_view(f"the output {output.describe()} belongs to no view", self._names, None)
        return super()._to(output, sink)


def writeStream(views: Mapping[str, View]) -> SeveralStreamWriter:  # noqa: N802 - the name PySpark users type
    """Return a writer of several views, to choose options, outputs by view, and a trigger with.

    Args:
        views: one or more, by name.

    Raises:
        OptionError: `VIEW_NAME`: no view, or one without a name.
    """
    if not views or not all(str(name).strip() for name in views):
        raise _no_view("writeStream takes a mapping from names to views", tuple(views), None)
    return SeveralStreamWriter(dict(views))


def _no_view(what: str, names: tuple[str, ...], name: str | None) -> OptionError:
    return OptionError(
        f'{what}; the views are {list(names)}. Name one with .view("...") before its outputs.',
        code="VIEW_NAME",
        name=name,
        names=list(names),
    )


register_writer_of_several(writeStream)
