"""Stages as batch queries: texts of the dialects, tables, and tables of versions.

`Dialect`: differences between DuckDB and Spark in the text of a batch query; the rest is shared.

Times: DuckDB compares timestamps and dates as they are. Spark compares microseconds, for its arithmetic on dates and timestamps
without zone depends on the session's time zone.

Known limits: in Spark a row is at most 2^31 - 1 times in a table.

`BatchScope`, `BatchTable`: inputs of the batch query of a kind of stage, and its registry.

A table here is a bag: a row is in it as often as it is present. Its columns are called c0, c1, ... in the order of its
schema, whatever their names are: DuckDB and Spark take names that differ by case for one.

`chosen_rows`, `equal_keys`: shared batch SQL of dedup, temporal and as-of joins.

Window functions over all pairs of equal keys: no index and no order is used, so a mistake of the engine's is not
made twice. What is late, and what was known when a row was released or, in eager mode, was past correction, is computed from
the epochs in which rows arrived and went, where both inputs come straight from sources whose changes are all known; behind
others nothing counts as late, and a temporal join that has counted late changes there is refused. Arrival, which breaks ties,
is that of the copies that are left: a retraction takes the oldest. Behind other stages only the state has it, and the tied
queries select the rows among which it decides.
"""

# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here, and expressions are quoted by
# `to_sql`.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from zset_join.changelog.formats import IMAGE
from zset_join.core.errors import PlanError
from zset_join.core.extras import load_extensions
from zset_join.core.relation import Relation
from zset_join.expressions import Expression
from zset_join.expressions.sql_text import Dialect as DialectName
from zset_join.expressions.sql_text import to_sql, type_name
from zset_join.shapes.timed_join import VersionJoinShape
from zset_join.stages.stage import Stage

__all__ = [
    "DUCKDB",
    "SPARK",
    "BatchScope",
    "BatchTable",
    "BatchTimes",
    "Dialect",
    "batch_query",
    "chosen_rows",
    "column",
    "equal_keys",
    "expression_sql",
    "has_arrivals",
    "newest_first",
    "numbered",
    "one_side",
    "register_batch_query",
    "rest_of_on",
    "row_copies",
    "same_rows",
    "there_in",
    "tied_query",
]


_DAY_US = 86_400 * 10**6
_MOST_EXACT_DIGITS = 30


