"""Every bad row has a code, and every code explains what is wrong, what was expected and what to do."""

from __future__ import annotations

import pytest

from tests.epochs import Change, delete, insert, upsert
from tests.state.side_anatomy import absorb, changes_of, make_side
from zset_join.core.errors import BadInputError, WeightOverflowError
from zset_join.core.relation import ChangelogMode
from zset_join.core.tick import Tick
from zset_join.state.rows.rejected_rows import REJECTION_SCHEMA, describe_rejection, no_rejections, rejection_table

MOST = 2**63 - 1

CASES = [
    pytest.param(
        "append", False, delete((1, "a", "x")), "RETRACTION_IN_APPEND", "declare keys or a weight column", id="append"
    ),
    pytest.param(
        "upsert", False, upsert((None, "a", "x")), "NULL_PRIMARY_KEY", "a primary key identifies a row", id="primary key"
    ),
    pytest.param("upsert", True, upsert((1, "a", "x", None)), "NULL_SEQUENCE", "every change needs its place", id="sequence"),
    pytest.param(
        "changelog", False, delete((1, "a", "x")), "ABSENT_ROW", "may not retract what it has not inserted", id="absent"
    ),
    pytest.param(
        "changelog",
        False,
        insert((1, "a", "x"), copies=MOST) + insert((1, "a", "x")),
        "WEIGHT_OVERFLOW",
        r"past 2\^63 - 1",
        id="weight",
    ),
]


@pytest.mark.parametrize(("mode", "sequenced", "changes", "code", "expected"), CASES)
def test_a_bad_row_is_reported_with_its_code_and_what_was_expected(
    mode: ChangelogMode, sequenced: bool, changes: list[Change], code: str, expected: str
) -> None:
    side = make_side(mode, sequenced=sequenced)
    prepared, _ = changes_of(side, changes)

    error = describe_rejection([side.relation], [prepared], Tick(17))

    assert isinstance(error, BadInputError)
    assert isinstance(error, WeightOverflowError) is (code == "WEIGHT_OVERFLOW")
    assert (error.code, error.facts["epoch"], error.facts["relation"], error.facts["rejected_rows"]) == (code, 17, "rows", 1)
    with pytest.raises(BadInputError, match=rf'relation "rows", epoch 17: .*{expected}.*on_bad_input="quarantine"'):
        raise error


@pytest.mark.parametrize(("mode", "sequenced", "changes", "code", "expected"), CASES)
def test_the_table_has_one_line_per_bad_row(
    mode: ChangelogMode, sequenced: bool, changes: list[Change], code: str, expected: str
) -> None:
    side = make_side(mode, sequenced=sequenced)
    prepared, _ = changes_of(side, changes)

    (line,) = rejection_table([side.relation], [prepared]).to_pylist()

    assert (line["input"], line["row"], line["weight"], line["code"]) == ("rows", len(changes) - 1, changes[-1][1], code)
    assert len(line["reason"]) > 20


def test_a_row_is_named_by_its_primary_key_or_by_all_of_it() -> None:
    keyed, bag = make_side(sequenced=True), make_side("changelog")
    by_key, _ = changes_of(keyed, upsert((42, "a", "x", None)))
    by_row, _ = changes_of(bag, delete((42, "a", "x")))

    assert describe_rejection([keyed.relation], [by_key], Tick(0)).facts["key"] == (42,)
    assert describe_rejection([bag.relation], [by_row], Tick(0)).facts["key"] == (42, "a", "x")


def test_rows_are_in_the_order_of_inputs_and_of_arrival() -> None:
    one, other = make_side("append"), make_side("changelog")
    first, _ = changes_of(one, insert((1, "a", "x")) + delete((2, "a", "x")))
    second, _ = changes_of(other, delete((3, "a", "x")) + insert((4, "a", "x")) + delete((5, "a", "x")))

    table = rejection_table([one.relation, other.relation], [first, second])

    assert table.column("row").to_pylist() == [1, 0, 2]
    assert table.column("code").to_pylist() == ["RETRACTION_IN_APPEND", "ABSENT_ROW", "ABSENT_ROW"]


def test_a_side_without_changes_has_no_rejections() -> None:
    side = make_side("append")
    good, _ = changes_of(side, insert((1, "a", "x")))

    assert rejection_table([side.relation, side.relation], [None, good]).num_rows == 0


def test_no_rejections_have_the_columns_of_some() -> None:
    assert no_rejections().schema == REJECTION_SCHEMA
    assert REJECTION_SCHEMA.names == ["input", "row", "weight", "code", "reason"]


def test_rows_without_effect_are_not_rejected() -> None:
    side = make_side(sequenced=True)
    absorb(side, upsert((1, "a", "x", 10)))

    prepared, _ = changes_of(side, upsert((1, "old", "x", 5)) + delete((9, None, None, 1)) + [((None, None, None, None), 0)])

    assert (prepared.rejected, rejection_table([side.relation], [prepared]).num_rows) == (0, 0)
