"""Joins by time: with the version that was valid at a row's time, and with the nearest row in time.

    orders.temporal_join(rates, on="currency")                    # rates: versions, with watermark=("at", "10 seconds")
    orders.temporal_join(rates.dedup("currency", order_by="at desc"), on="currency")   # an append stream of versions
    trades.join_asof(quotes, on="symbol", times=("at", "at"), tolerance="5 seconds")

The right side of a temporal join are *versions*. A deduplication that keeps the newest row by event time is planned away there:
its input rows are the versions, and late ones are seen (semantics 15).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from zset_join.errors import OptionError, PlanError
from zset_join.expressions import Expression
from zset_join.plan.versioning import of_relation
from zset_join.query.indexes import chosen_index, indexes_of
from zset_join.query.looking_up import PROCESSING_TIME, check_reloaded
from zset_join.relation import Relation
from zset_join.shapes.as_of_join import AsOfComparison, AsOfOptions, AsOfTie
from zset_join.shapes.temporal_join import TemporalOptions
from zset_join.shapes.version_join import Emit, Late
from zset_join.spark.api.joined import key_pairs
from zset_join.spark.api.looking_up import join_as_of_now, join_loaded
from zset_join.spark.api.staged import as_changes, filled, staged, without
from zset_join.spark.planning.source_stream import SourceStream
from zset_join.spark.planning.stage_plan import StagePlan
from zset_join.spark.planning.view_plan import ViewPlan
from zset_join.spark.rows.watermark import duration_of
from zset_join.stages import AsOfJoinStage, CurrentVersionsStage, Stage, TemporalJoinStage

__all__ = ["describe", "join_asof", "temporal_join"]

Rows = SourceStream | ViewPlan


def temporal_join(
    left: Rows,
    versions: Any,
    on: Any,
    how: str = "inner",
    *,
    condition: Expression | None = None,
    emit: Emit = "on_watermark",
    late: Late | None = None,
    keep_probe_for: str | int = 0,
    max_watermark_jump: str | int | None = None,
    delete_column: str | None = None,
    is_change_time: bool = False,
    as_of: str | None = None,
    snapshot: str = "current",
    reload_interval: Any = None,
    index: str | None = None,
) -> StagePlan:
    """Describe the join of rows with the versions that were valid at their times.

    Args:
        left: rows with an event time.
        versions: a stream with `keys` and an event time, or a deduplication that keeps the newest row by event time; by
            processing time any stream or view, a batch DataFrame, or a table that is loaded, such as `ParquetSource`.
        on: as for `join`; the primary key of the versions is among its columns.
        how: inner or left.
        condition: the rest of ON, asked of the one version that was chosen.
        emit: `on_watermark` waits and answers once, `eager` answers now and corrects, `once` answers now.
        late: what becomes of rows behind the watermark: `side_output` puts them into the dead-letter table, `drop`, `join`.
        keep_probe_for: how long after the watermark `eager` keeps rows for corrections.
        max_watermark_jump: how far ahead of the watermark a time may be; a row further ahead is bad input and moves no
            watermark. None: any distance.
        delete_column: a boolean column of the versions that marks DELETEs, where they have no keys.
        is_change_time: the time of a version is that of its change, not a column of the row.
        as_of: `PROCESSING_TIME` joins each row with the other side as it is when the row comes; the options above are then
            those of event time, and not used.
        snapshot: with that, `current` or `previous`; see `zset_join.spark.api.looking_up.join_as_of_now`.
        reload_interval: with that, and a DataFrame or a table that is loaded: how much time passes until it is read anew;
            default for a DataFrame every epoch, else 10 minutes.
        index: the declared index of the versions to look up in; default: one that fits, see `ChangeStream.create_index`.

    Raises:
        PlanError: the rules of temporal joins; the message names the side and the cure.
        OptionError: an argument that is not allowed.
    """
    is_loaded = not isinstance(versions, SourceStream | ViewPlan)
    if as_of == PROCESSING_TIME and is_loaded:
        check_reloaded(snapshot=snapshot, null_safe=False, index=index)
        return join_loaded(left, versions, on, how, reload_interval=reload_interval, condition=condition)
    if is_loaded or reload_interval is not None:
        raise OptionError(
            "temporal_join: a DataFrame or a table that is loaded, and reload_interval, are for as_of=PROCESSING_TIME; by "
            "event time, and for what follows its changes, give a stream or a view.",
            code="NOT_A_VIEW",
        )
    _refuse_steps_after_dedup(versions)
    if as_of == PROCESSING_TIME:
        compared = [other for _, other in key_pairs(left, versions, on)[0]]
        used = chosen_index(versions, compared, index, exactly=False)
        held = _current_versions(versions)
        return join_as_of_now(left, held, on, how, snapshot=snapshot, condition=condition, index=used)
    sides = (filled(left), _versions_behind(versions))
    pairs, using = key_pairs(left, versions, on)
    relations = [_relation(side, [pair[at] for pair in pairs]) for at, side in enumerate(sides)]
    if isinstance(versions, ViewPlan) and sides[1] is not versions:
        relations[1] = replace(relations[1], primary_key=versions.output.primary_key)
    used = chosen_index(versions, relations[1].primary_key, index, exactly=True)
    kind = relations[0].schema.field(relations[0].event_time).type if relations[0].event_time is not None else None
    options = TemporalOptions(
        how=how,
        emit=emit,
        late=late,
        keep_probe_for=duration_of(keep_probe_for, kind, "keep_probe_for") or 0,
        max_watermark_jump=duration_of(max_watermark_jump, kind, "max_watermark_jump"),
        delete_column=delete_column,
        residual=condition,
        using=using,
    )
    stage = TemporalJoinStage(
        left=relations[0],
        right=relations[1],
        options=options,
        is_change_time=is_change_time,
        index=None if used is None else used.name,
    )
    return _shown(staged(sides, stage), sides)


def join_asof(
    left: Rows,
    right: Rows,
    on: Any,
    how: str = "inner",
    *,
    times: tuple[str, str],
    op: AsOfComparison = ">=",
    tolerance: str | int | None = None,
    tie: AsOfTie = "latest_arrival",
    condition: Expression | None = None,
) -> StagePlan:
    """Describe the join of rows with the nearest ones in time.

    Args:
        left: rows that are only added, or a view; a stream with `keys` is taken as the changes of its table.
        right: the rows to look for, as `left`.
        on: as for `join`.
        how: inner or left.
        times: the time column of either side.
        op: how the left time compares with the right one: `>=` looks back, `<=` forward, `>` and `<` leave the same time out.
        tolerance: the largest distance; None: any.
        tie: of several right rows at one time, the `latest_arrival` or the `smallest_key`.
        condition: the rest of ON, asked of the one row that was chosen.

    Raises:
        PlanError: columns that are not there, or cannot be compared.
        OptionError: an argument that is not allowed.
    """
    given: Any = times
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise OptionError(
            f'times={times!r}: expected the time column of either side, such as ("ts", "ts").', code="ARGUMENT", value=times
        )
    pairs, using = key_pairs(left, right, on)
    sides = (as_changes(left), as_changes(right))
    relations = [_relation(side, [pair[at] for pair in pairs]) for at, side in enumerate(sides)]
    known = times[0] in relations[0].schema.names
    kind = relations[0].schema.field(times[0]).type if known else None
    options = AsOfOptions(
        left_time=times[0],
        right_time=times[1],
        op=op,
        how=how,
        tie=tie,
        tolerance=duration_of(tolerance, kind, "tolerance"),
        residual=condition,
        using=using,
    )
    stage: Stage = AsOfJoinStage(left=relations[0], right=relations[1], options=options)
    return _shown(staged(sides, stage), sides)


def describe(rows: Rows) -> str:
    """Say whether rows are versioned or latest-only, and why.

    Args:
        rows: a stream or the plan of a view.
    """
    lines = [_described(rows), *(f"index {index}" for index in indexes_of(rows))]
    used = getattr(rows.stage_before_steps, "index", None) if isinstance(rows, ViewPlan) else None
    return "\n".join(lines if used is None else [*lines, f"looks up in index {used}"])


def _described(rows: Rows) -> str:
    behind = _versions_behind(rows)
    if behind is not rows and isinstance(rows, ViewPlan):
        relation = _relation(behind, ())
        keys = ", ".join(rows.output.primary_key)
        return f"versioned: the rows below its dedup are versions of {keys}, from {relation.event_time} on"
    titles = _steps_after_dedup(rows)
    if titles:
        return f"latest-only: from a dedup with {' and '.join(titles)} behind it the versions cannot be told inside Spark"
    is_versioned, why = of_relation(_relation(rows, ()))
    return f"{'versioned' if is_versioned else 'latest-only'}: {why}"


def _versions_behind(rows: Rows) -> Rows:
    """Return the rows that are the versions: those before a deduplication that keeps the newest one by event time."""
    if isinstance(rows, SourceStream):
        return rows.of_whole_rows()
    if rows.output.event_time is None:
        return rows
    if rows.steps:
        last = rows.steps[-1]
        is_newest = last.stage is not None and last.stage.shows_newest
        return replace(rows, steps=rows.steps[:-1]) if is_newest else rows
    if isinstance(rows, StagePlan) and rows.stage.shows_newest:
        return rows.sources[0]
    return rows


def _steps_after_dedup(rows: Rows) -> list[str]:
    """Return the filters and selections behind a dedup of versions, from whose rows these cannot be told any more."""
    if isinstance(rows, SourceStream) or not rows.steps or rows.output.event_time is None or not rows.output.primary_key:
        return []
    stages = [rows.stage_before_steps, *(step.stage for step in rows.steps)]
    last = max((at for at, stage in enumerate(stages) if stage is not None), default=0)
    newest = stages[last]
    return [step.title for step in rows.steps[last:]] if newest is not None and newest.shows_newest else []


def _refuse_steps_after_dedup(rows: Rows) -> None:
    """Refuse a filter or selection behind a dedup of versions.

    What a filter rejects ends the version before it, and what the dedup takes back was valid at its time all the same: neither
    shows in the rows of such a view.

    Raises:
        PlanError: they are the rows of one.
    """
    titles = _steps_after_dedup(rows)
    if titles:
        raise PlanError(
            f'temporal_join: "{rows.name}" is a dedup of versions with {" and ".join(titles)} behind it, from which the '
            "versions cannot be told inside Spark. Join with the dedup itself, filter the version that is chosen with "
            'condition=right("...") > ... (right of zset_join.expressions), and select from the answer.',
            code="STEPS_AFTER_DEDUP",
            name=rows.name,
            steps=titles,
        )


def _current_versions(rows: Rows) -> Rows:
    """Return what a join by processing time looks up in: of versions those that hold now, of latest rows these themselves."""
    behind = _versions_behind(rows)
    key = rows.output.primary_key if isinstance(rows, ViewPlan) else tuple(rows.keys)
    relation = replace(_relation(behind, ()), primary_key=key)
    if not of_relation(relation)[0]:
        return rows
    hidden = tuple(behind.hidden) if isinstance(behind, SourceStream) else ()
    return staged([behind], CurrentVersionsStage(source=relation, key=relation.primary_key, hidden=hidden))


def _relation(rows: Rows, join_key: Sequence[str]) -> Relation:
    if isinstance(rows, SourceStream):
        return rows.relation(join_key)
    return replace(rows.output, join_key=tuple(join_key))


def _shown(view: StagePlan, sides: Sequence[Rows]) -> StagePlan:
    """Leave out columns that only order the changes of a stream."""
    hidden = {name for side in sides if isinstance(side, SourceStream) for name in side.hidden}
    names = [name for name in view.columns if name in hidden or name.removesuffix("_right") in hidden]
    return view if not names else without(view, names)
