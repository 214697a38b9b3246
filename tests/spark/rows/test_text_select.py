"""Selections of many columns travel to the JVM as one text."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.sweeps import for_each
from zset_join.runners.spark.rows.names import select_text, sums_per_row
from zset_join.spark import changes


@for_each("name", ["plain", "a b", "a`b", "a,b", "a\x1f,\x1fb", "dot.ted", "é"])
def test_a_selection_as_text_is_the_selection(spark: SparkSession, name: str) -> None:
    rows = spark.createDataFrame([(1, 2)], [name, "other"])
    quoted = "`" + name.replace("`", "``") + "`"

    assert (
        select_text(rows, ["other", f"{quoted} + 1 AS {quoted}"]).collect()
        == rows.selectExpr("other", f"{quoted} + 1 AS {quoted}").collect()
    )


def test_sums_per_row_are_those_of_a_group_by(spark: SparkSession) -> None:
    names = ["c0", "c1"]
    rows = spark.createDataFrame([(float("nan"), 1.0, 1), (float("nan"), 1.0, 2), (0.0, 1.0, 5)], [*names, "w"])

    found = sums_per_row(rows, names, ["w"]).orderBy("c0").collect()

    assert [(str(row["c0"]), row["w"]) for row in found] == [("0.0", 5), ("nan", 3)]


def test_a_table_of_two_thousand_columns_costs_few_calls_to_the_jvm(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    gc.collect()

    def count(*given: Any, **named: Any) -> Any:
        if not str(given[1]).startswith("m\n"):  # what Python's collector releases is reported to the JVM, for any holder
            calls.append(given[1])
        return send(*given, **named)

    send = type(spark.sparkContext._gateway._gateway_client).send_command  # type: ignore[attr-defined]
    monkeypatch.setattr(
        type(spark.sparkContext._gateway._gateway_client),  # type: ignore[attr-defined]
        "send_command",
        count,
    )
    schema = "id long, k long, " + ", ".join(f"c{at} long" for at in range(2_000))

    left = changes(spark.readStream.schema(schema).json(str(tmp_path)), name="wide", keys=["id"])
    right = changes(spark.readStream.schema("k long, p long").json(str(tmp_path)), name="narrow", keys=["k"])
    left.join(right, on="k", how="left")

    assert len(calls) < 1_000
