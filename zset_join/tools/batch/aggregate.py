"""GROUP BY, DISTINCT and the latest rows of upserts as batch queries.

Sums of floats, averages and deviations are computed another way than by the engine, and compared as such: see
`zset_join.pipeline.verification`.
"""

# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here, and expressions are quoted by `to_sql`.

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pt

from zset_join.shapes.aggregate import AggregateCall
from zset_join.stages.aggregate import AggregateStage
from zset_join.stages.latest import LatestStage
from zset_join.stages.route import RouteStage
from zset_join.stages.unchanged import UnchangedStage
from zset_join.tools.batch.dialect import Dialect
from zset_join.tools.batch.tables import BatchScope, BatchTable, expression_sql, one_side, register_batch_query

__all__ = ["aggregate_sql", "latest_sql", "same_rows_sql"]


def aggregate_sql(stage: AggregateStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str:
    """Return the groups of a table; without calls, its distinct rows."""
    (table,) = inputs
    keys = [table.column(name) for name in stage.group_by]
    schema = stage.output.schema
    shown = [f"{key} AS c{at}" for at, key in enumerate(keys)]
    calls = [
        f"{_call_sql(call, table, schema.field(call.name).type, scope.dialect)} AS c{at}"
        for at, call in enumerate(stage.calls, start=len(keys))
    ]
    grouped = f" GROUP BY {', '.join(keys)}" if keys else ""
    return f"SELECT {', '.join([*shown, *calls])} FROM {table.name}{grouped}"


def latest_sql(stage: LatestStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str:  # noqa: ARG001 - as others
    """Return the table without its hidden columns."""
    (table,) = inputs
    shown = [f"{table.column(name)} AS c{at}" for at, name in enumerate(stage.output.schema.names)]
    return f"SELECT {', '.join(shown)} FROM {table.name}"


def same_rows_sql(stage: RouteStage | UnchangedStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str:  # noqa: ARG001 - as others
    """Return the table: the stage changes where rows are, not what they are."""
    return f"SELECT * FROM {inputs[0].name}"


def _call_sql(call: AggregateCall, table: BatchTable, result: pa.DataType, dialect: Dialect) -> str:
    columns = [table.column(name) for name in call.columns]
    conditions = []
    if call.where is not None:
        conditions.append(expression_sql(call.where, one_side(table.relation.schema), dialect))
    if call.kind in ("min_by", "max_by"):
        conditions.append(f"{columns[1]} IS NOT NULL")
    if call.kind in ("count_distinct", "collect_list", "collect_set"):
        conditions += [f"{one} IS NOT NULL" for one in columns]
    passing = f" FILTER (WHERE {' AND '.join(conditions)})" if conditions else ""
    if call.kind == "avg":
        return dialect.average(columns[0], passing, result)
    text = _function_sql(call, columns, passing, dialect)
    if call.kind in ("min_by", "max_by", "min", "max") or pt.is_nested(result):
        return text
    return f"CAST({text} AS {dialect.type_name(result)})"


def _function_sql(call: AggregateCall, columns: Sequence[str], passing: str, dialect: Dialect) -> str:
    first = columns[0] if columns else "*"
    match call.kind:
        case "count_distinct":
            return f"{dialect.count_distinct(columns)}{passing}"
        case "min_by" | "max_by":
            return f"{dialect.first_by(first, columns[1], descending=call.kind == 'max_by')}{passing}"
        case "collect_list" | "collect_set":
            return dialect.listed(first, passing, is_set=call.kind == "collect_set")
        case kind:
            return f"{kind}({first}){passing}"


register_batch_query("aggregate", aggregate_sql)
register_batch_query("latest", latest_sql)
register_batch_query("route", same_rows_sql)
register_batch_query("unchanged", same_rows_sql)
