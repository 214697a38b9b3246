"""The inputs of a join: a streaming DataFrame and what its rows mean.

`changes` describes rows that change a table, `appends` rows that are only added. Everything that can be checked without a
row is checked here: columns, expressions, determinism, types.

Three ways to say what a row does:

| argument | mode | a row means |
|---|---|---|
| `keys` (with `apply_as_deletes`) | upsert | the new row of its key; a delete where the condition is true |
| `weight_column` | changelog | that many copies more, or less when negative |
| `row_kind_column` | changelog, or upsert with `keys` | +I -U +U -D, INSERT UPDATE_BEFORE ..., or insert update_preimage ... |

With `row_kind_column` and `keys`, an update's old row (-U) is left out: the key already says which row is replaced.

The order of two changes of one key is `sequence_by`; without it the order of arrival, of which Spark promises only that it
holds within one partition of one source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit
from pyspark.sql.types import IntegralType, StringType

from zset_join.errors import OptionError, PlanError
from zset_join.relation import ChangelogMode, Relation
from zset_join.spark.schemas import arrow_schema

if TYPE_CHECKING:
    from zset_join.spark.joined import JoinedStream

__all__ = ["RAW", "REJECT", "WEIGHT", "ChangeStream", "appends", "changes"]

WEIGHT, REJECT, RAW = "__weight", "__reject", "__raw"
_SEQUENCE = "__sequence_"
_INSERTS = ("+i", "i", "insert", "+u", "u", "update_after", "update_postimage")
_RETRACTIONS = ("-d", "d", "delete")
_OLD_ROWS = ("-u", "update_before", "update_preimage")
_RESERVED = frozenset({"stream", "weight", "code", "reason", "epoch"})


@dataclass(frozen=True, kw_only=True)
class ChangeStream:
    """A streaming DataFrame whose rows change a table; made by `changes` and `appends`.

    Args:
        name: what messages call it.
        mode: changelog mode.
        columns: the columns of the table, in order.
        keys: its primary key.
        sequence_by: columns that order the changes of one key.
        hidden: those among them that are not part of the table.
        dataframe: the DataFrame as it was given.
        prepared: columns, hidden columns, then weight, reject code and raw value of each row.
        schema: Arrow schema of columns and hidden columns.
        may_reject: rows may be undecodable.
    """

    name: str
    mode: ChangelogMode
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    sequence_by: tuple[str, ...]
    hidden: tuple[str, ...]
    dataframe: DataFrame = field(repr=False)
    prepared: DataFrame = field(repr=False)
    schema: pa.Schema = field(repr=False)
    may_reject: bool = False

    def relation(self, join_key: Sequence[str]) -> Relation:
        """Return the description the engine works with."""
        return Relation(
            name=self.name,
            schema=self.schema,
            join_key=tuple(join_key),
            primary_key=self.keys,
            sequence_by=self.sequence_by,
            mode=self.mode,
        )

    def join(
        self,
        other: ChangeStream,
        on: Any = None,
        how: str = "inner",
        *,
        null_safe: bool | Sequence[bool] = False,
        condition: Any = None,
    ) -> JoinedStream:
        """Join with another stream; see `zset_join.spark.joined.join`."""
        from zset_join.spark.joined import join

        return join(self, other, on, how, null_safe=null_safe, condition=condition)


def appends(df: DataFrame, *, name: str, keys: Sequence[str] | str | None = None) -> ChangeStream:
    """Describe a stream whose rows are only ever added.

    Args:
        df: a streaming DataFrame.
        name: what messages call it.
        keys: columns that identify a row, when there are any; the engine trusts them.

    Raises:
        PlanError: `df` does not stream, or names unknown columns.
    """
    _check_dataframe(df, name)
    return _make(df, name, "append", tuple(df.columns), _names(df, keys, "keys", name), (), F.lit(1).cast("long"))


def changes(
    df: DataFrame,
    *,
    name: str,
    keys: Sequence[str] | Sequence[Column] | str | None = None,
    sequence_by: str | Column | Sequence[str] | None = None,
    apply_as_deletes: str | Column | None = None,
    column_list: Sequence[str] | None = None,
    except_column_list: Sequence[str] | None = None,
    weight_column: str | None = None,
    row_kind_column: str | None = None,
) -> ChangeStream:
    """Describe a stream whose rows change a table; the argument names are those of `create_auto_cdc_flow`.

    Args:
        df: a streaming DataFrame.
        name: what messages call it.
        keys: columns that identify a row of the table. Required unless `weight_column` or `row_kind_column` is given.
        sequence_by: column, list of columns or expression that orders the changes of one key; the larger one wins.
        apply_as_deletes: condition, as SQL text or Column, under which a row deletes its key.
        column_list: the columns of the table; default all but `weight_column` and `row_kind_column`.
        except_column_list: columns to leave out instead.
        weight_column: integer column that says how many copies come (positive) or go (negative).
        row_kind_column: string column that says what a row does.

    Raises:
        PlanError: see the message; it names the argument, its value and the cure.
    """
    _check_dataframe(df, name)
    _check_combination(name, keys, sequence_by, apply_as_deletes, weight_column, row_kind_column)
    key_names = _names(df, keys, "keys", name)
    own = [column for column in (weight_column, row_kind_column) if column is not None]
    for argument, column in (("weight_column", weight_column), ("row_kind_column", row_kind_column)):
        _check_known(df, [column] if column is not None else [], argument, name)
    columns = _table_columns(df, name, column_list, except_column_list, own)
    missing = [column for column in key_names if column not in columns]
    if missing:
        raise PlanError(
            f'changes "{name}": keys={list(key_names)} names {missing}, which column_list or except_column_list leaves out. '
            "Key columns are part of the table; keep them.",
            code="KEY_LEFT_OUT",
            name=name,
            missing=missing,
        )
    sequence = _sequence(df, sequence_by, columns, name)
    if weight_column is not None:
        return _weighted(df, name, columns, key_names, weight_column)
    if row_kind_column is not None:
        return _row_kinds(df, name, columns, key_names, sequence, row_kind_column)
    deleted = F.lit(False)
    if apply_as_deletes is not None:
        told = apply_as_deletes
        told = _parsed(df, told, "apply_as_deletes", name) if isinstance(told, str) else told
        deleted = F.coalesce(told, F.lit(False))
    weight = F.when(deleted, F.lit(-1)).otherwise(F.lit(1)).cast("long")
    return _make(df, name, "upsert", columns, key_names, sequence, weight)


def _weighted(df: DataFrame, name: str, columns: tuple[str, ...], keys: tuple[str, ...], weight_column: str) -> ChangeStream:
    kind = df.schema[weight_column].dataType
    if not isinstance(kind, IntegralType):
        raise PlanError(
            f'changes "{name}": weight_column="{weight_column}" is of type {kind.simpleString()}; a weight is a whole number. '
            "Cast it to bigint.",
            code="WEIGHT_TYPE",
            name=name,
            column=weight_column,
        )
    given = F.col(_quoted(weight_column)).cast("long")
    reject = F.when(given.isNull(), F.lit("NULL_WEIGHT"))
    return _make(df, name, "changelog", columns, keys, (), F.coalesce(given, F.lit(0).cast("long")), reject, given)


def _row_kinds(
    df: DataFrame,
    name: str,
    columns: tuple[str, ...],
    keys: tuple[str, ...],
    sequence: tuple[tuple[str, Column | None], ...],
    row_kind_column: str,
) -> ChangeStream:
    kind = df.schema[row_kind_column].dataType
    if not isinstance(kind, StringType):
        raise PlanError(
            f'changes "{name}": row_kind_column="{row_kind_column}" is of type {kind.simpleString()}; a row kind is a string '
            "such as +I, -U, +U, -D. Cast it, or use weight_column.",
            code="ROW_KIND_TYPE",
            name=name,
            column=row_kind_column,
        )
    told = F.lower(F.trim(F.col(_quoted(row_kind_column))))
    gone = _RETRACTIONS if keys else _RETRACTIONS + _OLD_ROWS
    weight = F.when(told.isin(*_INSERTS), F.lit(1)).when(told.isin(*gone), F.lit(-1)).otherwise(F.lit(0)).cast("long")
    known = told.isin(*_INSERTS, *_RETRACTIONS, *_OLD_ROWS)
    reject = F.when(told.isNull() | ~known, F.lit("UNKNOWN_OP"))
    kept = df.where(told.isNull() | ~told.isin(*_OLD_ROWS)) if keys else df
    raw = F.col(_quoted(row_kind_column))
    return _make(kept, name, "upsert" if keys else "changelog", columns, keys, sequence, weight, reject, raw, df)


def _make(
    df: DataFrame,
    name: str,
    mode: ChangelogMode,
    columns: tuple[str, ...],
    keys: tuple[str, ...],
    sequence: tuple[tuple[str, Column | None], ...],
    weight: Column,
    reject: Column | None = None,
    raw: Column | None = None,
    given: DataFrame | None = None,
) -> ChangeStream:
    """Build the stream and let Spark analyse every expression once."""
    hidden = {column: expression for column, expression in sequence if expression is not None}
    nothing = F.lit(None).cast("string")
    try:
        prepared = df.select(
            *(F.col(_quoted(column)) for column in columns),
            *(expression.alias(column) for column, expression in hidden.items()),
            weight.alias(WEIGHT),
            (nothing if reject is None else reject).alias(REJECT),
            (nothing if reject is None or raw is None else F.when(reject.isNotNull(), raw.cast("string"))).alias(RAW),
        )
        table = df.select(*prepared.columns[: len(columns)]) if not hidden else prepared.drop(WEIGHT, REJECT, RAW)
        schema = table.schema
    except (AnalysisException, ParseException) as error:
        raise PlanError(
            f'changes "{name}": Spark cannot make sense of an expression: {str(error).splitlines()[0]} Columns: {df.columns}.',
            code="EXPRESSION",
            name=name,
        ) from error
    if not prepared._jdf.queryExecution().analyzed().deterministic():
        raise PlanError(
            f'changes "{name}": the DataFrame or an expression is not deterministic (rand, uuid, ...). A retried epoch would '
            "see other rows. Compute such values at the source.",
            code="NOT_DETERMINISTIC",
            name=name,
        )
    return ChangeStream(
        name=name,
        mode=mode,
        columns=columns,
        keys=keys,
        sequence_by=tuple(column for column, _ in sequence),
        hidden=tuple(hidden),
        dataframe=df if given is None else given,
        prepared=prepared,
        schema=arrow_schema(schema, relation=name),
        may_reject=reject is not None,
    )


def _check_dataframe(df: Any, name: Any) -> None:
    if not isinstance(name, str) or not name.strip():
        raise OptionError(
            f"name={name!r}: a stream needs a name of its own; messages and the dead-letter table use it.", code="NAME"
        )
    if name.lower() in _RESERVED:
        raise OptionError(f"name={name!r} is a column of the dead-letter table; choose another name.", code="NAME", name=name)
    if not isinstance(df, DataFrame):
        raise OptionError(
            f'"{name}": expected a streaming DataFrame, got {type(df).__name__}. Pass what spark.readStream...load() returns.',
            code="NOT_A_DATAFRAME",
            name=name,
        )
    if not df.isStreaming:
        raise PlanError(
            f'"{name}" is a static DataFrame; a running join reads streams. Build it with spark.readStream instead of '
            "spark.read; for a table that does not change, write it once to a directory and stream that.",
            code="NOT_STREAMING",
            name=name,
        )
    lowered = [column.lower() for column in df.columns]
    clashing = sorted({column for column in df.columns if lowered.count(column.lower()) > 1})
    if clashing:
        raise PlanError(
            f'"{name}" has several columns called {clashing} (case does not count); rename them first.',
            code="DUPLICATE_COLUMN",
            name=name,
            columns=clashing,
        )
    taken = [column for column in df.columns if column.startswith("__")]
    if taken:
        raise PlanError(
            f'"{name}" has columns {taken}; names that begin with two underscores are the engine\'s. Rename them.',
            code="RESERVED_COLUMN",
            name=name,
            columns=taken,
        )


def _check_combination(
    name: str, keys: Any, sequence_by: Any, apply_as_deletes: Any, weight_column: Any, row_kind_column: Any
) -> None:
    told = {
        "apply_as_deletes": apply_as_deletes,
        "weight_column": weight_column,
        "row_kind_column": row_kind_column,
    }
    given = [argument for argument, value in told.items() if value is not None]
    if len(given) > 1:
        raise OptionError(
            f'changes "{name}": {" and ".join(given)} both say what a row does; keep one of them.',
            code="CONFLICTING_ARGUMENTS",
            name=name,
            arguments=given,
        )
    if weight_column is None and row_kind_column is None and not keys:
        raise PlanError(
            f'changes "{name}": keys is missing; an upsert replaces the row with the same key. Pass keys=[...], or use '
            "weight_column, row_kind_column or appends(...) for a stream without a key.",
            code="MISSING_PRIMARY_KEY",
            name=name,
        )
    if sequence_by is not None and (weight_column is not None or not keys):
        raise OptionError(
            f'changes "{name}": sequence_by orders the changes of one key; it goes with keys, and not with weight_column.',
            code="SEQUENCE_WITHOUT_UPSERT",
            name=name,
        )


def _table_columns(df: DataFrame, name: str, column_list: Any, except_column_list: Any, own: Sequence[str]) -> tuple[str, ...]:
    if column_list is not None and except_column_list is not None:
        raise OptionError(
            f'changes "{name}": column_list and except_column_list were both given; keep one of them.',
            code="CONFLICTING_ARGUMENTS",
            name=name,
            arguments=["column_list", "except_column_list"],
        )
    if column_list is not None:
        return _names(df, column_list, "column_list", name)
    left_out = {*_names(df, except_column_list, "except_column_list", name), *own}
    return tuple(column for column in df.columns if column not in left_out)


def _sequence(df: DataFrame, sequence_by: Any, columns: tuple[str, ...], name: str) -> tuple[tuple[str, Column | None], ...]:
    """Return the sequence columns; those that are not part of the table come with their expression."""
    if sequence_by is None:
        return ()
    if isinstance(sequence_by, Column):
        return ((f"{_SEQUENCE}0", sequence_by),)
    wanted = [sequence_by] if isinstance(sequence_by, str) else list(sequence_by)
    if isinstance(sequence_by, str) and sequence_by not in df.columns:
        return ((f"{_SEQUENCE}0", _parsed(df, sequence_by, "sequence_by", name)),)
    _check_known(df, wanted, "sequence_by", name)
    return tuple(
        (column, None) if column in columns else (f"{_SEQUENCE}{position}", F.col(_quoted(column)))
        for position, column in enumerate(wanted)
    )


def _names(df: DataFrame, given: Any, argument: str, name: str) -> tuple[str, ...]:
    """Return column names as the DataFrame spells them."""
    if given is None:
        return ()
    wanted = [given] if isinstance(given, str | Column) else list(given)
    plain = [column if isinstance(column, str) else _column_name(df, column, argument, name) for column in wanted]
    _check_known(df, plain, argument, name)
    repeated = sorted({column for column in plain if plain.count(column) > 1})
    if repeated:
        raise PlanError(f'"{name}": {argument}={plain} names {repeated} twice.', code="DUPLICATE_KEY_COLUMN", name=name)
    return tuple(plain)


def _column_name(df: DataFrame, column: Any, argument: str, name: str) -> str:
    if isinstance(column, Column):
        return df.select(column).columns[0]
    raise OptionError(
        f'"{name}": {argument} holds {column!r}; expected column names.', code="ARGUMENT", name=name, argument=argument
    )


def _check_known(df: DataFrame, columns: Sequence[str], argument: str, name: str) -> None:
    missing = [column for column in columns if column not in df.columns]
    if missing:
        raise PlanError(
            f'"{name}": {argument}={list(columns)} names {missing}, which is not among its columns {df.columns}.',
            code="UNKNOWN_COLUMN",
            name=name,
            argument=argument,
            missing=missing,
        )


def _parsed(df: DataFrame, text: str, argument: str, name: str) -> Column:
    try:
        df.selectExpr(text)
    except (AnalysisException, ParseException) as error:
        raise PlanError(
            f'changes "{name}": Spark cannot make sense of {argument}={text!r}: {_first_line(error)} Columns: {df.columns}.',
            code="EXPRESSION",
            name=name,
            argument=argument,
        ) from error
    return F.expr(text)


def _first_line(error: Exception) -> str:
    return next(line for line in (*str(error).splitlines(), "no reason given.") if line.strip())


def _quoted(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"
