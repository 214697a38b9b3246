"""The oracle agrees with the cases that the semantics page works by hand."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from zset_join.testing import reference
from zset_join.testing import reference as oracle
from zset_join.testing.reference import Bag, Counts, Side, batch_join, identity, lay_out, resolve, row_identity

_NAN = float("nan")
_KEYED = Side(columns=("id", "k", "v"), mode="upsert", join_key=("k",), primary_key=("id",))
_SEQUENCED = Side(columns=("id", "v", "s"), mode="upsert", primary_key=("id",), sequence_by=("s",))
_BAG = Side(columns=("k", "v"), mode="changelog", join_key=("k",))


def rows(columns: Sequence[str], *lines: Sequence[Any]) -> list[tuple[Mapping[str, Any], int]]:
    """Return `(row, weight)` pairs; the last value of each line is the weight."""
    return [(dict(zip(columns, line[:-1], strict=True)), line[-1]) for line in lines]


def joined(left: Bag, right: Bag, how: str, *, null_safe: bool = False, residual: oracle.Residual | None = None) -> Counts:
    """Join two bags of (k, v) rows on k."""
    lines = batch_join(left, right, how=how, left_key=("k",), right_key=("k",), null_safe=(null_safe,), residual=residual)
    return lay_out(lines, how=how, left=_BAG, right=_BAG)


def values(bag: Bag) -> list[tuple[Any, ...]]:
    """Return the rows of a bag as tuples, each with its weight last."""
    return [(*row.values(), weight) for row, weight in bag]


# ---------------------------------------------------------------- the join formula (section 1)


def test_a_pair_whose_both_rows_are_deleted_in_one_epoch_is_gone_once() -> None:
    before = joined(rows(("k", "v"), (1, "a", 1)), rows(("k", "v"), (1, "x", 1)), "inner")

    after = joined([], [], "inner")

    assert before == {(1, "a", 1, "x"): 1}
    assert after == {}


# ---------------------------------------------------------------- upserts (section 2)


def test_the_worked_case_of_two_by_three_rows_changes_in_three_of_them() -> None:
    columns = ("k", "v")
    left = rows(columns, ("k1", "kk1", 1), ("k1", "kk2", 1), ("k1", "kk3", 1))
    right_side = Side(columns=("kk", "k", "v"), mode="upsert", join_key=("k",), primary_key=("kk",))
    changes = rows(right_side.columns, ("kk4", "k1", "v4", 1), ("kk5", "k1", "v5", 1), ("kk5", "k1", "v55", 1))
    before_bag, after_bag = resolve(right_side, changes[:2]), resolve(right_side, changes)

    before, after = (
        lay_out(
            batch_join(left, bag, how="inner", left_key=("k",), right_key=("k",), null_safe=(False,)),
            how="inner",
            left=_BAG,
            right=right_side,
        )
        for bag in (before_bag, after_bag)
    )

    assert len(before) == len(after) == 6
    assert before.keys() - after.keys() == {("k1", left_value, "kk5", "k1", "v5") for left_value in ("kk1", "kk2", "kk3")}
    assert after.keys() - before.keys() == {("k1", left_value, "kk5", "k1", "v55") for left_value in ("kk1", "kk2", "kk3")}


def test_an_upsert_replaces_and_a_delete_needs_no_payload() -> None:
    changes = rows(_KEYED.columns, (1, "A", "old", 1), (1, "B", "new", 1), (2, "A", "x", 1), (2, None, None, -1))

    assert values(resolve(_KEYED, changes)) == [(1, "B", "new", 1)]


def test_a_delete_of_an_unknown_primary_key_is_nothing() -> None:
    assert resolve(_KEYED, rows(_KEYED.columns, (9, None, None, -1))) == []


# ---------------------------------------------------------------- order of changes (section 3)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param([(1, "new", 5, 1), (1, "late", 3, 1)], [(1, "new", 5, 1)], id="a late upsert is ignored"),
        pytest.param([(1, "first", 5, 1), (1, "second", 5, 1)], [(1, "second", 5, 1)], id="a tie goes to the later arrival"),
        pytest.param([(1, "x", 5, 1), (1, None, 5, -1)], [], id="a delete with the same sequence wins when it comes later"),
        pytest.param(
            [(1, None, 5, -1), (1, "x", 5, 1)], [(1, "x", 5, 1)], id="an upsert with a delete's sequence overtakes it"
        ),
        pytest.param([(1, "x", 3, 1), (1, None, 5, -1), (1, "late", 4, 1)], [], id="a tombstone holds off an older upsert"),
        pytest.param([(1, None, 5, -1), (1, "late", 4, 1)], [], id="a tombstone of an unknown key holds off an older upsert"),
        pytest.param([(1, "x", 5, 1), (1, None, 4, -1)], [(1, "x", 5, 1)], id="a late delete is ignored"),
    ],
)
def test_the_larger_sequence_wins(changes: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> None:
    assert values(resolve(_SEQUENCED, rows(_SEQUENCED.columns, *changes))) == expected


# ---------------------------------------------------------------- outer joins (section 4)

_Deltas = list[tuple[str, str, int]]
_LEFT_TABLE: list[tuple[str, _Deltas, dict[tuple[str, str | None], int]]] = [
    ("+l", [("L", "l", 1)], {("l", None): 1}),
    ("+r1", [("R", "r1", 1)], {("l", "r1"): 1}),
    ("+r2", [("R", "r2", 1)], {("l", "r1"): 1, ("l", "r2"): 1}),
    ("-r1", [("R", "r1", -1)], {("l", "r2"): 1}),
    ("r2 becomes r2'", [("R", "r2", -1), ("R", "r2'", 1)], {("l", "r2'"): 1}),
    ("-r2'", [("R", "r2'", -1)], {("l", None): 1}),
    ("r3 in and out", [("R", "r3", 1), ("R", "r3", -1)], {("l", None): 1}),
]


@pytest.mark.parametrize("upto", range(1, len(_LEFT_TABLE) + 1), ids=[line[0] for line in _LEFT_TABLE])
def test_the_left_join_table_holds_line_by_line(upto: int) -> None:
    changes = [change for _, deltas, _ in _LEFT_TABLE[:upto] for change in deltas]
    left = resolve(_BAG, [({"k": 1, "v": value}, weight) for side, value, weight in changes if side == "L"])
    right = resolve(_BAG, [({"k": 1, "v": value}, weight) for side, value, weight in changes if side == "R"])

    shown = {(row[1], row[3]): weight for row, weight in joined(left, right, "left").items()}

    assert shown == _LEFT_TABLE[upto - 1][2]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", {(1, "a", 1, "x"): 1}),
        ("left", {(1, "a", 1, "x"): 1, (2, "b", None, None): 1}),
        ("right", {(1, "a", 1, "x"): 1, (None, None, 3, "y"): 1}),
        ("full", {(1, "a", 1, "x"): 1, (2, "b", None, None): 1, (None, None, 3, "y"): 1}),
        ("left_semi", {(1, "a"): 1}),
        ("left_anti", {(2, "b"): 1}),
    ],
)
def test_the_six_join_types_differ_as_they_should(how: str, expected: Counts) -> None:
    left = rows(("k", "v"), (1, "a", 1), (2, "b", 1))
    right = rows(("k", "v"), (1, "x", 1), (3, "y", 1))

    assert joined(left, right, how) == expected


@pytest.mark.parametrize(
    ("how", "expected"),
    [("inner", {}), ("left", {(1, 5, None, None): 1}), ("left_semi", {}), ("left_anti", {(1, 5): 1})],
)
def test_a_pair_that_fails_the_residual_is_no_match_at_all(how: str, expected: Counts) -> None:
    left, right = rows(("k", "v"), (1, 5, 1)), rows(("k", "v"), (1, 4, 1))

    assert joined(left, right, how, residual=lambda one, other: bool(one["v"] < other["v"])) == expected


def test_a_residual_that_is_null_is_no_match() -> None:
    assert joined(rows(("k", "v"), (1, 5, 1)), rows(("k", "v"), (1, 4, 1)), "inner", residual=lambda _one, _other: None) == {}


# ---------------------------------------------------------------- NULL keys and equality (section 5)


@pytest.mark.parametrize(
    ("how", "null_safe", "expected"),
    [
        ("inner", False, {}),
        ("inner", True, {(None, "a", None, "x"): 1}),
        ("left", False, {(None, "a", None, None): 1}),
        ("full", False, {(None, "a", None, None): 1, (None, None, None, "x"): 1}),
        ("left_semi", False, {}),
        ("left_semi", True, {(None, "a"): 1}),
        ("left_anti", False, {(None, "a"): 1}),
        ("left_anti", True, {}),
    ],
)
def test_a_null_key_matches_only_when_null_safe(how: str, null_safe: bool, expected: Counts) -> None:
    left, right = rows(("k", "v"), (None, "a", 1)), rows(("k", "v"), (None, "x", 1))

    assert joined(left, right, how, null_safe=null_safe) == expected


def test_one_null_under_equals_kills_a_composite_key() -> None:
    left, right = rows(("k", "v"), (1, None, 1)), rows(("k", "v"), (1, None, 1))

    lines = batch_join(left, right, how="inner", left_key=("k", "v"), right_key=("k", "v"), null_safe=(False, False))

    assert lines == []


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (0.0, -0.0, True),
        (_NAN, -_NAN, True),
        (_NAN, 0.0, False),
        ("a", "a ", False),
        ("", None, False),
        (Decimal("1.0"), Decimal("1.00"), True),
        ({"a": None, "b": 0.0}, {"a": None, "b": -0.0}, True),
        ({"a": None}, None, False),
        ([None], [None], True),
        ([_NAN], [_NAN], True),
        ([], None, False),
        (b"\x00", b"\x00\x00", False),
    ],
)
def test_identity_is_spark_equality(one: Any, other: Any, same: bool) -> None:
    assert (identity(one) == identity(other)) is same


# ---------------------------------------------------------------- bags (section 6)


def test_two_copies_meet_three_copies_six_times() -> None:
    left = resolve(_BAG, rows(_BAG.columns, (1, "a", 1), (1, "a", 1)))
    right = resolve(_BAG, rows(_BAG.columns, (1, "x", 3)))

    assert joined(left, right, "inner") == {(1, "a", 1, "x"): 6}


def test_a_retraction_finds_its_row_by_value_whatever_its_bits() -> None:
    side = Side(columns=("f",), mode="changelog")

    assert resolve(side, [({"f": -0.0}, 1), ({"f": _NAN}, 1), ({"f": 0.0}, -1), ({"f": -_NAN}, -1)]) == []


def test_a_retraction_of_an_absent_row_is_an_illegal_history() -> None:
    with pytest.raises(oracle.IllegalHistoryError):
        resolve(_BAG, rows(_BAG.columns, (1, "a", -1)))


def test_a_retraction_from_an_append_relation_is_an_illegal_history() -> None:
    with pytest.raises(oracle.IllegalHistoryError):
        resolve(Side(columns=("k",), mode="append"), [({"k": 1}, 1), ({"k": 1}, -1)])


# ---------------------------------------------------------------- layout


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", {(1, "a", "x"): 1}),
        ("left", {(1, "a", "x"): 1, (2, "b", None): 1}),
        ("right", {(1, "a", "x"): 1, (3, None, "y"): 1}),
        ("full", {(1, "a", "x"): 1, (2, "b", None): 1, (3, None, "y"): 1}),
    ],
)
def test_using_shows_the_key_once_and_first(how: str, expected: Counts) -> None:
    side = Side(columns=("v", "k"), mode="changelog", join_key=("k",))
    left, right = rows(("v", "k"), ("a", 1, 1), ("b", 2, 1)), rows(("v", "k"), ("x", 1, 1), ("y", 3, 1))

    lines = batch_join(left, right, how=how, left_key=("k",), right_key=("k",), null_safe=(False,))

    assert lay_out(lines, how=how, left=side, right=side, using=True) == expected


def test_a_row_identity_is_made_of_its_values() -> None:
    assert row_identity((1, -0.0, None)) == (1, 0.0, None)


def test_the_oracle_imports_neither_arrow_nor_numpy_nor_the_engine() -> None:
    tree = ast.parse(Path(reference.__file__).read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]

    imported = {name.name for node in nodes for name in node.names if isinstance(node, ast.Import)}
    imported |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}

    assert imported == {"__future__", "collections.abc", "dataclasses", "enum", "typing"}
