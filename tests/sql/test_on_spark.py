"""SQL inside Spark: the session of the Timeplus page with its numbers, tables of every kind, and queries that continue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.sql.test_files import RECORDS, declared
from tests.sql.timeplus_page import has_the_numbers_of_the_page, query
from tests.sweeps import for_each
from zset_join.core.errors import PlanError, SqlError
from zset_join.spark import appends
from zset_join.sql import Session, connect
from zset_join.sql.commands import run_file
from zset_join.tools.dead_letters import read_letters


@pytest.fixture
def session(spark: SparkSession) -> Iterator[Session]:
    with connect(engine="spark", spark=spark, dialect="timeplus", keep_inputs=True) as opened:
        yield opened


def test_the_session_of_the_timeplus_page_gives_its_numbers(session: Session) -> None:
    aggregates = has_the_numbers_of_the_page(session)

    assert aggregates.verify().equal
    assert "remembers:" in aggregates.query.explain()


def test_the_hint_for_ending_state_is_in_a_view_inside_spark(session: Session) -> None:
    session.sql("CREATE STREAM orders (id int, n int); CREATE MUTABLE STREAM people (id int, name string) PRIMARY KEY (id)")
    joined = "SELECT /*+ STATE_TTL('o'='10s') */ o.id, name FROM orders AS o JOIN people AS p ON o.id = p.id"

    reported = session.view_of(query(session, joined)).placed.explanation(buckets=2)

    assert 'rows of "o" are retracted from the answer, 10 seconds after their last write' in reported


def test_the_bound_of_event_times_is_set_for_the_tables_of_a_query_inside_spark(planned: Session) -> None:
    planned.sql("SET max_watermark_jump = '1 hour'")
    bounded = planned.view_of(query(planned, "SELECT customer, count(*) FROM orders GROUP BY customer")).placed
    planned.sql("RESET max_watermark_jump")

    assert [stream.max_watermark_jump for stream in bounded.streams] == [3_600_000_000]


def test_a_file_of_statements_that_is_run_again_goes_on(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orders = tmp_path / "orders"
    orders.mkdir()
    (orders / "1.json").write_text('{"id": 1, "customer": "Ada", "total": 30}\n')
    spark.createDataFrame([("Ada", "Ada L."), ("Bob", "Bob M.")], "customer string, name string").createOrReplaceTempView(
        "names"
    )
    file = tmp_path / "pipeline.sql"
    file.write_text(f"""
        CREATE TABLE orders (id INT, customer STRING, total INT, twice AS total * 2)
            WITH ('connector' = 'filesystem', 'path' = '{orders}', 'format' = 'json');
        CREATE TABLE revenue (name STRING, revenue BIGINT, PRIMARY KEY (name));
        INSERT INTO revenue VALUES ('nobody', 0);
        INSERT INTO revenue SELECT name, sum(twice) FROM orders o JOIN names n ON o.customer = n.customer GROUP BY name;
        SELECT name, revenue FROM revenue WHERE revenue < 100;
    """)

    def run() -> list[tuple[str, int, int]]:
        state = str(tmp_path / "state")
        assert run_file(str(file), engine="spark", dialect="spark", once=True, directory=state, spark=lambda: spark) == 0
        return [tuple(json.loads(line).values()) for line in capsys.readouterr().out.splitlines()]

    assert sorted(run()) == [("Ada L.", 60, 1), ("nobody", 0, 1)]
    (orders / "2.json").write_text('{"id": 2, "customer": "Ada", "total": 1}\n{"id": 3, "customer": "Ada", "total": 99}\n')
    assert run() == [("Ada L.", 60, -1)]


@pytest.mark.filterwarnings("ignore:.*has deletes")
@for_each(
    "text",
    [
        "SELECT customer, qty, count(*) FROM orders GROUP BY CUBE(customer, qty)",
        "SELECT customer, sum(qty) FILTER (WHERE qty > 1) AS n FROM orders GROUP BY customer HAVING count(*) > 1",
        "SELECT customer, sum(CASE WHEN qty > 1 THEN qty ELSE 0 END) AS n FROM orders GROUP BY customer, qty + 1",
        "SELECT a.id FROM orders a JOIN people b ON lower(a.customer) = lower(b.id) AND a.qty > 10",
        "SELECT a.id, b.name FROM orders a LEFT JOIN people b ON a.customer = b.id AND b.name = 'DE'",
        "SELECT a.id FROM orders a JOIN orders b ON a.customer = b.customer AND a.id < b.id",
        "SELECT id FROM orders UNION ALL SELECT qty FROM orders UNION SELECT qty + 1 FROM orders",
        "SELECT o.id, p.name FROM orders o LEFT JOIN people FOR SYSTEM_TIME AS OF o.ts p ON o.customer = p.id",
        "SELECT o.id, p.name FROM orders o JOIN people FOR SYSTEM_TIME AS OF PROCTIME() p ON upper(o.customer) = p.id",
        "SELECT o.id, p.name FROM orders o ASOF JOIN people p MATCH_CONDITION (o.ts >= p.ts) ON o.customer = p.id",
        "SELECT id, ts FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY customer ORDER BY ts DESC) AS n FROM orders) WHERE n = 1",
    ],
)
def test_what_is_written_in_sql_is_planned_inside_spark(planned: Session, text: str) -> None:
    assert "remembers:" in query(planned, text).explain()


@pytest.mark.filterwarnings("ignore:.*has deletes")
@for_each("time", ["o.ts", "PROCTIME()"])
def test_a_table_under_two_aliases_is_kept_once(planned: Session, time: str) -> None:
    planned.sql("CREATE INDEX IF NOT EXISTS by_id ON people (id)")
    text = (
        f"SELECT o.id, p.name, q.name AS other FROM orders o JOIN people FOR SYSTEM_TIME AS OF {time} p ON o.customer = p.id "
        f"LEFT JOIN people FOR SYSTEM_TIME AS OF {time} q ON p.name = q.id"
    )

    reported = planned.view_of(query(planned, text)).placed.explained_indexes()

    assert len(reported) == 2
    assert all("looks up in index by_id (id): one copy, shared with" in line for line in reported)


@pytest.fixture(scope="module")
def planned(spark: SparkSession) -> Iterator[Session]:
    with connect(engine="spark", spark=spark, dialect="flink") as opened:
        opened.sql("CREATE TABLE orders (id INT, customer STRING, qty INT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts)")
        opened.sql(
            "CREATE TABLE people (id STRING, name STRING, ts TIMESTAMP(3), WATERMARK FOR ts AS ts, PRIMARY KEY (id) NOT ENFORCED)"
        )
        yield opened


def test_a_collation_is_refused_in_a_table(session: Session, spark: SparkSession) -> None:
    rows = spark.sql("SELECT 1 AS id, collate('a', 'UTF8_LCASE') AS name")
    stream = spark.readStream.format("rate").load().selectExpr("value AS id", "collate('a', 'UTF8_LCASE') AS name")

    for given in (rows, stream, appends(stream, name="p")):
        with pytest.raises(PlanError) as refused:
            session.register("p", given)
        assert refused.value.code == "COLLATION"


def test_a_sink_from_a_view_into_a_table_and_bytes_inside_spark(spark: SparkSession) -> None:
    with connect(engine="spark", spark=spark, dialect="risingwave") as market:
        market.sql("CREATE TABLE orders (id INT PRIMARY KEY, tag BYTEA); CREATE TABLE kept (tag BYTEA PRIMARY KEY, n BIGINT)")
        market.sql("CREATE VIEW tags AS SELECT tag, count(*) AS n FROM orders WHERE tag <> X'' GROUP BY tag")
        market.sql("CREATE SINK s INTO kept FROM tags")
        market.sql("INSERT INTO orders VALUES (1, X'00ff'), (2, X'00ff'), (3, X'')")
        with pytest.raises(SqlError, match="its own rows forever"):
            market.sql("CREATE SINK again INTO orders AS SELECT 1, tag FROM kept")

        assert query(market, "SELECT * FROM kept").table().to_pylist() == [{"tag": b"\x00\xff", "n": 2}]
        market.sql("DROP SINK s; INSERT INTO kept VALUES (X'00ff', 7)")  # what it wrote claims its key no more
        assert query(market, "SELECT * FROM kept").table().to_pylist() == [{"tag": b"\x00\xff", "n": 7}]


CUSTOMERS = """
    CREATE TABLE customers (
        id INT, name STRING, changed TIMESTAMP_LTZ(3) METADATA FROM 'value.source.timestamp', shout AS upper(name),
        lsn BIGINT METADATA, topic STRING METADATA VIRTUAL, place BIGINT METADATA FROM 'offset', PRIMARY KEY (id) NOT ENFORCED,
        part STRING METADATA FROM 'partition', written TIMESTAMP(3) METADATA FROM 'ingestion-timestamp'
    ) WITH ('connector' = 'kafka', 'topic' = 'customers', 'properties.bootstrap.servers' = 'none', 'format' = 'debezium-json')
