"""Write the error reference, docs/reference/errors.md, from `tools/error_codes.txt` and the source.

    python -m tools.error_tables

The text file has the words of each code; the errors that carry it are read from the source, which is parsed, not run. A code
reaches an error as the argument `code=`, as the `default_code` of its class, or through a table of codes of rejected rows
(`_CODES`, `_FAULTS`, `_REASONS`, `codes`). A test compares the page with both.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tools.import_graph import ROOT
from zset_join.core import errors

__all__ = ["PAGE", "TEXTS", "Code", "carriers", "codes", "with_tables"]

PAGE = ROOT / "docs" / "reference" / "errors.md"
TEXTS = ROOT / "tools" / "error_codes.txt"
_TABLES_OF_CODES = frozenset({"_CODES", "_FAULTS", "_REASONS", "codes"})
_CODE = re.compile(r"[A-Z]+(_[A-Z]+)*")
_MARK = re.compile(r"(?P<begin><!-- errors: (?P<section>.+?) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)
_HEAD = "| code | error | what is wrong | what to do |\n|---|---|---|---|\n"


@dataclass(frozen=True)
class Code:
    """One line of the text file: a code, its section, what is wrong and what to do."""

    section: str
    name: str
    wrong: str
    cure: str


def codes() -> list[Code]:
    """Return the lines of the text file, in order."""
    found, section = list[Code](), ""
    for line in TEXTS.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line and not line.startswith("#"):
            name, wrong, cure = line.split(" | ")
            found.append(Code(section, name, wrong, cure))
    return found


@cache
def carriers() -> dict[str, set[str]]:
    """Return, by code, the names of the error classes that carry it in the source."""
    found: dict[str, set[str]] = {}
    for node in _syntax_trees():
        for code, error in _codes_of(node):
            found.setdefault(code, set()).add(error)
    return found


def with_tables(page: str) -> str:
    """Return the text of the page with the current tables."""
    errors_of = carriers()
    lines: dict[str, str] = {}
    for code in codes():
        classes = ", ".join(sorted(errors_of.get(code.name, ())))
        lines[code.section] = lines.get(code.section, "") + f"| `{code.name}` | {classes} | {code.wrong} | {code.cure} |\n"
    return _MARK.sub(lambda found: f"{found['begin']}{_HEAD}{lines[found['section']]}{found['end']}", page)


def _syntax_trees() -> Iterator[ast.AST]:
    for package in ("spill", "zset_join"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def _codes_of(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield every (code, error class) that a node introduces."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and hasattr(errors, node.func.id):
        for argument in node.keywords:
            if argument.arg == "code":
                yield from ((code, node.func.id) for code in _codes_within(argument.value))
    elif isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id in _TABLES_OF_CODES for target in node.targets
    ):
        yield from ((code, "BadInputError") for code in _codes_within(node.value))
    elif isinstance(node, ast.ClassDef) and hasattr(errors, node.name):
        for statement in node.body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "default_code":
                yield from ((code, node.name) for code in _codes_within(statement.value))


def _codes_within(tree: ast.AST) -> set[str]:
    """Return the constants below a tree that look like a code."""
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text for text in texts if _CODE.fullmatch(text)}


def main() -> None:
    """Write the tables."""
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
