"""The inputs of the benchmarks: seeded, the same for every contestant, made before the clock starts.

A workload is two relations in upsert mode, their first rows, and a list of epochs. An epoch is one delta per side
plus the number of rows its exact answer has, which is counted here from key counts alone and never taken from a
contestant: with `b` and `a` rows of a key before and after the epoch and `u` rows that it left alone, the answer has
`sum over keys of b_left * b_right + a_left * a_right - 2 * u_left * u_right` rows, because the primary keys of both
sides are part of every output row and every update changes its row.

- `OrdersCustomers`: 3*S orders join S customers. Changes: 45 % order updates of which half move to another customer,
  45 % new orders, 5 % deleted orders, 5 % customer updates. About 1.70 output rows per change.
- `ManyToMany`: 20,000 rows a side whose keys follow Zipf's law with exponent 1.1 over 10,000 keys. Every change is an
  update of a row drawn uniformly, half of them moving to another key; about 1,300 output rows per change.

Ties and edge cases: rows to change are drawn with repetition, so one epoch may change a primary key several times
(the last change wins, also over a delete); a delete carries its primary key, every other column is NULL; a move may
draw the key it leaves. No NULL keys and no bad input: those belong to the tests.

Memory: 4 bytes per row that ever lived on each side while epochs are made; `initial` makes one batch at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.relation import Relation
from zset_join.zset import ZSet

__all__ = ["LEFT", "RIGHT", "Epoch", "ManyToMany", "OrdersCustomers", "Workload", "named_workload"]

LEFT, RIGHT = 0, 1
SEED = 20_260_101
BATCH_ROWS = 250_000

Ints = npt.NDArray[np.int64]

_WORDS = pa.array([f"word-{number:03d}" for number in range(1000)])
_NOT_LIVE = -1


@dataclass(frozen=True)
class Epoch:
    """One epoch of input.

    Args:
        deltas: the delta of the left and of the right side.
        changes: rows of both deltas together.
        answer_rows: rows of the consolidated change of the output.
    """

    deltas: tuple[ZSet, ZSet]
    changes: int
    answer_rows: int


class Workload(Protocol):
    """The facts that a measurement needs of its input."""

    name: str
    relations: tuple[Relation, Relation]
    state_rows: int

    def initial(self, side: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows that one side holds before the first epoch."""
        ...

    def epochs(self, count: int, changes: int) -> list[Epoch]:
        """Make the first `count` epochs of `changes` changes each."""
        ...


class OrdersCustomers:
    """Orders join customers on the customer's id.

    Args:
        scale: S; there are 3*S orders and S customers before the first epoch.
        seed: of every random draw.

    >>> workload = OrdersCustomers(1_000)
    >>> [epoch.changes for epoch in workload.epochs(2, 100)]
    [100, 100]
    """

    def __init__(self, scale: int, *, seed: int = SEED) -> None:
        self.name = "orders_customers"
        self.scale = scale
        self.state_rows = 4 * scale
        self._seed = seed
        self._customer_of_order = _generator(seed, 0).integers(0, scale, 3 * scale, dtype=np.int32)
        orders = _upsert_relation("orders", ("order_id", "customer_id", "amount", "status"), "customer_id")
        customers = _upsert_relation("customers", ("id", "segment", "credit", "city"), "id")
        self.relations = (orders, customers)

    def initial(self, side: int) -> Iterator[pa.RecordBatch]:
        """Yield the orders (side 0) or the customers (side 1), `BATCH_ROWS` at a time."""
        count = 3 * self.scale if side == LEFT else self.scale
        for start in range(0, count, BATCH_ROWS):
            ids = np.arange(start, min(start + BATCH_ROWS, count), dtype=np.int64)
            rng = _generator(self._seed, 1, side, start)
            second = self._customer_of_order[ids] if side == LEFT else rng.integers(0, 50, len(ids))
            yield _rows(self.relations[side].schema, ids, second.astype(np.int64), rng)

    def epochs(self, count: int, changes: int) -> list[Epoch]:
        """Make the first `count` epochs; every epoch has the same mix, in an order drawn at random."""
        rng = _generator(self._seed, 2, changes)
        updates, deletes, customer_updates = changes * 45 // 100, changes * 5 // 100, changes * 5 // 100
        inserts = changes - updates - deletes - customer_updates
        orders = _LiveKeys(self._customer_of_order, self.scale, spare=count * inserts)
        customers = _LiveKeys(np.arange(self.scale, dtype=np.int32), self.scale, spare=0)
        made = []
        for _ in range(count):
            updated, deleted = orders.draw_live(rng, updates), orders.draw_live(rng, deletes)
            moved_to = rng.integers(0, self.scale, updates)
            stays = np.arange(updates) >= updates // 2
            ids = np.concatenate([updated, orders.new_ids(inserts), deleted])
            keys = np.concatenate(
                [
                    np.where(stays, orders.key_of[updated], moved_to),
                    rng.integers(0, self.scale, inserts),
                    np.full(deletes, _NOT_LIVE),
                ]
            )
            arrival = rng.permutation(len(ids))
            ids, keys = ids[arrival], keys[arrival]
            buyers = rng.integers(0, self.scale, customer_updates)
            answer_rows = _apply_and_count(orders, (ids, keys), customers, (buyers, buyers))
            left_delta = _upserts(self.relations[LEFT].schema, ids, keys, keys == _NOT_LIVE, rng)
            segments = rng.integers(0, 50, customer_updates)
            right_delta = _upserts(self.relations[RIGHT].schema, buyers, segments, np.zeros(len(buyers), bool), rng)
            made.append(Epoch((left_delta, right_delta), changes, answer_rows))
        return made


