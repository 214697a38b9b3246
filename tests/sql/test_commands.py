"""The SQL verbs of the command line: a file of statements over files of rows."""

from __future__ import annotations

import io
import json
from pathlib import Path
from unittest import mock

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from zset_join.cli import main
from zset_join.sql import connect
from zset_join.sql.commands import completions, prompt

PIPELINE = """
CREATE TABLE orders (id INT, customer STRING, total INT)
    WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'json');
SELECT customer, sum(total) AS revenue FROM orders GROUP BY customer EMIT CHANGELOG;
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    rows = tmp_path / "orders"
    rows.mkdir()
    (rows / "1.json").write_text('{"id": 1, "customer": "Ada", "total": 30}\n')
    (rows / "2.json").write_text('{"id": 2, "customer": "Ada", "total": 12}\n')
    file = tmp_path / "pipeline.sql"
    file.write_text(PIPELINE.format(path=rows))
    return file


def test_run_prints_the_changelog_of_the_queries_of_a_file(pipeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(pipeline), "--once"]) == 0

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["revenue"], line["_tp_delta"]) for line in lines] == [(30, 1), (30, -1), (42, 1)]


def test_check_shows_what_is_kept_and_runs_nothing(pipeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(pipeline)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("1: table orders: append, latest-only")
    assert lines[1].startswith("2: query of customer, revenue; remembers:")


def test_check_plans_what_writes_and_opens_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = f"WITH ('connector' = 'duckdb', 'path' = '{tmp_path}/out.db', 'table-name' = 't')"
    file = tmp_path / "pipeline.sql"
    file.write_text(f"""
        CREATE TABLE orders (id INT, total INT);
        INSERT INTO orders VALUES (1, 2);
        CREATE TABLE out (id INT, total INT, PRIMARY KEY (id)) {out};
        INSERT INTO out SELECT id, sum(total) FROM orders GROUP BY id;
        INSERT INTO out (id) SELECT id FROM table(orders);
        CREATE SINK s AS SELECT id, total FROM orders {out};
        CREATE MATERIALIZED VIEW m INTO out AS SELECT id, max(total) FROM orders GROUP BY id;
    """)

    assert main(["check", str(file)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[3].startswith("4: query of id, total; remembers:")
    assert lines[5] == "6: sink s: duckdb"
    assert [path.name for path in tmp_path.iterdir()] == ["pipeline.sql"]


@pytest.mark.parametrize("text", ["INSERT INTO t", "INSERT INTO t SELECT 1, 2 FROM t", "INSERT INTO t (b) SELECT a FROM t"])
def test_check_refuses_an_insert_that_cannot_run_at_its_place(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pipeline.sql"
    file.write_text(f"CREATE TABLE t (a INT);\n{text}")

    assert main(["check", str(file)]) != 0
    assert "line 2, column" in capsys.readouterr().err


def test_explain_prints_the_plans_of_a_file(pipeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(pipeline)]) == 0

    assert 'Source "orders" append' in capsys.readouterr().out


def test_a_refused_statement_ends_with_its_place_and_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.sql"
    file.write_text("CREATE TABLE t (a INT);\nSELECT b FROM t;\n")

    assert main(["run", str(file)]) == 1

    shown = capsys.readouterr().err
    assert "[UNKNOWN_COLUMN]" in shown
    assert "line 2, column 8" in shown


def test_a_missing_file_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "nowhere.sql"]) == 1
    assert "[NO_FILE]" in capsys.readouterr().err


def test_the_shell_reads_statements_and_prints_changes_as_they_come(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "CREATE TABLE t (a INT); SELECT a FROM t EMIT CHANGELOG; INSERT INTO t VALUES (5); SELECT b FROM t; SHOW TABLES"
    monkeypatch.setattr("sys.stdin", io.StringIO(text))

    assert main(["sql"]) == 0

    captured = capsys.readouterr()
    assert '{"a": 5, "_tp_delta": 1}' in captured.out
    assert "UNKNOWN_COLUMN" in captured.err


def test_completion_has_words_names_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    with connect() as session:
        session.sql("CREATE TABLE orders (customer STRING)")
        monkeypatch.setattr("sys.stdin", io.StringIO("SELECT 1; SELECT 2"))

        assert {"SELECT", "orders", "customer", "max_hot_keys", "sum"} <= set(completions(session))
        assert list(prompt(session)) == ["SELECT 1", "SELECT 2"]


def test_the_history_of_the_prompt_keeps_no_statement_with_a_literal_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.stdin", mock.Mock(isatty=lambda: True))
    written = "CREATE TABLE a (k INT) WITH (\n'password' = '${ENV:CRM}'\n);"
    hidden = [
        "CREATE TABLE b (k INT) WITH (\n'password' =\n'hush'\n);",
        "CREATE USER me OPTIONS (password 'hush');",
        "SELECT k FROM t /*+ OPTIONS('api-key'='hush') */;",
        "SET url = 'https://me:hush@crm/';",
        "SET x = ${ENV:CRM} 'hush unread;",
    ]
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()), connect() as session:
        keys.send_text("\r".join([*hidden, written]).replace("\n", "\r") + "\r\x04")
        assert list(prompt(session)) == [*hidden, written]
    kept = FileHistory(str(tmp_path / ".zset_join_history")).load_history_strings()
    assert [*kept][::-1] == written.split("\n")


def test_run_goes_on_until_it_is_stopped_and_reads_files_that_come(
    pipeline: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = iter([lambda: (pipeline.parent / "orders" / "3.json").write_text('{"id": 3, "customer": "Bob", "total": 7}\n')])

    def sleep(_: float) -> None:
        next(idle, interrupted)()

    monkeypatch.setattr("zset_join.sql.commands.time.sleep", sleep)

    assert main(["run", str(pipeline), "--progress-seconds", "60"]) == 0

    captured = capsys.readouterr()
    assert [json.loads(line)["revenue"] for line in captured.out.splitlines()] == [30, 30, 42, 7]
    assert json.loads(captured.err.splitlines()[-1]) == {"query": "query_1", "epoch": 2, "rows_in": 1, "rows_out": 1}
    assert "stopped." in captured.err


def interrupted() -> None:
    raise KeyboardInterrupt


def test_a_trigger_belongs_to_spark(pipeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(pipeline), "--trigger", "5 seconds"]) == 1
    assert "[ENGINE]" in capsys.readouterr().err


def test_run_again_in_a_directory_goes_on_where_it_was(
    pipeline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = pipeline.read_text()
    pipeline.write_text(
        f"{text}CREATE TABLE rates (customer STRING, factor INT); INSERT INTO rates VALUES ('Ada', 2);\n"
        f"CREATE TABLE out (customer STRING, total INT) WITH ('connector' = 'filesystem', 'path' = '{tmp_path}/out');\n"
        "INSERT INTO out SELECT o.customer, o.total * r.factor FROM orders o JOIN rates r ON o.customer = r.customer;\n"
    )
    arguments = ["run", str(pipeline), "--directory", str(tmp_path / "state"), "--once", "--progress-seconds", "0"]

    assert main(arguments) == 0
    (tmp_path / "orders" / "3.json").write_text('{"id": 3, "customer": "Ada", "total": 1}\n')
    capsys.readouterr()
    assert main(arguments) == 0

    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["revenue"], line["_tp_delta"]) for line in printed][-2:] == [(42, -1), (43, 1)]
    written = [
        json.loads(line) for file in sorted((tmp_path / "out").glob("epoch-*")) for line in file.read_text().splitlines()
    ]
    assert sorted(row["total"] for row in written) == [2, 24, 60]


def test_a_setting_of_spark_has_a_name_and_a_value(pipeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(pipeline), "--engine", "spark", "--conf", "x"]) == 1
    assert "NAME=VALUE" in capsys.readouterr().err
