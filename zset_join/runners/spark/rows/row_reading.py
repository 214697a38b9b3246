"""How a row of a DataFrame is read as a change of its table.

The law: `RowReading.prepare` gives, for every row that counts, the columns of the table, the columns that only order its
changes, a weight, and, for a row that cannot be understood, a code with the raw value. Nothing is dropped without
notice but the old rows of updates, where a key already names the row that is replaced, and what a baseline has already.

A stream and its baseline are read by the same reading, except that a baseline may lack the columns of the operation: then every
row of it is one live row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit
from pyspark.sql.types import IntegralType, StringType

from zset_join.changelog.formats import IMAGE
from zset_join.core.errors import PlanError
from zset_join.core.relation import ChangelogMode
from zset_join.runners.spark.frames.facts import reader_of
from zset_join.runners.spark.rows.layout import WEIGHT
from zset_join.runners.spark.rows.names import quoted, select_text

__all__ = [
    "CONTROL",
    "RAW",
    "REJECT",
    "WEIGHT",
    "RowOperation",
    "RowReading",
    "deletes_where",
    "image_of",
    "row_kinds_in",
    "weights_in",
]

REJECT, RAW = "__reject", "__raw"
CONTROL = "__control"
"""The hidden column that lists what a row omits, or that it is a truncate; see `zset_join.operators.partial_upserts`."""
_INSERTS = ("+i", "i", "insert", "+u", "u", "update_after", "update_postimage")
_RETRACTIONS = ("-d", "d", "delete")
_OLD_ROWS = ("-u", "update_before", "update_preimage")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOperation:
    weight: Column
    reject: Column | None = None
    raw: Column | None = None
    kept: Column | None = None
    used: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReading:
    """Describe how rows become changes of a table."""

    mode: ChangelogMode
    columns: tuple[str, ...]
    keys: tuple[str, ...] = ()
    sequence: tuple[tuple[str, Column | None], ...] = ()
    operation: RowOperation | None = None
    control: Column | None = None
    unread: str | None = None

    @property
    def hidden(self) -> dict[str, Column]:
        """Return the columns that are not part of the table: those that order changes, and the control column last."""
        ordering = {column: expression for column, expression in self.sequence if expression is not None}
        return ordering if self.control is None else {**ordering, CONTROL: self.control}

    @property
    def may_reject(self) -> bool:
        """Return whether a row may be impossible to understand."""
        return self.unread is not None or (self.operation is not None and self.operation.reject is not None)

    def prepare(self, df: DataFrame) -> DataFrame:
        """Select columns, hidden columns, weight, reject code and raw value of each row."""
        operation = self.operation or _one_more_row()
        if self.unread is not None:
            operation = _where_read(operation, F.col(quoted(self.unread)))
        nothing = F.lit(None).cast("string")
        reject = nothing if operation.reject is None else operation.reject
        is_rejected = reject.isNotNull() if self.control is None else reject.isNotNull() | (self.control != 0)
        raw = nothing if operation.raw is None else F.when(is_rejected, operation.raw.cast("string"))
        rows = df if operation.kept is None else df.where(operation.kept)
        prepared = rows.select(
            "*",
            *(expression.alias(column) for column, expression in self.hidden.items()),
            operation.weight.alias(WEIGHT),
            reject.alias(REJECT),
            raw.alias(RAW),
        )
        return select_text(prepared, [quoted(name) for name in (*self.columns, *self.hidden, WEIGHT, REJECT, RAW)])

    def text(self, df: DataFrame) -> tuple[str, ...]:
        """Return the expressions of the operation and of hidden columns as Spark writes them; none where there are none."""
        columns = [expression.alias(name) for name, expression in self.hidden.items()]
        if self.operation is not None:
            columns.append(self.operation.weight.alias(WEIGHT))
        if not columns:
            return ()
        return reader_of(df.sparkSession).texts(df, columns)

    def of_first_rows(self) -> RowReading:
        """Return a reading of whole rows without an operation, each before every change of its key that has an order."""
        first = F.lit(-1).cast("long")
        order = tuple((column, None if expression is None else first) for column, expression in self.sequence)
        control = None if self.control is None else F.lit(0).cast("long")
        return replace(self, sequence=order, operation=None, control=control)

    def of_live_rows(self) -> RowReading:
        """Return a reading of rows without a column for what they do: each is live."""
        comes = F.lit(2).cast("byte")
        order = tuple((column, comes if column == IMAGE else expression) for column, expression in self.sequence)
        return replace(self, sequence=order, operation=None)

    def after(self, condition: Column, code: str) -> RowReading:
        """Return a reading of the rows for which a condition is true; one for which it is NULL is rejected with a code."""
        before = self.operation or _one_more_row()
        kept = condition.isNull() | condition
        reject = F.when(condition.isNull(), F.lit(code))
        cut = replace(
            before,
            kept=kept if before.kept is None else kept & before.kept,
            reject=reject if before.reject is None else reject.otherwise(before.reject),
        )
        return replace(self, operation=cut)


def deletes_where(condition: Column, used: frozenset[str]) -> RowOperation:
    """Return the operation of rows that upsert their key, or delete it where a condition is true."""
    weight = F.when(F.coalesce(condition, F.lit(False)), F.lit(-1)).otherwise(F.lit(1))
    return RowOperation(weight=weight.cast("long"), used=used)


def weights_in(df: DataFrame, name: str, column: str) -> RowOperation:
    kind = df.schema[column].dataType
    if not isinstance(kind, IntegralType):
        raise PlanError(
            f'changes "{name}": weight_column="{column}" is of type {kind.simpleString()}; a weight is a whole number. '
            "Cast it to bigint.",
            code="WEIGHT_TYPE",
            name=name,
            column=column,
        )
    given = F.col(quoted(column)).cast("long")
    return RowOperation(
        weight=F.coalesce(given, F.lit(0).cast("long")),
        reject=F.when(given.isNull(), F.lit("NULL_WEIGHT")),
        raw=given,
        used=frozenset([column]),
    )


def image_of(column: str) -> Column:
    """Return the place of a change feed's row among those of its commit, as `zset_join.changelog.formats.rows.IMAGE`."""
    row_kind = F.lower(F.trim(F.col(quoted(column))))
    place = F.when(row_kind.isin(*_OLD_ROWS), F.lit(0)).when(row_kind.isin(*_RETRACTIONS), F.lit(1)).otherwise(F.lit(2))
    return place.cast("byte")


