"""Rows that INSERT puts into tables inside Spark: files, each once and in order."""

from __future__ import annotations

import shutil
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from zset_join.core.epoch_chain import ChainLink
from zset_join.core.errors import PlanError, SinkError, StateError
from zset_join.core.relation import Relation
from zset_join.sql.runtime.on_spark import SparkRuntime
from zset_join.sql.tables.catalog import ColumnDefinition, Table
from zset_join.sql.tables.file_names import file_name
from zset_join.sql.tables.stored_tables import STORED_WEIGHT, StoredTables, StoredTableSink
from zset_join.zset import ZSet

TABLE = Table(name="t", word="TABLE", columns=(ColumnDefinition("k", pa.int64()),), mode="changelog")
NAMES = st.text(st.sampled_from("aAbB%4129_-./ \u20ac\u00e9\u0301\ud800")) | st.text(max_size=300)
ROWS = pa.table({"k": pa.array([1, 2], pa.int64())})


def lines(tables: StoredTables) -> list[list[dict[str, Any]]]:
    files = sorted(tables.directory_of("t").glob("*.parquet"), key=lambda one: one.stat().st_mtime)
    return [pq.read_table(file).to_pylist() for file in files]


def test_the_first_file_of_a_table_has_no_rows(tmp_path: Path) -> None:
    tables = StoredTables(tmp_path)

    tables.make(TABLE)
    tables.make(TABLE)

    assert lines(tables) == [[]]


def test_files_are_in_the_order_they_were_written_also_after_a_restart(tmp_path: Path) -> None:
    first = StoredTables(tmp_path)
    first.make(TABLE)
    first.write(TABLE, ROWS, once="zz")
    again = StoredTables(tmp_path)

    again.write(TABLE, ZSet(ROWS.to_batches()[0], np.array([-1, 2])), once="aa")

    assert [len(one) for one in lines(again)] == [0, 2, 2]
    assert lines(again)[2] == [{"k": 1, "_stored_weight": -1}, {"k": 2, "_stored_weight": 2}]


@pytest.mark.parametrize("name", [STORED_WEIGHT, "_Unread_Reason", "_file_order_0", "__time", "__of_12"])
def test_a_column_named_as_one_of_ours_is_refused_in_process_and_inside_spark(tmp_path: Path, name: str) -> None:
    columns = (*TABLE.columns, ColumnDefinition(name, pa.string()))
    table = replace(TABLE, columns=columns, options={"connector": "kafka"})
    on_spark: Any = SparkRuntime.__new__(SparkRuntime)

    for start in (StoredTables(tmp_path).make, lambda one: on_spark._made(one, None)):
        with pytest.raises(PlanError, match="rename them") as refused:
            start(table)
        assert (refused.value.code, refused.value.facts["columns"]) == ("RESERVED_COLUMN", [name])
    assert not list(tmp_path.iterdir())


def test_what_has_a_name_is_written_once(tmp_path: Path) -> None:
    tables = StoredTables(tmp_path)
    tables.make(TABLE)

    tables.write(TABLE, ROWS, once="statement-1")
    tables.write(TABLE, ROWS, once="statement-1")

    assert len(lines(tables)) == 2


def test_a_half_written_file_is_taken_away(tmp_path: Path) -> None:
    StoredTables(tmp_path).make(TABLE)
    (tmp_path / "t" / ".000000000001.parquet").write_bytes(b"half")

    tables = StoredTables(tmp_path)
    tables.write(TABLE, ROWS)

    assert [one.name for one in (tmp_path / "t").glob(".*")] == []
    assert [len(one) for one in lines(tables)] == [0, 2]


def test_an_epoch_of_a_query_is_there_once_after_any_number_of_writes(tmp_path: Path) -> None:
    tables = StoredTables(tmp_path)
    tables.make(TABLE)

    def tables_insert(rows: Any, once: str, digest: str) -> None:
        tables.write(TABLE, rows, once=once, digest=digest)

    def sink() -> StoredTableSink:
        made = StoredTableSink(TABLE, tables, tables_insert, lambda delta: delta)
        made.open(Relation(name="t", schema=TABLE.schema, mode="changelog"), "q1")
        return made

    first, second = sink(), sink()
    first.write(0, [ZSet.of({"k": [1]})], link=ChainLink("d0"))
    first.write(1, [])

    assert (second.has(0, None), second.has(1, None), second.has(2, None)) == (True, False, False)
    assert second.write(0, [ZSet.of({"k": [1]})]).replayed
    assert [len(one) for one in lines(tables)] == [0, 1]
    with pytest.raises(SinkError, match="older checkpoint"):
        second.has(0, ChainLink("another"))


@pytest.mark.parametrize("spoil", ["lose_one", "rename_one", "add_one"])
def test_a_table_whose_files_were_changed_is_refused(tmp_path: Path, spoil: str) -> None:
    tables = StoredTables(tmp_path)
    tables.make(TABLE)
    tables.write(TABLE, ROWS, once="s")
    tables.write(TABLE, ROWS)
    middle = tables.file("t", 1)
    {
        "lose_one": middle.unlink,
        "rename_one": lambda: middle.rename(middle.with_name("s.parquet")),
        "add_one": lambda: middle.with_name("000000000001.parquet").write_bytes(middle.read_bytes()),
    }[spoil]()

    with pytest.raises(StateError, match="numbered from 0 on without holes") as refused:
        StoredTables(tmp_path).make(TABLE)

    assert refused.value.code == "DAMAGED_FILE"


def test_times_that_a_copy_lost_are_given_again(tmp_path: Path) -> None:
    tables = StoredTables(tmp_path / "a")
    tables.make(TABLE)
    for once in ("z", "a"):
        tables.write(TABLE, ROWS, once=once)
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copyfile)

    StoredTables(tmp_path / "b").make(TABLE)

    in_order = [one.name for one in sorted((tmp_path / "b" / "t").iterdir(), key=lambda one: one.stat().st_mtime)]
    assert in_order == ["000000000000.parquet", "000000000001-z.parquet", "000000000002-a.parquet"]


@given(st.lists(NAMES, min_size=2, max_size=2, unique=True))
@settings(max_examples=300)
@example(["\u20ac", " AC"])
@example(["Orders", "orders"])
@example(["\u00e9", "e\u0301"])
@example(["a" * 300, "a" * 301])
@example(["", "%"])
@example(["..", "."])
def test_two_names_never_share_a_file(names: list[str]) -> None:
    one, other = (unicodedata.normalize("NFC", file_name(name)).casefold() for name in names)

    assert one != other
    assert all(len(file_name(name).encode()) <= 200 and not set("/.\0") & set(file_name(name)) for name in names)
