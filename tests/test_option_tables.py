"""The page of options holds the tables of the modules that check them."""

from __future__ import annotations

from tools.option_tables import PAGE, with_tables


def test_the_page_of_options_has_the_tables_of_the_source() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert page.count("<!-- options: ") == 2
    assert with_tables(page) == page
