"""Every sequence of up to 4 changes on 2 keys x 2 values x 2 sides, for every join type and every split into epochs."""

from __future__ import annotations

from functools import partial

import pytest

from property_tests.profiles import profile_name
from property_tests.reference_join import ReferenceJoin
from property_tests.shapes import HOWS
from property_tests.universes import WORLDS, UniverseBroken, exhaust
from zset_join.operators.join import HashJoin

_NIGHTLY = profile_name() != "push"
_LENGTHS = {
    "key_moves": 4,
    "values_change": 4,
    "bags": 4,
    "appends": 4,
    "null_key_moves": 4 if _NIGHTLY else 3,
    "null_safe_key_moves": 4 if _NIGHTLY else 3,
    "sequenced_key_moves": 3,
}
_FLOORS = {  # comparisons, so that a world which lost its universes does not pass in silence
    "key_moves": 663_552,
    "values_change": 663_552,
    "bags": 200_000,
    "appends": 131_072,
    "null_key_moves": 20_736,
    "null_safe_key_moves": 20_736,
    "sequenced_key_moves": 165_888,
}


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("world", sorted(WORLDS))
def test_every_short_history_in_every_split_sums_to_the_batch_join(world: str, how: str) -> None:
    compared = exhaust(WORLDS[world], how, _LENGTHS[world], HashJoin)

    assert compared >= _FLOORS[world]


@pytest.mark.parametrize("world", sorted(WORLDS))
def test_forced_collisions_change_nothing(world: str) -> None:
    assert exhaust(WORLDS[world], "full", 2, partial(HashJoin, hash_bits=4)) > 0


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("world", sorted(WORLDS))
def test_the_reference_join_passes_with_two_changes(world: str, how: str) -> None:
    assert exhaust(WORLDS[world], how, 2, ReferenceJoin) > 0


@pytest.mark.parametrize(
    ("bug", "world", "how"),
    [
        ("cross_term_missing", "bags", "inner"),
        ("after_used_twice", "bags", "inner"),
        ("upsert_not_retracted", "values_change", "inner"),
        ("null_matches", "null_key_moves", "left"),
        ("null_safe_ignored", "null_safe_key_moves", "inner"),
        ("stale_sequence_accepted", "sequenced_key_moves", "left_anti"),
        ("weight_is_one", "bags", "left"),
        ("answer_not_consolidated", "bags", "full"),
    ],
)
def test_a_planted_bug_breaks_a_universe_of_at_most_three_changes(bug: str, world: str, how: str) -> None:
    with pytest.raises(UniverseBroken):
        exhaust(WORLDS[world], how, 3, partial(ReferenceJoin, bugs=(bug,)))
