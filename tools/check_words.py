"""Check that docstrings, comments, messages, names and pages use the words of a technical text.

Code returns, raises, emits, evaluates and commits; it does not speak, ask or take anything in its hands. `WORDS` lists what
is refused, `FIELD_TERMS` the terms of the field that contain such a word. Looked at are the comments and strings of every
Python file (docstrings and messages are strings), the names it defines, and every page of documentation; text between
backticks is code and is omitted, and so are this file and its test, which quote the words.

A room is a package, or a folder of pages. `tools/word_allowances.txt` lists the rooms that still contain refused words,
each with the number it may contain; every other room may contain none. A number there may only fall:
`python -m tools.check_words --lower` writes the present counts where they are lower, and never raises one.

Exit code 0 when every room is within its allowance, else 1. `--show ROOM` prints every place in the rooms whose name
starts so.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.check_source_files import source_files

__all__ = ["Place", "allowances", "lowered", "main", "places_in_page", "places_in_source", "room_of", "verdicts"]

ALLOWANCES = Path("tools/word_allowances.txt")
ABOUT_WORDS = frozenset({"tools/check_words.py", "tests/tools/test_check_words.py"})

WORDS = {
    "tell": r"tell|tells|told|telling|untold",
    "say": r"say|says|said|saying",
    "ask": r"ask|asks|asked|asking",
    "speak": r"speak|speaks|spoke|spoken|speaking",
    "hand": r"hand|hands|handed|handing|handover|handovers",
    "take back": r"(?:take|takes|took|taken|taking)\b(?: \w+){0,3} back",
    "let go": r"(?:let|lets|letting)\b(?: \w+){0,2} go|let-go",
    "anew": r"anew",
    "stand": r"stand|stands|stood|standing",
    "know": r"know|knows|knew",
    "whoever": r"whoever|whosoever",
    "what comes": r"what (?:comes|came|has come|is to come|comes of|becomes of)",
}
"""The refused words, each with the pattern of its forms."""

FIELD_TERMS = (
    r"(?:left|right)[- ]hand(?:ed)?\b",
    r"(?:by|second) hand\b",
    r"hand[- ](?:written|made)\b",
    r"on (?:the one|the other|one) hand\b",
    r"standing (?:query|queries)\b",
    r"\b(?:you|we|users?|readers?|people) (?:must |should |may |already |do not |don't |need to )?know\b",
    r"\b(?:let|lets) (?:you|us|the user)\b",
)
"""Terms that contain a refused word and are right."""

_REFUSED = re.compile("|".join(rf"(?P<w{number}>\b(?:{form})\b)" for number, form in enumerate(WORDS.values())), re.IGNORECASE)
_ALLOWED = re.compile("|".join(FIELD_TERMS), re.IGNORECASE)
_CODE = re.compile(r"(`+)(?:(?!\1|\n\s*\n).)*?\1", re.DOTALL)
_FENCED = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
_COMMENT_IN_CODE = re.compile(r"(?:#|--) .*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Place:
    """One refused word: the line it is on, counted from 1, the entry of `WORDS`, and the text of the line."""

    line: int
    word: str
    text: str


def places_in_source(source: str) -> Iterator[Place]:
    """Yield the refused words of a Python file: in its comments, its strings with a space, and the names it defines."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and " " in token.string):
            text = _without_expressions(token.string) if _is_formatted(token) else token.string
            yield from _places(_without_code(text), token.start[0])
    for line, name in _defined_names(ast.parse(source)):
        yield from (Place(line, place.word, name) for place in _places(_spaced(name), line))


def places_in_page(page: str) -> Iterator[Place]:
    """Yield the refused words of a page: in its prose, and in the comments of its code blocks."""
    prose = _FENCED.sub(lambda block: _only_comments(block.group()), page)
    yield from _places(_without_code(prose), 1)


def room_of(path: Path) -> str:
    """Return the room of a file: its first two folders, or the folder of a page, or the file itself at the root."""
    parts = path.parts[:-1]
    return "/".join(parts[:2]) or path.name


