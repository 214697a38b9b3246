"""A plan as one batch query of DuckDB's: what the view must be, given all that came. It is what `verify()` compares with.

The law: nothing of the engine is in it. DuckDB picks the newest change of every key, evaluates row steps from their SQL text,
and each kind of stage says itself what it is as a query, in `BATCH_QUERY`.

A table here is a bag: a row stands in it as often as it is there. Its columns are called c0, c1, ... in the order of its
schema, whatever their names are: DuckDB takes names that differ by case for one.

A kind of stage whose answer depends on more than the rows that are there gets the times of the last epoch and, of inputs that
come from sources, every change that came (`BatchTable.history`).
"""

# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here, and expressions are quoted by `to_sql`.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from zset_join.changelog.formats import IMAGE
from zset_join.errors import PlanError
from zset_join.expressions import Expression
from zset_join.expressions.sql_text import to_sql
from zset_join.plan.query_plan import Feed, PlanSource, QueryPlan
from zset_join.plan.row_steps import OpaqueStep, RowStep, SelectStep, WhereStep
from zset_join.relation import Relation
from zset_join.stages.current_versions import CurrentVersionsStage

__all__ = [
    "BATCH_QUERY",
    "EPOCH_TIMES",
    "TIED_QUERY",
    "BatchTable",
    "BatchTimes",
    "batch_sql",
    "column",
    "expression_sql",
    "history_name",
    "newest_first",
    "register_batch_query",
    "tied_sql",
]


@dataclass(frozen=True, kw_only=True)
class BatchTimes:
    """Say how far time had come when the last epoch ended.

    Args:
        watermark_us: of the stage; None where it has none.
        processing_time_us: of the last epoch; None before the first.
    """

    watermark_us: int | None = None
    processing_time_us: int | None = None


@dataclass(frozen=True, kw_only=True)
class BatchTable:
    """Name the rows of one input of a stage.

    Args:
        name: of the table, as SQL.
        relation: its columns; `column(relation.schema, name)` is what one is called.
        history: where it comes from sources: a table of all changes in order, with the columns of the relation, `w` the weight
            (-1 in upsert mode: a delete), `e` the epoch and `n` the place; None otherwise.
        versions: where it is what holds now of some versions: the stage that says so, and its input.
    """

    name: str
    relation: Relation
    history: str | None = None
    versions: tuple[CurrentVersionsStage, BatchTable] | None = None

    def column(self, name: str) -> str:
        """Return what a column is called."""
        return column(self.relation.schema, name)


BatchQuery = Callable[[Any, Sequence[BatchTable], BatchTimes], str]

BATCH_QUERY: dict[str, BatchQuery] = {}
"""By kind of stage: given the stage, its inputs and the times, a SELECT of its output columns as c0, c1, ..."""


TiedQuery = Callable[[Any, Sequence[BatchTable], BatchTimes], str | None]

TIED_QUERY: dict[str, TiedQuery] = {}
"""By kind of stage: a SELECT of the rows among which arrival alone decides, where the inputs do not show it; None: no row."""


EPOCH_TIMES = "epoch_times"
"""The table of the processing time `t` of every epoch `e`."""


def register_batch_query(kind: str, query: BatchQuery, *, tied: TiedQuery | None = None) -> None:
    """Register what a kind of stage is as a batch query, and which rows a tie leaves open."""
    BATCH_QUERY[kind] = query
    if tied is not None:
        TIED_QUERY[kind] = tied


def column(schema: pa.Schema, name: str) -> str:
    """Return what a column of a table is called."""
    return f"c{schema.get_field_index(name)}"


def history_name(number: int) -> str:
    """Return the table that holds every change of a source, by the number of the source in the plan."""
    return f"source_{number}"


