"""Selections of many columns travel to the JVM as one text."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Collected
from tests.sweeps import for_each, some_of
from zset_join.runners.spark.rows.text_select import select_text, sums_per_row
from zset_join.spark import JoinQuery, changes


@for_each("name", ["plain", "a b", "a`b", "a,b", "a\x1f,\x1fb", "dot.ted", "é"])
def test_a_selection_as_text_is_the_selection(spark: SparkSession, name: str) -> None:
    rows = spark.createDataFrame([(1, 2)], [name, "other"])
    quoted = "`" + name.replace("`", "``") + "`"

    assert (
        select_text(rows, ["other", f"{quoted} + 1 AS {quoted}"]).collect()
        == rows.selectExpr("other", f"{quoted} + 1 AS {quoted}").collect()
    )


@pytest.mark.parametrize("columns", some_of({"few": 2, "many": 120}, short=["few"]))
def test_sums_per_row_are_those_of_a_group_by(spark: SparkSession, columns: int) -> None:
    names = [f"c{at}" for at in range(columns)]
    same, other = [float("nan"), *(at for at in range(1, columns))], [0.0, *(at for at in range(1, columns))]
    rows = spark.createDataFrame(
        [(*map(float, one), weight) for one, weight in ((same, 1), (same, 2), (other, 5))], [*names, "w"]
    )

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


@pytest.mark.long
def test_a_view_of_three_hundred_columns_is_kept_and_verified(
    spark: SparkSession, tmp_path: Path, run: Callable[..., JoinQuery]
) -> None:
    names = [f"c{at}" for at in range(300)]
    for table, row in (("wide", {"id": 1, "k": 7, **dict.fromkeys(names, "x")}), ("narrow", {"k": 7, "p": 9})):
        (tmp_path / table).mkdir()
        (tmp_path / table / "1.json").write_text(json.dumps(row))
    schema = "id long, k long, " + ", ".join(f"{name} string" for name in names)
    wide = changes(spark.readStream.schema(schema).json(str(tmp_path / "wide")), name="wide", keys=["id"])
    narrow = changes(spark.readStream.schema("k long, p long").json(str(tmp_path / "narrow")), name="narrow", keys=["k"])
    sink = Collected()

    query = run(wide.join(narrow, on="k", how="left"), sink)

    assert list(sink.total().values()) == [1]
    assert query.verify(
        actual_df=spark.createDataFrame(
            [(*row, 1) for row in sink.total()], f"k long, id long, {schema[17:]}, p long, _weight long"
        )
    ).equal
