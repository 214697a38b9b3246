"""Tables in files: what a directory holds is what the table holds, or it is refused with the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from zset_join.core.errors import BadInputError, SqlError
from zset_join.sql import SqlWarning, connect

COLUMNS = "id INT, name STRING, total DECIMAL(10, 2), at TIMESTAMP(3), day DATE"


def rows_of(directory: Path, text: str, form: str = "json", *, more: str = "", columns: str = COLUMNS) -> list[dict[str, Any]]:
    (directory / f"1.{form}").write_text(text)
    with connect(dialect="flink") as session:
        session.sql(
            f"CREATE TABLE t ({columns}) WITH ('connector' = 'filesystem', 'path' = 'file://{directory}', 'format' = '{form}'{more})"
        )
        running = session.sql("SELECT * FROM t").start()
        session.read(wait_seconds=0.0)
        rows: list[dict[str, Any]] = running.table().to_pylist()
        return [{name: str(value) for name, value in row.items() if value is not None} for row in rows]


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_what_an_insert_writes_into_files_is_read_as_the_same_rows(tmp_path: Path, form: str) -> None:
    options = f"'connector' = 'filesystem', 'path' = '{tmp_path}/out', 'format' = '{form}'"
    kept = "SELECT id, name, total, at, day FROM {}"
    with connect(dialect="flink") as session:
        session.sql(f"CREATE TABLE rows_in ({COLUMNS}); CREATE TABLE files ({COLUMNS}) WITH ({options})")
        session.sql("INSERT INTO files SELECT * FROM rows_in")
        session.sql("INSERT INTO rows_in VALUES (1, 'a,\"b', 1.50, TIMESTAMP '2024-01-02 03:04:05.678', DATE '2024-01-02')")
        session.sql("INSERT INTO rows_in (id, name) VALUES (2, NULL), (3, '')")
        expected = session.sql(kept.format("table(rows_in)")).table().to_pylist()
    with connect(dialect="flink") as session:
        session.sql(f"CREATE TABLE files ({COLUMNS}) WITH ({options})")
        running = session.sql(kept.format("files")).start()
        session.read(wait_seconds=0.0)

        assert running.table().sort_by("id").to_pylist() == expected


def test_csv_is_read_with_its_delimiter_quote_and_null(tmp_path: Path) -> None:
    more = ", 'csv.field-delimiter' = ';', 'csv.quote-character' = '''', 'csv.null-literal' = 'n/a'"
    text = "id;name\n1;'a;b'\n2;n/a\n3;''\n4;\n"
    assert rows_of(tmp_path, text, "csv", columns="id INT, name STRING", more=more) == [
        {"id": "1", "name": "a;b"},
        {"id": "2"},
        {"id": "3", "name": ""},
        {"id": "4"},
    ]


@pytest.mark.parametrize(
    ("form", "text", "message"),
    [
        ("csv", "1,a,2\n2,b,3\n", r"1\.csv has none of its columns but 1, a, 2; CSV begins with a line of names"),
        ("csv", "id;name\n1;a\n", r"none of its columns but id;name"),
        ("json", '{"ID": 1, "Name": "x"}\n', r"none of its columns but ID, Name\. Did you mean id"),
    ],
)
def test_a_file_without_any_column_of_its_table_is_refused(tmp_path: Path, form: str, text: str, message: str) -> None:
    with pytest.raises(SqlError, match=message):
        rows_of(tmp_path, text, form)


@pytest.mark.parametrize("policy", ["error", "quarantine"])
@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("names", [("id", "name"), ("name", "total"), ("id", "NAME", "total"), ("Id", "id", "total")])
def test_a_file_that_lacks_a_column_or_has_it_in_another_case_is_refused(
    tmp_path: Path, names: tuple[str, ...], form: str, policy: str
) -> None:
    write = pq.write_table if form == "parquet" else pyarrow.csv.write_csv
    write(pa.table([["1"]] * len(names), names=names), tmp_path / f"1.{form}")
    columns = "id INT, name STRING, total INT"
    with connect(dialect="flink") as session:
        session.sql(f"CREATE TABLE t ({columns}) WITH ('connector'='filesystem', 'path'='{tmp_path}', 'format'='{form}')")
        session.sql(f"SET on_bad_input = '{policy}'")
        running = session.sql("SELECT count(*) AS n FROM t").start()
        with pytest.raises(SqlError, match=r"has no column .* A file has all columns of its table") as refused:
            session.read(wait_seconds=0.0)

        assert refused.value.code == "NO_FILE"
        assert running.table().to_pylist() == [{"n": 0}]


def test_a_file_from_before_its_table_got_a_column_has_null_there(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    pq.write_table(pa.table({"id": [1]}), files / "1.parquet")
    pq.write_table(pa.table({"id": [2], "Name": ["b"]}), files / "2.parquet")
    with connect(dialect="flink", directory=tmp_path / "session") as session:
        session.sql(f"CREATE TABLE t (id INT) WITH ('connector'='filesystem', 'path'='{files}', 'format'='parquet')")
        session.sql("ALTER TABLE t ADD COLUMN name STRING")
        running = session.sql("SELECT * FROM t").start()
        with pytest.raises(SqlError, match=r'2\.parquet has no column "name"'):
            session.read(wait_seconds=0.0)

        assert running.table().to_pylist() == [{"id": 1, "name": None}]


def test_a_line_that_is_no_row_is_refused_with_its_number(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"line 3 of .*1\.json is not a row of it, it is no JSON object: \{\"id\": oops\}"):
        rows_of(tmp_path, '{"id": 1}\n\n{"id": oops}\n')
    with pytest.raises(BadInputError, match=r'the value of "at" cannot be read as timestamp\[us\]'):
        rows_of(tmp_path, '{"id": 1, "at": 1704067200000}\n')


def test_an_empty_file_and_an_empty_directory_have_no_rows(tmp_path: Path) -> None:
    assert rows_of(tmp_path, "", "csv") == []
    (tmp_path / "1.csv").unlink()
    assert rows_of(tmp_path, "") == []
    (tmp_path / "1.json").unlink()
    with connect(dialect="flink") as session:
        session.sql(f"CREATE TABLE t (id INT) WITH ('connector' = 'filesystem', 'path' = '{tmp_path}')")

        assert session.read(wait_seconds=0.0) == 0


def test_a_path_of_another_file_system_is_refused(tmp_path: Path) -> None:
    with connect(dialect="flink") as session:
        session.sql("CREATE TABLE t (id INT) WITH ('connector' = 'filesystem', 'path' = 's3://bucket/orders')")
        session.sql("SELECT id FROM t").start()
        with pytest.raises(SqlError, match="'s3://bucket/orders' is not on this machine"):
            session.read(wait_seconds=0.0)


def test_nan_in_csv_is_a_number(tmp_path: Path) -> None:
    assert rows_of(tmp_path, "x\nNaN\n\n1.5\n", "csv", columns="x DOUBLE") == [{"x": "nan"}, {"x": "1.5"}]


RECORDS = {
    "debezium-json": [
        {"op": "r", "after": {"id": 1, "name": "a"}, "source": {"lsn": 1, "ts_us": 1_000_000}},
        {"schema": {}, "payload": {"op": "c", "after": {"id": 2, "name": "b"}, "source": {"lsn": 2, "ts_us": 2_000_000}}},
        {"op": "u", "before": None, "after": {"id": 1, "name": "c"}, "source": {"lsn": 3, "ts_us": 3_000_000}},
        {"op": "d", "before": {"id": 2}, "source": {"lsn": 4, "ts_us": 4_000_000}},
    ],
    "canal-json": [
        {"type": "INSERT", "es": 3000, "data": [{"id": "1", "name": "c"}, {"id": "2", "name": "b"}]},
        {"type": "DELETE", "es": 4000, "data": [{"id": "2", "name": "b"}]},
    ],
    "maxwell-json": [
        {"type": "insert", "ts": 3, "data": {"id": 1, "name": "c"}},
        {"type": "insert", "ts": 3, "data": {"id": 2, "name": "b"}},
        {"type": "delete", "ts": 4, "data": {"id": 2, "name": "b"}},
    ],
    "dms-json": [
        {"control": {}, "metadata": {"record-type": "control", "operation": "create-table"}},
        {"data": {"id": 5, "name": "b"}, "metadata": {"record-type": "data", "operation": "load"}},
        {"data": {"id": 1, "name": "c"}, "before-image": {"id": 5}, "metadata": {"operation": "update"}},
        {"data": {"id": 2, "name": "b"}, "metadata": {"operation": "insert"}},
        {"data": {"id": 2, "name": "b"}, "metadata": {"operation": "delete"}},
    ],
    "upsert-json": [
        {"key": '{"id": 1}', "value": '{"name": "c"}', "topic": "t", "partition": 0, "offset": 3},
        {"key": '{"id": 2}', "value": '{"name": "b"}', "topic": "t", "partition": 0, "offset": 4},
        {"key": '{"id": 2}', "value": None, "topic": "t", "partition": 0, "offset": 5},
    ],
}


def declared(directory: Path, form: str, more: str = "") -> str:
    options = f"'connector' = 'filesystem', 'path' = '{directory}', 'format' = '{form}'"
    return f"CREATE TABLE t (id INT, name STRING{more}, PRIMARY KEY (id) NOT ENFORCED) WITH ({options})"


@pytest.mark.parametrize("form", list(RECORDS))
@pytest.mark.parametrize("is_lasting", [False, True])
def test_files_of_records_are_the_changes_of_their_table(tmp_path: Path, form: str, is_lasting: bool) -> None:
    lines = [json.dumps(record) + "\n" for record in RECORDS[form]]
    (tmp_path / "in").mkdir()
    (tmp_path / "in/1.json").write_text("".join(lines[:-1]))
    with connect(dialect="flink", directory=tmp_path / "state" if is_lasting else None) as session:
        session.sql(declared(tmp_path / "in", form))
        running = session.sql("SELECT id, name FROM t").start()
        session.read(wait_seconds=0.0)
        (tmp_path / "in/2.json").write_text(lines[-1])
        session.read(wait_seconds=0.0)

        assert running.table().to_pylist() == [{"id": 1, "name": "c"}]


def test_metadata_of_a_record_in_a_file_are_its_time_and_place(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text("\n" + json.dumps(RECORDS["debezium-json"][2]) + "\n")
    columns = (
        ", at TIMESTAMP_LTZ(3) METADATA FROM 'op_ts', file STRING METADATA FROM 'topic', line BIGINT METADATA FROM 'offset'"
    )
    with connect(dialect="flink") as session:
        session.sql(declared(tmp_path, "debezium-json", columns))
        running = session.sql("SELECT unix_seconds(at) AS second, file, line FROM t").start()
        session.read(wait_seconds=0.0)

        assert running.table().to_pylist() == [{"second": 3, "file": "1.json", "line": 2}]


def test_records_of_a_file_that_cannot_be_read_are_put_aside_with_a_warning(tmp_path: Path) -> None:
    good = json.dumps(RECORDS["debezium-json"][0])
    (tmp_path / "1.json").write_text(f"{good}\nnonsense\n")
    with connect(dialect="flink") as session:
        session.sql("SET 'on_bad_input' = 'quarantine'; " + declared(tmp_path, "debezium-json"))
        running = session.sql("SELECT id FROM t").start()
        with pytest.warns(SqlWarning, match=r'table "t": 1 record quarantined, the first \(1\.json, partition 0, offset 2\)'):
            session.read(wait_seconds=0.0)

        assert running.table().to_pylist() == [{"id": 1}]


def test_rows_of_parquet_that_do_not_convert_are_put_aside_and_the_others_are_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2, 3], "n": [1.0, 3.9, 4.0], "day": ["2024-01-02", None, "x"]}), tmp_path / "1.parquet")
    text = f"CREATE TABLE t (id INT, n BIGINT, day DATE) WITH ('connector' = 'filesystem', 'path' = '{tmp_path}', 'format' = 'parquet')"
    with connect(dialect="flink") as session:
        session.sql("SET 'on_bad_input' = 'quarantine'; " + text)
        running = session.sql("SELECT id, n FROM t").start()
        with pytest.warns(
            SqlWarning, match=r'2 records quarantined.*offset 2\): \[UNDECODABLE.*the value of "n" cannot be read as int64'
        ):
            session.read(wait_seconds=0.0)
        assert running.table().to_pylist() == [{"id": 1, "n": 1}]
    with connect(dialect="flink") as session:
        session.sql(text)
        session.sql("SELECT id FROM t").start()
        with pytest.raises(BadInputError, match=r'line 2 of .*1\.parquet.*the value of "n".*\{"id": 2, "n": 3\.9'):
            session.read(wait_seconds=0.0)


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_byte_order_mark_at_the_beginning_of_a_file_is_no_part_of_it(tmp_path: Path, form: str) -> None:
    text = {"json": '{"id": 1}\n', "csv": "id\n1\n"}[form]
    assert rows_of(tmp_path, "\ufeff" + text, form, columns="id INT") == [{"id": "1"}]


def test_null_where_a_row_should_be_is_no_row(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="it is no JSON object: null"):
        rows_of(tmp_path, "null\n")


def test_metadata_without_a_primary_key_warn(tmp_path: Path) -> None:
    text = declared(tmp_path, "debezium-json", ", lsn BIGINT METADATA").replace(", PRIMARY KEY (id) NOT ENFORCED", "")
    with connect(dialect="flink") as session, pytest.warns(SqlWarning, match="has metadata and no primary key"):
        session.sql(text)


RATES = [
    {"op": "c", "after": {"currency": "EUR", "rate": 110}, "source": {"lsn": 1, "ts_us": 1_704_100_000_000_000}},
    {"op": "u", "after": {"currency": "EUR", "rate": 125}, "source": {"lsn": 2, "ts_us": 1_704_103_600_000_000}},
    {"op": "c", "after": {"currency": "USD", "rate": 100}, "source": {"lsn": 3, "ts_us": 1_704_103_700_000_000}},
    {"op": "d", "before": {"currency": "USD"}, "source": {"lsn": 4, "ts_us": 1_704_105_000_000_000}},
    {"op": "c", "after": {"currency": "GBP", "rate": 1}, "source": {"lsn": 5, "ts_us": 1_704_200_000_000_000}},
]
PRICED = """
CREATE TABLE rates (currency STRING, rate INT, changed TIMESTAMP_LTZ(3) METADATA FROM 'op_ts', PRIMARY KEY (currency) NOT ENFORCED,
    WATERMARK FOR changed AS changed) WITH ('connector' = 'filesystem', 'path' = '{0}/rates', 'format' = 'debezium-json');