@dataclass(frozen=True)
class Dialect:
    """Write the parts of a query that differ."""

    name: DialectName

    @property
    def is_spark(self) -> bool:
        return self.name == "spark"

    @property
    def joins_fully(self) -> bool:
        """Return whether a FULL join takes any condition."""
        return self.is_spark

    @property
    def row_id(self) -> str:
        """Return a number that is different in every row of a SELECT; it is to be read once only."""
        return "monotonically_increasing_id()" if self.is_spark else "row_number() OVER ()"

    def type_name(self, kind: pa.DataType) -> str:
        return type_name(kind, self.name)

    def repeated(self, source: str, copies: str) -> str:
        """Return a FROM clause that repeats each row by a number; a negative number drops it."""
        if self.is_spark:
            return f"{source} LATERAL VIEW explode(array_repeat(0, CAST({copies} AS INT))) copies AS copy"
        return f"{source}, unnest(range(CAST({copies} AS BIGINT)))"

    def time(self, text: str, kind: pa.DataType) -> str:
        return self.microseconds(text, kind) if self.is_spark else text

    def microseconds(self, text: str, kind: pa.DataType) -> str:
        """Return an event time as a watermark measures it: an integer as it is, all else in microseconds."""
        if pt.is_integer(kind) or not (pt.is_timestamp(kind) or pt.is_date(kind) or pt.is_time(kind)):
            return text
        if not self.is_spark:
            return f"epoch_us({text})"
        if pt.is_date(kind):
            return f"(CAST(unix_date({text}) AS BIGINT) * {_DAY_US})"
        if pt.is_time(kind):
            return f"time_to_micros({text})"
        return f"unix_micros(CAST({text} AS TIMESTAMP))"  # one without zone is read as UTC, the zone of the query

    def moved(self, time: str, kind: pa.DataType, distance: int) -> str:
        """Return `time` shifted by a distance in microseconds or in the unit of an integer time."""
        if not distance:
            return time
        sign, size = ("+", distance) if distance > 0 else ("-", -distance)
        return f"{time} {sign} {size if self.is_spark or pt.is_integer(kind) else f'to_microseconds({size})'}"

    def distinct(self, columns: Sequence[str], more: str, source: str, having: str = "") -> str:
        """Return the distinct rows of some columns, with aggregates."""
        passing = f" HAVING {having}" if having else ""
        if self.is_spark and len(columns) > _MOST_GROUPING_COLUMNS:  # Spark runs out of stack by a thousand
            listed = ", ".join(columns)
            whole = f"SELECT *, struct({listed}) AS whole FROM {source}"
            shown = ", ".join(f"whole.{one} AS {one}" for one in columns)
            return f"SELECT {shown}, {more} FROM ({whole}) GROUP BY whole{passing}"
        return f"SELECT {', '.join(columns)}, {more} FROM {source} GROUP BY ALL{passing}"

    def count_distinct(self, columns: Sequence[str]) -> str:
        if len(columns) == 1 or self.is_spark:
            return f"count(DISTINCT {', '.join(columns)})"
        return f"count(DISTINCT ({', '.join(columns)}))"

    def first_by(self, value: str, order: str, *, descending: bool) -> str:
        """Return the value with the smallest or largest order, of several the smallest or largest; NULL is the smallest."""
        if self.is_spark:
            return f"{'max_by' if descending else 'min_by'}({value}, struct({order}, {value}))"
        turned = f"{order} DESC, {value} DESC NULLS LAST" if descending else f"{order}, {value} NULLS FIRST"
        return f"first({value} ORDER BY {turned})"

    def listed(self, value: str, passing: str, *, is_set: bool) -> str:
        """Return the values in their order, with or without repeats; an empty list where none passes."""
        if self.is_spark:
            return f"sort_array({'collect_set' if is_set else 'collect_list'}({value}){passing})"
        if is_set:
            return f"coalesce(list_sort(list(DISTINCT {value}){passing}), [])"
        return f"coalesce(list({value} ORDER BY {value}){passing}, [])"

    def average(self, value: str, passing: str, result: pa.DataType) -> str:
        """Return an average; of decimals rounded half up, which DuckDB is made to do in whole numbers."""
        if self.is_spark or not pt.is_decimal(result) or result.precision > _MOST_EXACT_DIGITS:
            return f"CAST(avg({value}){passing} AS {self.type_name(result)})"
        scale = result.scale - 4
        total = f"CAST(replace(CAST(sum(CAST({value} AS DECIMAL(38,{scale}))){passing} AS VARCHAR), '.', '') AS HUGEINT)"
        count = f"count({value}){passing}"
        rounded = f"((2 * abs({total}) * 10000 + {count}) // (2 * {count}))"
        unit = f"CAST({10**result.scale} AS HUGEINT)"
        digits = f"({rounded} // {unit}) || '.' || lpad(CAST({rounded} % {unit} AS VARCHAR), {result.scale}, '0')"
        sign = f"CASE WHEN {total} < 0 THEN '-' ELSE '' END"
        return f"CASE WHEN {count} > 0 THEN CAST({sign} || {digits} AS {self.type_name(result)}) END"


_MOST_GROUPING_COLUMNS = 100

DUCKDB = Dialect("duckdb")
SPARK = Dialect("spark")


@dataclass(frozen=True, kw_only=True)
class BatchTimes:
    """How far time had come when the last epoch ended."""

    watermark_us: int | None = None  # of the stage
    processing_time_us: int | None = None  # of the last epoch
    late_inputs: frozenset[str] = frozenset()  # by relation or source: changes came too late, and were not applied


@dataclass(frozen=True, kw_only=True)
class BatchScope:
    """Context of the query of a stage."""

    dialect: Dialect
    times: BatchTimes
    epochs: str  # the table of the processing time `t` of every epoch `e`
    has_all_epochs: bool = True  # else only epochs in which a row arrived
    marks: str | None = None  # a table of the watermark `before` every epoch `e` and behind it, `mark`


