"""Directories that an earlier version made continue: two pipelines of commit e303961, each with two epochs."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from zset_join.core.errors import StateError
from zset_join.expressions import col
from zset_join.lookup import ArrowSource
from zset_join.pipeline import Pipeline
from zset_join.query import View, appends, changes
from zset_join.query import functions as F  # noqa: N812 - as PySpark users write F
from zset_join.stages.deduplicate import DeduplicateStage
from zset_join.stages.stage import Stage
from zset_join.storage.sealed import seal, unseal

ORDERS = {"order_id": pa.int64(), "customer_id": pa.int64(), "total": pa.int64()}
CUSTOMERS = {"customer_id": pa.int64(), "city": pa.string()}
NEXT = {
    "orders": [{"order_id": 1, "customer_id": 10, "total": 50}, {"order_id": 3, "customer_id": 30, "total": 9}],
    "customers": [{"customer_id": 20, "city": "Bonn"}],
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Give the directory of both pipelines, without the local state, which is a cache."""
    with tarfile.open(Path(__file__).parent / "earlier" / "e303961.tar.gz") as stored:
        stored.extractall(tmp_path, filter="data")
    return tmp_path


def joined() -> View:
    orders = changes("orders", ORDERS, keys="order_id")
    return orders.join(changes("customers", CUSTOMERS, keys="customer_id"), on="customer_id", how="left")


def by_city() -> View:
    rows = joined().where(col("total") > 0)
    return rows.groupBy("city").agg(F.sum("total").alias("revenue"), F.count().alias("orders"))


def lines(rows: pa.Table) -> list[str]:
    return sorted(str(tuple(row.values())) for row in rows.to_pylist())


@pytest.mark.parametrize(
    ("kind", "view", "before", "after"),
    [
        (
            "join",
            joined,
            ["(10, 1, 6, 'Bonn')", "(20, 2, 7, 'Kiel')"],
            ["(10, 1, 50, 'Bonn')", "(20, 2, 7, 'Bonn')", "(30, 3, 9, None)"],
        ),
        ("groups", by_city, ["('Bonn', 6, 1)", "('Kiel', 7, 1)"], ["('Bonn', 57, 2)", "(None, 9, 1)"]),
    ],
)
def test_a_directory_of_an_earlier_version_goes_on(
    place: Path, kind: str, view: Callable[[], View], before: list[str], after: list[str]
) -> None:
    with Pipeline(view(), directory=place / kind) as pipeline:
        assert (pipeline.epoch, lines(pipeline.view())) == (2, before)

        pipeline.step(NEXT)

        assert lines(pipeline.view()) == after

    with Pipeline(view(), directory=place / kind) as again:  # what both versions wrote
        assert (again.epoch, lines(again.view())) == (3, after)


def test_another_query_is_refused_by_it(place: Path) -> None:
    with pytest.raises(StateError, match="QUERY_CHANGED"):
        Pipeline(by_city(), directory=place / "join")


def test_a_directory_of_a_version_that_narrowed_less_is_refused_with_what_opens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clicks = appends("clicks", {"user": pa.int64(), "at": pa.int64(), "page": pa.int64()})
    first = clicks.dedup("user", order_by="at").select("user")
    with monkeypatch.context() as earlier:
        earlier.setattr(DeduplicateStage, "needs", Stage.needs)
        with Pipeline(first, tmp_path, keep_state="needed") as pipeline:
            pipeline.step({"clicks": [{"user": 1, "at": 2, "page": 3}]})

    with pytest.raises(StateError, match=r'QUERY_CHANGED.* keep_state="all" .* opens the checkpoint'):
        Pipeline(first, tmp_path, keep_state="needed")
    with Pipeline(first, tmp_path) as opened:
        assert lines(opened.view()) == ["(1,)"]


@pytest.mark.parametrize("is_option_written", [True, False])
def test_a_directory_that_lists_what_it_does_not_keep_takes_a_column_more(tmp_path: Path, is_option_written: bool) -> None:
    def view(*more: str) -> View:
        rows = appends("rows", {name: pa.int64() for name in ("k", "note", *more)})
        return rows.join(appends("others", {"k": pa.int64()}), on="k").select("k", *more)

    with Pipeline(view(), tmp_path, keep_state="needed") as pipeline:
        pipeline.step({"rows": [{"k": 1, "note": 2}], "others": [{"k": 1}]})
    (file,) = tmp_path.rglob("stages.json")
    written = unseal(file.read_bytes(), version=2, name=file.name)
    written["plan"]["dropped"] = [["rows", ["note"]]]
    if not is_option_written:
        del written["plan"]["keep_state"]
    file.write_bytes(seal(written, version=2, name=file.name))

    with pytest.raises(StateError, match=r'QUERY_CHANGED.* changed with keep_state="needed"'):
        Pipeline(view(), tmp_path)
    with Pipeline(view("x"), tmp_path, keep_state="needed") as opened:
        assert lines(opened.view()) == ["(1, None)"]


@pytest.mark.parametrize("column", ["dropped", "keep_state"])
def test_columns_that_are_called_like_fields_of_a_plan_count(tmp_path: Path, column: str) -> None:
    source = ArrowSource(name="names", table=pa.table({"k": [1, 1], column: [0, 1]}))

    def view(value: int) -> View:
        return appends("rows", {"k": pa.int64()}).lookup_join(source, on="k", constants={column: value})

    with Pipeline(view(0), tmp_path) as pipeline:
        pipeline.step({"rows": [{"k": 1}]})

    with pytest.raises(StateError, match="QUERY_CHANGED"):
        Pipeline(view(1), tmp_path)
