"""Show that fewer tests find the same bugs: draw small changes of product files, and run the tests of each, pushed and all.

    python -m tools.mutate_tests COPY [--count 100] [--first 0] [--seed 38] [--without-laws | --only-laws] [--into FILE]

COPY is a checkout that nobody else uses (`git worktree add COPY`): its files are changed and put back. Run are the tests that
mirror the file of a mutant, the tests of its operator, and the laws of the operators that use it. The pushed cases are a part
of all cases, so that only a mutant that survives them is tried by the cases that carry the mark `long`. A line per mutant goes
to FILE: what became of it, file, line, change, seconds. With `--without-laws` a mutant that the tests of its file do not find
is left to a later run. With `--only-laws` the laws judge alone: a white-box test whose mutants all die so may go.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Mutant", "main", "mutants_of"]

JOINS = "join- or routed- or route-"
GROUPS = "aggregate- or preaggregated- or distinct-"
LAWS_OF: dict[str, str] = {
    "zset_join/state/join": JOINS,
    "zset_join/state/rows": JOINS,
    "zset_join/state/cold": JOINS,
    "zset_join/operators/join.py": JOINS,
    "zset_join/operators/upsert_table.py": f"{JOINS} or latest-",
    "zset_join/operators/aggregate.py": GROUPS,
    "zset_join/aggregates": GROUPS,
}
"""Files, to the operators whose laws see them: part of the names of test_laws.py."""
TESTS_OF: dict[str, tuple[str, ...]] = {
    "zset_join/state/join": (
        "tests/operators/test_join.py",
        "tests/operators/test_join_output.py",
        "tests/operators/test_join_streamed_rows.py",
    ),
    "zset_join/state/join/append_buffer.py": ("tests/operators/test_join_buffer.py", "property_tests/test_append_buffer.py"),
    "zset_join/operators/deduplicate.py": ("property_tests/test_timed.py",),
    "zset_join/operators/timed_join.py": ("property_tests/test_timed.py",),
    "zset_join/state/rows": ("tests/state/rows/test_side.py", "tests/state/rows/test_region.py"),
    "zset_join/state/cold": ("tests/operators/test_join_hybrid.py", "tests/state/cold/test_cold_side.py"),
    "zset_join/checkpoint": (
        "tests/checkpoint/test_checkpoint.py",
        "tests/checkpoint/test_bucket.py",
        "faults/test_mutants.py",
    ),
    "zset_join/changelog": ("tests/changelog/test_encoding.py", "tests/changelog/test_decoding.py"),
    "zset_join/sinks": ("tests/sinks/test_sink.py",),
}
"""Files, to the tests beside those that mirror them."""
ROOMS = tuple(
    f"zset_join/{room}"
    for room in ("state/join", "state/rows", "state/cold", "checkpoint", "changelog", "sinks", "operators", "aggregates")
)
SWAPS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"), ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.And: ("and", "or"),
    ast.Or: ("or", "and"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"),
}  # fmt: skip
LONGEST = 600
_PUSHED, _LONG = (f"{mark} and not spark and not services" for mark in ("not long", "long"))


@dataclass(frozen=True)
class Mutant:
    """One change of one file, as a span of bytes and the present content instead."""

    path: str
    line: int
    begin: int
    end: int
    text: str
    change: str


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Return every change that is tried of a file: operators, conditions, whole numbers and calls that are omitted.

    What describes (annotations, texts, raised errors, `__all__`) is not changed.
    """
    raw = source.encode()
    starts = [0]
    for text in raw.splitlines(keepends=True):
        starts.append(starts[-1] + len(text))

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or node.col_offset)
        return starts[node.lineno - 1] + node.col_offset, end

    def between(one: ast.expr, other: ast.expr, swap: tuple[str, str]) -> Iterator[Mutant]:
        begin, end = span(one)[1], span(other)[0]
        place = raw[begin:end].find(swap[0].encode())
        if place >= 0:
            begin += place
            yield Mutant(path, one.end_lineno or 0, begin, begin + len(swap[0]), swap[1], f"{swap[0]} becomes {swap[1]}")

    def of(node: ast.AST) -> Iterator[Mutant]:
        if isinstance(node, ast.Compare):
            for one, operation, other in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                yield from between(one, other, SWAPS[type(operation)])
        elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
            yield from between(node.left, node.right, SWAPS[type(node.op)])
        elif isinstance(node, ast.BoolOp):
            yield from between(node.values[0], node.values[1], SWAPS[type(node.op)])
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            begin, end = span(node.test)
            inverted = f"(not ({raw[begin:end].decode()}))"
            yield Mutant(path, node.test.lineno, begin, end, inverted, "a condition is inverted")
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield Mutant(path, node.lineno, *span(node), str(node.value + 1), f"{node.value} becomes {node.value + 1}")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield Mutant(path, node.lineno, *span(node), "None", "a call is left out")

    def walk(node: ast.AST) -> Iterator[Mutant]:
        if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom):
            return
        yield from of(node)
        for name, child in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list"):
                for one in child if isinstance(child, list) else [child]:
                    if isinstance(one, ast.AST):
                        yield from walk(one)

    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    found = {one for function in functions for one in walk(function)}
    return sorted(found, key=lambda one: (one.begin, one.end, one.text))


