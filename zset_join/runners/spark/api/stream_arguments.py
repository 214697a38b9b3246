"""The arguments of a stream, checked before any row arrives: its name, the DataFrame, and arguments that name columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.core.errors import OptionError, PlanError
from zset_join.runners.spark.rows.names import first_line, names_clash, quoted

__all__ = [
    "check_combination",
    "check_dataframe",
    "check_known",
    "check_stream_name",
    "column_names",
    "parsed_condition",
    "sequence_columns",
    "table_columns",
]

_SEQUENCE = "__sequence_"
_RESERVED = frozenset({"stream", "weight", "code", "reason", "epoch"})


def check_stream_name(name: Any) -> None:
    """Refuse a name that is empty, or that the dead-letter table needs."""
    if not isinstance(name, str) or not name.strip():
        raise OptionError(
            f"name={name!r}: a stream needs a name of its own; messages and the dead-letter table show it.", code="NAME"
        )
    if name.lower() in _RESERVED:
        raise OptionError(f"name={name!r} is a column of the dead-letter table; choose another name.", code="NAME", name=name)


def check_dataframe(df: Any, name: Any) -> None:
    """Reject anything but a streaming DataFrame, and columns that Spark or the engine would confuse."""
    check_stream_name(name)
    if not isinstance(df, DataFrame):
        raise OptionError(
            f'"{name}": expected a streaming DataFrame, got {type(df).__name__}. Pass what spark.readStream...load() returns.',
            code="NOT_A_DATAFRAME",
            name=name,
        )
    if not df.isStreaming:
        raise PlanError(
            f'"{name}" is a static DataFrame; a query reads streams. Build it with spark.readStream instead of '
            "spark.read; for a table that does not change, write it once to a directory and stream that.",
            code="NOT_STREAMING",
            name=name,
        )
    clashing = names_clash(df.columns)
    if clashing:
        raise PlanError(
            f'"{name}" has several columns called {clashing} (ignoring case); rename them first.',
            code="DUPLICATE_COLUMN",
            name=name,
            columns=clashing,
        )
    if any(not column.strip() for column in df.columns):
        raise PlanError(
            f'"{name}" has a column without a name; columns: {df.columns}. Rename it.', code="COLUMN_NAME", name=name
        )
    taken = [column for column in df.columns if column.startswith(("__", "_zset_"))]
    if taken:
        raise PlanError(
            f'"{name}" has columns {taken}; names that begin with two underscores or _zset_ are the engine\'s. Rename them.',
            code="RESERVED_COLUMN",
            name=name,
            columns=taken,
        )


def check_combination(
    name: str, keys: Any, sequence_by: Any, apply_as_deletes: Any, weight_column: Any, row_kind_column: Any
) -> None:
    """Refuse arguments of `changes` that contradict each other, or are incomplete."""
    arguments = {"apply_as_deletes": apply_as_deletes, "weight_column": weight_column, "row_kind_column": row_kind_column}
    given = [argument for argument, value in arguments.items() if value is not None]
    if len(given) > 1:
        raise OptionError(
            f'changes "{name}": {" and ".join(given)} both set the operation of a row; keep one of them.',
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


def table_columns(df: DataFrame, name: str, column_list: Any, except_column_list: Any, own: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of the table of a stream."""
    if column_list is not None and except_column_list is not None:
        raise OptionError(
            f'changes "{name}": column_list and except_column_list were both given; keep one of them.',
            code="CONFLICTING_ARGUMENTS",
            name=name,
            arguments=["column_list", "except_column_list"],
        )
    if column_list is not None:
        return column_names(df, column_list, "column_list", name)
    left_out = {*column_names(df, except_column_list, "except_column_list", name), *own}
    return tuple(column for column in df.columns if column not in left_out)


def sequence_columns(
    df: DataFrame, sequence_by: Any, columns: tuple[str, ...], name: str
) -> tuple[tuple[str, Column | None], ...]:
    """Return the sequence columns; those that are not part of the table come with their expression."""
    if sequence_by is None:
        return ()
    if isinstance(sequence_by, Column):
        return ((f"{_SEQUENCE}0", sequence_by),)
    wanted = [sequence_by] if isinstance(sequence_by, str) else list(sequence_by)
    if isinstance(sequence_by, str) and sequence_by not in df.columns:
        return ((f"{_SEQUENCE}0", parsed_condition(df, sequence_by, "sequence_by", name)),)
    check_known(df, wanted, "sequence_by", name)
    return tuple(
        (column, None) if column in columns else (f"{_SEQUENCE}{position}", F.col(quoted(column)))
        for position, column in enumerate(wanted)
    )


def column_names(df: DataFrame, given: Any, argument: str, name: str) -> tuple[str, ...]:
    if given is None:
        return ()
    wanted = [given] if isinstance(given, str | Column) else list(given)
    plain = [column if isinstance(column, str) else _column_name(df, column, argument, name) for column in wanted]
    check_known(df, plain, argument, name)
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


def check_known(df: DataFrame, columns: Sequence[str], argument: str, name: str) -> None:
    """Refuse columns that a DataFrame does not have."""
    missing = [column for column in columns if column not in df.columns]
    if missing:
        raise PlanError(
            f'"{name}": {argument}={list(columns)} names {missing}, which is not among its columns {df.columns}.',
            code="UNKNOWN_COLUMN",
            name=name,
            argument=argument,
            missing=missing,
        )


def parsed_condition(df: DataFrame, text: str, argument: str, name: str) -> Column:
    try:
        df.selectExpr(text)
    except (AnalysisException, ParseException) as error:
        raise PlanError(
            f'changes "{name}": Spark cannot resolve {argument}={text!r}: {first_line(error)} Columns: {df.columns}.',
            code="EXPRESSION",
            name=name,
            argument=argument,
        ) from error
    return F.expr(text)
