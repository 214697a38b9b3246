"""A checkpoint that moves between driver and executors in the middle of a stream: nobody can tell from the answers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.api.test_query import Run, join_of, names, upserts
from tests.spark.conftest import Collected, Source
from tests.spark.tools.test_rescaling import final_tables, first, late_and_new, moves_and_deletes
from zset_join.cli import main
from zset_join.core.errors import StateError
from zset_join.runners.spark.driver.choosing import stored_mode
from zset_join.spark import JoinedStream, move
from zset_join.storage.operations import Operation, observe

MODES = ("executors", "driver", "executors")


def joined_now(orders: Source, customers: Source, how: str) -> dict[tuple[Any, ...], int]:
    """Return what Spark's own batch join makes of everything that came."""
    left, right = final_tables(orders, customers)
    rows = left.join(right, on="customer_id", how=how).select("customer_id", "order_id", "item", "name").collect()
    return {tuple(row): 1 for row in rows}


@pytest.mark.parametrize("how", ["inner", "full"])
def test_the_answers_stay_those_of_sparks_batch_join(
    orders: Source, customers: Source, run: Run, tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sink, location = Collected(), str(tmp_path / "checkpoint")
    found, expected = [], []

    for step, mode in zip((first, moves_and_deletes, late_and_new), MODES, strict=True):
        step(orders, customers)
        if mode != "executors" or found:
            assert main(["rescale", location, "--execution", mode, "--local-state-dir", str(tmp_path / "local")]) == 0
        run(join_of(orders, customers, how), sink, execution=mode)
        found.append(sink.total())
        expected.append(joined_now(orders, customers, how))

    assert found == expected
    assert min(map(len, expected)) > 3
    assert stored_mode(location) == "executors"
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in said] == ["moved from executors to driver", "moved from driver to executors"]


def test_groups_of_a_join_move_and_a_second_call_does_nothing(
    orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    sink, location = Collected(), str(tmp_path / "checkpoint")

    def view() -> Any:
        joined = upserts(orders).join(names(customers), on="customer_id")
        return joined.groupBy("name").agg(F.count("*").alias("rows"), F.max("item").alias("last"))

    first(orders, customers)
    run(view(), sink, execution="driver")
    reports = [move(location, execution="executors"), move(location, execution="executors")]
    moves_and_deletes(orders, customers)
    run(view(), sink, execution="executors")

    left, right = final_tables(orders, customers)
    groups = left.join(right, on="customer_id").groupBy("name").agg(F.count("*"), F.max("item"))
    assert sink.total() == {tuple(row): 1 for row in groups.collect()}
    assert [report.before for report in reports] == ["driver", "executors"]
    assert reports[0].rows > reports[1].rows == 0
