"""Which module imports which, read from the code: type-only and deferred imports count like all others.

python -m tools.import_graph      the circles of imports, one line each; exit 1 where there are any
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["PACKAGES", "circles", "import_graph", "package_graph"]

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
    """Return the sets of two or more modules that import each other, directly or not, by Tarjan's algorithm."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for root in graph:
        if root in order:
            continue
        work = [(root, iter(sorted(graph[root])))]
        order[root] = low[root] = len(order)
        stack.append(root)
        while work:
            module, targets = work[-1]
            for target in targets:
                if target not in order:
                    order[target] = low[target] = len(order)
                    stack.append(target)
                    work.append((target, iter(sorted(graph[target]))))
                    break
                if target in stack:
                    low[module] = min(low[module], order[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[module])
                if low[module] == order[module]:
                    tied = stack[stack.index(module) :]
                    del stack[stack.index(module) :]
                    if len(tied) > 1:
                        found.append(sorted(tied))
    return sorted(found, key=lambda tied: (-len(tied), tied))


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
