"""Partial upserts and truncates, in any order and cut into epochs anyhow, leave the rows of a dict.

The oracle is a dict of whole rows and of the sequence of every key; it imports nothing of the engine. Its planted bugs show
that the law can fail.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.operators.partial_upserts import PartialUpserts
from zset_join.shapes.deduplicate import TRUNCATE
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.zset import ZSet

SCHEMA = pa.schema({"id": pa.int64(), "a": pa.string(), "b": pa.int64(), "at": pa.int64(), "left_out": pa.int64()})
RELATION = Relation(name="t", schema=SCHEMA, primary_key=("id",), sequence_by=("at",), mode="upsert")
Change = tuple[str, int, str | None, int | None, int, int]  # what, id, a, b, sequence, what is omitted

CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["upsert", "upsert", "upsert", "delete", "truncate"]),
        st.integers(0, 3),
        st.sampled_from(["x", "y", None]),
        st.sampled_from([1, 2, None]),
        st.integers(0, 12),
        st.sampled_from([0, 0, 2, 4, 6]),
    ),
    max_size=14,
)


class Table:
    """What the rows should be: the changes of every key in the order of their sequence."""

    def __init__(self, bug: str = "") -> None:
        self.rows: dict[int, tuple[Any, ...]] = {}
        self.newest: dict[int, int] = {}
        self.bug = bug

    def epoch(self, changes: list[Change]) -> set[int]:
        """Apply an epoch; return the positions of the changes with unknown values."""
        unknown = set()
        ordered = sorted(enumerate(changes), key=lambda one: one[1][4])  # a stable sort: ties in the order they came
        if self.bug == "arrival":
            ordered = list(enumerate(changes))
        seen = set(self.rows)
        for place, (what, key, a, b, sequence, left_out) in ordered:
            if what == "truncate":
                for one in [*seen, *(c[1] for c in changes[:place] if c[0] == "upsert")]:
                    if self.newest.get(one, -1) <= sequence and self.bug != "truncate":
                        self.rows.pop(one, None)
                        self.newest[one] = sequence
                continue
            if sequence < self.newest.get(key, -1):
                continue
            if what == "delete":
                self.rows.pop(key, None)
                self.newest[key] = sequence
                continue
            old = self.rows.get(key)
            if left_out and old is None:
                unknown.add(place)
                continue
            kept = old or (None, None)
            if self.bug == "shown":
                kept = (None, None)
            self.rows[key] = (kept[0] if left_out & 2 else a, kept[1] if left_out & 4 else b)
            self.newest[key] = sequence
        return unknown


def delta_of(changes: list[Change]) -> ZSet:
    rows, weights = [], []
    for what, key, a, b, sequence, left_out in changes:
        weights.append(-1 if what == "delete" else 1)
        control = TRUNCATE if what == "truncate" else left_out
        values = (key, None if left_out & 2 else a, None if left_out & 4 else b) if what == "upsert" else (key, None, None)
        named = (None, None, None) if what == "truncate" else values
        rows.append(dict(zip(SCHEMA.names, (*named, sequence, control), strict=True)))
    return ZSet.of(pa.RecordBatch.from_pylist(rows, schema=SCHEMA), weights)


def without_ties(changes: list[Change]) -> list[Change]:
    """Return changes of different sequences: a truncate meets a change of its own sequence as arrival has it."""
    return [(*change[:4], 2 * change[4] + 30 * at, change[5]) for at, change in enumerate(changes)]


def run(epochs: list[list[Change]], bug: str = "", *, is_complete: bool = False) -> None:
    operator = PartialUpserts(RELATION, control="left_out", hidden=["at"], options=OperatorOptions(on_bad_input="quarantine"))
    table, shown = Table(bug), Counter[tuple[Any, ...]]()
    for number, changes in enumerate(epochs):
        tick, delta = Tick(number), delta_of(changes)
        unknown = table.epoch(changes)
        rejected = operator.rejections(tick, [delta])
        assert set(rejected.column("row").to_pylist()) == unknown
        assert not (is_complete and unknown)
        chunks = [line for chunk in operator.answer(tick, [delta]) for line in chunk.to_pylist()]
        again = [line for chunk in operator.answer(tick, [delta]) for line in chunk.to_pylist()]
        assert chunks == again
        operator.absorb(tick, [delta])
        for row, weight in chunks:
            shown[row] += weight
        assert {row: count for row, count in shown.items() if count} == dict.fromkeys(
            ((key, *values) for key, values in table.rows.items()), 1
        )
    operator.close()


@given(CHANGES, st.integers(1, 5))
def test_the_rows_are_those_of_a_dict(changes: list[Change], size: int) -> None:
    changes = without_ties(changes)
    run([changes[at : at + size] for at in range(0, len(changes), size)])


@given(CHANGES)
def test_changes_out_of_order_are_put_in_the_order_of_their_sequence(changes: list[Change]) -> None:
    partial = [change for change in without_ties(changes) if change[0] != "truncate"]
    whole = [("upsert", key, "x", 1, 0, 0) for key in range(4)]
    run([whole, list(reversed(partial)), []])


HISTORY: list[list[Change]] = [
    [("upsert", 1, "x", 1, 1, 0), ("upsert", 2, "y", 2, 2, 0)],
    [("upsert", 1, None, 5, 9, 2), ("upsert", 1, "late", 6, 8, 0)],
    [("truncate", 0, None, None, 10, 0), ("upsert", 3, "z", 3, 11, 0)],
]


def test_the_history_of_the_planted_bugs_is_right_without_them() -> None:
    run(HISTORY)


@pytest.mark.parametrize("bug", ["arrival", "truncate", "shown"])
def test_a_planted_bug_is_found(bug: str) -> None:
    with pytest.raises(AssertionError):
        run(HISTORY, bug)


@given(CHANGES, st.integers(0, 13), st.integers(0, 13), st.integers(1, 8))
def test_what_is_sent_again_after_a_crash_changes_nothing(changes: list[Change], begin: int, end: int, size: int) -> None:
    changes = without_ties([(what, key, a, b, 0, left_out) for what, key, a, b, _, left_out in changes])
    whole = [("upsert", key, "x", 1, 0, 0) for key in range(4)]
    known, live = [], set(range(4))
    for change in changes:  # no more than a database sends: nothing is omitted from a row that does not exist
        if change[0] == "truncate":
            live.clear()
        elif change[0] == "delete":
            live.discard(change[1])
        else:
            change = (*change[:5], change[5] if change[1] in live else 0)
            live.add(change[1])
        known.append(change)
    sent = [*known[:end], *known[min(begin, end) :]]
    run([whole, *(sent[at : at + size] for at in range(0, len(sent), size))], is_complete=True)
