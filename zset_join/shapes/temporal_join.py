"""Shape of a temporal join by event time: options, paired rows, output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import get_args

import pyarrow as pa
import pyarrow.types as pt

from zset_join.core.errors import OptionError, PlanError
from zset_join.core.relation import Relation
from zset_join.expressions import Expression, check
from zset_join.expressions import left as left_column
from zset_join.expressions import right as right_column
from zset_join.shapes.event_time import EventTime, time_column
from zset_join.shapes.join import compared_types, joined_schema
from zset_join.shapes.version_join import Emit, Late, VersionJoinShape

__all__ = ["TemporalOptions", "temporal_relation", "temporal_shape"]


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
    _check_rules(left, right, options)
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
    """Return the visible columns of a relation."""
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


def _check_rules(left: Relation, right: Relation, options: TemporalOptions) -> None:
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
