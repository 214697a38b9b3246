"""The pages about SQL name everything in the code: every format, every setting, every statement."""

from __future__ import annotations

from pathlib import Path

from zset_join.sql.statements import _RUN
from zset_join.sql.tables.connectors import FORMATS
from zset_join.sql.tables.settings import SETTINGS
from zset_join.sql_expressions.dialects import DIALECTS

DOCS = Path(__file__).resolve().parents[2] / "docs"
SQL_PAGE = (DOCS / "reference" / "sql.md").read_text(encoding="utf-8")


def test_every_format_is_on_its_page() -> None:
    assert [one for one in FORMATS if f"`{one}`" not in SQL_PAGE] == []


def test_every_setting_and_dialect_is_on_the_page_of_sql() -> None:
    assert [one for one in (*SETTINGS, *DIALECTS) if f"`{one}`" not in SQL_PAGE] == []


def test_every_statement_is_on_the_page_of_sql() -> None:
    assert [word for word in _RUN if word.isalpha() and f"`{word}" not in SQL_PAGE and f" {word}" not in SQL_PAGE] == []
