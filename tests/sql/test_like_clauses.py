"""CREATE TABLE ... LIKE: what is copied of another table, by Flink's document."""

from __future__ import annotations

import pytest

from zset_join.core.errors import SqlError
from zset_join.sql import SqlWarning, connect

ORDERS = """
CREATE TABLE orders (
    id BIGINT, at TIMESTAMP(3), seen TIMESTAMP(3) METADATA FROM 'timestamp', twice AS id * 2, PRIMARY KEY (id) NOT ENFORCED,
    WATERMARK FOR at AS at - INTERVAL '5' SECOND
) WITH ('connector' = 'kafka', 'topic' = 'orders', 'properties.bootstrap.servers' = 'b:9092', 'format' = 'json');
"""


def test_a_table_like_another_adds_the_columns_in_its_own_brackets() -> None:
    with connect(dialect="flink") as session:
        session.sql("CREATE TABLE s (id BIGINT, at TIMESTAMP(3), twice AS id * 2)")
        session.sql("CREATE TABLE t (thrice AS twice + id, WATERMARK FOR at AS at - INTERVAL '5' SECOND) LIKE s")
        session.sql("INSERT INTO t (id) VALUES (2)")

        table = session.catalog.tables["t"]
        assert [column.name for column in table.columns] == ["id", "at", "twice", "thrice"]
        assert table.watermark == ("at", 5_000_000)
        assert session.sql("SELECT id, twice, thrice FROM table(t)").table().to_pylist() == [{"id": 2, "twice": 4, "thrice": 6}]


def test_options_of_the_other_table_are_overwritten_one_by_one() -> None:
    with connect(dialect="flink") as session:
        session.sql(ORDERS + "CREATE TABLE again WITH ('topic' = 'again') LIKE orders")

        table = session.catalog.tables["again"]
        assert (table.options["topic"], table.options["format"]) == ("again", "json")
        assert (table.mode, table.primary_key) == (session.catalog.tables["orders"].mode, ("id",))


@pytest.mark.parametrize(
    ("clause", "columns", "key", "has_watermark"),
    [
        ("EXCLUDING ALL", ["id", "at"], (), False),
        ("EXCLUDING ALL INCLUDING GENERATED", ["id", "at", "twice"], (), False),
        ("EXCLUDING OPTIONS EXCLUDING METADATA, EXCLUDING WATERMARKS", ["id", "at", "twice"], ("id",), False),
        ("EXCLUDING OPTIONS EXCLUDING CONSTRAINTS", ["id", "at", "seen", "twice"], (), True),
    ],
)
def test_what_is_excluded_does_not_come_along(
    clause: str, columns: list[str], key: tuple[str, ...], has_watermark: bool
) -> None:
    with connect(dialect="flink") as session:
        session.sql(ORDERS + f"CREATE TABLE t WITH ('connector' = 'memory') LIKE orders ({clause})")

        table = session.catalog.tables["t"]
        assert [column.name for column in table.columns] == columns
        assert (table.primary_key, table.watermark is not None) == (key, has_watermark)
        assert table.options == {"connector": "memory"}


def test_a_like_clause_that_cannot_be_read_is_refused_at_its_position() -> None:
    with connect(dialect="flink") as session:
        session.sql(ORDERS)
        with pytest.raises(SqlError, match=r"no OPTION\. Did you mean OPTIONS.*\nline 1, column 47"):
            session.sql("CREATE TABLE t (a INT) LIKE orders (EXCLUDING OPTION)")
        with pytest.raises(SqlError, match=r"no table or view is called \"order\".*\nline 1, column 29"):
            session.sql("CREATE TABLE t (a INT) LIKE order")


def test_partitions_and_distribution_are_taken_with_a_warning_and_refused_for_files() -> None:
    with connect(dialect="flink") as session:
        with pytest.warns(SqlWarning, match="DISTRIBUTED BY changes nothing"):
            session.sql(
                "CREATE TABLE d (a INT, CONSTRAINT k PRIMARY KEY (a) NOT ENFORCED) DISTRIBUTED BY HASH(a, a) INTO 4 BUCKETS"
            )
        with pytest.warns(SqlWarning, match="PARTITIONED BY changes nothing"):
            session.sql("CREATE TABLE p (a INT, b INT) COMMENT 'x' PARTITIONED BY (a, b) WITH ('connector' = 'print')")
        with pytest.raises(SqlError, match=r"PARTITIONED BY is not supported for files"):
            session.sql("CREATE TABLE f (a INT) PARTITIONED BY (a) WITH ('connector' = 'filesystem', 'path' = 'f')")

        assert session.catalog.tables["d"].primary_key == ("a",)
