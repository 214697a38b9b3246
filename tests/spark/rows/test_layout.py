"""Rows of two sides travel in one table and come back in the order in which they were sent."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from zset_join.runners.spark.rows.layout import (
    RECEIPT_FLAG,
    REJECTED,
    SlotLayout,
    collect_arrivals,
    collect_rows,
    make_layout,
    pack_receipts,
    pack_rows,
)
from zset_join.zset import ZSet

LEFT = pa.schema({"id": pa.int64(), "name": pa.string()})
RIGHT = pa.schema({"name": pa.string(), "score": pa.float64()})
LAYOUT = make_layout(LEFT, RIGHT, has_raw=True)
SENDER = 1 << 33


def batch(*rows: tuple[int, int, object]) -> pa.RecordBatch:
    """Make a batch of rows (flag, order, name); the weight is the order, and the receipt is the name of a receipt row."""
    flags, orders, names = zip(*rows, strict=True)
    count = len(rows)
    return pa.RecordBatch.from_pydict(
        {
            "flag": pa.array(flags, pa.int8()),
            "weight": pa.array(orders, pa.int64()),
            "raw": pa.array([f"raw {name}" for name in names]),
            "s0": pa.nulls(count, pa.int64()),
            "s1": pa.array(names, pa.string()),
            "s2": pa.nulls(count, pa.float64()),
            "receipt": pa.array([name if flag == RECEIPT_FLAG else None for flag, name in zip(flags, names, strict=True)]),
            "order": pa.array(orders, pa.int64()),
        }
    )


def named(layout: SlotLayout, *batches: pa.RecordBatch) -> tuple[list[object], list[object]]:
    arrivals = collect_arrivals(batches, layout)
    return arrivals.deltas[0].rows.column("name").to_pylist(), arrivals.deltas[1].rows.column("name").to_pylist()


def test_columns_of_equal_type_share_a_slot() -> None:
    assert LAYOUT.slots == ((0, 1), (1, 2))
    assert LAYOUT.types == (pa.int64(), pa.string(), pa.float64())
    named = [pa.schema({"x": pa.list_(pa.field(inner, pa.string())), "y": pa.struct({inner: pa.int8()})}) for inner in "ab"]
    assert make_layout(*named, has_raw=False).slots == ((0, 1), (0, 2))


def test_a_slot_is_used_once_per_side() -> None:
    twice = pa.schema({"a": pa.int64(), "b": pa.int64()})

    assert make_layout(LEFT, twice, has_raw=False).slots == ((0, 1), (0, 2))


def test_sides_are_parted_and_keep_their_order_within_a_sender() -> None:
    assert named(LAYOUT, batch((0, 0, "a"), (1, 1, "x"), (0, 2, "b"), (1, 3, "y"))) == (["a", "b"], ["x", "y"])


def test_senders_come_in_their_order_however_they_arrive() -> None:
    second = batch((0, SENDER, "c"), (0, SENDER + 1, "d"))
    first = batch((0, 0, "a"), (0, 1, "b"))

    assert named(LAYOUT, second, first)[0] == ["a", "b", "c", "d"]


def test_one_batch_may_hold_rows_of_several_senders() -> None:
    mixed = batch((0, 2 * SENDER, "e"), (0, 0, "a"), (0, 1, "b"), (0, SENDER, "c"))

    assert named(LAYOUT, mixed)[0] == ["a", "b", "c", "e"]


def test_rows_in_any_order_are_sorted() -> None:
    orders = np.random.default_rng(3).permutation(500)
    shuffled = batch(*[(0, int(order), f"{order:03d}") for order in orders])

    assert named(LAYOUT, shuffled)[0] == [f"{order:03d}" for order in range(500)]


def test_rejected_rows_and_notes_are_set_apart() -> None:
    arrivals = collect_arrivals(
        [batch((0, 0, "a"), (REJECTED, 1, "bad"), (RECEIPT_FLAG, 2, "receipt"), (REJECTED + 1, 3, "worse"))], LAYOUT
    )

    assert arrivals.deltas[0].rows.column("name").to_pylist() == ["a"]
    assert [len(rejected) for rejected in arrivals.rejected] == [1, 1]
    assert arrivals.raw == [["raw bad"], ["raw worse"]]
    assert arrivals.receipts == ["receipt"]
    assert len(arrivals) == 3


def test_a_task_without_rows_gets_empty_deltas_of_the_right_schema() -> None:
    arrivals = collect_arrivals([], LAYOUT)

    assert [delta.schema for delta in arrivals.deltas] == [LEFT, RIGHT]
    assert len(arrivals) == 0


def test_weights_travel_with_their_rows() -> None:
    arrivals = collect_arrivals([batch((0, 7, "b"), (0, 5, "a"))], LAYOUT)

    assert arrivals.deltas[0].to_pylist() == [((None, "a"), 5), ((None, "b"), 7)]


def test_packed_rows_and_notes_come_back_in_pieces_in_the_order_of_their_senders() -> None:
    layout = make_layout(LEFT, RIGHT, has_raw=False)
    first, second = [ZSet.of({"id": [n, n + 1], "name": [f"a{n}", f"b{n}"]}, [2, 0], schema=LEFT) for n in (1, 3)]
    other = ZSet.of({"name": ["x"], "score": [0.5]}, [3], schema=RIGHT)
    sent = [
        pack_rows(second, layout, side=0, sender=1, sent=0),
        pack_rows(other, layout, side=1, sender=1, sent=2),
        pack_receipts(["a receipt"], layout),
        pack_rows(first, layout, side=0, sender=0, sent=0),
    ]

    pieces, receipts = collect_rows(sent, layout)

    assert [row for piece in pieces[0] for row in piece.to_pylist()] == [*first.to_pylist(), *second.to_pylist()]
    assert [row for piece in pieces[1] for row in piece.to_pylist()] == other.to_pylist()
    assert receipts == ["a receipt"]


def test_pieces_that_overlap_are_sorted() -> None:
    layout = make_layout(LEFT, RIGHT, has_raw=False)
    rows = [ZSet.of({"id": [n], "name": ["a"]}, schema=LEFT) for n in range(4)]
    packed = [pack_rows(row, layout, side=0, sender=0, sent=n) for n, row in enumerate(rows)]
    mixed = [pa.concat_batches([packed[0], packed[2]]), pa.concat_batches([packed[1], packed[3]])]

    pieces, _ = collect_rows(mixed, layout)

    assert [row[0] for piece in pieces[0] for row, _ in piece.to_pylist()] == [0, 1, 2, 3]
