"""A process that changes its running query is killed on the way: the checkpoint is the old query's or the new one's, outputs follow."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.spark.driver.changed_and_killed import MOMENTS, start
from tests.sweeps import some_of
from zset_join.core.errors import StateError
from zset_join.sinks.parquet_changelog import read_changelog

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def _add(directory: Path, number: int, ids: range) -> None:
    (directory / "orders").mkdir(exist_ok=True)
    columns = {"id": list(ids), "who": [f"customer {one % 3}" for one in ids], "total": list(ids)}
    pq.write_table(pa.table(columns), directory / "orders" / f"{number}.parquet")


@pytest.mark.parametrize(
    ("execution", "moment"),
    some_of({"-".join(case): case for case in MOMENTS}, short=("executors-between-outputs",)),
)
def test_a_kill_while_a_running_query_changes_leaves_one_of_the_two(
    execution: str, moment: str, spark: SparkSession, tmp_path: Path
) -> None:
    _add(tmp_path, 0, range(20))
    program = [sys.executable, "-m", "tests.spark.driver.changed_and_killed", str(tmp_path), execution, moment]
    killed = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    _add(tmp_path, 1, range(20, 23))

    is_new = moment != "before-record"
    with pytest.raises(StateError, match="QUERY_CHANGED"):
        start(spark, tmp_path, at_least=0 if is_new else 8, execution=execution)
    query = start(spark, tmp_path, at_least=8 if is_new else 0, execution=execution)
    query.stop()

    counts = {"customer 0": 8, "customer 1": 8, "customer 2": 7}
    expected = {who: count for who, count in counts.items() if count >= 8 or not is_new}
    with duckdb.connect(str(tmp_path / "out.duckdb")) as connection:
        assert dict(connection.sql("SELECT who, n FROM v").fetchall()) == expected
    lines = read_changelog(tmp_path / "changelog").to_pylist()
    total: dict[tuple[str, int], int] = {}
    for line in lines:
        row = (line["who"], line["n"])
        total[row] = total.get(row, 0) + line["_weight"]
    assert {row: weight for row, weight in total.items() if weight} == dict.fromkeys(expected.items(), 1)
