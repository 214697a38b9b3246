"""With hashes of 4 bits everything collides, and nothing changes: candidates are verified by value.

Also here: what is stored comes out with its own bits, although keys are compared in a normalised form.
"""

from __future__ import annotations

import struct
from itertools import product
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from property_tests.laws import LAWS, exact
from property_tests.registry import Subject, build_hash_join, build_reference_join, hash_join_live_rows, reference_live_rows
from property_tests.shapes import HOWS, KEY_SHAPES, WIDE_IDS, WIDE_KEY_SHAPES, Mode, oracle_side
from property_tests.strategies import History, make_join_spec, random_history
from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.operators.join import HashJoin
from zset_join.testing.comparison import delta_of

_MODES: dict[str, tuple[Mode, Mode]] = {
    "upserts": ("upsert", "sequenced"),
    "bags": ("changelog", "keyed_changelog"),
    "appends": ("append", "upsert"),
}
_NEGATIVE_ZERO, _ODD_NAN = -0.0, struct.unpack("<d", bytes.fromhex("010000000000f8ff"))[0]


def crowded_subject(how: str, modes: tuple[Mode, Mode], shape: str, seed: int) -> tuple[Subject, History]:
    """Return a join with 4-bit hashes and a history of 250 changes over many keys and primary keys."""
    rng = Random(seed)
    spec = make_join_spec(
        lambda choices: rng.choice(choices), how, *modes, hash_bits=(4,), key_shapes=(shape,), id_types=(WIDE_IDS,)
    )
    epochs = random_history(spec, rng, changes=250, epochs=6, identifiers=60, cold=1.0)
    changes = tuple(change for epoch in epochs for change in epoch)
    cuts = sum(1 << place for place in rng.sample(range(len(changes)), 6))
    return Subject(spec, build_hash_join, hash_join_live_rows), History(changes, cuts, 0, 3)


_CROWDS = [  # every join type with every shape; the modes take turns, and every other one waits for `make soak`
    pytest.param(
        how,
        sorted(_MODES)[turn % 3],
        shape,
        id=f"{how}-{sorted(_MODES)[turn % 3]}-{shape}",
        marks=pytest.mark.long if turn % 2 else (),
    )
    for turn, (how, shape) in enumerate(product(HOWS, sorted(WIDE_KEY_SHAPES)))
]


@pytest.mark.parametrize(("how", "modes", "shape"), _CROWDS)
def test_a_crowded_table_sums_to_the_batch_join(how: str, modes: str, shape: str) -> None:
    subject, history = crowded_subject(how, _MODES[modes], shape, seed=len(how) + len(shape))

    LAWS["incremental_is_batch"].check(subject, history)


@pytest.mark.parametrize(
    ("modes", "shape"), [(sorted(_MODES)[1 + turn % 2], shape) for turn, shape in enumerate(sorted(WIDE_KEY_SHAPES))]
)
@pytest.mark.parametrize("law", ["undo_is_complete", "snapshot_and_restore_are_invisible", "reopening_is_invisible"])
def test_a_crowded_table_obeys_the_law(law: str, modes: str, shape: str) -> None:
    subject, history = crowded_subject("full", _MODES[modes], shape, seed=7)

    LAWS[law].check(subject, history)


def test_a_crowded_history_holds_many_rows_and_pairs() -> None:
    subject, history = crowded_subject("inner", _MODES["bags"], "wide_composite", seed=1)

    assert len(history.changes) >= 250
    assert sum(subject.spec.expected(history.changes).values()) >= 50


def test_the_reference_join_obeys_the_law_on_a_crowded_history() -> None:
    subject, history = crowded_subject("full", _MODES["upserts"], "wide_composite", seed=3)

    LAWS["incremental_is_batch"].check(Subject(subject.spec, build_reference_join, reference_live_rows), history)


_STORED = [
    pytest.param(pa.float64(), _NEGATIVE_ZERO, id="-0.0"),
    pytest.param(pa.float64(), _ODD_NAN, id="a NaN with a payload"),
    pytest.param(pa.float32(), _NEGATIVE_ZERO, id="-0.0 as float32"),
    pytest.param(pa.list_(pa.float64()), [_NEGATIVE_ZERO, None], id="-0.0 in a list"),
    pytest.param(pa.struct([("f", pa.float64())]), {"f": _NEGATIVE_ZERO}, id="-0.0 in a struct"),
    pytest.param(pa.string(), "a ", id="a trailing blank"),
]


@pytest.mark.parametrize(("kind", "value"), _STORED)
def test_a_key_comes_out_with_the_bits_it_came_in_with(kind: pa.DataType, value: Any) -> None:
    schema = pa.schema([("k", kind)])
    relations = [Relation(name=name, schema=schema, join_key=("k",), mode="append") for name in ("l", "r")]
    join = HashJoin(relations[0], relations[1], "left")
    nothing = delta_of(relations[1], [])
    join.absorb(Tick(0), [delta_of(relations[0], [((value,), 1)]), nothing])

    matching = delta_of(relations[1], [((value,), 1)])
    answer = list(join.answer(Tick(1), [delta_of(relations[0], []), matching]))

    assert [exact(row) for row, weight in answer[-1].to_pylist() if weight > 0] == [exact((value, value))]


@pytest.mark.parametrize("shape", sorted(KEY_SHAPES))
def test_equal_keys_of_every_shape_meet_across_sides(shape: str) -> None:
    rng = Random(5)
    spec = make_join_spec(lambda choices: rng.choice(choices), "inner", "append", "append", key_shapes=(shape,))
    keys = {side: oracle_side(relation).join_key for side, relation in enumerate(spec.inputs)}
    values = [pool[0] for pool in spec.key_shape.pools]
    rows = [
        tuple(dict(zip(keys[side], values, strict=True)).get(name) for name in relation.schema.names)
        for side, relation in enumerate(spec.inputs)
    ]
    join = HashJoin(spec.left, spec.right, "inner", null_safe=spec.null_safe)

    answer = list(
        join.answer(Tick(0), [delta_of(relation, [(row, 1)]) for relation, row in zip(spec.inputs, rows, strict=True)])
    )

    assert [weight for chunk in answer for _, weight in chunk.to_pylist()] == [1]
