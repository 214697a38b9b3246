"""Pages in a DuckDB file: a closed box, whatever its stores are called."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from property_tests.cold_histories import OWNER, as_bag, as_codes, as_rows
from spill.duckdb_pages import DuckDBColdStore, DuckDBFile, DuckDBPages, identifier, quoted, quoted_text
from zset_join.core.errors import OptionError, StateError
from zset_join.storage.operations import Operation, observe

MEMORY = 64 << 20

HOSTILE_NAMES = [
    'a "quoted" name',
    '"; DROP TABLE run_0; --',
    "it's",
    "orders",
    "Orders",
    "ORDERS",
    "bücher und 注文 🛒",
    "x" * 1000,
    "x" * 999 + "y",
    " ",
    "",
    "main",
    "select",
    "a.b",
    "line\nbreak",
    "a\x00b",
    "\ud800 lone surrogate",
]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[DuckDBFile]:
    opened = DuckDBFile(tmp_path / "cold.duckdb", memory_bytes=MEMORY)
    yield opened
    opened.close()


def test_stores_of_hostile_names_share_a_file_and_keep_apart(tmp_path: Path, file: DuckDBFile) -> None:
    stores = {
        name: DuckDBColdStore(tmp_path / f"{number}", file=file, name=name, owner=OWNER)
        for number, name in enumerate(HOSTILE_NAMES)
    }

    for number, store in enumerate(stores.values()):
        store.put(as_rows([(7, 0, f"{number}".encode())]))

    found = [as_bag([store.fetch(as_codes([7]))]) for store in stores.values()]
    assert found == [Counter([(7, 0, f"{number}".encode())]) for number in range(len(HOSTILE_NAMES))]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_an_identifier_is_one_schema_whatever_the_name(name: str) -> None:
    connection = duckdb.connect(":memory:")

    connection.execute(f"CREATE SCHEMA {identifier(name)}")

    made = connection.sql("SELECT schema_name FROM duckdb_schemas() WHERE NOT internal AND schema_name <> 'main'").fetchall()
    assert len(made) == 1
    connection.close()


def test_a_quote_in_a_name_is_doubled() -> None:
    assert (quoted('a"b'), quoted_text("a'b")) == ('"a""b"', "'a''b'")


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_what_cannot_be_an_identifier_is_refused(name: str) -> None:
    with pytest.raises(OptionError) as refused:
        quoted(name)

    assert refused.value.code == "SQL_NAME"


@pytest.mark.parametrize(
    "statement",
    [
        "SET threads = 4",
        "SET memory_limit = '8GB'",
        "SET enable_external_access = true",
        "RESET lock_configuration",
        "COPY (SELECT 1) TO '{directory}/stolen.csv'",
        "CREATE TABLE t AS FROM read_csv('/etc/passwd')",
        "CREATE TABLE t AS FROM read_blob('/etc/hostname')",
        "ATTACH '{directory}/other.duckdb' AS other",
        "INSTALL httpfs",
        "LOAD httpfs",
        "EXPORT DATABASE '{directory}/stolen'",
    ],
)
def test_the_database_is_a_closed_box(tmp_path: Path, file: DuckDBFile, statement: str) -> None:
    with pytest.raises(duckdb.Error):
        file.execute(statement.format(directory=tmp_path))

    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("cold.duckdb")] == []


def test_the_limits_are_those_that_were_given(tmp_path: Path) -> None:
    opened = DuckDBFile(tmp_path / "cold.duckdb", memory_bytes=100 << 20, temporary_bytes=1 << 30)
    names = ("memory_limit", "max_temp_directory_size", "threads", "fsync_mode")

    settings = opened.select("SELECT name, value FROM duckdb_settings()").to_pylist()

    values = {line["name"]: line["value"] for line in settings}
    assert [values[name] for name in names] == ["100.0 MiB", "1.0 GiB", "1", "NONE"]
    opened.close()


def test_less_memory_than_duckdb_needs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError) as refused:
        DuckDBFile(tmp_path / "cold.duckdb", memory_bytes=1 << 20)

    assert refused.value.code == "COLD_STORE_MEMORY"


def test_more_rows_than_memory_are_kept_in_the_least_memory(tmp_path: Path) -> None:
    opened = DuckDBFile(tmp_path / "cold.duckdb", memory_bytes=16 << 20)
    store = DuckDBColdStore(tmp_path / "rows", file=opened, name="rows", owner=OWNER)
    for part in range(8):
        store.put(as_rows((code, 0, bytes([part]) * 2000) for code in range(part * 2500, part * 2500 + 2500)))

    store.tidy()

    found = store.fetch(as_codes(range(0, 20_000, 500)))
    assert len(found) == 40
    assert opened.resident_bytes() <= 16 << 20
    opened.close()


def test_the_file_shrinks_when_everything_is_gone(tmp_path: Path, file: DuckDBFile) -> None:
    store = DuckDBColdStore(tmp_path / "rows", file=file, name="rows", owner=OWNER)
    store.put(as_rows((code, 0, bytes(2000)) for code in range(5000)))
    store.commit(0)
    full = store.disk_bytes()

    store.clear()
    store.commit(1)

    assert store.disk_bytes() < full / 10


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cold.duckdb").write_bytes(b"not a database" * 1000)

    with pytest.raises(StateError) as refused:
        DuckDBFile(tmp_path / "cold.duckdb", memory_bytes=MEMORY)

    assert refused.value.code == "COLD_STORE_DAMAGED"


def test_a_file_that_another_process_has_is_refused(tmp_path: Path) -> None:
    code = (
        "import sys; from spill.duckdb_pages import DuckDBFile; "
        f"file = DuckDBFile({str(tmp_path / 'cold.duckdb')!r}, memory_bytes={MEMORY}); "
        "print('ready', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"

        with pytest.raises(StateError, match="no other process has it"):
            DuckDBFile(tmp_path / "cold.duckdb", memory_bytes=MEMORY)

        holder.communicate()


def test_a_store_whose_tables_are_gone_is_refused(tmp_path: Path) -> None:
    opened = DuckDBFile(tmp_path / "cold.duckdb", memory_bytes=MEMORY)
    store = DuckDBColdStore(tmp_path / "rows", file=opened, name="rows", owner=OWNER)
    store.put(as_rows([(7, 0, b"a")]))
    store.commit(0)
    opened.execute(f"DROP SCHEMA cold.{identifier('rows')} CASCADE")

    with pytest.raises(StateError) as refused:
        DuckDBColdStore(tmp_path / "rows", file=opened, name="rows", owner=OWNER)

    assert refused.value.code == "COLD_STORE_DAMAGED"
    opened.close()


@pytest.mark.parametrize(
    ("damage", "reported"),
    [
        ("DELETE FROM {table} WHERE page = 1", "pages are missing"),
        ("UPDATE {table} SET content = content[1:10] WHERE page = 1", "other sizes"),
        ("DROP TABLE {table}", "a table is missing"),
    ],
)
def test_pages_that_were_tampered_with_are_noticed(tmp_path: Path, file: DuckDBFile, damage: str, reported: str) -> None:
    store = DuckDBColdStore(tmp_path / "rows", file=file, name="rows", owner=OWNER)
    store.put(as_rows((code, 0, bytes(1500)) for code in range(4)))
    file.execute(damage.format(table=f"cold.{identifier('rows')}.run_1"))

    with pytest.raises(StateError, match=reported):
        store.fetch(as_codes(range(4)))


def test_a_run_that_could_not_be_begun_or_undone_is_undone_before_the_next_one(file: DuckDBFile) -> None:
    def fails(operation: Operation, act: Callable[[], Any]) -> Any:
        if failing:
            raise OSError("no space")
        return act()

    pages = DuckDBPages(file, "rows")
    with observe(fails):
        failing: list[str] = []
        writer = pages.write(1)
        failing.append("ROLLBACK")
        with pytest.raises(OSError, match="no space"):
            writer.discard()
        failing.clear()

        writer = pages.write(2)
        writer.append(np.zeros(100, np.uint8), as_codes([100]))
        writer.finish()

    tables = file.select("SELECT table_name FROM duckdb_tables()").column("table_name").to_pylist()
    assert tables == ["run_2"]
