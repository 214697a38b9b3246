"""Outputs of a query inside Spark by the names of `zset_join.connectors`, as a user chose them.

A sink is given the answer on the driver. The files of a Parquet changelog are written by the tasks themselves. A table of a
catalog is written by the session, so that it has no entry among the connectors of all runners. Delta tables, the view and the
changelog, are written by the driver with the package `deltalake`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from typing_extensions import override

from zset_join.connectors import sink
from zset_join.core.errors import OptionError
from zset_join.core.relation import Relation
from zset_join.runners.spark.epoch.outputs import ChangelogOutput, ChosenOutput, SinkOutput, read_lines
from zset_join.runners.spark.rows.schemas import spark_schema
from zset_join.sinks.sink import Sink

if TYPE_CHECKING:
    from zset_join.sinks.delta_view import DeltaChangelogSink, DeltaViewSink

__all__ = [
    "TABLE",
    "ChosenSink",
    "DeltaOutput",
    "output_named",
]


class ChosenSink:
    """A sink; where it has a connector's name, only name and options travel to another process."""

    def __init__(self, made: Sink | None, connector: str | None = None, options: Mapping[str, Any] | None = None) -> None:
        self._made = made
        self._connector = connector
        self._options = dict(options or {})

    def __reduce__(self) -> tuple[Any, ...]:
        again = self.again()
        return (ChosenSink, (again._made, again._connector, again._options))

    @property
    def sink(self) -> Sink:
        if self._made is None:
            self._made = sink(self._connector or "", **self._options)
        return self._made

    def written(self) -> tuple[str | None, Mapping[str, Any]]:
        """Return the name of the connector, None of a sink of the user's own, and its options."""
        return self._connector, self._options

    def again(self) -> ChosenSink:
        """Return the output for another start: one with a connector's name is made again, one of the user's own stays."""
        return ChosenSink(self._made if self._connector is None else None, self._connector, self._options)


class DeltaOutput(SinkOutput):
    """Write every epoch to a Delta table, and read it by Spark."""

    def __init__(self, sink: DeltaViewSink | DeltaChangelogSink) -> None:
        super().__init__(sink)
        self._table = sink

    @override
    def open(self, relation: Relation, query_id: str, *, may_lack_columns: bool = False) -> None:
        super().open(relation, query_id, may_lack_columns=may_lack_columns)
        self._rows = relation.schema

    @override
    def contents(self, session: SparkSession) -> DataFrame | None:
        from zset_join.sinks.delta_view import DeltaChangelogSink

        paths = [self._table.log.folder.uri(file.name) for file in self._table.log.files()]
        if isinstance(self._table, DeltaChangelogSink):
            return read_lines(session, paths, self._rows, self._table.form)
        schema = spark_schema(self._rows)
        return session.read.schema(schema).parquet(*paths) if paths else session.createDataFrame([], schema)

    @override
    def at_rest(self) -> tuple[str, ...]:
        return (self._table.log.location,)


TABLE = "table"
"""The name of a table of a catalog among outputs."""


def output_named(name: str, options: Mapping[str, Any]) -> ChosenOutput:
    """Return an output, not yet opened."""
    if name == TABLE:
        return _table(options)
    return _OF_SPARK.get(name, SinkOutput)(sink(name, **options))


def _table(options: Mapping[str, Any]) -> ChosenOutput:
    from zset_join.runners.spark.epoch.table_output import TableOutput, table_sink

    known = inspect.signature(table_sink).parameters
    unknown = sorted({*options} - {*known})
    if unknown or not options.get("name"):
        raise OptionError(
            f'output "table": unknown {unknown}; expected {", ".join(known)}, of which name is required.',
            code="SINK_OPTION",
            unknown=unknown,
        )
    return TableOutput(table_sink(**options))


def _delta(made: Any) -> ChosenOutput:
    from zset_join.runners.spark.epoch.named_outputs import DeltaOutput

    return DeltaOutput(made)


def _parquet(made: Any) -> ChosenOutput:
    return ChangelogOutput(made.location, made.form)


_OF_SPARK: Mapping[str, Callable[[Any], ChosenOutput]] = {"delta": _delta, "parquet": _parquet}
