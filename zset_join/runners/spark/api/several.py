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
from typing import Self

from zset_join.core.errors import OptionError
from zset_join.plan.tree import Views
from zset_join.runners.spark.api.other_queries import register_writer_of_several
from zset_join.runners.spark.api.views import View
from zset_join.runners.spark.api.writer import JoinStreamWriter
from zset_join.runners.spark.driver.chosen_sink import ChosenSink
from zset_join.runners.spark.driver.driver_query import WrittenQuery
from zset_join.runners.spark.epoch.outputs import ChosenOutput
from zset_join.runners.spark.planning.lowering import lowered_query

__all__ = ["SeveralStreamWriter", "writeStream"]


class SeveralStreamWriter(JoinStreamWriter):
    """Settings of a query of several views; made by `writeStream`. An output is of the view that was named last."""

    def __init__(self, views: Mapping[str, View]) -> None:
        streams = {known: stream for view in views.values() for known, stream in view.streams.items()}
        steps = {id(one.step): one.bound for view in views.values() for one in view.steps}
        root = Views(tuple(views), tuple(view.node for view in views.values()))
        super().__init__(WrittenQuery(" and ".join(views), lowered_query(root, streams, steps)))
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
