"""The materialized view in a DuckDB file."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from property_tests.profiles import examples
from zset_join.core.errors import OptionError, SinkError, WeightOverflowError
from zset_join.core.relation import Relation
from zset_join.sinks.duckdb_view import DuckDBViewSink
from zset_join.zset import ZSet

NAN = float("nan")


def opened(path: Path | str, schema: pa.Schema, *, table: str = "view", **options: Any) -> DuckDBViewSink:
    sink = DuckDBViewSink(path, table, **options)
    sink.open(Relation(name="answer", schema=schema, mode="changelog"), "query")
    return sink


def bag(table: pa.Table) -> Counter[str]:
    """Count the rows of a table; as text, so that NaN and nested values can be counted."""
    return Counter(repr(tuple(row.values())) for row in table.to_pylist())


def rows_of(*rows: tuple[Any, ...]) -> Counter[str]:
    return Counter(repr(row) for row in rows)


def held(sink: DuckDBViewSink) -> Counter[str]:
    return bag(sink.read())


# -- bags --------------------------------------------------------------------------------------------------------------


def test_a_row_is_in_the_view_as_often_as_its_weight(tmp_path: Path) -> None:
    row = ZSet.of({"k": ["a", "b"]}, [3, 1])
    sink = opened(tmp_path / "views.duckdb", row.schema)
    sink.write(0, [row])
    sink.close()

    with duckdb.connect(str(tmp_path / "views.duckdb")) as connection:
        assert sorted(connection.execute("SELECT k FROM view").fetchall()) == [("a",)] * 3 + [("b",)]


def test_changes_of_one_row_within_an_epoch_cancel_out() -> None:
    row = ZSet.of({"k": ["a"]})
    sink = opened(":memory:", row.schema)

    progress = sink.write(0, [row, -row])

    assert (progress.rows, held(sink)) == (0, Counter())


def test_rows_of_weight_zero_are_nothing() -> None:
    sink = opened(":memory:", pa.schema({"k": pa.string()}))

    assert sink.write(0, [ZSet.of({"k": ["a"]}, [0])]).rows == 0


SMALL_ROWS = st.tuples(st.sampled_from([None, 0.0, -0.0, NAN, 1.5]), st.sampled_from([None, "", "x"]))
SMALL_DELTAS = st.lists(st.tuples(SMALL_ROWS, st.integers(1, 3), st.booleans()), max_size=6)


def identity(x: float | None, s: str | None) -> str:
    return repr((0.0 if x == 0.0 else x, s))


def legal_delta(changes: Sequence[tuple[Any, int, bool]], live: Counter[str]) -> tuple[list[Any], list[int]]:
    """Turn drawn changes into rows and weights that retract only what is live; `live` becomes the state after them."""
    rows, weights = [], []
    for row, weight, retract in changes:
        change = -min(weight, live[identity(*row)]) if retract else weight
        live[identity(*row)] += change
        rows.append(row)
        weights.append(change)
    return rows, weights


def views_and_counters(epochs: Sequence[Any], hash_bits: int) -> tuple[list[Counter[str]], list[Counter[str]]]:
    """Return the rows of the view and of a plain counter after every epoch."""
    schema = pa.schema({"x": pa.float64(), "s": pa.string()})
    sink = opened(":memory:", schema, hash_bits=hash_bits)
    live: Counter[str] = Counter()
    views, counters = [], []
    for epoch, changes in enumerate(epochs):
        rows, weights = legal_delta(changes, live)
        columns = [pa.array([row[at] for row in rows], schema.types[at]) for at in range(2)]
        sink.write(epoch, [ZSet.of(pa.RecordBatch.from_arrays(columns, schema=schema), weights)])
        views.append(Counter(identity(**row) for row in sink.read().to_pylist()))
        counters.append(+live)
    sink.close()
    return views, counters


@settings(max_examples=examples(push=15, nightly=40), deadline=None)
@given(epochs=st.lists(SMALL_DELTAS, max_size=5), hash_bits=st.sampled_from([1, 64]))
def test_the_view_equals_a_counter_after_every_epoch(epochs: list[Any], hash_bits: int) -> None:
    views, counters = views_and_counters(epochs, hash_bits)

    assert views == counters


# -- values ------------------------------------------------------------------------------------------------------------

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "null": (pa.null(), [None]),
    "bool": (pa.bool_(), [True, False, None]),
    "int8": (pa.int8(), [-128, None]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1, None]),
    "float": (pa.float32(), [NAN, 1.5, None]),
    "double": (pa.float64(), [NAN, 0.1, float("-inf"), None]),
    "decimal": (pa.decimal128(38, 10), [Decimal("-1234567890123456789012345678.0123456789"), None]),
    "string": (pa.string(), ["", "a ", "é😀", "nul\0byte", None]),
    "large_string": (pa.large_string(), ["x", None]),
    "binary": (pa.binary(), [b"", b"\x00\xff", None]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    "timestamp_ntz": (pa.timestamp("us"), [dt.datetime(9999, 12, 31, 23, 59, 59, 999999), None]),
    "timestamp": (pa.timestamp("us", tz="Europe/Berlin"), [dt.datetime(2026, 3, 29, 1, tzinfo=dt.UTC), None]),
    "time": (pa.time64("us"), [dt.time(23, 59, 59, 999999), None]),
    "duration": (pa.duration("us"), [dt.timedelta(days=-106_751_990, microseconds=1), None]),
    "list": (pa.list_(pa.float64()), [[], [None], [NAN, 0.5], None]),
    "struct": (pa.struct({"a": pa.int32(), "b": pa.string()}), [{"a": None, "b": None}, {"a": 1, "b": ""}, None]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("k", 1), ("l", None)], [], None]),
    "nested_duration": (
        pa.struct({"d": pa.list_(pa.map_(pa.string(), pa.duration("us")))}),
        [{"d": [[("k", dt.timedelta(days=1_000_000))], None]}, {"d": None}, None],
    ),
    "interval": (pa.month_day_nano_interval(), [pa.MonthDayNano([1, 2, 3000]), None]),
}


@pytest.mark.parametrize(("data_type", "values"), VALUES.values(), ids=VALUES.keys())
def test_a_value_comes_back_as_it_went_in_and_is_found_again_to_be_retracted(data_type: pa.DataType, values: list[Any]) -> None:
    rows = ZSet.of(pa.table({"k": pa.array(range(len(values))), "v": pa.array(values, data_type)}))
    sink = opened(":memory:", rows.schema)

    sink.write(0, [rows])
    first = sink.read().schema, held(sink)
    sink.write(1, [-rows])

    assert first == (rows.schema, bag(pa.Table.from_batches([rows.rows])))
    assert held(sink) == Counter()


@pytest.mark.parametrize(
    ("inserted", "retracted"),
    [
        (pa.array([0.0]), pa.array([-0.0])),
        (
            pa.array(np.array([0x7FF8000000000000], np.uint64).view(np.float64)),
            pa.array(np.array([0xFFF8000000000001], np.uint64).view(np.float64)),
        ),
        (pa.array([[0.0]]), pa.array([[-0.0]])),
        (pa.array([{"x": -0.0}]), pa.array([{"x": 0.0}])),
    ],
    ids=["zeros", "NaNs", "zeros in a list", "zeros in a struct"],
)
def test_equal_values_with_other_bits_are_the_same_row(inserted: pa.Array, retracted: pa.Array) -> None:
    sink = opened(":memory:", pa.schema({"v": inserted.type}))
    sink.write(0, [ZSet.of({"v": inserted})])

    sink.write(1, [ZSet.of({"v": retracted}, [-1])])

    assert held(sink) == Counter()


def test_a_stored_value_keeps_its_own_bits() -> None:
    sink = opened(":memory:", pa.schema({"v": pa.float64()}))

    sink.write(0, [ZSet.of({"v": [-0.0]})])

    assert np.signbit(sink.read()["v"][0].as_py())


@pytest.mark.parametrize(
    "data_type",
    [pa.decimal256(50, 2), pa.float16(), pa.struct({"a": pa.int8(), "A": pa.duration("us")})],
    ids=str,
)
def test_a_type_that_duckdb_cannot_keep_is_named(data_type: pa.DataType) -> None:
    with pytest.raises(SinkError, match='cannot keep column "odd"') as caught:
        opened(":memory:", pa.schema({"k": pa.int64(), "odd": data_type}))

    assert caught.value.code == "SINK_TYPE"


# -- keys --------------------------------------------------------------------------------------------------------------

KEYED = pa.schema({"id": pa.int64(), "v": pa.string()})


def keyed(ids: list[Any], values: list[Any], weights: list[int] | None = None) -> ZSet:
    return ZSet.of({"id": ids, "v": values}, weights, schema=KEYED)


def test_a_keyed_view_keeps_colliding_keys_apart() -> None:
    sink = opened(":memory:", KEYED, key=["id"], hash_bits=1)
    sink.write(0, [keyed(list(range(50)), ["a"] * 50)])

    sink.write(1, [keyed([7], ["a"], [-1]), keyed([7, 50], ["b", "a"])])

    assert held(sink) == rows_of(*((k, "b" if k == 7 else "a") for k in range(51)))


SECOND_ROWS = {
    "two new rows": [keyed([1, 1], ["a", "b"])],
    "a new row beside a live one": [keyed([2, 1], ["a", "b"]), keyed([2], ["a"], [-1]), keyed([1], ["c"])],
    "a weight of two": [keyed([1], ["a"], [2])],
    "NULL, a key like any other": [keyed([None], ["a"]), keyed([None], ["b"])],
}


@pytest.mark.parametrize("case", SECOND_ROWS)
def test_two_live_rows_with_one_key_are_refused_naming_it(case: str) -> None:
    *before, last = SECOND_ROWS[case]
    sink = DuckDBViewSink(":memory:", "view")
    sink.open(Relation(name="answer", schema=KEYED, primary_key=("id",), mode="changelog"), "query")
    [sink.write(epoch, [chunk]) for epoch, chunk in enumerate(before)]
    live, key = held(sink), last.to_pylist()[0][0][:1]

    with pytest.raises(SinkError, match=rf"two live rows claim the key \{{'id': {key[0]}\}} in epoch {len(before)}") as caught:
        sink.write(len(before), [last])

    assert (caught.value.code, caught.value.facts["key"], held(sink)) == ("SINK_KEY", key, live)


def test_retracting_another_row_than_the_key_holds_is_refused() -> None:
    sink = opened(":memory:", KEYED, key=["id"])
    sink.write(0, [keyed([1], ["a"])])

    with pytest.raises(SinkError, match=r"holds it 0 times \(key \{'id': 1\}\)"):
        sink.write(1, [keyed([1], ["other"], [-1])])


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_retracting_a_row_that_is_not_there_is_refused_and_undone() -> None:
    sink = opened(":memory:", KEYED)
    sink.write(0, [keyed([1], ["a"])])

    with pytest.raises(SinkError, match=r"epoch 1 retracts row \{'id': 9, 'v': None\} 1 time") as caught:
        sink.write(1, [keyed([1, 9], ["a", None], [-1, -1]), keyed([2], ["b"])])

    assert (caught.value.code, caught.value.facts["row"]) == ("SINK_RETRACTION", (9, None))
    assert (sink.last_epoch(), held(sink)) == (0, rows_of((1, "a")))


def test_retracting_more_copies_than_there_are_is_refused() -> None:
    sink = opened(":memory:", KEYED)
    sink.write(0, [keyed([1], ["a"], [2])])

    with pytest.raises(SinkError, match="3 times and the view holds it 2 times"):
        sink.write(1, [keyed([1], ["a"], [-3])])


def test_the_epoch_can_be_written_after_a_refusal() -> None:
    sink = opened(":memory:", KEYED)
    with pytest.raises(SinkError):
        sink.write(0, [keyed([1], ["a"], [-1])])

    sink.write(0, [keyed([1], ["a"])])

    assert held(sink) == rows_of((1, "a"))


def test_a_weight_beyond_int64_is_refused() -> None:
    sink = opened(":memory:", KEYED)

    with pytest.raises(WeightOverflowError, match="9223372036854775808"):
        sink.write(0, [keyed([1, 1], ["a", "a"], [2**63 - 1, 1])])


@pytest.mark.parametrize("names", [["a", "A"], ["a", ""]], ids=["case", "empty"])
def test_column_names_that_duckdb_cannot_have_are_refused(names: list[str]) -> None:
    with pytest.raises(SinkError, match="Rename the columns"):
        opened(":memory:", pa.schema([(name, pa.int64()) for name in names]))


def test_a_key_that_is_no_column_is_refused() -> None:
    with pytest.raises(SinkError, match=r"\['number'\] are missing"):
        opened(":memory:", KEYED, key=["number"])


def test_a_key_given_as_text_is_refused() -> None:
    with pytest.raises(OptionError, match="a key is a list of column names"):
        DuckDBViewSink(":memory:", "view", "id")


def test_a_table_of_the_user_is_not_overwritten(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "views.duckdb")) as connection:
        connection.execute("CREATE TABLE View (precious INTEGER)")

    with pytest.raises(SinkError, match="something else of that name"):
        opened(tmp_path / "views.duckdb", KEYED)


def test_a_missing_directory_is_made(tmp_path: Path) -> None:
    assert opened(tmp_path / "missing" / "views.duckdb", KEYED).last_epoch() is None


def test_the_schema_of_the_file_may_be_named_with_the_view(tmp_path: Path) -> None:
    opened(tmp_path / "views.duckdb", KEYED, table="main.t").close()

    with duckdb.connect(str(tmp_path / "views.duckdb"), read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM main.t").fetchall() == [(0,)]


def test_a_path_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "missing").write_text("a file")
    with pytest.raises(SinkError, match=r"missing/views\.duckdb") as caught:
        opened(tmp_path / "missing" / "views.duckdb", KEYED)

    assert caught.value.code == "SINK_IO"


def test_what_the_file_cannot_hold_is_reported_and_not_that_the_transaction_failed() -> None:
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xff\xfe")])
    sink = opened(":memory:", pa.schema({"s": pa.string()}))

    with pytest.raises(SinkError, match="unicode") as caught:
        sink.write(0, [ZSet.of({"s": bad})])

    assert caught.value.code == "SINK_IO"


# -- the file ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        'a"b',
        'x"; DROP TABLE victim; --',
        "'; DROP TABLE victim; --",
        "select",
        "weight",
        "row_hash",
        "c0",
        "rowid",
        "it's",
        "$view",
        "a.b",
        "two\nlines",
        " ",
        "naïve 名前 😀",
        "x" * 1000,
    ],
)
def test_any_name_can_be_a_view_a_column_and_a_key(name: str) -> None:
    sink = opened(":memory:", pa.schema({name: pa.int64(), "v": pa.string()}), table=name, key=[name])
    sink.write(0, [ZSet.of({name: [1], "v": ["a"]})])

    sink.write(1, [ZSet.of({name: [1, 1], "v": ["a", "b"]}, [-1, 1])])

    assert sink.read().to_pylist() == [{name: 1, "v": "b"}]


@pytest.mark.parametrize("name", ["_zset_join_epochs", "_ZSET_JOIN_EPOCHS"])
def test_the_names_of_our_own_tables_are_taken(name: str) -> None:
    with pytest.raises(SinkError, match="something else of that name") as caught:
        opened(":memory:", KEYED, table=name)

    assert caught.value.code == "SINK_NAME_TAKEN"


def test_two_views_whose_names_differ_by_case_are_one_view(tmp_path: Path) -> None:
    opened(tmp_path / "views.duckdb", KEYED, table="Orders").close()
    second = DuckDBViewSink(tmp_path / "views.duckdb", "ORDERS")

    with pytest.raises(SinkError, match='belongs to query "query"') as caught:
        second.open(Relation(name="answer", schema=KEYED, mode="changelog"), "another")

    assert caught.value.code == "SINK_QUERY_ID"


def test_two_queries_share_a_file_in_two_views(tmp_path: Path) -> None:
    first = opened(tmp_path / "views.duckdb", KEYED, table="first")
    second = DuckDBViewSink(tmp_path / "views.duckdb", "second")
    second.open(Relation(name="answer", schema=KEYED, mode="changelog"), "another")

    first.write(0, [keyed([1], ["a"])])
    second.write(0, [keyed([2], ["b"])])

    assert (held(first), held(second)) == (rows_of((1, "a")), rows_of((2, "b")))


def test_the_epoch_is_in_the_file_with_its_query(tmp_path: Path) -> None:
    sink = opened(tmp_path / "views.duckdb", KEYED)
    sink.write(0, [keyed([1], ["a"])])
    sink.close()

    with duckdb.connect(str(tmp_path / "views.duckdb")) as connection:
        found = connection.execute("SELECT view, query_id, epoch, rows, retractions FROM _zset_join_epochs").fetchall()

    assert found == [("view", "query", 0, 1, 0)]


def test_a_connection_of_the_same_process_may_read_along(tmp_path: Path) -> None:
    sink = opened(tmp_path / "views.duckdb", KEYED)
    sink.write(0, [keyed([1], ["a"])])

    with duckdb.connect(str(tmp_path / "views.duckdb")) as connection:
        assert connection.execute('SELECT * FROM "view"').fetchall() == [(1, "a")]

    sink.close()


def test_the_file_reaches_nothing_outside_itself(tmp_path: Path) -> None:
    sink = opened(tmp_path / "views.duckdb", KEYED)
    (tmp_path / "secret.csv").write_text("a\n1\n")

    with (
        duckdb.connect(str(tmp_path / "views.duckdb")) as connection,
        pytest.raises(duckdb.PermissionException),
    ):
        connection.execute("SELECT * FROM read_csv(?)", [str(tmp_path / "secret.csv")])

    sink.close()


def test_nobody_in_the_process_can_unlock_the_file(tmp_path: Path) -> None:
    sink = opened(tmp_path / "views.duckdb", KEYED)

    with (
        duckdb.connect(str(tmp_path / "views.duckdb")) as connection,
        pytest.raises(duckdb.InvalidInputException, match="locked"),
    ):
        connection.execute("SET GLOBAL enable_external_access = true")

    sink.close()


def test_another_version_of_duckdb_computes_the_hashes_again(tmp_path: Path) -> None:
    sink = opened(tmp_path / "views.duckdb", KEYED)
    sink.write(0, [keyed([1, 2], ["a", "b"])])
    sink.close()
    with duckdb.connect(str(tmp_path / "views.duckdb")) as connection:
        connection.execute("UPDATE _zset_join.view SET row_hash = 0")
        connection.execute(
            """UPDATE _zset_join_epochs SET layout = replace(layout, '"hash_version": "', '"hash_version": "0')"""
        )
    sink = opened(tmp_path / "views.duckdb", KEYED)

    sink.write(1, [keyed([1], ["a"], [-1])])

    assert held(sink) == rows_of((2, "b"))
