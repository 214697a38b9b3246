"""Formats of rows inside Spark, and records beside them, in one query: the same changes give the same table.

The other formats of records are read by what reads these; `tests/spark/driver/test_record_decoder.py` has each.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Collected
from zset_join.core.errors import OptionError
from zset_join.spark import JoinQuery, changes

Run = Callable[..., JoinQuery]
RECORDS = "key string, value string, offset long"
TABLE = {"schema": "id bigint, v string", "keys": ["id"]}


def record(value: Any, number: int | None = None) -> dict[str, Any]:
    return {"key": None if number is None else json.dumps({"id": number}), "value": value and json.dumps(value)}


def debezium(op: str, number: int, text: str | None, lsn: int) -> dict[str, Any]:
    row = {"id": number, "v": text}
    return record({"op": op, "before": {"id": number}, "after": None if op == "d" else row, "source": {"lsn": lsn}}, number)


FORMATS: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any]]] = {
    "debezium-json": (
        RECORDS,
        [
            debezium("r", 1, "a", 5),
            debezium("r", 2, "x", 5),
            debezium("u", 1, "b", 6),
            debezium("d", 2, None, 7),
            record(None, 2),
            debezium("c", 3, "c", 8),
            debezium("u", 1, "a", 4),  # sent again after a crash, and older
        ],
        TABLE,
    ),
    "upsert-json": (  # a compacted topic from its beginning: one of the old values is gone, a deleted key is still there
        RECORDS,
        [record({"id": 2, "v": "x"}, 2), record({"id": 1, "v": "b"}, 1), record(None, 2), record({"v": "c"}, 3)],
        TABLE,
    ),
    "change-data-feed": (  # of Delta, and of `changes()` in Spark 4.2; rows of one commit come in any order
        "id long, v string, _change_type string, _commit_version long, _commit_timestamp timestamp",
        [
            {"id": 1, "v": "b", "_change_type": "update_postimage", "_commit_version": 2},
            {"id": 1, "v": "a", "_change_type": "update_preimage", "_commit_version": 2},
            {"id": 1, "v": "a", "_change_type": "insert", "_commit_version": 1},
            {"id": 2, "v": "x", "_change_type": "delete", "_commit_version": 2},
            {"id": 2, "v": "x", "_change_type": "update_postimage", "_commit_version": 1},
            {"id": 0, "v": "x", "_change_type": "update_preimage", "_commit_version": 1},
            {"id": 0, "v": "x", "_change_type": "insert", "_commit_version": 0},
            {"id": 3, "v": "c", "_change_type": "insert", "_commit_version": 3},
            {"id": 3, "v": "z", "_change_type": "delete", "_commit_version": 3},
            {"id": 3, "v": "z", "_change_type": "insert", "_commit_version": 2},
        ],
        {"keys": ["id"]},
    ),
    "row-kind": (
        "id long, v string, row_kind string",
        [
            {"id": 1, "v": "a", "row_kind": "+I"},
            {"id": 2, "v": "x", "row_kind": "+I"},
            {"id": 1, "v": "a", "row_kind": "-U"},
            {"id": 1, "v": "b", "row_kind": "+U"},
            {"id": 2, "v": "x", "row_kind": "-D"},
            {"id": 3, "v": "c", "row_kind": "+I"},
        ],
        {},
    ),
    "tp-delta": (
        "id long, v string, _tp_delta int",
        [
            {"id": 1, "v": "a", "_tp_delta": 1},
            {"id": 1, "v": "a", "_tp_delta": -1},
            {"id": 1, "v": "b", "_tp_delta": 1},
            {"id": 3, "v": "c", "_tp_delta": 1},
        ],
        {},
    ),
    "weight": ("id long, v string, _weight int", [{"id": 1, "v": "b", "_weight": 1}, {"id": 3, "v": "c", "_weight": 1}], {}),
}


def stream(spark: SparkSession, directory: Path, format_name: str, rows: list[dict[str, Any]], **more: Any) -> Any:
    """Return a stream of one file of changes; its column `v` has the name of the directory."""
    columns, _, given = FORMATS[format_name]
    directory.mkdir()
    name = directory.name
    lines = [json.dumps({**row, "offset": at} if "value" in row else row) for at, row in enumerate(rows)]
    text = "\n".join(lines).replace('"v"', f'"{name}"').replace('\\"v\\"', f'\\"{name}\\"')
    (directory / "1.json").write_text(text)
    df = spark.readStream.schema(columns.replace(" v string", f" {name} string")).json(str(directory))
    reported = {**given, "schema": f"id bigint, {name} string"} if "schema" in given else given
    return changes(df, name=name, format=format_name, **reported, **more)


def test_one_table_whatever_its_changes_were_written_as_and_where_its_baseline_was_taken(
    spark: SparkSession, tmp_path: Path, run: Run
) -> None:
    rows = [(1, "b"), (2, "x"), (4, "of the baseline alone")]
    baseline = spark.createDataFrame(rows, "id long, overlapped string")
    before, *since = FORMATS["debezium-json"][1]
    view = stream(spark, tmp_path / "overlapped", "debezium-json", since, baseline=baseline)
    for name, (_, written, _) in FORMATS.items():
        view = view.join(stream(spark, tmp_path / f"of_{name.replace('-', '_')}", name, written), on="id", how="full")
    sink = Collected()

    query = run(view, sink, buckets=1)

    others = len(FORMATS)
    assert before["value"] not in [one["value"] for one in since]
    assert sink.total() == {
        (1, *["b"] * (others + 1)): 1,
        (3, *["c"] * (others + 1)): 1,
        (4, "of the baseline alone", *[None] * others): 1,
    }
    assert query is not None


def test_a_condition_on_records_after_a_baseline_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.readStream.schema(RECORDS).json(str(tmp_path))

    with pytest.raises(OptionError) as refused:
        changes(df, name="t", format="debezium-json", **TABLE, baseline=df, after_baseline="true")

    assert refused.value.code == "CONFLICTING_ARGUMENTS"