def row_kinds_in(df: DataFrame, name: str, column: str, *, ignores_old: bool) -> RowOperation:
    kind = df.schema[column].dataType
    if not isinstance(kind, StringType):
        raise PlanError(
            f'changes "{name}": row_kind_column="{column}" is of type {kind.simpleString()}; a row kind is a string '
            "such as +I, -U, +U, -D. Cast it, or use weight_column.",
            code="ROW_KIND_TYPE",
            name=name,
            column=column,
        )
    raw = F.col(quoted(column))
    row_kind = F.lower(F.trim(raw))
    gone = _RETRACTIONS if ignores_old else _RETRACTIONS + _OLD_ROWS
    weight = F.when(row_kind.isin(*_INSERTS), F.lit(1)).when(row_kind.isin(*gone), F.lit(-1)).otherwise(F.lit(0))
    known = row_kind.isin(*_INSERTS, *_RETRACTIONS, *_OLD_ROWS)
    return RowOperation(
        weight=weight.cast("long"),
        reject=F.when(row_kind.isNull(), F.lit("NULL_OP")).when(~known, F.lit("UNDECODABLE_OP")),
        raw=raw,
        kept=row_kind.isNull() | ~row_kind.isin(*_OLD_ROWS) if ignores_old else None,
        used=frozenset([column]),
    )


def _where_read(operation: RowOperation, unread: Column) -> RowOperation:
    """Return an operation by which rows that could not be read are rejected, and weigh 1."""
    is_unread = unread.isNotNull()
    reject = F.when(is_unread, F.substring_index(unread, ":", 1))
    raw = F.when(is_unread, F.substr(unread, F.locate(":", unread) + 1))
    return replace(
        operation,
        weight=F.when(is_unread, F.lit(1).cast("long")).otherwise(operation.weight),
        reject=reject if operation.reject is None else reject.otherwise(operation.reject),
        raw=raw if operation.raw is None else raw.otherwise(operation.raw.cast("string")),
        kept=None if operation.kept is None else is_unread | operation.kept,
    )


def _one_more_row() -> RowOperation:
    return RowOperation(weight=F.lit(1).cast("long"))
