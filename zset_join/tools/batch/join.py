"""A join as a batch query."""

# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here, and expressions are quoted by `to_sql`.

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from zset_join.shapes.join import joined_schema
from zset_join.stages.join import JoinStage
from zset_join.tools.batch.dialect import Dialect
from zset_join.tools.batch.tables import BatchScope, BatchTable, expression_sql, register_batch_query

__all__ = ["join_sql"]


def join_sql(stage: JoinStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str:
    """Return the join of two tables; DuckDB's FULL one as a LEFT one and what the right side has beside it."""
    left, right = inputs
    dialect = scope.dialect
    condition = _condition(stage, left, right, dialect)
    columns = _columns(stage, left, right, dialect)
    if stage.how in ("left_semi", "left_anti"):
        exists = "EXISTS" if stage.how == "left_semi" else "NOT EXISTS"
        return f"SELECT {columns} FROM {left.name} l WHERE {exists} (SELECT 1 FROM {right.name} r WHERE {condition})"
    kind = {"inner": "JOIN", "left": "LEFT JOIN", "right": "RIGHT JOIN", "full": "FULL JOIN"}[stage.how]
    if stage.how != "full" or dialect.joins_fully:
        return f"SELECT {columns} FROM {left.name} l {kind} {right.name} r ON {condition}"
    return (
        f"SELECT {columns} FROM {left.name} l LEFT JOIN {right.name} r ON {condition}\n"
        f"UNION ALL\nSELECT {_columns(stage, left, right, dialect, only_right=True)} FROM {right.name} r "
        f"WHERE NOT EXISTS (SELECT 1 FROM {left.name} l WHERE {condition})"
    )


def _condition(stage: JoinStage, left: BatchTable, right: BatchTable, dialect: Dialect) -> str:
    parts = []
    for (one, other), kind, safe in zip(stage.key_pairs, stage.key_types, stage.flags, strict=True):
        sign = "IS NOT DISTINCT FROM" if safe else "="
        parts.append(f"{_key(left, 'l', one, kind, dialect)} {sign} {_key(right, 'r', other, kind, dialect)}")
    if stage.residual is not None:
        schemas = {"left": left.relation.schema, "right": right.relation.schema}
        parts.append(expression_sql(stage.residual, schemas, dialect, {"left": "l", "right": "r"}))
    return " AND ".join(parts)


def _key(table: BatchTable, alias: str, name: str, kind: pa.DataType, dialect: Dialect) -> str:
    own = table.relation.schema.field(name).type
    text = f"{alias}.{table.column(name)}"
    return text if own == kind else f"CAST({text} AS {dialect.type_name(kind)})"


def _columns(stage: JoinStage, left: BatchTable, right: BatchTable, dialect: Dialect, *, only_right: bool = False) -> str:
    """Return the output columns; for rows of the right side alone, the others are NULL."""
    schema, sources = joined_schema(stage.left, stage.right, stage.how, using=stage.using, output_names=None)
    shown = dict(zip(schema.names, sources, strict=True))
    columns = []
    for at, field in enumerate(stage.output.schema):
        side, name = shown[field.name]
        one = "NULL" if only_right or side == "right" else f"l.{left.column(name)}"
        other = f"r.{right.column(name)}" if side != "left" else "NULL"
        if side == "both":
            kind = dialect.type_name(field.type)
            text = f"coalesce(CAST({one} AS {kind}), CAST({other} AS {kind}))"
        else:
            text = one if side == "left" else other
        columns.append(f"{text} AS c{at}")
    return ", ".join(columns)


register_batch_query("join", join_sql)
