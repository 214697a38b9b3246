"""The views of a session on Spark are one pipeline: one checkpoint, one commit, and one reading of each table."""

from __future__ import annotations

import contextlib
import gc
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.sql.test_killed_sessions import Killed, killed_at
from zset_join.core.errors import ResourceError, SqlError, StateError, ZsetJoinError
from zset_join.runners.spark.driver.polled_rows import PolledRows
from zset_join.runners.spark.frames.classic.kafka_topics import KafkaTopics
from zset_join.sinks.parquet_changelog import read_changelog
from zset_join.sql import Session, SqlWarning, connect

ORDERS = "CREATE TABLE orders (id INT, who STRING, total INT) WITH ('connector'='filesystem', 'path'='{place}/in');"
PEOPLE = "CREATE TABLE people (who STRING, city STRING, PRIMARY KEY (who));"
JOINED = "FROM orders o JOIN people p ON o.who = p.who"


def put(place: Path, number: int, *orders: tuple[int, str, int]) -> None:
    (place / "in").mkdir(exist_ok=True)
    lines = [json.dumps(dict(zip(("id", "who", "total"), one, strict=True))) + "\n" for one in orders]
    (place / "in" / f"{number}.json").write_text("".join(lines))


def opened(spark: SparkSession, place: Path) -> Session:
    return connect(engine="spark", spark=spark, directory=place / "session")


def rows(running: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in running.table().to_pylist())


def test_views_share_what_they_have_in_common_and_take_each_batch_in_one_commit(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, 1, (1, "ada", 5))
    with opened(spark, tmp_path) as session:
        session.sql(ORDERS.format(place=tmp_path) + PEOPLE + "INSERT INTO people VALUES ('ada', 'oslo'), ('bob', 'rome')")
        session.sql(f"CREATE MATERIALIZED VIEW cities AS SELECT p.city, sum(o.total) AS total {JOINED} GROUP BY p.city")
        session.sql(f"CREATE MATERIALIZED VIEW homes AS SELECT o.id, p.city {JOINED}")
        before = session.running[0].whole.epoch
        put(tmp_path, 2, (2, "bob", 9), (3, "ada", 1))
        assert session.read() == 1

        cities, homes = session.running
        assert cities.whole is homes.whole
        assert cities.whole.epoch == before + 1
        assert [node.stage.kind for node in cities.whole.plan.nodes].count("join") == 1
        assert (rows(cities), rows(homes)) == ([("oslo", 6), ("rome", 9)], [(1, "oslo"), (2, "rome"), (3, "oslo")])
    assert [one.parent.name for one in (tmp_path / "session").rglob("offsets")] == ["orders"]  # read once for both
    with opened(spark, tmp_path) as again:
        put(tmp_path, 3, (4, "bob", 1))
        again.sql("CREATE MATERIALIZED VIEW ids AS SELECT id FROM orders")  # while the others run

        cities, homes, ids = again.running
        assert (rows(cities), rows(homes)) == (
            [("oslo", 6), ("rome", 10)],
            [(1, "oslo"), (2, "rome"), (3, "oslo"), (4, "rome")],
        )
        assert rows(ids) == [(1,), (2,), (3,), (4,)]


def test_a_table_that_spark_reads_gets_a_column_and_its_files_are_read_on(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, 1, (1, "ada", 5))
    with opened(spark, tmp_path) as session:
        session.sql(ORDERS.format(place=tmp_path) + "CREATE MATERIALIZED VIEW totals AS SELECT id, total FROM orders")

        session.sql("ALTER TABLE orders ADD COLUMN note BIGINT, ADD COLUMN kind STRING DEFAULT 'old'")
        (tmp_path / "in" / "2.json").write_text('{"id": 2, "who": "bob", "total": 9, "note": 7}')
        session.read()

        whole = session.sql("CREATE MATERIALIZED VIEW whole AS SELECT id, note, kind FROM orders")
        assert rows(session.running[0]) == [(1, 5), (2, 9)]
        assert rows(session.running[1]) == [(1, None, "old"), (2, 7, None)], whole


