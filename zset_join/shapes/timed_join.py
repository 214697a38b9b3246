"""Shapes of joins by key and time.

`VersionJoinShape`: which rows a join by key and time matches, and when it emits them.

`AsOfOptions`: shape of an as-of join: options, paired rows, output.

`TemporalOptions`: shape of a temporal join by event time: options, paired rows, output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.types as pt

from zset_join.core.errors import OptionError, PlanError
from zset_join.core.key_types import storage_type
from zset_join.core.relation import Relation
from zset_join.expressions import Expression, check
from zset_join.expressions import left as left_column
from zset_join.expressions import right as right_column
from zset_join.shapes.event_time import EventTime, is_measured, time_column
from zset_join.shapes.join import compared_types, joined_schema

__all__ = [
    "COUNTERS",
    "AsOfComparison",
    "AsOfOptions",
    "AsOfTie",
    "Emit",
    "Late",
    "TemporalOptions",
    "VersionJoinShape",
    "as_of_relation",
    "as_of_shape",
    "temporal_relation",
    "temporal_shape",
]

Emit = Literal["once", "on_watermark", "eager"]
Late = Literal["side_output", "drop", "join"]
COUNTERS = (
    "rejected",
    "late_rows",
    "late_versions",
    "ignored_versions",
    "late_corrections",
    "answered_rows",
    "freed_versions",
    "freed_rows",
)
"""What is counted over all epochs."""


@dataclass(frozen=True, kw_only=True)
class VersionJoinShape:
    """Hold which rows are matched, and when."""

    left: Relation
    right: Relation
    key: tuple[tuple[str, str], ...]  # pairs of columns
    key_types: tuple[pa.DataType, ...]
    times: EventTime
    how: str
    emit: Emit
    late: Late
    schema: pa.Schema
    sources: tuple[tuple[str, str], ...]  # per output column, (side, source column)
    residual: Expression | None = None  # an as-of join evaluates it on the nearest rows in turn
    tie_by: tuple[str, ...] = ()  # right columns that order rows of one time, then the arrival; the last one wins
    tie_descending: bool = False  # the first one wins instead
    is_mirrored: bool = False  # look forward in time
    is_strict: bool = False  # a right row of the very time does not match
    reach: int | None = None  # how far a right row may be away
    is_versioned: bool = True  # right rows are versions: a NULL key or time is bad, what is past is freed
    delete_column: str | None = None  # boolean, on the right; None: rows of weight -1 in upsert mode are DELETEs
    keep_probe_for: int | None = 0  # after the watermark, of eager left rows; None: as long as they live
    refuses_late_changes: bool = False  # with policy `error`, a change behind that bound is an error
    max_watermark_jump: int | None = None  # how far ahead of the watermark a time may be

    @property
    def condition_chooses(self) -> bool:
        """Return whether the nearest right row that passes the rest of ON is selected, instead of the nearest one."""
        return self.residual is not None and not self.is_versioned

    @property
    def left_changes(self) -> bool:
        """Return whether left rows are kept and may be retracted: late is what is behind the bound, not the watermark."""
        return self.emit == "eager" and self.left.mode != "append"


AsOfComparison = Literal[">=", ">", "<=", "<"]


AsOfTie = Literal["latest_arrival", "smallest_key"]


@dataclass(frozen=True, kw_only=True)
class AsOfOptions:
    left_time: str
    right_time: str
    op: AsOfComparison = ">="  # of the left time and the right one
    how: str = "inner"
    tie: AsOfTie = "latest_arrival"
    tolerance: int | None = None  # microseconds, or units of an integer time; None: any
    residual: Expression | None = None  # the nearest row that passes it is selected
    using: bool = False
    output_names: tuple[str, ...] | None = None


def as_of_shape(left: Relation, right: Relation, options: AsOfOptions) -> VersionJoinShape:
    """Return which rows meet, and when."""
    _check_rules(left, right, options)
    times = EventTime((left, right), (options.left_time, options.right_time), may_label=True)
    if options.residual is not None:
        check(options.residual, left.schema, right.schema)
    schema, sources = joined_schema(left, right, options.how, using=options.using, output_names=options.output_names)
    key = tuple(zip(left.join_key, right.join_key, strict=True))
    return VersionJoinShape(
        left=left,
        right=right,
        key=key,
        key_types=compared_types(left, right, key),
        times=times,
        how=options.how,
        emit="eager",
        late="join",
        schema=schema,
        sources=tuple(sources),
        residual=options.residual,
        tie_by=right.primary_key if options.tie == "smallest_key" else (),
        tie_descending=True,
        is_mirrored=options.op in ("<=", "<"),
        is_strict=options.op in (">", "<"),
        reach=None if options.tolerance is None else times.of_delay(options.tolerance),
        is_versioned=False,
    )


def as_of_relation(shape: VersionJoinShape) -> Relation:
    """Return the answer of an as-of join: keyed as its left side, for each left row shows once."""
    shown = {source: name for (side, source), name in zip(shape.sources, shape.schema.names, strict=True) if side == "left"}
    event_time = shape.left.event_time
    return Relation(
        name=f"{shape.left.name}_{shape.how}_as_of_{shape.right.name}",
        schema=shape.schema,
        primary_key=tuple(shown[name] for name in shape.left.primary_key),
        mode="changelog",
        event_time=None if event_time is None else shown[event_time],
        watermark_delay=shape.left.watermark_delay,
    )


def _check_rules(left: Relation, right: Relation, options: AsOfOptions) -> None:
    names: dict[str, object] = {"left": left.name, "right": right.name}
    if options.how not in ("inner", "left"):
        raise PlanError(
            f'the as-of join of "{left.name}" and "{right.name}" cannot be how={options.how!r}; use "inner" or "left".',
            code="AS_OF_HOW",
            how=options.how,
            **names,
        )
    for option, value, allowed in (("op", options.op, get_args(AsOfComparison)), ("tie", options.tie, get_args(AsOfTie))):
        if value not in allowed:
            raise OptionError(
                f"{option}={value!r} is unknown; use one of {', '.join(allowed)}.", code="AS_OF_OPTION", option=option
            )
    if options.tolerance is not None and options.tolerance < 0:
        raise OptionError(
            f"tolerance={options.tolerance} is a distance of 0 or more, or None for any.",
            code="AS_OF_OPTION",
            option="tolerance",
        )
    for relation, column in ((left, options.left_time), (right, options.right_time)):
        if column in relation.schema.names and options.tolerance is not None:
            kind = storage_type(relation.schema.field(column).type)
            if not (is_measured(kind) or pt.is_time(kind)):
                raise OptionError(
                    f'tolerance={options.tolerance} is a distance, and the time "{column}" of "{relation.name}" has type '
                    f"{kind}, which has none here. Leave it out, or cast the time to a timestamp, a date or an integer.",
                    code="AS_OF_OPTION",
                    option="tolerance",
                )
        if column not in relation.schema.names:
            raise PlanError(
                f'the as-of join compares the time "{column}" of "{relation.name}", which has the columns '
                f"{relation.schema.names}.",
                code="UNKNOWN_COLUMN",
                relation=relation.name,
                columns=[column],
            )
        if relation.mode == "upsert":
            raise PlanError(
                f'"{relation.name}" is in upsert mode, which an as-of join does not take: feed the rows as they come (mode '
                "append), "
                "or with both signs (changelog).",
                code="AS_OF_OF_UPSERTS",
                relation=relation.name,
            )
    if options.tie == "smallest_key" and not right.primary_key:
        raise PlanError(
            f'tie="smallest_key" needs the primary key of "{right.name}", which has none. Declare it, or use "latest_arrival".',
            code="AS_OF_TIE",
            **names,
        )


@dataclass(frozen=True, kw_only=True)
class TemporalOptions:
    how: str = "inner"
    emit: Emit = "on_watermark"
    late: Late | None = None  # of left rows; default: `side_output`, in eager mode `join`
    keep_probe_for: int | None = None  # microseconds, or units of an integer time, after the watermark
    max_watermark_jump: int | None = None  # in the same unit; None: any distance
    delete_column: str | None = None  # boolean, where versions have no primary-key deletes
    residual: Expression | None = None
    using: bool = False
    output_names: tuple[str, ...] | None = None
    hidden: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


def temporal_shape(left: Relation, right: Relation, options: TemporalOptions) -> VersionJoinShape:
    """Return which rows meet, and when."""
    _check_temporal_rules(left, right, options)
    columns = time_column(left, role="left side"), time_column(right, role="versioned side")
    times = EventTime((left, right), columns, may_label=True)
    pairs = list(zip(left.join_key, right.join_key, strict=True))
    key = tuple(pair for pair in pairs if pair[1] in right.primary_key)
    conditions = [left_column(a) == right_column(b) for a, b in pairs if b not in right.primary_key]
    conditions += [] if options.residual is None else [options.residual]
    residual = reduce(lambda one, other: one & other, conditions) if conditions else None
    if residual is not None:
        check(residual, left.schema, right.schema)
    one, other = _without(left, options.hidden[0]), _without(right, options.hidden[1])
    schema, sources = joined_schema(one, other, options.how, using=options.using, output_names=options.output_names)
    changes = options.emit == "eager" and left.mode != "append"
    late: Late = options.late or ("join" if options.emit == "eager" and not changes else "side_output")
    is_exact = changes and options.keep_probe_for is None
    return VersionJoinShape(
        left=left,
        right=right,
        key=key,
        key_types=compared_types(left, right, key),
        times=times,
        how=options.how,
        emit=options.emit,
        late=late,
        schema=schema,
        sources=tuple(sources),
        residual=residual,
        tie_by=right.sequence_by,
        delete_column=options.delete_column,
        keep_probe_for=None if is_exact else times.of_delay(options.keep_probe_for or 0),
        refuses_late_changes=changes and not is_exact and options.late is None,
        max_watermark_jump=None if options.max_watermark_jump is None else times.of_delay(options.max_watermark_jump),
    )


def _without(relation: Relation, hidden: Sequence[str]) -> Relation:
    if not hidden:
        return relation
    fields = [field for field in relation.schema if field.name not in hidden]
    return Relation(name=relation.name, schema=pa.schema(fields), join_key=relation.join_key)


def temporal_relation(shape: VersionJoinShape) -> Relation:
    """Return the answer of a temporal join: keyed as its left side, with its event time and watermark."""
    left = shape.left
    shown = {source: name for (side, source), name in zip(shape.sources, shape.schema.names, strict=True) if side == "left"}
    assert left.event_time is not None  # noqa: S101  # checked when the shape was made
    return Relation(
        name=f"{left.name}_{shape.how}_temporal_{shape.right.name}",
        schema=shape.schema,
        primary_key=tuple(shown[name] for name in left.primary_key),
        mode="changelog" if shape.emit == "eager" else "append",
        event_time=shown[left.event_time],
        watermark_delay=left.watermark_delay,
    )


def _check_temporal_rules(left: Relation, right: Relation, options: TemporalOptions) -> None:
    names: dict[str, object] = {"left": left.name, "right": right.name}
    if options.how not in ("inner", "left"):
        raise PlanError(
            f'the temporal join of "{left.name}" and "{right.name}" cannot be how={options.how!r}: a version has no row of '
            "its own "
            'to preserve. Use "inner" or "left".',
            code="TEMPORAL_HOW",
            how=options.how,
            **names,
        )
    for option, value, allowed in (
        ("emit", options.emit, get_args(Emit)),
        ("late", options.late, (None, *get_args(Late))),
    ):
        if value not in allowed:
            known = ", ".join(str(one) for one in allowed if one)
            raise OptionError(f"{option}={value!r} is unknown; use one of {known}.", code="TEMPORAL_OPTION", option=option)
    if (options.keep_probe_for or 0) < 0 or (options.max_watermark_jump or 0) < 0:
        raise OptionError(
            f"keep_probe_for={options.keep_probe_for} and max_watermark_jump={options.max_watermark_jump} are durations of "
            "0 or "
            "more.",
            code="TEMPORAL_OPTION",
            option="keep_probe_for",
        )
    if not right.primary_key or not set(right.primary_key) <= set(right.join_key):
        raise PlanError(
            f'the versioned side "{right.name}" has the primary key {list(right.primary_key)}, which must be among the '
            f"compared columns {list(right.join_key)}: otherwise a left row matches several rows at one time. Compare the "
            "whole key, or reduce the side to one row per key first: "
            f'dedup(keys={list(right.join_key)}, order_by=..., keep="last").',
            code="TEMPORAL_KEY",
            primary_key=list(right.primary_key),
            join_key=list(right.join_key),
            **names,
        )
    retractable = left.mode == "changelog" and options.emit == "eager"
    if left.mode != "append" and not retractable:
        cure = (
            "Feed it with both signs (mode changelog)."
            if options.emit == "eager"
            else 'Where both sides change, use join_asof; or emit="eager", which keeps the rows of the left side as long as '
            "they live; or feed that without keys."
        )
        raise PlanError(
            f'the left side "{left.name}" of a temporal join with emit="{options.emit}" is in {left.mode} mode: what has '
            "been emitted "
            f"there is never retracted, so its rows may not change. {cure}",
            code="TEMPORAL_LEFT_CHANGES",
            mode=left.mode,
            emit=options.emit,
            **names,
        )
    without = [one.name for one in (left, right) if one.watermark_delay is None]
    if options.emit == "on_watermark" and without:
        raise PlanError(
            f'emit="on_watermark" needs a watermark on both sides, and {without} have none: rows would wait for ever. '
            'Declare one, such as watermark=("ts", "10 seconds"), or use emit="eager" or "once".',
            code="TEMPORAL_WATERMARK",
            without=without,
            **names,
        )
    if options.delete_column is not None:
        is_column = options.delete_column in right.schema.names
        if not is_column or not pt.is_boolean(right.schema.field(options.delete_column).type):
            raise PlanError(
                f'delete_column="{options.delete_column}" is not a boolean column of "{right.name}"; it has '
                f"{right.schema.names}.",
                code="TEMPORAL_DELETES",
                **names,
            )
