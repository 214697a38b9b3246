"""Every short history at once: thousands of independent universes run through one operator.

A *world* is an alphabet of changes (side x key x value x kind). A *universe* is one legal sequence of such changes cut into
epochs in one way. All universes of a world share one operator but never meet: a universe number is the first column of
every key. So one epoch of the operator carries epoch e of every universe, and exhausting a world costs a few vectorised
epochs.

Sequences of exactly `length` changes cover the shorter ones too: outputs are checked after every epoch, and every split of
a shorter sequence is the beginning of a split of a longer one.

Outputs are compared as dense count matrices, universe x possible output row; what is expected comes from the oracle, once
per distinct pair of live bags. A failure is printed as one sequence with its cuts, the shortest first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.relation import ChangelogMode, Relation
from zset_join.testing import reference as oracle
from zset_join.zset import ZSet
from zset_join.zset.protocol import Operator

__all__ = ["WORLDS", "Symbol", "UniverseBrokenError", "World", "exhaust", "universe_relations"]

_COLUMNS = ("id", "k", "v", "s")
_SCHEMA = [(name, pa.int32()) for name in _COLUMNS]
Ints = npt.NDArray[np.int64]


class UniverseBrokenError(AssertionError):
    """A universe whose output is not the plain join of its inputs."""


@dataclass(frozen=True)
class Symbol:
    """One letter of the alphabet: a change of one side."""

    side: int
    values: tuple[int | None, ...]  # id, k, v, s
    weight: int

    def __repr__(self) -> str:
        return f"{'LR'[self.side]}{self.weight:+d}{self.values}"


@dataclass(frozen=True)
class World:
    """An alphabet and its relations.

    Args:
        name: of the world.
        mode: changelog mode of both sides.
        symbols: the alphabet.
        coded: the columns that identify a row, each with its two values.
        primary_key: of both sides, without the universe.
        sequence_by: of both sides.
        null_safe: whether the key column k is compared with `<=>`.
        residual: whether ON also requests left v <= right v.
    """

    name: str
    mode: ChangelogMode
    symbols: tuple[Symbol, ...]
    coded: tuple[tuple[str, tuple[int | None, int | None]], ...]
    primary_key: tuple[str, ...] = ()
    sequence_by: tuple[str, ...] = ()
    null_safe: bool = False
    residual: bool = False

    @property
    def rows(self) -> int:
        """Return how many different rows a side can hold; this number itself codes the absent row."""
        return 1 << len(self.coded)


def _alphabet(changes: Sequence[tuple[Mapping[str, int | None], int]]) -> tuple[Symbol, ...]:
    return tuple(
        Symbol(side, tuple({"id": 0, "k": 1, "v": 0, "s": 0, **row}[name] for name in _COLUMNS), weight)
        for side in (0, 1)
        for row, weight in changes
    )


def _product(**values: Sequence[int | None]) -> list[dict[str, int | None]]:
    return [dict(zip(values, cells, strict=True)) for cells in itertools.product(*values.values())]


def _key_moves(keys: tuple[int | None, int | None]) -> tuple[Symbol, ...]:
    upserts = [(row, 1) for row in _product(id=(0, 1), k=keys)]
    deletes = [({"id": number, "k": None, "v": None}, -1) for number in (0, 1)]
    return _alphabet([*upserts, *deletes])


_ID, _K, _V, _S = ("id", (0, 1)), ("k", (1, 2)), ("v", (0, 1)), ("s", (0, 1))
_NULL_K: tuple[str, tuple[int | None, int | None]] = ("k", (None, 1))

WORLDS: dict[str, World] = {
    world.name: world
    for world in (
        World("key_moves", "upsert", _key_moves((1, 2)), (_ID, _K), primary_key=("id",)),
        World("null_key_moves", "upsert", _key_moves((None, 1)), (_ID, _NULL_K), primary_key=("id",)),
        World("null_safe_key_moves", "upsert", _key_moves((None, 1)), (_ID, _NULL_K), primary_key=("id",), null_safe=True),
        World(
            "values_change",
            "upsert",
            _alphabet([*((row, 1) for row in _product(k=(1, 2), v=(0, 1))), *(({"k": k, "v": None}, -1) for k in (1, 2))]),
            (_K, _V),
            primary_key=("k",),
        ),
        World(
            "sequenced_key_moves",
            "upsert",
            _alphabet(
                [
                    *((row, 1) for row in _product(id=(0, 1), k=(1, 2), s=(0, 1))),
                    *(({"id": number, "k": None, "v": None, "s": s}, -1) for number in (0, 1) for s in (0, 1)),
                ]
            ),
            (_ID, _K, _S),
            primary_key=("id",),
            sequence_by=("s",),
        ),
        World(
            "residual",
            "upsert",
            _alphabet(
                [*((row, 1) for row in _product(id=(0, 1), v=(0, 1))), *(({"id": n, "k": None, "v": None}, -1) for n in (0, 1))]
            ),
            (_ID, _V),
            primary_key=("id",),
            residual=True,
        ),
        World(
            "bags",
            "changelog",
            _alphabet([(row, weight) for weight in (1, -1) for row in _product(k=(1, 2), v=(0, 1))]),
            (_K, _V),
        ),
        World("appends", "append", _alphabet([(row, 1) for row in _product(k=(1, 2), v=(0, 1))]), (_K, _V)),
    )
}


def universe_relations(world: World) -> tuple[Relation, Relation]:
    """Return both relations of a world; the universe number u leads every key."""
    made = [
        Relation(
            name=name,
            schema=pa.schema([(f"{prefix}u", pa.int64()), *((f"{prefix}{column}", kind) for column, kind in _SCHEMA)]),
            join_key=(f"{prefix}u", f"{prefix}k"),
            primary_key=tuple(f"{prefix}{column}" for column in ("u", *world.primary_key)) if world.primary_key else (),
            sequence_by=tuple(f"{prefix}{column}" for column in world.sequence_by),
            mode=world.mode,
        )
        for name, prefix in (("left", ""), ("right", "r"))
    ]
    return made[0], made[1]


@dataclass
class _Tree:
    """Every legal sequence of a world, and which pair of live bags each of its prefixes leads to."""

    sequences: Ints  # (sequences, length): symbol numbers
    states: Ints  # (sequences, length + 1): state after that many changes
    bags: list[tuple[oracle.Bag, oracle.Bag]]  # per state: the live rows of both sides


def _oracle_side(world: World) -> oracle.Side:
    return oracle.Side(_COLUMNS, world.mode, ("k",), world.primary_key, world.sequence_by)


def _grow(world: World, length: int) -> _Tree:
    """Walk the tree of sequences, leaving out those that retract what is absent."""
    side = _oracle_side(world)
    numbers: dict[Any, int] = {}
    bags: list[tuple[oracle.Bag, oracle.Bag]] = []
    resolved: dict[tuple[int, ...], oracle.Bag | None] = {}

    def bag_of(symbols: tuple[int, ...]) -> oracle.Bag | None:
        if symbols not in resolved:
            lines = [(dict(zip(_COLUMNS, world.symbols[n].values, strict=True)), world.symbols[n].weight) for n in symbols]
            try:
                resolved[symbols] = oracle.resolve(side, lines)
            except oracle.IllegalHistoryError:
                resolved[symbols] = None
        return resolved[symbols]

    def state_of(sequence: tuple[int, ...]) -> int | None:
        halves = [tuple(n for n in sequence if world.symbols[n].side == number) for number in (0, 1)]
        left, right = bag_of(halves[0]), bag_of(halves[1])
        if left is None or right is None:
            return None
        name = tuple(frozenset((tuple(row.values()), weight) for row, weight in bag) for bag in (left, right))
        if name not in numbers:
            numbers[name] = len(bags)
            bags.append((left, right))
        return numbers[name]

    level: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((), (state_of(()) or 0,))]
    for _ in range(length):
        level = [
            ((*sequence, number), (*states, state))
            for sequence, states in level
            for number in range(len(world.symbols))
            if (state := state_of((*sequence, number))) is not None
        ]
    return _Tree(np.array([s for s, _ in level], np.int64), np.array([t for _, t in level], np.int64), bags)


def _row_code(world: World, columns: Mapping[str, Any]) -> Any:
    """Return the number of a row among the rows of its side, from values or from arrays of values."""
    return sum((columns[name] == values[1]) * (1 << bit) for bit, (name, values) in enumerate(world.coded))


def _v_at_most(left: oracle.Row, right: oracle.Row) -> bool:
    return bool(left["v"] <= right["v"])


def _expected(world: World, how: str, bags: Sequence[tuple[oracle.Bag, oracle.Bag]]) -> Ints:
    """Return a matrix of counts: state x (left row, right row)."""
    width = world.rows + 1
    counts = np.zeros((len(bags), width * width), np.int64)
    for number, (left, right) in enumerate(bags):
        joined = oracle.batch_join(
            left,
            right,
            how=how,
            left_key=("k",),
            right_key=("k",),
            null_safe=(world.null_safe,),
            residual=_v_at_most if world.residual else None,
        )
        for left_row, right_row, weight in joined:
            codes = [world.rows if row is None else int(_row_code(world, row)) for row in (left_row, right_row)]
            counts[number, codes[0] * width + codes[1]] += weight
    return counts


class _Outputs:
    """What every universe's reader holds, as counts: universe x (left row, right row)."""

    def __init__(self, world: World, how: str, universes: int) -> None:
        self.world = world
        self.existence = how in ("left_semi", "left_anti")
        self.universes = universes
        self.width = world.rows + 1
        self.counts = np.zeros((universes, self.width**2), np.int32)

    def take(self, answer: Sequence[ZSet]) -> Ints:
        """Fold one epoch; return the universes that got a row both ways or lost more than they had."""
        codes = [np.zeros(0, np.int64), *(self._codes(chunk.rows) for chunk in answer)]
        weights = [np.zeros(0, np.int64), *(chunk.weights for chunk in answer)]
        code, weight = np.concatenate(codes), np.concatenate(weights)
        size = self.counts.size
        gained = np.bincount(code[weight > 0], weight[weight > 0], size).astype(np.int32).reshape(self.counts.shape)
        lost = np.bincount(code[weight < 0], -weight[weight < 0], size).astype(np.int32).reshape(self.counts.shape)
        untidy = ((gained > 0) & (lost > 0)) | (lost > self.counts)
        self.counts += gained - lost
        wrong: Ints = np.flatnonzero(untidy.any(axis=1)).astype(np.int64)
        return wrong

    def _codes(self, rows: pa.RecordBatch) -> Ints:
        columns = [column.to_numpy(zero_copy_only=False) for column in rows.columns]
        size = len(_COLUMNS) + 1
        left, right = columns[:size], columns[size:]
        absent = np.full(rows.num_rows, self.world.rows, np.int64)
        left_code = np.where(np.isnan(left[0].astype(float)), absent, self._side_code(left))
        if self.existence:
            return np.asarray((left[0] * self.width + left_code) * self.width + absent, np.int64)
        right_code = np.where(np.isnan(right[0].astype(float)), absent, self._side_code(right))
        universe = np.where(left_code == absent, right[0], left[0]).astype(np.int64)
        return np.asarray((universe * self.width + left_code) * self.width + right_code, np.int64)

    def _side_code(self, columns: Sequence[Any]) -> Any:
        return _row_code(self.world, dict(zip(_COLUMNS, columns[1:], strict=True)))


