"""A function as an external table, read back from a checkpoint: what a checkpoint names is never imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pytest

from zset_join.core.errors import PlanError
from zset_join.lookup import FunctionSource, Opening
from zset_join.lookup.sources import read_source

SCHEMA = pa.schema({"id": pa.int64()})


def found(keys: pa.Table) -> pa.Table:
    return keys


async def found_later(keys: pa.Table) -> pa.Table:
    return keys


@pytest.mark.parametrize("function", [found, found_later])
def test_what_was_written_is_read_back_without_its_function(function: object) -> None:
    source = FunctionSource(name="f", schema=SCHEMA, function=function)  # type: ignore[arg-type]

    read = read_source(source.to_json())

    assert (read.modes, read.explain(), read.to_json()) == (source.modes, source.explain(), source.to_json())
    assert read == read_source(source.to_json())


def test_a_module_that_a_checkpoint_names_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "named_by_a_checkpoint.py").write_text("raise AssertionError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    written = FunctionSource(name="f", schema=SCHEMA, function=found).to_json() | {"module": "named_by_a_checkpoint"}

    client = read_source(written).open(Opening(key=("id",), columns=("id",)))
    with pytest.raises(PlanError, match="has not imported") as refused:
        client.lookup(SCHEMA.empty_table())

    assert refused.value.code == "UNKNOWN_LOOKUP_SOURCE"
    assert "named_by_a_checkpoint" not in sys.modules


def test_a_function_of_a_module_that_the_program_has_imported_is_called() -> None:
    rows = pa.table({"id": pa.array([1], pa.int64())})
    client = read_source(FunctionSource(name="f", schema=SCHEMA, function=found).to_json()).open(
        Opening(key=("id",), columns=("id",))
    )

    assert client.lookup(rows) is rows
