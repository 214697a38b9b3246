"""Rows in files: what they look like, and what is refused. What holds for every sink is in `test_sink.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from zset_join.core.epochs import ChainLink
from zset_join.core.errors import OptionError, SinkError
from zset_join.core.relation import Relation
from zset_join.sinks.csv_files import CsvFilesSink
from zset_join.sinks.json_lines import RowFilesSink
from zset_join.sinks.sink import Sink
from zset_join.zset import ZSet

ROWS = ZSet.of({"k": [1, 2]})
ANSWER = Relation(name="answer", schema=ROWS.schema, mode="changelog")


def test_the_name_of_a_file_has_its_epoch_and_chain_and_an_epoch_without_rows_is_not_seen(tmp_path: Path) -> None:
    sink = RowFilesSink(tmp_path, "parquet")
    sink.open(ANSWER, "query")
    sink.write(0, [ROWS], link=ChainLink("d0"))
    sink.write(1, [], link=ChainLink("d1", "d0"))
    sink.write(2, [ROWS], link=ChainLink("d2", "d1"))

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "_epoch-000000000001-d1.parquet",
        "_query.json",
        "epoch-000000000000-d0.parquet",
        "epoch-000000000002-d2.parquet",
    ]


def test_a_retraction_is_refused_where_no_weights_are_written(tmp_path: Path) -> None:
    sink = RowFilesSink(tmp_path, "json")
    sink.open(ANSWER, "query")

    with pytest.raises(SinkError):
        sink.write(0, [-ROWS])
    assert sink.last_epoch() is None


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")

    with pytest.raises(SinkError, match=r"holds notes\.txt") as refused:
        RowFilesSink(tmp_path).open(ANSWER, "query")
    assert refused.value.code == "SINK_NAME_TAKEN"


def test_a_form_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="a form is one of json, parquet"):
        RowFilesSink(tmp_path, "orc")


@pytest.mark.parametrize(
    "make", [lambda place: RowFilesSink(place, with_weights=True), lambda place: CsvFilesSink(place, "tp_delta")]
)
def test_a_column_that_is_called_as_the_weight_is_refused(tmp_path: Path, make: Callable[[Path], Sink]) -> None:
    rows = ZSet.of({"_tp_delta": [1]})

    with pytest.raises(SinkError) as refused:
        make(tmp_path).open(Relation(name="answer", schema=rows.schema, mode="changelog"), "query")
    assert refused.value.code == "SINK_COLUMNS"
