"""Outputs show their position, and do not change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from faults.sinks import SINKS
from zset_join.cli import main
from zset_join.core.epochs import ChainLink
from zset_join.core.errors import OptionError, SinkError
from zset_join.core.relation import Relation
from zset_join.pipeline import Pipeline, changes
from zset_join.pipeline import functions as ZF  # noqa: N812 - as users write F
from zset_join.sinks.delta_view import DeltaViewSink
from zset_join.sinks.duckdb_view import DuckDBViewSink
from zset_join.tools.position import positions
from zset_join.zset import ZSet

ROWS = ZSet.of({"k": [1, 2]})
RELATION = Relation(name="answer", schema=ROWS.schema, mode="changelog")


def link(epoch: int, chain: str = "d") -> ChainLink:
    return ChainLink(f"{chain}{epoch}", f"{chain}{epoch - 1}" if epoch else None)


@contextmanager
def opened(sink: Any, query_id: str = "q") -> Iterator[Any]:
    sink.open(RELATION, query_id)
    try:
        yield sink
    finally:
        sink.close()


def written(sink: Any, epochs: range, *, query_id: str = "q", chain: str = "d") -> None:
    with opened(sink, query_id):
        for epoch in epochs:
            sink.write(epoch, [ROWS] if epoch % 2 == 0 else [], link=link(epoch, chain))


def contents(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("kind", SINKS)
def test_an_output_of_any_kind_may_be_beside_one_that_is_ahead_and_is_only_read(tmp_path: Path, kind: str) -> None:
    written(SINKS[kind].make(tmp_path), range(3))
    written(SINKS["parquet"].make(tmp_path / "ahead"), range(4), query_id="q/v")
    before = contents(tmp_path)

    found = positions([tmp_path / SINKS[kind].lies, tmp_path / "ahead" / "log"])

    one, ahead = found.outputs
    assert (one.query, one.view, one.epoch, ahead.query, ahead.view, ahead.epoch) == ("q", None, 2, "q", "v", 3)
    assert (found.common, found.is_well, one.at_common, ahead.at_common) == (
        2,
        True,
        "as it is",
        "read_changelog(..., up_to_epoch=2)",
    )
    assert contents(tmp_path) == before


@pytest.mark.parametrize("kind", SINKS)
def test_outputs_of_two_chains_share_what_is_before_the_fork(tmp_path: Path, kind: str) -> None:
    written(SINKS[kind].make(tmp_path), range(5), chain="other")
    sink = SINKS["parquet"].make(tmp_path / "one")
    with opened(sink):
        for epoch in range(4):
            sink.write(
                epoch, [ROWS], link=link(epoch, "other" if epoch < 2 else "d") if epoch != 2 else ChainLink("d2", "other1")
            )

    found = positions([tmp_path / SINKS[kind].lies, tmp_path / "one" / "log"])

    assert (found.common, found.is_forked, found.is_well) == (1, True, False)
    assert "from epoch 2 on" in found.reason


def test_a_delta_view_is_read_at_an_older_epoch_by_its_version_and_other_commits_do_not_matter(tmp_path: Path) -> None:
    sink = DeltaViewSink(tmp_path / "table", key=())
    written(sink, range(1))
    DeltaTable(tmp_path / "table").optimize.compact()
    written(sink, range(3))
    written(SINKS["view"].make(tmp_path), range(2))

    found = positions([tmp_path / "table", tmp_path / "view.duckdb"])

    version = int((found.outputs[0].at_common or "").split()[1])
    assert (found.common, DeltaTable(tmp_path / "table", version=version).to_pyarrow_table().num_rows) == (1, 2)
    assert DeltaTable(tmp_path / "table").to_pyarrow_table().num_rows == 4


def test_what_cannot_be_measured_is_reported(tmp_path: Path) -> None:
    written(SINKS["view"].make(tmp_path), range(130))  # keeps the newest hundred digests
    written(SINKS["parquet"].make(tmp_path), range(20))
    with opened(SINKS["csv"].make(tmp_path)) as unlinked:
        unlinked.write(0, [ROWS])
    with opened(SINKS["json"].make(tmp_path)):
        pass
    written(SINKS["files"].make(tmp_path), range(2), query_id="another")
    log = tmp_path / "log"

    assert "view.duckdb#joined does not show which epoch 19" in positions([log, tmp_path / "view.duckdb"]).reason
    assert "csv does not show which epoch 0" in positions([log, tmp_path / "csv"]).reason
    assert "json holds no epoch yet" in positions([log, tmp_path / "json"]).reason
    assert "2 queries, another, q" in positions([log, tmp_path / "rows"]).reason
    assert [positions([tmp_path / name]).common for name in ("csv", "json", "view.duckdb")] == [None, None, 129]
    with pytest.raises(OptionError, match="no output of a query"):
        positions([tmp_path])
    with pytest.raises(SinkError, match=r"has the views \['joined'\], and not 'left'"):
        positions([f"{tmp_path}/view.duckdb#left"])
    (tmp_path / "shop.duckdb").write_bytes(b"something else")
    with pytest.raises(SinkError, match=r"shop\.duckdb"):
        positions([tmp_path / "shop.duckdb"])


def test_the_command_line_shows_two_views_of_a_file_and_a_changelog(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = changes("rows", {"k": pa.int64(), "x": pa.int64()}, keys="k")
    views = {"all": rows, "total": rows.agg(ZF.sum("x").alias("x"))}
    file = str(tmp_path / "shop.duckdb")
    sinks = {"all": [DuckDBViewSink(file, "a b", hold_seconds=0), SINKS["delta-log"].make(tmp_path)],
             "total": [DuckDBViewSink(file, "total", hold_seconds=0)]}  # fmt: skip
    with Pipeline(views, tmp_path / "state", outputs=sinks) as pipeline:
        pipeline.step({"rows": [{"k": 1, "x": 2}]})
        pipeline.step({"rows": [{"k": 1, "x": 3}]})

    assert main(["position", file, str(tmp_path / "feed")]) == 0
    table = capsys.readouterr().out
    assert main(["position", "--json", f"{file}#total", str(tmp_path / "feed")]) == 0
    reported = json.loads(capsys.readouterr().out)

    assert [line.split()[0] for line in table.splitlines()[:4]] == [
        "output",
        f"{file}#a",
        f"{file}#total",
        str(tmp_path / "feed"),
    ]
    assert "newest common epoch: 1" in table
    assert [(one["kind"], one["view"], one["epoch"]) for one in reported["outputs"]] == [
        ("duckdb", "total", 1),
        ("delta changelog", "all", 1),
    ]
    assert len({one["mark"] for one in reported["outputs"]}) == 1

    with duckdb.connect(file) as connection:
        connection.execute("UPDATE _zset_join_epochs SET chain = '[[1, \"another\"]]'")
    assert main(["position", file, str(tmp_path / "feed")]) == 1
