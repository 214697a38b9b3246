"""One table of connectors: what it refuses, and that an entry of it is all that an output needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tools.connector_tables import PAGES, with_table
from zset_join.connectors import CONNECTORS, Connector, Option, OutputSide, TableSide, register, sink
from zset_join.core.errors import OptionError
from zset_join.pipeline import Pipeline, appends
from zset_join.sinks.printed import PrintSink
from zset_join.sql import connect

COUNTS = appends("x", {"x": pa.int64()}).groupBy("x").count()


@pytest.fixture
def toy() -> Iterator[list[Any]]:
    """Register an output that keeps what it is given, and a table of it."""
    held: list[Any] = []

    class Toy(PrintSink):
        def write(self, epoch: int, chunks: Any, *, link: object = None) -> Any:
            given = list(chunks)
            held.extend(row for chunk in given for row in chunk.to_pylist())
            return super().write(epoch, given, link=link)

    def make(label: str = "") -> Toy:
        return Toy(label, is_silent=True)

    table = TableSide((Option("label", is_required=True),), output=lambda one: ("toy", {"label": one.options["label"]}))
    register(Connector("toy", OutputSide(make, "nothing", "no promise"), table))
    yield held
    del CONNECTORS["toy"]


def test_an_entry_is_all_that_an_output_needs_in_a_pipeline_in_sql_and_inside_spark(toy: list[Any]) -> None:
    from zset_join.runners.spark.epoch.named_outputs import output_named

    with Pipeline(COUNTS, outputs={"toy": {"label": "a"}}) as pipeline:
        pipeline.step({"x": [{"x": 1}]})
    with connect(dialect="flink") as session:
        session.sql("CREATE TABLE t (v INT); CREATE TABLE out (v INT) WITH ('connector' = 'toy', 'label' = 'b')")
        session.sql("INSERT INTO out SELECT v FROM t; INSERT INTO t VALUES (7)")
    inside = output_named("toy", {"label": "c"})

    assert toy == [((1, 1), 1), ((7,), 1)]
    assert "Toy object" in inside.describe()


def test_outputs_by_name_hold_every_epoch(tmp_path: Path) -> None:
    outputs = {"csv": {"path": tmp_path / "csv"}, "parquet": {"path": tmp_path / "log"}}
    for x in (1, 2):
        with Pipeline(COUNTS, tmp_path / "p", outputs=outputs) as pipeline:
            pipeline.step({"x": [{"x": x}, {"x": 1}]})

    assert len(list((tmp_path / "log").rglob("*.parquet"))) == 2
    files = [path.read_text().splitlines() for path in sorted((tmp_path / "csv").glob("*.csv"))]
    head = '"x","count","_weight"'
    assert [(lines[0], *sorted(lines[1:])) for lines in files] == [(head, "1,2,1"), (head, "1,2,-1", "1,3,1", "2,1,1")]


@pytest.mark.parametrize(
    ("name", "options", "code", "message"),
    [
        ("parqet", {}, "UNKNOWN_CONNECTOR", "there is no output 'parqet'. Did you mean parquet?"),
        ("datagen", {}, "UNKNOWN_CONNECTOR", "there is no output 'datagen'. There are blackhole, csv,"),
        ("csv", {"path": "p", "forms": "x"}, "UNKNOWN_OPTION", "'forms' of the output 'csv' is unknown. Did you mean form?"),
        ("duckdb", {"path": "p"}, "MISSING_OPTION", "the output 'duckdb' needs the option 'table'"),
        ("csv", {"path": "p", "form": "rows"}, "SINK_OPTION", "a form is one of weight, row_kind,"),
    ],
)
def test_a_name_or_an_option_that_is_not_there_is_refused(name: str, options: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(OptionError) as refused:
        sink(name, **options)

    assert refused.value.code == code
    assert message in str(refused.value)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_reference_has_the_table_of_the_source(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == with_table(page), "run python -m tools.connector_tables"
