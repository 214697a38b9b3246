"""Shape of an as-of join: options, paired rows, output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow.types as pt

from zset_join.core.errors import OptionError, PlanError
from zset_join.core.key_types import storage_type
from zset_join.core.relation import Relation
from zset_join.expressions import Expression, check
from zset_join.shapes.event_time import EventTime, is_measured
from zset_join.shapes.join import compared_types, joined_schema
from zset_join.shapes.version_join import VersionJoinShape

__all__ = ["AsOfComparison", "AsOfOptions", "AsOfTie", "as_of_relation", "as_of_shape"]


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
