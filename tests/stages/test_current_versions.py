"""The versions that hold now as a stage."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from zset_join import Relation
from zset_join.core.errors import OptionError
from zset_join.core.options import HotBudget
from zset_join.stages import CurrentVersionsStage, StageOptions, TableKey, read_stage

RATES = Relation(
    name="rates",
    schema=pa.schema({"currency": pa.string(), "rate": pa.float64(), "at": pa.timestamp("us"), "lsn": pa.int64()}),
    primary_key=("currency",),
    sequence_by=("lsn",),
    mode="upsert",
    event_time="at",
)
CURRENT = CurrentVersionsStage(source=RATES, key=("currency",), hidden=("lsn",))


def test_rows_come_in_and_leave_by_key() -> None:
    assert [one.key for one in CURRENT.inputs] == [("currency",)]
    assert CURRENT.output_key.bucketed_by == ("currency",)
    assert CURRENT.output.schema.names == ["currency", "rate", "at"]


@pytest.mark.parametrize(("kind", "tables"), [(pa.timestamp("us"), {"rows", "held"}), (pa.int64(), {"rows"})])
def test_the_tables_of_its_operator_are_those_it_names(kind: pa.DataType, tables: set[str]) -> None:
    stage = replace(CURRENT, source=replace(RATES, schema=RATES.schema.set(2, pa.field("at", kind))))

    assert set(stage.build(StageOptions(), None).snapshot()) == set(stage.state_tables) == tables
    assert stage.state_tables["rows"] == TableKey(columns=("currency",))


def test_it_comes_back_from_json() -> None:
    assert read_stage(json.loads(json.dumps(CURRENT.to_json()))) == CURRENT


def test_it_shows_what_it_keeps() -> None:
    title, remembered = CURRENT.explain(4)
    assert title == 'Current versions of "rates" by currency: the newest by at at or before the processing time'
    assert "the current version, per key, and versions of the future until" in remembered
    assert remembered.endswith("in 4 buckets by currency")


def test_hybrid_state_is_refused_by_the_name_of_the_option() -> None:
    with pytest.raises(OptionError, match=r"HYBRID_NOT_OFFERED.*default_hash_table"):
        CURRENT.build(StageOptions(table_budget=HotBudget(max_hot_keys=10)), None)