@dataclass(frozen=True, kw_only=True)
class BatchTable:
    """Name the rows of one input of a stage."""

    name: str
    relation: Relation
    history: str | None = None  # a table of all changes: `w` the weight, `e` the epoch, `n` the place among all
    versions: tuple[Any, BatchTable] | None = None  # the stage of current versions, and its input

    def column(self, name: str) -> str:
        return column(self.relation.schema, name)

    @property
    def columns(self) -> list[str]:
        return numbered(self.relation.schema)

    def with_history(self, name: str) -> BatchTable:
        return replace(self, history=name)


BatchQuery = Callable[[Any, Sequence[BatchTable], BatchScope], str]
TiedQuery = Callable[[Any, Sequence[BatchTable], BatchScope], str | None]

_QUERIES: dict[str, BatchQuery] = {}
_TIED_QUERIES: dict[str, TiedQuery] = {}


def register_batch_query(kind: str, query: BatchQuery, *, tied: TiedQuery | None = None) -> None:
    """Register the batch query of a kind of stage, and the rows that a tie leaves open."""
    _QUERIES[kind] = query
    if tied is not None:
        _TIED_QUERIES[kind] = tied


def batch_query(stage: Stage, inputs: Sequence[BatchTable], scope: BatchScope) -> str:
    if stage.kind not in _QUERIES:
        load_extensions()
    query = _QUERIES.get(stage.kind)
    if query is None:
        raise PlanError(
            f"verify() has no batch query for a stage of kind {stage.kind!r}; it has one for {sorted(_QUERIES)}.",
            code="NOT_VERIFIABLE",
            kind=stage.kind,
        )
    return query(stage, inputs, scope)


def same_rows(stage: Stage, inputs: Sequence[BatchTable], scope: BatchScope) -> str:  # noqa: ARG001 - a `BatchQuery`
    """Return the table as it is: the query of a stage that changes where rows are, not what they are."""
    return f"SELECT * FROM {inputs[0].name}"


def tied_query(stage: Stage, inputs: Sequence[BatchTable], scope: BatchScope) -> str | None:
    """Return the rows of the answer of a stage among which arrival alone decides; None where there cannot be any."""
    query = _TIED_QUERIES.get(stage.kind)
    return None if query is None else query(stage, inputs, scope)


def column(schema: pa.Schema, name: str) -> str:
    return f"c{schema.get_field_index(name)}"


def numbered(schema: pa.Schema) -> list[str]:
    """Return the names of the columns of a table."""
    return [f"c{at}" for at in range(len(schema))]


def newest_first(relation: Relation, table: str = "", goes: str | None = None) -> list[str]:
    """Return the terms that order the changes of one key, the newest first."""
    # Of one commit of a change feed (the relation has `IMAGE`), the rows that arrive are newer than those that go. That is
    # read from their weights, not from the column by which the engine orders them.
    order = [f"{table}{column(relation.schema, name)} DESC" for name in relation.sequence_by if name != IMAGE]
    gone = f"{table}w < 0" if goes is None else goes
    return [*order, *([f"({gone})"] if IMAGE in relation.sequence_by else []), f"{table}n DESC"]


def one_side(schema: pa.Schema) -> dict[str, pa.Schema]:
    """Return the columns of rows that are one side, whichever an expression names."""
    return dict.fromkeys(("row", "left", "right"), schema)


def expression_sql(
    expression: Expression, schemas: Mapping[str, pa.Schema], dialect: Dialect, tables: Mapping[str, str] | None = None
) -> str:
    """Return an expression as SQL over tables with columns c0, c1, ..."""

    def named(side: str, name: str) -> str:
        quoted_column = column(schemas[side], name)
        return quoted_column if tables is None else f"{tables[side]}.{quoted_column}"

    return to_sql(expression, schemas, dialect=dialect.name, columns=named)


def has_arrivals(table: BatchTable) -> bool:
    """Return whether the order in which its rows arrived is known."""
    return table.history is not None and table.relation.mode != "upsert"