class ManyToMany:
    """Two tables whose skewed keys meet many to many.

    Args:
        rows: rows of each side.
        keys: number of distinct keys that can be drawn.
        exponent: of Zipf's law; key number n is drawn in proportion to `n ** -exponent`.
        seed: of every random draw.

    >>> ManyToMany(rows=500, keys=100).epochs(1, 20)[0].changes
    20
    """

    def __init__(self, *, rows: int = 20_000, keys: int = 10_000, exponent: float = 1.1, seed: int = SEED) -> None:
        self.name = "many_to_many"
        self.state_rows = 2 * rows
        self._rows, self._keys, self._seed = rows, keys, seed
        shares = np.arange(1, keys + 1, dtype=np.float64) ** -exponent
        self._cumulated = np.cumsum(shares) / shares.sum()
        self._first_keys = tuple(self._draw_keys(_generator(seed, 10, side), rows) for side in (LEFT, RIGHT))
        self.relations = (
            _upsert_relation("left", ("left_id", "left_key", "left_value", "left_word"), "left_key"),
            _upsert_relation("right", ("right_id", "right_key", "right_value", "right_word"), "right_key"),
        )

    def initial(self, side: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one side as one batch."""
        ids = np.arange(self._rows, dtype=np.int64)
        yield _rows(self.relations[side].schema, ids, self._first_keys[side], _generator(self._seed, 11, side))

    def epochs(self, count: int, changes: int) -> list[Epoch]:
        """Make the first `count` epochs; half of the changes go to each side."""
        rng = _generator(self._seed, 12, changes)
        sides = [_LiveKeys(keys.astype(np.int32), self._keys, spare=0) for keys in self._first_keys]
        made = []
        for _ in range(count):
            upserts = []
            for side, per_side in ((LEFT, changes - changes // 2), (RIGHT, changes // 2)):
                ids = sides[side].draw_live(rng, per_side)
                stays = np.arange(per_side) >= per_side // 2
                upserts.append((ids, np.where(stays, sides[side].key_of[ids], self._draw_keys(rng, per_side))))
            answer_rows = _apply_and_count(sides[LEFT], upserts[LEFT], sides[RIGHT], upserts[RIGHT])
            left_delta, right_delta = (
                _upserts(relation.schema, ids, keys, np.zeros(len(ids), bool), rng)
                for relation, (ids, keys) in zip(self.relations, upserts, strict=True)
            )
            made.append(Epoch((left_delta, right_delta), changes, answer_rows))
        return made

    def _draw_keys(self, rng: np.random.Generator, count: int) -> Ints:
        return np.searchsorted(self._cumulated, rng.random(count)).astype(np.int64)


def named_workload(name: str, scale: int) -> Workload:
    """Build a workload from its name; `scale` is S of orders/customers and the rows of a side of many-to-many.

    Raises:
        ValueError: the name is unknown.
    """
    if name == "orders_customers":
        return OrdersCustomers(scale)
    if name == "many_to_many":
        return ManyToMany(rows=scale)
    raise ValueError(f"workload {name!r} is unknown; use orders_customers or many_to_many.")


class _LiveKeys:
    """Which rows of a side live, under which join key, and how many under each."""

    def __init__(self, keys: npt.NDArray[np.int32], key_count: int, *, spare: int) -> None:
        self.key_of = np.concatenate([keys, np.full(spare, _NOT_LIVE, np.int32)])
        self.rows_per_key = np.bincount(keys, minlength=key_count)
        self._next_id = len(keys)

    def draw_live(self, rng: np.random.Generator, count: int) -> Ints:
        """Draw live rows uniformly, with repetition."""
        drawn = rng.integers(0, self._next_id, 2 * count + 64)
        live: Ints = drawn[self.key_of[drawn] != _NOT_LIVE][:count]
        if len(live) < count:
            raise ValueError(f"only {len(live)} of {count} drawn rows live: too many deletes for this table.")
        return live

    def new_ids(self, count: int) -> Ints:
        self._next_id += count
        return np.arange(self._next_id - count, self._next_id)

    def apply(self, ids: Ints, keys: Ints) -> tuple[Ints, Ints]:
        """Move the rows to their new keys; return the keys they left and the keys they came to, one entry per row."""
        changed, from_the_end = np.unique(ids[::-1], return_index=True)
        before, after = self.key_of[changed].astype(np.int64), keys[::-1][from_the_end]
        self.key_of[changed] = after
        return before[before != _NOT_LIVE], after[after != _NOT_LIVE]


def _apply_and_count(
    left: _LiveKeys, left_upserts: tuple[Ints, Ints], right: _LiveKeys, right_upserts: tuple[Ints, Ints]
) -> int:
    """Apply one epoch and return the rows of its exact answer; the formula is in the module header."""
    left_from, left_to = left.apply(*left_upserts)
    right_from, right_to = right.apply(*right_upserts)
    keys = np.unique(np.concatenate([left_from, left_to, right_from, right_to]))
    counted: list[Ints] = []
    for side, left_keys, came_to in ((left, left_from, left_to), (right, right_from, right_to)):
        before = side.rows_per_key[keys]
        untouched = before - np.bincount(np.searchsorted(keys, left_keys), minlength=len(keys))
        after = untouched + np.bincount(np.searchsorted(keys, came_to), minlength=len(keys))
        side.rows_per_key[keys] = after
        counted += [before, untouched, after]
    left_before, left_untouched, left_after, right_before, right_untouched, right_after = counted
    rows = left_before * right_before + left_after * right_after - 2 * left_untouched * right_untouched
    return int(rows.sum())


def _upsert_relation(name: str, columns: tuple[str, str, str, str], join_key: str) -> Relation:
    types = (pa.int64(), pa.int64(), pa.float64(), pa.string())
    schema = pa.schema(list(zip(columns, types, strict=True)))
    return Relation(name=name, schema=schema, join_key=(join_key,), primary_key=(columns[0],), mode="upsert")


def _rows(schema: pa.Schema, ids: Ints, second: Ints, rng: np.random.Generator, absent: Any = None) -> pa.RecordBatch:
    """Return rows with a random amount and word; where `absent`, everything but the id is NULL."""
    amounts = rng.random(len(ids))
    words = rng.integers(0, len(_WORDS), len(ids))
    columns = [
        pa.array(ids),
        pa.array(second, mask=absent),
        pa.array(amounts, mask=absent),
        _WORDS.take(pa.array(words, mask=absent)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _upserts(schema: pa.Schema, ids: Ints, second: Ints, deleted: npt.NDArray[np.bool_], rng: np.random.Generator) -> ZSet:
    rows = _rows(schema, ids, second, rng, absent=deleted if deleted.any() else None)
    return ZSet(rows, np.where(deleted, -1, 1).astype(np.int64))


def _generator(*seeds: int) -> np.random.Generator:
    return np.random.default_rng(list(seeds))
