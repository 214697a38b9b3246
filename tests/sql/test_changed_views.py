"""ALTER and CREATE OR REPLACE of views that run: readers follow, outputs get new minus old, what is refused changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from zset_join.core.errors import SinkError, SqlError, ZsetJoinError
from zset_join.operators.join import HashJoin
from zset_join.runners.local.stopped import undo_of_directory
from zset_join.sql import Session, connect
from zset_join.zset import ZSet

_TABLES = """
CREATE TABLE orders (id INT, who STRING, total INT, PRIMARY KEY (id));
CREATE TABLE people (who STRING, city STRING, PRIMARY KEY (who));
INSERT INTO orders VALUES (1, 'ada', 5), (2, 'bob', 7), (3, 'ada', 9);
INSERT INTO people VALUES ('ada', 'oslo'), ('bob', 'rome');
"""
_JOINED = "SELECT o.id, o.total, p.city FROM orders o JOIN people p ON o.who = p.who"
_VIEWS = f"""
CREATE VIEW joined AS {_JOINED};
CREATE VIEW large AS SELECT * FROM joined WHERE total > 4;
CREATE MATERIALIZED VIEW by_city AS SELECT city, sum(total) AS t FROM large GROUP BY city;
CREATE MATERIALIZED VIEW cities AS SELECT count(*) AS n FROM by_city;
"""


@pytest.fixture(params=["memory", "directory"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """Return the directory of a session; None for one in memory."""
    return tmp_path / "session" if request.param == "directory" else None


def _lines(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(line.values()) for line in table.to_pylist()), key=repr)


def _shown(session: Session) -> dict[str, list[tuple[Any, ...]]]:
    return {name: _lines(table) for name, table in session.views().items()}


def _changes(session: Session) -> dict[str, list[tuple[Any, ...]]]:
    return {one.name: _lines(one.changelog()) for one in session.running}


def test_stages_that_stay_are_fed_nothing_in_a_directory(tmp_path: Path) -> None:
    with connect(directory=tmp_path) as session:
        session.sql(_TABLES + _VIEWS)

        text = str(session.sql("ALTER MATERIALIZED VIEW by_city AS SELECT city, max(id) AS t FROM large GROUP BY city"))

        assert "keeps 3 of 5 stages, builds aggregate-3 (3 rows), aggregate-4 (2 rows)" in text  # both tables, and their join
        assert _shown(session) == {"by_city": [("oslo", 3), ("rome", 2)], "cities": [(2,)]}


def test_a_new_view_is_built_in_one_pass_where_bad_input_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    right = HashJoin.rejections
    monkeypatch.setattr(HashJoin, "rejections", lambda self, *given: (counted.append(1), right(self, *given))[1])
    with connect(directory=tmp_path) as session:
        session.sql(_TABLES + _VIEWS)

        assert (_shown(session)["by_city"], counted) == ([("oslo", 14), ("rome", 7)], [])


def test_an_output_outside_gets_exactly_what_differs(where: Path | None, tmp_path: Path) -> None:
    place = tmp_path / "out.duckdb"
    with connect(directory=where) as session:
        session.sql(_TABLES + _VIEWS)
        session.sql(
            "CREATE SINK s AS SELECT city, t FROM by_city "
            f"WITH ('connector' = 'duckdb', 'path' = '{place}', 'table-name' = 'sums', 'primary_key' = 'city')"
        )
        session.sql("ALTER MATERIALIZED VIEW by_city AS SELECT city, sum(total * 2) AS t FROM large WHERE id > 1 GROUP BY city")
        with pytest.raises(SinkError, match="EVOLVE_OUTPUT"):
            session.sql("ALTER MATERIALIZED VIEW by_city AS SELECT city, 'x' AS t FROM large GROUP BY city")
        session.sql("INSERT INTO orders VALUES (5, 'ada', 10)")

        assert _shown(session)["s"] == _shown(session)["by_city"] == [("oslo", 38), ("rome", 14)]
    with duckdb.connect(str(place), read_only=True) as database:
        assert database.sql("SELECT city, t FROM sums ORDER BY 1").fetchall() == [("oslo", 38), ("rome", 14)]


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("CREATE OR REPLACE VIEW joined AS SELECT id, total FROM orders", "UNKNOWN_COLUMN"),
        ("ALTER VIEW joined AS SELECT o.id, o.total, c.city FROM orders o JOIN by_city c ON o.who = c.city", "CIRCLE"),
        ("ALTER VIEW joined AS SELECT id, raise_error('no') AS total, who AS city FROM orders", "UNKNOWN_FUNCTION"),
        ("ALTER VIEW joined AS SELECT id, 1 DIV (total - 5) AS total, who AS city FROM orders", "DIVIDE_BY_ZERO"),
        ("ALTER MATERIALIZED VIEW joined AS SELECT 1 AS x FROM orders", "WRONG_KIND"),
        ("ALTER VIEW nothing AS SELECT 1 AS x FROM orders", "UNKNOWN_TABLE"),
        ("ALTER MATERIALIZED VIEW paused AS SELECT id, total FROM orders", "NOT_OFFERED"),
        ("CREATE OR REPLACE MATERIALIZED VIEW kept INTO keyed AS SELECT id, 1 AS n FROM orders", "SINK_KEY"),
        ("ALTER MATERIALIZED VIEW kept AS SELECT id, total, who FROM orders", "INSERT_COLUMNS"),
        ("ALTER TABLE orders DROP COLUMN total", "NOT_OFFERED"),
        ("ALTER TABLE orders ADD COLUMN x INT NOT NULL", "NOT_OFFERED"),
        ("ALTER TABLE orders ADD (x INT, PRIMARY KEY (x))", "NOT_OFFERED"),
        ("ALTER TABLE orders ADD COLUMN total INT", "DUPLICATE_COLUMN"),
        ("ALTER TABLE joined ADD COLUMN x INT", "WRONG_KIND"),
        ("CREATE TABLE orders (id INT, x INT, PRIMARY KEY (id))", "NAME_TAKEN"),
    ],
)
def test_a_refused_change_leaves_everything_as_it_was(where: Path | None, statement: str, code: str) -> None:
    with connect(directory=where) as session:
        session.sql(_TABLES + _VIEWS)
        session.sql("CREATE MATERIALIZED VIEW paused AS SELECT id FROM orders; PAUSE MATERIALIZED VIEW paused")
        session.sql("CREATE TABLE keyed (id INT, n INT, PRIMARY KEY (id)); INSERT INTO keyed VALUES (1, 1)")
        session.sql("CREATE MATERIALIZED VIEW kept INTO keyed AS SELECT id, total FROM orders WHERE id > 1")
        shown, views = _shown(session), dict(session.catalog.views)
        _changes(session)

        with pytest.raises(ZsetJoinError) as refused:
            session.sql(statement)

        assert refused.value.code == code
        assert (_shown(session), dict(session.catalog.views)) == (shown, views)
        assert not any(_changes(session).values())
        session.sql("INSERT INTO orders VALUES (4, 'bob', 20)")
        assert _shown(session)["by_city"] == [("oslo", 14), ("rome", 27)]
        assert _shown(session)["kept"] == [(2, 7), (3, 9), (4, 20)]
    if where is not None:
        with connect(directory=where) as session:
            assert _shown(session)["by_city"] == [("oslo", 14), ("rome", 27)]


def test_a_query_changes_at_once_with_one_whose_rows_reach_it_through_tables(where: Path | None) -> None:
    with connect(directory=where) as session:
        session.sql(_TABLES + f"CREATE VIEW joined AS {_JOINED};")
        for name in ("near", "far"):
            session.sql(f"CREATE TABLE {name} (id INT, city STRING, PRIMARY KEY (id))")
        session.sql("INSERT INTO near SELECT id, city FROM joined; INSERT INTO far SELECT id, city FROM near")
        session.sql("CREATE MATERIALIZED VIEW both AS SELECT f.id, j.total FROM far f JOIN joined j ON f.id = j.id")
        before = _shown(session)["both"]

        session.sql(f"ALTER VIEW joined AS {_JOINED} WHERE o.total > 7")

        assert _shown(session)["both"] == [row for row in before if row[1] > 7] != before


def test_a_preview_of_a_view_of_first_rows_lists_what_the_change_does(where: Path | None) -> None:
    first = "SELECT who, id FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY who ORDER BY total) AS n FROM orders) o WHERE n = 1"
    with connect(directory=where) as session:
        session.sql(_TABLES + "CREATE MATERIALIZED VIEW firsts AS SELECT who, max(id) AS id FROM orders GROUP BY who")

        previewed = str(session.sql(f"EXPLAIN ALTER MATERIALIZED VIEW firsts AS {first}"))

        assert previewed.splitlines()[1:] == str(session.sql(f"ALTER MATERIALIZED VIEW firsts AS {first}")).splitlines()[1:]
        assert _shown(session)["firsts"] == [("ada", 1), ("bob", 2)]


def test_a_view_that_writes_into_a_table_changes_what_readers_of_the_table_hold(where: Path | None) -> None:
    with connect(directory=where) as session:
        session.sql(_TABLES)
        session.sql("CREATE TABLE keyed (id INT, n INT, PRIMARY KEY (id))")
        session.sql("CREATE MATERIALIZED VIEW kept INTO keyed AS SELECT id, total FROM orders WHERE id > 1")
        session.sql("CREATE MATERIALIZED VIEW reader AS SELECT sum(n) AS s, count(*) AS c FROM keyed")

        session.sql("ALTER MATERIALIZED VIEW kept AS SELECT id, total * 10 FROM orders WHERE id < 3")
        session.sql("INSERT INTO orders VALUES (1, 'ada', 6)")

        assert _shown(session)["reader"] == [(130, 2)]
        assert _lines(session.sql("SELECT * FROM table(keyed)").table()) == [(1, 60), (2, 70)]  # type: ignore[union-attr]
        with pytest.raises(SinkError, match="SINK_KEY"):
            session.sql("INSERT INTO keyed VALUES (1, 1)")
    if where is not None:
        with connect(directory=where) as session:
            assert _shown(session)["reader"] == [(130, 2)]


def test_a_change_counts_where_an_output_fails_at_it(where: Path | None) -> None:
    given: list[int] = []

    def fails_once(delta: ZSet) -> None:
        given.append(len(delta))
        if len(given) == 2:
            raise OSError("no paper")

    with connect(directory=where) as session:
        session.sql(_TABLES + _VIEWS)
        session.start(session.sql("SELECT id FROM large"), name="printer", output=fails_once)  # type: ignore[arg-type]
        with pytest.raises(OSError, match="no paper"):
            session.sql("ALTER VIEW large AS SELECT * FROM joined WHERE total > 7")

        assert session.catalog.views["large"].sql == "SELECT * FROM joined WHERE total > 7"
        assert _shown(session) == {"by_city": [("oslo", 9)], "cities": [(1,)], "printer": [(3,)]}
        session.sql("INSERT INTO orders VALUES (1, 'ada', 8); ALTER VIEW large AS SELECT * FROM joined WHERE total > 8")
        assert _shown(session) == {"by_city": [("oslo", 9)], "cities": [(1,)], "printer": [(3,)]}
    if where is not None:
        with connect(directory=where) as session:
            assert session.catalog.views["large"].sql == "SELECT * FROM joined WHERE total > 8"


def test_the_same_statements_again_change_nothing_in_a_directory(tmp_path: Path) -> None:
    first = [one.strip() for one in (_TABLES + _VIEWS).split(";") if one.strip() and not one.strip().startswith("INSERT")]
    then = [
        f"CREATE TABLE more (id INT, k INT, PRIMARY KEY (id)); ALTER VIEW joined AS {_JOINED} JOIN more m ON m.id = o.id",
        "ALTER MATERIALIZED VIEW by_city AS SELECT city, count(*) AS t FROM large GROUP BY city",
        "ALTER MATERIALIZED VIEW by_city AS SELECT city, max(total) AS t FROM large GROUP BY city",
    ]
    with connect(directory=tmp_path) as session:
        session.sql(";".join([*first, *then]))
        session.sql("INSERT INTO orders VALUES (1, 'ada', 5); INSERT INTO people VALUES ('ada', 'oslo')")
        session.sql("INSERT INTO more VALUES (1, 1)")
        wanted = {"by_city": [("oslo", 5)], "cities": [(1,)]}
        assert _shown(session) == wanted
    with connect(directory=tmp_path) as session:
        assert _shown(session) == wanted
        epoch = session.running[0].pipeline.epoch
        texts = [str(session.sql(one)) for one in ";".join([*first, *then]).split(";")]
        assert (_shown(session), session.running[0].pipeline.epoch) == (wanted, epoch)
        assert all("there already" in one for one in texts)
        session.sql(then[1])  # in no place of the file: it runs
        assert _shown(session)["by_city"] == [("oslo", 1)]
    with connect(directory=tmp_path) as session:
        assert _shown(session)["by_city"] == [("oslo", 1)]


def test_a_paused_view_follows_when_it_is_resumed_and_verifies(where: Path | None) -> None:
    with connect(directory=where, keep_inputs=True) as session:
        session.sql(_TABLES + _VIEWS)
        session.sql("PAUSE MATERIALIZED VIEW by_city")
        _changes(session)

        session.sql("ALTER VIEW large AS SELECT * FROM joined WHERE total > 7")
        assert (_shown(session), _changes(session)["by_city"]) == (
            {"by_city": [("oslo", 14), ("rome", 7)], "cities": [(1,)]},
            [],
        )
        if where is not None:
            session.close()
            session = connect(directory=where, keep_inputs=True)
        session.sql("RESUME MATERIALIZED VIEW by_city")

        assert _changes(session)["by_city"] == [("oslo", 14, -1), ("oslo", 9, 1), ("rome", 7, -1)]
        session.sql("INSERT INTO orders VALUES (4, 'bob', 20)")
        assert _shown(session) == {"by_city": [("oslo", 9), ("rome", 20)], "cities": [(2,)]}
        assert all(running.verify().equal for running in session.running)
        session.close()


def test_a_column_that_could_be_null_may_become_one_that_cannot_and_back(where: Path | None) -> None:
    with connect(directory=where) as session:
        session.sql("CREATE TABLE orders (id INT, total INT, PRIMARY KEY (id)); INSERT INTO orders VALUES (1, 5), (2, NULL)")
        session.sql("CREATE MATERIALIZED VIEW v AS SELECT id, sum(total) AS n FROM orders GROUP BY id")

        session.sql("ALTER MATERIALIZED VIEW v AS SELECT id, count(*) AS n FROM orders GROUP BY id")

        assert sum(weight for *_, weight in _changes(session)["v"]) == 2
        session.sql("ALTER MATERIALIZED VIEW v AS SELECT id, sum(total) AS n FROM orders GROUP BY id")
        assert _shown(session) == {"v": [(1, 5), (2, None)]}
        assert _changes(session)["v"] == [(1, 1, -1), (1, 5, 1), (2, 1, -1), (2, None, 1)]


def test_the_pipeline_of_a_session_is_not_changed_behind_its_statements(tmp_path: Path) -> None:
    with connect(directory=tmp_path) as session:
        session.sql(_TABLES + _VIEWS)
        session.sql(f"ALTER VIEW joined AS {_JOINED} WHERE o.total > 7")

    with pytest.raises(ZsetJoinError, match="run ALTER VIEW") as refused:
        undo_of_directory(tmp_path / "pipeline")

    assert refused.value.code == "NOT_FROM_HERE"
    with connect(directory=tmp_path) as session:
        assert _shown(session) == {"by_city": [("oslo", 9)], "cities": [(1,)]}


def test_rows_that_would_claim_one_key_of_a_table_are_refused(where: Path | None) -> None:
    with connect(directory=where) as session:
        session.sql(_TABLES + "CREATE VIEW v AS SELECT who, sum(total) AS n FROM orders GROUP BY who")
        session.sql("CREATE TABLE sums (who STRING, n BIGINT, PRIMARY KEY (who)); INSERT INTO sums SELECT who, n FROM v")
        session.sql("CREATE MATERIALIZED VIEW shown AS SELECT who, n FROM sums")

        with pytest.raises(ZsetJoinError) as refused:
            session.sql("ALTER VIEW v AS SELECT who, total AS n FROM orders")

        assert refused.value.code == "SINK_KEY"
        session.sql("INSERT INTO orders VALUES (4, 'bob', 1)")
        assert _shown(session)["shown"] == [("ada", 14), ("bob", 8)]
        session.sql("ALTER VIEW v AS SELECT who, total AS n FROM orders WHERE id > 2")
        with pytest.raises(ZsetJoinError, match="two live rows claim"):
            session.sql("INSERT INTO orders VALUES (5, 'bob', 1)")
        assert _shown(session)["shown"] == [("ada", 9), ("bob", 1)]


@pytest.mark.parametrize(
    "statement", ["ALTER MATERIALIZED VIEW by_city AS", "ALTER VIEW joined AS", "EXPLAIN ALTER VIEW large AS"]
)
def test_a_function_with_another_value_each_time_is_refused_with_the_rows_there_are(where: Path | None, statement: str) -> None:
    with connect(directory=where) as session:
        session.sql(_TABLES + _VIEWS)
        before = _shown(session)

        with pytest.raises(
            SqlError, match='"by_city" has 2 rows of before, which a change would compute again: RAND'
        ) as refused:
            session.sql(f"{statement} SELECT rand() AS r, id, total, city FROM orders JOIN people USING (who)")

        assert (refused.value.code, refused.value.facts["function"], refused.value.facts["rows"]) == (
            "NON_DETERMINISTIC",
            "rand",
            2,
        )
        assert _shown(session) == before
