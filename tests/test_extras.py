"""Without the packages of the extras: the error names the package, and how to install it."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import spill
import zset_join
from zset_join.core.errors import MissingPackageError
from zset_join.core.extras import EXTRAS, needed_for

ROOT = Path(zset_join.__file__).parents[1]
PACKAGES = [Path(zset_join.__file__).parent, Path(spill.__file__).parent]
WHOLE = {
    "sql": {"sqlglot"},
    "sql_expressions": {"sqlglot"},
    "runners/spark": {"pyspark"},
}  # packages whose own __init__ imports all of theirs inside `needed_for`

_WITHOUT = """
import sys
blocked = sys.argv[1].split(",")

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
"""
"""Begins a program that finds none of the packages its first argument lists."""

_PLAIN_INSTALL = (
    _WITHOUT
    + """
import importlib, pkgutil, tempfile, traceback
from pathlib import Path
import pyarrow as pa
import zset_join, spill
from zset_join.core.errors import ZsetJoinError

wrong, refused = [], set()

def tried(name, act):
    try:
        act()
    except ZsetJoinError as error:
        if error.code != "MISSING_PACKAGE" or "pip install" not in str(error) or error.facts["package"] not in blocked:
            wrong.append((name, str(error)))
        refused.add(name)
    except BaseException as error:
        wrong.append((name, traceback.format_exc(limit=-3)))

for package in (zset_join, spill):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".", onerror=lambda name: None):
        tried(module.name, lambda: importlib.import_module(module.name))

from zset_join import lookup, cli
from zset_join.lookup.source import Opening
from zset_join.pipeline import Pipeline, changes
from zset_join.pipeline import FunctionSink
from zset_join.connectors import sink

class Captured:
    written = ""
    def write(self, text): self.written += text
    def flush(self): pass

def command(*words):
    def act():
        error, sys.stderr = sys.stderr, Captured()
        try:
            code = cli.main(list(words))
        finally:
            printed, sys.stderr = sys.stderr.written, error
        if code == 1 and "[MISSING_PACKAGE]" in printed and "pip install" in printed:
            raise ZsetJoinError("pip install", code="MISSING_PACKAGE", package=blocked[0])
        wrong.append((words, code, printed))
    return act

place = Path(tempfile.mkdtemp())
(place / "x.sql").write_text("SELECT 1")
(place / "program.py").write_text("from zset_join.spark import changes\\ndef view(spark): return None")
(place / "plain.py").write_text("import pyspark\\ndef view(spark): return None")
sys.path.insert(0, str(place))
schema = pa.schema({"id": pa.int64(), "v": pa.string()})
opening = Opening(key=("id",), columns=("id", "v"))
sources = {
    "http": lookup.HttpSource(name="s", schema=schema, url="http://crm/{id}"),
    "redis": lookup.RedisSource(name="s", schema=schema, key_pattern="{id}"),
    "postgres": lookup.PostgresSource(name="s", schema=schema, table="t"),
    "duckdb file": lookup.DuckDBFileSource(name="s", schema=schema, path=str(place / "f"), table="t"),
    "delta": lookup.DeltaSource(name="s", schema=schema, path=str(place)),
}
view = changes("s", schema, keys="id")
named = {
    "kafka": dict(config={"bootstrap.servers": "h:9"}, topic="t"),
    "postgres": dict(conninfo="host=h", table="t"),
    "duckdb": dict(path=str(place / "o.duckdb"), table="t"),
    "delta": dict(path=str(place / "o")),
}
pipeline = Pipeline(view, keep_inputs=True)
pipeline.step({"s": [{"id": 1, "v": "a"}]})
entries = {
    **{f"lookup {name}": (lambda source=source: source.open(opening).load()) for name, source in sources.items()},
    "verify": pipeline.verify,
    "form": lambda: Pipeline(view, outputs=[FunctionSink(print, form="upsert")]),
    "cold store": lambda: importlib.import_module("zset_join.core.options").HotBudget.of("hybrid", max_hot_keys=1,
    cold_store="duckdb"), **{
        f"sink {name}": (lambda name=name, given=given: Pipeline(view, place / f"p_{name}", outputs=[sink(name, **given)]))
        for name, given in named.items()
    },
    "run": command("run", str(place / "x.sql"), "--once"),
    "check": command("check", str(place / "x.sql")),
    "explain": command("explain", str(place / "x.sql")),
    "shell": command("sql"),
    "state": command("state", str(place)),
    "rescale": command("rescale", str(place), "2"),
    "verify program": command("verify", "program:view"),
    "verify plain": command("verify", "plain:view"),
}
for name, act in entries.items():
    tried(name, act)
