"""The changes of an epoch, grouped by join key, make the rows of its answer step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.epochs import Change, delete, delta_of, insert
from tests.state.side_anatomy import absorb, make_side
from zset_join.core.relation import ChangelogMode
from zset_join.kernels.join.pairs import SHOWN_MATCHED, SHOWN_UNMATCHED
from zset_join.state.join.changed_groups import ChangedGroups, OutputArrays, Step
from zset_join.state.rows.side import PreparedSide, SideState
from zset_join.state.rows.unused_memory import resident_bytes

Pair = tuple[Any, Any, int]


class Epoch:
    """Two sides, what an epoch does to them, and the groups of its changes."""

    def __init__(
        self,
        before: tuple[list[Change], list[Change]],
        changes: tuple[list[Change], list[Change]],
        *,
        one_sided: tuple[int, int] = (0, 0),
        mode: ChangelogMode = "changelog",
        hash_bits: int = 32,
        part_changes: int = 1_000_000,
        is_tight: bool = False,
    ) -> None:
        self.sides: list[SideState] = [make_side(mode, hash_bits=hash_bits) for _ in range(2)]
        self.prepared: list[PreparedSide | None] = []
        for side, known, new in zip(self.sides, before, changes, strict=True):
            absorb(side, known)
            self.prepared.append(side.prepare(delta_of(side.relation, new)) if new else None)
        self.groups = ChangedGroups(self.sides, one_sided, part_changes=part_changes, residual=False)
        self.groups.is_tight = is_tight
        self.groups.list_changes(self.prepared)

    def pairs(self, sign: int, *, capacity: int = 1_000) -> list[Pair]:
        """Return the changed pairs of all parts as (left id, right id, weight), in their order."""
        return self._rows(lambda output: self.groups.pair_step(sign, output), capacity)

    def one_sided(self, side: int, kind: int, sign: int, *, capacity: int = 1_000) -> list[Pair]:
        """Return the one-sided rows of all parts."""
        return self._rows(lambda output: self.groups.one_sided_step(side, kind, sign, output), capacity)

    def _rows(self, make_step: Any, capacity: int) -> list[Pair]:
        rows: list[Pair] = []
        for part in range(self.groups.parts):
            self.groups.enter(part)
            output = OutputArrays(capacity)
            step: Step = make_step(output)
            done = False
            while not done:
                filled, done = step(0)
                assert 0 <= filled <= capacity
                rows += zip(
                    self._ids(0, output, filled), self._ids(1, output, filled), output.weights[:filled].tolist(), strict=True
                )
        return rows

    def _ids(self, side: int, output: OutputArrays, count: int) -> list[Any]:
        state = self.sides[side]
        return list(
            state.layout.gather_plan([0]).gather(output.addresses[side], count, state.arena.heap_address)[0].to_pylist()
        )


def keyed(key: str | None, *ids: int) -> list[Change]:
    """Return insertions of rows with one key."""
    return insert(*[(number, key, None) for number in ids])


def taken_out(key: str | None, *ids: int) -> list[Change]:
    """Return retractions of rows with one key."""
    return delete(*[(number, key, None) for number in ids])


def test_changes_of_both_sides_are_counted() -> None:
    epoch = Epoch(([], []), (keyed("a", 1, 2), keyed("b", 3)))

    assert epoch.groups.counts == (2, 1)
    assert epoch.groups.parts == 1


def test_an_epoch_without_changes_has_no_parts() -> None:
    epoch = Epoch((keyed("a", 1), []), ([], []))

    assert (epoch.groups.counts, epoch.groups.parts, epoch.pairs(0)) == ((0, 0), 0, [])


def test_a_delta_that_cancels_out_has_no_changes() -> None:
    epoch = Epoch((keyed("a", 1), []), (taken_out("a", 1) + keyed("a", 1), keyed("b", 2) + taken_out("b", 2)))

    assert (epoch.groups.counts, epoch.groups.parts) == ((0, 0), 0)


@pytest.mark.parametrize(
    ("before", "changes", "expected"),
    [
        pytest.param(
            ([], keyed("a", 8, 9)), (keyed("a", 1), []), [(1, 8, 1), (1, 9, 1)], id="the left changes, the right stays"
        ),
        pytest.param(
            (keyed("a", 1, 2), []), ([], keyed("a", 9)), [(1, 9, 1), (2, 9, 1)], id="the left stays, the right changes"
        ),
        pytest.param(([], []), (keyed("a", 1), keyed("a", 9)), [(1, 9, 1)], id="both change"),
        pytest.param(
            (keyed("a", 1), keyed("a", 9)), (keyed("a", 2), keyed("a", 8)), [(1, 8, 1), (2, 8, 1), (2, 9, 1)], id="all three"
        ),
        pytest.param((keyed("a", 1), keyed("a", 9)), (taken_out("a", 1), taken_out("a", 9)), [(1, 9, -1)], id="both leave"),
        pytest.param((keyed("a", 1), []), (taken_out("a", 1), keyed("a", 9)), [], id="they miss each other"),
        pytest.param(
            (keyed("a", 1), keyed("b", 9)), (keyed("b", 2), keyed("c", 7)), [(2, 9, 1)], id="other keys are not touched"
        ),
        pytest.param(([], keyed(None, 9)), (keyed(None, 1), []), [], id="NULL meets nothing"),
    ],
)
@pytest.mark.parametrize("hash_bits", [32, 2])
def test_three_products_cover_every_changed_pair_once(
    before: tuple[list[Change], list[Change]],
    changes: tuple[list[Change], list[Change]],
    expected: list[Pair],
    hash_bits: int,
) -> None:
    assert sorted(Epoch(before, changes, hash_bits=hash_bits).pairs(0)) == expected


def test_one_sign_at_a_time_gives_what_both_give_together() -> None:
    epoch = Epoch(
        (keyed("a", 1, 2, 3), keyed("a", 7, 8, 9)), (taken_out("a", 1) + keyed("a", 4), taken_out("a", 7) + keyed("a", 6))
    )

    retractions, insertions = epoch.pairs(-1), epoch.pairs(1)

    assert {weight for *_, weight in retractions} == {-1}
    assert {weight for *_, weight in insertions} == {1}
    assert sorted(retractions + insertions) == sorted(epoch.pairs(0))


@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 16])
def test_a_step_stops_when_the_output_is_full_and_goes_on_where_it_was(capacity: int) -> None:
    epoch = Epoch(
        (keyed("a", *range(10)) + keyed("b", 50, 51), keyed("a", *range(100, 107))),
        (taken_out("a", 1, 2) + keyed("a", 20, 21), taken_out("a", 101) + keyed("a", 120) + keyed("b", 150)),
    )

    assert epoch.pairs(0, capacity=capacity) == epoch.pairs(0)
    assert epoch.pairs(-1, capacity=capacity) == epoch.pairs(-1)


def many_keys(keys: int, first: int) -> list[Change]:
    """Return one row per key."""
    return [change for key in range(keys) for change in keyed(f"k{key}", first + key)]


def test_a_large_epoch_is_worked_off_in_parts_that_give_the_same_rows() -> None:
    arguments = ((many_keys(200, 0), many_keys(200, 1_000)), (many_keys(150, 2_000), taken_out("k3", 1_003)))

    whole = Epoch(*arguments, one_sided=(SHOWN_UNMATCHED, SHOWN_UNMATCHED))
    parted = Epoch(*arguments, one_sided=(SHOWN_UNMATCHED, SHOWN_UNMATCHED), part_changes=10)

    assert (whole.groups.parts, parted.groups.parts) == (1, 16)
    assert sorted(parted.pairs(0)) == sorted(whole.pairs(0))
    assert sorted(parted.one_sided(0, SHOWN_UNMATCHED, 0), key=repr) == sorted(whole.one_sided(0, SHOWN_UNMATCHED, 0), key=repr)


def test_one_sided_rows_report_what_is_missing_before_and_after() -> None:
    epoch = Epoch(
        (keyed("a", 1) + keyed("b", 2) + keyed("c", 3), keyed("b", 8) + keyed("c", 9)),
        (keyed("d", 4), keyed("a", 7) + taken_out("c", 9)),
        one_sided=(SHOWN_UNMATCHED, 0),
    )

    assert sorted(epoch.one_sided(0, SHOWN_UNMATCHED, 0)) == [(1, None, -1), (3, None, 1), (4, None, 1)]
    assert epoch.one_sided(0, SHOWN_UNMATCHED, -1) == [(1, None, -1)]


def test_one_sided_rows_report_what_is_matched_before_and_after() -> None:
    epoch = Epoch(
        (keyed("a", 1) + keyed("c", 3), keyed("c", 9)),
        (keyed("c", 4), keyed("a", 7) + taken_out("c", 9)),
        one_sided=(SHOWN_MATCHED, 0),
    )

    assert sorted(epoch.one_sided(0, SHOWN_MATCHED, 0)) == [(1, None, 1), (3, None, -1)]


def test_a_row_that_can_never_match_is_always_missing_and_never_matched() -> None:
    arguments = ((keyed(None, 1), keyed(None, 8)), (keyed(None, 2) + taken_out(None, 1), keyed(None, 9)))
    missing = Epoch(*arguments, one_sided=(SHOWN_UNMATCHED, SHOWN_UNMATCHED))

    assert sorted(missing.one_sided(0, SHOWN_UNMATCHED, 0)) == [(1, None, -1), (2, None, 1)]
    assert missing.one_sided(1, SHOWN_UNMATCHED, 0) == [(None, 9, 1)]
    assert Epoch(*arguments, one_sided=(SHOWN_MATCHED, 0)).one_sided(0, SHOWN_MATCHED, 0) == []


def test_a_product_of_weights_past_int64_stops_the_step() -> None:
    epoch = Epoch((insert((1, "a", None), copies=2**40), []), ([], insert((9, "a", None), copies=2**40)))

    with pytest.raises(OverflowError):
        epoch.pairs(0)


def test_the_changes_of_a_side_in_a_part_can_be_read_back() -> None:
    epoch = Epoch((keyed("a", 1), []), (taken_out("a", 1) + insert((2, "b", None), copies=3), keyed("a", 9)))
    epoch.groups.enter(0)

    begin, (_, numbers, before, after) = epoch.groups.changes_of(0)
    right_begin, (_, right_numbers, _, right_after) = epoch.groups.changes_of(1)

    assert (begin, numbers.tolist(), before.tolist(), after.tolist()) == (0, [1, 0], [1, 0], [0, 3])
    assert (right_begin, right_numbers.tolist(), right_after.tolist()) == (2, [0], [1])
    assert [weights.tolist() for weights in epoch.groups.weights_of_changes()][1][:3] == [0, 3, 1]


def test_output_arrays_report_which_changes_made_a_pair() -> None:
    epoch = Epoch((keyed("a", 1), []), (keyed("a", 2), keyed("a", 9)))
    output = OutputArrays(10, with_changes=True)
    epoch.groups.enter(0)

    filled, done = epoch.groups.pair_step(0, output)(0)

    assert (filled, done) == (2, True)
    assert sorted(zip(output.words[3][:2].tolist(), output.words[4][:2].tolist(), strict=True)) == [(-1, 1), (0, 1)]


def test_working_arrays_are_counted_and_kept_for_the_next_epoch() -> None:
    epoch = Epoch(([], []), (many_keys(300, 0), []))
    epoch.pairs(0)
    after_the_first = epoch.groups.resident_bytes()

    epoch.groups.list_changes(epoch.prepared)
    epoch.pairs(0)

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


@pytest.mark.parametrize("part_changes", [1, 1_000_000])
def test_the_memory_of_changes_is_given_back_and_the_next_epoch_is_listed_as_if_it_were_the_first(
    part_changes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zset_join.state.join.changed_groups._MOST_KEPT_CHANGES", 1)
    known = (many_keys(100, 0), many_keys(100, 1000))
    epoch = Epoch(known, (many_keys(100, 2000), many_keys(50, 3000)), part_changes=part_changes, is_tight=True)
    pairs = sorted(epoch.pairs(0))

    epoch.groups.shrink(150)
    given_back = epoch.groups.resident_bytes()
    epoch.groups.list_changes(epoch.prepared)
    again = sorted(epoch.pairs(0))

    assert len(pairs) == 100 + 2 * 50
    assert again == pairs
    assert given_back <= epoch.groups.resident_bytes() - 150 * 64


def test_output_arrays_lie_behind_each_other() -> None:
    output = OutputArrays(7)

    assert np.diff(output.addresses).tolist() == [56, 56]
    assert (output.rows, output.left.shape, output.right.shape, output.weights.shape) == (7, (7,), (7,), (7,))
