from __future__ import annotations

import shutil
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zset_join.core.errors import LookupFailedError, OptionError, PlanError
from zset_join.core.relation import Relation
from zset_join.lookup import ArrowSource, DeltaSource, Fetcher, Lookup, Opening, ParquetSource
from zset_join.lookup.sources import read_source
from zset_join.shapes.lookup import LookupShape
from zset_join.testing.lookups import FakeClock

FIRST = pa.table({"id": [1, 2], "name": ["Ada", "Bob"]})
SECOND = pa.table({"id": [1, 3], "name": ["Ada L.", "Eve"]})


def _write(kind: str, path: str, table: pa.Table) -> None:
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        deltalake.write_deltalake(path, table, mode="overwrite")


def _fetcher(source: ParquetSource | DeltaSource, clock: FakeClock | None = None) -> Fetcher:
    probe = Relation(name="orders", schema=pa.schema({"who": pa.int64()}), join_key=("who",))
    shape = LookupShape.of(probe, Relation(name="people", schema=FIRST.schema, join_key=("id",)), "inner")
    hint = Lookup(reload_interval="60s", error_attempts=1)
    settings = hint.resolved(source="people", modes=source.modes, how="inner", is_insert_only=True)
    return Fetcher(source, shape, settings, clock=clock)


def _damage(kind: str, path: Path) -> None:
    for file in [path] if kind == "parquet" else path.glob("*.parquet"):
        file.write_bytes(b"PAR1 nonsense")


def _retype(kind: str, path: Path) -> None:
    _remove(kind, path)
    _write(kind, str(path), pa.table({"id": [1], "name": [["Ada"]]}))


def _remove(kind: str, path: Path) -> None:
    path.unlink() if kind == "parquet" else shutil.rmtree(path)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_table_is_loaded_again_after_its_interval(tmp_path, kind):
    path = str(tmp_path / "people")
    _write(kind, path, FIRST)
    source = (ParquetSource if kind == "parquet" else DeltaSource)(name="people", path=path)
    clock = FakeClock()
    keys = pa.record_batch({"id": [1, 2, 3]})
    with _fetcher(source, clock) as fetcher:
        assert fetcher.fetch(keys).column("name").to_pylist() == ["Ada", "Bob"]
        _write(kind, path, SECOND)
        clock.sleep(59)
        assert fetcher.fetch(keys).column("name").to_pylist() == ["Ada", "Bob"]
        clock.sleep(1)
        assert fetcher.fetch(keys).column("name").to_pylist() == ["Ada L.", "Eve"]
    assert read_source(source.to_json()) == source


@pytest.mark.parametrize("spoil", [_damage, _retype, _remove])
@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_table_that_is_damaged_of_another_type_or_gone_fails_the_epoch_by_name(tmp_path, kind, spoil):
    path = tmp_path / "people"
    _write(kind, str(path), FIRST)
    source = (ParquetSource if kind == "parquet" else DeltaSource)(name="people", path=str(path))
    spoil(kind, path)
    with pytest.raises(LookupFailedError, match='lookup source "people"'), _fetcher(source) as fetcher:
        fetcher.fetch(pa.record_batch({"id": [1]}))


def test_a_function_that_makes_a_table_must_state_its_columns():
    with pytest.raises(OptionError, match="give schema="):
        ArrowSource(name="rates", table=lambda: FIRST)


def test_rows_in_memory_are_not_written_down():
    source = read_source(ArrowSource(name="rates", table=FIRST).to_json())

    assert source.schema == FIRST.schema
    with pytest.raises(PlanError, match='"rates" is a table in the memory of the program'):
        source.open(Opening(key=(), columns=())).load()
