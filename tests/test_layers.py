"""What import-linter cannot see: what an import brings in at run time."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import zset_join

ROOT = Path(__file__).resolve().parent.parent

# A package from outside, and the only packages of ours that may import it.
HOMES = {
    "deltalake": ("lookup", "sinks"),
    "confluent_kafka": ("sinks", "sources"),
    "duckdb": ("console", "inspection", "local", "lookup", "sinks", "sources", "spill", "cli"),
    "httpx": ("lookup",),
    "hypothesis": ("testing",),
    "pandas": ("zset",),
    "prompt_toolkit": ("sql",),
    "psycopg": ("lookup", "sinks", "sources"),
    "pyspark": ("spark", "cli"),
    "redis": ("lookup",),
    "starlette": ("console",),
    "uvicorn": ("console",),
    # A client of Spark Connect reads texts inside expressions; a checkpoint compares those of both kinds of session.
    "sqlglot": ("sql", "sql_expressions", "frames", "descriptions"),
}


@cache
def imported_packages(path: Path) -> set[str]:
    """Return the top-level packages that a file imports anywhere in it, type-checking blocks and functions included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    froms = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    return {name.partition(".")[0] for name in imports | froms}


def files_outside(homes: tuple[str, ...]) -> list[Path]:
    """Return the source files of the product that are in none of the given packages."""
    sources = [path for top in ("zset_join", "spill") for path in sorted((ROOT / top).rglob("*.py"))]
    return [path for path in sources if not set(homes) & {part.removesuffix(".py") for part in path.parts}]


@pytest.mark.parametrize("package", sorted(HOMES))
def test_an_outside_package_is_imported_only_at_its_home(package: str) -> None:
    strays = [path.relative_to(ROOT) for path in files_outside(HOMES[package]) if package in imported_packages(path)]

    assert strays == []


def test_importing_zset_join_brings_in_neither_spark_nor_a_database() -> None:
    code = "import sys, zset_join, zset_join.pipeline; print(sorted({'deltalake', 'duckdb', 'pandas', 'py4j', 'pyspark', 'sqlglot'} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_importing_zset_join_alone_brings_in_no_engine() -> None:
    heavy = "{'llvmlite', 'numba', 'numpy', 'pyarrow', 'yaml'}"
    code = f"import sys, zset_join; print(sorted({heavy} & set(sys.modules)), 'HashJoin' in dir(zset_join), zset_join.HashJoin.__name__)"

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[] True HashJoin"


def test_every_public_name_has_the_home_that_type_checkers_see() -> None:
    tree = ast.parse((ROOT / "zset_join" / "__init__.py").read_text(encoding="utf-8"))
    imports = [one for node in tree.body if isinstance(node, ast.If) for one in node.body if isinstance(one, ast.ImportFrom)]
    seen = {alias.name: one.module for one in imports for alias in one.names}

    assert seen == zset_join.__homes__
    assert sorted(seen) == zset_join.__all__
    with pytest.raises(AttributeError, match="'zset_join' has no attribute 'Joined'"):
        getattr(zset_join, "Joined")  # noqa: B009 - mypy would refuse it
