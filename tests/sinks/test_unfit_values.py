"""What an output can never hold is known before the epoch counts: a table of extreme values against every sink."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.sinks.under_test import MAKERS, OUTPUT, SCHEMA
from zset_join.changelog.encoding import MOST_SINGLE_ROWS
from zset_join.core.errors import SinkError, ZsetJoinError
from zset_join.core.relation import Relation
from zset_join.core.shown_values import shown_column
from zset_join.pipeline import FunctionSink, Pipeline, changes
from zset_join.runners.common.rejected import SinkEpochs
from zset_join.sinks.csv_files import CsvFilesSink
from zset_join.sinks.delta_view import DeltaChangelogSink, DeltaViewSink
from zset_join.sinks.duckdb_view import DuckDBViewSink
from zset_join.sinks.json_lines import JsonLinesSink, RowFilesSink
from zset_join.sinks.parquet_changelog import ParquetChangelogSink
from zset_join.sinks.record_texts import RecordWriter
from zset_join.sinks.sink import Sink
from zset_join.sinks.unfit_values import UnfitRows, fitting, text_with_nul, unfit_rows, unfit_values, within_microseconds
from zset_join.stages import StageOptions
from zset_join.zset import ZSet, single_batch

SINKS: dict[str, Callable[[Path], Any]] = {
    "duckdb": lambda place: DuckDBViewSink(place / "v.duckdb", "v"),
    "delta view": lambda place: DeltaViewSink(str(place / "view")),
    "delta changelog": lambda place: DeltaChangelogSink(str(place / "log"), "weight"),
    "csv": lambda place: CsvFilesSink(place / "csv"),
    "parquet": lambda place: ParquetChangelogSink(str(place / "parquet")),
    "json": lambda place: JsonLinesSink(place / "json", "weight"),
    "json rows": lambda place: RowFilesSink(place / "json-rows", "json", with_weights=True),
    "parquet rows": lambda place: RowFilesSink(place / "rows", "parquet", with_weights=True),
}
_LARGEST = 2**63 - 1
_TIMES = [-_LARGEST - 1, -_LARGEST, 1 - _LARGEST, 0, -62_135_596_800_000_001, 253_402_300_800_000_000, _LARGEST - 1, _LARGEST]
_DAYS = [-(2**31), 1 - 2**31, -719_163, -719_162, 0, 2_932_897, 2**31 - 2, 2**31 - 1]


def as_type(numbers: list[int], kind: pa.DataType) -> pa.Array:
    return pa.array(numbers, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)


def as_text(*values: bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(list(values), pa.binary()).buffers())


def columns() -> Iterator[tuple[str, pa.Array]]:
    for unit in ("s", "ms", "us", "ns"):
        for zone in (None, "UTC"):
            yield f"timestamp[{unit}, {zone}]", as_type(_TIMES, pa.timestamp(unit, zone))
    yield "date", as_type(_DAYS, pa.date32())
    yield "time", as_type([0, 86_399_999_999, 86_400_000_001, -1, _LARGEST], pa.time64("us"))
    yield "double", pa.array([float("nan"), float("inf"), float("-inf"), -0.0, 5e-324, 1.7976931348623157e308])
    yield "float", pa.array([float("nan"), float("-inf"), 1e-45], pa.float32())
    yield "decimal", pa.array([Decimal("9" * 38), Decimal("-" + "9" * 38)])
    yield "text", as_text(b"\0", b"a\0b", b"\\N", b"\r\n", b"", "\U0010ffff".encode(), b"\xff", b"ok\xed\xa0\x80", b"\xf5")
    yield "bytes", pa.array([b"\0", b"", b"\xff"])
    for unit in ("s", "us"):
        inner = as_type([0, 2**62], pa.timestamp(unit, "UTC"))
        yield f"list of timestamps[{unit}]", pa.ListArray.from_arrays(pa.array([0, 1, 1, 2], pa.int32()), inner)
        yield f"struct of timestamps[{unit}]", pa.StructArray.from_arrays([inner], ["at"])


COLUMNS = dict(columns())


def opened(sink: Any, schema: pa.Schema) -> Any:
    sink.open(Relation(name="answer", schema=schema, mode="changelog"), "q")
    return sink


def shown(rows: pa.Table | pa.RecordBatch) -> list[str]:
    return sorted(map(str, zip(*map(shown_column, rows.columns), strict=True)))


@pytest.mark.parametrize("sink_name", SINKS)
def test_a_row_is_refused_before_the_commit_or_written_and_read_again(sink_name: str, tmp_path: Path) -> None:
    held = dict(COLUMNS)
    while True:  # without the columns that the sink refuses when it is opened
        batches = [pa.RecordBatch.from_pydict({name: column}) for name, column in held.items()]
        table = pa.concat_tables(map(pa.Table.from_batches, ([batch] for batch in batches)), promote_options="default")
        rows = single_batch(table.append_column("k", pa.array(range(len(table)))))
        try:
            sink = opened(SINKS[sink_name](tmp_path), rows.schema)
            break
        except SinkError as refused:
            del held[refused.facts["column"]]
    kept = fitting(sink, ZSet(rows, np.ones(len(rows), np.int64)), drops=True, epoch=0)
    sink.write(0, [kept])
    if "json" in sink_name:
        lines = [json.loads(line) for line in next(tmp_path.rglob("*0000*.json*")).read_text().splitlines()]
        written = [json.loads(line["value"]) if sink_name == "json" else line for line in lines]
        assert sorted(row["k"] for row in written) == sorted(kept.rows.column("k").to_pylist())
        times = [value for row in written for name, value in row.items() if value and ("time" in name or "date" in name)]
        assert times
        assert not [value for value in times if "inf" in str(value) or "BC" in str(value) or "/" in str(value)]
    else:
        table = sink.read() if sink_name != "parquet rows" else pq.read_table(next((tmp_path / "rows").glob("epoch-*")))
        read = table.select(kept.rows.schema.names).cast(kept.rows.schema)
        assert shown(read) == shown(kept.rows)
    refused_rows = set(range(len(rows))) - set(kept.rows.column("k").to_pylist())
    assert {name for name, column in held.items() if refused_rows & places_of(rows, name)} >= {"text"}
    sink.close()


def places_of(rows: pa.RecordBatch, name: str) -> set[int]:
    return set(np.flatnonzero(np.asarray(rows.column(name).is_valid())).tolist())


def test_ordinary_values_fit_every_output(tmp_path: Path) -> None:
    rows = pa.RecordBatch.from_pydict(
        {
            "at": as_type([-62_135_596_800_000, 0, 253_402_300_799_999], pa.timestamp("ms", "UTC")),
            "day": as_type([-719_162, 0, 2_932_896], pa.date32()),
            "text": ["a", None, "\U0001f600"],
            "numbers": [[float("nan")], None, []],
        }
    )
    for name, make in SINKS.items():
        held = rows.drop_columns(["numbers"]) if name == "csv" else rows
        sink = opened(make(tmp_path), held.schema)
        assert not unit_names(unfit_rows(sink, held))
        sink.close()


def test_null_in_the_only_column_is_refused_where_its_line_of_csv_would_be_empty(tmp_path: Path) -> None:
    rows = ZSet.of({"v": ["a", None]})
    sink = opened(CsvFilesSink(tmp_path / "rows", "append"), rows.schema)

    with pytest.raises(SinkError, match="line would be empty") as refused:
        sink.write(0, [rows])

    assert (refused.value.code, sink.last_epoch()) == ("SINK_VALUE", None)


def unit_names(found: Any) -> list[str]:
    return [one.column for one in found]


def test_flags_are_at_the_row_whose_nested_value_is_meant() -> None:
    bad = pa.array([None, 0, 2**62], pa.int64()).view(pa.timestamp("s"))
    nested = {
        "list": pa.ListArray.from_arrays(pa.array([0, None, 1, 1, 3], pa.int32()), bad),
        "struct": pa.StructArray.from_arrays([bad.slice(2).take(pa.array([0, None, None, None])), pa.nulls(4)], ["at", "n"]),
        "map": pa.MapArray.from_arrays(pa.array([0, 1, 2, 2, 3], pa.int32()), pa.array(["a", "b", "c"]), bad),
        "fixed": pa.FixedSizeListArray.from_arrays(bad.take(pa.array([1, 1, 1, 1, 2, 1, 1, 1])), 2),
        "dictionary": pa.array(["x", "y", "x", None]).dictionary_encode(),
    }
    rows = pa.RecordBatch.from_pydict(nested)
    found = {one.column: np.flatnonzero(one.rows).tolist() for one in unfit_values(rows, within_microseconds)}
    assert found == {"list": [3], "struct": [0], "map": [3], "fixed": [2]}
    sliced = {one.column: np.flatnonzero(one.rows).tolist() for one in unfit_values(rows.slice(1), within_microseconds)}
    assert sliced == {"list": [2], "map": [2], "fixed": [1]}


def test_a_text_with_nul_is_found_also_in_a_slice() -> None:
    rows = pa.RecordBatch.from_pydict({"n": [1, 2, 3, 4], "t": ["\0", None, "b\0c", "d"], "b": [b"\0"] * 4})
    assert [(one.column, one.rows.tolist()) for one in text_with_nul(rows)] == [("t", [True, False, True, False])]
    assert [one.rows.tolist() for one in text_with_nul(rows.slice(1))] == [[False, True, False]]


@pytest.mark.parametrize("form", ["upsert", "weight", "debezium"])
def test_a_record_that_fits_by_its_size_is_no_larger_than_the_bound(form: Any) -> None:
    schema = pa.schema({"k": pa.int64(), "t": pa.string(), "n": pa.list_(pa.string())})
    texts = ["x" * 10, "\1" * 300, "x" * 20_000, '"' * 4_000, "\u20ac" * 2_000]
    rows = pa.RecordBatch.from_arrays(
        [pa.array(range(5)), pa.array(texts), pa.array([[text] for text in texts])], schema=schema
    )
    writer = RecordWriter(schema, form, ["k"])
    (unfit,) = writer.oversized(rows, 10_000)
    places = np.flatnonzero(~unfit.rows)
    records = writer.records(ZSet(rows.take(pa.array(places)), np.ones(len(places), np.int64)), epoch=0)
    assert not unfit.rows[0]
    assert unfit.rows[2]
    assert all(len(key.encode()) + len((value or "").encode()) <= 10_000 for key, value, _ in records)
    assert not writer.oversized(rows, 10_000_000)
    writer.close()


# ---------------------------------------------------------------- weights

APPENDING: dict[str, Callable[[Path], Any]] = {
    "csv-append": lambda place: CsvFilesSink(place / "rows", "append"),
    "rows-append": lambda place: RowFilesSink(place / "rows"),
    "function-debezium": lambda _: FunctionSink(print, form="debezium"),
}
ANSWERS: dict[str, list[tuple[int, str, int]]] = {
    "many copies": [(1, "a", MOST_SINGLE_ROWS + 1)],
    "many retractions": [(1, "a", -MOST_SINGLE_ROWS - 1)],
    "many together": [(key, "a", MOST_SINGLE_ROWS // 4) for key in range(5)],
    "the most": [(1, "a", 2**63 - 1)],
    "the least": [(1, "a", -(2**63) + 1)],
    "two rows of one key": [(1, "a", 1), (1, "b", 1)],
    "two copies": [(1, "a", 2)],
    "a retraction": [(1, "a", -1)],
}


@pytest.mark.parametrize("name", [*MAKERS, *APPENDING])
def test_the_weights_that_a_sink_does_not_write_are_refused_before_the_commit(name: str, tmp_path: Path) -> None:
    stuck = []
    for case, rows in ANSWERS.items():
        keys, texts, weights = zip(*rows, strict=True)
        answer = ZSet.of({"k": keys, "v": texts, "x": [0.5] * len(rows)}, weights, schema=SCHEMA)
        sink = MAKERS[name].make(tmp_path / case) if name in MAKERS else APPENDING[name](tmp_path / case)
        sink.open(OUTPUT, "query")
        try:
            SinkEpochs(sink).put_aside(0, [answer])
            sink.write(0, [answer])
        except ZsetJoinError as refused:
            is_before = "nothing was applied" in refused.message
            stuck += [] if is_before or refused.code == "SINK_RETRACTION" else [(case, refused.code)]
        sink.close()
    assert not stuck


@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize(
    ("policy", "wanted", "aside"),
    [("error", [1, 6], []), ("quarantine", [1, 3, 6], [MOST_SINGLE_ROWS + 1, -MOST_SINGLE_ROWS - 1])],
)
def test_a_weight_that_an_output_does_not_take_fails_its_epoch_or_is_set_aside_at_the_input(
    policy: Any, wanted: list[int], aside: list[int], lasts: bool, tmp_path: Path
) -> None:
    source, most = changes("s", {"k": pa.int64(), "w": pa.int64()}, weight_column="w"), MOST_SINGLE_ROWS
    taken: list[Any] = []

    def opened() -> Pipeline:
        sinks = [JsonLinesSink(tmp_path / "lines", "row_kind"), FunctionSink(lambda _, delta: taken.extend(delta.to_pylist()))]
        options = StageOptions(on_bad_input=policy)
        return Pipeline(source, tmp_path / "d" if lasts else None, outputs=sinks, options=options)

    pipeline, refused, letters = opened(), [], []
    for rows in ([(1, 1)], [(2, most + 1), (3, 1)], [(2, -most - 1)], [(4, most // 2 + 1), (5, most // 2 + 1)], [(6, 1)]):
        try:
            pipeline.step({"s": [{"k": key, "w": weight} for key, weight in rows]})
            letters += pipeline.dead_letters.column("weight").to_pylist()
        except ZsetJoinError as error:
            refused.append((error.code, bool(re.search("nothing (of it )?was applied", error.message))))

    assert (taken, letters) == ([((key,), 1) for key in wanted], aside)
    codes = ["TOO_MANY_ROWS", "ABSENT_ROW", "TOO_MANY_ROWS"] if policy == "error" else ["TOO_MANY_ROWS"]
    assert refused == [(code, True) for code in codes]
    pipeline.close()
    opened().close() if lasts else None


# ---------------------------------------------------------------- in a pipeline


class Picky(FunctionSink):
    """Take no text with U+0000, as PostgreSQL does."""

    def __repr__(self) -> str:
        return "Picky()"

    def unfit(self, rows: pa.RecordBatch) -> list[UnfitRows]:
        return text_with_nul(rows)


def sinks_of(taken: list[Any], other: list[Any]) -> list[Sink]:
    return [
        Picky(lambda epoch, delta: taken.append((epoch, delta.to_pylist()))),
        FunctionSink(lambda epoch, delta: other.append((epoch, delta.to_pylist()))),
    ]


@pytest.mark.parametrize("lasts", [False, True])
def test_a_refused_value_leaves_the_pipeline_as_it_was(lasts: bool, tmp_path: Path) -> None:
    view = changes("s", {"k": pa.int64(), "v": pa.string()}, keys="k")
    taken: list[Any] = []
    with Pipeline(view, tmp_path / "d" if lasts else None, outputs=sinks_of(taken, [])) as pipeline:
        pipeline.step({"s": [{"k": 1, "v": "a"}]})
        with pytest.raises(SinkError, match=r'Picky\(\) .* "v" is .b.x00c., which contains the character U\+0000') as refused:
            pipeline.step({"s": [{"k": 1, "v": "b\0c"}, {"k": 2, "v": "d"}]})
        assert refused.value.code == "SINK_VALUE"
        pipeline.step({"s": [{"k": 2, "v": "e"}]})
        assert pipeline.view().to_pylist() == [{"k": 1, "v": "a"}, {"k": 2, "v": "e"}]
    assert taken == [(0, [((1, "a"), 1)]), (1, [((2, "e"), 1)])]


@pytest.mark.parametrize("lasts", [False, True])
def test_under_quarantine_the_output_holds_the_rows_that_fit_and_the_others_are_dead_letters(
    lasts: bool, tmp_path: Path
) -> None:
    view = changes("s", {"k": pa.int64(), "v": pa.string()}, keys="k")
    taken: list[Any] = []
    other: list[Any] = []

    def opened_again() -> Pipeline:
        directory = tmp_path / "d" if lasts else None
        return Pipeline(view, directory, outputs=sinks_of(taken, other), options=StageOptions(on_bad_input="quarantine"))

    pipeline = opened_again()
    pipeline.step({"s": [{"k": 1, "v": "a"}, {"k": 2, "v": "d"}]})
    pipeline.step({"s": [{"k": 1, "v": "b\0c"}]})
    letters = pipeline.dead_letters.select(["source", "row", "weight", "code"]).to_pylist()
    assert letters == [{"source": "Picky()", "row": '{"k": 1, "v": "b\\u0000c"}', "weight": 1, "code": "SINK_VALUE"}]
    if lasts:
        pipeline.close()
        taken.clear()
        pipeline = opened_again()
        assert taken == [(1, [((1, "a"), -1)])], "the last epoch is given again as it was"
        taken.insert(0, (0, [((1, "a"), 1), ((2, "d"), 1)]))
    pipeline.step({"s": [{"k": 1, "v": "mended"}]})
    assert taken == [(0, [((1, "a"), 1), ((2, "d"), 1)]), (1, [((1, "a"), -1)]), (2, [((1, "mended"), 1)])]
    assert other[-1] == (2, [((1, "b\0c"), -1), ((1, "mended"), 1)])
    pipeline.close()


def test_a_committed_epoch_that_an_output_cannot_take_goes_on_under_quarantine(tmp_path: Path) -> None:
    view = changes("s", {"k": pa.int64(), "v": pa.string()}, keys="k")
    with Pipeline(view, tmp_path / "d") as pipeline:
        pipeline.step({"s": [{"k": 1, "v": "b\0c"}, {"k": 2, "v": "d"}]})
    taken: list[Any] = []
    with pytest.raises(SinkError, match="SINK_VALUE"):
        Pipeline(view, tmp_path / "d", outputs=sinks_of(taken, []))
    quarantine = StageOptions(on_bad_input="quarantine")
    Pipeline(view, tmp_path / "d", outputs=sinks_of(taken, []), options=quarantine).close()
    assert taken == [(0, [((2, "d"), 1)])]
