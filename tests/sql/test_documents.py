"""Statements of five systems: every SQL statement of the five documents, and statements that people write daily.

A folder per dialect, files of statements; statements with the same query in all dialects are once beside the folders, and run
in each dialect before its own. Every statement follows a line with its outcome: `-- +` or `-- !CODE why`.
Beside a file is its result, in `.expected`: the message of a statement, and the plan of a query.

`python -m tests.sql.test_documents` writes marks and `.expected` again: look at what changes.
"""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from zset_join.core.errors import ZsetJoinError
from zset_join.plan.tree import drawn
from zset_join.sql import Query, Session, connect

FOLDER = Path(__file__).parent / "fixtures"
FILES = sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.glob("*/*.sql"))


def read_own(name: str) -> tuple[str, list[tuple[str, str]]]:
    """Return what is before the first statement, and (what is expected, statement) in the order of the file."""
    parts = re.split(r"^-- (?=[+!])(.*)\n", (FOLDER / f"{name}.sql").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return parts[0], [(mark.strip(), text.strip()) for mark, text in zip(parts[1::2], parts[2::2], strict=True)]


def shared(name: str) -> list[tuple[str, str]]:
    """Return the statements that all dialects share with a file."""
    file = name.split("/")[1]
    return read_own(file)[1] if (FOLDER / f"{file}.sql").exists() else []


def read(name: str) -> list[tuple[str, str]]:
    """Return (what is expected, statement) of what a dialect shares with all, then of its own."""
    return [*shared(name), *read_own(name)[1]]


def outcome(session: Session, mark: str, text: str) -> tuple[str, str]:
    """Return + where a statement is planned, else ! and the code of its refusal; and what it comes to."""
    if mark.startswith("+FUNCTION"):
        session.create_temporal_table_function(*mark.split()[1:])
    try:
        made: Any = session.sql(text)
    except ZsetJoinError as error:
        return f"!{error.code}", ""
    return "+", drawn(made.view.node) if isinstance(made, Query) else str(made)


def run(name: str) -> tuple[list[str], list[str]]:
    """Return the outcomes of the statements of a file, and their plans."""
    with warnings.catch_warnings(), connect(dialect=name.split("/", maxsplit=1)[0], clock=lambda: 0) as session:
        warnings.simplefilter("ignore")
        found = [outcome(session, mark, text) for mark, text in read(name)]
    return [mark for mark, _ in found], [made for _, made in found]


def expected_text(made: list[str]) -> str:
    return "".join(f"-- {number}\n{one}\n" for number, one in enumerate(made, 1) if one)


@pytest.mark.parametrize("name", FILES)
def test_every_statement_is_planned_or_refused_as_written_and_comes_to_the_same_query(name: str) -> None:
    statements, of_all = read(name), shared(name)
    marks, made = run(name)

    expected = [("+" if mark.startswith("+") else mark.split()[0], text) for mark, text in statements]
    assert [(mark, text) for mark, (_, text) in zip(marks, statements, strict=True)] == expected
    assert expected_text(made[len(of_all) :]) == (FOLDER / f"{name}.expected").read_text(encoding="utf-8")
    assert not of_all or expected_text(made[: len(of_all)]) == (FOLDER / f"{name.split('/')[1]}.expected").read_text(
        encoding="utf-8"
    )


def rewrite() -> None:
    """Write what is found as what is expected."""
    for name in FILES:
        marks, made = run(name)
        first = len(shared(name))
        parts = [(name, marks[first:], made[first:]), *([(name.split("/")[1], marks[:first], made[:first])] if first else [])]
        for place, new_marks, new_made in parts:
            head, statements = read_own(place)
            lines = [
                f"-- {old if old.split()[0].startswith(new) else new}\n{text}\n"
                for new, (old, text) in zip(new_marks, statements, strict=True)
            ]
            (FOLDER / f"{place}.sql").write_text(head + "".join(lines), encoding="utf-8")
            (FOLDER / f"{place}.expected").write_text(expected_text(new_made), encoding="utf-8")
        sys.stdout.write(f"{name}: {sum(mark == '+' for mark in marks)} of {len(marks)} are planned\n")


if __name__ == "__main__":
    rewrite()
