"""Check the sizes of this repository against `tools/size_limits.toml`, whose numbers only fall.

- A room has at most its lines and files. A limit that is more than 1 % too high is a breach; `--lower` writes today's.
- A limit rises only by an entry under `raised` with its reason; `lines` and `files` may not exceed those last committed.
- A product file has 100 lines or more, `__init__.py` apart; a shorter one is listed.
- A function of the product takes at most eight parameters, kernels included; a longer one is listed with its number.
- A verb (`verify`, `evolve`, ...) has one implementation; today's others are listed. A body of at most four lines forwards.

A list may only shrink: an entry that is no longer needed is a breach. Exit code 0 when all holds, else 1 with one line
per breach.
Run it with `python -m tools.size_limits`; `--table` prints lines and files per room.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.check_source_files import source_files

__all__ = ["ROOMS", "breaches", "main", "sizes", "written"]

LIMITS = Path("tools/size_limits.toml")
ROOMS = {
    "product": (("zset_join", "spill"), ".py"),
    "tests": (("tests",), ".py"),
    "property_tests": (("property_tests",), ".py"),
    "faults": (("faults",), ".py"),
    "benchmarks": (("benchmarks",), ".py"),
    "tools": (("tools",), ".py"),
    "docs": (("docs/tutorial", "docs/how-to", "docs/explanation", "docs/reference"), ".md"),
    "decisions": (("docs/decisions",), ".md"),
}
SHORTEST_LINES = 100
MOST_PARAMETERS = 8
LONGEST_FORWARD = 4
VERBS = ("verify", "explain_row", "diff", "evolve", "undo", "rescale", "backup")
SLACK = 100
HEAD = """\
# Lines and files per room, read by `python -m tools.size_limits`. Every number and every list may only fall.
# A limit rises by an entry of its own, with the reason:
#     [[rooms.product.raised]]
#     lines = 2500
#     files = 4
#     reason = "window functions over changing rows"
"""


def _files(root: Path, room: str) -> Iterator[Path]:
    folders, suffix = ROOMS[room]
    for folder in folders:
        if suffix == ".py":
            yield from source_files(root / folder)
        else:
            yield from sorted((root / folder).rglob(f"*{suffix}"))


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def sizes(root: Path) -> dict[str, tuple[int, int]]:
    """Return the lines and the files of every room."""
    counted = {room: [_lines(path) for path in _files(root, room)] for room in ROOMS}
    return {room: (sum(lines), len(lines)) for room, lines in counted.items()}


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    open_ = [("", node) for node in tree.body]
    while open_:
        prefix, node = open_.pop()
        if isinstance(node, ast.ClassDef):
            open_ += [(f"{prefix}{node.name}.", child) for child in node.body]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    taken = function.args
    return sum(one.arg not in ("self", "cls") for one in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs))


def _body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body and body[-1].end_lineno else 0


def _measured(root: Path) -> dict[str, Any]:
    short, long_lists, verbs = [], {}, {verb: [] for verb in VERBS}
    for path in _files(root, "product"):
        name = path.relative_to(root).as_posix()
        if path.name != "__init__.py" and _lines(path) < SHORTEST_LINES:
            short.append(name)
        for qualified, function in _functions(ast.parse(path.read_text(encoding="utf-8"))):
            if _parameters(function) > MOST_PARAMETERS:
                long_lists[f"{name} {qualified}"] = _parameters(function)
            if function.name in verbs and _body_lines(function) > LONGEST_FORWARD:
                verbs[function.name].append(f"{name} {qualified}")
    return {
        "short_files": sorted(short),
        "parameters": dict(sorted(long_lists.items())),
        "verbs": {k: sorted(v) for k, v in verbs.items()},
    }


def written(limits: dict[str, Any]) -> str:
    """Return the text of the file of limits."""
    parts = [HEAD]
    for room, limit in limits["rooms"].items():
        parts.append(f"\n[rooms.{room}]\nlines = {limit['lines']}\nfiles = {limit['files']}\n")
        for one in limit.get("raised", []):
            facts = f"lines = {one.get('lines', 0)}\nfiles = {one.get('files', 0)}\nreason = {json.dumps(one['reason'])}\n"
            parts.append(f"\n[[rooms.{room}.raised]]\n{facts}")
    listed = "".join(f"    {json.dumps(name)},\n" for name in limits["short_files"]["names"])
    parts.append(
        f"\n# Shorter than {SHORTEST_LINES} lines, until their rooms are merged.\n[short_files]\nnames = [\n{listed}]\n"
    )
    rows = "".join(f"{json.dumps(name)} = {count}\n" for name, count in limits["parameters"].items())
    parts.append(
        f"\n# More than {MOST_PARAMETERS} parameters: words of a user, and what is not yet a value.\n[parameters]\n{rows}"
    )
    rows = "".join(
        f"{verb} = [\n" + "".join(f"    {json.dumps(name)},\n" for name in names) + "]\n"
        for verb, names in limits["verbs"].items()
    )
    parts.append(f"\n# Implementations of a verb; one of each is to stay.\n[verbs]\n{rows}")
    return "".join(parts)


def _room_limit(limit: dict[str, Any], what: str) -> int:
    return int(limit[what]) + sum(int(one.get(what, 0)) for one in limit.get("raised", []))


def breaches(limits: dict[str, Any], counted: dict[str, tuple[int, int]], measured: dict[str, Any]) -> Iterator[str]:
    """Yield what exceeds its limit, and which limits and entries are no longer needed."""
    for room, found in counted.items():
        for what, number in zip(("lines", "files"), found, strict=True):
            allowed = _room_limit(limits["rooms"][room], what)
            if number > allowed:
                yield f"{room} has {number:,} {what}, {allowed:,} are allowed"
            elif allowed - number > SLACK + number // SLACK:
                yield f"{room} may have {allowed:,} {what} and has {number:,}: lower the limit (--lower)"
    yield from _listed("is shorter than 100 lines", set(measured["short_files"]), set(limits["short_files"]["names"]))
    yield from _listed("takes more than 8 parameters", set(measured["parameters"]), set(limits["parameters"]))
    for name, count in measured["parameters"].items():
        if count > limits["parameters"].get(name, count):
            yield f"{name} takes {count} parameters, {limits['parameters'][name]} are allowed"
    for verb, names in measured["verbs"].items():
        yield from _listed(f"is one more implementation of {verb}", set(names), set(limits["verbs"][verb]))


def _listed(what: str, found: set[str], allowed: set[str]) -> Iterator[str]:
    yield from (f"{name} {what}" for name in sorted(found - allowed))
    yield from (f"{name} is no longer needed in {LIMITS} (--lower)" for name in sorted(allowed - found))


def _rises(limits: dict[str, Any], earlier: dict[str, Any]) -> Iterator[str]:
    for room, limit in limits["rooms"].items():
        before = earlier["rooms"].get(room, limit)
        yield from (
            f"{room}: {what} rose from {before[what]:,} to {limit[what]:,}; a rise is an entry under `raised` with its reason"
            for what in ("lines", "files")
            if limit[what] > before[what]
        )


def _committed(root: Path) -> list[dict[str, Any]]:
    """Return the limits of the last two commits that changed them; none outside of a clone."""
    if not (root / ".git").exists():
        return []
    git = ["git", "-C", str(root)]
    log = subprocess.run(
        [*git, "log", "-2", "--format=%H", "--", LIMITS.as_posix()], capture_output=True, text=True, check=True
    )
    shown = [
        subprocess.run([*git, "show", f"{commit}:{LIMITS.as_posix()}"], capture_output=True, text=True, check=True).stdout
        for commit in log.stdout.split()
    ]
    return [tomllib.loads(text) for text in shown]


def _lowered(limits: dict[str, Any], counted: dict[str, tuple[int, int]], measured: dict[str, Any]) -> dict[str, Any]:
    rooms = {}
    for room, (lines, files) in counted.items():
        limit = limits["rooms"][room]
        above = {what: _room_limit(limit, what) - int(limit[what]) for what in ("lines", "files")}
        rooms[room] = {
            **limit,
            "lines": min(limit["lines"], lines - above["lines"]),
            "files": min(limit["files"], files - above["files"]),
        }
    kept = {
        name: min(count, measured["parameters"][name])
        for name, count in limits["parameters"].items()
        if name in measured["parameters"]
    }
    short = [name for name in limits["short_files"]["names"] if name in measured["short_files"]]
    verbs = {verb: [name for name in names if name in measured["verbs"][verb]] for verb, names in limits["verbs"].items()}
    return {"rooms": rooms, "short_files": {"names": short}, "parameters": kept, "verbs": verbs}


def main(arguments: list[str]) -> int:
    """Print every breach, or the table, and return the exit code."""
    root = Path.cwd()
    counted, measured = sizes(root), _measured(root)
    if "--table" in arguments:
        print("\n".join(f"{room:16}{lines:>9,} lines {files:>5,} files" for room, (lines, files) in counted.items()))
        return 0
    limits = tomllib.loads((root / LIMITS).read_text(encoding="utf-8"))
    if "--lower" in arguments:
        limits = _lowered(limits, counted, measured)
        (root / LIMITS).write_text(written(limits), encoding="utf-8")
    found = [*breaches(limits, counted, measured), *(rise for earlier in _committed(root) for rise in _rises(limits, earlier))]
    print("\n".join(found) or "every size is within its limit")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
