"""Rows come to the driver whole or in slices, once and in order; what is too large is refused with the option that helps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from zset_join.core.errors import ResourceError
from zset_join.runners.spark.driver import choosing, collecting
from zset_join.runners.spark.driver.collecting import collected_slices, collected_table, first_tables


def test_slices_have_every_row_once_in_the_order_of_the_batch(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "_FIRST_SLICE_ROWS", 7)
    rows = spark.range(0, 1000, numPartitions=3).where("id % 5 <> 0 and (id < 300 or id > 700)")

    slices = list(collected_slices(rows, 0, 0, slice_bytes=800))

    assert len(slices) > 5
    assert slices[0].num_rows == 7
    assert max(one.num_rows for one in slices[1:]) <= 105
    assert pa.concat_tables(slices).equals(rows.toArrow())
    assert not list(collected_slices(rows.where("id < 0"), 0, 0))


def test_a_large_first_batch_comes_in_slices_and_a_small_one_whole(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "_WHOLE_ROWS", 100)
    monkeypatch.setattr(collecting, "_FIRST_SLICE_ROWS", 60)

    whole, large = list(first_tables(spark.range(100), 0, 0)), list(first_tables(spark.range(101), 0, 0))

    assert [one.num_rows for one in whole] == [100]
    assert [one.num_rows for one in large] == [60, 41]
    with pytest.raises(ResourceError, match="maxDeltaBytes"):
        list(first_tables(spark.range(101), 0, 500))


def test_what_spark_does_not_bring_is_reported_with_the_option_that_helps(spark: SparkSession) -> None:
    settings: Any = spark.sparkContext._jsc.sc().conf()
    settings.set("spark.driver.maxResultSize", "1k")
    try:
        with pytest.raises(ResourceError, match=r"spark\.driver\.maxResultSize.*maxFilesPerTrigger") as refused:
            collected_table(spark.range(100_000), 3, 0)
    finally:
        settings.remove("spark.driver.maxResultSize")

    assert (refused.value.code, refused.value.facts["epoch"]) == ("DELTA_TOO_LARGE", 3)


def test_rows_whose_answer_would_not_fit_into_the_container_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 400\nfile 500\n")
    monkeypatch.setattr(choosing, "_CGROUPS", ((str(tmp_path), "memory.max", "memory.current", "file"),))

    assert (choosing.memory_bytes(), choosing.available_bytes()) == (1000, 600)
    choosing.refuse_without_memory(300, 0)
    with pytest.raises(ResourceError, match="600 bytes of memory are left") as refused:
        choosing.refuse_without_memory(301, 4)

    assert (refused.value.code, refused.value.facts["limit"]) == ("DELTA_TOO_LARGE", 300)
