"""Rejected rows carry the same reason inside Spark as in process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tests.spark.conftest import Collected, Source
from zset_join.changelog import RowKindFormat, WeightFormat, decode
from zset_join.core.relation import Relation
from zset_join.runners.spark.worker.quarantine import undecodable_reasons
from zset_join.spark import JoinQuery, changes

KINDS = pa.schema([("op", pa.string()), ("k", pa.int64())])
WEIGHTS = pa.schema([("copies", pa.int64()), ("k", pa.int64())])


def test_rows_that_cannot_be_read_have_the_same_codes_as_in_process(
    spark: SparkSession, run: Callable[..., JoinQuery], tmp_path: Path
) -> None:
    kinds = Source(spark, tmp_path / "kinds", KINDS).add(("+I", 1), (None, 2), ("what: is this", 3))
    weights = Source(spark, tmp_path / "weights", WEIGHTS).add((1, 1), (None, 2))
    left = changes(kinds.stream(), name="kinds", row_kind_column="op")
    right = changes(weights.stream(), name="weights", weight_column="copies")
    keys = pa.schema({"k": pa.int64()})
    in_process = {
        "kinds": (pa.table({"op": ["+I", None, "what: is this"], "k": [1, 2, 3]}), RowKindFormat(column="op")),
        "weights": (pa.table({"copies": [1, None], "k": [1, 2]}), WeightFormat(column="copies")),
    }

    run(left.join(right, on="k"), Collected(), on_bad_input="quarantine")

    rows = pq.read_table(tmp_path / "checkpoint" / "quarantine" / "epoch=0").to_pylist()
    codes = {name: sorted(row["code"] for row in rows if row["stream"] == name) for name in in_process}
    assert codes == {
        name: sorted(
            decode(given, Relation(name=name, schema=keys, mode="changelog"), form).rejected.column("code").to_pylist()
        )
        for name, (given, form) in in_process.items()
    }
    assert codes == {"kinds": ["NULL_OP", "UNDECODABLE_OP"], "weights": ["NULL_WEIGHT"]}


def test_the_text_that_could_not_be_read_is_reported_whatever_it_holds() -> None:
    codes, reasons = undecodable_reasons(["UNDECODABLE_OP:a:b", "UNDECODABLE_OP", "NULL_OP"])

    assert codes == ["UNDECODABLE_OP", "UNDECODABLE_OP", "NULL_OP"]
    assert reasons[0].startswith("the operation 'a:b' is none of")
    assert reasons[1].startswith("the operation '' is none of")
