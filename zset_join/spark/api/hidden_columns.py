"""A computed column that travels with rows and is in no answer: the key of a join that is an expression.

The law: it depends on its row alone, so a retraction carries the key of its insertion. Of a stream in upsert mode a delete may
have no more than the primary key: what it retracts is found by that, whatever its computed key is.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from pyspark.sql import Column, DataFrame

from zset_join.relation import Relation
from zset_join.spark.api.streams import ChangeStream
from zset_join.spark.api.views import View
from zset_join.spark.planning.row_steps import row_step
from zset_join.spark.rows.names import column_named

__all__ = ["with_hidden_column"]


def with_hidden_column(rows: ChangeStream | View, name: str, column: Column) -> ChangeStream | View:
    """Return the same rows with a computed column more.

    Args:
        rows: a stream or a view.
        name: of the column; it begins with two underscores.
        column: an expression over the columns of a row.

    Raises:
        PlanError: Spark cannot make sense of it, or it depends on more than the row.
    """
    call = f"on={column}"
    if isinstance(rows, View):
        return rows.then(
            row_step(rows.session, rows.output, call, lambda found, _: found.withColumn(name, column), is_internal=True)
        )
    table = Relation(name=rows.name, schema=pa.schema([rows.schema.field(own) for own in rows.columns]))
    step = row_step(rows.session, table, call, lambda found, _: found.select(column.alias(name)), is_internal=True)
    return replace(
        rows,
        hidden=(*rows.hidden, name),
        schema=rows.schema.append(step.relation.schema.field(name)),
        prepared=_with_column(rows, rows.prepared, name, column),
        baseline=None if rows.baseline is None else _with_column(rows, rows.baseline, name, column),
        operation=(*rows.operation, *step.description),
        functions=tuple(dict.fromkeys((*rows.functions, *step.functions))),
    )


def _with_column(rows: ChangeStream, prepared: DataFrame, name: str, column: Column) -> DataFrame:
    """Return prepared rows with a column more, behind the hidden ones."""
    own = [*rows.columns, *rows.hidden]
    beside = [other for other in prepared.columns if other not in own]
    return prepared.select(*map(column_named, own), column.alias(name), *map(column_named, beside))