def test_a_session_killed_within_an_epoch_gives_it_to_all_outputs_once(spark: SparkSession, tmp_path: Path) -> None:
    out = "WITH ('connector'='filesystem', 'format'='json', 'path'='{place}/{name}')"
    made = f"""
        {PEOPLE} {ORDERS}
        CREATE TABLE first (id INT, city STRING) {out.replace("{name}", "first")};
        CREATE TABLE second (id INT, total INT) {out.replace("{name}", "second")};
        INSERT INTO people VALUES ('ada', 'oslo');
        INSERT INTO first SELECT o.id, p.city {JOINED};
        INSERT INTO second SELECT o.id, o.total {JOINED}
    """

    def written(place: Path, name: str) -> Counter[str]:
        return Counter(
            line for file in (place / name).glob("*.json") for line in file.read_text().splitlines() if line.startswith('{"id"')
        )

    def run(place: Path, number: int | None) -> int:
        put(place, 1, (1, "ada", 5))
        session = opened(spark, place)
        session.sql(made.replace("{place}", str(place)))
        put(place, 2, (2, "ada", 6))
        with killed_at(number) as done, pytest.MonkeyPatch.context() as patch:
            if number is not None:
                patch.setattr(PolledRows, "open", lambda *_: None)  # so Spark does not complete the batch
            with contextlib.suppress(Killed):
                session.read()
        session.close()
        return done["files"]

    (tmp_path / "whole").mkdir()
    count = run(tmp_path / "whole", None)
    expected = [written(tmp_path / "whole", name) for name in ("first", "second")]
    states = set()
    for number in range(count):
        place = tmp_path / str(number)
        place.mkdir()
        run(place, number)
        states.add(tuple(written(place, name).total() for name in ("first", "second")))
        with opened(spark, place) as session:
            session.read()
        assert [written(place, name) for name in ("first", "second")] == expected, number
    assert states >= {(1, 1), (2, 1)}  # before the commit, or between the two outputs


def test_a_table_whose_reading_was_rolled_back_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, 1, (1, "ada", 5))
    with opened(spark, tmp_path) as session:
        session.sql(ORDERS.format(place=tmp_path) + "CREATE MATERIALIZED VIEW ids AS SELECT id FROM orders")
    shutil.rmtree(tmp_path / "session" / "spark" / "orders")

    with opened(spark, tmp_path) as session, pytest.raises(StateError) as refused:
        session.read()

    assert refused.value.code == "FOREIGN_STATE"


def test_a_directory_that_is_older_than_what_spark_has_read_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, 1, (1, "ada", 5))
    with opened(spark, tmp_path) as session:
        session.sql(ORDERS.format(place=tmp_path) + "CREATE MATERIALIZED VIEW ids AS SELECT id FROM orders")
    shutil.copytree(tmp_path / "session" / "pipeline", tmp_path / "older")
    put(tmp_path, 2, (2, "bob", 9))
    with opened(spark, tmp_path) as session:
        session.read()
    shutil.rmtree(tmp_path / "session" / "pipeline")
    shutil.copytree(tmp_path / "older", tmp_path / "session" / "pipeline")

    with pytest.raises(StateError) as refused, opened(spark, tmp_path) as session:
        session.read()

    assert refused.value.code == "EPOCH_REPLANNED"


def test_a_table_that_no_query_reads_any_more_is_read_from_its_beginning_by_the_next_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path, 1, (1, "ada", 5))
    with opened(spark, tmp_path) as session:
        session.sql(ORDERS.format(place=tmp_path) + "CREATE MATERIALIZED VIEW ids AS SELECT id FROM orders")
        session.sql("DROP MATERIALIZED VIEW ids")
    with opened(spark, tmp_path) as again:
        put(tmp_path, 2, (2, "bob", 9))
        again.sql("CREATE MATERIALIZED VIEW totals AS SELECT total FROM orders")

        assert rows(again.running[0]) == [(5,), (9,)]


def test_a_topic_that_was_rebuilt_is_refused_by_every_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rebuilt(*_: Any) -> Any:
        raise StateError("the topic was deleted and rebuilt", code="SOURCE_LOST_ROWS")

    put(tmp_path, 1, (1, "ada", 5))
    with opened(spark, tmp_path) as session:
        session.sql(ORDERS.format(place=tmp_path) + "CREATE MATERIALIZED VIEW ids AS SELECT id FROM orders")
    put(tmp_path, 2, (2, "bob", 9))
    monkeypatch.setattr(KafkaTopics, "start", rebuilt)
    with opened(spark, tmp_path) as again:
        for _ in range(2):
            with pytest.raises(StateError, match="SOURCE_LOST_ROWS"):
                again.read()

        assert rows(again.running[0]) == [(1,)]


def test_a_jvm_that_is_gone_while_it_reads_is_an_error_and_no_endless_wait(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any) -> None:
        raise Py4JNetworkError("Answer from Java side is empty")

    put(tmp_path, 1, (1, "ada", 5))
    with opened(spark, tmp_path) as session:
        session.sql(ORDERS.format(place=tmp_path) + "CREATE MATERIALIZED VIEW ids AS SELECT id FROM orders")
        monkeypatch.setattr(StreamingQuery, "awaitTermination", gone)
        with pytest.raises(StateError, match="SOURCE_IO"):
            session.read()


