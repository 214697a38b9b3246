"""What waits for a time, the first that is due first."""

from __future__ import annotations

import random

import numpy as np

from zset_join.state.time.due_heap import DueHeap


def heap_of(times):
    header = np.zeros(4, np.int64)
    heap = DueHeap(header, 0, directory=None, name="waiting")
    for number, time in enumerate(times, start=1):
        heap.push(time, np.array([number]))
    return heap


def test_nothing_waits_in_a_fresh_one():
    assert heap_of([]).first() is None


def test_listing_what_is_due_changes_nothing():
    heap = heap_of([5, 3, 9, 3])

    assert sorted(heap.due(5).tolist()) == [1, 2, 4]
    assert heap.length == 4


def test_what_is_due_is_taken_out_one_by_one_or_in_one_pass():
    draw = random.Random(7)
    times = [draw.randint(0, 1000) for _ in range(5000)]
    heap = heap_of(times)
    for mark in (3, 10, 600, 1000):
        due = heap.due(mark)

        heap.pop(mark, len(due))

        assert heap.length == sum(time > mark for time in times)
        assert heap.due(mark).tolist() == []
