"""The changes of an epoch, grouped by join key, make the rows of its answer step by step."""

from __future__ import annotations

import pytest

from tests.epochs import Change, delta_of, insert
from tests.state.side_anatomy import absorb, make_side
from zset_join.state.join.changed_groups import ChangedGroups, OutputArrays
from zset_join.state.rows.host_memory import resident_bytes

ONE_PART = 1_000_000


def many_keys(keys: int, first: int) -> list[Change]:
    """Return one row per key."""
    return insert(*((first + key, f"k{key}", None) for key in range(keys)))


class Epoch:
    """Two sides, what an epoch does to them, and the groups of its changes."""

    def __init__(self, known: list[list[Change]], changes: list[list[Change]], *, part_changes: int = ONE_PART) -> None:
        self.sides = [make_side("changelog") for _ in range(2)]
        for side, before in zip(self.sides, known, strict=True):
            absorb(side, before)
        self.prepared = [side.prepare(delta_of(side.relation, new)) for side, new in zip(self.sides, changes, strict=True)]
        self.groups = ChangedGroups(self.sides, (0, 0), part_changes=part_changes, residual=False)
        self.groups.is_tight = True
        self.groups.list_changes(self.prepared)

    def pairs(self) -> list[list[int]]:
        """Return the changed pairs of all parts: records of the left, records of the right, weights."""
        rows: list[list[int]] = []
        for part in range(self.groups.parts):
            self.groups.enter(part)
            output = OutputArrays(1_000)
            filled, done = self.groups.pair_step(0, output)(0)
            assert done
            rows += output.words[:3, :filled].T.tolist()
        return sorted(rows)


def test_working_arrays_are_counted_and_kept_for_the_next_epoch() -> None:
    epoch = Epoch([[], []], [many_keys(300, 0), []])
    epoch.pairs()
    after_the_first = epoch.groups.resident_bytes()

    epoch.groups.list_changes(epoch.prepared)
    epoch.pairs()

    assert epoch.groups.resident_bytes() == after_the_first > 300 * 64


def test_output_arrays_take_memory_as_far_as_they_are_filled() -> None:
    before = resident_bytes()
    output = OutputArrays(1 << 20)

    for line in output.words:
        line[:1000] = 1

    assert output.words.nbytes == 24 << 20
    assert resident_bytes() - before < 1 << 20


def test_output_arrays_give_back_what_was_filled_where_it_is_much() -> None:
    output = OutputArrays(1 << 20)
    for line in output.words:
        line[:] = 1
    filled = resident_bytes()

    kept = (output.release(1000), output.release(1 << 20))

    assert kept == (1000, 0)
    assert filled - resident_bytes() > 20 << 20
    output.words[2, -1] = 7
    assert output.weights[-1] == 7


@pytest.mark.parametrize("part_changes", [1, ONE_PART])
def test_the_memory_of_changes_is_given_back_and_the_next_epoch_is_listed_as_if_it_were_the_first(
    part_changes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zset_join.state.join.changed_groups._MOST_KEPT_CHANGES", 1)
    known = [many_keys(100, 0), many_keys(100, 1000)]
    epoch = Epoch(known, [many_keys(100, 2000), many_keys(50, 3000)], part_changes=part_changes)
    pairs = epoch.pairs()

    epoch.groups.shrink(150)
    given_back = epoch.groups.resident_bytes()
    epoch.groups.list_changes(epoch.prepared)
    again = epoch.pairs()

    assert len(pairs) == 100 + 2 * 50
    assert again == pairs
    assert given_back <= epoch.groups.resident_bytes() - 150 * 64
