"""A client's query is computed in the zone of its session, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.connect.conftest import Client
from tests.spark.connect.test_served import lines, run
from tests.spark.driver.test_time_zones import of_batch, places
from zset_join.core.errors import PlanError


def _answers(spark: SparkSession, place: Path, execution: str) -> tuple[list[str], str]:
    """Run the view; return the rows of the batch query, and the code that refuses what Spark would compute behind a stage."""
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    view = places(spark, place)
    run(view, place, execution=execution)
    with pytest.raises(PlanError) as refused:
        run(view.where("date_trunc('DAY', CAST(last AS timestamp)) IS NULL"), place / "refused", execution="driver")
    return of_batch(spark, place), refused.value.code


@pytest.mark.parametrize("execution", ["driver", pytest.param("executors", marks=pytest.mark.long)])
def test_keys_and_conditions_of_a_client_are_in_the_zone_of_its_session(client: Client, tmp_path: Path, execution: str) -> None:
    expected, code = client(_answers, tmp_path, execution)

    found = [dict(zip(("h", "n", "last"), row, strict=True)) for row in lines(tmp_path / "out").elements()]
    assert sorted(map(repr, found)) == expected
    assert code == "SPARK_ONLY_STEP"