"""


def change(offset: int, before: dict[str, object] | None, after: dict[str, object] | None) -> str:
    seconds = 1_700_000_000 + offset
    source = {"ts_us": seconds * 10**6, "lsn": 100 + offset}
    operation = "c" if before is None else "d" if after is None else "u"
    value = {"op": operation, "before": before, "after": after, "source": source, "ts_us": (seconds + 1) * 10**6}
    key = json.dumps({"id": (after or before or {})["id"]})
    return json.dumps({"key": key, "value": json.dumps(value), "topic": "customers", "partition": 3, "offset": offset})


def test_the_metadata_of_records_of_changes_is_in_columns_inside_spark_too(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records are those of files; Spark reads a real Kafka in `tests/services`."""
    ada, eve = {"id": 1, "name": "Ada"}, {"id": 1, "name": "Eve"}
    (tmp_path / "1.json").write_text(f"{change(7, None, ada)}\n{change(8, None, {'id': 2, 'name': 'Bob'})}\n")
    schema = "key STRING, value STRING, topic STRING, partition INT, offset LONG"
    monkeypatch.setattr(
        "zset_join.sql.runtime.on_spark.kafka_records", lambda *_, **__: spark.readStream.schema(schema).json(str(tmp_path))
    )
    with connect(engine="spark", spark=spark, dialect="flink", keep_inputs=True) as shop:
        shop.sql(CUSTOMERS)
        running = query(shop, "SELECT * FROM customers").start()
        (tmp_path / "2.json").write_text(f"{change(9, ada, eve)}\n{change(10, {'id': 2, 'name': 'Bob'}, None)}\n")
        shop.read()
        (row,) = running.table().to_pylist()

        assert running.verify().equal
    assert list(row) == ["id", "name", "changed", "shout", "lsn", "topic", "place", "part", "written"]
    assert (row["name"], row["shout"], row["lsn"], row["topic"], row["place"], row["part"]) == (
        "Eve",
        "EVE",
        109,
        "customers",
        9,
        "3",
    )
    assert row["changed"].isoformat() == "2023-11-14T22:13:29+00:00"
    assert row["written"].isoformat() == "2023-11-14T22:13:30"


