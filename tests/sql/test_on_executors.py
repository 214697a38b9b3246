"""A file of statements on Spark's executors: its queries are one query of Spark, which a second run continues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from zset_join.checkpoint.reading import stored_buckets
from zset_join.core.errors import SqlError
from zset_join.sql.commands import run_file

FILE = """
SET execution = 'executors';
SET on_bad_input = 'quarantine';
CREATE TABLE orders (id INT, who STRING, total INT, PRIMARY KEY (id))
    WITH ('connector' = 'filesystem', 'path' = '{place}/in', 'format' = 'json');
CREATE TABLE people (who STRING, city STRING, PRIMARY KEY (who));
INSERT INTO people VALUES ('ada', 'oslo'), ('bob', 'rome');
CREATE TABLE totals (city STRING, total BIGINT, PRIMARY KEY (city))
    WITH ('connector' = 'duckdb', 'path' = '{place}/out.duckdb', 'table-name' = 'totals');
CREATE TABLE homes (id INT, city STRING) WITH ('connector' = 'filesystem', 'path' = '{place}/homes', 'format' = 'json');
CREATE TABLE notes (note STRING);
INSERT INTO notes VALUES ('x'), ('x'), ('y');
CREATE TABLE marks (note STRING, n BIGINT, PRIMARY KEY (note))
    WITH ('connector' = 'duckdb', 'path' = '{place}/out.duckdb', 'table-name' = 'marks');
INSERT INTO marks SELECT note, count(*) AS n FROM notes GROUP BY note;
CREATE MATERIALIZED VIEW joined AS SELECT o.id, o.total, p.city FROM orders o JOIN people p ON o.who = p.who;
INSERT INTO totals SELECT city, sum(total) AS total FROM joined GROUP BY city;
INSERT INTO homes SELECT id, city FROM joined;
SELECT city, count(*) AS n FROM joined GROUP BY city;
"""


def put(place: Path, number: int, *orders: tuple[int, str, int]) -> None:
    (place / "in").mkdir(exist_ok=True)
    lines = [json.dumps(dict(zip(("id", "who", "total"), one, strict=True))) + "\n" for one in orders]
    (place / "in" / f"{number}.json").write_text("".join(lines))


def run(spark: SparkSession, place: Path, text: str) -> int:
    (place / "file.sql").write_text(text.format(place=place))
    how: dict[str, Any] = {"engine": "spark", "dialect": "spark", "once": True, "spark": lambda: spark, "progress_seconds": 60}
    return run_file(str(place / "file.sql"), directory=str(place / "state"), **how)


def held(place: Path) -> tuple[list[Any], list[Any], dict[Any, int]]:
    with duckdb.connect(str(place / "out.duckdb"), read_only=True) as connection:
        totals, marks = (sorted(connection.sql(f"FROM {name}").fetchall()) for name in ("totals", "marks"))
    homes: dict[Any, int] = {}
    for file in sorted((place / "homes").glob("epoch-*.json")):
        for row in map(json.loads, file.read_text().splitlines()):
            homes[row["id"], row["city"]] = homes.get((row["id"], row["city"]), 0) + row["_tp_delta"]
    return totals, marks, {row: weight for row, weight in homes.items() if weight}


def test_a_file_runs_on_executors_as_one_query_and_goes_on(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, 1, (1, "ada", 5), (2, "bob", 9), (3, "ada", 2))
    assert run(spark, tmp_path, FILE) == 0
    homes = {(1, "oslo"): 1, (2, "rome"): 1, (3, "oslo"): 1}
    assert held(tmp_path) == ([("oslo", 7), ("rome", 9)], [("x", 2), ("y", 1)], homes)
    shown = capsys.readouterr()
    assert (json.loads(shown.out.splitlines()[0])["_tp_delta"], '"query": "executors"' in shown.err) == (1, True)
    assert run(spark, tmp_path, FILE) == 0  # without anything new
    assert capsys.readouterr().out == ""

    put(tmp_path, 2, (3, "bob", 4))
    more = "INSERT INTO notes VALUES ('x'), ('z');\nINSERT INTO people VALUES ('ada', 'bergen');\nSELECT city, c"
    assert run(spark, tmp_path, FILE.replace("SELECT city, c", more)) == 0

    homes = {(1, "bergen"): 1, (2, "rome"): 1, (3, "rome"): 1}
    assert held(tmp_path) == ([("bergen", 5), ("rome", 13)], [("x", 3), ("y", 1), ("z", 1)], homes)
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sum(one["n"] * one["_tp_delta"] for one in printed) == 0
    assert stored_buckets(str(tmp_path / "state" / "executors")) is not None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("CREATE TABLE t (city STRING, total BIGINT, PRIMARY KEY (city)); INSERT INTO t SELECT city, total FROM joined;",
         "NOT_OFFERED"),
        ("CREATE MATERIALIZED VIEW alone AS SELECT id FROM orders;", "MISSING_OUTPUT"),
        ("SET on_bad_input = 'error'; INSERT INTO homes SELECT id, city FROM joined;", "SESSION_SETTINGS"),
    ],
)  # fmt: skip
def test_what_executors_cannot_do_is_refused(spark: SparkSession, tmp_path: Path, text: str, code: str) -> None:
    put(tmp_path, 1, (1, "ada", 5))
    with pytest.raises(SqlError) as refused:
        run(spark, tmp_path, FILE.partition("INSERT INTO totals")[0] + text)

    assert refused.value.code == code
