from __future__ import annotations

from zset_join.sql.places import Place, near


def test_a_place_shows_its_line_with_a_caret_under_it() -> None:
    place = Place("SELECT a,\n  b FROM t", 12)

    assert (place.line, place.column) == (2, 3)
    assert str(place).splitlines()[1:] == ["    b FROM t", "    ^"]


def test_a_long_line_is_cut_around_the_place() -> None:
    shown = str(Place("x" * 1000, 500)).splitlines()

    assert len(shown[1]) < 200
    assert shown[2].index("^") < 200


def test_near_names_what_is_alike_and_else_what_there_is() -> None:
    assert near("ordrs", ["orders", "customers"]) == " Did you mean orders?"
    assert near("zzz", ["a", "b"]) == " There is a, b."
    assert near("zzz", []) == ""
