"""The temporal join by the worked examples of the documents, and the as-of join; the laws play random histories to both."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from tests.built import built
from tests.epochs import Change, Epochs, delete, delta_of, insert, lines_of, upsert
from zset_join import Relation, Tick
from zset_join.core.errors import BadInputError, KeyTypeError, OptionError, PlanError
from zset_join.expressions import right
from zset_join.operators.timed_join import AsOfJoin, TemporalJoin
from zset_join.shapes.timed_join import AsOfOptions, TemporalOptions

ORDERS = Relation(
    name="orders",
    schema=pa.schema({"id": pa.int64(), "currency": pa.string(), "t": pa.int64()}),
    join_key=("currency",),
    primary_key=("id",),
    event_time="t",
    watermark_delay=0,
)
RATE_COLUMNS = pa.schema({"currency": pa.string(), "rate": pa.float64(), "at": pa.int64()})


def rates(mode="upsert", **more):
    return Relation(
        name="rates",
        schema=RATE_COLUMNS,
        join_key=("currency",),
        primary_key=("currency",),
        mode=mode,
        event_time="at",
        watermark_delay=0,
        **more,
    )


class Timeline:
    """An operator that is fed changes and watermarks."""

    def __init__(self, operator):
        self.operator = operator
        self.epoch = 0
        self.watermark = None
        self.processing_time_us = None

    def deltas(self, changes: Sequence[Sequence[Change]]):
        return [delta_of(relation, lines) for relation, lines in zip(self.operator.inputs, changes, strict=True)]

    def tick(self, watermark):
        return Tick(self.epoch, self.processing_time_us, self.watermark, self.watermark if watermark is None else watermark)

    def feed(self, left=(), right=(), *, watermark=None):
        tick, deltas = self.tick(watermark), self.deltas((left, right))
        lines = lines_of(self.operator.answer(tick, deltas))
        self.rejected = self.operator.rejections(tick, deltas).column("code").to_pylist()
        self.operator.absorb(tick, deltas)
        self.epoch, self.watermark = self.epoch + 1, tick.watermark_us
        return sorted(lines, key=lambda line: (line[1] > 0, repr(line)))


def temporal(options=None, versions=None, **more):
    versions = rates() if versions is None else versions
    return Timeline(built(TemporalJoin, ORDERS, versions, options or TemporalOptions(), **more))


def order(number, t, currency="EUR"):
    return (number, currency, t)


def rate(value, at, currency="EUR"):
    return (currency, value, at)


# ---------------------------------------------------------------- the worked examples of the documents


def test_watermarks_10_and_8_release_rows_5_and_7_and_the_delete_at_6_hides_7():
    join = temporal(TemporalOptions(how="left"))
    rows, versions = insert(order(7, 7), order(5, 5)), upsert(rate(2.0, 2)) + delete(rate(None, 6))

    answer = join.feed(rows, versions, watermark=min(10, 8))

    assert answer == [((5, "EUR", 5, "EUR", 2.0, 2), 1), ((7, "EUR", 7, None, None, None), 1)]


def test_a_row_behind_the_watermark_of_the_slower_side_waits_for_it():
    join = temporal()

    assert join.feed(insert(order(1, 9)), upsert(rate(2.0, 2)), watermark=8) == []
    assert join.operator.next_due().watermark_us == 9
    assert join.feed(watermark=9) == [((1, "EUR", 9, "EUR", 2.0, 2), 1)]


def three_rates():
    join = temporal(TemporalOptions(emit="eager", how="left"), rates("changelog"))
    join.feed(insert(order(1, 1000)), insert(rate(1.1, 500), rate(1.2, 800), rate(1.3, 1200)))
    return join


def test_a_late_version_at_900_corrects_the_order_and_retracting_it_corrects_it_again():
    join, late = three_rates(), rate(1.25, 900)

    assert join.feed((), insert(late)) == [((1, "EUR", 1000, "EUR", 1.2, 800), -1), ((1, "EUR", 1000, "EUR", 1.25, 900), 1)]
    assert join.feed((), delete(late)) == [((1, "EUR", 1000, "EUR", 1.25, 900), -1), ((1, "EUR", 1000, "EUR", 1.2, 800), 1)]


def test_a_delete_at_900_ends_the_validity_and_one_at_1100_emits_nothing():
    join = temporal(TemporalOptions(emit="eager", how="left"))
    join.feed(insert(order(1, 1000)), upsert(rate(1.1, 500), rate(1.2, 800), rate(1.3, 1200)))

    assert join.feed((), delete(rate(None, 1100))) == []
    assert join.feed((), delete(rate(None, 900))) == [
        ((1, "EUR", 1000, "EUR", 1.2, 800), -1),
        ((1, "EUR", 1000, None, None, None), 1),
    ]


@pytest.mark.parametrize(("at", "shown"), [(1030, 1005.0), (1059, 1005.0), (1100, None)])
def test_with_the_time_of_the_change_a_delete_at_1100_hides_the_row_from_1100_on(at, shown):
    """Insert 09:00, update 10:05, delete executed at 11:00; the value is the business time, the version time the change's own."""
    join = temporal(TemporalOptions(how="left"))
    changes = upsert(rate(900.0, 900), rate(1005.0, 1005)) + delete(rate(None, 1100))

    ((row, _),) = join.feed(insert(order(1, at)), changes, watermark=1100)

    assert row[4] == shown


