"""A recorded history: the changes of both sides, epoch by epoch, and the plain query's result after each.

Two shapes. In `upserts` the left side moves between join keys and goes through a route, so a query has two stages; both
sides are ordered by a sequence and old changes arrive late. In `changelog` both sides are bags. NULL join keys, long and
missing strings, equal rows and an epoch without rows occur in both.

The expected sums come from `zset_join.testing.reference`, which imports nothing of the engine.

>>> history = recorded_history("full", "upserts", seed=1)
>>> history == recorded_history("full", "upserts", seed=1), len(history.expected) == len(history.epochs)
(True, True)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Any, Literal

import pyarrow as pa

from zset_join.aggregates import AggregateCall
from zset_join.core.epochs import Tick
from zset_join.core.options import HotBudget
from zset_join.core.relation import Relation
from zset_join.expressions import left, right
from zset_join.operators.aggregate import Aggregate
from zset_join.operators.first_load import LoadedJoin
from zset_join.operators.join import HashJoin
from zset_join.operators.upsert_table import Route
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.testing.reference import Counts, Side, batch_join, lay_out, resolve, row_identity
from zset_join.zset import ZSet

__all__ = [
    "HOWS",
    "HOWS_ON_A_PUSH",
    "SHAPES",
    "Changes",
    "GroupedHistory",
    "History",
    "Shape",
    "grouped_history",
    "loaded_history",
    "recorded_history",
]

Shape = Literal["upserts", "changelog"]
Judged = Literal["streamed", "oversized"]
Changes = tuple[tuple[dict[str, Any], int], ...]

HOWS = ("inner", "left", "right", "full", "left_semi", "left_anti")
HOWS_ON_A_PUSH = ("left", "full", "left_anti")
"""A join's epoch does the same file operations whatever its type is: these answer with pairs, padded rows of either side, and
rows of one side."""
SHAPES: tuple[Shape, ...] = ("upserts", "changelog")

_SCHEMA = pa.schema({"id": pa.int64(), "k": pa.int64(), "s": pa.int64(), "v": pa.string()})
_VALUES = ("a", "", None, "a text that is too long to be kept inside its row")
_EMPTY_EPOCH = 4


@dataclass(frozen=True)
class History:
    """Hold what happens to one query.

    Args:
        how: the join type.
        relations: the left and the right input.
        epochs: per epoch, the changes of both sides in arrival order.
        max_hot_keys: budget of the join, and of the route; None for state in memory.
        judged: given, only rows match of which the left `s` is at most the right. Rows on disk are `streamed`, or `oversized`:
            every key there counts as long.
        cold_store: medium of the rows on disk.
        is_loaded_in_parts: the join works a first epoch of 16 rows or more in parts of four.
    """

    how: str
    relations: tuple[Relation, ...]
    epochs: tuple[tuple[Changes, ...], ...]
    max_hot_keys: int | None = None
    judged: Judged | None = None
    cold_store: str = "files"
    is_loaded_in_parts: bool = False

    def deltas(self, epoch: int) -> tuple[ZSet, ...]:
        """Return the input of an epoch."""
        return self.deltas_of(self.epochs[epoch])

    def deltas_of(self, both: tuple[Changes, ...]) -> tuple[ZSet, ...]:
        """Return the changes of both sides as deltas."""
        return tuple(_delta(relation, changes) for relation, changes in zip(self.relations, both, strict=True))

    def tick(self, epoch: int) -> Tick:
        """Return the logical moment of an epoch."""
        return Tick(epoch, epoch * 1_000_000)

    @cached_property
    def expected(self) -> tuple[Counts, ...]:
        """Return, per epoch, the plain query over everything up to it."""
        return tuple(self._joined(epoch) for epoch in range(len(self.epochs)))

    def expected_after(self, epoch: int | None) -> Counts:
        """Return the plain query after an epoch; nothing before the first."""
        return {} if epoch is None else self.expected[epoch]

    @property
    def routed(self) -> tuple[bool, ...]:
        """Return per side whether it goes through a route."""
        return tuple(
            relation.mode == "upsert" and not set(relation.join_key) <= set(relation.primary_key) for relation in self.relations
        )

    def build_route(self, side: int, directory: str | None) -> Route:
        """Make the route of a side."""
        return Route(self.relations[side], options=self._options(directory))

    def _options(self, directory: str | None) -> OperatorOptions:
        medium: Any = self.cold_store
        budget = None if self.max_hot_keys is None else HotBudget(max_hot_keys=self.max_hot_keys, cold_store=medium)
        return OperatorOptions(directory=directory, budget=budget)

    def build_join(self, directory: str | None) -> HashJoin | Aggregate:
        """Make the join of one bucket; a routed side arrives without its sequence, which the route has settled."""
        sides = zip(self.relations, self.routed, strict=True)
        behind = [replace(Route(one).output, sequence_by=()) if is_routed else one for one, is_routed in sides]
        residual = left("s") <= right("s") if self.judged else None
        if self.is_loaded_in_parts:
            return LoadedJoin(behind[0], behind[1], self.how, options=replace(self._options(directory), part_changes=1))
        join = HashJoin(behind[0], behind[1], self.how, residual=residual, options=self._options(directory))
        if self.judged == "oversized" and join._hybrid is not None:
            join._hybrid.oversized.least_bytes = [1, 1]
        return join

    def _joined(self, epoch: int) -> Counts:
        sides = [
            Side(tuple(relation.schema.names), relation.mode, relation.join_key, relation.primary_key, relation.sequence_by)
            for relation in self.relations
        ]
        bags = [
            resolve(side, [change for both in self.epochs[: epoch + 1] for change in both[number]])
            for number, side in enumerate(sides)
        ]
        keys = [relation.join_key for relation in self.relations]
        joined = batch_join(
            bags[0],
            bags[1],
            how=self.how,
            left_key=keys[0],
            right_key=keys[1],
            null_safe=[False] * len(keys[0]),
            residual=_is_at_most if self.judged else None,
        )
        return lay_out(joined, how=self.how, left=sides[0], right=sides[1])


def _is_at_most(left_row: dict[str, Any], right_row: dict[str, Any]) -> bool:
    return bool(left_row["s"] <= right_row["s"])


class GroupedHistory(History):
    """Hold what happens to an aggregate over one bag: rows, the sum of `s` and the largest `v` per `id`."""

    @property
    def routed(self) -> tuple[bool, ...]:
        """Rows are not shuffled."""
        return (False,)

    def build_join(self, directory: str | None) -> Aggregate:
        """Make the aggregate of one bucket."""
        calls = [AggregateCall("count"), AggregateCall("sum", "s"), AggregateCall("max", "v")]
        source = self.relations[0]
        return Aggregate(source, source.join_key, calls, options=self._options(directory))

    def _joined(self, epoch: int) -> Counts:
        live: Counter[tuple[Any, ...]] = Counter()
        for (changes,) in self.epochs[: epoch + 1]:
            for row, weight in changes:
                live[tuple(row.values())] += weight
        groups: dict[int, list[dict[str, Any]]] = {}
        for values, weight in live.items():
            row = dict(zip(self.relations[0].schema.names, values, strict=True))
            groups.setdefault(row["id"], []).extend([row] * weight)
        return {
            row_identity((key, len(rows), sum(row["s"] for row in rows), _largest([row["v"] for row in rows]))): 1
            for key, rows in groups.items()
            if rows
        }


def _largest(values: list[str | None]) -> str | None:
    return max((value for value in values if value is not None), default=None)


def grouped_history(*, seed: int, epochs: int = 8, changes: int = 8, max_hot_keys: int = 0) -> GroupedHistory:
    """Draw the history of an aggregate; the same arguments give the same one.

    Args:
        seed: seed of everything random.
        epochs: how many; the fifth has no rows.
        changes: per epoch, at most.
        max_hot_keys: budget, in groups.
    """
    rng = Random(f"groups/{seed}")
    bag = _Bag(rng, 0)
    drawn = [(bag.changes(epoch, 0 if epoch == _EMPTY_EPOCH else rng.randint(1, changes)),) for epoch in range(epochs)]
    return GroupedHistory("groups", (replace(bag.relation, join_key=("id",)),), tuple(drawn), max_hot_keys)


def recorded_history(
    how: str,
    shape: Shape,
    *,
    seed: int,
    epochs: int = 8,
    changes: int = 6,
    max_hot_keys: int | None = None,
    judged: Judged | None = None,
) -> History:
    """Draw a history; the same arguments give the same one.

    Args:
        how: the join type.
        shape: see the module.
        seed: seed of everything random.
        epochs: how many; the fifth has no rows.
        changes: per side and epoch, at most.
        max_hot_keys: budget of the join, and of the route; None for state in memory.
        judged: as that of `History`.
    """
    rng = Random(f"{how}/{shape}/{seed}")
    draw = _Upserts if shape == "upserts" else _Bag
    sides = [draw(rng, number) for number in (0, 1)]
    drawn = [
        tuple(side.changes(epoch, 0 if epoch == _EMPTY_EPOCH else rng.randint(1, changes)) for side in sides)
        for epoch in range(epochs)
    ]
    reported = tuple((left, right) for left, right in drawn)
    return History(how, (sides[0].relation, sides[1].relation), reported, max_hot_keys, judged)


def loaded_history(how: str, *, seed: int, epochs: int = 8, changes: int = 6, rows: int = 24) -> History:
    """Draw a history whose first epoch, of so many new rows per side, the join works in parts.

    Neither side goes through a route, so the history has one stage; upserts and deletes follow.
    """
    rng = Random(f"{how}/loaded/{seed}")
    relations = tuple(
        replace(one.relation, name=name) for one, name in ((_Upserts(rng, 1), "orders"), (_Upserts(rng, 1), "customers"))
    )
    first = [
        tuple(({"id": id_, "k": rng.randrange(3), "s": 0, "v": rng.choice(_VALUES)}, 1) for id_ in range(rows))
        for _ in relations
    ]
    draw, drawn = _Upserts(rng, 1), [(first[0], first[1])]
    for epoch in range(1, epochs):
        counts = [0 if epoch == _EMPTY_EPOCH else rng.randint(1, changes) for _ in relations]
        drawn.append((draw.changes(epoch, counts[0]), draw.changes(epoch, counts[1])))
    return History(how, relations, tuple(drawn), is_loaded_in_parts=True)


class _Upserts:
    """Draw upserts and deletes of a few primary keys; now and then one comes late."""

    def __init__(self, rng: Random, side: int) -> None:
        self._rng = rng
        self._has_null_keys = side == 0
        self.relation = Relation(
            name="orders" if side == 0 else "customers",
            schema=_SCHEMA,
            join_key=("k",),
            primary_key=("id",) if side == 0 else ("k", "id"),
            sequence_by=("s",),
            mode="upsert",
        )

    def changes(self, epoch: int, count: int) -> Changes:
        return tuple(self._change(epoch) for _ in range(count))

    def _change(self, epoch: int) -> tuple[dict[str, Any], int]:
        rng = self._rng
        row = {
            "id": rng.randrange(5) if self._has_null_keys else rng.randrange(2),
            "k": rng.choice((0, 1, 2, None)) if self._has_null_keys else rng.randrange(3),
            "s": epoch - rng.choice((0, 0, 0, 1)),
            "v": rng.choice(_VALUES),
        }
        if rng.random() < 0.3:
            kept = {*self.relation.primary_key, *self.relation.sequence_by}
            return {name: value if name in kept else None for name, value in row.items()}, -1
        return row, 1


class _Bag:
    """Draw insertions and retractions of whole rows; a retraction names a row that is present."""

    def __init__(self, rng: Random, side: int) -> None:
        self._rng = rng
        self._live: list[dict[str, Any]] = []
        name = "clicks" if side == 0 else "views"
        self.relation = Relation(name=name, schema=_SCHEMA, join_key=("k",), mode="changelog")

    def changes(self, epoch: int, count: int) -> Changes:
        return tuple(self._change(epoch) for _ in range(count))

    def _change(self, epoch: int) -> tuple[dict[str, Any], int]:
        rng = self._rng
        if self._live and rng.random() < 0.35:
            return self._live.pop(rng.randrange(len(self._live))), -1
        row = {"id": rng.randrange(3), "k": rng.choice((0, 1, 2, None)), "s": epoch % 2, "v": rng.choice(_VALUES)}
        self._live.append(row)
        return row, 1


def _delta(relation: Relation, changes: Sequence[tuple[dict[str, Any], int]]) -> ZSet:
    rows = pa.RecordBatch.from_pylist([row for row, _ in changes], schema=relation.schema)
    return ZSet.of(rows, [weight for _, weight in changes])
