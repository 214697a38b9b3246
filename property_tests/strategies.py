"""What Hypothesis draws: joins, legal histories, their splits into epochs, and bad lines to plant in them.

A history is drawn as *genes*: tuples of small integers. `decode` reads them one after the other against a model of the live
rows and turns each into a change that is legal at that point (a retraction picks a row that is present). So every prefix of a
history is legal, hence every split into epochs is; shrinking a gene towards 0 gives a plainer change; and the soak can make
millions of histories from a random generator with the same decoder.

A split is an integer read as bits: bit i set means that an epoch ends after change i.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Protocol, TypeVar

from hypothesis import strategies as st

from property_tests.profiles import profile_name
from property_tests.shapes import (
    AGGREGATE_PAYLOADS,
    F_POOL,
    HOWS,
    ID_POOLS,
    KEY_SHAPES,
    MARKER,
    MEDIA,
    PAYLOADS,
    RESIDUALS,
    X_POOLS,
    Change,
    JoinSpec,
    Knobs,
    LatestSpec,
    Mode,
    PrimaryKeyShape,
    RouteSpec,
    Spec,
    Values,
    key_shape_named,
    relation_of,
)
from zset_join.core.relation import Relation
from zset_join.testing.strategies import LiveRows

__all__ = [
    "Epoch",
    "Gene",
    "History",
    "Pick",
    "decode",
    "drawn",
    "histories",
    "join_specs",
    "latest_specs",
    "make_join_spec",
    "make_knobs",
    "make_route_spec",
    "plant_bad_lines",
    "random_history",
    "route_specs",
    "split",
]

Gene = tuple[int, int, int, int, int, int]
Epoch = tuple[Change, ...]
Line = tuple[int, int]  # (epoch, position of the change within the epoch)
_T = TypeVar("_T")


class Pick(Protocol):
    """Choose one of some values: a Hypothesis draw, or a random generator's choice."""

    def __call__(self, choices: Sequence[_T], /) -> _T:
        """Return one of them."""
        ...


_SPLITS = st.one_of(st.sampled_from((0, -1)), st.integers(0, 2**24 - 1))
_BUDGETS = (("max_hot_bytes", 0), ("max_hot_keys", 1), ("max_hot_keys", 5))
_PRIMARY_KEYS: tuple[PrimaryKeyShape, ...] = ("id", "key_and_id", "id", "two_ids", "key")


@dataclass(frozen=True, slots=True)
class History:
    """A legal run of changes, two ways to cut it into epochs, a moment for a crash, and genes for bad lines."""

    changes: tuple[Change, ...]
    cuts: int
    other_cuts: int
    moment: int
    bad_genes: tuple[Gene, ...] = ()

    def epochs(self) -> list[Epoch]:
        """Return the history cut the first way."""
        return split(self.changes, self.cuts)

    def other_epochs(self) -> list[Epoch]:
        """Return the history cut the other way."""
        return split(self.changes, self.other_cuts)

    def __repr__(self) -> str:
        lines = [f"    epoch {number}: {list(epoch)}" for number, epoch in enumerate(self.epochs())]
        return "\n".join([f"history (cuts={self.cuts}, other_cuts={self.other_cuts}, moment={self.moment})", *lines])


def split(changes: Sequence[Change], cuts: int) -> list[Epoch]:
    """Cut a run of changes into epochs; always at least one, none of them empty unless the run is.

    >>> changes = tuple(Change(0, (number,), 1) for number in range(3))
    >>> [len(epoch) for epoch in split(changes, 0b001)], len(split(changes, -1)), len(split((), 5))
    ([1, 2], 3, 1)
    """
    epochs: list[Epoch] = []
    start = 0
    for position in range(len(changes) - 1):
        if cuts >> position & 1:
            epochs.append(tuple(changes[start : position + 1]))
            start = position + 1
    epochs.append(tuple(changes[start:]))
    return epochs


