"""The error reference has every code of the source, with the errors that carry it, and no other."""

from __future__ import annotations

from tools.error_tables import PAGE, carriers, codes, with_tables


def test_every_code_of_the_source_has_a_text_and_no_text_is_left_over() -> None:
    assert {code.name for code in codes()} == set(carriers())


def test_no_code_has_two_texts() -> None:
    names = [code.name for code in codes()]

    assert len(names) == len(set(names))


def test_the_page_of_errors_has_the_tables_of_the_source() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert page.count("<!-- errors: ") == len({code.section for code in codes()})
    assert with_tables(page) == page
