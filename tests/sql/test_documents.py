"""Every SQL statement of the five documents: planned and made to run, or refused for the documented reason.

A file holds statements, each after a line that says what becomes of it: `-- +` or `-- !CODE why`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from zset_join.errors import ZsetJoinError
from zset_join.pipeline import Pipeline
from zset_join.sql import Query, connect

FOLDER = Path(__file__).parent / "documents"


def entries(dialect: str) -> list[tuple[str, str]]:
    """Return (what is expected, statement) in the order of the file."""
    parts = re.split(r"^-- (?=[+!])(.*)\n", (FOLDER / f"{dialect}.sql").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [(mark.strip(), text.strip()) for mark, text in zip(parts[1::2], parts[2::2], strict=True)]


def outcome(session: Any, mark: str, text: str) -> str:
    """Return + where a statement is planned, else ! and the code of its refusal."""
    if mark.startswith("+FUNCTION"):
        session.create_temporal_table_function(*mark.split()[1:])
    try:
        made = session.sql(text)
        if isinstance(made, Query) and not any(word in text for word in ("Customers", "v_first_join")):
            Pipeline(made.view).close()
    except ZsetJoinError as error:
        return f"!{error.code}"
    return "+"


@pytest.mark.filterwarnings("ignore:.*has deletes and takes the time of its versions:UserWarning")
@pytest.mark.parametrize("dialect", ["flink", "laminardb", "risingwave", "spark", "timeplus"])
def test_every_statement_of_the_documents_is_planned_or_refused_as_said(dialect: str) -> None:
    with connect(dialect=dialect) as session:
        found = [(outcome(session, mark, text), text) for mark, text in entries(dialect)]

    expected = [("+" if mark.startswith("+") else mark.split()[0], text) for mark, text in entries(dialect)]
    assert found == expected
