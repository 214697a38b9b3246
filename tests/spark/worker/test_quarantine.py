"""Rejected rows carry the same reason inside Spark as in process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Collected, Source
from zset_join.changelog import RowKindFormat, WeightFormat, decode
from zset_join.core.relation import Relation
from zset_join.runners.spark.worker.quarantine import undecodable_reasons
from zset_join.spark import JoinQuery, changes

KINDS = pa.schema([("op", pa.string()), ("k", pa.int64())])
WEIGHTS = pa.schema([("copies", pa.int64()), ("k", pa.int64())])


@pytest.fixture
def codes(spark: SparkSession, run: Callable[..., JoinQuery], tmp_path: Path) -> dict[str, list[str]]:
    """Give the codes of each stream, after one row of every kind that cannot be read."""
    kinds = Source(spark, tmp_path / "kinds", KINDS).add(("+I", 1), (None, 2), ("what: is this", 3))
    weights = Source(spark, tmp_path / "weights", WEIGHTS).add((1, 1), (None, 2))
    left = changes(kinds.stream(), name="kinds", row_kind_column="op")
    right = changes(weights.stream(), name="weights", weight_column="copies")
    run(left.join(right, on="k"), Collected(), on_bad_input="quarantine")
    rows = pq.read_table(tmp_path / "checkpoint" / "quarantine" / "epoch=0").to_pylist()
    return {name: sorted(row["code"] for row in rows if row["stream"] == name) for name in ("kinds", "weights")}


def test_an_operation_has_the_same_code_as_in_process(codes: dict[str, list[str]]) -> None:
    relation = Relation(name="kinds", schema=pa.schema({"k": pa.int64()}), mode="changelog")
    rows = pa.table({"op": ["+I", None, "what: is this"], "k": [1, 2, 3]})

    rejected = decode(rows, relation, RowKindFormat(column="op")).rejected

    assert codes["kinds"] == sorted(rejected.column("code").to_pylist()) == ["NULL_OP", "UNDECODABLE_OP"]


def test_a_weight_has_the_same_code_as_in_process(codes: dict[str, list[str]]) -> None:
    relation = Relation(name="weights", schema=pa.schema({"k": pa.int64()}), mode="changelog")
    rows = pa.table({"copies": [1, None], "k": [1, 2]})

    rejected = decode(rows, relation, WeightFormat(column="copies")).rejected

    assert codes["weights"] == rejected.column("code").to_pylist() == ["NULL_WEIGHT"]


def test_the_text_that_could_not_be_read_is_reported_whatever_it_holds() -> None:
    codes, reasons = undecodable_reasons(["UNDECODABLE_OP:a:b", "UNDECODABLE_OP", "NULL_OP"])

    assert codes == ["UNDECODABLE_OP", "UNDECODABLE_OP", "NULL_OP"]
    assert reasons[0].startswith("the operation 'a:b' is none of")
    assert reasons[1].startswith("the operation '' is none of")