def row_copies(table: BatchTable, dialect: Dialect, came: str = "true", went: str = "true", more: Sequence[str] = ()) -> str:
    """Return every copy of a row that arrived: when, `e` and `n`, and the epoch in which it was retracted, `gone`, or NULL."""
    columns, history = table.columns, f"{table.history} h"
    listed, kept = ", ".join(f"h.{one}" for one in columns), [*columns, "e", "n", *more]
    place = f"row_number() OVER (PARTITION BY {', '.join(columns)} ORDER BY n) AS k"
    gained = f"SELECT {', '.join(f'h.{one}' for one in kept)} FROM {dialect.repeated(history, 'h.w')} WHERE h.w > 0 AND {came}"
    if table.relation.mode == "append":
        return f"SELECT *, CAST(NULL AS BIGINT) AS gone FROM ({gained})"
    lost = f"SELECT {listed}, h.e, h.n FROM {dialect.repeated(history, '-h.w')} WHERE h.w < 0 AND {went}"
    same = " AND ".join([*(f"a.{one} IS NOT DISTINCT FROM b.{one}" for one in columns), "a.k = b.k"])
    return (
        f"SELECT {', '.join(f'a.{one}' for one in kept)}, b.e AS gone "
        f"FROM (SELECT *, {place} FROM ({gained})) a LEFT JOIN (SELECT *, {place} FROM ({lost})) b ON {same}"
    )


def there_in(epoch: str) -> str:
    """Return whether a copy had not been retracted when an epoch ended."""
    return f"(r.gone IS NULL OR r.gone > {epoch})"


def equal_keys(shape: VersionJoinShape, left: BatchTable, right: BatchTable, dialect: Dialect, own: str = "l") -> list[str]:
    """Return the conditions that the keys of a left row, in the table `own`, and of a version `r` are equal."""
    parts = []
    for (one, other), kind in zip(shape.key, shape.key_types, strict=True):
        sides = []
        for alias, table, name in ((own, left, one), ("r", right, other)):
            text = f"{alias}.{table.column(name)}"
            is_kind = table.relation.schema.field(name).type == kind
            sides.append(text if is_kind else f"CAST({text} AS {dialect.type_name(kind)})")
        parts.append(f"{sides[0]} = {sides[1]}")
    return parts


def rest_of_on(residual: Expression, left: BatchTable, right: BatchTable, dialect: Dialect) -> str:
    """Return a condition over a left row `l` and a right row `r`."""
    schemas = {"left": left.relation.schema, "right": right.relation.schema}
    return f"({expression_sql(residual, schemas, dialect, {'left': 'l', 'right': 'r'})})"


def chosen_rows(
    shape: VersionJoinShape,
    left: BatchTable,
    right: BatchTable,
    pairs: str,
    order: Sequence[str],
    *,
    is_tied: bool,
    counts: str = "NOT r.deleted",
) -> str:
    """Return the join with the one right row that comes first in an order, then by arrival, if it counts."""
    # With `is_tied`: the answers of left rows for which several right rows come first, if they differ.
    first = f"rank() OVER (PARTITION BY l.id ORDER BY {', '.join(order)})"
    if not is_tied:
        first = f"row_number() OVER (PARTITION BY l.id ORDER BY {', '.join([*order, 'r.n DESC'])})"
    taken = [
        f"{f'r.{right.column(name)}' if side == 'right' else f'l.{left.column(name)}'} AS v{at}"
        for at, (side, name) in enumerate(shape.sources)
    ]
    # An id is read once: Spark may count again wherever a table is named.
    columns = ", ".join(["l.id AS id", f"coalesce({counts}, false) AS counts", f"{first} AS place", *taken])
    kind = "JOIN" if is_tied else "LEFT JOIN"
    shown = ", ".join(
        f"{f'CASE WHEN counts THEN v{at} END' if side == 'right' else f'v{at}'} AS c{at}"
        for at, (side, _) in enumerate(shape.sources)
    )
    rows = f"(SELECT {columns} FROM lefts l {kind} versions r ON {pairs})"
    dropped = " AND counts" if shape.how == "inner" else ""
    if not is_tied:
        return f"SELECT {shown} FROM {rows} WHERE place = 1{dropped}"
    answers = f"SELECT DISTINCT id, counts, {shown} FROM {rows} WHERE place = 1"
    several = f"SELECT *, count(*) OVER (PARTITION BY id) AS among FROM ({answers})"
    return f"SELECT {', '.join(f'c{at}' for at in range(len(shape.sources)))} FROM ({several}) WHERE among > 1{dropped}"
