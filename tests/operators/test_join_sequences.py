"""Changes that arrive out of order: the larger sequence wins, deletes are remembered, and forgotten after a while."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.epochs import Change, Epochs, delete, upsert
from zset_join.core.errors import KeyTypeError, PlanError
from zset_join.core.relation import Relation
from zset_join.expressions import left, right
from zset_join.operators.join import HashJoin
from zset_join.shapes.operator_options import OperatorOptions

A_SECOND = 1_000_000
NAN = float("nan")


def orders(kind: pa.DataType = pa.int64(), *, sequence_by: tuple[str, ...] = ("seq",)) -> Relation:
    """Return orders by id whose changes are ordered by `seq`."""
    return Relation(
        name="orders",
        schema=pa.schema({"id": pa.int64(), "k": pa.string(), "seq": kind}),
        join_key=("k",),
        primary_key=("id",),
        sequence_by=sequence_by,
        mode="upsert",
    )


OTHER = Relation(name="other", schema=pa.schema({"k": pa.string()}), join_key=("k",), mode="changelog")


@pytest.fixture
def join() -> Epochs:
    """Give orders LEFT JOIN other (nothing in it), with tombstones that live ten seconds."""
    return Epochs(HashJoin(orders(), OTHER, "left", options=OperatorOptions(tombstone_retention_seconds=10)))


def shown(*rows: tuple[Any, ...]) -> dict[tuple[Any, ...], int]:
    """Return padded orders, once each."""
    return {(*row, None): 1 for row in rows}


def test_an_older_upsert_that_arrives_later_is_ignored_and_counted(join: Epochs) -> None:
    join.feed(upsert((1, "new", 20)), [])

    assert join.feed(upsert((1, "old", 10)), []) == []
    assert join.sum() == shown((1, "new", 20))
    assert join.operator.statistics()["stale_rows"] == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("changes", "left_over"),
    [
        pytest.param(upsert((1, "a", 1), (1, "b", 3), (1, "c", 2)), [(1, "b", 3)], id="the largest, wherever it is"),
        pytest.param(upsert((1, "a", 3), (1, "b", 3)), [(1, "b", 3)], id="the later of equals"),
        pytest.param(upsert((1, "a", 3)) + delete((1, None, 2)), [(1, "a", 3)], id="an older delete does nothing"),
        pytest.param(delete((1, None, 3)) + upsert((1, "a", 2)), [], id="a newer delete wins though it came first"),
        pytest.param(delete((1, None, 3)) + upsert((1, "a", 3)), [(1, "a", 3)], id="an upsert overtakes a delete of its time"),
        pytest.param(upsert((1, "a", 3)) + delete((1, None, 3)), [], id="a delete of its time, but later"),
    ],
)
def test_inside_one_epoch_the_sequence_decides(join: Epochs, changes: list[Change], left_over: list[tuple[Any, ...]]) -> None:
    join.feed(changes, [])

    assert join.sum() == shown(*left_over)


# ---------------------------------------------------------------- what a sequence can be


@pytest.mark.parametrize(
    ("kind", "ascending"),
    [
        (pa.int8(), [-128, 0, 127]),
        (pa.uint64(), [0, 2**63 - 1, 2**63, 2**64 - 1]),
        (pa.float64(), [float("-inf"), -1.5, -0.0, 1e-300, 2.0, float("inf"), NAN]),
        (pa.float32(), [-2.0, -1.0, 0.0, 1.0, NAN]),
        (pa.bool_(), [False, True]),
        (pa.date32(), [dt.date(1960, 1, 1), dt.date(1970, 1, 1), dt.date(2024, 2, 29)]),
        (pa.timestamp("us"), [dt.datetime(1960, 1, 1), dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, microsecond=1)]),
        (pa.decimal128(10, 2), [Decimal("-1.25"), Decimal("0.00"), Decimal("0.01")]),
        (pa.decimal128(38, 0), [-(Decimal(10) ** 30), Decimal(-1), Decimal(2**63), Decimal(2**64), Decimal(10) ** 37]),
        (pa.decimal256(38, 2), [Decimal("-1.25"), Decimal("0.00"), Decimal("0.01")]),
        (pa.duration("ms"), [dt.timedelta(days=-1), dt.timedelta(0), dt.timedelta(milliseconds=1)]),
        (
            pa.struct({"major": pa.int32(), "minor": pa.float64()}),
            [{"major": 1, "minor": 9.0}, {"major": 2, "minor": -1.0}, {"major": 2, "minor": 0.5}],
        ),
    ],
    ids=str,
)
def test_a_sequence_orders_as_spark_orders_its_type(kind: pa.DataType, ascending: list[Any]) -> None:
    join = Epochs(HashJoin(orders(kind), OTHER, "left"))
    changes = upsert(*[(1, f"v{place}", value) for place, value in enumerate(ascending)])

    in_order = join.feed_all(([change], []) for change in changes)
    backwards = join.feed_all(([change], []) for change in reversed(changes[:-1]))

    assert list(map(len, in_order)) == [1] + [2] * (len(ascending) - 1)
    assert backwards == [[]] * (len(ascending) - 1)


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.binary(), pa.list_(pa.int64()), pa.struct({"major": pa.string()}), pa.decimal256(50, 0)],
    ids=str,
)
def test_a_sequence_that_no_words_can_order_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(KeyTypeError, match=r'relation "orders": sequence column "seq.*Cast it to one of them') as caught:
        HashJoin(orders(kind), OTHER)

    assert caught.value.code == "SEQUENCE_TYPE"


# ---------------------------------------------------------------- tombstones


def tombstones(join: Epochs) -> int:
    """Return how many deleted keys the left side remembers."""
    return join.operator.statistics()["left_tombstones"]  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize(("words", "seconds"), [({"tombstone_retention_seconds": 10}, 10), ({}, 2 * 86_400)])
def test_a_tombstone_is_forgotten_when_its_retention_is_over(words: dict[str, Any], seconds: int) -> None:
    join = Epochs(HashJoin(orders(), OTHER, "left", options=OperatorOptions(**words)))
    join.feed(delete((1, None, 20)), [], watermark=100 * A_SECOND)

    join.feed([], [], watermark=(100 + seconds) * A_SECOND - 1)
    kept = tombstones(join)
    join.feed([], [], watermark=(100 + seconds) * A_SECOND)

    assert (kept, tombstones(join)) == (1, 0)
    assert join.feed(upsert((1, "late", 15)), []) == [((1, "late", 15, None), +1)]


def test_an_older_tombstone_does_not_outlive_a_newer_one(join: Epochs) -> None:
    join.feed(delete((1, None, 20), (2, None, 20)), [], watermark=100 * A_SECOND)
    join.feed(delete((1, None, 30)), [], watermark=105 * A_SECOND)

    join.feed([], [], watermark=111 * A_SECOND)
    after_the_first = tombstones(join)
    join.feed([], [], watermark=115 * A_SECOND)

    assert (after_the_first, tombstones(join)) == (1, 0)


def test_a_tombstone_holds_no_payload() -> None:
    big = Relation(
        name="big",
        schema=pa.schema({"id": pa.int64(), "k": pa.string(), "seq": pa.int64(), "text": pa.string()}),
        join_key=("k",),
        primary_key=("id",),
        sequence_by=("seq",),
        mode="upsert",
    )
    join = Epochs(HashJoin(big, OTHER, "left"))
    join.feed(upsert((1, "a", 10, "x" * 10_000)), [])

    join.feed(delete((1, None, 20, "y" * 10_000)), [])

    (row,) = join.operator.snapshot()["left"].to_pylist()
    assert (row["id"], row["k"], row["text"], row["_zset_weight"]) == (1, None, None, 0)


def test_a_hidden_column_that_a_residual_predicate_reads_is_compared() -> None:
    schema = pa.schema({"id": pa.int64(), "k": pa.int64(), "ts": pa.int64()})
    orders, customers = (
        Relation(name=name, schema=schema, join_key=("k",), primary_key=("id",), sequence_by=("ts",), mode="upsert")
        for name in ("orders", "customers")
    )
    join = Epochs(HashJoin(orders, customers, residual=left("ts") < right("ts"), hidden=(("ts",), ("ts",))))
    join.feed(upsert((1, 1, 5)), upsert((7, 1, 1)))

    assert join.feed([], upsert((7, 1, 6))) == [((1, 1, 7, 1), 1)]


def test_a_hidden_column_with_long_values_is_remembered_without_leaking() -> None:
    kind = pa.struct({"ts": pa.int64(), "of": pa.timestamp("us")})
    schema = pa.schema({"id": pa.int64(), "k": pa.int64(), "s": kind})
    table = Relation(name="t", schema=schema, join_key=("k",), primary_key=("id",), sequence_by=("s",), mode="upsert")
    other = Relation(name="o", schema=schema, join_key=("k",), primary_key=("id",), mode="append")
    join = Epochs(HashJoin(table, other, "left", hidden=(("s",), ())))
    at = dt.datetime(2024, 2, 29)
    join.feed(upsert((1, 1, {"ts": 0, "of": at})), [])
    held = join.operator.statistics()["left_bytes"]

    for number in range(1, 200):
        assert join.feed(upsert((1, 1, {"ts": number, "of": at})), []) == []

    assert join.operator.snapshot()["left"].column("s").to_pylist() == [{"ts": 199, "of": at}]
    assert join.operator.statistics()["left_bytes"] == held


def test_hidden_columns_must_be_there() -> None:
    with pytest.raises(PlanError, match="names \\['nothing'\\]"):
        HashJoin(OTHER, OTHER, hidden=(("nothing",), ()))