def allowances(text: str) -> dict[str, int]:
    """Return how many refused words each listed room may contain; a line is a room and a number, `#` begins a comment."""
    lines = (line.split("#")[0].split() for line in text.splitlines())
    return {line[0]: int(line[1]) for line in lines if line}


def verdicts(counts: dict[str, int], allowed: dict[str, int]) -> Iterator[str]:
    """Yield one line per room that contains more refused words than it may."""
    for room, count in sorted(counts.items()):
        if count > allowed.get(room, 0):
            yield f"{room}: {count} refused words, {allowed.get(room, 0)} allowed; see them by --show {room}"


def lowered(counts: dict[str, int], allowed: dict[str, int]) -> dict[str, int]:
    """Return the allowances that remain when none is above the present count; a clean room leaves the list."""
    return {room: least for room, most in allowed.items() if (least := min(most, counts.get(room, 0)))}


def _places(text: str, first_line: int) -> Iterator[Place]:
    allowed = [term.span() for term in _ALLOWED.finditer(text)]
    lines = text.split("\n")
    for match in _REFUSED.finditer(text):
        if any(start <= match.start() and match.end() <= end for start, end in allowed):
            continue
        line = text.count("\n", 0, match.start())
        word = list(WORDS)[int(str(match.lastgroup)[1:])]
        yield Place(first_line + line, word, lines[line].strip())


def _without_code(text: str) -> str:
    return _CODE.sub(lambda code: re.sub(r"[^\n]", "~", code.group()), text)


def _only_comments(block: str) -> str:
    comments = [span.span() for span in _COMMENT_IN_CODE.finditer(block)]
    return "".join(
        letter if letter == "\n" or any(start <= at < end for start, end in comments) else "~"
        for at, letter in enumerate(block)
    )


def _is_formatted(token: tokenize.TokenInfo) -> bool:
    return "f" in re.split(r"['\"]", token.string, maxsplit=1)[0].lower()


def _without_expressions(text: str) -> str:
    return re.sub(r"\{[^{}\n]*\}", lambda code: "~" * len(code.group()), text)


def _defined_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case _:
                pass


def _spaced(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ")


def _files(root: Path) -> Iterator[tuple[Path, list[Place]]]:
    for path in source_files(root):
        if path.relative_to(root).as_posix() in ABOUT_WORDS:
            continue
        yield path.relative_to(root), list(places_in_source(path.read_text(encoding="utf-8")))
    for path in sorted([*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("benchmarks/*.md")]):
        yield path.relative_to(root), list(places_in_page(path.read_text(encoding="utf-8")))


def main(arguments: list[str] | None = None) -> int:
    """Print the counts per word and per room, then every breach; return the exit code."""
    parser = argparse.ArgumentParser(description="Check the words of docstrings, comments, messages, names and pages.")
    parser.add_argument("--show", metavar="ROOM", help="print every place in the rooms whose name starts so")
    parser.add_argument("--lower", action="store_true", help=f"write the present counts to {ALLOWANCES} where they are lower")
    options = parser.parse_args(arguments)
    root = Path.cwd()
    words: Counter[str] = Counter()
    rooms: Counter[str] = Counter()
    for path, places in _files(root):
        words.update(place.word for place in places)
        rooms[room_of(path)] += len(places)
        if options.show is not None and room_of(path).startswith(options.show):
            print("".join(f"{path}:{place.line}: [{place.word}] {place.text}\n" for place in places), end="")
    allowed = allowances((root / ALLOWANCES).read_text(encoding="utf-8"))
    if options.lower:
        allowed = lowered(rooms, allowed)
        listed = "".join(f"{room} {count}\n" for room, count in sorted(allowed.items()))
        (root / ALLOWANCES).write_text(f"# Rooms that still contain refused words, and how many: see check_words.py.\n{listed}")
    print("refused words:", ", ".join(f"{word} {words[word]}" for word in WORDS if words[word]) or "none")
    print("rooms:", ", ".join(f"{room} {count}" for room, count in rooms.most_common() if count) or "all clean")
    breaches = list(verdicts(rooms, allowed))
    print("\n".join(breaches) or "every room is within its allowance")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