def test_the_limits_of_the_driver_are_set_by_sql_and_count_at_once(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, 1, (1, "ada", 5))
    with opened(spark, tmp_path) as session:
        session.sql(f"SET driver_threads = 2; {ORDERS.format(place=tmp_path)} {PEOPLE}")
        session.sql("CREATE MATERIALIZED VIEW totals AS SELECT who, sum(total) AS total FROM orders GROUP BY who")
        session.running[0].whole.explain()
        assert "Threads: 2" in capsys.readouterr().out
        put(tmp_path, 2, (2, "bob", 9))
        session.sql("SET max_delta_bytes = 8")
        with pytest.raises(ResourceError, match="SET max_delta_bytes") as large:
            session.read()
        session.sql("SET max_delta_bytes = 0; SET driver_memory = 1")
        for taking in (session.read, lambda: session.sql("INSERT INTO people VALUES ('ada', 'oslo')")):
            with pytest.raises(StateError, match="SET driver_memory") as outgrown:
                taking()
            assert outgrown.value.code == "DRIVER_STATE_TOO_LARGE"
        assert (large.value.code, rows(session.running[0])) == ("DELTA_TOO_LARGE", [("ada", 5)])

        session.sql("RESET driver_memory")
        session.read()
        assert rows(session.running[0]) == [("ada", 5), ("bob", 9)]
        with pytest.warns(SqlWarning, match="'driver_threads' has no effect"):
            session.sql("SET driver_threads = 3; CREATE MATERIALIZED VIEW cities AS SELECT city FROM people")
        with pytest.raises(SqlError, match="driverThreads"):
            session.sql("SET driver_threads = 65")


def test_views_over_what_spark_reads_are_altered_and_replaced_while_they_run(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, 1, (1, "ada", 5), (2, "bob", 7))
    with opened(spark, tmp_path) as session:
        session.sql(ORDERS.format(place=tmp_path) + PEOPLE + "INSERT INTO people VALUES ('ada', 'oslo'), ('bob', 'rome')")
        session.sql(f"CREATE VIEW joined AS SELECT o.id, o.total, p.city {JOINED}")
        session.sql("CREATE MATERIALIZED VIEW by_city AS SELECT city, sum(total) AS t FROM joined GROUP BY city")
        session.sql("CREATE MATERIALIZED VIEW large AS SELECT id FROM joined WHERE total > 6")
        session.running[0].changelog()

        reported = str(session.sql("ALTER MATERIALIZED VIEW by_city AS SELECT city, sum(id) AS t FROM joined GROUP BY city"))
        session.sql(f"CREATE OR REPLACE VIEW joined AS SELECT o.id, o.total, p.city {JOINED} WHERE o.id > 1")
        with pytest.raises(ZsetJoinError) as refused:
            session.sql("ALTER MATERIALIZED VIEW large AS SELECT 1 / (total - total) AS id FROM joined")

        assert "keeps" in reported
        assert refused.value.facts.get("views", ("large",)) == ("large",)
        by_city, large = session.running
        assert (rows(by_city), rows(large)) == ([("rome", 2)], [(2,)])
        assert sorted(tuple(one.values()) for one in by_city.changelog().to_pylist()) == [
            ("oslo", 1, -1),
            ("oslo", 1, 1),
            ("oslo", 5, -1),
            ("rome", 2, 1),
            ("rome", 7, -1),
        ]
        put(tmp_path, 2, (3, "ada", 9), (4, "ada", 1))
        assert session.read() == 1
    with opened(spark, tmp_path) as again:
        put(tmp_path, 3, (5, "bob", 8))
        assert again.read() == 1
        by_city, large = again.running  # in the order in which they were started
        assert (rows(by_city), rows(large)) == ([("oslo", 7), ("rome", 7)], [(2,), (3,), (5,)])
    assert [one.parent.name for one in (tmp_path / "session").rglob("offsets")] == ["orders"]  # read once, by the same query


def test_rows_of_a_table_lie_on_the_disk_once_and_as_often_as_views_of_the_fluent_api_read_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    def on_disk() -> list[str]:
        return sorted(one.name for one in (tmp_path / "session" / "shown").iterdir())

    with opened(spark, tmp_path) as session:
        session.sql(PEOPLE)
        session.sql("INSERT INTO people VALUES ('ada', 'oslo')")
        query = start_of(session.sql("SELECT who, city FROM people").view, tmp_path)
        first = on_disk()
        for who in ("bob", "eve"):
            session.sql(f"INSERT INTO people VALUES ('{who}', 'oslo')")
            gc.collect()
            assert session.sql("SELECT who FROM people").view.columns == ["who"]

        assert len(on_disk()) == 2
        assert set(first) < set(on_disk())  # a query that runs reads them
        query.processAllAvailable()
        query.stop()
        assert read_changelog(tmp_path / "out").column("who").to_pylist() == ["ada"]


def start_of(view: Any, place: Path) -> Any:
    written = view.writeStream.option("checkpointLocation", str(place / "cp")).option("execution", "driver")
    return written.to("parquet", path=str(place / "out")).start()
