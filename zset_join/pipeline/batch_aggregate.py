"""GROUP BY, DISTINCT and the latest rows of upserts as queries of DuckDB's.

Sums of floats, averages and deviations are computed another way than here, and compared as such: see
`zset_join.pipeline.verification`.
"""

# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here, and expressions are quoted by `to_sql`.

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pt

from zset_join.expressions.sql_text import type_name
from zset_join.pipeline.batch_queries import BatchTable, BatchTimes, expression_sql, register_batch_query
from zset_join.shapes.aggregate_calls import AggregateCall
from zset_join.stages.aggregate import AggregateStage
from zset_join.stages.latest import LatestStage
from zset_join.stages.route import RouteStage

__all__ = ["aggregate_sql", "latest_sql", "route_sql"]

_MOST_EXACT_DIGITS = 30


def aggregate_sql(stage: AggregateStage, inputs: Sequence[BatchTable], times: BatchTimes) -> str:  # noqa: ARG001 - as others
    """Return the groups of a table; without calls, its distinct rows."""
    (table,) = inputs
    keys = [table.column(name) for name in stage.group_by]
    schema = stage.output.schema
    shown = [f"{key} AS c{at}" for at, key in enumerate(keys)]
    calls = [
        f"{_call_sql(call, table, schema.field(call.name).type)} AS c{at}"
        for at, call in enumerate(stage.calls, start=len(keys))
    ]
    grouped = f" GROUP BY {', '.join(keys)}" if keys else ""
    return f"SELECT {', '.join([*shown, *calls])} FROM {table.name}{grouped}"


def latest_sql(stage: LatestStage, inputs: Sequence[BatchTable], times: BatchTimes) -> str:  # noqa: ARG001 - as others
    """Return the table without its hidden columns."""
    (table,) = inputs
    shown = [f"{table.column(name)} AS c{at}" for at, name in enumerate(stage.output.schema.names)]
    return f"SELECT {', '.join(shown)} FROM {table.name}"


def route_sql(stage: RouteStage, inputs: Sequence[BatchTable], times: BatchTimes) -> str:  # noqa: ARG001 - as others
    """Return the table: a route changes where rows are, not what they are."""
    return f"SELECT * FROM {inputs[0].name}"


def _call_sql(call: AggregateCall, table: BatchTable, result: pa.DataType) -> str:
    columns = [table.column(name) for name in call.columns]
    conditions = []
    if call.where is not None:
        schema = table.relation.schema
        conditions.append(expression_sql(call.where, dict.fromkeys(("row", "left", "right"), schema)))
    if call.kind in ("min_by", "max_by"):
        conditions.append(f"{columns[1]} IS NOT NULL")
    if call.kind in ("count_distinct", "collect_list", "collect_set"):
        conditions += [f"{one} IS NOT NULL" for one in columns]
    passing = f" FILTER (WHERE {' AND '.join(conditions)})" if conditions else ""
    if call.kind == "avg" and pt.is_decimal(result) and result.precision <= _MOST_EXACT_DIGITS:
        return _exact_average(columns[0], passing, result)
    text = _function_sql(call, columns, passing)
    if call.kind in ("min_by", "max_by", "min", "max") or pt.is_nested(result):
        return text
    return f"CAST({text} AS {type_name(result, 'duckdb')})"


def _exact_average(column: str, passing: str, result: pa.DataType) -> str:
    """Return an average of decimals, rounded half up: in whole numbers, as DuckDB divides decimals as doubles."""
    scale = result.scale - 4
    total = f"CAST(replace(CAST(sum(CAST({column} AS DECIMAL(38,{scale}))){passing} AS VARCHAR), '.', '') AS HUGEINT)"
    count = f"count({column}){passing}"
    rounded = f"((2 * abs({total}) * 10000 + {count}) // (2 * {count}))"
    unit = f"CAST({10**result.scale} AS HUGEINT)"
    digits = f"({rounded} // {unit}) || '.' || lpad(CAST({rounded} % {unit} AS VARCHAR), {result.scale}, '0')"
    sign = f"CASE WHEN {total} < 0 THEN '-' ELSE '' END"
    return f"CASE WHEN {count} > 0 THEN CAST({sign} || {digits} AS {type_name(result, 'duckdb')}) END"


def _function_sql(call: AggregateCall, columns: Sequence[str], passing: str) -> str:
    first = columns[0] if columns else "*"
    match call.kind:
        case "count_distinct":
            combined = first if len(columns) == 1 else f"({', '.join(columns)})"
            return f"count(DISTINCT {combined}){passing}"
        case "min_by":
            return f"first({first} ORDER BY {columns[1]}, {first} NULLS FIRST){passing}"
        case "max_by":
            return f"first({first} ORDER BY {columns[1]} DESC, {first} DESC NULLS LAST){passing}"
        case "collect_list":
            return f"coalesce(list({first} ORDER BY {first}){passing}, [])"
        case "collect_set":
            return f"coalesce(list_sort(list(DISTINCT {first}){passing}), [])"
        case kind:
            return f"{kind}({first}){passing}"


register_batch_query("aggregate", aggregate_sql)
register_batch_query("latest", latest_sql)
register_batch_query("route", route_sql)
