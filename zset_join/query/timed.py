"""The words about time of a view: versions, dedup, temporal and as-of joins."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from zset_join.core.errors import OptionError, PlanError
from zset_join.expressions import Expression
from zset_join.expressions.rows import named, plain_column
from zset_join.plan.conditions import named_once, together
from zset_join.plan.tree import Operate, Read
from zset_join.plan.versioning import Versioning, every_change, versioning_of
from zset_join.query.columns import condition_over
from zset_join.query.event_times import duration, jump_of, with_watermark
from zset_join.query.indexes import chosen_index, indexes_of
from zset_join.query.rows import Rows
from zset_join.shapes.deduplicate import Keep
from zset_join.shapes.timed_join import AsOfComparison, AsOfOptions, AsOfTie, Emit, Late, TemporalOptions
from zset_join.stages.deduplicate import DedupRequest
from zset_join.stages.expiring import lasting
from zset_join.stages.temporal_join import TemporalJoinStage, TemporalRequest
from zset_join.stages.timed_join import AsOfRequest

__all__ = ["AsOfWords", "TemporalWords", "dedup", "describe", "join_asof", "temporal_join", "versioned_by", "view_for"]

_R = TypeVar("_R", bound=Rows)


@dataclass(frozen=True, kw_only=True)
class TemporalWords:
    """The arguments of `View.temporal_join` by event time, which explains them."""

    on: Any
    as_of: str | None
    how: str
    emit: Emit
    late: Late | None
    keep_probe_for: Any
    max_watermark_jump: Any
    condition: Expression | str | None
    is_change_time: bool
    index: str | None
    delete_column: str | None


@dataclass(frozen=True, kw_only=True)
class AsOfWords:
    """The arguments of `View.join_asof`, which explains them."""

    on: Any
    left_time: str
    right_time: str
    op: AsOfComparison
    how: str
    tie: AsOfTie
    tolerance: Any
    condition: Expression | str | None


def versioned_by(view: _R, column: str, *, delay: Any = None, max_watermark_jump: Any = None) -> _R:
    """Set the column of a source with the time of a row; see `View.versioned_by`."""
    if not isinstance(view.node, Read):
        raise PlanError(
            f'versioned_by("{column}"): "{view.name}" is not a source; set it where the source is described, before '
            f"its rows are "
            "filtered or joined.",
            code="VERSIONED_BY",
            name=view.name,
        )
    source = view.node.source
    relation = source.relation
    if delay is None:
        relation = replace(relation, event_time=column, watermark_delay=None)
    else:
        relation = with_watermark(relation, (column, delay))
    timed_source = replace(source, relation=relation, max_watermark_jump=jump_of(relation, max_watermark_jump))
    bindings = tuple(replace(one, source=timed_source) if one.source is source else one for one in view.bindings)
    return replace(view, node=Read(timed_source), bindings=bindings)


def describe(view: Rows) -> Versioning:
    """Return whether a view is versioned or latest-only, and why, and which indexes it has; see `View.describe`."""
    return replace(versioning_of(every_change(view.node)), indexes=tuple(map(str, indexes_of(view))))


def dedup(view: _R, *, keys: Sequence[str] | str, order_by: Sequence[str] | str, keep: Keep, n: int, state_ttl: Any) -> _R:
    """Keep the first or last rows of every key; see `View.dedup`."""
    request = lasting(DedupRequest(_names(keys), _names(order_by), keep, n), state_ttl, 1)
    return view.operate(request).alias(f"{view.name}_dedup")


def temporal_join(left: _R, right: Rows, words: TemporalWords, *, warns: bool = True) -> _R:
    """Join with the versions of another view; see `View.temporal_join`."""
    _check_view(right, "temporal_join")
    declared, right = right, right.every_change()
    versions = versioning_of(right.node)
    if not versions.is_versioned:
        raise PlanError(
            f'temporal_join: "{right.name}" is latest-only: {versions.why}. By event time a version needs a primary key and a '
            "time: declare keys=[...] and versioned_by(...), or reduce the rows with dedup(keys=, order_by=<event time>, "
            'keep="last").',
            code="NOT_VERSIONED",
            name=right.name,
        )
    pairs, using, more = _pairs(left, right, words.on)
    names = (left.name, right.name if right.name != left.name else f"{right.name}_2")
    as_of = left.node.relation.event_time if words.as_of is None else words.as_of
    if as_of is None:
        raise PlanError(
            f'temporal_join: "{left.name}" has no event time. Describe its source with watermark=("ts", "10 seconds"), or give '
            "as_of=<a column of it> or as_of=PROCESSING_TIME.",
            code="TEMPORAL_WATERMARK",
            name=left.name,
        )
    field = left.arrow_schema.field(as_of) if as_of in left.columns else None
    if field is None:
        raise PlanError(
            f'temporal_join: as_of="{as_of}" is not a column of "{left.name}"; its columns are {left.columns}.',
            code="UNKNOWN_COLUMN",
            name=left.name,
            missing=[as_of],
        )
    jump = words.max_watermark_jump
    options = TemporalOptions(
        how=words.how,
        emit=words.emit,
        late=words.late,
        keep_probe_for=words.keep_probe_for and duration(words.keep_probe_for, field.type, left.name),
        max_watermark_jump=None if jump is None else duration(jump, field.type, left.name),
        delete_column=versions.delete_column or words.delete_column,
        residual=_residual(more, words.condition, left, right),
        using=using,
    )
    used = chosen_index(declared, versions.key, words.index, exactly=True)
    index_name = None if used is None else used.name
    request = TemporalRequest(pairs, as_of, versions.key, options, words.is_change_time, names, index_name)
    versioned = replace(right, node=versions.node)
    joined = left.operate(request, versioned).alias(f"{left.name}_temporal_{names[1]}")
    if warns and isinstance(joined.node, Operate) and isinstance(joined.node.stage, TemporalJoinStage):
        warning = joined.node.stage.warning
        if warning is not None:
            warnings.warn(warning, stacklevel=3)
    return joined


def view_for(other: Any, reload_interval: Any) -> Rows:
    """Return the right side of a join by event time, which is a view."""
    if not isinstance(other, Rows) or reload_interval is not None:
        raise OptionError(
            "temporal_join by event time joins with a view, whose versions it has seen; a table that is loaded has only "
            "its rows of now. Use as_of=PROCESSING_TIME, or a source of versions.",
            code="NOT_A_VIEW",
        )
    return other


def join_asof(left: _R, right: Rows, words: AsOfWords) -> _R:
    """Join with the nearest row of another view; see `View.join_asof`."""
    _check_view(right, "join_asof")
    pairs, using, more = _pairs(left, right, words.on)
    names = (left.name, right.name if right.name != left.name else f"{right.name}_2")
    reach = None
    if words.tolerance is not None:
        if words.left_time not in left.columns:
            raise PlanError(
                f'join_asof: left_time="{words.left_time}" is not a column of "{left.name}"; its columns are {left.columns}.',
                code="UNKNOWN_COLUMN",
                name=left.name,
                missing=[words.left_time],
            )
        reach = duration(words.tolerance, left.arrow_schema.field(words.left_time).type, left.name)
    options = AsOfOptions(
        left_time=words.left_time,
        right_time=words.right_time,
        op=words.op,
        how=words.how,
        tie=words.tie,
        tolerance=reach,
        residual=_residual(more, words.condition, left, right),
        using=using,
    )
    return left.operate(AsOfRequest(pairs, options, names), right).alias(f"{left.name}_as_of_{names[1]}")


def _names(given: Sequence[str] | str) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _check_view(given: Any, call: str) -> None:
    if not isinstance(given, Rows):
        raise OptionError(f"{call} expects another view, got {type(given).__name__}.", code="NOT_A_VIEW")


def _residual(more: Expression | None, condition: Expression | str | None, left: Rows, right: Rows) -> Expression | None:
    """Return the equalities that are no keys and the condition, as one tree; None where there are none."""
    given = None if condition is None else condition_over(condition, left, right)
    return together([one for one in (more, given) if one is not None])


def _pairs(left: Rows, right: Rows, on: Any) -> tuple[tuple[tuple[str, str], ...], bool, Expression | None]:
    """Return the columns that must be equal, whether both sides name them alike, and equalities of columns named again."""
    wanted = [on] if isinstance(on, str) else list(on or ())
    using = all(isinstance(entry, str) for entry in wanted)
    pairs = tuple((entry, entry) if isinstance(entry, str) else tuple(entry) for entry in wanted)
    if not pairs or any(len(pair) != 2 or not all(isinstance(one, str) for one in pair) for pair in pairs):
        raise OptionError(
            f"on={on!r} is not understood; a join by time takes a column name, a list of names, or a list of pairs (left, "
            "right) of names.",
            code="ON",
        )
    for view, side in ((left, 0), (right, 1)):
        missing = [pair[side] for pair in pairs if pair[side] not in view.columns]
        if missing:
            raise PlanError(
                f'on={on!r} names {missing}, which "{view.name}" does not have; its columns are {view.columns}.',
                code="UNKNOWN_COLUMN",
                name=view.name,
                missing=missing,
            )
    once = named_once([(named(pair[0]), named(pair[1])) for pair in pairs])
    return tuple((str(plain_column(one)), str(plain_column(other))) for one, other in once.keys), using, once.condition
