from __future__ import annotations

import builtins
from typing import Any

import pytest
from pyspark.sql import SparkSession

from zset_join.spark.tools.job_progress import shown_progress


def test_a_bar_is_shown_and_the_group_of_the_caller_comes_back(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    context = spark.sparkContext
    context.setLocalProperty("spark.jobGroup.id", "of the caller")

    with shown_progress(context, what="moving", tasks=2):
        inside = context.getLocalProperty("spark.jobGroup.id")
        spark.range(0, 10, 1, 2).collect()
    after = context.getLocalProperty("spark.jobGroup.id")
    context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]

    assert inside is not None
    assert inside.startswith("zset_join-")
    assert after == "of the caller"
    assert "moving" in capsys.readouterr().err


def test_without_the_package_for_bars_there_is_none(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = builtins.__import__

    def without_tqdm(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "tqdm":
            raise ModuleNotFoundError("No module named 'tqdm'", name=name)
        return found(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without_tqdm)
    with shown_progress(spark.sparkContext, what="moving", tasks=1):
        counted = spark.range(3).count()

    assert counted == 3
    assert "moving" not in capsys.readouterr().err