def longest_prefix(path: str, table: dict[str, str] | dict[str, tuple[str, ...]]) -> str:
    """Return the longest key that a path begins with, or nothing."""
    return max((key for key in table if path.startswith(key)), key=len, default="")


def tests_of(copy: Path, path: str) -> list[str]:
    """Return the test files of a product file that are present."""
    mirror = Path(path.replace("zset_join/", "tests/", 1))
    files = (str(mirror.with_name(f"test_{mirror.name}")), *TESTS_OF.get(longest_prefix(path, TESTS_OF), ()))
    return [name for name in dict.fromkeys(files) if (copy / name).exists()]


def passes(copy: Path, arguments: list[str], *, profile: str = "push") -> bool:
    """Return whether tests pass; tests that take too long have found something, and no test at all has not."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout=120", *arguments]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "HYPOTHESIS_PROFILE": profile}
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=LONGEST, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode in (0, 5)


def fate(copy: Path, mutant: Mutant, *, judges: str) -> str:
    """Return how a mutant ends that is in the copy, by `tests`, `laws` or `both`."""
    laws = LAWS_OF.get(longest_prefix(mutant.path, LAWS_OF), "")
    if judges == "laws":
        if not laws:
            return "no law of its own"
        found = not passes(copy, ["property_tests/test_laws.py", "-k", laws, "-m", _PUSHED], profile="scout")
        return "killed by laws alone" if found else "survives laws"
    stages = [
        ("tests", tests_of(copy, mutant.path)),
        *([("laws", ["property_tests/test_laws.py", "-k", laws])] if laws else []),
    ]
    if judges == "tests":
        return "passes tests" if passes(copy, [*stages[0][1], "-m", _PUSHED]) else "killed by pushed tests"
    for which, mark in (("pushed", _PUSHED), ("long", _LONG)):
        for stage, arguments in stages:
            if not passes(copy, [*arguments, "-m", mark]):
                return f"killed by {which} {stage}"
    return "survives all"


def drawn(copy: Path, seed: int) -> list[Mutant]:
    """Return the mutants of all files that have tests of their own, kernels apart, in random order."""
    files = [str(path.relative_to(copy)) for room in ROOMS for path in sorted((copy / room).rglob("*.py"))]
    every: list[Mutant] = []
    for path in files:
        text = (copy / path).read_text(encoding="utf-8")
        if "kernel(" not in text and tests_of(copy, path):
            every += mutants_of(path, text)
    random.Random(seed).shuffle(every)  # noqa: S311 - a draw, no secret
    return every


def main() -> None:
    """Try mutants, one after the other, and write what became of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("copy", type=Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=38)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--without-laws", dest="judges", action="store_const", const="tests", default="both")
    kinds.add_argument("--only-laws", dest="judges", action="store_const", const="laws")
    parser.add_argument("--into", type=Path, default=Path("benchmarks/results/test_mutants.txt"))
    given = parser.parse_args()
    copy = given.copy.resolve()
    every = drawn(copy, given.seed)
    sys.stdout.write(f"{len(every)} mutants can be drawn\n")
    for number, mutant in enumerate(every[given.first : given.first + given.count], start=given.first):
        place = copy / mutant.path
        whole, begun = place.read_bytes(), time.monotonic()
        place.write_bytes(whole[: mutant.begin] + mutant.text.encode() + whole[mutant.end :])
        try:
            outcome = fate(copy, mutant, judges=given.judges)
        finally:
            place.write_bytes(whole)
        seconds = time.monotonic() - begun
        line = f"{number:3}  {outcome:22}  {mutant.path}:{mutant.line}  {mutant.change}  {seconds:.0f} s\n"
        sys.stdout.write(line)
        sys.stdout.flush()
        with given.into.open("a", encoding="utf-8") as results:
            results.write(line)


if __name__ == "__main__":
    main()