def test_append_only_versions_keep_nothing_of_an_emitted_order():
    join = temporal(versions=rates("append"))
    join.feed(insert(order(1, 5), order(2, 6, "USD")), insert(rate(1.0, 1)), watermark=6)

    assert join.operator.statistics()["left_rows"] == 0
    assert join.operator.snapshot()["left"].num_rows == 0
    assert join.operator.statistics()["keys"] == 1


# ---------------------------------------------------------------- ties, conditions, keys


def test_the_rest_of_on_is_evaluated_on_the_chosen_version_only():
    join = temporal(TemporalOptions(how="left", residual=right("rate") < 2.0))
    changes = upsert(rate(1.0, 1), rate(5.0, 4))

    answer = join.feed(insert(order(1, 3), order(2, 5)), changes, watermark=9)

    assert answer == [((1, "EUR", 3, "EUR", 1.0, 1), 1), ((2, "EUR", 5, None, None, None), 1)]


def test_a_condition_beside_the_primary_key_is_evaluated_on_the_chosen_version():
    orders = Relation(
        name="orders",
        schema=pa.schema({"id": pa.int64(), "currency": pa.string(), "bank": pa.string(), "t": pa.int64()}),
        join_key=("currency", "bank"),
        event_time="t",
        watermark_delay=0,
    )
    versions = Relation(
        name="rates",
        schema=pa.schema({"currency": pa.string(), "bank": pa.string(), "at": pa.int64()}),
        join_key=("currency", "bank"),
        primary_key=("currency",),
        mode="upsert",
        event_time="at",
        watermark_delay=0,
    )
    join = Timeline(TemporalJoin(orders, versions))
    changes = upsert(("EUR", "ecb", 1), ("EUR", "fed", 4))

    answer = join.feed(insert((1, "EUR", "ecb", 3), (2, "EUR", "ecb", 5), (3, "EUR", "fed", 5)), changes, watermark=9)

    assert [row[0] for row, _ in answer] == [1, 3]


@pytest.mark.parametrize(
    ("kind", "times", "watermark_us"),
    [
        (pa.timestamp("us"), (1_000_000, 2_000_000), 2_000_000),
        (pa.timestamp("ns", "UTC"), (1_000, 1_999), 2),
        (pa.timestamp("s"), (1, 2), 2_999_999),
        (pa.date32(), (1, 2), 2 * 86_400_000_000),
        (pa.int32(), (1, 2), 2),
    ],
)
def test_times_of_all_types_are_compared_with_a_watermark_in_their_own_unit(kind, times, watermark_us):
    def typed(name, **more):
        return Relation(
            name=name,
            schema=pa.schema({"k": pa.int64(), "at": kind}),
            join_key=("k",),
            event_time="at",
            watermark_delay=0,
            **more,
        )

    join = TemporalJoin(typed("l"), typed("r", primary_key=("k",)))
    first, second = (
        pa.scalar(value, pa.int32() if kind == pa.date32() else pa.int64()).cast(kind).as_py()
        if not pa.types.is_integer(kind)
        else value
        for value in times
    )
    if kind == pa.timestamp("ns", "UTC"):
        first, second = (pa.scalar(value, kind) for value in times)
    deltas = [delta_of(join.inputs[0], insert((1, second))), delta_of(join.inputs[1], insert((1, first)))]

    early = list(join.answer(Tick(0, watermark_us=watermark_us - 1), deltas))
    released = list(join.answer(Tick(0, watermark_us=watermark_us), deltas))

    assert [len(chunk) for chunk in released] == [1]
    assert early == [] or kind == pa.timestamp("s")


# ---------------------------------------------------------------- what is late, and what is freed


def test_versions_before_the_newest_one_past_the_watermark_are_freed():
    join = temporal()
    join.feed((), upsert(rate(1.0, 1), rate(2.0, 6), rate(3.0, 7), rate(4.0, 12)), watermark=8)

    assert join.operator.snapshot()["right"].column("at").to_pylist() == [7, 12]
    assert join.operator.statistics()["freed_versions"] == 2


