"""The error reference names every code that can be raised, with the errors that carry it, and no other.

A code reaches an error as the argument `code=`, as the `default_code` of its class, or through a table of codes that one
call looks up (`_CODES`, `_FAULTS`, `_REASONS`, `codes`). The source is read, not run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from zset_join.core import errors

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "errors.md"
CODE = re.compile(r"[A-Z]+(_[A-Z]+)*")
LINE = re.compile(r"\| `(?P<code>[A-Z_]+)` \| (?P<errors>[A-Za-z, ]+) \|")
TABLES_OF_CODES = frozenset({"_CODES", "_FAULTS", "_REASONS", "codes", "default_code"})


def syntax_trees() -> Iterator[ast.AST]:
    """Yield every statement and expression of the packages."""
    for package in ("spill", "zset_join"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def codes_within(tree: ast.AST) -> set[str]:
    """Return the constants below a tree that look like a code."""
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text for text in texts if CODE.fullmatch(text)}


def codes_passed() -> set[tuple[str, str]]:
    """Return every (code, error class) of a call such as `StateError(..., code="EPOCH_GAP")`."""
    calls = [node for node in syntax_trees() if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return {
        (code, call.func.id)
        for call in calls
        for argument in call.keywords
        if argument.arg == "code" and isinstance(call.func, ast.Name) and hasattr(errors, call.func.id)
        for code in codes_within(argument.value)
    }


def codes_listed() -> set[str]:
    """Return the codes of every table of codes."""
    assignments = [node for node in syntax_trees() if isinstance(node, ast.Assign)]
    names = [(assignment, target) for assignment in assignments for target in assignment.targets]
    return {
        code
        for assignment, target in names
        if isinstance(target, ast.Name) and target.id in TABLES_OF_CODES
        for code in codes_within(assignment.value)
    }


def codes_of_page() -> dict[str, list[str]]:
    """Return the codes of the page, each with the errors it names."""
    lines = map(LINE.match, PAGE.read_text(encoding="utf-8").splitlines())
    return {line["code"]: line["errors"].split(", ") for line in lines if line}


@pytest.fixture(scope="module")
def documented() -> dict[str, list[str]]:
    return codes_of_page()


def test_the_page_names_every_code_of_the_source_and_no_other(documented: dict[str, list[str]]) -> None:
    in_source = {code for code, _ in codes_passed()} | codes_listed()

    assert set(documented) == in_source


def test_the_page_names_every_error_that_carries_a_code(documented: dict[str, list[str]]) -> None:
    unnamed = {(code, error) for code, error in codes_passed() if error not in documented.get(code, [])}

    assert unnamed == set()


def test_every_error_on_the_page_exists(documented: dict[str, list[str]]) -> None:
    named = {error for carriers in documented.values() for error in carriers}

    assert named <= set(errors.__all__)


def test_no_code_is_on_the_page_twice() -> None:
    codes = [line["code"] for line in map(LINE.match, PAGE.read_text(encoding="utf-8").splitlines()) if line]

    assert len(codes) == len(set(codes))
