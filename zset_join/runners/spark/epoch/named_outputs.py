"""Outputs of a query inside Spark by the names of `zset_join.connectors`.

A sink is given the answer on the driver. The files of a Parquet changelog are written by the tasks themselves. A table of a
catalog is written by the session, so that it has no entry among the connectors of all runners.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from zset_join.connectors import sink
from zset_join.core.errors import OptionError
from zset_join.runners.spark.epoch.outputs import ChangelogOutput, ChosenOutput, SinkOutput

__all__ = ["TABLE", "output_named"]

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
    from zset_join.runners.spark.epoch.delta_outputs import DeltaOutput

    return DeltaOutput(made)


def _parquet(made: Any) -> ChosenOutput:
    return ChangelogOutput(made.location, made.form)


_OF_SPARK: Mapping[str, Callable[[Any], ChosenOutput]] = {"delta": _delta, "parquet": _parquet}