wrong += [("not refused", name) for name in entries if name not in refused]
for one in wrong:
    print(*one)
sys.exit(bool(wrong))
"""
)


def test_on_a_plain_install_every_module_and_verb_names_the_package_and_its_pip_line() -> None:
    words = [sys.executable, "-W", "ignore", "-c", _PLAIN_INSTALL, ",".join(EXTRAS)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


_SQL_FILES = (
    _WITHOUT
    + """
import tempfile
from pathlib import Path
from zset_join import cli
place = Path(tempfile.mkdtemp())
kafka = "'connector'='kafka', 'topic'='t', 'properties.bootstrap.servers'='h:9', 'format'='json'"
both = "CREATE TABLE s (id INT PRIMARY KEY); CREATE TABLE o (id INT PRIMARY KEY) WITH"
tables = {
    "a kafka source": f"CREATE TABLE s (id INT) WITH ({kafka}); CREATE TABLE o (id INT)",
    "a kafka sink": f"{both} ({kafka})",
    "a postgres sink": f"{both} ('connector'='jdbc', 'url'='jdbc:postgresql://h:9/d', 'table-name'='t')",
    "a duckdb sink": f"{both} ('connector'='duckdb', 'path'='{place}/o', 'table-name'='t')",
}
for name, text in tables.items():
    print("==", name, file=sys.stderr)
    rows = "; INSERT INTO s VALUES (1)" if "sink" in name else ""
    (place / "x.sql").write_text(f"{text}; INSERT INTO o SELECT id FROM s{rows}")
    print("==", cli.main(["run", str(place / "x.sql"), "--once"]), file=sys.stderr)
"""
)


def test_sql_that_reads_or_writes_outside_names_the_package_and_its_pip_line() -> None:
    words = [sys.executable, "-W", "ignore", "-c", _SQL_FILES, ",".join(EXTRAS.keys() - {"sqlglot"})]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    answers = done.stderr.split("== a ")[1:]
    assert len(answers) == 4, done.stderr
    for answer in answers:
        assert "[MISSING_PACKAGE]" in answer, answer
        assert "pip install" in answer, answer
        assert answer.endswith("== 1\n"), answer


def bare_imports(path: Path) -> Iterator[str]:
    """Yield the imports of packages of extras that are outside `needed_for` and `TYPE_CHECKING`."""
    top = path.relative_to(path.parents[len(path.relative_to(ROOT).parts) - 1]).parts
    folders = ("/".join(top[1:last]) for last in (2, 3) if len(top) > last)
    allowed = {name for folder in folders for name in WHOLE.get(folder, set())}
    text = path.read_text()
    waiting: list[ast.AST] = (
        [ast.parse(text)] if any(f"import {name}" in text or f"from {name}" in text for name in EXTRAS) else []
    )
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.With) and "needed_for" in ast.unparse(node.items[0]):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        bare = {name.partition(".")[0] for name in names} & set(EXTRAS) - allowed
        yield from (f"{'/'.join(top)}:{getattr(node, 'lineno', 0)} {name}" for name in bare)
        waiting += ast.iter_child_nodes(node)


def test_every_import_of_an_extra_reports_its_absence() -> None:
    found = [one for package in PACKAGES for path in package.rglob("*.py") for one in bare_imports(path)]
    assert not found


def test_the_table_of_extras_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for package, extra in EXTRAS.items():
        assert any(line.replace("-", "_").startswith(package) for line in project[extra]), (package, extra)


def test_a_package_whose_import_fails_otherwise_is_named_with_the_reason() -> None:
    with (
        pytest.raises(MissingPackageError, match=r"needs the package psycopg, which cannot be imported \(no pq wrapper\)"),
        needed_for("a lookup", "psycopg"),
    ):
        raise ImportError("no pq wrapper")


def test_an_import_that_is_none_of_ours_stays_as_it_is() -> None:
    with pytest.raises(ModuleNotFoundError, match="of_a_user") as missing, needed_for("a program"):
        import of_a_user  # noqa: F401
    assert not isinstance(missing.value, MissingPackageError)
