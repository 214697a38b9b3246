"""The as-of join, by example and against the plain join over random histories."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from tests.built import built
from tests.epochs import Epochs, delete, delta_of, insert, lines_of
from zset_join import Relation, Tick
from zset_join.core.errors import OptionError, PlanError
from zset_join.expressions import left, right
from zset_join.operators.timed_join import AsOfJoin
from zset_join.shapes.as_of_join import AsOfOptions
from zset_join.testing.comparison import EmittedRows, exact_tables
from zset_join.testing.reference_temporal import LiveRows, Nearest, TimedRow, batch_as_of

TRADE_COLUMNS = pa.schema({"id": pa.int64(), "k": pa.string(), "t": pa.int64(), "x": pa.int64()})
QUOTE_COLUMNS = pa.schema({"k": pa.string(), "pk": pa.int32(), "at": pa.int64(), "s": pa.int32()})
LONG = "a name that is longer than twelve letters"


def trades(mode="append"):
    return Relation(name="trades", schema=TRADE_COLUMNS, join_key=("k",), mode=mode)


def quotes(mode="append", primary_key=("pk",)):
    return Relation(name="quotes", schema=QUOTE_COLUMNS, join_key=("k",), primary_key=primary_key, mode=mode)


def options(**more):
    return AsOfOptions(left_time="t", right_time="at", **more)


def as_of(mode="changelog", **more):
    return Epochs(AsOfJoin(trades(mode), quotes(mode), options(**more)))


QUOTES = (("A", 1, 3, 0), ("A", 2, 5, 0), ("A", 3, 7, 0))


@pytest.mark.parametrize(("op", "at"), [(">=", 5), (">", 3), ("<=", 5), ("<", 7)])
def test_a_comparison_looks_back_or_forward_and_takes_the_very_time_in_or_not(op, at):
    ((row, weight),) = as_of(op=op).feed(insert((1, "A", 5, 0)), insert(*QUOTES))

    assert (row[6], weight) == (at, 1)


def test_a_nearer_row_that_comes_later_takes_the_place_of_the_chosen_one():
    join = as_of()
    join.feed(insert((1, "A", 6, 0)), insert(("A", 1, 3, 0)))

    assert join.feed((), insert(("A", 2, 5, 0))) == [((1, "A", 6, 0, "A", 1, 3, 0), -1), ((1, "A", 6, 0, "A", 2, 5, 0), 1)]
    assert join.feed((), delete(("A", 2, 5, 0))) == [((1, "A", 6, 0, "A", 2, 5, 0), -1), ((1, "A", 6, 0, "A", 1, 3, 0), 1)]


def test_a_row_that_is_further_away_emits_nothing():
    join = as_of()
    join.feed(insert((1, "A", 6, 0)), insert(("A", 2, 5, 0)))

    assert join.feed((), insert(("A", 1, 3, 0))) == []


def test_beyond_the_tolerance_there_is_no_match():
    join = as_of(how="left", tolerance=2)
    join.feed(insert((1, "A", 7, 0), (2, "A", 8, 0)), insert(("A", 2, 5, 0)))

    assert join.sum() == {(1, "A", 7, 0, "A", 2, 5, 0): 1, (2, "A", 8, 0, None, None, None, None): 1}


@pytest.mark.parametrize(("tie", "chosen"), [("latest_arrival", 4), ("smallest_key", 2)])
def test_of_several_rows_at_one_time_the_latest_or_the_one_with_the_smallest_key_is_chosen(tie, chosen):
    join = as_of(tie=tie)

    ((row, _),) = join.feed(insert((1, "A", 5, 0)), insert(("A", 3, 5, 0), ("A", 2, 5, 0), ("A", 4, 5, 0)))

    assert row[5] == chosen


def test_null_in_key_or_time_matches_nothing_and_is_padded():
    join = as_of(how="left")
    join.feed(insert((1, None, 5, 0), (2, "A", None, 0)), insert((None, 1, 1, 0), ("A", 2, None, 0), ("A", 3, 1, 0)))

    assert [row[4:] for row in join.sum()] == [(None,) * 4] * 2
    join.feed(delete((1, None, 5, 0), (2, "A", None, 0)))
    assert join.sum() == {}


def test_what_cannot_be_joined_so_is_refused_when_it_is_built():
    upserts = quotes("upsert")

    with pytest.raises(PlanError, match="AS_OF_OF_UPSERTS"):
        AsOfJoin(trades(), upserts, options())
    with pytest.raises(PlanError, match="AS_OF_HOW"):
        AsOfJoin(trades(), quotes(), options(how="full"))
    with pytest.raises(PlanError, match="AS_OF_TIE"):
        AsOfJoin(trades(), quotes(primary_key=()), options(tie="smallest_key"))
    with pytest.raises(OptionError, match=r"AS_OF_OPTION.*>="):
        AsOfJoin(trades(), quotes(), options(op="="))
    with pytest.raises(OptionError, match=r"AS_OF_OPTION.*tolerance"):
        AsOfJoin(trades(), quotes(), options(tolerance=-1))
    with pytest.raises(PlanError, match=r"UNKNOWN_COLUMN.*when"):
        AsOfJoin(trades(), quotes(), AsOfOptions(left_time="when", right_time="at"))


class Side:
    """One side of a random history."""

    def __init__(self, draw, mode, make):
        self.draw, self.mode, self.make = draw, mode, make
        self.live = []

    def changes(self):
        made = [(self.make(self.draw), self.draw.choice([1, 1, 2])) for _ in range(self.draw.randint(0, 4))]
        pool = self.live + [row for row, weight in made for _ in range(weight)]
        self.draw.shuffle(pool)
        gone = pool[: self.draw.randint(0, 3)] if self.mode == "changelog" else []
        self.live = pool[len(gone) :]
        changes = made + [(row, -1) for row in gone]
        self.draw.shuffle(changes)
        return changes


def _trade(draw):
    return (
        draw.randint(1, 3),
        draw.choice(["a", "b", None, LONG]),
        draw.choice([1, 2, 3, 4, 5, None]),
        draw.choice([1, 2, None]),
    )


def _quote(draw):
    return draw.choice(["a", "b", None, LONG]), draw.randint(1, 3), draw.choice([1, 2, 3, 4, 5, None]), draw.choice([1, 2, 3])


@pytest.mark.parametrize("seed", range(80))
def test_after_every_epoch_the_answers_sum_up_to_the_plain_join_and_a_snapshot_is_invisible(seed):
    draw = random.Random(seed)
    reported = options(
        op=draw.choice([">=", ">", "<=", "<"]),
        how=draw.choice(["inner", "left"]),
        tie=draw.choice(["latest_arrival", "smallest_key"]),
        tolerance=draw.choice([None, None, 0, 1, 2]),
        residual=draw.choice([None, None, left("x") < right("s")]),
    )
    one, other = (
        Side(draw, draw.choice(["append", "changelog"]), _trade),
        Side(draw, draw.choice(["append", "changelog"]), _quote),
    )
    more = {"hash_bits": draw.choice([32, 1]), "chunk_rows": draw.choice([2, 1000])}

    def made():
        return built(AsOfJoin, trades(one.mode), quotes(other.mode), reported, **more)

    operator, emitted, lefts, rights = made(), EmittedRows(), LiveRows(), LiveRows()
    passes = None if reported.residual is None else lambda a, b: None if a[3] is None or b[3] is None else a[3] < b[3]
    for epoch in range(7):
        changes = one.changes(), other.changes()
        deltas = [delta_of(relation, lines) for relation, lines in zip(operator.inputs, changes, strict=True)]
        tick = Tick(epoch)

        answer = list(operator.answer(tick, deltas))

        assert lines_of(operator.answer(tick, deltas)) == lines_of(answer)
        emitted.take(answer)
        operator.absorb(tick, deltas)
        lefts.add((TimedRow((row[1],), row[2], row), weight) for row, weight in changes[0])
        rights.add((TimedRow((row[0],), row[2], row), weight) for row, weight in changes[1])
        assert emitted.counts() == batch_as_of(
            lefts.rows(),
            rights.rows(),
            Nearest(
                reported.op,
                None if reported.tie == "latest_arrival" else lambda quote: quote.row[1],
                reported.tolerance,
                passes,
            ),
            right_width=4,
            how=reported.how,
        )
        restored = made()
        restored.restore(operator.snapshot())
        assert exact_tables(restored.snapshot()) == exact_tables(operator.snapshot())
        operator = restored if epoch % 3 == 0 else operator


def test_an_answer_retracted_for_a_nearer_row_is_a_correction_and_a_first_answer_is_not():
    join = as_of(how="left")
    join.feed(insert((1, "A", 6, 0), (2, "A", 6, 0)), insert(("A", 1, 3, 0)))
    assert join.operator.corrections() == 0

    join.feed(insert((3, "A", 6, 0)), insert(("A", 2, 5, 0)))

    assert join.operator.corrections() == 2
    join.feed((), insert(("A", 3, 1, 0)))
    assert join.operator.corrections() == 0