def test_a_late_version_is_accepted_where_it_is_the_newest_and_set_aside_where_it_is_older():
    join = temporal()
    join.feed((), upsert(rate(2.0, 6)), watermark=8)

    join.feed((), upsert(rate(1.0, 5)))
    assert join.rejected == ["LATE_VERSION"]
    join.feed((), upsert(rate(3.0, 7)))
    assert join.rejected == []
    assert join.feed(insert(order(1, 9)), watermark=9) == [((1, "EUR", 9, "EUR", 3.0, 7), 1)]
    counts = join.operator.statistics()
    assert (counts["late_versions"], counts["ignored_versions"]) == (2, 1)


def test_a_delete_is_forgotten_after_its_retention_with_its_key():
    join = temporal(tombstone_retention_seconds=10)
    join.processing_time_us = 0
    join.feed((), upsert(rate(2.0, 2)) + delete(rate(None, 8)), watermark=10)
    assert join.operator.statistics()["keys"] == 1

    join.processing_time_us = 10_000_000
    join.feed()

    assert join.operator.statistics()["keys"] == 0


def test_a_time_far_ahead_of_the_watermark_is_bad_input_when_a_largest_jump_is_given():
    join = temporal(TemporalOptions(max_watermark_jump=100))
    join.feed(watermark=10)

    with pytest.raises(BadInputError, match=r"TIME_JUMP.*orders"):
        join.feed(insert(order(1, 111)))
    join.feed(insert(order(1, 110)))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ((insert((1, "EUR", None)), ()), "NULL_TIME"),
        (((), upsert(("EUR", 1.0, None))), "NULL_TIME"),
        (((), upsert((None, 1.0, 1))), "NULL_KEY"),
        ((delete(order(1, 1)), ()), "RETRACTION_IN_APPEND"),
    ],
)
def test_bad_rows_stop_the_epoch_or_are_put_aside(changes, code):
    with pytest.raises(BadInputError, match=code):
        temporal().feed(*changes)

    join = temporal(on_bad_input="quarantine")
    join.feed(*changes)
    assert join.rejected == [code]
    assert join.operator.statistics()["rejected"] == 1


# ---------------------------------------------------------------- what is refused


def test_what_cannot_be_joined_so_is_refused_when_it_is_built():
    def refused(orders=ORDERS, versions=None, **options):
        with pytest.raises(PlanError) as caught:
            TemporalJoin(orders, rates() if versions is None else versions, TemporalOptions(**options))
        return caught.value.code

    changing = Relation(
        name="o", schema=ORDERS.schema, join_key=("currency",), mode="changelog", event_time="t", watermark_delay=0
    )
    keyless = Relation(
        name="r", schema=RATE_COLUMNS, join_key=("currency",), primary_key=("at",), event_time="at", watermark_delay=0
    )
    timeless = Relation(name="o", schema=ORDERS.schema, join_key=("currency",))
    unmarked = Relation(name="o", schema=ORDERS.schema, join_key=("currency",), event_time="t")

    assert refused(how="full") == "TEMPORAL_HOW"
    assert refused(versions=keyless) == "TEMPORAL_KEY"
    assert refused(orders=changing) == "TEMPORAL_LEFT_CHANGES"
    assert refused(orders=unmarked) == "TEMPORAL_WATERMARK"
    assert refused(orders=timeless, emit="once") == "NO_EVENT_TIME"
    assert refused(emit="later") == "TEMPORAL_OPTION"
    assert refused(delete_column="gone") == "TEMPORAL_DELETES"


def test_times_of_two_kinds_are_refused():
    dated = Relation(
        name="orders",
        schema=pa.schema({"currency": pa.string(), "t": pa.timestamp("us")}),
        join_key=("currency",),
        event_time="t",
        watermark_delay=0,
    )

    with pytest.raises(KeyTypeError, match=r"TIME_TYPES_DIFFER.*orders"):
        TemporalJoin(dated, rates())


# ---------------------------------------------------------------- the as-of join

TRADE_COLUMNS = pa.schema({"id": pa.int64(), "k": pa.string(), "t": pa.int64(), "x": pa.int64()})
QUOTE_COLUMNS = pa.schema({"k": pa.string(), "pk": pa.int32(), "at": pa.int64(), "s": pa.int32()})


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


@pytest.mark.parametrize(("tie", "chosen"), [("latest_arrival", 4), ("smallest_key", 2)])
def test_of_several_rows_at_one_time_the_latest_or_the_one_with_the_smallest_key_is_chosen(tie, chosen):
    join = as_of(tie=tie)

    ((row, _),) = join.feed(insert((1, "A", 5, 0)), insert(("A", 3, 5, 0), ("A", 2, 5, 0), ("A", 4, 5, 0)))

    assert row[5] == chosen


def test_what_is_no_as_of_join_is_refused_when_it_is_built():
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