@dataclass
class _Block:
    """Some of the universes of a world: all splits of a run of sequences."""

    world: World
    how: str
    sequences: Ints  # (sequences, length)
    states: Ints  # (sequences, length + 1)
    expected: Ints  # (states, outputs)

    def __post_init__(self) -> None:
        length = self.sequences.shape[1]
        masks = np.arange(1 << (length - 1))
        self.sequence_of = np.repeat(np.arange(len(self.sequences)), len(masks))
        self.mask_of = np.tile(masks, len(self.sequences))
        self.epoch_of = np.array(
            [[(mask & ((1 << place) - 1)).bit_count() for place in range(length)] for mask in masks.tolist()]
        )
        self.outputs = _Outputs(self.world, self.how, len(self.sequence_of))

    def run(self, operator: Operator) -> int:
        """Take every universe through its epochs; return how many comparisons were made."""
        compared = 0
        for epoch in range(self.sequences.shape[1]):
            deltas = [self.delta(side, epoch) for side in (0, 1)]
            untidy = self.outputs.take(list(operator.answer(Tick(epoch), deltas)))
            operator.absorb(Tick(epoch), deltas)
            differs = np.flatnonzero((self.outputs.counts != self.expected[self.states_after(epoch)]).any(axis=1))
            if len(untidy) or len(differs):
                raise self.complaint(epoch, np.concatenate([differs, untidy]))
            compared += len(self.sequence_of)
        return compared

    def done(self, epoch: int) -> Ints:
        """Return how many changes of each universe came in up to an epoch."""
        return np.asarray((self.epoch_of <= epoch).sum(axis=1)[self.mask_of], np.int64)

    def states_after(self, epoch: int) -> Ints:
        """Return the state that each universe is in after an epoch."""
        return np.asarray(self.states[self.sequence_of, self.done(epoch)], np.int64)

    def delta(self, side: int, epoch: int) -> ZSet:
        """Return one side's changes of one epoch for all universes; within a universe in order of arrival."""
        letters = self.world.symbols
        epochs = self.epoch_of[self.mask_of]
        sides = np.array([letter.side for letter in letters])
        symbols, universes = [], []
        for place in range(self.sequences.shape[1]):
            here = self.sequences[self.sequence_of, place]
            chosen = np.flatnonzero((epochs[:, place] == epoch) & (sides[here] == side))
            symbols.append(here[chosen])
            universes.append(chosen)
        symbol = np.concatenate(symbols)
        values = [
            pa.array([letter.values[position] for letter in letters], pa.int32()).take(pa.array(symbol))
            for position in range(len(_COLUMNS))
        ]
        columns = [pa.array(np.concatenate(universes).astype(np.int64)), *values]
        schema = universe_relations(self.world)[side].schema
        weights = np.array([letter.weight for letter in letters], np.int64)[symbol]
        return ZSet(pa.RecordBatch.from_arrays(columns, schema=schema), weights)

    def complaint(self, epoch: int, wrong: Ints) -> UniverseBrokenError:
        """Return the error that names the shortest wrong universe."""
        done = self.done(epoch)
        universe = int(wrong[np.argmin(done[wrong])])
        epochs = self.epoch_of[self.mask_of[universe]]
        letters = [self.world.symbols[number] for number in self.sequences[self.sequence_of[universe]]]
        story = [[letters[place] for place in range(done[universe]) if epochs[place] == number] for number in range(epoch + 1)]
        wanted, got = self.expected[self.states_after(epoch)[universe]], self.outputs.counts[universe]
        width = self.outputs.width
        lines = [
            f"    (left row {code // width}, right row {code % width}): expected {wanted[code]}, actual {got[code]}"
            for code in np.flatnonzero(wanted != got)
        ]
        reported = lines or ["    the sum is right, but a row is emitted both ways or retracted more often than it was there"]
        return UniverseBrokenError(
            "\n".join(
                [
                    f"{self.how} join, world {self.world.name}: {len(set(wrong.tolist()))} universes wrong after epoch {epoch}",
                    *reported,
                    *(f"    epoch {number}: {changes}" for number, changes in enumerate(story)),
                    f"    columns {_COLUMNS}; row {width - 1} is the absent row",
                ]
            )
        )


def exhaust(world: World, how: str, length: int, build: Callable[..., Operator], *, block: int = 25_000) -> int:
    """Run every universe of a world and compare after every epoch; return how many comparisons were made.

    Args:
        world: the alphabet.
        how: the join type.
        length: changes per sequence.
        build: called as `build(left, right, how, null_safe=...)`; with `residual=True` too, where the world has one.
        block: sequences that share one operator.

    Raises:
        UniverseBrokenError: an output that differs, emits a row both ways, or retracts more than was present.

    Cost: legal sequences x 2^(length - 1) universes in `length` epochs; about 2 microseconds each.
    """
    tree = _grow(world, length)
    expected = _expected(world, how, tree.bags)
    options: dict[str, Any] = {"null_safe": (False, world.null_safe), **({"residual": True} if world.residual else {})}
    compared = 0
    for begin in range(0, len(tree.sequences), block):
        part = slice(begin, begin + block)
        operator = build(*universe_relations(world), how, **options)
        compared += _Block(world, how, tree.sequences[part], tree.states[part], expected).run(operator)
    return compared
