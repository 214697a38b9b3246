"""Every sequence of up to 4 changes on 2 keys x 2 values x 2 sides, for every join type and every split into epochs."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from property_tests.profiles import profile_name
from property_tests.reference_join import ReferenceJoin
from property_tests.shapes import HOWS
from property_tests.universes import WORLDS, UniverseBrokenError, exhaust
from tests.built import built
from zset_join.core.relation import Relation
from zset_join.expressions import left, right
from zset_join.operators.join import HashJoin

_LENGTHS = {name: 3 if name == "sequenced_key_moves" and profile_name() == "push" else 4 for name in WORLDS}
_FLOORS = {  # comparisons made, so that a world which lost its universes does not pass in silence
    "appends": 131_072,
    "bags": 216_192,
    "key_moves": 663_552,
    "null_key_moves": 663_552,
    "null_safe_key_moves": 663_552,
    "residual": 663_552,
    "sequenced_key_moves": 165_888,
    "values_change": 663_552,
}


def hash_join(left_side: Relation, right_side: Relation, how: str, *, residual: bool = False, **options: Any) -> HashJoin:
    """Build the product's join for a world."""
    predicate = left("v") <= right("rv") if residual else None
    return built(HashJoin, left_side, right_side, how, residual=predicate, **options)


def reference_join(
    left_side: Relation, right_side: Relation, how: str, *, residual: bool = False, **options: Any
) -> ReferenceJoin:
    """Build the reference join for a world."""
    predicate = (lambda one, other: bool(one["v"] <= other["rv"])) if residual else None
    return ReferenceJoin(left_side, right_side, how, residual=predicate, **options)


_ALL_ARE_TRIED = ("bags", "key_moves")
"""Worlds of which a push tries every join type; of the others it tries two, which together show and hide rows on both sides."""


@pytest.mark.parametrize(
    ("world", "how"),
    [
        pytest.param(
            world,
            how,
            id=f"{world}-{how}",
            marks=() if how in ("full", "left_anti") or world in _ALL_ARE_TRIED else pytest.mark.long,
        )
        for world in sorted(WORLDS)
        for how in HOWS
    ],
)
def test_every_short_history_in_every_split_sums_to_the_batch_join(world: str, how: str) -> None:
    compared = exhaust(WORLDS[world], how, _LENGTHS[world], hash_join)

    assert compared >= _FLOORS[world]


@pytest.mark.parametrize("world", sorted(WORLDS))
def test_forced_collisions_change_nothing(world: str) -> None:
    assert exhaust(WORLDS[world], "full", 2, partial(hash_join, hash_bits=4)) > 0


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("world", sorted(WORLDS))
def test_the_reference_join_passes_with_two_changes(world: str, how: str) -> None:
    assert exhaust(WORLDS[world], how, 2, reference_join) > 0


@pytest.mark.parametrize(
    ("bug", "world", "how", "changes"),
    [
        ("cross_term_missing", "bags", "inner", 2),
        ("after_used_twice", "bags", "inner", 2),
        ("upsert_not_retracted", "values_change", "inner", 3),
        ("null_matches", "null_key_moves", "left", 2),
        ("null_safe_ignored", "null_safe_key_moves", "inner", 2),
        ("stale_sequence_accepted", "sequenced_key_moves", "left_anti", 2),
        ("degree_ignores_residual", "residual", "full", 2),
        ("weight_is_one", "bags", "left", 2),
        ("answer_not_consolidated", "bags", "full", 3),
    ],
)
def test_a_planted_bug_breaks_a_universe_of_few_changes(bug: str, world: str, how: str, changes: int) -> None:
    with pytest.raises(UniverseBrokenError):
        exhaust(WORLDS[world], how, changes, partial(reference_join, bugs=(bug,)))
