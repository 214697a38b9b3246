"""A session in a directory continues where it was: rows, sinks, tables of tables; a real process is killed on the way."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from zset_join.core.errors import SqlError, StateError
from zset_join.lookup.sources.function import FunctionSource
from zset_join.pipeline import Pipeline
from zset_join.plan.query_plan import QueryPlan
from zset_join.sql import Query, Session, connect
from zset_join.storage.trusted_files import seal
from zset_join.tools.inspection import open_state

DECLARED = """
CREATE TABLE orders (id INT, customer STRING, total INT, shown AS upper(customer))
    WITH ('connector' = 'filesystem', 'path' = '{path}/in', 'format' = 'json');
CREATE TABLE names (customer STRING, name STRING, PRIMARY KEY (customer));
CREATE TABLE totals (customer STRING, total BIGINT, PRIMARY KEY (customer));
CREATE TABLE out (name STRING, total BIGINT) WITH ('connector' = 'filesystem', 'path' = '{path}/out', 'format' = 'json');
"""
QUERIES = """
INSERT INTO totals SELECT shown, sum(total) FROM orders GROUP BY shown;
INSERT INTO out SELECT n.name, t.total FROM totals t JOIN names n ON upper(n.customer) = t.customer;
"""


def order(path: Path, number: int) -> None:
    (path / "in").mkdir(exist_ok=True)
    row = {"id": number, "customer": "ab"[number % 2], "total": number}
    hidden = path / "in" / f".{number:04d}"
    hidden.write_text(json.dumps(row) + "\n")
    hidden.rename(path / "in" / f"{number:04d}.json")


def opened(path: Path) -> Session:
    session = connect(dialect="flink", directory=path / "state", clock=lambda: 0)
    session.sql(DECLARED.format(path=path))
    with session.once("names"):
        session.sql("INSERT INTO names VALUES ('a', 'Ada'), ('b', 'Bob')")
    session.sql(QUERIES)
    return session


def written(path: Path) -> dict[Any, int]:
    """Return the sum of what was written, and check that every row of it is present as often as it is taken away."""
    found: Counter[Any] = Counter()
    for file in sorted((path / "out").glob("epoch-*.json")):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            found[row["name"], row["total"]] += row["_tp_delta"]
    return {row: weight for row, weight in found.items() if weight}


def table(session: Session, text: str) -> list[tuple[Any, ...]]:
    made = session.sql(text)
    assert isinstance(made, Query)
    return sorted(tuple(row.values()) for row in made.table().to_pylist())


def test_an_epoch_that_a_sink_failed_at_is_written_when_it_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zset_join.sinks.json_lines import RowFilesSink

    order(tmp_path, 1)
    with opened(tmp_path) as session:

        def full(*_: Any, **__: Any) -> None:
            raise OSError("no space left")

        monkeypatch.setattr(RowFilesSink, "write", full)
        with pytest.raises(OSError, match="no space left"):
            session.read(wait_seconds=0.0)
        monkeypatch.undo()
    assert written(tmp_path) == {}
    with opened(tmp_path) as session:
        session.read(wait_seconds=0.0)

    assert written(tmp_path) == {("Bob", 1): 1}


PROGRAM = """
import sys
from pathlib import Path
from tests.sql.test_durable_session import opened
with opened(Path(sys.argv[1])) as session:
    while True:
        session.read(wait_seconds=0.0)
