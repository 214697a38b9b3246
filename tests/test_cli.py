"""The command line does what the methods do, and fails with an exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from zset_join import cli
from zset_join.cli import main

PROGRAM = """
from pathlib import Path

from zset_join.spark import changes

HERE = str(Path.cwd()) + "/"  # the JVM of the tests runs elsewhere

def view(spark):
    orders = spark.readStream.schema("order_id long, customer_id long").json(HERE + "orders")
    customers = spark.readStream.schema("customer_id long, name string").json(HERE + "customers")
    joined = changes(orders, name="orders", keys=["order_id"]).join(
        changes(customers, name="customers", keys=["customer_id"]), on="customer_id", how="left"
    )
    writer = joined.writeStream.option("checkpointLocation", HERE + "checkpoint").option("buckets", 2)
    return writer.option("localStateDir", HERE + "local").trigger(availableNow=True).toDuckDB("shop.duckdb", "orders")

def nothing(spark):
    return None
"""


@pytest.fixture
def program(spark: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give the name of a program whose query has run once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("shop.py").write_text(PROGRAM)
    Path("orders").mkdir(), Path("customers").mkdir()
    Path("orders/1.json").write_text('{"order_id": 1, "customer_id": 7}\n{"order_id": 2, "customer_id": 8}\n')
    Path("customers/1.json").write_text('{"customer_id": 7, "name": "Ada"}\n')
    sys.modules.pop("shop", None)
    import shop

    shop.view(spark).start().awaitTermination()
    yield "shop:view"
    sys.modules.pop("shop", None)


WRONG = [
    (["verify", "shop:missing"], "[PROGRAM] 'shop:missing' does not name a query"),
    (["verify", "nowhere:view"], "[PROGRAM]"),
    (["verify", "shop:nothing"], "it returned None"),
    (["explain-row", "shop:view", "order_id"], "[ROW_QUESTION] 'order_id': expected COLUMN=VALUE"),
    (["explain-row", "shop:view", "order_id=one"], "[ROW_QUESTION]"),
    (["explain-row", "shop:view", "colour=red"], "[ROW_QUESTION]"),
    (["verify", "pipeline.sql"], "connect(keep_inputs=True)"),
    (["explain-row", "pipeline.SQL", "k=1"], "[PROGRAM] pipeline.SQL: explain-row takes MODULE:FUNCTION"),
    (["state", "."], "Checkpoints below it: "),
    (["state", "nowhere"], "[NO_CHECKPOINT]"),
    (["plan", "nowhere"], "[NO_CHECKPOINT]"),
    (["state", "checkpoint", "SELEC 1"], "[SQL_QUERY] DuckDB rejected the query: Parser Error: syntax error"),
]


def refuses_what_cannot_be_done(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, expected in WRONG:
        assert main(arguments) == 1, arguments
        reported = capsys.readouterr().err
        assert expected in reported
        assert reported.count("\n") == 1

    Path("shop.py").write_text(PROGRAM.replace('"checkpoint")', '"elsewhere")'))
    sys.modules.pop("shop")
    assert main(["verify", program]) == 1
    assert "[NO_CHECKPOINT]" in capsys.readouterr().err


def test_commands_do_what_the_methods_do(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The position, rows, plan, state and view of one query, and other buckets at its end."""
    assert main(["position", "shop.duckdb"]) == 0
    header, line, *_ = capsys.readouterr().out.splitlines()

    assert header.split() == ["output", "kind", "query", "view", "epoch", "mark"]
    assert (line.split()[:2], line.split()[4]) == (["shop.duckdb#orders", "duckdb"], "0")
    assert len(line.split()[5]) == 16

    assert main(["explain-row", program, "order_id=1"]) == 0
    assert "because customers +1 {'customer_id': 7, 'name': 'Ada'}" in capsys.readouterr().out

    assert main(["explain", program]) == 0
    assert "Join" in capsys.readouterr().out

    assert main(["plan", "checkpoint"]) == 0
    assert 'View "orders_left_customers": customer_id, order_id, name' in capsys.readouterr().out

    assert main(["state", "checkpoint"]) == 0
    assert "customers" in capsys.readouterr().out

    assert main(["verify", program]) == 0
    assert capsys.readouterr().out.startswith("equal: 2 rows expected, 2 emitted")

    with duckdb.connect("shop.duckdb") as connection:
        bases = "SELECT schema_name, table_name FROM duckdb_tables() WHERE schema_name = '_zset_join'"
        [(schema, table)] = connection.execute(bases).fetchall()
        connection.execute(f'DELETE FROM "{schema}"."{table}" WHERE rowid = 0')

    assert main(["verify", program]) == 1
    assert "1 row differs" in capsys.readouterr().out

    refuses_what_cannot_be_done(program, capsys)

    assert main(["rescale", "checkpoint", "3", "--local-state-dir", "local"]) == 0
    assert "2 buckets became 3" in capsys.readouterr().out


def test_a_wrong_command_line_ends_with_two(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["verfy"])
    assert ended.value.code == 2


def test_a_program_that_is_not_there_is_reported_before_spark_is_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_session(_cores: int | None) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(cli, "_session", no_session)

    assert main(["verify", "nowhere:view"]) == 1
    assert "[PROGRAM] 'nowhere:view' does not name a query" in capsys.readouterr().err


def test_the_version_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])

    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("zset-join ")
