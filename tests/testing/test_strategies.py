"""What the strategies draw is legal, and has what goes wrong in it."""

from __future__ import annotations

import builtins
import importlib
import math
import sys
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import find, given, settings

from property_tests.profiles import HUNT
from zset_join import OptionError, Relation
from zset_join.testing import live_rows
from zset_join.testing.strategies import changelogs, histories

SCHEMA = pa.schema({"id": pa.int64(), "k": pa.string(), "x": pa.float64(), "s": pa.int32()})
UPSERTS = Relation(name="upserts", schema=SCHEMA, join_key=("k",), primary_key=("id",), sequence_by=("s",), mode="upsert")
WEIGHTS = Relation(name="weights", schema=SCHEMA, join_key=("k",), mode="changelog")
KEYED = Relation(name="keyed", schema=SCHEMA, join_key=("k",), primary_key=("id",), mode="changelog")
APPENDS = Relation(name="appends", schema=SCHEMA, join_key=("k",))


@pytest.mark.parametrize("relation", [UPSERTS, WEIGHTS, KEYED, APPENDS], ids=lambda relation: relation.name)
def test_every_prefix_of_a_changelog_is_legal(relation: Relation) -> None:
    @settings(max_examples=50, deadline=None, derandomize=True)
    @given(changelogs(relation))
    def check(lines: list[Any]) -> None:
        for end in range(len(lines) + 1):
            assert all(weight > 0 for _, weight in live_rows(relation, lines[:end]))

    check()


@settings(max_examples=50, deadline=None, derandomize=True)
@given(changelogs(UPSERTS))
def test_keys_and_sequences_are_never_null(lines: list[Any]) -> None:
    assert all(None not in (row[0], row[3]) for row, _ in lines)


def _moves_a_key(lines: list[Any]) -> bool:
    return any(a[0] == b[0] and a[1] != b[1] and u == w == 1 for (a, u), (b, w) in pairwise(lines))


@pytest.mark.parametrize(
    ("relation", "wanted"),
    [
        (UPSERTS, _moves_a_key),
        (UPSERTS, lambda lines: any(weight < 0 and row[1] is None for row, weight in lines)),
        (UPSERTS, lambda lines: any(row[1] == "" for row, _ in lines)),
        (WEIGHTS, lambda lines: any(weight < 0 for _, weight in lines)),
        (WEIGHTS, lambda lines: any(weight > 1 for _, weight in lines)),
        (WEIGHTS, lambda lines: any(weight == 0 for _, weight in lines)),
        (WEIGHTS, lambda lines: any(row[2] is not None and math.isnan(row[2]) for row, _ in lines)),
        (APPENDS, lambda lines: any(a == b for a, b in pairwise(lines))),
        (APPENDS, lambda lines: any(row[2] == 0 and math.copysign(1, row[2]) < 0 for row, _ in lines if row[2] is not None)),
    ],
    ids=["move", "bare delete", "empty text", "retraction", "copies", "weight 0", "NaN", "duplicate", "-0.0"],
)
def test_what_goes_wrong_is_drawn(relation: Relation, wanted: Any) -> None:
    assert wanted(find(changelogs(relation), wanted, settings=settings(HUNT, max_examples=3000)))


@settings(max_examples=50, deadline=None, derandomize=True)
@given(histories(UPSERTS, APPENDS, max_epochs=3))
def test_a_history_has_one_list_of_lines_per_epoch_and_input(epochs: list[Any]) -> None:
    assert 1 <= len(epochs) <= 3
    assert {len(epoch) for epoch in epochs} == {2}


@settings(max_examples=30, deadline=None, derandomize=True)
@given(changelogs(WEIGHTS, values={"k": ["only"]}))
def test_values_of_your_own_are_the_only_ones(lines: list[Any]) -> None:
    assert {row[1] for row, _ in lines} <= {"only"}


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(OptionError, match=r"values= names \['colour'\]"):
        changelogs(WEIGHTS, values={"colour": ["red"]})


def test_a_primary_key_of_nothing_but_null_is_refused() -> None:
    with pytest.raises(OptionError, match='nothing to draw for "id"'):
        changelogs(UPSERTS, values={"id": [None]})


def test_without_hypothesis_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "hypothesis":
            raise ModuleNotFoundError(name=name)
        return honest(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "zset_join.testing.strategies")
    monkeypatch.setattr(builtins, "__import__", without)

    with pytest.raises(OptionError, match=r"pip install './path/to/the/clone\[testing\]'") as refused:
        importlib.import_module("zset_join.testing.strategies")

    assert refused.value.code == "MISSING_PACKAGE"
