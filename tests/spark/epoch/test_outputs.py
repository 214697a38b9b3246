"""Every output, read back and verified against Spark's batch join, also when it fails beside the commit of an epoch."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import Source
from tests.spark.epoch.conftest import finished
from tests.sweeps import for_each, some_of
from zset_join.core.errors import OptionError, PlanError, SinkError
from zset_join.runners.spark.epoch.outputs import ChangelogOutput, FunctionOutput, SinkOutput
from zset_join.spark import JoinedStream, JoinStreamWriter


def test_a_duckdb_view_holds_the_join_and_is_verified_by_the_inputs_or_by_given_tables(
    spark: SparkSession, joined: JoinedStream, tmp_path: Path
) -> None:
    query = finished(joined.writeStream.toDuckDB(tmp_path / "view.duckdb", "v"), tmp_path)

    with duckdb.connect(str(tmp_path / "view.duckdb"), read_only=True) as connection:
        assert connection.sql("from v").fetchall() == [(20, 1, "pen", "Bobby")]
    report = query.verify()
    assert (report.equal, report.expected_rows, report.epoch) == (True, 1, 2)

    final = spark.sql("select 1 order_id, 20 customer_id, 'pen' item"), spark.sql("select 20 customer_id, 'Bobby' name")
    given = query.verify(*final)
    assert given.equal, str(given)
    assert given.basis == {"orders": "given", "customers": "given"}

    wrong = query.verify(right_df=spark.sql("select 20 customer_id, 'Robert' name"))
    assert not wrong.equal
    assert wrong.different_rows == 2
    row = {"customer_id": 20, "order_id": 1, "item": "pen"}
    assert sorted(wrong.differences, key=str) == [({**row, "name": "Bobby"}, 0, 1), ({**row, "name": "Robert"}, 1, 0)]
    assert "2 rows differ" in str(wrong)
    with pytest.raises(OptionError, match=r"lacks the columns \['name'\]"):
        query.verify(right_df=spark.sql("select 20 customer_id"))


OUTPUTS: dict[str, tuple[Callable[[JoinStreamWriter, Path], JoinStreamWriter], type[Any]]] = {
    "csv": (lambda writer, place: writer.to("csv", path=place / "csv", form="row_kind"), SinkOutput),
    "duckdb": (lambda writer, place: writer.toDuckDB(place / "view.duckdb", "v"), SinkOutput),
    "parquet": (lambda writer, place: writer.to("parquet", path=place / "changes", form="row_kind"), ChangelogOutput),
    "delta view": (lambda writer, place: writer.to("delta", path=place / "table"), SinkOutput),
    "delta changelog": (
        lambda writer, place: writer.to("delta", path=place / "table", form="change_data_feed"),
        SinkOutput,
    ),
}


def fail_once(publish: Callable[..., None], *, after: bool) -> Callable[..., None]:
    """Let epoch 1 fail once, before or after it reached the output."""
    failures = iter([OSError("the driver died beside its output")])

    def failing(output: Any, session: SparkSession, files: Any, record: Any) -> None:
        error = next(failures, None) if record.epoch == 1 else None
        if error is not None and not after:
            raise error
        publish(output, session, files, record)
        if error is not None:
            raise error

    return failing


FAILURES = {f"{name}, {which} first": (name, which == "output") for name in OUTPUTS for which in ("state", "output")}
FAILURES_OF_A_PUSH = ("parquet, output first", "delta changelog, output first")


@pytest.mark.parametrize(("name", "after"), some_of(FAILURES, short=FAILURES_OF_A_PUSH))
def test_an_output_that_failed_beside_the_commit_of_an_epoch_has_it_once_after_a_restart(
    joined: JoinedStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, after: bool
) -> None:
    choose, kind = OUTPUTS[name]
    monkeypatch.setattr(kind, "publish", fail_once(kind.publish, after=after))
    with pytest.raises(StreamingQueryException, match="the driver died beside its output"):
        finished(choose(joined.writeStream, tmp_path), tmp_path)

    report = finished(choose(joined.writeStream, tmp_path), tmp_path).verify()

    assert (report.equal, report.expected_rows, report.epoch) == (True, 1, 2), str(report)


def test_a_function_is_called_again_with_the_same_rows_epoch_and_digest_when_the_driver_died(
    joined: JoinedStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, list[Any]]] = []
    digests: list[str] = []

    def collect(delta: DataFrame, epoch: int, chain: str) -> None:
        digests.append(chain)
        seen.append((epoch, sorted(tuple(row) for row in delta.select("order_id", "name", "_row_kind").collect())))

    writer = joined.writeStream.foreachBatch(collect, form="row_kind").option("buckets", 1)
    monkeypatch.setattr(FunctionOutput, "publish", fail_once(FunctionOutput.publish, after=True))
    with pytest.raises(StreamingQueryException, match="the driver died beside its output"):
        finished(writer, tmp_path)

    query = finished(writer, tmp_path)

    changed = (1, [(1, "Ann", "-U"), (1, "Bobby", "+U"), (2, "Bob", "-U"), (2, "Bobby", "+U")])
    assert seen == [(0, [(1, "Ann", "+I"), (2, "Bob", "+I")]), changed, changed, (2, [(2, "Bobby", "-D")])]
    assert digests[1] == digests[2]
    assert len(set(digests)) == 3
    with pytest.raises(OptionError, match="pass verify\\(actual_df"):
        query.verify()


def upserts_of(joined: JoinedStream, tmp_path: Path, **options: Any) -> list[tuple[int, list[Any]]]:
    """Run the join into upserts, and return what the function saw."""
    seen: list[tuple[int, list[Any]]] = []

    def collect(delta: DataFrame, epoch: int) -> None:
        seen.append((epoch, sorted(tuple(row) for row in delta.select("order_id", "name", "_deleted").collect())))

    finished(joined.writeStream.foreachBatch(collect, form="upsert", **options).option("buckets", 2), tmp_path)
    return seen


def test_upserts_are_one_net_change_per_key_also_when_the_row_moved_between_buckets(
    joined: JoinedStream, tmp_path: Path
) -> None:
    assert upserts_of(joined, tmp_path) == [
        (0, [(1, "Ann", False), (2, "Bob", False)]),
        (1, [(1, "Bobby", False), (2, "Bobby", False)]),
        (2, [(2, "Bobby", True)]),
    ]


def test_two_live_rows_that_claim_one_upsert_key_stop_the_query_naming_it(joined: JoinedStream, tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"claims the key \{'name': 'Bobby'\}") as caught:
        upserts_of(joined, tmp_path, key=["name"])

    assert (caught.value.code, caught.value.facts["epoch"]) == ("KEY_CLAIMED_TWICE", 1)


@for_each(("key", "code"), [([], "MISSING_PRIMARY_KEY"), (["nope"], "UNKNOWN_COLUMN")])
def test_upserts_without_a_key_that_can_be_are_refused(joined: JoinedStream, tmp_path: Path, key: list[str], code: str) -> None:
    with pytest.raises(PlanError) as caught:
        upserts_of(joined, tmp_path, key=key)

    assert caught.value.code == code


PLACED: dict[str, Callable[[JoinStreamWriter, Path], JoinStreamWriter]] = {
    "duckdb": lambda writer, place: writer.toDuckDB(place / "view.duckdb", "v"),
    "parquet": lambda writer, place: writer.to("parquet", path=place / "log"),
    "delta": lambda writer, place: writer.to("delta", path=place / "table", form="weight"),
    "delta-view": lambda writer, place: writer.to("delta", path=place / "table"),
}


@pytest.mark.parametrize("output", some_of(PLACED.keys(), short=("delta-view",)))
def test_an_older_checkpoint_beside_a_newer_output_is_refused_before_a_row_is_lost(
    joined: JoinedStream, orders: Source, tmp_path: Path, output: str
) -> None:
    checkpoint, place = tmp_path / "cp", tmp_path / "out"
    finished(PLACED[output](joined.writeStream, place), tmp_path)
    shutil.copytree(checkpoint, tmp_path / "older")
    shutil.copytree(place, tmp_path / "older-out")
    orders.add(("i", 3, 10, "nib", 4))
    finished(PLACED[output](joined.writeStream, place), tmp_path)

    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "older", checkpoint)
    (orders.directory / "0003.parquet").unlink()
    orders.add(("i", 4, 10, "cap", 4))
    for _ in range(2):
        with pytest.raises(SinkError, match="epoch 3 is another one") as refused:
            finished(PLACED[output](joined.writeStream, place), tmp_path)
    shutil.rmtree(place)
    shutil.copytree(tmp_path / "older-out", place)
    query = finished(PLACED[output](joined.writeStream, place), tmp_path)

    assert refused.value.code == "SINK_OTHER_CHAIN"
    assert query.verify().equal
