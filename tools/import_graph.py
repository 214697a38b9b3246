"""Which module imports which, read from the code: type-only and deferred imports count like all others.

python -m tools.import_graph      the circles of imports, one line each; exit 1 where there are any
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

__all__ = ["PACKAGES", "circles", "import_graph", "package_graph", "reached"]

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("zset_join", "spill")


@functools.cache
def import_graph(root: Path = ROOT, packages: tuple[str, ...] = PACKAGES) -> dict[str, set[str]]:
    """Return every module with the modules of the same packages that it imports, anywhere in its file."""
    files = {_name(path, root): path for package in packages for path in sorted((root / package).rglob("*.py"))}
    return {module: _imports(path, files) - {module} for module, path in files.items()}


def _name(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def _imports(path: Path, files: Mapping[str, Path]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    known = {name for name in found if name in files}
    # `from package import module` is an import of the module; the package's own file matters where a name of it is meant.
    return {
        name for name in known if files[name].name != "__init__.py" or not any(other.startswith(f"{name}.") for other in known)
    }


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the sets of two or more modules that import each other, directly or not."""
    ways = {module: reached(graph, module) for module in graph}
    tied = {tuple(sorted(one for one in found if module in ways[one])) for module, found in ways.items()}
    return sorted((list(one) for one in tied if len(one) > 1), key=lambda one: (-len(one), one))


def reached(graph: Mapping[str, Collection[str]], module: str) -> set[str]:
    """Return all modules that one imports, directly or not."""
    found, left = set[str](), [module]
    while left:
        left += (new := set(graph[left.pop()]) - found)
        found |= new
    return found


def package_graph(graph: Mapping[str, set[str]]) -> dict[str, dict[str, int]]:
    """Return rooms, `spill` and what lies right below `zset_join`, with how many imports lead from one to another."""

    def room_of(module: str) -> str:
        parts = module.split(".")
        return ".".join(parts[: 2 if parts[0] == "zset_join" else 1])

    rooms: dict[str, dict[str, int]] = {}
    for module, targets in graph.items():
        room = room_of(module)
        counts = rooms.setdefault(room, {})
        for target in targets:
            other = room_of(target)
            if other != room:
                counts[other] = counts.get(other, 0) + 1
    return rooms


def main() -> int:
    """Print the circles; return 1 where there are any."""
    graph = import_graph()
    found = circles(graph)
    for tied in found:
        print(f"a circle of imports ties {len(tied)} modules: {', '.join(tied)}")
    print(f"{len(graph)} modules, {len(found)} circles of imports")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
