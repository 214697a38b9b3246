"""The temporal join against the plain join over random histories with legal watermarks."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from property_tests.temporal_history import TemporalHistory
from tests.epochs import delta_of, lines_of
from zset_join import Relation, Tick
from zset_join.expressions import left, right
from zset_join.operators.timed_join import TemporalJoin
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.shapes.temporal_join import TemporalOptions
from zset_join.testing.comparison import EmittedRows, exact_tables
from zset_join.testing.reference import total
from zset_join.testing.reference_temporal import TimedRow

LONG = "a value that is longer than twelve letters"
LEFT_COLUMNS = pa.schema({"id": pa.int64(), "k": pa.string(), "t": pa.int64(), "x": pa.int64()})
RIGHT_COLUMNS = pa.schema({"k": pa.string(), "v": pa.string(), "at": pa.int64(), "gone": pa.bool_(), "s": pa.int32()})


class Drawn:
    """A temporal join, its oracle, and a legal history drawn step by step: nothing comes late."""

    def __init__(self, seed):
        self.draw = draw = random.Random(seed)
        emit, how = draw.choice(["on_watermark", "eager", "once"]), draw.choice(["inner", "left"])
        self.left_mode = draw.choice(["append", "changelog"]) if emit == "eager" else "append"
        self.right_mode = draw.choice(["append", "changelog", "upsert"])
        self.has_sequence = self.right_mode == "upsert" and draw.random() < 0.5
        self.has_deletes = self.right_mode != "upsert" and draw.random() < 0.5
        residual = draw.random() < 0.3
        self.keep = draw.choice([0, 3]) if emit == "eager" else 0
        self.options = TemporalOptions(
            emit=emit,
            how=how,
            residual=left("x") < right("s") if residual else None,
            delete_column="gone" if self.has_deletes else None,
            keep_probe_for=self.keep,
        )
        timed = {"join_key": ("k",), "watermark_delay": 0}
        self.left = Relation(name="l", schema=LEFT_COLUMNS, mode=self.left_mode, event_time="t", **timed)
        self.right = Relation(
            name="r",
            schema=RIGHT_COLUMNS,
            primary_key=("k",),
            mode=self.right_mode,
            sequence_by=("s",) if self.has_sequence else (),
            event_time="at",
            **timed,
        )
        self.hash_bits, self.chunk_rows = draw.choice([32, 1]), draw.choice([2, 1000])
        self.passes = (
            (lambda one, other: None if one[3] is None or other[4] is None else one[3] < other[4]) if residual else None
        )
        self.history = TemporalHistory(right_width=5, how=how, passes=self.passes, keep=self.keep)
        self.watermark = None
        self.live = {"left": [], "right": []}

    def operator(self):
        return TemporalJoin(
            self.left, self.right, self.options, options=OperatorOptions(hash_bits=self.hash_bits, chunk_rows=self.chunk_rows)
        )

    def time(self):
        return self.draw.randint(-3, 6) if self.watermark is None else self.watermark + self.draw.randint(1, 6)

    def changes(self, side):
        draw, mode = self.draw, self.left_mode if side == "left" else self.right_mode
        made = []
        for _ in range(draw.randint(0, 4)):
            if side == "left":
                row = (draw.randint(1, 4), draw.choice(["a", "b", LONG, None]), self.time(), draw.choice([1, 2, None]))
                made.append((row, draw.choice([1, 1, 2])))
            else:
                row = (
                    draw.choice(["a", "b", LONG]),
                    draw.choice(["p", LONG]),
                    self.time(),
                    draw.random() < 0.3,
                    draw.randint(1, 3),
                )
                made.append((row, -1 if mode == "upsert" and draw.random() < 0.3 else 1))
        if mode != "changelog":
            return made
        live = self.live[side] + [row for row, weight in made for _ in range(weight)]
        past = None if self.watermark is None else self.watermark - self.keep
        pool = [row for row in live if past is None or row[2] > past]
        draw.shuffle(pool)
        gone = [(row, -1) for row in pool[: draw.randint(0, 2)]]
        for row, _ in gone:
            live.remove(row)
        self.live[side] = live
        made += gone
        draw.shuffle(made)
        return made

    def timed(self, lefts, rights):
        upserts = self.right_mode == "upsert"

        def version(row, weight):
            deleted = weight < 0 if upserts else self.has_deletes and row[3]
            return TimedRow((row[0],), row[2], row, (row[4],) if self.has_sequence else (), deleted)

        return (
            [(TimedRow((row[1],), row[2], row), weight) for row, weight in lefts],
            [(version(row, weight), 1 if upserts else weight) for row, weight in rights],
        )

    def step(self, epoch):
        """Return the tick, the changes and the oracle's answer of this epoch."""
        changes = self.changes("left"), self.changes("right")
        before = self.watermark
        if self.draw.random() < 0.6:
            self.watermark = (-4 if before is None else before) + self.draw.randint(0, 5)
        lefts, rights = self.timed(*changes)
        released, at_once = self.history.epoch(lefts, rights, before=before, after=self.watermark)
        printed = at_once if self.options.emit == "once" else released
        return Tick(epoch, None, before, self.watermark), changes, printed


@pytest.mark.parametrize("seed", range(120))
def test_after_every_epoch_the_answer_is_that_of_the_plain_join_and_a_snapshot_is_invisible(seed):
    drawn = Drawn(seed)
    operator, emitted = drawn.operator(), EmittedRows()
    for epoch in range(8):
        tick, changes, printed = drawn.step(epoch)
        deltas = [delta_of(relation, lines) for relation, lines in zip(operator.inputs, changes, strict=True)]

        answer = list(operator.answer(tick, deltas))

        assert lines_of(operator.answer(tick, deltas)) == lines_of(answer)
        emitted.take(answer)
        if drawn.options.emit == "eager":
            assert emitted.counts() == drawn.history.everything()
        else:
            assert total(line for chunk in answer for line in chunk.to_pylist()) == printed
        operator.absorb(tick, deltas)
        restored = drawn.operator()
        restored.restore(operator.snapshot())
        assert exact_tables(restored.snapshot()) == exact_tables(operator.snapshot())
        operator = restored if epoch % 3 == 0 else operator
