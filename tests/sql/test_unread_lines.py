"""Lines of files and records of topics that are no rows of their table: they stop a query, or are set aside."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from zset_join.cli import main
from zset_join.core.errors import BadInputError
from zset_join.sql import connect
from zset_join.sql.tables.table_sources import TopicRows
from zset_join.sql_expressions.consumed import SqlWarning
from zset_join.tools.dead_letters import read_letters

FILES = {
    "json": '{"id": 1, "v": 10}\n{"id": 2, "v": "ten"}\nnonsense\n{"id": 4, "v": 40}\n',
    "csv": "id,v\n1,10\n2,ten\n3\n4,40\n",
}
BAD = {"json": (2, b'{"id": 2, "v": "ten"}', 3, b"nonsense"), "csv": (3, b"2,ten", 4, b"3")}


def pipeline_of(tmp_path: Path, form: str, policy: str) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / f"in/1.{form}").write_text(FILES[form])
    file = tmp_path / "pipeline.sql"
    file.write_text(
        f"SET 'on_bad_input' = '{policy}'; CREATE TABLE t (id BIGINT, v BIGINT) WITH ('connector' = 'filesystem', "
        f"'path' = '{tmp_path}/in', 'format' = '{form}'); SELECT count(*) AS n, sum(v) AS total FROM t;"
    )
    return file


@pytest.mark.parametrize("form", FILES)
def test_lines_that_are_no_rows_are_dead_letters_with_bytes_place_and_reason(
    tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = pipeline_of(tmp_path, form, "quarantine")
    state = str(tmp_path / "state")

    assert main(["run", str(file), "--dialect", "flink", "--once", "--directory", state]) == 0
    emitted = capsys.readouterr()
    assert json.loads(emitted.out.splitlines()[-1]) == {"n": 2, "total": 50, "_tp_delta": 1}
    assert json.loads(emitted.err.splitlines()[-1])["dead_letters"] == 2
    letters = read_letters(tmp_path / "state/pipeline").to_pylist()
    first, text, second, other = BAD[form]
    assert [(one["topic"], one["offset"], one["value"], one["code"]) for one in letters] == [
        (f"1.{form}", first, text, "UNDECODABLE_VALUE"),
        (f"1.{form}", second, other, "UNDECODABLE_RECORD"),
    ]
    assert letters[0]["reason"] == 'the value of "v" cannot be read as int64'

    assert main(["run", str(file), "--dialect", "flink", "--once", "--directory", state]) == 0
    assert read_letters(tmp_path / "state/pipeline").num_rows == 2


@pytest.mark.parametrize("form", FILES)
def test_lines_that_are_no_rows_are_left_out_with_a_warning_in_memory(tmp_path: Path, form: str) -> None:
    file = pipeline_of(tmp_path, form, "quarantine")
    with pytest.warns(SqlWarning, match=rf'table "t": 2 records quarantined, the first \(1\.{form}, partition 0, offset'):
        assert main(["run", str(file), "--dialect", "flink", "--once"]) == 0


@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.parametrize("form", FILES)
def test_a_line_that_is_no_row_stops_with_file_line_column_and_what_to_do(
    tmp_path: Path, form: str, is_lasting: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    file = pipeline_of(tmp_path, form, "error")
    where = ["--directory", str(tmp_path / "state")] if is_lasting else []

    assert main(["run", str(file), "--dialect", "flink", "--once", *where]) == 1
    emitted = capsys.readouterr().err
    number, text, _, _ = BAD[form]
    assert (
        f'"t": line {number} of {tmp_path}/in/1.{form} is not a row of it, the value of "v" cannot be read as int64: '
        in emitted
    )
    assert text.decode() in emitted
    assert "SET on_bad_input = 'quarantine'" in emitted


def kafka_records() -> pa.Table:
    values = [b'{"id": 1}', None, b'{"id": "x"}', b"\xff", b'{"id": 4}']
    return pa.table(
        {
            "key": pa.array([b"k", None, b"k", None, None], pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": ["t"] * 5,
            "partition": pa.array([0] * 5, pa.int32()),
            "offset": pa.array(range(10, 15), pa.int64()),
            "timestamp": pa.array([0] * 5, pa.timestamp("us", "UTC")),
        }
    )


TOPIC = (
    "CREATE TABLE k (id INT, place BIGINT METADATA FROM 'offset') WITH ('connector' = 'kafka', 'topic' = 't', "
    "'properties.bootstrap.servers' = 'b:1', 'format' = 'json')"
)


def test_records_of_a_topic_that_are_no_rows_are_dead_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [kafka_records()]
    monkeypatch.setattr(
        TopicRows, "poll_records", lambda *_, **__: (left.pop(), {"t": 15}) if left else (kafka_records()[:0], {"t": 15})
    )
    monkeypatch.setattr(TopicRows, "open", lambda *_: None)
    with connect(dialect="flink", directory=tmp_path) as session:
        session.sql("SET 'on_bad_input' = 'quarantine'; " + TOPIC)
        running = session.sql("SELECT id, place FROM k").start()
        session.read(wait_seconds=0.0)

        assert running.table().to_pylist() == [{"id": 1, "place": 10}, {"id": 4, "place": 14}]
    letters = read_letters(tmp_path / "pipeline").to_pylist()
    assert [(one["topic"], one["offset"], one["key"], one["value"], one["code"]) for one in letters] == [
        ("t", 12, b"k", b'{"id": "x"}', "UNDECODABLE_VALUE"),
        ("t", 13, None, b"\xff", "UNDECODABLE_RECORD"),
    ]


def test_a_record_of_a_topic_that_is_no_row_stops_with_its_place_and_what_to_do() -> None:
    with connect(dialect="flink") as session:
        session.sql(TOPIC)
        source = TopicRows(session.catalog.tables["k"], lambda _, rows: rows)
        with pytest.raises(
            BadInputError, match=r'offset 12 of topic t is not a row of it, the value of "id".*SET on_bad_input'
        ):
            source.read(kafka_records())


def test_what_was_read_and_not_taken_is_read_again(tmp_path: Path) -> None:
    for name, lines in (("a_good", '{"id": 1}\n'), ("bad", "nonsense\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.json").write_text(lines)
    with connect(dialect="flink", directory=tmp_path / "state") as session:
        for name in ("bad", "a_good"):
            session.sql(f"CREATE TABLE {name} (id INT) WITH ('connector' = 'filesystem', 'path' = '{tmp_path}/{name}')")
        running = session.sql("SELECT id FROM bad UNION ALL SELECT id FROM a_good").start()
        for _ in range(2):
            with pytest.raises(BadInputError):
                session.read(wait_seconds=0.0)
        (tmp_path / "bad/1.json").write_text('{"id": 2}\n')
        session.read(wait_seconds=0.0)

        assert sorted(row["id"] for row in running.table().to_pylist()) == [1, 2]
        (tmp_path / "a_good/2.json").write_text('{"id": 3}\n')
        session.read(wait_seconds=0.0)
        assert running.table().num_rows == 3