def newest_first(relation: Relation, table: str = "", goes: str | None = None) -> list[str]:
    """Return the terms that order the changes of one key, the newest first.

    Of one commit of a change feed (the relation has `IMAGE`), the rows that come are newer than those that go. That is read
    from their weights, not from the column by which the engine orders them.

    Args:
        relation: in upsert mode.
        table: the prefix of its columns, such as `h.`.
        goes: what is true for a row that goes; default: its weight is negative.
    """
    order = [f"{table}{column(relation.schema, name)} DESC" for name in relation.sequence_by if name != IMAGE]
    gone = f"{table}w < 0" if goes is None else goes
    return [*order, *([f"({gone})"] if IMAGE in relation.sequence_by else []), f"{table}n DESC"]


def expression_sql(expression: Expression, schemas: Mapping[str, pa.Schema], tables: Mapping[str, str] | None = None) -> str:
    """Return an expression as DuckDB's SQL over tables with columns c0, c1, ...

    Args:
        expression: a checked tree.
        schemas: side ("row", "left", "right") to columns.
        tables: side to the name of its table, where there are two.
    """

    def named(side: str, name: str) -> str:
        quoted_column = column(schemas[side], name)
        return quoted_column if tables is None else f"{tables[side]}.{quoted_column}"

    return to_sql(expression, schemas, dialect="duckdb", columns=named)


def batch_sql(plan: QueryPlan, times: Sequence[BatchTimes]) -> str:
    """Return the view of a plan as one query over the tables `history_name(0)`, `history_name(1)`, ...

    Args:
        plan: the plan.
        times: per stage.

    Raises:
        PlanError: a kind of stage, or a step, that DuckDB cannot be asked.
    """
    writer, _ = _written(plan, times)
    last = writer.input("answer", plan.outputs, plan.output)
    return f"WITH {', '.join(writer.parts)}\nSELECT * FROM {last.name}"


def tied_sql(plan: QueryPlan, times: Sequence[BatchTimes]) -> str | None:
    """Return the rows of the view that a tie by arrival leaves open, each once; None where none can be.

    Only the stages that feed the view itself are looked at: what a tie below another stage leads to is not followed.

    Raises:
        PlanError: as `batch_sql`.
    """
    writer, inputs = _written(plan, times)
    queries = []
    for feed in plan.outputs:
        if not isinstance(feed.origin, int):
            continue
        stage = plan.nodes[feed.origin].stage
        tied = TIED_QUERY.get(stage.kind)
        query = None if tied is None else tied(stage, inputs[feed.origin], times[feed.origin])
        if query is not None:
            queries.append(_stepped(feed, plan.relation_of(feed.origin), f"SELECT * FROM ({query})", is_history=False))
    return f"WITH {', '.join(writer.parts)}\n" + "\nUNION\n".join(queries) if queries else None


def _written(plan: QueryPlan, times: Sequence[BatchTimes]) -> tuple[_Writer, list[list[BatchTable]]]:
    """Return the parts of the query up to its stages, and the inputs of every stage."""
    writer, tables = _Writer(plan), []
    for number, source in enumerate(plan.sources):
        writer.add(f"now_{number}", _current(source, history_name(number)))
    for node in plan.nodes:
        query = BATCH_QUERY.get(node.stage.kind)
        if query is None:
            raise PlanError(
                f"verify() does not know what a stage of kind {node.stage.kind!r} is as a batch query; it knows "
                f"{sorted(BATCH_QUERY)}.",
                code="NOT_VERIFIABLE",
                kind=node.stage.kind,
            )
        inputs = [
            writer.input(f"in_{node.number}_{place}", feeds, one.relation)
            for place, (feeds, one) in enumerate(zip(node.feeds, node.stage.inputs, strict=True))
        ]
        if isinstance(node.stage, CurrentVersionsStage):
            writer.versions[node.number] = node.stage, inputs[0]
        writer.add(f"stage_{node.number}", query(node.stage, inputs, times[node.number]))
        tables.append(inputs)
    return writer, tables


