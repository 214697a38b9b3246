"""Types, files and statistics of a Delta table."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import Schema

from zset_join.core.errors import SinkError
from zset_join.sinks.delta_files import DataFile, delta_schema, read_data_file, write_data_files
from zset_join.storage.folder import open_folder

UTC = dt.timezone.utc  # noqa: UP017 - the name that pytest's parameters print

VALUES = [
    (pa.bool_(), [True, None, False]),
    (pa.int8(), [-128, None, 127]),
    (pa.int64(), [-(2**63), None, 2**63 - 1]),
    (pa.float32(), [0.5, None, float("inf")]),
    (pa.float64(), [-0.0, None, 1e308]),
    (pa.string(), ["", None, "naïve 名前"]),
    (pa.large_string(), ["", None, "x" * 100]),
    (pa.binary(), [b"", None, b"\x00\xff"]),
    (pa.large_binary(), [b"", None, b"\x00"]),
    (pa.date32(), [dt.date(1, 1, 1), None, dt.date(9999, 12, 31)]),
    (pa.decimal128(38, 2), [Decimal("0.00"), None, Decimal("-1.25")]),
    (pa.timestamp("us"), [dt.datetime(1900, 1, 1), None, dt.datetime(2025, 1, 1, 0, 0, 0, 1)]),
    (pa.timestamp("us", tz="UTC"), [dt.datetime(1900, 1, 1, tzinfo=UTC), None]),
    (pa.timestamp("ms"), [dt.datetime(2025, 1, 1), None]),
    (pa.list_(pa.int32()), [[], None, [1, None]]),
    (pa.large_list(pa.string()), [["a"], None, []]),
    (pa.struct({"a": pa.int64(), "b": pa.list_(pa.string())}), [{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}]),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1)], None, []]),
]


def written(place: Path, column: pa.Array, *, target_bytes: int = 1 << 20, times: int = 1) -> tuple[list[DataFile], pa.Schema]:
    schema = delta_schema("table", pa.schema({"c": column.type}))
    batch = pa.RecordBatch.from_arrays([column], names=["c"])
    return write_data_files(open_folder(place), "part", schema, [batch] * times, target_bytes=target_bytes), schema


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[str(kind) for kind, _ in VALUES])
def test_a_value_comes_back_as_it_went_in(kind: pa.DataType, values: list[Any], tmp_path: Path) -> None:
    (file,), _ = written(tmp_path, pa.array(values, kind))

    assert read_data_file(open_folder(tmp_path), file, pa.schema({"c": kind})).column("c").to_pylist() == values


@pytest.mark.parametrize("kind", [kind for kind, _ in VALUES], ids=str)
def test_delta_has_every_type_that_is_kept(kind: pa.DataType) -> None:
    schema = delta_schema("table", pa.schema({"c": kind}))

    assert Schema.from_arrow(schema).fields[0].name == "c"


@pytest.mark.parametrize(
    "kind",
    [
        pa.uint8(),
        pa.float16(),
        pa.timestamp("ns"),
        pa.duration("us"),
        pa.time64("us"),
        pa.month_day_nano_interval(),
        pa.null(),
        pa.decimal256(40, 2),
        pa.dictionary(pa.int8(), pa.string()),
        pa.list_(pa.uint8()),
        pa.struct({"a": pa.duration("s")}),
        pa.map_(pa.string(), pa.time32("s")),
    ],
    ids=str,
)
def test_a_type_that_delta_does_not_have_is_named(kind: pa.DataType) -> None:
    with pytest.raises(SinkError, match='cannot keep column "c"') as caught:
        delta_schema("table", pa.schema({"c": kind}))

    assert caught.value.code == "SINK_TYPE"


@pytest.mark.parametrize("names", [["a", "A"], ["a", ""], []], ids=["case", "empty", "none"])
def test_column_names_that_delta_cannot_have_are_refused(names: list[str]) -> None:
    with pytest.raises(SinkError) as caught:
        delta_schema("table", pa.schema([(name, pa.int64()) for name in names]))

    assert caught.value.code == "SINK_COLUMNS"


def statistics_of(place: Path, column: pa.Array) -> tuple[Any, Any, Any]:
    (file,), _ = written(place, column)
    found = json.loads(file.statistics())
    return found["minValues"].get("c"), found["maxValues"].get("c"), found["nullCount"].get("c")


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([3, None, -1]), (-1, 3, 1)),
        (pa.array(["b", "a", None]), ("a", "b", 1)),
        (pa.array(["b", "a" * 33]), (None, None, 0)),
        (pa.array([dt.date(2025, 1, 2), dt.date(2024, 1, 1)]), ("2024-01-01", "2025-01-02", 0)),
        (pa.array([dt.datetime(2025, 1, 1, 0, 0, 0, 1)]), ("2025-01-01T00:00:00.000", "2025-01-01T00:00:00.001", 0)),
        (pa.array([dt.datetime(2025, 1, 1, tzinfo=UTC)]), ("2025-01-01T00:00:00.000Z", "2025-01-01T00:00:00.000Z", 0)),
        (pa.array([0.5, float("nan")]), (None, None, 0)),
        (pa.array([None], pa.int64()), (None, None, 1)),
        (pa.array([[1]]), (None, None, None)),
        (pa.array([-(2**62), 2**62], pa.timestamp("us")), (None, None, 0)),
    ],
    ids=str,
)
def test_the_statistics_of_a_column_are_true_and_no_more(column: pa.Array, expected: tuple[Any, ...], tmp_path: Path) -> None:
    assert statistics_of(tmp_path, column) == expected


def test_bounds_hold_for_all_row_groups(tmp_path: Path) -> None:
    (file,), _ = written(tmp_path, pa.array(range(300_000)))

    assert (file.rows, file.least, file.most) == (300_000, {"c": 0}, {"c": 299_999})


def test_a_file_that_has_grown_past_its_size_is_ended(tmp_path: Path) -> None:
    files, schema = written(tmp_path, pa.array(range(200_000)), target_bytes=1, times=2)

    assert [file.rows for file in files] == [131_072, 131_072, 131_072, 6_784]
    assert sum(read_data_file(open_folder(tmp_path), file, schema).num_rows for file in files) == 400_000


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    assert written(tmp_path, pa.array([], pa.int64()))[0] == []


def test_rows_that_fail_to_come_leave_no_file(tmp_path: Path) -> None:
    def pieces() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"c": list(range(140_000))})
        raise RuntimeError("the operator failed")

    with pytest.raises(RuntimeError):
        write_data_files(open_folder(tmp_path), "part", pa.schema({"c": pa.int64()}), pieces(), target_bytes=1)

    assert list(tmp_path.iterdir()) == []


def test_a_column_is_read_by_its_whole_name(tmp_path: Path) -> None:
    schema = pa.schema({"a": pa.struct({"b": pa.int64()}), "a.b": pa.int64()})
    batch = pa.record_batch([pa.array([{"b": 1}]), pa.array([2])], schema=schema)
    (file,) = write_data_files(open_folder(tmp_path), "part", schema, [batch], target_bytes=1 << 20)

    found = read_data_file(open_folder(tmp_path), file, pa.schema({"a.b": pa.int64()}))

    assert found.to_pylist() == [{"a.b": 2}]
