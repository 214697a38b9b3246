"""An INSERT that a query cannot answer changes nothing; keys that two rows claim; files with a primary key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from zset_join.core.errors import BadInputError, SinkError, SqlError
from zset_join.sql import Session, connect
from zset_join.sql.runtime.claims import KeyClaims
from zset_join.sql.session import SqlWarning
from zset_join.sql.tables.catalog import ColumnDefinition, Table
from zset_join.zset import ZSet

TABLES = "CREATE TABLE orders (id INT, total INT, qty INT, PRIMARY KEY (id))"
PRICES = "SELECT id, total / qty AS price FROM orders"


@pytest.fixture(params=["memory", "directory"])
def session(request: Any, tmp_path: Path) -> Any:
    with connect() if request.param == "memory" else connect(directory=tmp_path / "shop") as opened:
        yield opened


def shown(session: Session, text: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in session.sql(text).table().to_pylist())


def test_a_query_behind_another_one_fails_the_insert_of_both(session: Session) -> None:
    session.sql(f"{TABLES}; CREATE TABLE copies (id INT, total INT, qty INT, PRIMARY KEY (id))")
    session.sql("INSERT INTO copies SELECT id, total, qty FROM orders")
    prices = session.sql("SELECT id, total / qty AS price FROM copies").start(name="prices")

    with pytest.raises(BadInputError, match='query "prices"') as refused:
        session.sql("INSERT INTO orders VALUES (1, 6, 2), (2, 6, 0)")
    session.sql("INSERT INTO orders VALUES (3, 6, 3)")

    assert (refused.value.code, refused.value.facts["query"]) == ("DIVIDE_BY_ZERO", "prices")
    assert shown(session, "SELECT id FROM orders") == shown(session, "SELECT id FROM copies") == [(3,)]
    assert prices.table().to_pylist() == [{"id": 3, "price": 2.0}]


def test_an_insert_of_a_select_is_all_or_nothing_too(session: Session) -> None:
    session.sql(f"{TABLES}; CREATE TABLE drafts (id INT, total INT, qty INT); INSERT INTO drafts VALUES (1, 6, 2), (2, 6, 0)")
    counts = session.sql("SELECT count(*) AS n FROM orders").start()
    session.sql(PRICES).start()

    with pytest.raises(BadInputError, match='query "query_2"'):
        session.sql("INSERT INTO orders SELECT id, total, qty FROM table(drafts)")

    assert shown(session, "SELECT id FROM orders") == []
    assert counts.table().to_pylist() in ([], [{"n": 0}])


def test_a_row_that_one_query_cannot_evaluate_is_a_dead_letter_of_it_and_of_no_other(session: Session) -> None:
    session.sql(f"SET on_bad_input = 'quarantine'; {TABLES}")
    totals = session.sql("SELECT id, total FROM orders").start(name="totals")
    prices = session.sql(PRICES).start(name="prices")

    session.sql("INSERT INTO orders VALUES (1, 6, 2), (2, 6, 0)")

    (letter,) = prices.pipeline.dead_letters.to_pylist()
    assert (letter["code"], letter["row"]) == ("DIVIDE_BY_ZERO", '{"id": 2, "total": 6, "qty": 0}')
    assert letter["reason"].startswith('query "prices": the expression total / qty')
    assert not totals.pipeline.dead_letters.num_rows
    assert shown(session, "SELECT id FROM orders") == [(1,)] == [tuple(row.values())[:1] for row in totals.table().to_pylist()]


def test_a_row_without_a_key_leaves_the_table_and_all_its_queries_and_is_never_lost_in_silence() -> None:
    with connect() as session:
        session.sql(f"SET on_bad_input = 'quarantine'; {TABLES}")
        with pytest.warns(SqlWarning, match=r'table "orders": 1 row quarantined.*"total": 5.*NULL_PRIMARY_KEY'):
            session.sql("INSERT INTO orders VALUES (NULL, 5, 1), (1, 6, 2)")  # no query lists it
        queries = [session.sql(text).start() for text in ("SELECT id, total FROM orders", "SELECT count(*) AS n FROM orders")]
        session.sql("INSERT INTO orders VALUES (2, 6, 2), (NULL, 7, 2)")

        assert [one.pipeline.dead_letters["code"].to_pylist() for one in queries] == [["NULL_PRIMARY_KEY"]] * 2
        assert shown(session, "SELECT id FROM orders") == [(1,), (2,)]
        assert queries[1].table().to_pylist() == [{"n": 2}]


@pytest.mark.parametrize("policy", ["error", "quarantine"])
def test_rows_of_a_connector_are_taken_by_all_queries_or_by_none(session: Session, tmp_path: Path, policy: str) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "1.csv").write_text("id,total,qty\n1,6,2\n2,6,0\n")
    session.sql(f"SET on_bad_input = '{policy}'")
    session.sql(
        f"CREATE TABLE orders (id INT, total INT, qty INT) WITH ('connector'='filesystem', 'path'='{files}', 'format'='csv')"
    )
    session.sql("CREATE TABLE others (id INT)")
    totals = session.sql("SELECT id, total FROM orders").start()
    session.sql(PRICES).start(name="prices")
    others = session.sql("SELECT id FROM others").start()

    session.sql("INSERT INTO others VALUES (1)")
    if policy == "quarantine":
        session.read(wait_seconds=0.0)
    else:
        for _ in range(2):  # the rows arrive again
            with pytest.raises(BadInputError, match='query "prices"'):
                session.read(wait_seconds=0.0)

    assert totals.table().to_pylist() == ([{"id": 1, "total": 6}] if policy == "quarantine" else [])
    assert others.table().num_rows == 1


def test_two_rows_of_queries_may_not_claim_one_key_of_a_table(session: Session) -> None:
    session.sql("CREATE TABLE flats (id INT, owner INT, city STRING, PRIMARY KEY (id))")
    session.sql("CREATE TABLE owners (owner INT, city STRING, PRIMARY KEY (owner))")
    session.sql("INSERT INTO owners SELECT owner, city FROM flats")
    session.sql("INSERT INTO owners SELECT id AS owner, city FROM flats WHERE id > 90")
    session.sql("INSERT INTO flats VALUES (1, 7, 'Rome')")

    for second in ("(2, 7, 'Oslo')", "(2, 8, 'Oslo'), (3, 8, 'Bonn')", "(97, 97, 'Oslo')"):
        with pytest.raises(SinkError, match="two live rows claim the key") as refused:
            session.sql(f"INSERT INTO flats VALUES {second}")
        assert refused.value.code == "SINK_KEY"
    session.sql("INSERT INTO flats VALUES (1, 8, 'Rome')")
    session.sql("INSERT INTO flats VALUES (2, 7, 'Oslo')")

    assert shown(session, "SELECT * FROM owners") == [(7, "Oslo"), (8, "Rome")]


def test_rows_that_no_retracting_query_wrote_do_not_go_over_a_key_that_one_claims(session: Session) -> None:
    session.sql("CREATE TABLE flats (id INT, city STRING, PRIMARY KEY (id)); CREATE TABLE log (id INT, city STRING)")
    session.sql("CREATE TABLE cities (id INT, city STRING, PRIMARY KEY (id))")
    session.sql("INSERT INTO cities SELECT id, city FROM flats; INSERT INTO cities SELECT id, city FROM log")
    session.sql("INSERT INTO flats VALUES (1, 'Rome'), (2, 'Oslo')")

    for table, origin in (("cities", "the INSERT"), ("log", 'the query "')):
        with pytest.raises(SinkError, match=f"{origin}.*has a row with the key") as refused:
            session.sql(f"INSERT INTO {table} VALUES (3, 'Bonn'), (1, 'Bonn')")
        assert (refused.value.code, shown(session, "SELECT * FROM log")) == ("SINK_KEY", [])
    session.sql("DELETE FROM flats WHERE id = 1")
    session.sql("INSERT INTO cities VALUES (1, 'Bonn'), (1, 'Cork'), (4, 'Lima')")
    session.sql("INSERT INTO log VALUES (4, 'Kyiv')")

    assert shown(session, "SELECT * FROM cities") == [(1, "Cork"), (2, "Oslo"), (4, "Kyiv")]


def test_rows_of_files_do_not_go_over_a_key_that_a_query_claims_either(session: Session, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    session.sql(
        "CREATE TABLE flats (id INT, city STRING, PRIMARY KEY (id)); CREATE TABLE cities (id INT, city STRING, PRIMARY KEY (id))"
    )
    session.sql(f"CREATE TABLE log (id INT, city STRING) WITH ('connector'='filesystem', 'path'='{files}', 'format'='csv')")
    session.sql("INSERT INTO cities SELECT id, city FROM flats; INSERT INTO cities SELECT id, city FROM log")
    session.sql("INSERT INTO flats VALUES (1, 'Rome')")

    (files / "1.csv").write_text("id,city\n2,Lima\n1,Bonn\n")
    with pytest.raises(SinkError, match='the query "'):
        session.read(wait_seconds=0.0)
    session.sql("DELETE FROM flats WHERE id = 1")
    session.read(wait_seconds=0.0)
    with pytest.raises(SinkError, match="that no query retracts"):
        session.sql("INSERT INTO flats VALUES (2, 'Oslo')")

    assert shown(session, "SELECT * FROM cities") == [(1, "Bonn"), (2, "Lima")]


def test_a_query_does_not_claim_the_key_of_a_row_that_is_never_retracted(session: Session) -> None:
    session.sql("CREATE TABLE flats (id INT, city STRING, PRIMARY KEY (id)); INSERT INTO flats VALUES (1, 'Rome'), (2, 'Oslo')")
    session.sql(
        "CREATE TABLE cities (id INT, city STRING, PRIMARY KEY (id)); INSERT INTO cities VALUES (1, 'Bonn'), (5, 'Lima')"
    )
    written = "INSERT INTO cities SELECT id, city FROM flats"

    with pytest.raises(SinkError, match="that no query retracts") as refused:
        session.sql(written)
    session.sql("DELETE FROM cities WHERE id = 1")
    session.sql(written)
    with pytest.raises(SinkError, match="that no query retracts"):
        session.sql("INSERT INTO flats VALUES (3, 'Kyiv'), (5, 'Kyiv')")
    session.sql("UPDATE cities SET city = 'Cork' WHERE id = 5")

    assert (refused.value.code, refused.value.facts["key"]) == ("SINK_KEY", (1,))
    assert shown(session, "SELECT * FROM cities") == [(1, "Rome"), (2, "Oslo"), (5, "Cork")]
    assert shown(session, "SELECT id FROM flats") == [(1,), (2,)]


def test_a_row_that_a_query_claims_is_not_deleted_under_it(session: Session) -> None:
    session.sql("CREATE TABLE flats (id INT, city STRING, PRIMARY KEY (id)); INSERT INTO flats VALUES (1, 'Rome'), (2, 'Oslo')")
    session.sql("CREATE TABLE cities (id INT, city STRING, PRIMARY KEY (id))")
    session.sql("INSERT INTO cities SELECT id, city FROM flats")

    for change in ("DELETE FROM cities WHERE id < 9", "UPDATE cities SET city = 'Cork'"):
        with pytest.raises(SinkError, match="a DELETE or UPDATE takes the row with the key"):
            session.sql(change)
    session.sql("DELETE FROM flats WHERE id = 1")
    assert shown(session, "SELECT * FROM cities") == [(2, "Oslo")]

    session.stop(session.running[0])
    session.sql("INSERT INTO cities SELECT id, city FROM flats; INSERT INTO flats VALUES (2, 'Kyiv')")
    assert shown(session, "SELECT * FROM cities") == [(2, "Kyiv")]  # what a stopped query left behind is replaced


def test_claims_read_each_query_by_its_own_columns() -> None:
    rows = pa.RecordBatch.from_pydict({"a": [1, 2], "b": [3, 1]})
    columns = tuple(ColumnDefinition(name, pa.int64()) for name in ("k", "v"))
    claims = KeyClaims(
        Table("t", "TABLE", columns, "upsert", ("k",)), pa.schema(rows.schema).empty_table().rename_columns(["k", "v"])
    )
    first, second = ZSet(rows.slice(0, 1), np.ones(1, np.int64)), ZSet(rows.slice(1, 1), np.ones(1, np.int64))

    claims.check([(first, ("v", "k")), (second, ("k", "v"))], "second")
    with pytest.raises(SinkError, match=r"the key \(1,\).*\"second\""):
        claims.check([(first, ("k", "v")), (second, ("v", "k"))], "second")


def test_claims_are_known_after_a_restart(tmp_path: Path) -> None:
    texts = (
        "CREATE TABLE flats (id INT, owner INT, PRIMARY KEY (id)); CREATE TABLE owners (owner INT, PRIMARY KEY (owner)); "
        "INSERT INTO owners SELECT owner FROM flats"
    )
    with connect(directory=tmp_path) as session:
        session.sql(
            f"{texts}; INSERT INTO flats VALUES (1, 7); INSERT INTO owners VALUES (8), (9); DELETE FROM owners WHERE owner = 8"
        )

    with connect(directory=tmp_path) as again:
        again.sql(texts)
        for owner in (7, 9):
            with pytest.raises(SinkError, match="SINK_KEY"):
                again.sql(f"INSERT INTO flats VALUES (2, {owner})")
        again.sql("DELETE FROM flats WHERE id = 1")
        again.sql("INSERT INTO flats VALUES (2, 7), (3, 8)")


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_table_with_a_key_over_files_holds_the_last_row_of_each_key_by_file_and_line(
    session: Session, tmp_path: Path, form: str
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    session.sql(
        f"CREATE TABLE t (k INT, v STRING, PRIMARY KEY (k)) WITH ('connector'='filesystem', 'path'='{files}', 'format'='{form}')"
    )
    running = session.sql("SELECT k, v FROM t").start()
    arriving = [
        ("part-b\u00e9", [(1, "x"), (2, "y"), (4, "x")]),
        ("part-b", [(1, "old"), (5, "a"), (5, "b")]),
        ("part-b\u00e9.1", [(2, "new"), (4, "x")]),  # a name that continues with another one comes after it
        ("part-b\u00e9.0", [(4, "old"), (3, "z")]),
        ("part-b\u20ac", [(6, "first")]),
        ("part-a", [(6, "old"), (3, "old"), (7, "a")]),
    ]

    for name, rows in arriving:
        texts = [f"{key},{value}" if form == "csv" else f'{{"k": {key}, "v": "{value}"}}' for key, value in rows]
        (files / name).write_text("\n".join([*(["k,v"] if form == "csv" else []), *texts]) + "\n")
        session.read(wait_seconds=0.0)
    later = session.sql("SELECT * FROM t").start()
    (files / "part-0").write_text("k,v\n7,old\n" if form == "csv" else '{"k": 7, "v": "old"}\n')
    session.read(wait_seconds=0.0)

    wanted = [(1, "x"), (2, "new"), (3, "z"), (4, "x"), (5, "b"), (6, "first"), (7, "a")]
    assert sorted(tuple(row.values()) for row in running.table().to_pylist()) == wanted
    assert sorted(tuple(row.values()) for row in later.table().to_pylist()) == wanted == shown(session, "SELECT * FROM t")


def test_what_orders_the_rows_of_files_is_shown_nowhere(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("k,v\n1,2\n2,0\n")
    with connect(keep_inputs=True, keep_tables=False) as session:
        session.sql(
            "SET on_bad_input = 'quarantine'; CREATE TABLE t (k INT, v INT, PRIMARY KEY (k)) "
            f"WITH ('connector'='filesystem', 'path'='{tmp_path}', 'format'='csv')"
        )
        running = session.sql("SELECT *, 2 / v AS share FROM t").start()
        session.read(wait_seconds=0.0)
        verified, letters = running.verify(), running.pipeline.dead_letters["row"].to_pylist()
        (tmp_path / "2.csv").write_text("k,v\n,5\n")
        session.read(wait_seconds=0.0)
        letters += running.pipeline.dead_letters["row"].to_pylist()
        history = str(running.pipeline.explain_row({"k": 1}))
        described = f"{session.sql('DESCRIBE t')}{session.sql('SHOW CREATE TABLE t')}"
        with pytest.raises(SqlError, match="filled by its connector"):
            session.insert("t", [{"k": 3, "v": 3}])

        assert running.table().to_pylist() == [{"k": 1, "v": 2, "share": 1.0}]
        assert letters == ['{"k": 2, "v": 0}', '{"k": null, "v": 5, "share": 0.4}']
        assert (verified.equal, "__" in history + described) == (True, False)
