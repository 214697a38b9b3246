"""The as-of join: each left row meets the nearest right row in time, before it or after it.

The law: after every epoch the sum of all answers equals the batch as-of join of everything so far. Among right rows of equal
keys for which `left op right` holds (`>=`, `>`, `<=`, `<`), the nearest is chosen; of several at one time the one with the
smallest primary key, or the latest arrival, as `tie` says. When a nearer row comes, or the chosen one goes or changes, the old
answer is taken back and the new one said. The rest of ON is asked of the one row that was chosen.

Remembers all rows of both sides. A change of a right row touches the left rows from it to the next right row, no others.

Edge cases: NULL in the key or in the time, on either side, matches nothing. `tolerance` bounds the distance, itself included.

Known limits: INNER and LEFT. Neither side may be in upsert mode. `tie="smallest_key"` takes primary keys that are numbers,
dates, timestamps or decimals. No hybrid state: everything is in memory, or in mapped files. Nothing is freed by time.

Source: semantics section 14; ASOF JOIN of DuckDB, `joinAsOf` of pandas on Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow.types as pt

from zset_join.errors import OptionError, PlanError
from zset_join.expressions import Expression, check
from zset_join.key_types import common_key_type, storage_type
from zset_join.operators.timed_join import TimedJoin
from zset_join.relation import Relation
from zset_join.shapes.join import check_join, joined_schema
from zset_join.shapes.operator_options import check_policy, check_sizes
from zset_join.state.time.event_time import EventTime, is_measured
from zset_join.state.time.version_join_shape import VersionJoinShape

__all__ = ["AsOfComparison", "AsOfJoin", "AsOfOptions", "AsOfTie", "as_of_shape"]

AsOfComparison = Literal[">=", ">", "<=", "<"]
AsOfTie = Literal["latest_arrival", "smallest_key"]


@dataclass(frozen=True, kw_only=True)
class AsOfOptions:
    """Hold what an as-of join may be told.

    Args:
        left_time: the time of left rows.
        right_time: the time of right rows.
        op: how the left time compares with the right one: `>=` looks back, `<=` forward, `>` and `<` leave the same time out.
        how: `inner` or `left`.
        tie: of several right rows at one time, the `latest_arrival` or the `smallest_key`.
        tolerance: the largest distance: microseconds, or in the unit of an integer time; None: any.
        residual: the rest of ON, asked of the one row that was chosen.
        using: put the key columns once and first.
        output_names: names of the output columns.
    """

    left_time: str
    right_time: str
    op: AsOfComparison = ">="
    how: str = "inner"
    tie: AsOfTie = "latest_arrival"
    tolerance: int | None = None
    residual: Expression | None = None
    using: bool = False
    output_names: tuple[str, ...] | None = None


class AsOfJoin(TimedJoin):
    """Join each left row with the nearest right row.

    Args:
        left: the left input, with a join key, in append or changelog mode.
        right: the right input, with a join key as long, in append or changelog mode.
        options: see `AsOfOptions`.
        on_bad_input: `error` raises and applies nothing; `quarantine` leaves bad rows out and lists them in `rejections`.
        chunk_rows: rows per chunk of an answer.
        hash_bits: below 32, force collisions; for tests.
        hash_seed: what hashes are seeded with; default: that of `directory`, else a new one.
        directory: map the state from files here; None keeps it in memory.

    Raises:
        PlanError: relations that cannot be joined so, or options (`OptionError`) that are not allowed.
        KeyTypeError: keys or times that cannot be compared.
        StateError: the directory holds something else.

    >>> import pyarrow as pa
    >>> from zset_join import Tick, ZSet
    >>> schema = pa.schema({"k": pa.string(), "t": pa.int64()})
    >>> trades, quotes = (Relation(name=name, schema=schema, join_key=("k",)) for name in ("trades", "quotes"))
    >>> join = AsOfJoin(trades, quotes, AsOfOptions(left_time="t", right_time="t"))
    >>> delta = [ZSet.of({"k": ["A"], "t": [10]}), ZSet.of({"k": ["A", "A", "A"], "t": [3, 9, 11]})]
    >>> [chunk.to_pylist() for chunk in join.answer(Tick(0), delta)]
    [[(('A', 10, 'A', 9), 1)]]
    """

    def __init__(
        self,
        left: Relation,
        right: Relation,
        options: AsOfOptions,
        *,
        on_bad_input: str = "error",
        chunk_rows: int = 65_536,
        hash_bits: int = 32,
        hash_seed: int | None = None,
        directory: str | None = None,
    ) -> None:
        check_policy(on_bad_input)
        check_sizes(chunk_rows, hash_bits)
        check_join(left, right, options.how, None, options.using)
        self.options = options
        shape = as_of_shape(left, right, options)
        super().__init__(
            shape,
            output_of(shape),
            facts=("as_of", options.left_time, options.right_time, options.op, options.tie),
            on_bad_input=on_bad_input,
            tombstone_retention_seconds=0,
            chunk_rows=chunk_rows,
            hash_bits=hash_bits,
            hash_seed=hash_seed,
            directory=directory,
        )


def as_of_shape(left: Relation, right: Relation, options: AsOfOptions) -> VersionJoinShape:
    """Return which rows meet, and when.

    Raises:
        PlanError: relations that cannot be joined so, or options (`OptionError`) that are not allowed.
    """
    _check_rules(left, right, options)
    times = EventTime((left, right), (options.left_time, options.right_time))
    if options.residual is not None:
        check(options.residual, left.schema, right.schema)
    schema, sources = joined_schema(left, right, options.how, using=options.using, output_names=options.output_names)
    key = tuple(zip(left.join_key, right.join_key, strict=True))
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


def output_of(shape: VersionJoinShape) -> Relation:
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
