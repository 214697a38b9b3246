"""The stores of a directory on either medium, and what a medium needs."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from property_tests.cold_histories import OWNER, as_bag, as_codes, as_rows
from spill import media
from spill.cold_stores import ColdStores, closing_on_error
from spill.opening import open_stores
from zset_join.core.errors import OptionError, StateError
from zset_join.core.options import HotBudget

MEDIA = ("files", "duckdb")
ANOTHER_PROCESS = """
import sys
from pathlib import Path
from property_tests.cold_histories import OWNER, as_rows
from spill.opening import open_stores

stores = open_stores("duckdb", Path(sys.argv[1]))
rows = stores.rows("rows", owner=OWNER)
rows.put(as_rows([(8, 0, b"of another process")]))
rows.commit(2)
rows.close()
stores.close()
"""
# A child is forked in a program of its own: one of this process, whose threads may be anywhere, may crash.
A_FORKED_PROCESS = """
import os
import sys
from pathlib import Path
from spill.opening import open_stores

kept = open_stores("duckdb", Path(sys.argv[1]))
child = os.fork()
if child == 0:
    print(kept.is_current(), flush=True)
    kept.close()
    os._exit(0)
ended = os.waitpid(child, 0)[1]
print(kept.is_current())
kept.close()
sys.exit(ended != 0)
"""


def filled(stores: ColdStores, epoch: int = 1) -> None:
    """Put a row and a pair, commit and close."""
    rows, pairs = stores.rows("rows", owner=OWNER), stores.pairs("keys", owner=OWNER)
    rows.put(as_rows([(7, 0, b"a")]))
    pairs.put(np.array([7]), np.array([1]))
    for store in (rows, pairs):
        store.commit(epoch)
        store.close()
    stores.close()


@pytest.mark.parametrize("medium", MEDIA)
def test_rows_and_pairs_are_there_when_the_stores_are_opened_again(tmp_path: Path, medium: str) -> None:
    filled(open_stores(medium, tmp_path))

    stores = open_stores(medium, tmp_path)
    rows, pairs = stores.rows("rows", owner=OWNER), stores.pairs("keys", owner=OWNER)

    assert as_bag([rows.fetch(as_codes([7]))]) == Counter([(7, 0, b"a")])
    assert [part.tolist() for part in pairs.find(np.array([7]))] == [[7], [1]]
    assert (rows.epoch, stores.is_current()) == (1, True)
    for held in (rows, pairs, stores):
        held.close()


@pytest.mark.parametrize(("medium", "other"), [MEDIA, MEDIA[::-1]])
def test_what_lies_on_one_medium_is_refused_by_the_other(tmp_path: Path, medium: str, other: str) -> None:
    filled(open_stores(medium, tmp_path))
    stores = open_stores(other, tmp_path)

    with pytest.raises(StateError) as refused:
        stores.rows("rows", owner=OWNER)

    assert refused.value.code == "COLD_STORE_FOREIGN"
    stores.close()


def test_the_stores_of_a_directory_share_one_duckdb_file(tmp_path: Path) -> None:
    filled(open_stores("duckdb", tmp_path))

    assert [path.name for path in tmp_path.rglob("*.duckdb*")] == ["cold.duckdb"]
    assert list(tmp_path.rglob("*.pages")) == []


def test_another_process_takes_over_a_file_that_this_one_keeps_open_and_this_one_finds_out(tmp_path: Path) -> None:
    filled(open_stores("duckdb", tmp_path))
    kept = open_stores("duckdb", tmp_path)
    rows = kept.rows("rows", owner=OWNER)
    was_current = kept.is_current()

    subprocess.run([sys.executable, "-c", ANOTHER_PROCESS, str(tmp_path)], check=True, cwd=Path(__file__).parents[2])

    assert (was_current, kept.is_current(), rows.is_current()) == (True, False, False)
    rows.close()
    kept.close()  # writes nothing: what the other process has put is present
    stores = open_stores("duckdb", tmp_path)
    opened = stores.rows("rows", owner=OWNER)
    assert as_bag([opened.fetch(as_codes([7, 8]))]) == Counter([(7, 0, b"a"), (8, 0, b"of another process")])
    opened.close()
    stores.close()


def test_stores_reopened_in_one_process_take_the_file_from_those_left_open(tmp_path: Path) -> None:
    filled(open_stores("duckdb", tmp_path))
    left_open = open_stores("duckdb", tmp_path)

    stores = open_stores("duckdb", tmp_path)

    assert (left_open.is_current(), stores.is_current()) == (False, True)
    left_open.close()
    rows = stores.rows("rows", owner=OWNER)
    assert as_bag([rows.fetch(as_codes([7]))]) == Counter([(7, 0, b"a")])
    rows.close()
    stores.close()


def test_a_forked_process_lets_what_its_parent_has_open_alone(tmp_path: Path) -> None:
    filled(open_stores("duckdb", tmp_path))

    of_child, of_parent = subprocess.run(
        [sys.executable, "-c", A_FORKED_PROCESS, str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    ).stdout.split()

    assert (of_child, of_parent) == ("False", "True")


def test_a_damaged_file_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    filled(open_stores("duckdb", tmp_path))
    (tmp_path / "cold.duckdb").write_bytes(bytes(1 << 14))

    with pytest.raises(StateError) as refused:
        open_stores("duckdb", tmp_path)

    assert refused.value.code == "COLD_STORE_DAMAGED"


def test_a_damaged_block_is_noticed_when_it_is_read(tmp_path: Path) -> None:
    stores = open_stores("duckdb", tmp_path)
    rows = stores.rows("rows", owner=OWNER)
    rows.put(as_rows((code, 0, bytes(2000)) for code in range(2000)))
    rows.commit(0)
    rows.close()
    stores.close()
    content = bytearray((tmp_path / "cold.duckdb").read_bytes())
    middle = len(content) // 2
    content[middle : middle + 4096] = bytes(range(256)) * 16
    (tmp_path / "cold.duckdb").write_bytes(content)

    opened = open_stores("duckdb", tmp_path).rows("rows", owner=OWNER)
    with pytest.raises(StateError) as refused:
        opened.fetch(as_codes(range(2000)))

    assert refused.value.code == "COLD_STORE_DAMAGED"


def test_what_was_opened_is_closed_when_the_rest_cannot_be() -> None:
    closed: list[str] = []

    with pytest.raises(StateError), closing_on_error(lambda: closed.append("yes")):
        raise StateError("no", code="COLD_STORE_DAMAGED")

    assert closed == ["yes"]


# ---------------------------------------------------------------- what a medium needs


def test_duckdb_is_refused_by_name_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "find_spec", lambda _name: None)

    with pytest.raises(OptionError, match=r"pip install .*\[duckdb\]") as refused:
        HotBudget.of("hybrid", max_hot_keys=1, cold_store="duckdb")

    assert refused.value.code == "MISSING_PACKAGE"


def test_files_need_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "find_spec", lambda _name: None)

    assert HotBudget.of("hybrid", max_hot_keys=1, cold_store="files") == HotBudget(max_hot_keys=1)


@pytest.mark.parametrize(
    ("kind", "cold_store", "reported"),
    [("hybrid", "rocksdb", '"files" or "duckdb"'), ("memory", "duckdb", "state in memory has no budget")],
)
def test_a_medium_that_is_none_or_does_nothing_is_refused(kind: str, cold_store: str, reported: str) -> None:
    limit = 1 if kind == "hybrid" else None

    with pytest.raises(OptionError, match=reported):
        HotBudget.of(kind, max_hot_keys=limit, cold_store=cold_store)


# ---------------------------------------------------------------- what a process loads

ROOT = Path(__file__).resolve().parent.parent.parent


def modules_after(statement: str) -> set[str]:
    """Return what a fresh process has imported after a statement."""
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["spill", "spill.file_pages", "spill.residency", "spill.row_bytes"])
def test_cold_stores_in_files_need_no_database(module: str) -> None:
    assert "duckdb" not in modules_after(f"import {module}")


def test_the_store_in_duckdb_is_the_one_that_imports_it() -> None:
    assert "duckdb" in modules_after("import spill.duckdb_pages")
