"""The check of words finds refused words where they are read, and leaves code and the terms of the field alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_words import (
    WORDS,
    Place,
    allowances,
    lowered,
    places_in_page,
    places_in_source,
    room_of,
    verdicts,
)


@pytest.mark.parametrize(
    ("source", "line", "word"),
    [
        ("x = 1\n# It asks twice.\n", 2, "ask"),
        ('"""One.\n\nIt is told at once.\n"""\n', 3, "tell"),
        ("message = 'nobody said so'\n", 1, "say"),
        ("x = 1\nmessage = f'{x} lines were handed over'\n", 2, "hand"),
        ("def takes_the_row_back():\n    pass\n", 1, "take back"),
        ("def f(told):\n    pass\n", 1, "tell"),
        ("class WhoeverReads:\n    pass\n", 1, "whoever"),
        ("untold = 1\n", 1, "tell"),
    ],
)
def test_a_refused_word_is_found_with_its_line(source: str, line: int, word: str) -> None:
    assert [(place.line, place.word) for place in places_in_source(source)] == [(line, word)]


@pytest.mark.parametrize(
    "source",
    [
        "# The left-hand side, an unknown name, a standard, what we understand, the known limits.\n",
        "# `told` is a name, and ``asks`` another.\n",
        "mode = 'tell'\n",
        "print(library.ask)\n",
        "message = f'{told[0]} rows'\n",
        "# You must know the key.\n",
    ],
)
def test_code_and_terms_of_the_field_are_left_alone(source: str) -> None:
    assert list(places_in_source(source)) == []


def test_a_page_is_read_in_its_prose_and_in_the_comments_of_its_code() -> None:
    page = "It says `said` so.\n\n```python\ntold = ask()  # speak\n```\n\nNo more of it stands.\n"
    found = [(place.line, place.word) for place in places_in_page(page)]
    assert found == [(1, "say"), (4, "speak"), (7, "stand")]


def test_a_lone_backtick_hides_nothing_of_the_next_paragraph() -> None:
    assert [place.line for place in places_in_page("a ` b\n\nit asks ` twice\n")] == [3]


def test_a_place_shows_its_line_of_text() -> None:
    assert list(places_in_source("x = 1  # done anew\n")) == [Place(1, "anew", "# done anew")]


@pytest.mark.parametrize(
    ("path", "room"),
    [
        ("zset_join/sql/parse/words.py", "zset_join/sql"),
        ("zset_join/cli.py", "zset_join"),
        ("docs/how-to/join.md", "docs/how-to"),
        ("README.md", "README.md"),
    ],
)
def test_the_room_of_a_file_is_its_first_two_folders(path: str, room: str) -> None:
    assert room_of(Path(path)) == room


def test_a_room_fails_above_its_allowance_only() -> None:
    allowed = allowances("# rooms\na 2  # until June\nb 3\n")
    assert list(verdicts({"a": 2, "b": 4, "c": 0}, allowed)) == ["b: 4 refused words, 3 allowed; see them by --show b"]


def test_a_room_that_is_not_listed_may_contain_none() -> None:
    assert len(list(verdicts({"new": 1}, {}))) == 1


def test_an_allowance_only_falls_and_leaves_the_list_at_zero() -> None:
    assert lowered({"a": 1, "b": 9, "c": 0}, {"a": 2, "b": 3, "c": 4, "gone": 1}) == {"a": 1, "b": 3}


def test_every_word_of_the_list_is_refused_in_its_first_form() -> None:
    sentences = {word: f"it does {word.replace('take back', 'take it back')} of it\n" for word in WORDS}
    found = {word: [place.word for place in places_in_page(text)] for word, text in sentences.items()}
    assert found == {word: [word] for word in WORDS}