class _Writer:
    """Collect the parts of the query."""

    def __init__(self, plan: QueryPlan) -> None:
        self.parts: list[str] = []
        self.versions: dict[int, tuple[CurrentVersionsStage, BatchTable]] = {}
        self._plan = plan
        self._numbers = {source.name: number for number, source in enumerate(plan.sources)}

    def add(self, name: str, query: str) -> None:
        self.parts.append(f"{name} AS MATERIALIZED (\n{query}\n)")

    def input(self, name: str, feeds: Sequence[Feed], relation: Relation) -> BatchTable:
        """Add the rows of an input, and the changes they come from where these are known."""
        self.add(name, "\nUNION ALL\n".join(self._rows(feed, is_history=False) for feed in feeds))
        if not all(isinstance(feed.origin, str) for feed in feeds):
            origin = feeds[0].origin if len(feeds) == 1 and not feeds[0].steps else None
            return BatchTable(
                name=name, relation=relation, versions=self.versions.get(origin) if isinstance(origin, int) else None
            )
        self.parts.append(
            f"{name}_history AS (\n" + "\nUNION ALL\n".join(self._rows(feed, is_history=True) for feed in feeds) + "\n)"
        )
        return BatchTable(name=name, relation=relation, history=f"{name}_history")

    def _rows(self, feed: Feed, *, is_history: bool) -> str:
        relation = self._plan.relation_of(feed.origin)
        if isinstance(feed.origin, int):
            query = f"SELECT * FROM stage_{feed.origin}"
        else:
            number = self._numbers[feed.origin]
            query = f"SELECT * FROM {history_name(number) if is_history else f'now_{number}'}"
        return _stepped(feed, relation, query, is_history=is_history)


def _stepped(feed: Feed, relation: Relation, query: str, *, is_history: bool) -> str:
    for step in feed.steps:
        query = _step_sql(step, relation, query, is_history=is_history)
        relation = step.output(relation)
    return query


def _step_sql(step: RowStep, relation: Relation, query: str, *, is_history: bool) -> str:
    more = ", w, e, n" if is_history else ""
    match step:
        case WhereStep(condition):
            passes = expression_sql(condition, _sides(relation.schema))
            if is_history and relation.mode == "upsert":
                columns = ", ".join(f"c{at}" for at in range(len(relation.schema)))
                return f"SELECT {columns}, CASE WHEN {passes} THEN w ELSE -1 END AS w, e, n FROM ({query})"
            return f"SELECT * FROM ({query}) WHERE {passes}"
        case SelectStep(columns):
            sides = _sides(relation.schema)
            selected = [f"{expression_sql(expression, sides)} AS c{at}" for at, (_, expression) in enumerate(columns)]
            return f"SELECT {', '.join(selected)}{more} FROM ({query})"
        case OpaqueStep():
            raise PlanError(
                f"verify() cannot ask DuckDB for the step {step.text}, which is Spark's own: {step.reason}.",
                code="NOT_VERIFIABLE",
                step=step.text,
            )


def _sides(schema: pa.Schema) -> dict[str, pa.Schema]:
    return dict.fromkeys(("row", "left", "right"), schema)


def _current(source: PlanSource, history: str) -> str:
    """Return the rows of a source that are there, given all its changes."""
    relation = source.relation
    columns = ", ".join(f"c{at}" for at in range(len(relation.schema)))
    if relation.mode == "upsert":
        key = ", ".join(column(relation.schema, name) for name in relation.primary_key)
        newest = f"row_number() OVER (PARTITION BY {key} ORDER BY {', '.join(newest_first(relation))}) AS place"
        return f"SELECT {columns} FROM (SELECT *, {newest} FROM {history}) WHERE place = 1 AND w > 0"
    return (
        f"SELECT {columns} FROM (SELECT {columns}, sum(w) AS copies FROM {history} GROUP BY ALL HAVING sum(w) > 0), "
        "unnest(range(CAST(copies AS BIGINT)))"
    )
