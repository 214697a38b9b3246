"""Joins that look something up, inside Spark: in an outside table, or in another stream or view as it is when a row comes.

orders.lookup_join(PostgresSource(...), on=[("customer_id", "id")], how="left", hint=Lookup(...))
orders.temporal_join(prices, on="sku", as_of=PROCESSING_TIME)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame

from zset_join.errors import OptionError, PlanError
from zset_join.expressions import Expression
from zset_join.lookup import DataFrameSource, Lookup, LookupSource
from zset_join.plan.table_index import TableIndex
from zset_join.query.looking_up import loaded_table
from zset_join.relation import Relation
from zset_join.spark.api.joined import key_pairs
from zset_join.spark.api.staged import filled, staged
from zset_join.spark.planning.row_steps import row_step
from zset_join.spark.planning.source_stream import SourceStream
from zset_join.spark.planning.stage_plan import StagePlan
from zset_join.spark.planning.view_plan import ViewPlan
from zset_join.spark.rows.names import column_named
from zset_join.spark.rows.schemas import arrow_schema
from zset_join.stages import LookupJoinStage, ProcessTimeJoinStage, RouteStage, Stage, needs_route

__all__ = ["join_as_of_now", "join_loaded", "lookup_join"]

Rows = SourceStream | ViewPlan
_KEY = "__key_"


def lookup_join(
    rows: Rows,
    source: LookupSource | DataFrame,
    on: Any = None,
    how: str = "inner",
    *,
    hint: Lookup | None = None,
    columns: Sequence[str] | None = None,
    constants: Mapping[str, Any] | None = None,
    condition: Expression | None = None,
    alias: str | None = None,
) -> StagePlan:
    """Join with what an outside table says when a row comes.

    Args:
        rows: the stream or view.
        source: the outside table, such as `PostgresSource(...)`; workers open it, each with connections of its own. A batch
            DataFrame is read once per epoch.
        on: a column name, a list of names, or a list of pairs (column of the rows, or an expression over them, such as
            `F.upper("code")`; column of the table).
        how: inner or left.
        hint: how to ask.
        columns: columns of the table that are wanted; default all.
        constants: values that columns of the table must have.
        condition: what a pair must satisfy as well, over `left(...)` and `right(...)`.
        alias: what the table is called here; hints may use it.

    Raises:
        PlanError: see the message; it names the argument, its value and the cure.
    """
    table = _table(source, alias)
    rows = filled(rows)
    given = [on] if isinstance(on, str) or (isinstance(on, tuple) and len(on) == 2) else list(on or ())
    pairs = [_pair(rows, table, (entry, entry) if isinstance(entry, str) else entry, on) for entry in given]
    rows, keys = _with_computed_keys(rows, [own for own, _ in pairs])
    hidden = tuple(dict.fromkeys((*_hidden(rows), *(key for key in keys if key.startswith(_KEY)))))
    stage = LookupJoinStage(
        probe=_relation(rows, keys),
        source=table,
        key=(*(column for _, column in pairs), *(constants or {})),
        columns=tuple(table.schema.names if columns is None else columns),
        hint=Lookup() if hint is None else hint,
        how=how,
        constants=dict(constants or {}),
        using=bool(given) and all(isinstance(entry, str) for entry in given),
        residual=condition,
        hidden=hidden,
        alias=alias,
    )
    return staged([rows], stage, [_route(rows, stage.probe)])


def _table(source: Any, alias: str | None) -> LookupSource:
    """Return the outside table; a batch DataFrame becomes one that is read once per epoch."""
    if isinstance(source, DataFrame):
        schema = arrow_schema(source.schema, relation=alias or "lookup")
        return DataFrameSource(name=alias or "lookup", schema=schema, dataframe=source)
    if not isinstance(source, LookupSource):
        raise OptionError(
            "lookup_join expects an outside table, such as PostgresSource(...), or a batch DataFrame, got "
            f"{type(source).__name__}. For another stream use join, or temporal_join.",
            code="NOT_A_SOURCE",
        )
    return source


def _pair(rows: Rows, table: LookupSource, entry: Any, on: Any) -> tuple[str | Column, str]:
    if not isinstance(entry, tuple | list) or len(entry) != 2 or not isinstance(entry[1], str):
        raise OptionError(
            f"on={on!r} is not understood; expected a column name, a list of names, or a list of pairs (name or Column over "
            "the row, column of the outside table).",
            code="ON",
        )
    own, column = entry
    is_known = isinstance(own, Column) or own in rows.columns
    if not is_known or column not in table.schema.names:
        raise PlanError(
            f'on={on!r} needs columns of "{rows.name}", which has {list(rows.columns)}, and of "{table.name}", which has '
            f"{table.schema.names}.",
            code="UNKNOWN_COLUMN",
            name=rows.name,
            missing=[*([] if is_known else [own]), *([] if column in table.schema.names else [column])],
        )
    return own, column


def _with_computed_keys(rows: Rows, keys: Sequence[str | Column]) -> tuple[Rows, list[str]]:
    """Return rows that have every key as a column, and the names of these; computed ones are hidden from the answer."""
    names = []
    for at, key in enumerate(keys):
        if isinstance(key, str):
            names.append(key)
            continue
        names.append(f"{_KEY}{at}")
        rows = _with_hidden_column(rows, names[-1], key)
    return rows, names


def join_as_of_now(
    left: Rows,
    right: Rows,
    on: Any,
    how: str = "inner",
    *,
    snapshot: str = "current",
    condition: Expression | None = None,
    index: TableIndex | None = None,
) -> StagePlan:
    """Join each row with another stream or view as it is when the row comes.

    Args:
        left: the rows that speak.
        right: the rows to look up; their changes alone say nothing.
        on: as for `join`.
        how: inner or left.
        snapshot: `current` joins with the right changes of the same epoch, `previous` without them.
        condition: what a pair must satisfy as well, over `left(...)` and `right(...)`.
        index: the declared index of the right rows that is looked up in; None: none is.

    Raises:
        PlanError: see the message; it names the argument, its value and the cure.
    """
    left, right = filled(left), filled(right)
    pairs, using = key_pairs(left, right, on)
    relations = [_relation(side, [pair[at] for pair in pairs]) for at, side in enumerate((left, right))]
    stage = ProcessTimeJoinStage(
        left=relations[0],
        right=relations[1],
        how=how,
        snapshot=snapshot,
        using=using,
        residual=condition,
        hidden=(_hidden(left), _hidden(right)),
        index=None if index is None else index.name,
        find_by=() if index is None or len(index.columns) == len(pairs) else index.columns,
    )
    return staged([left, right], stage, [_route(left, relations[0]), _route(right, relations[1])])


def join_loaded(
    left: Rows, table: Any, on: Any, how: str = "inner", *, reload_interval: Any, condition: Expression | None = None
) -> StagePlan:
    """Join each row with a table that is loaded as a whole and read anew from time to time.

    Args:
        left: the rows that speak.
        table: a batch DataFrame, read by the driver, or a table that workers load, such as `ParquetSource`.
        on: as for `lookup_join`.
        how: inner or left.
        reload_interval: how long it is believed.
        condition: what a pair must satisfy as well, over `left(...)` and `right(...)`.

    Raises:
        PlanError: see the message; it names the argument, its value and the cure.
    """
    source = _table(table, None) if isinstance(table, DataFrame) else loaded_table(table)
    if isinstance(source, DataFrameSource):
        source = source if reload_interval is None else replace(source, reload_interval=reload_interval)
        return lookup_join(left, source, on, how, condition=condition)
    return lookup_join(left, source, on, how, hint=Lookup(cache="full", reload_interval=reload_interval), condition=condition)


def _relation(rows: Rows, join_key: Sequence[str]) -> Relation:
    if isinstance(rows, SourceStream):
        return rows.relation(join_key)
    return replace(rows.output, join_key=tuple(join_key), primary_key=())


def _hidden(rows: Rows) -> tuple[str, ...]:
    return tuple(rows.hidden) if isinstance(rows, SourceStream) else ()


def _route(rows: Rows, relation: Relation) -> Stage | None:
    """Return what upserts go through whose lookup key may change; None where it cannot."""
    return RouteStage(source=relation) if isinstance(rows, SourceStream) and needs_route(relation) else None


def _with_hidden_column(rows: SourceStream | ViewPlan, name: str, column: Column) -> SourceStream | ViewPlan:
    """Return the same rows with a computed column more, which is in no answer.

    It depends on its row alone, so a retraction carries the key of its insertion. Of a stream in upsert mode a delete may have
    no more than the primary key: what it retracts is found by that, whatever its computed key is.

    Args:
        rows: a stream or a view.
        name: of the column; it begins with two underscores.
        column: an expression over the columns of a row.

    Raises:
        PlanError: Spark cannot make sense of it, or it depends on more than the row.
    """
    call = f"on={column}"
    if isinstance(rows, ViewPlan):
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
        made_of=None,
    )


def _with_column(rows: SourceStream, prepared: DataFrame, name: str, column: Column) -> DataFrame:
    """Return prepared rows with a column more, behind the hidden ones."""
    own = [*rows.columns, *rows.hidden]
    beside = [other for other in prepared.columns if other not in own]
    return prepared.select(*map(column_named, own), column.alias(name), *map(column_named, beside))