class _LiveModel:
    """The live rows of one side while genes are decoded: just enough to stay legal."""

    def __init__(self, spec: Spec, side: int) -> None:
        self.side = side
        self.relation: Relation = spec.inputs[side]
        self.names = self.relation.schema.names
        self.shape = spec.key_shape
        self.payload_pool = AGGREGATE_PAYLOADS[spec.payload][1]
        self.id_pool = ID_POOLS[spec.id_type][1]
        self.live = LiveRows(self.relation)

    def row(self, gene: Gene, index: int) -> Values:
        """Read a row from a gene; primary-key columns never come out NULL."""
        _, _, identifier, key, payload, order = gene
        cells: dict[str, Any] = {"id": self.id_pool[identifier % len(self.id_pool)], "id2": identifier % 2}
        kind, rest = key % 4, key // 4
        for place, (name, pool) in enumerate(zip(self.relation.join_key, self.shape.pools, strict=True)):
            if kind == 2:  # one row in four has a NULL in its key, so that NULLs meet
                cells[name] = None if rest % 3 == 0 or place == rest % len(self.shape.pools) else pool[0]
            else:
                cells[name] = pool[rest % len(pool) if kind % 2 else 0]  # one in four takes the first key, so that keys meet
                rest //= len(pool)
            if cells[name] is None and name in self.relation.primary_key:
                cells[name] = pool[0]
        cells["x"] = X_POOLS[self.side][payload % 4]
        cells["f"] = F_POOL[payload // 4 % len(F_POOL)]
        cells["v"] = self.payload_pool[payload // 20 % len(self.payload_pool)]
        cells["s"], cells["s2"] = index // 4 + order // 2, order % 2
        return tuple(cells[name] for name in self.names)

    def decode(self, gene: Gene, index: int) -> list[Change]:
        """Turn a gene into the change or changes it represents."""
        _, operation, pick, copies, _, bits = gene
        lines = self.live.change(self.row(gene, index), operation=operation, pick=pick, copies=copies, bits=bits)
        return [Change(self.side, row, weight) for row, weight in lines]


def decode(spec: Spec, genes: Sequence[Gene]) -> tuple[Change, ...]:
    """Return the legal history that the genes represent."""
    models = [_LiveModel(spec, side) for side in range(len(spec.inputs))]
    changes: list[Change] = []
    for index, gene in enumerate(genes):
        changes += models[gene[0] % len(models)].decode(gene, index)
    return tuple(changes)


_GENES: st.SearchStrategy[Gene] = st.tuples(
    st.integers(0, 1), st.integers(0, 15), st.integers(0, 8), st.integers(0, 39), st.integers(0, 149), st.integers(0, 5)
)
_BAD_GENES: st.SearchStrategy[list[Gene]] = st.lists(_GENES, min_size=1, max_size=3)
_NO_GENES: st.SearchStrategy[list[Gene]] = st.just([])


@cache
def _runs_of_genes(max_changes: int) -> st.SearchStrategy[list[Gene]]:
    """Return the strategy of lists of which every length is as likely."""
    of_size = [st.lists(_GENES, min_size=size, max_size=size) for size in range(max_changes + 1)]
    return st.integers(0, max_changes).flatmap(of_size.__getitem__)


def histories(spec: Spec, *, max_changes: int = 10, with_bad_lines: bool = False) -> st.SearchStrategy[History]:
    """Draw legal histories of a spec."""
    return st.tuples(
        _runs_of_genes(max_changes), _SPLITS, _SPLITS, _below(max_changes + 1), _BAD_GENES if with_bad_lines else _NO_GENES
    ).map(lambda parts: History(decode(spec, parts[0]), *parts[1:4], tuple(parts[4])))


def random_history(spec: Spec, rng: Random, *, changes: int, epochs: int, identifiers: int, cold: float = 14.0) -> list[Epoch]:
    """Make a legal history from a random generator, cut at random into so many epochs.

    Args:
        spec: what the history is for.
        rng: the source of randomness.
        changes: about how many changes.
        epochs: how many epochs.
        identifiers: how many values the column `id` takes.
        cold: how often a row takes any key, for one row with the hot key and one with a NULL in its key.
    """
    kinds = rng.choices((0, 2, 3), (1, 1, cold), k=changes)
    genes: list[Gene] = [
        (
            rng.randrange(2),
            rng.randrange(16),
            rng.randrange(identifiers),
            4 * rng.randrange(1 << 18) + kind,
            rng.randrange(150),
            rng.randrange(6),
        )
        for kind in kinds
    ]
    made = decode(spec, genes)
    ends = sorted(rng.randrange(len(made) + 1) for _ in range(epochs - 1))
    return [made[begin:end] for begin, end in zip([0, *ends], [*ends, len(made)], strict=True)]


def make_join_spec(
    pick: Pick,
    how: str,
    left_mode: Mode,
    right_mode: Mode,
    *,
    key_shapes: Sequence[str] = tuple(KEY_SHAPES),
    id_types: Sequence[str] = ("float64", "int64", "string"),
    hash_bits: Sequence[int] = (32, 4, 2),
    chunk_rows: Sequence[int] = (65536, 1, 3),
    hides: Sequence[bool] = (False,),
    residuals: Sequence[str] = ("", "x_less", "", "f_at_most", ""),
) -> JoinSpec:
    """Return a join of the given type and modes; everything else is picked.

    `hides` are the choices whether an input hides the columns that order its changes, the second of them or both.
    """
    if how not in HOWS:
        raise ValueError(f"how={how!r}; use one of {HOWS}")
    shape = key_shape_named(pick(key_shapes))
    payload = pick(sorted(PAYLOADS))
    id_type = pick(id_types)
    using = shape.is_symmetric and pick((False, True))
    left, right = (
        relation_of(
            side,
            mode,
            shape.name,
            primary_key=pick(_PRIMARY_KEYS),
            payload=payload,
            id_type=id_type,
            key_prefix="r" if side and not using else "k",
        )
        for side, mode in enumerate((left_mode, right_mode))
    )
    return JoinSpec(
        how=how,
        left=left,
        right=right,
        null_safe=tuple(pick((False, True)) for _ in shape.pools),
        key_shape=shape,
        payload=payload,
        id_type=id_type,
        using=using,
        residual=RESIDUALS.get(pick(residuals)),
        hidden=(_hidden_columns(pick, left, hides), _hidden_columns(pick, right, hides)),
        knobs=dataclasses.replace(make_knobs(pick, hash_bits, chunk_rows), budget=pick((None, None, None, *_BUDGETS))),
    )


def _hidden_columns(pick: Pick, relation: Relation, hides: Sequence[bool]) -> tuple[str, ...]:
    if not relation.sequence_by or not pick(hides):
        return ()
    return pick((relation.sequence_by, relation.sequence_by[-1:]))


def make_route_spec(pick: Pick, mode: Mode) -> RouteSpec:
    """Return a route of a relation in upsert mode whose join key lies outside its primary key."""
    shape = KEY_SHAPES[pick(tuple(KEY_SHAPES))]
    payload, id_type = pick(sorted(PAYLOADS)), pick(("float64", "int64", "string"))
    primary_keys: tuple[PrimaryKeyShape, ...] = ("id", "two_ids")
    relation = relation_of(0, mode, shape.name, primary_key=pick(primary_keys), payload=payload, id_type=id_type)
    knobs = dataclasses.replace(make_knobs(pick), budget=pick((None, None, None, *_BUDGETS)))
    return RouteSpec(relation, shape, payload=payload, id_type=id_type, knobs=knobs)


def make_knobs(pick: Pick, hash_bits: Sequence[int] = (32, 4, 2), chunk_rows: Sequence[int] = (65536, 1, 3)) -> Knobs:
    """Return knobs; everything is picked."""
    media = MEDIA if profile_name() == "nightly" else MEDIA[:1]
    return Knobs(
        hash_bits=pick(hash_bits),
        hash_seed=pick((0, 1, 2**32 - 1, 2**31 + 5, 77)),
        chunk_rows=pick(chunk_rows),
        part_changes=pick((16384, 1, 2)),
        ticking=pick((False, True)),
        offset=pick((0, 0, 9)),
        one_delta=pick((False, True)),
        compacting=pick((False, False, True)),
        cold_store=pick(media) if len(media) > 1 else media[0],
    )


def join_specs(how: str, left_mode: Mode, right_mode: Mode, **narrowed: Any) -> st.SearchStrategy[JoinSpec]:
    """Draw joins of the given type and modes; `narrowed` goes to `make_join_spec`."""
    return drawn(lambda pick: make_join_spec(pick, how, left_mode, right_mode, **narrowed))


def route_specs(mode: Mode) -> st.SearchStrategy[RouteSpec]:
    """Draw routes."""
    return drawn(lambda pick: make_route_spec(pick, mode))


def latest_specs(mode: Mode) -> st.SearchStrategy[LatestSpec]:
    """Draw tables of latest rows."""
    return drawn(lambda pick: LatestSpec(**vars(make_route_spec(pick, mode))))


@st.composite
def drawn(draw: st.DrawFn, make: Callable[[Pick], Any]) -> Any:
    """Draw what a function makes of its picks."""
    return make(lambda choices: choices[draw(_below(len(choices)))])


@cache
def _below(count: int) -> st.SearchStrategy[int]:
    """Return one strategy per count: making and validating another for each pick takes longer than the draw."""
    return st.integers(0, count - 1)


def plant_bad_lines(spec: Spec, epochs: Sequence[Epoch], genes: Sequence[Gene]) -> tuple[list[Epoch], set[Line]]:
    """Return the epochs with lines planted that break their relation's contract, and where those lines are.

    A NULL in the primary key, a NULL in the sequence, a retraction from an append relation, a retraction of a row that was
    never inserted (its x is `MARKER`).
    """
    planted = [[(change, False) for change in epoch] for epoch in epochs]
    for index, gene in enumerate(genes):
        epoch = planted[gene[2] % len(planted)]
        epoch.insert(gene[3] % (len(epoch) + 1), (_bad_change(spec, gene, index), True))
    bad = {(number, position) for number, epoch in enumerate(planted) for position, (_, is_bad) in enumerate(epoch) if is_bad}
    return [tuple(change for change, _ in epoch) for epoch in planted], bad


def _bad_change(spec: Spec, gene: Gene, index: int) -> Change:
    side = gene[0] % len(spec.inputs)
    relation = spec.inputs[side]
    row = dict(zip(relation.schema.names, _LiveModel(spec, side).row(gene, index), strict=True))
    weight = -1
    if relation.mode == "upsert":
        columns = relation.primary_key + relation.sequence_by
        row[columns[gene[4] % len(columns)]] = None
        weight = 1 if gene[1] < 8 else -1
    else:
        row["x"] = MARKER
        for name, pool in zip(relation.join_key, spec.key_shape.pools, strict=True):
            if row[name] is None and relation.mode == "changelog":
                row[name] = pool[0]  # a row whose key can never match need not be stored, so its retraction cannot be checked
    return Change(side, tuple(row.values()), weight)
