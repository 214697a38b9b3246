"""The inputs of a pipeline: columns, and what their rows mean; the words are those of `zset_join.spark`.

| argument | mode | a row means |
|---|---|---|
| `keys` (with `apply_as_deletes`) | upsert | the new row of its key; a delete where the condition is true |
| `weight_column` | changelog | that many copies more, or less when negative |
| `row_kind_column` | changelog, or upsert with `keys` | +I -U +U -D, INSERT UPDATE_BEFORE ..., or insert update_preimage ... |
| `row_kind_column="_change_type"` with `keys` | upsert | of one commit, a row that arrives wins over one that goes |
| none of them | changelog | a row that is added |

What is fed is a list of dicts, a dict of columns, an Arrow table, or a `ZSet`, whose weights are the operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from zset_join.changelog import AppendFormat, ChangelogFormat, RowKindFormat, WeightFormat
from zset_join.changelog.formats import (
    CHANGE_FEED_COLUMN,
    IMAGE,
    RecordOptions,
    feed_sequence,
    is_record_format,
    row_format_arguments,
)
from zset_join.core.errors import OptionError, PlanError
from zset_join.core.relation import ChangelogMode, Relation
from zset_join.expressions import Expression
from zset_join.expressions.rows import check_condition
from zset_join.plan.query_plan import PlanSource
from zset_join.plan.tree import Node, Read, rebuilt
from zset_join.query.columns import condition_on, schema_given
from zset_join.query.event_times import jump_of, with_watermark
from zset_join.query.reading import Reading
from zset_join.query.view import View

__all__ = ["appends", "changes", "versioned", "with_jump"]


def appends(
    name: str,
    schema: pa.Schema | Mapping[str, Any] | str,
    *,
    keys: Sequence[str] | str | None = None,
    watermark: tuple[str, Any] | None = None,
    max_watermark_jump: Any = None,
    event_time: str | None = None,
) -> View:
    """Describe a source whose rows are only ever added.

    Args:
        name: in messages and for `Pipeline.step`.
        schema: an Arrow schema, column names and types, or a string such as `"id BIGINT, name STRING NOT NULL"`.
        keys: columns that identify a row, if any; not checked.
        watermark: the event-time column and how far its watermark stays behind the largest value, such as
            `("ts", "10 seconds")`; a number where the column is one.
        max_watermark_jump: how far ahead of the watermark a row may be, in the form of the delay; a row further ahead is bad
            input, reaches no operator and moves no watermark. None: any distance.
        event_time: the event-time column of a source without a watermark.

    Raises:
        PlanError: unknown columns.
        OptionError: a jump without a watermark.

    >>> appends("clicks", {"user": pa.int64(), "page": pa.string()}).columns
    ['user', 'page']
    """
    given = _schema(schema, name)
    relation = _relation(name, given, _names(keys), (), "append")
    return _view(_timed(relation, watermark, event_time), given, AppendFormat(), jump=max_watermark_jump)


def changes(
    name: str,
    schema: pa.Schema | Mapping[str, Any] | str,
    *,
    keys: Sequence[str] | str | None = None,
    sequence_by: Sequence[str] | str | None = None,
    apply_as_deletes: Expression | str | None = None,
    column_list: Sequence[str] | None = None,
    except_column_list: Sequence[str] | None = None,
    weight_column: str | None = None,
    row_kind_column: str | None = None,
    format: str | None = None,  # noqa: A002 - the name PySpark users type
    options: RecordOptions | None = None,
    watermark: tuple[str, Any] | None = None,
    max_watermark_jump: Any = None,
    event_time: str | None = None,
) -> View:
    """Describe a source whose rows change a table; the argument names are those of `create_auto_cdc_flow`.

    Args:
        name: in messages and for `Pipeline.step`.
        schema: as for `appends`, of what is fed.
        keys: columns that identify a row of the table.
        sequence_by: columns that order the changes of one key; the larger wins. A change feed with keys needs it, for the rows
            of a commit come in no order; default there: `_commit_version`, where there is one.
        apply_as_deletes: condition under which a row deletes its key, an expression or a text of Spark's SQL.
        column_list: the columns of the table; default all but those with a row's operation.
        except_column_list: columns to omit instead.
        weight_column: integer column: how many copies are inserted (positive) or deleted (negative).
        row_kind_column: column with a row's operation.
        format: what the rows are, instead of `apply_as_deletes` and its like: a format of records, such
            as debezium-json, see `records`; change-data-feed, row-kind, weight or tp-delta.
        options: what a format of records leaves open: decimals, the unit of times, metadata that become columns.
        watermark: as for `appends`.
        max_watermark_jump: as for `appends`.
        event_time: as for `appends`.

    Raises:
        PlanError: columns that do not exist, or a key that is omitted.
        OptionError: arguments that exclude each other.

    >>> changes("orders", {"id": pa.int64(), "total": pa.int64()}, keys="id").columns
    ['id', 'total']
    """
    given = _schema(schema, name)
    if format is not None:
        reported = {"apply_as_deletes": apply_as_deletes, "weight_column": weight_column, "row_kind_column": row_kind_column}
        table = {"keys": keys, "sequence_by": sequence_by, "column_list": column_list, "except_column_list": except_column_list}
        times = {"watermark": watermark, "max_watermark_jump": max_watermark_jump, "event_time": event_time}
        return _of_format(name, given, format, reported, table, options, times)
    key, sequence = _names(keys), _names(sequence_by)
    left_out_columns = tuple(except_column_list or ())
    arguments = {"weight_column": weight_column, "row_kind_column": row_kind_column, "apply_as_deletes": apply_as_deletes}
    if sum(value is not None for value in arguments.values()) > 1:
        raise OptionError(
            f'changes "{name}": {" and ".join(argument for argument, value in arguments.items() if value is not None)} all set '
            "the operation of a row; keep one of them.",
            code="CONFLICTING_ARGUMENTS",
            name=name,
        )
    own = [column for column in (weight_column, row_kind_column) if column is not None]
    _check_known(name, given, own, "weight_column or row_kind_column")
    _check_known(name, given, column_list or (), "column_list")
    _check_known(name, given, left_out_columns, "except_column_list")
    shown = [one for one in (column_list or given.names) if one not in left_out_columns and one not in own]
    _check_known(name, given, key, "keys")
    left_out = [column for column in key if column not in shown]
    if left_out:
        raise PlanError(
            f'changes "{name}": keys={list(key)} names {left_out}, which column_list or except_column_list leaves out. Key '
            "columns are part of the table; keep them.",
            code="KEY_LEFT_OUT",
            name=name,
            missing=left_out,
        )
    _check_known(name, given, sequence, "sequence_by")
    if row_kind_column == CHANGE_FEED_COLUMN and key:
        sequence = sequence or feed_sequence(name, given.names)
        fields = [given.field(column) for column in dict.fromkeys((*shown, *sequence))]
        kept, sequence = pa.schema([*fields, pa.field(IMAGE, pa.int8())]), (*sequence, IMAGE)
    else:
        kept = pa.schema([given.field(column) for column in dict.fromkeys((*shown, *sequence))])
    form: ChangelogFormat = AppendFormat()
    if weight_column is not None:
        form = WeightFormat(column=weight_column)
    elif row_kind_column is not None:
        form = RowKindFormat(column=row_kind_column)
    deletes = None
    if apply_as_deletes is not None:
        if not key:
            raise OptionError(
                f'changes "{name}": apply_as_deletes deletes a key, and there is none; pass keys=[...].',
                code="CONFLICTING_ARGUMENTS",
                name=name,
            )
        deletes = condition_on(apply_as_deletes, name, given, "apply_as_deletes")
        check_condition(deletes, given)
    mode: ChangelogMode = "upsert" if key and weight_column is None else "changelog"
    relation = _timed(_relation(name, kept, key, sequence, mode), watermark, event_time)
    return _view(relation, given, form, deletes=deletes, shown=shown, jump=max_watermark_jump)


def _of_format(
    name: str,
    given: pa.Schema,
    format_name: str,
    reported: Mapping[str, Any],
    table: Mapping[str, Any],
    options: RecordOptions | None,
    times: Mapping[str, Any],
) -> View:
    """Describe a source by the name of its format."""
    others = [argument for argument, value in reported.items() if value is not None]
    if others:
        raise OptionError(
            f'changes "{name}": format and {" and ".join(others)} both set the operation of a row; keep one of them.',
            code="CONFLICTING_ARGUMENTS",
            name=name,
        )
    if not is_record_format(name, format_name):
        return changes(name, given, **row_format_arguments(name, format_name, given.names, table), **times)
    if table["keys"] is None:
        raise PlanError(
            f'changes "{name}": schema is given and keys is not; name the primary key with keys=[...], or set keys=[] for '
            "a table without one, whose records must have whole old rows.",
            code="MISSING_PRIMARY_KEY",
            name=name,
        )
    if times["event_time"] is not None or table["column_list"] is not None:
        argument = "event_time" if times["event_time"] is not None else "column_list"
        raise OptionError(
            f'changes "{name}": {argument} is not for records; give watermark=(column, delay), and the columns of the table as '
            "the schema.",
            code="CONFLICTING_ARGUMENTS",
            name=name,
        )
    from zset_join.query.records import records  # reads records with DuckDB, which plain rows do not need

    return records(
        name,
        format_name,
        given,
        keys=table["keys"],
        sequence_by=table["sequence_by"] or (),
        except_column_list=table["except_column_list"] or (),
        watermark=times["watermark"],
        max_watermark_jump=times["max_watermark_jump"],
        options=options,
    )


def versioned(
    name: str,
    schema: pa.Schema | Mapping[str, Any] | str,
    *,
    keys: Sequence[str] | str,
    version_by: str,
    delay: Any = None,
    apply_as_deletes: Expression | str | None = None,
    sequence_by: Sequence[str] | str | None = None,
    max_watermark_jump: Any = None,
) -> View:
    """Describe a source of versions: each row is valid from its time on, until the next one of its key.

    Args:
        name: in messages and for `Pipeline.step`.
        schema: an Arrow schema, column names and types, or a string such as `"id BIGINT, name STRING NOT NULL"`.
        keys: columns that identify what is versioned.
        version_by: the column with the begin of a version.
        delay: delay of the watermark behind the largest time; None: no watermark.
        apply_as_deletes: condition under which a row ends the validity of its key, at its own time.
        sequence_by: columns that order versions of one time; the larger wins.
        max_watermark_jump: as for `appends`.

    Raises:
        PlanError: unknown columns.

    >>> columns = {"currency": pa.string(), "rate": pa.float64(), "at": pa.int64()}
    >>> rates = versioned("rates", columns, keys="currency", version_by="at")
    >>> str(rates.describe())
    'versioned: every row is a version of currency, from at on'
    """
    watermark = None if delay is None else (version_by, delay)
    if apply_as_deletes is None and not sequence_by:
        return appends(
            name, schema, keys=keys, watermark=watermark, event_time=version_by, max_watermark_jump=max_watermark_jump
        )
    return changes(
        name,
        schema,
        keys=keys,
        sequence_by=sequence_by,
        apply_as_deletes=apply_as_deletes,
        watermark=watermark,
        event_time=version_by,
        max_watermark_jump=max_watermark_jump,
    )


def with_jump(view: View, given: Any) -> View:
    """Return a view whose sources may have rows only so far ahead of their watermark."""
    if given is None:
        return view
    bounded: dict[int, PlanSource] = {}

    def bound(source: PlanSource) -> PlanSource:
        relation = source.relation
        if source.max_watermark_jump is not None or relation.event_time is None or relation.watermark_delay is None:
            return source
        jump = given(relation.schema.field(relation.event_time).type) if callable(given) else given
        return replace(source, max_watermark_jump=None if jump is None else jump_of(relation, jump))

    def change(node: Node) -> Node:
        return Read(bounded[id(node.source)]) if isinstance(node, Read) else node

    bounded = {id(one.source): bound(one.source) for one in view.bindings}
    bindings = tuple(replace(one, source=bounded[id(one.source)]) for one in view.bindings)
    return replace(view, node=rebuilt(view.node, change), bindings=bindings)


def _relation(name: str, kept: pa.Schema, keys: tuple[str, ...], sequence: tuple[str, ...], mode: ChangelogMode) -> Relation:
    if not str(name).strip():
        raise OptionError(f"name={name!r}: a source needs a name of its own.", code="NAME")
    return Relation(name=name, schema=kept, primary_key=keys, sequence_by=sequence, mode=mode)


def _timed(relation: Relation, watermark: tuple[str, Any] | None, event_time: str | None) -> Relation:
    if watermark is None:
        return replace(relation, event_time=event_time)
    if event_time is not None and watermark[0] != event_time:
        raise OptionError(
            f'source "{relation.name}": event_time={event_time!r} and watermark={watermark!r} name two columns; keep one of '
            "them.",
            code="CONFLICTING_ARGUMENTS",
            name=relation.name,
        )
    return with_watermark(relation, watermark)


def _view(
    relation: Relation,
    given: pa.Schema,
    form: ChangelogFormat,
    *,
    deletes: Expression | None = None,
    shown: Sequence[str] | None = None,
    jump: Any = None,
) -> View:
    hidden = () if shown is None else tuple(column for column in relation.schema.names if column not in shown)
    source = PlanSource(relation=relation, hidden=hidden, max_watermark_jump=None if jump is None else jump_of(relation, jump))
    reading = Reading(source=source, given=given, changelog_format=form, deletes=deletes)
    return View(node=Read(source), name=relation.name, bindings=(reading,))


def _schema(schema: pa.Schema | Mapping[str, Any] | str, name: str) -> pa.Schema:
    columns: Any = schema_given(schema) if isinstance(schema, str) else schema
    try:
        return columns if isinstance(columns, pa.Schema) else pa.schema(list(dict(columns).items()))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise OptionError(
            f'source "{name}": {schema!r} is not a schema; pass a pyarrow schema, a dict of column names and Arrow types, or a '
            'text such as "id BIGINT, name STRING".',
            code="SOURCE_SCHEMA",
            name=name,
        ) from error


def _names(given: Sequence[str] | str | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given or ())


def _check_known(name: str, schema: pa.Schema, columns: Sequence[str], argument: str) -> None:
    missing = [column for column in columns if column not in schema.names]
    if missing:
        raise PlanError(
            f'source "{name}": {argument} names {missing}, which is not among its columns {schema.names}.',
            code="UNKNOWN_COLUMN",
            relation=name,
            missing=missing,
        )
