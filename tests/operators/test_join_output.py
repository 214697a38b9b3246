"""What an answer looks like: its columns and their names, its chunks, and the order of its lines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest

import zset_join.zset.row_layout
from tests.built import built
from tests.epochs import Change, Epochs, delete, delta_of, insert, net, upsert
from zset_join.core.errors import OptionError, PlanError
from zset_join.core.relation import Relation
from zset_join.core.tick import Tick
from zset_join.expressions import left, right
from zset_join.operators.join import HashJoin
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.zset import ZSet

# ---------------------------------------------------------------- columns

STAFF = Relation(
    name="staff",
    schema=pa.schema({"name": pa.string(), "team": pa.int32(), "since": pa.int64()}),
    join_key=("team",),
    mode="changelog",
)
TEAMS = Relation(
    name="teams",
    schema=pa.schema({"name": pa.string(), "team": pa.int32(), "floor": pa.int64()}),
    join_key=("team",),
    mode="changelog",
)
EVERY_JOIN = ["inner", "left", "right", "full"]


@pytest.mark.parametrize("how", EVERY_JOIN)
def test_left_columns_come_first_and_a_clashing_right_name_is_qualified(how: str) -> None:
    names = HashJoin(STAFF, TEAMS, how).output.schema.names

    assert names == ["name", "team", "since", "name_right", "team_right", "floor"]


@pytest.mark.parametrize("how", ["left_semi", "left_anti"])
def test_semi_and_anti_joins_show_the_left_columns_only(how: str) -> None:
    assert HashJoin(STAFF, TEAMS, how).output.schema.names == ["name", "team", "since"]


@pytest.mark.parametrize("how", EVERY_JOIN)
def test_with_using_the_key_comes_first_and_once(how: str) -> None:
    assert HashJoin(STAFF, TEAMS, how, using=True).output.schema.names == ["team", "name", "since", "name_right", "floor"]


@pytest.mark.parametrize("how", ["left_semi", "left_anti"])
def test_with_using_semi_and_anti_joins_put_the_key_first_as_well(how: str) -> None:
    join = Epochs(HashJoin(STAFF, TEAMS, how, using=True))

    answer = join.feed(insert(("ann", 7, 2020), ("bob", 8, 2021)), insert(("x", 7, 1)))

    assert join.operator.output.schema.names == ["team", "name", "since"]
    assert answer == [({"left_semi": (7, "ann", 2020), "left_anti": (8, "bob", 2021)}[how], +1)]


ANN, BOB, X, Y = ("ann", 7, 2020), ("bob", 8, 2021), ("x", 7, 1), ("y", 9, 2)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", {(7, "ann", 2020, "x", 1): 1}),
        ("left", {(7, "ann", 2020, "x", 1): 1, (8, "bob", 2021, None, None): 1}),
        ("right", {(7, "ann", 2020, "x", 1): 1, (9, None, None, "y", 2): 1}),
        ("full", {(7, "ann", 2020, "x", 1): 1, (8, "bob", 2021, None, None): 1, (9, None, None, "y", 2): 1}),
    ],
)
def test_the_key_of_using_is_that_of_whichever_side_is_there(how: str, expected: dict[tuple[Any, ...], int]) -> None:
    join = Epochs(HashJoin(STAFF, TEAMS, how, using=True))

    assert net(join.feed(insert(ANN, BOB), insert(X, Y))) == expected


def test_a_full_join_using_a_key_shows_null_rows_of_both_sides() -> None:
    join = Epochs(HashJoin(STAFF, TEAMS, "full", using=True))

    answer = join.feed(insert(("ann", None, 1)), insert(("x", None, 2)))

    assert answer == [((None, "ann", 1, None, None), +1), ((None, None, None, "x", 2), +1)]


def test_a_full_join_using_keys_of_two_types_shows_both_in_their_common_type() -> None:
    narrow = Relation(name="l", schema=pa.schema({"k": pa.int32(), "x": pa.string()}), join_key=("k",))
    wide = Relation(name="r", schema=pa.schema({"k": pa.int64(), "y": pa.string()}), join_key=("k",))
    join = Epochs(HashJoin(narrow, wide, "full", using=True))

    answer = join.feed(insert((1, "a")), insert((2**40, "b")))

    assert join.operator.output.schema.field("k").type == pa.int64()
    assert answer == [((1, "a", None), +1), ((2**40, None, "b"), +1)]


@pytest.mark.parametrize(("how", "key_type"), [("inner", pa.int32()), ("left", pa.int32()), ("right", pa.int64())])
def test_otherwise_the_key_of_using_has_the_type_of_the_side_it_comes_from(how: str, key_type: pa.DataType) -> None:
    narrow = Relation(name="l", schema=pa.schema({"k": pa.int32(), "x": pa.string()}), join_key=("k",))
    wide = Relation(name="r", schema=pa.schema({"k": pa.int64(), "y": pa.string()}), join_key=("k",))

    assert HashJoin(narrow, wide, how, using=True).output.schema.field("k").type == key_type


def test_a_composite_key_of_using_keeps_its_order_and_not_that_of_the_columns() -> None:
    one = Relation(name="l", schema=pa.schema({"a": pa.int64(), "x": pa.int64(), "b": pa.int64()}), join_key=("b", "a"))
    other = Relation(name="r", schema=pa.schema({"y": pa.int64(), "a": pa.int64(), "b": pa.int64()}), join_key=("b", "a"))
    join = Epochs(HashJoin(one, other, "full", using=True))

    assert join.operator.output.schema.names == ["b", "a", "x", "y"]
    assert join.feed(insert((1, 10, 2)), insert((20, 1, 2))) == [((2, 1, 10, 20), +1)]


def test_output_names_replace_all_names() -> None:
    join = Epochs(HashJoin(STAFF, TEAMS, output_names=["who", "a", "b", "c", "d", "e"]))

    assert join.operator.output.schema.names == ["who", "a", "b", "c", "d", "e"]
    assert join.feed(insert(ANN), insert(X)) == [((*ANN, *X), +1)]


@pytest.mark.parametrize(
    ("output_names", "message"),
    [(["a", "b"], "it needs 6 different names"), (["a"] * 6, "it needs 6 different names"), ([], "it needs 6 different names")],
)
def test_output_names_that_do_not_fit_are_refused(output_names: Sequence[str], message: str) -> None:
    with pytest.raises(PlanError, match=message) as caught:
        HashJoin(STAFF, TEAMS, output_names=output_names)

    assert caught.value.code == "OUTPUT_NAMES"


def test_a_name_that_clashes_even_with_the_suffix_is_refused() -> None:
    trap = Relation(
        name="l", schema=pa.schema({"team": pa.int32(), "floor": pa.int64(), "floor_right": pa.int64()}), join_key=("team",)
    )

    with pytest.raises(PlanError, match="Rename columns before the join, or pass output_names"):
        HashJoin(trap, TEAMS)


@pytest.mark.parametrize(
    ("how", "nullable"),
    [
        ("inner", [False, False, False, False]),
        ("left", [False, False, True, True]),
        ("right", [True, True, False, False]),
        ("full", [True] * 4),
    ],
)
def test_only_a_side_that_may_be_missing_is_nullable(how: str, nullable: list[bool]) -> None:
    strict = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64(), nullable=False)])
    one = Relation(name="l", schema=strict, join_key=("k",))

    fields = list(HashJoin(one, one, how).output.schema)

    assert [field.nullable for field in fields] == nullable


@pytest.mark.parametrize(
    ("how", "output_key"),
    [
        ("inner", ("id",)),
        ("left", ("id",)),
        ("left_semi", ("id",)),
        ("right", ("id", "name")),
        ("full", ("id", "name")),
    ],
)
def test_the_output_has_its_key_where_the_inputs_have_one(how: str, output_key: tuple[str, ...]) -> None:
    orders = Relation(
        name="o",
        schema=pa.schema({"id": pa.int64(), "customer": pa.string()}),
        join_key=("customer",),
        primary_key=("id",),
        mode="upsert",
    )
    customers = Relation(
        name="c", schema=pa.schema({"name": pa.string()}), join_key=("name",), primary_key=("name",), mode="upsert"
    )

    assert HashJoin(orders, customers, how).output.primary_key == output_key


def test_without_keys_on_the_inputs_the_output_has_none() -> None:
    assert HashJoin(STAFF, TEAMS).output.primary_key == ()


# ---------------------------------------------------------------- chunks

HOT_L = Relation(name="l", schema=pa.schema({"k": pa.string(), "x": pa.int64()}), join_key=("k",), mode="changelog")
HOT_R = Relation(name="r", schema=pa.schema({"k": pa.string(), "y": pa.int64()}), join_key=("k",), mode="changelog")
OLD_LEFT = [("hot", number) for number in range(9)] + [("cold", 0), ("alone", 0)]
OLD_RIGHT = [("hot", number) for number in range(7)] + [("cold", 0), ("lonely", 0)]
NEW_LEFT = delete(*OLD_LEFT[:4], ("alone", 0)) + insert(("hot", 100), ("hot", 101), ("lonely", 1))
NEW_RIGHT = delete(*OLD_RIGHT[:3], ("cold", 0)) + insert(("hot", 200), ("alone", 1))
RESIDUALS = {"key only": None, "residual": left("x") + right("y") != 7}


def answer_of(how: str, *, chunk_rows: int, residual: str = "key only", part_changes: int = 16_384) -> list[list[Change]]:
    """Return the chunks of an epoch that exchanges half of a hot key on both sides."""
    join = Epochs(
        HashJoin(
            HOT_L,
            HOT_R,
            how,
            residual=RESIDUALS[residual],
            options=OperatorOptions(chunk_rows=chunk_rows, part_changes=part_changes),
        )
    )
    join.feed(insert(*OLD_LEFT), insert(*OLD_RIGHT))
    return join.chunks(NEW_LEFT, NEW_RIGHT)


@pytest.mark.parametrize("residual", RESIDUALS)
@pytest.mark.parametrize("how", [*EVERY_JOIN, "left_semi", "left_anti"])
@pytest.mark.parametrize("chunk_rows", [1, 2, 3, 7, 64])
def test_the_size_of_chunks_does_not_change_their_sum(how: str, chunk_rows: int, residual: str) -> None:
    large = answer_of(how, chunk_rows=65_536, residual=residual)
    small = answer_of(how, chunk_rows=chunk_rows, residual=residual)

    assert sorted(chain(*small), key=repr) == sorted(chain(*large), key=repr)


@pytest.mark.parametrize("residual", RESIDUALS)
@pytest.mark.parametrize("how", [*EVERY_JOIN, "left_semi", "left_anti"])
@pytest.mark.parametrize("chunk_rows", [1, 2, 3, 7, 65_536])
def test_all_retractions_come_before_all_insertions_over_all_chunks(how: str, chunk_rows: int, residual: str) -> None:
    chunks = answer_of(how, chunk_rows=chunk_rows, residual=residual)

    signs = [weight > 0 for chunk in chunks for _, weight in chunk]

    assert signs == sorted(signs)
    assert set(signs) == {False, True}


@pytest.mark.parametrize("residual", RESIDUALS)
@pytest.mark.parametrize("how", [*EVERY_JOIN, "left_semi", "left_anti"])
@pytest.mark.parametrize("chunk_rows", [1, 2, 5, 65_536])
@pytest.mark.parametrize("part_changes", [1, 2, 4])
def test_an_epoch_worked_in_parts_emits_the_same_and_retracts_first(
    how: str, chunk_rows: int, part_changes: int, residual: str
) -> None:
    whole = list(chain(*answer_of(how, chunk_rows=65_536, residual=residual)))

    parts = list(chain(*answer_of(how, chunk_rows=chunk_rows, residual=residual, part_changes=part_changes)))

    signs = [weight > 0 for _, weight in parts]
    assert sorted(parts, key=repr) == sorted(whole, key=repr)
    assert signs == sorted(signs)


@pytest.mark.parametrize("chunk_rows", [1, 2, 3, 7])
def test_no_chunk_is_larger_than_it_may_be_and_none_is_empty(chunk_rows: int) -> None:
    sizes = [len(chunk) for chunk in answer_of("full", chunk_rows=chunk_rows)]

    assert min(sizes) >= 1
    assert max(sizes) == chunk_rows


def test_an_answer_of_many_times_the_buffer_is_whole() -> None:
    # 3,000 changes meet 40 rows: 120,000 lines through room for 4 x 100.
    join = Epochs(HashJoin(HOT_L, HOT_R, options=OperatorOptions(chunk_rows=100)))
    join.feed([], insert(*[("hot", number) for number in range(40)]))

    chunks = join.chunks(insert(*[("hot", number) for number in range(3_000)]), [])
    back = join.chunks(delete(*[("hot", number) for number in range(3_000)]), [])

    assert [len(chunk) for chunk in chunks] == [100] * 1_200
    assert len({row for chunk in chunks for row, _ in chunk}) == 120_000
    assert join.sum() == {}
    assert {weight for chunk in back for _, weight in chunk} == {-1}


@pytest.mark.parametrize("how", ["inner", "full"])
@pytest.mark.parametrize("keys", [30_000, 3])
def test_a_large_epoch_still_retracts_first_and_emits_every_line_once(how: str, keys: int) -> None:
    numbers = pa.array(range(30_000))
    text = pa.array([f"key {number % keys}" for number in range(30_000)])
    left_side = Relation(
        name="l",
        schema=pa.schema({"id": pa.int64(), "k": pa.string(), "v": pa.int64()}),
        join_key=("k",),
        primary_key=("id",),
        mode="upsert",
    )
    right_side = Relation(name="r", schema=pa.schema({"k": pa.string()}), join_key=("k",), primary_key=("k",), mode="upsert")
    join = HashJoin(left_side, right_side, how)
    parents = ZSet.of({"k": text.unique()}, schema=right_side.schema)
    old = ZSet.of({"id": numbers, "k": text, "v": pa.array([0] * 30_000)}, schema=left_side.schema)
    join.absorb(Tick(0), [old, parents])

    new = ZSet.of({"id": numbers, "k": text, "v": pa.array([1] * 30_000)}, schema=left_side.schema)
    chunks = list(join.answer(Tick(1), [new, ZSet.empty(right_side.schema)]))

    weights = [weight for chunk in chunks for weight in chunk.weights.tolist()]
    assert weights == [-1] * 30_000 + [1] * 30_000
    total = ZSet.concat(chunks, schema=join.output.schema)
    assert total.rows.column("v").to_pylist() == [0] * 30_000 + [1] * 30_000
    assert set(total.rows.column("id").to_pylist()[:30_000]) == set(range(30_000))


def test_a_chunk_whose_strings_exceed_one_arrow_array_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zset_join.zset.row_layout, "_MAX_ARROW_BYTES", 3_000)
    texts = Relation(name="t", schema=pa.schema({"k": pa.int64(), "text": pa.string()}), join_key=("k",))
    keys = Relation(name="k", schema=pa.schema({"k": pa.int64()}), join_key=("k",))
    join = Epochs(HashJoin(texts, keys))

    chunks = join.chunks(insert(*[(1, f"{number}" * 1_000) for number in range(8)]), insert((1,)))

    assert [len(chunk) for chunk in chunks] == [2, 2, 2, 2]
    assert len(join.sum()) == 8


@pytest.mark.parametrize(
    "options", [{"chunk_rows": 0}, {"chunk_rows": -5}, {"part_changes": 0}, {"hash_bits": 0}, {"hash_bits": 33}]
)
def test_options_out_of_range_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(OptionError) as caught:
        built(HashJoin, HOT_L, HOT_R, **options)  # type: ignore[arg-type]

    assert caught.value.code == "OPTION_RANGE"


# ---------------------------------------------------------------- collisions

HASHED = [((f"k{number % 40}", number), 1) for number in range(200)]


@pytest.mark.parametrize("how", [*EVERY_JOIN, "left_semi", "left_anti"])
@pytest.mark.parametrize("hash_bits", [1, 4])
def test_a_hash_is_never_trusted(how: str, hash_bits: int) -> None:
    colliding = Epochs(HashJoin(HOT_L, HOT_R, how, options=OperatorOptions(hash_bits=hash_bits)))
    spread = Epochs(HashJoin(HOT_L, HOT_R, how))
    story: list[tuple[list[Change], list[Change]]] = [
        (HASHED[:100], HASHED[50:150]),
        (HASHED[100:], delete(*[row for row, _ in HASHED[60:90]])),
        (delete(*[row for row, _ in HASHED[::2]]), HASHED[60:90]),
    ]

    assert colliding.feed_all(story) == spread.feed_all(story)


def test_primary_keys_that_collide_are_distinguished() -> None:
    keyed = Relation(name="l", schema=HOT_L.schema, join_key=("k",), primary_key=("x",), mode="upsert")
    join = Epochs(HashJoin(keyed, HOT_R, "left", options=OperatorOptions(hash_bits=1)))
    join.feed(upsert(*[("old", number) for number in range(100)]), [])

    join.feed(
        upsert(*[("new", number) for number in range(0, 100, 2)]) + delete(*[(None, number) for number in range(1, 50, 2)]), []
    )

    kept = {("old", number, None, None): 1 for number in range(51, 100, 2)}
    assert join.sum() == {**{("new", number, None, None): 1 for number in range(0, 100, 2)}, **kept}


def test_lines_of_a_delta_are_read_whatever_batch_they_are_a_slice_of() -> None:
    join = HashJoin(HOT_L, HOT_R, "left")
    whole = delta_of(HOT_L, insert(("a", 1), ("a string on the heap of the batch", 2), ("c", 3)))
    part = ZSet(whole.rows.slice(1, 1), whole.weights[1:2])

    (answer,) = join.answer(Tick(0), [part, ZSet.empty(HOT_R.schema)])

    assert answer.to_pylist() == [(("a string on the heap of the batch", 2, None, None), 1)]
