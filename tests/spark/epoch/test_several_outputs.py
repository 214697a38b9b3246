"""Several outputs of one query are kept at the same epoch, whatever one of them fails at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import DataFrame

from tests.spark.conftest import Collected, Source
from tests.spark.epoch.conftest import finished
from zset_join.core.errors import SinkError
from zset_join.sinks.parquet_changelog import committed_epochs, read_changelog
from zset_join.spark import JoinedStream, JoinStreamWriter


def test_a_view_a_changelog_and_a_function_have_every_epoch_once_also_when_one_fails(
    joined: JoinedStream, tmp_path: Path
) -> None:
    called: list[int] = []
    failing = Collected()
    failing.fails_in = 1

    def outputs() -> JoinStreamWriter:
        def call(rows: DataFrame, epoch: int) -> None:
            called.append(epoch)
            assert rows.count() >= 0

        writer = joined.writeStream.toDuckDB(tmp_path / "v.duckdb", "v").to(failing)
        return writer.to("parquet", path=tmp_path / "log", form="row_kind").foreachBatch(call)

    with pytest.raises(Exception, match="the output failed in epoch 1"):
        finished(outputs(), tmp_path)
    was_at = (len(failing.epochs), committed_epochs(tmp_path / "log"), called[-1])
    failing.fails_in = -1
    query = finished(outputs(), tmp_path)

    assert was_at == (1, [0], 0)
    assert sorted(set(called)) == [0, 1, 2]
    assert committed_epochs(tmp_path / "log") == [0, 1, 2]
    assert failing.total() == {(20, 1, "pen", "Bobby"): 1}
    with duckdb.connect(str(tmp_path / "v.duckdb"), read_only=True) as connection:
        assert connection.sql("from v").fetchall() == [(20, 1, "pen", "Bobby")]
    assert query.verify().equal
    kinds = read_changelog(tmp_path / "log").column("_row_kind").to_pylist()
    assert len([kind for kind in kinds if kind[0] == "+"]) - len([kind for kind in kinds if kind[0] == "-"]) == 1
    progress: Any = query.lastProgress
    assert progress["join"]["delta_rows"] <= 4


def test_an_output_may_be_left_out_and_change_its_place_but_not_come_in_the_middle(
    joined: JoinedStream, orders: Source, tmp_path: Path
) -> None:
    both = finished(joined.writeStream.to("parquet", path=tmp_path / "log").toDuckDB(tmp_path / "v.duckdb", "v"), tmp_path)
    assert len(both.verify().outputs) == 2
    with duckdb.connect(str(tmp_path / "v.duckdb")) as connection:
        connection.execute("DELETE FROM _zset_join.v")
    report = both.verify()
    assert (report.equal, report.differing, report.actual_rows) == (False, report.outputs[1:], 0)
    assert "row differs in DuckDB" in str(report)
    orders.add(("i", 3, 10, "nib", 4))
    query = finished(joined.writeStream.to("parquet", path=tmp_path / "log"), tmp_path)

    assert query.verify().equal  # of what the query writes now
    with pytest.raises(SinkError) as refused:
        finished(joined.writeStream.to("parquet", path=tmp_path / "log").to("parquet", path=tmp_path / "new"), tmp_path)
    assert refused.value.code == "SINK_EPOCH_GAP"