"""


def test_a_killed_process_goes_on_exactly_where_it_was(tmp_path: Path) -> None:
    for number in range(9):
        order(tmp_path, number)
    (tmp_path / "out").mkdir()
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=Path(__file__).parents[2], env=os.environ)
    until = time.monotonic() + 120
    while len(list((tmp_path / "out").glob("epoch-*"))) < 3 and time.monotonic() < until:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    with opened(tmp_path) as session:
        session.read(wait_seconds=0.0)

    assert written(tmp_path) == {("Ada", 0 + 2 + 4 + 6 + 8): 1, ("Bob", 1 + 3 + 5 + 7): 1}


def test_a_name_of_another_text_is_refused(tmp_path: Path) -> None:
    with connect(directory=tmp_path) as session:
        session.sql("CREATE TABLE t (k INT); CREATE MATERIALIZED VIEW m AS SELECT sum(k) AS s FROM t; INSERT INTO t VALUES (1)")
        session.sql("SELECT k FROM t").start(name="all")
    with connect(directory=tmp_path) as session:
        with pytest.raises(SqlError, match="NAME_TAKEN"):
            session.sql("CREATE TABLE t (k INT); CREATE MATERIALIZED VIEW m AS SELECT max(k) AS s FROM t")
        with pytest.raises(StateError, match="QUERY_CHANGED"):
            session.sql("SELECT k FROM t WHERE k > 1").start(name="all")
        session.sql("CREATE OR REPLACE MATERIALIZED VIEW m AS SELECT max(k) AS most FROM t")
        assert session.views()["m"].to_pylist() == [{"most": 1}]


@pytest.mark.parametrize("spoilt", ["catalog", "read", "topic"])
def test_a_directory_that_is_refused_stays_as_it_is(tmp_path: Path, spoilt: str) -> None:
    order(tmp_path, 1)
    with opened(tmp_path) as session:
        session.read(wait_seconds=0.0)
    state = tmp_path / "state"
    if spoilt != "topic":
        (state / spoilt).rename(tmp_path / "elsewhere")
    before = {path: path.read_bytes() for path in state.rglob("*") if path.is_file()}

    with pytest.MonkeyPatch.context() as patch, connect(directory=state) as session:
        if spoilt == "topic":
            patch.setattr("zset_join.sql.runtime.runtime.source_of", lost)
        with pytest.raises(StateError) as refused:
            session.sql("SHOW TABLES")

    assert refused.value.code == ("SOURCE_LOST_ROWS" if spoilt == "topic" else "DAMAGED_FILE")
    assert {path: path.read_bytes() for path in state.rglob("*") if path.is_file()} == before
    if spoilt != "topic":
        (tmp_path / "elsewhere").rename(state / spoilt)
    order(tmp_path, 2)
    with opened(tmp_path) as session:
        session.read(wait_seconds=0.0)
    assert written(tmp_path) == {("Bob", 1): 1, ("Ada", 2): 1}


def lost(*_: object, **__: object) -> Any:
    raise StateError("the topic was rebuilt", code="SOURCE_LOST_ROWS")


def test_what_there_was_is_there_without_a_statement(tmp_path: Path) -> None:
    with connect(directory=tmp_path) as session:
        session.register("prices", [{"k": 1, "price": 5}], keys="k")
        session.sql("CREATE TABLE t (k INT, v INT); CREATE VIEW big AS SELECT k, v FROM t WHERE v > 1")
        session.sql(
            "CREATE MATERIALIZED VIEW m AS SELECT big.k, sum(v * price) AS s FROM big JOIN prices p ON p.k = big.k GROUP BY big.k"
        )
        session.sql("CREATE MATERIALIZED VIEW n AS SELECT max(s) AS most FROM m; INSERT INTO t VALUES (1, 1), (1, 2), (1, 3)")
        (joined,) = [node for node in session.runtime.pipeline.plan.nodes if node.stage.kind == "join"]
        assert session.runtime.pipeline.plan.views_of(joined.number) == ("m", "n")  # a view over a view is no second copy
    with connect(directory=tmp_path) as session:
        assert {name: rows.to_pylist() for name, rows in session.views().items()} == {
            "m": [{"k": 1, "s": 25}],
            "n": [{"most": 25}],
        }
        session.sql("INSERT INTO prices VALUES (1, 7)")
        session.sql("DROP MATERIALIZED VIEW n; DROP MATERIALIZED VIEW m; DROP VIEW big; DROP TABLE t; CREATE TABLE t (k INT)")
        assert (table(session, "SELECT * FROM t"), table(session, "SELECT * FROM prices")) == ([], [(1, 7)])
    with connect(directory=tmp_path) as session:
        assert sorted(session.catalog.relations()) == ["prices", "t"]


def test_a_directory_of_another_layout_is_refused_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "queries" / "query_1").mkdir(parents=True)
    (tmp_path / "session.json").write_bytes(seal({}, version=1, name="session.json"))

    with pytest.raises(StateError, match="Rebuild it: rm -r") as refused:
        connect(directory=tmp_path)

    assert refused.value.code == "OLD_SESSION"


def test_a_directory_has_one_session_at_a_time(tmp_path: Path) -> None:
    with connect(directory=tmp_path), pytest.raises(StateError) as refused:
        connect(directory=tmp_path)

    assert refused.value.code == "DIRECTORY_IN_USE"
    connect(directory=tmp_path).close()


def test_a_copy_without_file_times_goes_on_as_the_original_does(tmp_path: Path) -> None:
    def run(place: str, first: int) -> list[dict[str, Any]]:
        with connect(directory=tmp_path / place) as session:
            session.sql("CREATE TABLE t (k INT); CREATE MATERIALIZED VIEW m AS SELECT k, count(*) AS n FROM t GROUP BY k")
            for number in (first, first + 1):
                with session.once(f"statement-{9 - number}"):
                    session.sql(f"INSERT INTO t VALUES ({number})")
            return session.running[0].table().to_pylist()

    run("a", 1)
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copyfile)

    assert run("b", 3) == run("a", 3) == [{"k": number, "n": 1} for number in (1, 2, 3, 4)]


def test_rows_are_not_inserted_where_a_connector_brings_them(tmp_path: Path) -> None:
    order(tmp_path, 1)
    with opened(tmp_path) as session, pytest.raises(SqlError, match="filled by its connector"):
        session.insert("orders", [{"id": 1}])


def test_a_table_that_nobody_read_for_a_while_is_read_from_its_beginning(tmp_path: Path) -> None:
    order(tmp_path, 1)
    with opened(tmp_path) as session:
        for number in (2, 3):
            running = session.sql("SELECT id FROM orders").start(name="ids")
            session.read(wait_seconds=0.0)
            assert sorted(row["id"] for row in running.table().to_pylist()) == list(range(1, number))
            order(tmp_path, number)
            for one in [each for each in session.running if "orders" in each.reads]:
                one.stop()
    with connect(dialect="flink", directory=tmp_path / "state") as session:
        session.sql("CREATE MATERIALIZED VIEW ids AS SELECT id FROM orders")
        session.read(wait_seconds=0.0)
        assert sorted(row["id"] for row in session.views()["ids"].to_pylist()) == [1, 2, 3]


TIMED = """
CREATE TABLE rates (k STRING, rate INT, t TIMESTAMP(3), WATERMARK FOR t AS t, PRIMARY KEY (k) NOT ENFORCED);
CREATE TABLE orders (id INT, k STRING, t TIMESTAMP(3), WATERMARK FOR t AS t);
"""
AS_OF = "SELECT o.id, r.rate FROM orders AS o JOIN rates FOR SYSTEM_TIME AS OF o.t AS r ON o.k = r.k"
FIRST = "SELECT id FROM (SELECT id, ROW_NUMBER() OVER (PARTITION BY k ORDER BY t) AS n FROM orders) WHERE n = 1"


@pytest.mark.filterwarnings("ignore:.*has deletes and takes the time of its versions:UserWarning")
def test_a_query_by_time_is_made_over_rows_that_are_there_and_goes_on(tmp_path: Path) -> None:
    at = "TIMESTAMP '2024-01-01 00:00:0{}'"
    with connect(dialect="flink", directory=tmp_path) as session:
        session.sql(
            f"{TIMED}; INSERT INTO rates VALUES ('a', 1, {at.format(1)}); INSERT INTO orders VALUES (1, 'a', {at.format(5)})"
        )
        session.sql(f"INSERT INTO orders VALUES (2, 'a', {at.format(3)})")
        session.sql(f"CREATE MATERIALIZED VIEW joined AS {AS_OF}; CREATE MATERIALIZED VIEW firsts AS {FIRST}")
    with connect(dialect="flink", directory=tmp_path) as session:
        session.sql(f"INSERT INTO rates VALUES ('a', 2, {at.format(6)}); INSERT INTO orders VALUES (3, 'a', {at.format(8)})")
        session.sql(f"INSERT INTO rates VALUES ('a', 3, {at.format(9)}); INSERT INTO orders VALUES (4, 'a', {at.format(9)})")
        held = {name: sorted(tuple(row.values()) for row in rows.to_pylist()) for name, rows in session.views().items()}

    assert held == {"joined": [(1, 1), (2, 1), (3, 2), (4, 3)], "firsts": [(2,)]}


def test_a_query_of_a_directory_keeps_its_own_settings(tmp_path: Path) -> None:
    joined = "SELECT a.k, v, w FROM a JOIN b ON a.k = b.k"
    hybrid = "SETTINGS default_hash_join = 'hybrid', max_hot_keys = '2', tombstone_retention = '1 hours'"
    made = (
        "CREATE TABLE a (k INT, v INT, PRIMARY KEY (k)); CREATE TABLE b (k INT, w INT, PRIMARY KEY (k)); "
        f"CREATE MATERIALIZED VIEW plain AS {joined}; CREATE MATERIALIZED VIEW own AS {joined} {hybrid}; "
        f"CREATE MATERIALIZED VIEW same AS SELECT k FROM ({joined}) {hybrid}; CREATE MATERIALIZED VIEW other AS {joined} "
        "SETTINGS tombstone_retention = '3 days'"
    )
    rows = ", ".join(f"({at}, {at})" for at in range(9))
    for more in (f"INSERT INTO a VALUES {rows}; INSERT INTO b VALUES {rows}", "INSERT INTO a VALUES (0, 5)"):
        with connect(directory=tmp_path) as session:
            session.sql(f"{made}; {more}")
            plan, counts = session.running[0].whole.plan, session.running[0].whole.statistics()
            held = {name: len(table) for name, table in session.views().items()}
            explained = str(session.sql(f"EXPLAIN {joined} {hybrid}"))
    with connect(directory=tmp_path) as session:
        session.sql(made)
        session.sql(f"INSERT INTO a VALUES (1, 7); ALTER MATERIALIZED VIEW own AS {joined}")
        altered = session.running[0].whole.plan

    joins = {plan.views_of(number): counts[plan.nodes[number].name] for number in range(2, 5)}
    assert [(views, one["left_rows"], one.get("left_cold_rows", 0) > 0) for views, one in joins.items()] == [
        (("plain",), 9, False), (("own", "same"), 9, True), (("other",), 9, False)
    ]  # fmt: skip
    assert held == dict.fromkeys(("plain", "own", "same", "other"), 9)
    assert "own: deleted keys remembered for 3,600 seconds; rows of joins at most 2 keys in memory" in explained
    assert [altered.views_of(node.number) for node in altered.nodes if node.stage.kind == "join"] == [
        ("plain", "own"), ("same",), ("other",)
    ]  # fmt: skip
    assert QueryPlan.from_json(json.loads(json.dumps(plan.to_json()))).nodes == plan.nodes
    with open_state(tmp_path / "pipeline") as state:
        assert state.execute("SELECT count(*) FROM join_3_left").fetchall() == [(9,)]


def test_queries_of_a_directory_have_the_settings_of_the_first(tmp_path: Path) -> None:
    with connect(directory=tmp_path) as session:
        session.sql("SET on_bad_input = 'quarantine'; CREATE TABLE t (k INT, v INT)")
        with pytest.raises(SqlError, match="another on_bad_input than the session") as refused:
            session.sql("SELECT k FROM t SETTINGS on_bad_input = 'error'").start()
        assert refused.value.code == "SESSION_SETTINGS"
    with connect(directory=tmp_path) as session:
        session.sql("SET on_bad_input = 'quarantine'; CREATE MATERIALIZED VIEW m AS SELECT v / k AS s FROM t")
        session.sql("INSERT INTO t VALUES (0, 1), (1, 2)")
        assert session.views()["m"].to_pylist() == [{"s": 2.0}]


@pytest.mark.filterwarnings("ignore:.*has deletes and takes the time of its versions:UserWarning")
def test_versions_of_a_table_that_a_query_writes_are_refused(tmp_path: Path) -> None:
    with connect(dialect="flink", directory=tmp_path) as session:
        session.sql(f"{TIMED}; CREATE TABLE raw (k STRING, rate INT, t TIMESTAMP(3), PRIMARY KEY (k) NOT ENFORCED)")
        session.sql("INSERT INTO rates SELECT k, rate, t FROM raw")
        with pytest.raises(SqlError, match="Read the queries, as views"):
            session.sql(f"CREATE MATERIALIZED VIEW joined AS {AS_OF}")
        assert "joined" not in session.catalog.views
        session.sql(
            "CREATE MATERIALIZED VIEW most AS SELECT max(rate) AS most FROM rates; INSERT INTO raw VALUES ('a', 3, NULL)"
        )
        assert session.views()["most"].to_pylist() == [{"most": 3}]


def test_a_lookup_join_is_added_over_rows_that_are_there_and_keeps_what_it_was_given(tmp_path: Path) -> None:
    schema = pa.schema({"id": pa.int32(), "name": pa.string()})
    fetched: list[list[int]] = []

    def look_up(keys: pa.Table) -> pa.Table:
        fetched.append(keys.column("id").to_pylist())
        return pa.table({"id": keys.column("id"), "name": [f"v{len(fetched)}"] * keys.num_rows}, schema=schema)

    outside = FunctionSource(name="dim", schema=schema, function=look_up)
    with connect(directory=tmp_path) as session:
        session.register_lookup(outside)
        session.sql("CREATE TABLE s (id INT, k INT, PRIMARY KEY (id)); CREATE MATERIALIZED VIEW m AS SELECT sum(k) AS t FROM s")
        session.sql("INSERT INTO s VALUES (1, 7), (2, 8)")
        joined = "SELECT s.id, d.name FROM s JOIN dim FOR SYSTEM_TIME AS OF PROCTIME() AS d ON s.k = d.id"
        session.sql(f"CREATE MATERIALIZED VIEW j AS {joined}")
        session.sql("INSERT INTO s VALUES (3, 7); DELETE FROM s WHERE id = 1")
        session.sql("CREATE MATERIALIZED VIEW named AS SELECT name, count(*) AS n FROM j GROUP BY name")
    with connect(directory=tmp_path) as session:
        session.register_lookup(outside)
        session.sql("DELETE FROM s WHERE id = 2; INSERT INTO s VALUES (4, 9)")
        shown = {name: sorted(map(tuple, map(dict.values, rows.to_pylist()))) for name, rows in session.views().items()}

    assert shown == {"j": [(3, "v2"), (4, "v3")], "m": [(16,)], "named": [("v2", 1), ("v3", 1)]}
    assert fetched == [[7, 8], [7], [9]]


def test_a_query_whose_drop_fails_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("the disk is full")

    with connect(directory=tmp_path) as session:
        session.sql("CREATE TABLE t (k INT); CREATE MATERIALIZED VIEW ids AS SELECT k FROM t; INSERT INTO t VALUES (1)")
        with monkeypatch.context() as patch:
            patch.setattr(Pipeline, "evolve_with", full)
            with pytest.raises(OSError, match="full"):
                session.sql("DROP MATERIALIZED VIEW ids")
        session.sql("INSERT INTO t VALUES (2)")
        assert sorted(row["k"] for row in session.views()["ids"].to_pylist()) == [1, 2]
        session.sql("DROP MATERIALIZED VIEW ids")
        assert "ids" not in session.views()


def test_a_session_joins_only_the_columns_that_views_need_and_a_later_view_may_need_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    joined = "FROM orders o JOIN names n ON o.customer = n.customer"

    def session(*more: str) -> Session:
        made = connect(dialect="flink", directory=tmp_path / "state")
        made.sql("SET 'keep_state' = 'needed';" + DECLARED.format(path=tmp_path))
        made.sql(f"CREATE MATERIALIZED VIEW ids AS SELECT o.id, n.name {joined}")
        for text in more:
            made.sql(text)
        return made

    order(tmp_path, 1)
    with session() as opened:
        opened.sql("INSERT INTO names VALUES ('a', 'Ada'), ('b', 'Bob')")
        opened.read(wait_seconds=0)
        opened.running[0].whole.explain()
        assert 'reads "orders": Select id, customer AS o.customer\n' in capsys.readouterr().out
        opened.sql("SET 'keep_state' = 'all'")
        assert "later changes" not in str(opened.sql(f"EXPLAIN SELECT o.id, n.name {joined}")), "the directory keeps its option"
    order(tmp_path, 2)
    wider = f"CREATE MATERIALIZED VIEW sums AS SELECT n.name, o.total {joined}"
    with session(wider) as opened:
        opened.read(wait_seconds=0)
    order(tmp_path, 3)
    with session(wider) as opened:
        opened.read(wait_seconds=0)
        assert table(opened, "SELECT * FROM ids") == [(1, "Bob"), (2, "Ada"), (3, "Bob")]
        assert table(opened, "SELECT * FROM sums") == [("Ada", 2), ("Bob", 1), ("Bob", 3)]
        with pytest.warns(UserWarning, match="'keep_state' has no effect"):
            opened.sql("SET 'keep_state' = 'all'; CREATE MATERIALIZED VIEW more AS SELECT id FROM ids")


def test_a_plan_file_that_was_cut_is_named(tmp_path: Path) -> None:
    with connect(directory=tmp_path, dialect="flink") as session:
        session.sql("CREATE TABLE o (id INT, v INT)")
        session.sql("CREATE MATERIALIZED VIEW m AS SELECT v, count(*) AS n FROM o GROUP BY v")
        session.sql("INSERT INTO o VALUES (1, 1)")
        session.sql("CREATE OR REPLACE MATERIALIZED VIEW m AS SELECT v, sum(id) AS n FROM o GROUP BY v")
    (plan,) = (tmp_path / "pipeline" / "zset" / "plans").glob("*.json")
    plan.write_bytes(plan.read_bytes()[:100])

    with pytest.raises(StateError, match=str(plan)) as refused, connect(directory=tmp_path, dialect="flink") as session:
        session.sql("SHOW TABLES")

    assert refused.value.code == "DAMAGED_FILE"
