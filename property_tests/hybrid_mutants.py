"""Planted bugs of hybrid state: rows that are lost, found twice or outdated between memory and disk.

Each is a `HashJoin`, a `Route` or an `Aggregate` with one piece of its hybrid state spoiled; without a budget it is sound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from property_tests.aggregate_shapes import aggregate_specs, build_aggregate
from property_tests.mutants import Mutant
from property_tests.registry import Build, Registered, build_hash_join, build_route, hash_join_live_rows, registered_join
from property_tests.shapes import Mode
from property_tests.strategies import route_specs
from zset_join.aggregates.hybrid_groups import HybridGroups
from zset_join.state.cold.cold_side import ColdSide
from zset_join.state.join.hybrid_state import HybridState
from zset_join.state.join.residual_pairs import ResidualPairs
from zset_join.state.join.streamed_rows import StreamedGroup
from zset_join.state.rows.side import PreparedSide
from zset_join.zset.protocol import Operator

__all__ = ["HYBRID_MUTANTS"]

_LAW = "budget_is_invisible"
_BUSY = ("int32", "bool", "float32")  # key shapes with few values, so that rows meet


@dataclass(frozen=True)
class _BuildSpoiled:
    """Build a `HashJoin` and, where it has a budget, spoil its hybrid state."""

    spoil: Callable[[HybridState], None]

    def __call__(self, spec: Any, *, on_bad_input: str = "error", directory: str | None = None) -> Operator:
        join = build_hash_join(spec, on_bad_input=on_bad_input, directory=directory)
        hybrid = join._hybrid
        if hybrid is not None:
            self.spoil(hybrid)
        return join


@dataclass(frozen=True)
class _BuildSpoiledPairs:
    """Build a `HashJoin` and, where it has a budget and a residual predicate, spoil how its pairs are judged."""

    spoil: Callable[[ResidualPairs], None]

    def __call__(self, spec: Any, *, on_bad_input: str = "error", directory: str | None = None) -> Operator:
        join = build_hash_join(spec, on_bad_input=on_bad_input, directory=directory)
        if join._hybrid is not None and join._residual is not None:
            self.spoil(join._residual)
        return join


def _on_each_side(spoil: Callable[[ColdSide], None]) -> Callable[[HybridState], None]:
    def spoil_both(hybrid: HybridState) -> None:
        spoil(hybrid.cold_side(0))
        spoil(hybrid.cold_side(1))

    return spoil_both


def _fetches_no_partners(side: ColdSide) -> None:
    find_keys = side.find_keys
    side.find_keys = lambda codes: find_keys(codes[:0])  # type: ignore[method-assign]


def _fetches_no_tombstones(side: ColdSide) -> None:
    find = side.find_tombstones
    side.find_tombstones = lambda prepared, missing: find(prepared, missing[:0])  # type: ignore[method-assign]


def _leaves_tombstones_on_disk(side: ColdSide) -> None:
    if side._tombstones is not None:
        side._tombstones.store.remove = _nothing  # type: ignore[method-assign]


def _fetches_no_named_rows(side: ColdSide) -> None:
    find_named = side.find_named
    side.find_named = lambda prepared, missing: find_named(prepared, missing[:0])  # type: ignore[method-assign]


def _nothing(*_: object) -> None:
    """Do nothing."""


def _restores_outdated_rows(side: ColdSide) -> None:
    side.hot.note_written = _nothing  # type: ignore[method-assign]


def _forgets_primary_keys(side: ColdSide) -> None:
    side._put_keys = _nothing  # type: ignore[method-assign]


def _forgets_old_keys(hybrid: HybridState) -> None:
    fetch_named = hybrid._fetch_named

    def fetch(prepared: Sequence[PreparedSide | None]) -> list[Any]:
        fetch_named(prepared)
        return [np.empty(0, np.int64) if own is None else own.join_codes[: own.count].copy() for own in prepared]

    hybrid._fetch_named = fetch  # type: ignore[method-assign]


def _fetches_nothing_twice(hybrid: HybridState) -> None:
    hybrid._fetched_by_own = (False, False)


def _streams_nothing(hybrid: HybridState) -> None:
    fetch = hybrid.fetch

    def spoiled(prepared: Sequence[PreparedSide | None]) -> None:
        fetch(prepared)
        hybrid.oversized.begin()

    hybrid.fetch = spoiled  # type: ignore[method-assign]


def _passes_nothing(hybrid: HybridState) -> None:
    fetch = hybrid.fetch

    def spoiled(prepared: Sequence[PreparedSide | None]) -> None:
        fetch(prepared)
        hybrid.oversized.streams = [False, False]

    hybrid.fetch = spoiled  # type: ignore[method-assign]


def _keeps_no_rows(hybrid: HybridState) -> None:
    hybrid._witnesses.find = lambda *_: iter(())  # type: ignore[method-assign]


def _keeps_changed_rows(hybrid: HybridState) -> None:
    mark = hybrid._witnesses._mark
    hybrid._witnesses._mark = lambda side, keys, replaced: mark(side, keys, replaced[:0])  # type: ignore[method-assign]


def _keeps_no_witness_of_oversized_keys(hybrid: HybridState) -> None:
    hybrid.oversized._fetched_by_own = (False, False)


def _forgets_unchanged_rows(hybrid: HybridState) -> None:
    fetch = hybrid.fetch

    def spoiled(prepared: Sequence[PreparedSide | None]) -> None:
        hybrid.oversized.forget()
        fetch(prepared)

    hybrid.fetch = spoiled  # type: ignore[method-assign]


def _keeps_old_degrees(side: ColdSide) -> None:
    side.exchange = side.forget_revised  # type: ignore[method-assign]


def _forgets_streamed_degrees(residual: ResidualPairs) -> None:
    with_streamed = residual._with_streamed

    def spoiled(part: Any, found: StreamedGroup, sign: int) -> Iterator[Any]:
        yield from with_streamed(part, found, sign)
        part.gains.clear()

    residual._with_streamed = spoiled  # type: ignore[method-assign]


def _counts_nothing_that_passes(residual: ResidualPairs) -> None:
    with_streamed = residual._with_streamed

    def spoiled(part: Any, found: StreamedGroup, sign: int) -> Iterator[Any]:
        degrees, part.degrees = part.degrees, {}
        yield from with_streamed(part, found, sign)
        part.degrees = degrees

    residual._with_streamed = spoiled  # type: ignore[method-assign]


def _never_spills(hybrid: HybridState) -> None:
    hybrid._spill_down = lambda: None  # type: ignore[method-assign]


@dataclass(frozen=True)
class _BuildSpoiledGroups:
    """Build an `Aggregate` and, where it has a budget, spoil its hybrid groups."""

    spoil: Callable[[HybridGroups], None]

    def __call__(self, spec: Any, *, on_bad_input: str = "error", directory: str | None = None) -> Operator:
        aggregate = build_aggregate(spec, on_bad_input=on_bad_input, directory=directory)
        hybrid = aggregate._input.hybrid
        if hybrid is not None:
            self.spoil(hybrid)
        return aggregate


def _fetches_no_groups(hybrid: HybridGroups) -> None:
    hybrid.fetch = _nothing  # type: ignore[method-assign]


def _leaves_groups_on_disk(hybrid: HybridGroups) -> None:
    hybrid._cold.take = _nothing  # type: ignore[method-assign]


def _leaves_groups_in_memory(hybrid: HybridGroups) -> None:
    hybrid._tables.remove = _nothing  # type: ignore[method-assign]


def _forgets_values(hybrid: HybridGroups) -> None:
    insert = hybrid._tables.insert
    hybrid._tables.insert = lambda number, rows: insert(number, rows.slice(0, 0) if number else rows)  # type: ignore[method-assign]


def _keeps_all_groups(hybrid: HybridGroups) -> None:
    hybrid._spill_down = lambda: None  # type: ignore[method-assign]


def _group_mutant(name: str, story: str, spoil: Callable[[HybridGroups], None]) -> Mutant:
    specs = aggregate_specs("changelog", key_shapes=_BUSY)
    return Mutant(name, story, _LAW, Registered("spoiled groups", specs, _BuildSpoiledGroups(spoil), hash_join_live_rows))


def _mutant(
    name: str,
    story: str,
    spoil: Callable[[HybridState], None],
    how: str = "inner",
    modes: tuple[Mode, Mode] = ("upsert", "upsert"),
    law: str = _LAW,
) -> Mutant:
    return _join_mutant(name, story, _BuildSpoiled(spoil), how, modes, law)


def _pair_mutant(name: str, story: str, spoil: Callable[[ResidualPairs], None]) -> Mutant:
    modes: tuple[Mode, Mode] = ("changelog", "changelog")
    return _join_mutant(name, story, _BuildSpoiledPairs(spoil), "left", modes, _LAW, residuals=("x_less", "f_at_most"))


def _route_mutant(name: str, story: str, spoil: Callable[[ColdSide], None]) -> Mutant:
    def build(spec: Any, *, on_bad_input: str = "error", directory: str | None = None) -> Operator:
        route = build_route(spec, on_bad_input=on_bad_input, directory=directory)
        if route._hybrid is not None:
            spoil(route._hybrid.cold_side(0))
        return route

    return Mutant(name, story, _LAW, Registered("spoiled route", route_specs("upsert"), build, hash_join_live_rows))


def _join_mutant(name: str, story: str, build: Build, how: str, modes: tuple[Mode, Mode], law: str, **drawn: Any) -> Mutant:
    narrowed = {"key_shapes": _BUSY, **drawn}
    entry = registered_join("spoiled", how, modes, build=build, live_rows=hash_join_live_rows, **narrowed)
    return Mutant(name, story, law, entry)


HYBRID_MUTANTS: tuple[Mutant, ...] = (
    _mutant("fetches_no_partners", "a cold partner is not found by join key", _on_each_side(_fetches_no_partners)),
    _mutant("fetches_no_named_rows", "the cold row that an upsert replaces stays", _on_each_side(_fetches_no_named_rows)),
    _mutant(
        "fetches_no_tombstones",
        "an upsert that is older than the delete of its key is taken, for the tombstone is on disk",
        _on_each_side(_fetches_no_tombstones),
        modes=("sequenced", "sequenced"),
    ),
    _mutant(
        "leaves_tombstones_on_disk",
        "a tombstone that came into memory stays on disk, and there are two of it",
        _on_each_side(_leaves_tombstones_on_disk),
        modes=("sequenced", "sequenced"),
    ),
    _route_mutant(
        "routes_from_nowhere",
        "a cold key is not found, so its row never leaves the bucket of its old join key",
        _fetches_no_named_rows,
    ),
    _mutant(
        "restores_outdated_rows",
        "a row that changed in memory is taken to lie on disk as it was",
        _on_each_side(_restores_outdated_rows),
    ),
    _mutant("forgets_primary_keys", "a cold row is not found by its primary key", _on_each_side(_forgets_primary_keys)),
    _mutant("forgets_old_keys", "the cold partners of the join key a row leaves are not updated", _forgets_old_keys),
    _mutant(
        "asks_nobody_twice",
        "a preserved row's last match is cold, and so it is padded too early",
        _fetches_nothing_twice,
        "left",
        ("changelog", "changelog"),
    ),
    _mutant("streams_nothing", "the rows of long keys are not in the answer", _streams_nothing),
    _mutant("passes_nothing", "rows that have no room are not in the answer", _passes_nothing),
    _mutant(
        "lets_nothing_stand",
        "a preserved row is padded although its key has rows on disk",
        _keeps_no_rows,
        "left",
        ("changelog", "changelog"),
    ),
    _mutant(
        "lets_changed_rows_stand",
        "a preserved row is padded when the one row of its key that was in memory goes, though others are on disk",
        _keeps_changed_rows,
        "left",
        ("changelog", "changelog"),
    ),
    _mutant(
        "keeps_no_witness_of_oversized_keys",
        "a preserved row is padded although its key has rows on disk",
        _keeps_no_witness_of_oversized_keys,
        "left",
        ("changelog", "changelog"),
    ),
    _mutant(
        "forgets_unchanged_rows",
        "answered again, one row more of a long key comes into memory, and the answer in other chunks",
        _forgets_unchanged_rows,
        "left",
        ("append", "append"),
        law="answer_is_pure",
    ),
    _mutant(
        "keeps_old_degrees",
        "a row of a long key forgets which matches it gained or lost on disk",
        _on_each_side(_keeps_old_degrees),
        "left",
        ("changelog", "changelog"),
    ),
    _pair_mutant(
        "forgets_streamed_degrees",
        "a row that passed forgets which matches it gained or lost on disk",
        _forgets_streamed_degrees,
    ),
    _pair_mutant(
        "counts_nothing_that_passes",
        "a row that changes is padded although a row that passes matches",
        _counts_nothing_that_passes,
    ),
    _mutant("never_spills", "the budget is not kept", _never_spills),
    _group_mutant("fetches_no_groups", "a group on disk is begun again in memory", _fetches_no_groups),
    _group_mutant("leaves_groups_on_disk", "a fetched group stays on disk and comes back twice", _leaves_groups_on_disk),
    _group_mutant("leaves_groups_in_memory", "a spilled group stays in memory too", _leaves_groups_in_memory),
    _group_mutant("forgets_values", "a group comes back without its values", _forgets_values),
    _group_mutant("keeps_all_groups", "the budget of groups is not kept", _keeps_all_groups),
)
