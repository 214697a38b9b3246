from __future__ import annotations

import sqlite3

import duckdb
import pyarrow as pa
import pytest

from zset_join.core.errors import LookupFailedError
from zset_join.core.relation import Relation
from zset_join.lookup import DuckDBFileSource, Fetcher, Lookup, SQLiteFileSource
from zset_join.lookup.sources import read_source
from zset_join.shapes.lookup import LookupShape

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string()})
ROWS = [(1, "Ada"), (2, "Bob"), (2, "Eve")]


@pytest.fixture(params=["duckdb", "sqlite"])
def source(request, tmp_path):
    path = str(tmp_path / "crm")
    connection = duckdb.connect(path) if request.param == "duckdb" else sqlite3.connect(path)
    connection.execute('CREATE TABLE "people" (id BIGINT, name VARCHAR)')
    connection.executemany("INSERT INTO people VALUES (?, ?)", ROWS)
    connection.commit()
    connection.close()
    kind = DuckDBFileSource if request.param == "duckdb" else SQLiteFileSource
    return kind(name="people", schema=SCHEMA, path=path, table="people")


def _fetch(source, *keys, **hint):
    probe = Relation(name="orders", schema=pa.schema({"who": pa.int64()}), join_key=("who",))
    shape = LookupShape.of(probe, Relation(name="people", schema=source.schema, join_key=("id",)), "inner")
    settings = Lookup(**hint).resolved(source="people", modes=source.modes, how="inner", is_insert_only=True)
    with Fetcher(source, shape, settings, seed=1) as fetcher:
        return sorted(tuple(row.values()) for row in fetcher.fetch(pa.record_batch({"id": list(keys)})).to_pylist())


@pytest.mark.parametrize("cache", ["none", "full"])
def test_rows_are_found_by_key(source, cache):
    assert _fetch(source, 1, 2, 9, cache=cache) == ROWS


def test_many_keys_go_in_several_statements(source):
    assert _fetch(source, *range(70_000), batch_keys=70_000) == ROWS


def test_a_missing_file_and_a_missing_table_are_reported(source):
    with pytest.raises(LookupFailedError, match="failed 2 of 2 times"):
        _fetch(type(source)(**{**vars(source), "path": "/nowhere/crm"}), 1, error_attempts=2, error_delay="1ms")
    with pytest.raises(LookupFailedError, match="refused"):
        _fetch(type(source)(**{**vars(source), "table": "nobody"}), 1)


def test_a_value_that_its_column_cannot_hold_names_the_column(source):
    wrong = type(source)(**{**vars(source), "schema": pa.schema({"id": pa.int64(), "name": pa.int64()})})
    with pytest.raises(LookupFailedError, match='column "name"') as reported:
        _fetch(wrong, 1)
    assert reported.value.code == "LOOKUP_ANSWER"


def test_a_file_that_is_no_database_is_reported_and_one_that_has_come_is_read(source, tmp_path):
    (tmp_path / "nonsense").write_text("this is no database " * 1000, encoding="utf-8")
    with pytest.raises(LookupFailedError, match='"people"'):
        _fetch(type(source)(**{**vars(source), "path": str(tmp_path / "nonsense")}), 1, error_attempts=1)


def test_a_description_survives_json(source):
    assert read_source(source.to_json()) == source