CREATE TABLE orders (id INT, currency STRING, at TIMESTAMP_LTZ(3), WATERMARK FOR at AS at)
    WITH ('connector' = 'filesystem', 'path' = '{0}/orders', 'format' = 'json')
"""


@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.parametrize("files", [1, 5])
def test_every_change_of_a_database_is_a_version_by_the_time_of_its_change(
    tmp_path: Path,
    is_lasting: bool,
    files: int,
) -> None:
    (tmp_path / "rates").mkdir()
    (tmp_path / "orders").mkdir()
    for number in range(files):
        lines = [json.dumps(rate) + "\n" for rate in RATES[number::files]]
        (tmp_path / f"rates/{number}.json").write_text("".join(lines))
    times = {1: ("EUR", "09:30"), 2: ("EUR", "10:30"), 3: ("USD", "10:20"), 4: ("USD", "10:40")}
    orders = [{"id": n, "currency": currency, "at": f"2024-01-01T{at}:00Z"} for n, (currency, at) in times.items()]
    orders.append({"id": 5, "currency": "GBP", "at": "2024-01-02T00:00:00Z"})
    (tmp_path / "orders/1.json").write_text("".join(json.dumps(order) + "\n" for order in orders))
    with connect(dialect="flink", directory=tmp_path / "state" if is_lasting else None) as session:
        session.sql(PRICED.format(tmp_path))
        running = session.sql(
            "SELECT o.id, r.rate FROM orders o LEFT JOIN rates FOR SYSTEM_TIME AS OF o.at AS r ON o.currency = r.currency"
        ).start()
        session.read(wait_seconds=0.0)
        rates = {row["id"]: row["rate"] for row in running.table().to_pylist()}

        assert rates == {1: 110, 2: 125, 3: 100, 4: None, 5: None}
