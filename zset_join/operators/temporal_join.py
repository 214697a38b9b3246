"""The temporal join by event time: each left row meets the one version that was valid at its time.

The law: a left row at time t meets, among the versions of its key, the newest at or before t; a DELETE ends validity. Of
several at one time the larger sequence, then the later arrival wins. The rest of ON is asked of that one version. `emit` says
when:

- `on_watermark`: once, when the watermark has passed the row; the sum of all answers is the batch join of the released rows.
- `eager`: at once, corrected when versions come late; the sum is the batch join of everything so far.
- `once`: at once with the versions known then, never corrected, nothing of the left is kept.

Remembers: versions above the watermark and the newest one below it per key, a DELETE for `tombstone_retention`; left rows that
wait (`on_watermark`), or that may be corrected: those above the watermark minus `keep_probe_for` (`eager`; all, without a
watermark).

Edge cases. Late left rows (at or before the watermark before their epoch) are set aside, dropped or joined, as `late` says;
`join` sets those aside whose version may be freed. A late version changes answers not yet given, and in eager mode those given;
one older than the version kept for its key is set aside and counted, and so is a retraction of what the watermark has passed. A
NULL key of a left row matches nothing. UPDATE_BEFORE is no matter of this operator: with a primary key, decoding leaves it out.

Known limits: INNER and LEFT. A relation on the left in upsert mode is refused. A version of a key among many that come out of
order costs a move of what is behind it in its run. No hybrid state: everything is in memory, or in mapped files.

Source: semantics section 11; FOR SYSTEM_TIME AS OF of SQL:2011, Flink's and Timeplus' temporal joins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from zset_join.errors import OptionError, PlanError
from zset_join.expressions import Expression, check
from zset_join.expressions import left as left_column
from zset_join.expressions import right as right_column
from zset_join.key_types import common_key_type
from zset_join.operators.timed_join import TimedJoin
from zset_join.relation import Relation
from zset_join.row_conversion import take_rows
from zset_join.shapes.join import check_join, joined_schema
from zset_join.shapes.operator_options import check_policy, check_sizes
from zset_join.state.time.event_time import EventTime, time_column
from zset_join.state.time.version_join_shape import Emit, Late, VersionJoinShape
from zset_join.tick import Tick
from zset_join.zset import ZSet

__all__ = ["TemporalJoin", "TemporalOptions", "temporal_shape"]


@dataclass(frozen=True, kw_only=True)
class TemporalOptions:
    """Hold what a temporal join may be told.

    Args:
        how: `inner` or `left`.
        emit: `on_watermark`, `eager` or `once`.
        late: what becomes of left rows at or before the watermark before their epoch: `side_output` lists them in `rejections`,
            `drop` counts them only, `join` answers them where their version is still known. Default: `side_output`, in eager
            mode `join`.
        keep_probe_for: how long after the watermark left rows are kept for corrections, in eager mode: microseconds, or in the
            unit of an integer event time.
        max_watermark_jump: how far ahead of the watermark a time may be, in the same unit; None: any distance.
        delete_column: a boolean column of the versions that marks DELETEs, where they have no primary-key deletes.
        residual: the rest of ON, asked of the one version that was chosen.
        using: put the key columns once and first.
        output_names: names of the output columns.
        hidden: left and right columns that are not shown.
    """

    how: str = "inner"
    emit: Emit = "on_watermark"
    late: Late | None = None
    keep_probe_for: int = 0
    max_watermark_jump: int | None = None
    delete_column: str | None = None
    residual: Expression | None = None
    using: bool = False
    output_names: tuple[str, ...] | None = None
    hidden: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


class TemporalJoin(TimedJoin):
    """Join each left row with the version that was valid at its time.

    Args:
        left: the left input, with an event time and a join key; append-only, in eager mode also in changelog mode.
        right: the versions: with an event time, a primary key that is part of the join key, and in any mode. In upsert mode
            weight -1 is a DELETE at its time; in changelog mode it takes a version back.
        options: see `TemporalOptions`.
        on_bad_input: `error` raises and applies nothing; `quarantine` leaves bad rows out and lists them in `rejections`.
        tombstone_retention_seconds: how long a DELETE that is the newest version of its key is remembered (in processing time).
        chunk_rows: rows per chunk of an answer.
        hash_bits: below 32, force collisions; for tests.
        hash_seed: what hashes are seeded with; default: that of `directory`, else a new one.
        directory: map the state from files here; None keeps it in memory.
        place: among the joins that share the versions.
        eager_places: how many of these places may have runs of left rows.
        table_of: the join whose versions are shared; None: they are its own.

    Raises:
        PlanError: relations that cannot be joined so, or options (`OptionError`) that are not allowed.
        KeyTypeError: keys or times that cannot be compared.
        StateError: the directory holds something else.

    >>> from zset_join import Tick, ZSet
    >>> orders = Relation(name="orders", schema=pa.schema({"id": pa.int64(), "cur": pa.string(), "t": pa.int64()}),
    ...                   join_key=("cur",), event_time="t", watermark_delay=0)
    >>> rates = Relation(name="rates", schema=pa.schema({"cur": pa.string(), "rate": pa.float64(), "at": pa.int64()}),
    ...                  join_key=("cur",), primary_key=("cur",), mode="upsert", event_time="at", watermark_delay=0)
    >>> join = TemporalJoin(orders, rates, TemporalOptions(emit="eager"))
    >>> delta = [ZSet.of({"id": [1], "cur": ["EUR"], "t": [1000]}),
    ...          ZSet.of({"cur": ["EUR"] * 3, "rate": [1.1, 1.2, 1.3], "at": [500, 800, 1200]})]
    >>> [chunk.to_pylist() for chunk in join.answer(Tick(0), delta)]
    [[((1, 'EUR', 1000, 'EUR', 1.2, 800), 1)]]
    """

    def __init__(
        self,
        left: Relation,
        right: Relation,
        options: TemporalOptions = TemporalOptions(),
        *,
        on_bad_input: str = "error",
        tombstone_retention_seconds: int = 172_800,
        chunk_rows: int = 65_536,
        hash_bits: int = 32,
        hash_seed: int | None = None,
        directory: str | None = None,
        place: int = 0,
        eager_places: int = 0,
        table_of: TemporalJoin | None = None,
    ) -> None:
        check_policy(on_bad_input)
        check_sizes(chunk_rows, hash_bits)
        check_join(left, right, options.how, None, options.using)
        self.options = options
        shape = temporal_shape(left, right, options)
        super().__init__(
            shape,
            output_of(shape),
            facts=("temporal", options.delete_column),
            on_bad_input=on_bad_input,
            tombstone_retention_seconds=tombstone_retention_seconds,
            chunk_rows=chunk_rows,
            hash_bits=hash_bits,
            hash_seed=hash_seed,
            directory=directory,
            place=place,
            eager_places=eager_places,
            table_of=table_of,
        )
        self._chunk_rows = chunk_rows

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Yield the change of the join: what is taken back, then what is said.

        A version that is replaced by one which differs in hidden columns alone says nothing. Cost, where versions have such
        columns and `eager` corrects: the answer of an epoch is in memory once.

        Raises:
            BadInputError: rows that break a relation's contract, with policy `error`.
        """
        answer = super().answer(tick, deltas)
        return self._without_equals(answer) if self.options.hidden[1] and self.options.emit == "eager" else answer

    def _without_equals(self, answer: Iterator[ZSet]) -> Iterator[ZSet]:
        changed = ZSet.concat(list(answer), schema=self.output.schema).consolidated()
        for sign in (-1, 1):
            places = np.flatnonzero(np.sign(changed.weights) == sign)
            for begin in range(0, len(places), self._chunk_rows):
                chosen = places[begin : begin + self._chunk_rows]
                yield ZSet(take_rows(changed.rows, chosen), changed.weights[chosen])