def test_rows_of_a_key_are_ordered_by_their_file_or_version_and_not_by_arrival(spark: SparkSession, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    with connect(engine="spark", spark=spark, dialect="spark") as session:
        session.sql(f"""
            CREATE TABLE t (k INT, v STRING, PRIMARY KEY (k)) WITH ('connector'='filesystem', 'path'='{files}', 'format'='csv');
            CREATE TABLE names (k INT, name STRING, version INT, PRIMARY KEY (k))
                ON CONFLICT OVERWRITE WITH VERSION COLUMN (version);
        """)
        rows = session.sql("SELECT t.*, name FROM (SELECT * FROM t WHERE v <> 'b2') t JOIN names ON t.k = names.k").start()
        session.sql("INSERT INTO names VALUES (1, 'new', 2), (2, 'two', 1)")
        session.sql("INSERT INTO names VALUES (1, 'old', 1)")
        arriving = {"orders-b\u00e9": "1,b\n1,b2", "orders-b\u00e9.1": "1,c", "orders-b": "1,a\n2,a", "orders-a": "2,z"}
        for name, lines in arriving.items():
            (files / name).write_text(f"k,v\n{lines}\n")
            session.read()

        shown = sorted(tuple(row.values()) for row in rows.table().to_pylist())

    assert shown == [(1, "c", "new"), (2, "a", "two")]


def test_a_bad_row_of_a_file_is_a_dead_letter_with_its_file_inside_spark(spark: SparkSession, tmp_path: Path) -> None:
    good = {"k": 1, "v": 2}
    texts = {
        "json": "\n".join([json.dumps(good), '{"k":2}', '{"k":3,"v":"x"}', "{oops"]),
        "csv": "k,v\n1,2\n2,\n3,x\n4,5,6",
    }
    for form, text in texts.items():
        (tmp_path / form).mkdir()
        (tmp_path / form / f"a.{form}").write_text(text + "\n")
    (tmp_path / "parquet").mkdir()
    pq.write_table(
        pa.table({"k": pa.array([1, 2], pa.int32()), "v": pa.array([2, None], pa.int32())}), tmp_path / "parquet" / "a.parquet"
    )
    tables = "".join(
        f"CREATE TABLE {form} (k INT, v INT NOT NULL) WITH ('connector'='filesystem', 'path'='{tmp_path / form}', "
        f"'format'='{form}');"
        for form in (*texts, "parquet")
    )
    rows = " UNION ALL ".join(f"SELECT '{form}' AS form, k, v FROM {form}" for form in (*texts, "parquet"))

    with connect(engine="spark", spark=spark, dialect="spark", directory=tmp_path / "session") as session:
        session.sql("SET on_bad_input = 'quarantine'")
        session.sql(tables)
        running = session.sql(rows).start(name="q")
        session.read()
        shown = sorted(tuple(row.values()) for row in running.table().to_pylist())
    letters = read_letters(tmp_path / "session" / "pipeline").to_pylist()

    assert shown == [("csv", 1, 2), ("json", 1, 2), ("parquet", 1, 2)]
    assert sorted((one["reason"].partition("file a.")[2].partition(":")[0], one["code"]) for one in letters) == [
        ("csv", "NOT_NULL"), ("csv", "UNDECODABLE_RECORD"), ("csv", "UNDECODABLE_VALUE"),
        ("json", "NOT_NULL"), ("json", "UNDECODABLE_RECORD"), ("json", "UNDECODABLE_VALUE"), ("parquet", "NOT_NULL"),
    ]  # fmt: skip


def test_files_of_records_are_the_changes_of_their_table_inside_spark_too(spark: SparkSession, tmp_path: Path) -> None:
    for form, records in RECORDS.items():
        lines = [json.dumps(record) + "\n" for record in records]
        (tmp_path / form).mkdir()
        (tmp_path / form / "2.json").write_text("\ufeff\n" + "".join(lines[:-1]))
    tables = "; ".join(
        declared(tmp_path / form, form, ", place BIGINT METADATA FROM 'offset'").replace("TABLE t", f"TABLE `{form}`")
        for form in RECORDS
    )
    query = " UNION ALL ".join(f"SELECT '{form}' AS form, id, name, place FROM `{form}`" for form in RECORDS)
    with connect(engine="spark", spark=spark, dialect="flink") as session:
        session.sql("SET 'on_bad_input' = 'quarantine'; SET 'execution' = 'driver'; " + tables)
        assert "debezium-json" in str(session.sql(f"EXPLAIN {query}"))
        running = session.sql(query).start()
        session.read()
        for form, records in RECORDS.items():  # its line is smaller than those of the file before
            (tmp_path / form / "1.json").write_bytes(json.dumps(records[-1]).encode() + b'\n{"id": "\xff"}')
        session.read()
        shown = sorted(tuple(row.values()) for row in running.table().to_pylist())

    lines = {"debezium-json": 4, "canal-json": 2, "maxwell-json": 2, "dms-json": 4, "upsert-json": 3}
    assert shown == sorted((form, 1, "c", line) for form, line in lines.items())


def test_a_file_that_lacks_a_column_is_refused_by_its_address_and_through_a_view_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = tmp_path / "in files, 5%25 \u00e9"
    place.mkdir()
    pq.write_table(pa.table({"id": [1]}), place / "1.parquet")
    with connect(engine="spark", spark=spark, dialect="flink") as session:
        session.sql(
            f"CREATE TABLE t (id BIGINT, x STRING) WITH ('connector'='filesystem', 'path'='file://{place}', 'format'='parquet')"
        )
        written = session.sql("SELECT x, count(*) AS n FROM t GROUP BY x").view.writeStream
        written = written.option("checkpointLocation", str(tmp_path / "cp")).option("execution", "driver")
        query = written.to("parquet", path=str(tmp_path / "out")).start()

        with pytest.raises(Exception, match=r'1\.parquet has no column "x"'):
            query.processAllAvailable()


def test_a_file_that_spark_would_read_without_a_column_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "X": ["a"]}), tmp_path / "1.parquet")
    with connect(engine="spark", spark=spark, dialect="flink") as session:
        session.sql(
            f"CREATE TABLE t (id BIGINT, x STRING) WITH ('connector'='filesystem', 'path'='{tmp_path}', 'format'='parquet')"
        )
        with pytest.raises(SqlError, match=r'1\.parquet has no column "x"') as refused:
            session.sql("SELECT id, x FROM t").start()

        assert refused.value.code == "NO_FILE"
