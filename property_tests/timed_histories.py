"""Random cases of the operators about time: dedup, temporal join in three modes, as-of join; each with history and verdict.

A case is drawn from one number, so that a failure is named by it. In half of the cases all that arrives is above the watermark
before its epoch, and so is all that is retracted; in the others rows, versions and retractions arrive late as well. Left rows
that may change are kept without a bound in half of the cases: then nothing is late, whenever it comes, and the sum is the batch
join.
The verdict comes from `zset_join.testing.reference_temporal`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from property_tests.temporal_history import TemporalHistory
from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.expressions import left, right
from zset_join.operators import timed_join
from zset_join.operators.deduplicate import Deduplicate
from zset_join.operators.timed_join import TimedJoin
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.shapes.timed_join import VersionJoinShape, as_of_relation, temporal_relation
from zset_join.testing.comparison import delta_of
from zset_join.testing.reference import Counts, total
from zset_join.testing.reference_temporal import LiveRows, Nearest, TimedRow, batch_as_of, first_rows
from zset_join.zset import ZSet

__all__ = ["KINDS", "Change", "Step", "TimedCase", "sum_of"]

KINDS = ("dedup", "once", "on_watermark", "eager", "as_of")
LEFT = pa.schema({"id": pa.int64(), "k": pa.string(), "t": pa.int64(), "x": pa.int64()})
RIGHT = pa.schema({"k": pa.string(), "v": pa.string(), "at": pa.int64(), "gone": pa.bool_(), "s": pa.int32()})
LONG = "a value that is longer than twelve letters"
FAR = 10**6
TIMES: Sequence[tuple[pa.DataType, Callable[[int], Any]]] = (
    (pa.int64(), int),
    (pa.string(), lambda number: f"at the time {chr(0xC0 + number // 3)}{'é' * (number % 3)}"),
    (pa.decimal128(30, 2), lambda number: Decimal(10**20 + number).scaleb(-1)),
)
CONDITIONS: Sequence[tuple[Any, Callable[[Any, Any], bool | None]]] = (
    (None, lambda x, s: True),
    (left("x") < right("s"), lambda x, s: None if x is None else x < s),
    (right("s") != 2, lambda x, s: s != 2),
    ((left("x") == 1) & (right("s") < 3), lambda x, s: x == 1 and s < 3),
)
"""The rest of ON of columns `x` and `s`, and as the oracle evaluates it."""

Change = tuple[tuple[Any, ...], int]


@dataclass(frozen=True)
class Step:
    """One epoch: the changes of each input, the watermark before and after, and the oracle's answer.

    `said` is the answer of the epoch; None where only the sum of all answers is known, which is `held`. `aside` counts the rows
    that come too late, by code.
    """

    changes: tuple[list[Change], ...]
    before: int | None
    after: int | None
    emitted: Counts | None
    held: Counts | None
    aside: Mapping[str, Counter[Any]]

    def tick(self, epoch: int) -> Tick:
        return Tick(epoch, None, self.before, self.after)


def sum_of(answer: Sequence[ZSet]) -> Counts:
    """Return the rows of an answer with their weights."""
    return total(line for chunk in answer for line in chunk.to_pylist())


def same(shape: VersionJoinShape) -> VersionJoinShape:
    """Leave a shape as it is."""
    return shape


class TimedCase:
    """One operator with its history. Times are integers, or of a type that takes labels; such a case has no watermark.

    Args:
        kind: one of `KINDS`.
        seed: what everything is drawn from.
        scale: how many times as many keys, and changes per epoch.
    """

    def __init__(self, kind: str, seed: int, *, scale: int = 1) -> None:
        self.kind, self.seed, self.scale = kind, seed, scale
        draw = self._draw = random.Random(f"{kind}{seed}")
        self.how = draw.choice(["inner", "left"])
        is_eager = kind in ("eager", "as_of")
        self.left_mode = draw.choice(["append", "changelog"]) if is_eager or kind == "dedup" else "append"
        self.right_mode = draw.choice(["append", "changelog"] if kind == "as_of" else ["append", "changelog", "upsert"])
        self.has_sequence = self.right_mode == "upsert" and draw.random() < 0.5
        self.has_deletes = self.right_mode != "upsert" and draw.random() < 0.5
        self.keep: int | None = draw.choice([0, 3]) if kind == "eager" else 0
        has_condition = draw.random() < (0.6 if kind == "as_of" else 0.3) and kind != "dedup"
        self.condition = random.Random(f"condition {seed}").choice(CONDITIONS) if has_condition else CONDITIONS[0]
        self.residual = self.condition[0]
        self.hash_bits, self.chunk_rows = draw.choice([32, 1]), draw.choice([2, 1000])
        self.op = draw.choice([">=", ">", "<=", "<"])
        self.tie = draw.choice(["latest_arrival", "smallest_key"])
        self.tolerance = draw.choice([None, None, 0, 1, 2])
        times = TIMES if kind in ("as_of", "once", "eager") else TIMES[:1]
        self.time_type, self.time = random.Random(f"times {seed}").choice(times)
        if self.is_labelled:
            self.tolerance = None
        self.order_by = draw.choice([["t"], ["x desc", "t"], ["t desc"]])
        self.keep_row, self.n = draw.choice(["first", "last"]), draw.choice([1, 1, 2])
        delay = None if self.is_labelled else 0
        schemas = (self._typed(LEFT, "t"), self._typed(RIGHT, "at"))
        self.left = Relation(
            name="l", schema=schemas[0], mode=self.left_mode, join_key=("k",), event_time="t", watermark_delay=delay
        )
        self.right = Relation(
            name="r",
            schema=schemas[1],
            mode=self.right_mode,
            join_key=("k",),
            primary_key=("s",) if kind == "as_of" else ("k",),
            sequence_by=("s",) if self.has_sequence else (),
            event_time="at",
            watermark_delay=delay,
        )
        self.comes_late = not self.is_labelled and kind in ("once", "on_watermark", "eager") and draw.random() < 0.5
        self.late: Any = draw.choice([None, "side_output", "drop", "join"])
        self.left_changes = kind == "eager" and self.left_mode == "changelog"
        if self.left_changes and draw.random() < 0.5:
            self.keep = None
        elif self.left_changes:  # without a policy a late change is an error
            self.late = self.late or "side_output"
        self._nulls, self._takes_nulls = random.Random(f"nulls {seed}"), kind in ("dedup", "as_of")
        self.steps = self._steps()

    def __repr__(self) -> str:
        return f"TimedCase({self.kind!r}, {self.seed}{'' if self.scale == 1 else f', scale={self.scale}'})"

    @property
    def is_labelled(self) -> bool:
        """Return whether times are of a type that takes labels."""
        return not pa.types.is_integer(self.time_type)

    def _typed(self, schema: pa.Schema, column: str) -> pa.Schema:
        return schema.set(schema.get_field_index(column), pa.field(column, self.time_type))

    # ---------------------------------------------------------------- the operator

    def make(self, directory: str | None = None, change: Callable[[VersionJoinShape], VersionJoinShape] = same) -> Any:
        """Build the operator; `change` plants a bug in its options."""
        options = OperatorOptions(
            tombstone_retention_seconds=9,
            chunk_rows=self.chunk_rows,
            hash_bits=self.hash_bits,
            hash_seed=self.seed & 0xFFFFFFFF,
            directory=directory,
        )
        if self.kind == "dedup":
            return Deduplicate(self.left, keys=["k"], order_by=self.order_by, keep=self.keep_row, n=self.n, options=options)  # type: ignore[arg-type]
        shape = self.shape()
        output = as_of_relation(shape) if self.kind == "as_of" else temporal_relation(shape)
        joined = TimedJoin(change(shape), output, facts=(), options=options)
        if joined.join.labels is not None and self.seed % 2:
            joined.join.labels.step = 4  # there is soon no room between two labels
        return joined

    def shape(self) -> VersionJoinShape:
        """Return the options of a join by time."""
        if self.kind == "as_of":
            reported = timed_join.AsOfOptions(
                left_time="t",
                right_time="at",
                op=self.op,  # type: ignore[arg-type]
                how=self.how,
                tie=self.tie,  # type: ignore[arg-type]
                tolerance=self.tolerance,
                residual=self.residual,
            )
            return timed_join.as_of_shape(self.left, self.right, reported)
        options = timed_join.TemporalOptions(
            emit=self.kind,  # type: ignore[arg-type]
            how=self.how,
            delete_column="gone" if self.has_deletes else None,
            keep_probe_for=self.keep,
            late=self.late,
            residual=self.residual,
        )
        return timed_join.temporal_shape(self.left, self.right, options)

    def deltas(self, changes: Sequence[Sequence[Change]]) -> list[ZSet]:
        """Return the deltas of an epoch."""
        inputs = (self.left,) if self.kind == "dedup" else (self.left, self.right)
        return [delta_of(relation, lines) for relation, lines in zip(inputs, changes, strict=True)]

    # ---------------------------------------------------------------- the history

    def _key(self, among: Sequence[Any]) -> Any:
        found = self._draw.choice(among)
        return found if found is None or self.scale == 1 else f"{found}{self._draw.randrange(self.scale)}"

    def _row(self, side: int, low: int, high: int) -> tuple[Any, ...]:
        draw = self._draw
        if side == 0:
            key = self._key(["a", "b", LONG, None])
            return draw.randint(1, 3), key, self._time(low, high), draw.choice([1, 2, None])
        return (
            None if self._takes_nulls and self._nulls.random() < 0.1 else self._key(["a", "b", LONG]),
            draw.choice(["p", LONG]),
            self._time(low, high),
            draw.random() < 0.3,
            draw.randint(1, 3),
        )

    def _time(self, low: int, high: int) -> Any:
        """Return a time, or NULL now and then where a row without a time is no bad row."""
        drawn = self.time(self._draw.randint(low, high))
        return None if self._takes_nulls and self._nulls.random() < 0.1 else drawn

    def _changes(self, side: int, live: list[Any], watermark: int | None) -> tuple[list[Change], list[Any]]:
        draw, mode = self._draw, self.left_mode if side == 0 else self.right_mode
        low, high = (-3, 6) if watermark is None else (watermark + 1, watermark + 6)
        # Rows set aside look like rows that are present in a later retraction; of rows that change that one is late too.
        if self.comes_late:
            low -= 6
        made = []
        for _ in range(draw.randint(0, 4 * self.scale)):
            weight = draw.choice([1, 1, 2])
            made.append((self._row(side, low, high), -1 if mode == "upsert" and draw.random() < 0.3 else weight))
        if mode != "changelog":
            return made, live
        live = live + [row for row, weight in made for _ in range(weight)]
        past = None if watermark is None or self.comes_late or self.keep is None else watermark - self.keep
        pool = [row for row in live if past is None or row[2] > past]
        draw.shuffle(pool)
        gone = [(row, -1) for row in pool[: draw.randint(0, 2 * self.scale)]]
        taken = Counter(row for row, _ in gone)
        kept = []
        for row in live:  # of equal rows the oldest goes
            if taken[row]:
                taken[row] -= 1
            else:
                kept.append(row)
        live = kept
        made += gone
        draw.shuffle(made)
        return made, live

    def passes(self, one: Any, other: Any) -> bool | None:
        """Return the rest of ON, as the oracle evaluates it."""
        return self.condition[1](one[3], other[4])

    def timed(self, changes: Sequence[Sequence[Change]]) -> tuple[list[tuple[TimedRow, int]], list[tuple[TimedRow, int]]]:
        """Return changes in the oracle's words."""
        upserts = self.right_mode == "upsert"

        def version(row: Any, weight: int) -> TimedRow:
            deleted = self.kind != "as_of" and (weight < 0 if upserts else self.has_deletes and row[3])
            return TimedRow((row[0],), row[2], row, (row[4],) if self.has_sequence else (), deleted)

        lefts = [(TimedRow((row[1],), row[2], row), weight) for row, weight in changes[0]]
        return lefts, [(version(row, weight), 1 if upserts else weight) for row, weight in changes[1]]

    def _steps(self) -> list[Step]:
        history = TemporalHistory(
            right_width=5,
            how=self.how,
            passes=self.passes,
            keep=self.keep,
            late=self.late_rule,
            left_changes=self.left_changes,
        )
        dedup, as_of = LiveRows(), (LiveRows(), LiveRows())
        live: list[list[Any]] = [[], []]
        watermark: int | None = None
        steps = []
        for _ in range(self._draw.randint(2, 7)):
            before = watermark
            changes = []
            for side in range(1 if self.kind == "dedup" else 2):
                made, live[side] = self._changes(side, live[side], watermark)
                changes.append(made)
            if self._draw.random() < 0.6 and self.kind not in ("dedup", "as_of") and not self.is_labelled:
                watermark = (-4 if watermark is None else watermark) + self._draw.randint(0, 5)
            emitted: Counts | None = None
            held: Counts | None = None
            aside: dict[str, list[TimedRow]] = {}
            if self.kind == "dedup":
                dedup.add((TimedRow((row[1],), row[2], row), weight) for row, weight in changes[0])
                held = self._first(dedup)
            elif self.kind == "as_of":
                for rows, timed in zip(as_of, self.timed(changes), strict=True):
                    rows.add(timed)
                held = batch_as_of(
                    as_of[0].rows(),
                    as_of[1].rows(),
                    Nearest(
                        self.op,
                        None if self.tie == "latest_arrival" else lambda row: row.row[4],
                        self.tolerance,
                        self.passes,
                    ),
                    right_width=5,
                    how=self.how,
                )
            else:
                lefts, rights = self.timed(changes)
                released, at_once = history.epoch(lefts, rights, before=before, after=watermark)
                emitted = at_once if self.kind == "once" else released
                if self.kind == "eager":
                    emitted, held = None, history.everything()
                listed = [] if self.late_rule == "drop" else history.late_rows
                aside = {"LATE_ROW": listed, "LATE_VERSION": history.late_versions, "LATE_CORRECTION": history.late_corrections}
            counted = {code: Counter(one.row for one in rows) for code, rows in aside.items() if rows}
            steps.append(Step(tuple(changes), before, watermark, emitted, held, counted))
        return steps

    def _first(self, rows: LiveRows) -> Counts:
        columns = [(one.removesuffix(" desc"), one.endswith(" desc")) for one in self.order_by]
        descending = [turned != (self.keep_row == "last") for _, turned in columns]
        places = [LEFT.names.index(name) for name, _ in columns]
        ranked = [(one.key, tuple(one.row[place] for place in places), one.row) for one in rows.rows()]
        return first_rows(ranked, descending=descending, n=self.n)

    @property
    def late_rule(self) -> str:
        """Return what happens to late left rows."""
        return self.late or ("join" if self.kind == "eager" and not self.left_changes else "side_output")

    def as_one_mode(self, kind: str) -> TimedCase:
        """Return the same history for a temporal join in another mode; left rows are then only added."""
        other = object.__new__(TimedCase)
        other.__dict__.update(self.__dict__, kind=kind, keep=0)
        return other

    def cut_again(self) -> list[tuple[list[Change], ...]]:
        """Return all changes cut into other epochs, so that nothing is retracted before it came."""
        draw = random.Random(self.seed)
        epochs: list[tuple[list[Change], ...]] = []
        for step in self.steps:
            if draw.random() < 0.5 and epochs:
                epochs[-1] = tuple(one + another for one, another in zip(epochs[-1], step.changes, strict=True))
            else:
                epochs.append(tuple(list(lines) for lines in step.changes))
        return epochs