def temporal_shape(left: Relation, right: Relation, options: TemporalOptions) -> VersionJoinShape:
    """Return which rows meet, and when.

    Raises:
        PlanError: the rules of semantics 11.7 and 11.10.
    """
    _check_rules(left, right, options)
    times = EventTime((left, right), (time_column(left, role="left side"), time_column(right, role="versioned side")))
    pairs = list(zip(left.join_key, right.join_key, strict=True))
    key = tuple(pair for pair in pairs if pair[1] in right.primary_key)
    conditions = [left_column(a) == right_column(b) for a, b in pairs if b not in right.primary_key]
    conditions += [] if options.residual is None else [options.residual]
    residual = reduce(lambda one, other: one & other, conditions) if conditions else None
    if residual is not None:
        check(residual, left.schema, right.schema)
    one, other = _without(left, options.hidden[0]), _without(right, options.hidden[1])
    schema, sources = joined_schema(one, other, options.how, using=options.using, output_names=options.output_names)
    late: Late = options.late or ("join" if options.emit == "eager" else "side_output")
    return VersionJoinShape(
        left=left,
        right=right,
        key=key,
        key_types=tuple(
            common_key_type(left.schema.field(a).type, right.schema.field(b).type, left_column=a, right_column=b)
            for a, b in key
        ),
        times=times,
        how=options.how,
        emit=options.emit,
        late=late,
        schema=schema,
        sources=tuple(sources),
        residual=residual,
        tie_by=right.sequence_by,
        delete_column=options.delete_column,
        keep_probe_for=times.of_delay(options.keep_probe_for),
        max_watermark_jump=None if options.max_watermark_jump is None else times.of_delay(options.max_watermark_jump),
    )


def _without(relation: Relation, hidden: Sequence[str]) -> Relation:
    """Return what is shown of a relation."""
    if not hidden:
        return relation
    fields = [field for field in relation.schema if field.name not in hidden]
    return Relation(name=relation.name, schema=pa.schema(fields), join_key=relation.join_key)


def output_of(shape: VersionJoinShape) -> Relation:
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
    if options.keep_probe_for < 0 or (options.max_watermark_jump or 0) < 0:
        raise OptionError(
            f"keep_probe_for={options.keep_probe_for} and max_watermark_jump={options.max_watermark_jump} are durations of "
            "0 or "
            "more.",
            code="TEMPORAL_OPTION",
            option="keep_probe_for",
        )
    if not right.primary_key or not set(right.primary_key) <= set(right.join_key):
        raise PlanError(
            f'the versioned side "{right.name}" has the primary key {list(right.primary_key)}, which must be part of what is '
            f"compared, {list(right.join_key)}: else a left row meets several rows at one time. Compare the whole key, or "
            "bring the "
            f'side down to one row per key first: dedup(keys={list(right.join_key)}, order_by=..., keep="last").',
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
            else 'Use emit="eager", or feed the left side as it comes, without keys.'
        )
        raise PlanError(
            f'the left side "{left.name}" of a temporal join with emit="{options.emit}" is in {left.mode} mode: what has '
            "been said "
            f"there is never taken back, so its rows may not change. {cure}",
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
                f'delete_column="{options.delete_column}" is no boolean column of "{right.name}"; it has {right.schema.names}.',
                code="TEMPORAL_DELETES",
                **names,
            )
