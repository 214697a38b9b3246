"""The inputs of a join: a streaming DataFrame and what its rows mean.

`changes` describes rows that change a table, `appends` rows that are only added. Everything that can be checked without a
row is checked here: columns, expressions, determinism, types.

Three ways to give the operation of a row:

| argument | mode | a row means |
|---|---|---|
| `keys` (with `apply_as_deletes`) | upsert | the new row of its key; a delete where the condition is true |
| `weight_column` | changelog | that many copies more, or less when negative |
| `row_kind_column` | changelog, or upsert with `keys` | +I -U +U -D, INSERT UPDATE_BEFORE ..., or insert update_preimage ... |

With `row_kind_column` and `keys`, an update's old row (-U) is omitted: the key already identifies the row that is replaced.

The order of two changes of one key is `sequence_by`; without it the order of arrival, of which Spark promises only that it
holds within one partition of one source.

A stream may start from a `baseline`, a batch DataFrame of the rows that exist already; see
`zset_join.runners.spark.rows.baseline`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame

from zset_join.changelog.formats import (
    CHANGE_FEED_COLUMN,
    IMAGE,
    RecordOptions,
    feed_sequence,
    is_record_format,
    row_format_arguments,
)
from zset_join.core.errors import OptionError, PlanError
from zset_join.core.relation import ChangelogMode
from zset_join.runners.spark.api.stream_arguments import (
    check_combination,
    check_dataframe,
    check_known,
    column_names,
    parsed_condition,
    sequence_columns,
    table_columns,
)
from zset_join.runners.spark.api.views import View
from zset_join.runners.spark.frames.facts import reader_of
from zset_join.runners.spark.planning.source_stream import SourceStream
from zset_join.runners.spark.rows.baseline import NULL_AFTER_BASELINE, check_baseline, check_overlap, in_types_of, used_columns
from zset_join.runners.spark.rows.layout import WEIGHT
from zset_join.runners.spark.rows.names import first_line, quoted, select_text
from zset_join.runners.spark.rows.record_streams import RecordTable, control_of, declared_schema, records_as_rows, sampled_table
from zset_join.runners.spark.rows.row_reading import (
    CONTROL,
    RAW,
    REJECT,
    RowReading,
    deletes_where,
    image_of,
    row_kinds_in,
    weights_in,
)
from zset_join.runners.spark.rows.schemas import arrow_schema, refuse_collations
from zset_join.runners.spark.rows.undecoded_records import RecordsRead, UndecodedRecords, collected_records
from zset_join.runners.spark.rows.user_functions import functions_in
from zset_join.runners.spark.rows.watermark import with_watermark

__all__ = ["RAW", "REJECT", "WEIGHT", "appended_stream", "appends", "changed_stream", "changes"]


def appends(
    df: DataFrame,
    *,
    name: str,
    keys: Sequence[str] | str | None = None,
    baseline: DataFrame | None = None,
    after_baseline: str | Column | None = None,
    watermark: tuple[str, str | int] | None = None,
    max_watermark_jump: str | int | None = None,
) -> View:
    """Describe an append-only stream.

    Args:
        df: a streaming DataFrame.
        name: in messages.
        keys: columns that identify a row, if any; not checked.
        baseline: a batch DataFrame of the rows to start from; needs `after_baseline`.
        after_baseline: condition, as SQL text or Column, that is true for the rows of the stream that are not in the
            baseline; the others are omitted. `"true"` when the stream begins where the baseline ends.
        watermark: the event-time column and the delay of its watermark behind the largest time, such as
            `("ts", "10 seconds")`, or a number in the unit of an integer column; default: that of `df.withWatermark`.
        max_watermark_jump: how far ahead of the watermark a row may be, in the form of the delay; a row further ahead is bad
            input, reaches no operator and moves no watermark. None: any distance.

    Raises:
        PlanError: `df` does not stream, names unknown columns, or the baseline does not fit.
    """
    stream = appended_stream(df, name=name, keys=keys, baseline=baseline, after_baseline=after_baseline)
    return View.over(with_watermark(stream, watermark, max_watermark_jump))


def appended_stream(
    df: DataFrame,
    *,
    name: str,
    keys: Sequence[str] | str | None = None,
    baseline: DataFrame | None = None,
    after_baseline: str | Column | None = None,
    unread: str | None = None,
) -> SourceStream:
    """Return the stream of rows that are only ever added; see `appends`, and for `unread` `RowReading`."""
    check_dataframe(df, name)
    columns = tuple(column for column in df.columns if column != unread)
    reading = RowReading(mode="append", columns=columns, keys=column_names(df, keys, "keys", name), unread=unread)
    return _make(df, name, reading, baseline, after_baseline)


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
    baseline: DataFrame | None = None,
    after_baseline: str | Column | None = None,
    format: str | None = None,  # noqa: A002 - the name PySpark users type
    schema: Any = None,
    sample: DataFrame | None = None,
    options: RecordOptions | None = None,
    watermark: tuple[str, str | int] | None = None,
    max_watermark_jump: str | int | None = None,
) -> View:
    """Describe a stream whose rows change a table; the argument names are those of `create_auto_cdc_flow`.

    Args:
        df: a streaming DataFrame.
        name: of the stream, in messages and SQL.
        keys: columns that identify a row of the table; optional with `weight_column` or `row_kind_column`.
        sequence_by: column, list of columns or expression that orders the changes of a key; the largest wins.
            Required for a change feed with keys; default there: `_commit_version`, if it exists.
        apply_as_deletes: condition, as SQL text or Column, under which a row deletes its key.
        column_list: the columns of the table; default: all but `weight_column` and `row_kind_column`.
        except_column_list: columns to omit instead.
        weight_column: integer column: how many copies are inserted (positive) or deleted (negative).
        row_kind_column: string column with the operation of a row.
        baseline: a batch DataFrame of the rows to start from, with the columns of the table and of
            `sequence_by`. With `sequence_by` the stream may overlap it. Operation columns are optional.
        after_baseline: condition, as SQL text or Column: true for changes that the baseline lacks; others are
            skipped. Required without `keys`.
        format: format of the rows: debezium-json or another of records, change-data-feed, row-kind, weight or
            tp-delta; see `zset_join.runners.spark.rows.record_streams`.
        schema: of records, the columns of the table: Spark's text, a StructType or a pyarrow.Schema.
        sample: a batch of records to infer columns and keys from without `schema`; default: the source.
        options: how a format of records decodes decimals and times, and which metadata become columns.
        watermark: as for `appends`.
        max_watermark_jump: as for `appends`.

    Raises:
        PlanError: see the message; it names the argument, its value and the cure.
    """
    stream = changed_stream(
        df,
        name=name,
        keys=keys,
        sequence_by=sequence_by,
        apply_as_deletes=apply_as_deletes,
        column_list=column_list,
        except_column_list=except_column_list,
        weight_column=weight_column,
        row_kind_column=row_kind_column,
        baseline=baseline,
        after_baseline=after_baseline,
        format=format,
        schema=schema,
        sample=sample,
        options=options,
    )
    return View.over(with_watermark(stream, watermark, max_watermark_jump))


def changed_stream(
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
    baseline: DataFrame | None = None,
    after_baseline: str | Column | None = None,
    format: str | None = None,  # noqa: A002 - the name PySpark users type
    schema: Any = None,
    sample: DataFrame | None = None,
    options: RecordOptions | None = None,
    unread: str | None = None,
    orders_by_offset: bool = True,
) -> SourceStream:
    """Return the stream of rows that change a table; see `changes`, and for `unread`, of rows so marked, `RowReading`."""
    # Unless `orders_by_offset`, records of a key come in their turn, as those of several files do.
    if format is not None:
        others = {"apply_as_deletes": apply_as_deletes, "weight_column": weight_column, "row_kind_column": row_kind_column}
        _check_format(df, name, {argument: value for argument, value in others.items() if value is not None})
        given = {"sequence_by": sequence_by, "column_list": column_list, "except_column_list": except_column_list}
        if is_record_format(name, format):
            if after_baseline is not None:
                raise OptionError(
                    f'changes "{name}": records have an order by themselves, and every one of them counts after the baseline; '
                    "leave out after_baseline.",
                    code="CONFLICTING_ARGUMENTS",
                    name=name,
                )
            stream = _of_records(
                df,
                name,
                format,
                keys,
                schema,
                sample,
                options or RecordOptions(),
                baseline,
                orders_by_offset=orders_by_offset,
                **given,
            )
        else:
            stream = _of_row_format(df, name, format, keys, baseline=baseline, after_baseline=after_baseline, **given)
        return stream
    check_dataframe(df, name)
    check_combination(name, keys, sequence_by, apply_as_deletes, weight_column, row_kind_column)
    key_names = column_names(df, keys, "keys", name)
    own = [column for column in (weight_column, row_kind_column, unread) if column is not None]
    for argument, column in (("weight_column", weight_column), ("row_kind_column", row_kind_column)):
        check_known(df, [column] if column is not None else [], argument, name)
    columns = table_columns(df, name, column_list, except_column_list, own)
    missing = [column for column in key_names if column not in columns]
    if missing:
        raise PlanError(
            f'changes "{name}": keys={list(key_names)} names {missing}, which column_list or except_column_list leaves out. '
            "Key columns are part of the table; keep them.",
            code="KEY_LEFT_OUT",
            name=name,
            missing=missing,
        )
    sequence = sequence_columns(df, sequence_by, columns, name)
    mode: ChangelogMode = "upsert" if key_names and weight_column is None else "changelog"
    operation = None
    if weight_column is not None:
        operation = weights_in(df, name, weight_column)
    elif row_kind_column is not None:
        is_feed = bool(key_names) and row_kind_column == CHANGE_FEED_COLUMN
        operation = row_kinds_in(df, name, row_kind_column, ignores_old=bool(key_names) and not is_feed)
        if is_feed:
            sequence = sequence or sequence_columns(df, feed_sequence(name, df.columns), columns, name)
            sequence = (*sequence, (IMAGE, image_of(row_kind_column)))
    elif apply_as_deletes is not None:
        is_delete = _condition(df, apply_as_deletes, "apply_as_deletes", name)
        operation = deletes_where(is_delete, _used(df, is_delete, name))
    reading = RowReading(mode=mode, columns=columns, keys=key_names, sequence=sequence, operation=operation, unread=unread)
    return _make(df, name, reading, baseline, after_baseline)


def _check_format(df: DataFrame, name: str, operation_arguments: Mapping[str, Any]) -> None:
    check_dataframe(df, name)
    if operation_arguments:
        raise OptionError(
            f'changes "{name}": format and {" and ".join(operation_arguments)} both set the operation of a row; keep one.',
            code="CONFLICTING_ARGUMENTS",
            name=name,
            arguments=["format", *operation_arguments],
        )


def _of_records(
    df: DataFrame,
    name: str,
    format_name: str,
    keys: Any,
    schema: Any,
    sample: DataFrame | None,
    options: RecordOptions,
    baseline: DataFrame | None,
    *,
    orders_by_offset: bool,
    **given: Any,
) -> SourceStream:
    """Describe a stream of records; their format gives keys, order and deletes."""
    if schema is not None:
        if keys is None:
            raise PlanError(
                f'changes "{name}": schema is given and keys is not; name the primary key with keys=[...], or set keys=[] for '
                "a table without one, whose records must have whole old rows.",
                code="MISSING_PRIMARY_KEY",
                name=name,
            )
        table = RecordTable(schema=declared_schema(schema, name))
    else:
        table = sampled_table(df, name, format_name, sample)
    if keys is not None:
        table = replace(table, keys=(keys,) if isinstance(keys, str) else tuple(keys))
    records = records_as_rows(df, name, format_name, table, options, orders_by_offset=orders_by_offset)
    rows, shown = records.rows, records.shown
    visible = select_text(rows, [quoted(column) for column in shown])
    columns = table_columns(visible, name, given["column_list"], given["except_column_list"], [])
    needed = _needed_columns(table, columns, given["sequence_by"])
    if len(needed) < len(table.schema):  # a column that nobody sees is not decoded, so that it need not be readable
        table = replace(table, schema=needed)
        records = records_as_rows(df, name, format_name, table, options, orders_by_offset=orders_by_offset)
        rows, shown = records.rows, records.shown
        visible = select_text(rows, [quoted(column) for column in shown])
    order: list[tuple[str, Column | None]] = [*records.order]
    if given["sequence_by"] is not None:
        order = list(sequence_columns(visible, given["sequence_by"], columns, name))
    mode: ChangelogMode = "upsert" if table.keys else "changelog"
    control = control_of(records, table, columns, hidden=sum(expression is not None for _, expression in order))
    operation = records.operation if control is None else records.operation_of_parts
    reading = RowReading(
        mode=mode, columns=columns, keys=table.keys, sequence=tuple(order), operation=operation, control=control
    )
    stream = _make(rows, name, reading, baseline, None, reading.of_first_rows())
    order_of = records.order_of if given["sequence_by"] is None else {}
    found = collected_records(df) if {*reading.hidden} <= {*order_of, CONTROL} else None
    if found is None:
        return stream
    read = RecordsRead(
        name=name,
        format_name=format_name,
        table=table.schema,
        keys=table.keys,
        options=records.read,
        schema=stream.schema,
        order={column: order_of[column] for column in reading.hidden if column != CONTROL},
        control=stream.control,
    )
    collected, schema = found
    undecoded = UndecodedRecords(rows=collected, schema=schema, read=read, prepared=stream.prepared)
    return replace(stream, undecoded=undecoded)


def _needed_columns(table: RecordTable, columns: Sequence[str], sequence_by: Any) -> pa.Schema:
    """Return the columns of a table that are shown, keys, or order its changes; all where an expression may use any."""
    given = () if sequence_by is None else [sequence_by] if isinstance(sequence_by, str | Column) else [*sequence_by]
    if not all(isinstance(one, str) and one in table.schema.names for one in given):
        return table.schema
    return pa.schema([field for field in table.schema if field.name in {*columns, *table.keys, *given}])


def _of_row_format(df: DataFrame, name: str, format_name: str, keys: Any, **given: Any) -> SourceStream:
    """Describe a stream of rows of a known format: the arguments that it represents."""
    arguments = row_format_arguments(name, format_name, df.columns, {"keys": keys, **given})
    return changed_stream(df, name=name, **arguments)


def _make(
    df: DataFrame,
    name: str,
    reading: RowReading,
    baseline: DataFrame | None,
    after_baseline: str | Column | None,
    of_baseline: RowReading | None = None,
) -> SourceStream:
    """Build the stream and let Spark analyse every expression once; a baseline may be read in its own way."""
    check_overlap(name, reading.mode, baseline, after_baseline)
    of_stream = reading
    if after_baseline is not None:
        of_stream = reading.after(_condition(df, after_baseline, "after_baseline", name), NULL_AFTER_BASELINE)
    prepared = _prepared(df, name, of_stream, f'changes "{name}"')
    hidden = tuple(reading.hidden)
    table = prepared.drop(WEIGHT, REJECT, RAW) if hidden else select_text(df, [quoted(column) for column in reading.columns])
    schema = arrow_schema(table.schema, relation=name)
    refuse_collations(schema, reading.keys, relation=name, use="a column of keys")
    refuse_collations(schema, (column for column, _ in reading.sequence), relation=name, use="what sequence_by orders by")
    return SourceStream(
        name=name,
        mode=reading.mode,
        columns=reading.columns,
        keys=reading.keys,
        sequence_by=tuple(column for column, _ in reading.sequence),
        hidden=hidden,
        dataframe=df,
        prepared=prepared,
        schema=schema,
        may_reject=of_stream.may_reject,
        operation=reading.text(df),
        functions=tuple(functions_in(prepared)),
        baseline=None if baseline is None else _prepared_baseline(df, prepared, baseline, name, of_baseline or reading),
        control=CONTROL if reading.control is not None else None,
    )


def _prepared_baseline(df: DataFrame, prepared: DataFrame, baseline: DataFrame, name: str, reading: RowReading) -> DataFrame:
    """Read a baseline as its stream is read; without the columns with the operation of a row, all rows of it are live."""
    orders = [expression for column, expression in reading.hidden.items() if column not in (CONTROL, IMAGE)]
    ordering = {column for expression in orders for column in _used(df, expression, name)}
    check_baseline(baseline, name, [*reading.columns, *sorted(ordering - {*reading.columns})])
    operation = reading.operation
    if operation is not None and not operation.used <= set(baseline.columns):
        reading = reading.of_live_rows()
    return in_types_of(prepared, _prepared(baseline, name, reading, f'baseline of "{name}"'), name)


def _prepared(df: DataFrame, name: str, reading: RowReading, what: str) -> DataFrame:
    try:
        prepared = reading.prepare(df)
    except (AnalysisException, ParseException) as error:
        raise _senseless(df, name, what, error) from error
    if not reader_of(df.sparkSession).is_deterministic(prepared):
        raise PlanError(
            f"{what}: the DataFrame or an expression is not deterministic (rand, uuid, ...). A retried epoch would "
            "see other rows. Compute such values at the source.",
            code="NOT_DETERMINISTIC",
            name=name,
        )
    return prepared


def _used(df: DataFrame, expression: Column, name: str) -> frozenset[str]:
    try:
        return used_columns(df, expression)
    except (AnalysisException, ParseException) as error:
        raise _senseless(df, name, f'changes "{name}"', error) from error


def _senseless(df: DataFrame, name: str, what: str, error: Exception) -> PlanError:
    return PlanError(
        f"{what}: Spark cannot resolve an expression: {first_line(error)} Columns: {df.columns}. Write expressions as "
        'text or with col("..."), not with a column of a certain DataFrame.',
        code="EXPRESSION",
        name=name,
    )


def _condition(df: DataFrame, condition: str | Column, argument: str, name: str) -> Column:
    return parsed_condition(df, condition, argument, name) if isinstance(condition, str) else condition
