"""Views that arrive, go, pause and catch up while a session runs: after every statement each holds what DuckDB's query does."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from zset_join.core.errors import BadInputError, SinkError, SqlError, ZsetJoinError
from zset_join.evolution.differences import ViewDiff
from zset_join.plan.fingerprints import Fingerprints
from zset_join.runners.local.evolving import Evolution
from zset_join.runners.local.pipeline import Pipeline
from zset_join.sql import Session, connect

_TABLES = (
    "CREATE TABLE orders (id INT, customer STRING, day INT, total INT, PRIMARY KEY (id))",
    "CREATE TABLE customers (customer STRING, city STRING, PRIMARY KEY (customer))",
    "CREATE TABLE clicks (customer STRING, n INT)",
)
_JOINED = "SELECT o.id, o.day, o.total, c.city FROM orders o JOIN customers c ON o.customer = c.customer"
_QUERIES = (
    _JOINED,
    f"SELECT city, sum(total) AS total, count(*) AS n FROM ({_JOINED}) j GROUP BY city",
    f"SELECT day, max(total) AS most FROM ({_JOINED}) j WHERE total > 3 GROUP BY day",
    f"SELECT city, total FROM ({_JOINED}) j WHERE day = 1",
    "SELECT customer, sum(total) AS total FROM orders GROUP BY customer",
    "SELECT customer, sum(total) AS total FROM orders WHERE total > 4 GROUP BY customer",
    "SELECT k.customer, k.n, c.city FROM clicks k LEFT JOIN customers c ON k.customer = c.customer",
    "SELECT count(*) AS n, sum(total) AS total FROM orders",
    "SELECT DISTINCT day FROM orders",
    "SELECT id, total * 2 AS twice FROM orders WHERE day < 2",
)
_NAMES = ("ada", "bob", "cid", "dan")


class _Played:
    """A session, and the same tables in DuckDB."""

    def __init__(self, seed: int, directory: Path | None = None) -> None:
        self.chance = random.Random(seed)
        self.session: Session = connect(directory=directory)
        self.peer = duckdb.connect()
        for text in _TABLES:
            self.session.sql(text)
            self.peer.execute(text.replace("STRING", "VARCHAR"))
        self.texts: dict[str, str] = {}
        self.sums: dict[str, Counter[Any]] = {}
        self.paused: dict[str, list[Any]] = {}
        self.made = 0

    def run(self, steps: int) -> None:
        """Run statements, and compare behind each."""
        for _ in range(steps):
            self._statement()
            self.compare()

    def _statement(self) -> None:
        kind = self.chance.choices(
            ("insert", "click", "update", "delete", "move", "create", "drop", "pause", "resume", "alter"),
            (6, 2, 2, 1, 2, 5, 2, 2, 3, 4),
        )[0]
        chance, running = self.chance, sorted(self.texts.keys() - self.paused.keys())
        if kind == "insert":
            rows = [(chance.randrange(12), chance.choice(_NAMES), chance.randrange(3), chance.randrange(9)) for _ in range(2)]
            rows = list({row[0]: row for row in rows}.values())
            self.both(f"INSERT INTO orders VALUES {', '.join(map(repr, rows))}", replaces=True)
        elif kind == "click":
            self.both(f"INSERT INTO clicks VALUES ('{chance.choice(_NAMES)}', {chance.randrange(3)})")
        elif kind == "update":
            self.both(f"UPDATE orders SET total = {chance.randrange(9)} WHERE day = {chance.randrange(3)}")
        elif kind == "delete":
            self.both(f"DELETE FROM orders WHERE id < {chance.randrange(3)}")
        elif kind == "move":
            self.both(f"INSERT INTO customers VALUES ('{chance.choice(_NAMES)}', 'c{chance.randrange(3)}')", replaces=True)
        elif kind == "create":
            self.made += 1
            self.create(f"v{self.made}", chance.choice([*_QUERIES, *(f"SELECT * FROM {name}" for name in running)]))
        elif kind == "drop" and running and len(self.texts) > 1:
            name = chance.choice(running)
            if not any(name in text for text in self.texts.values()):
                self.session.sql(f"DROP MATERIALIZED VIEW {name}")
                self.peer.execute(f"DROP VIEW {name}")
                del self.texts[name], self.sums[name]
        elif kind == "pause" and running:
            name = chance.choice(running)
            self.session.sql(f"PAUSE MATERIALIZED VIEW {name}")
            self.paused[name] = _bag(self._running(name).table())
        elif kind == "alter" and running:
            self.alter(chance.choice(running), chance.choice(_QUERIES))
        elif kind == "resume" and self.paused:
            name = chance.choice(sorted(self.paused))
            self.session.sql(f"RESUME MATERIALIZED VIEW {name}")
            del self.paused[name]

    def create(self, name: str, text: str) -> None:
        self.session.sql(f"CREATE MATERIALIZED VIEW {name} AS {text}")
        self.peer.execute(f"CREATE VIEW {name} AS {text}")
        self.texts[name], self.sums[name] = text, Counter()

    def alter(self, name: str, text: str) -> None:
        """Give a view another text; who reads it follows, or all stay as they were."""
        columns = {one.name: one.pipeline.schema for one in self.session.running}
        altered = self.chance.choice(("ALTER MATERIALIZED VIEW", "CREATE OR REPLACE MATERIALIZED VIEW"))
        try:
            self.session.sql(f"{altered} {name} AS {text}")
        except SqlError as error:
            if error.code != "NOT_OFFERED" or not self.paused:
                raise
            return
        self.texts[name] = text
        for view in [name, *(one for one in self.session.catalog.views if one in self.texts)]:
            self.peer.execute(f"CREATE OR REPLACE VIEW {view} AS {self.texts[view]}")
        for one in self.session.running:
            if one.pipeline.schema != columns[one.name]:  # it begins with other columns
                self.sums[one.name] = Counter()

    def both(self, text: str, *, replaces: bool = False) -> None:
        self.session.sql(text)
        self.peer.execute(text.replace("INSERT INTO", "INSERT OR REPLACE INTO") if replaces else text)

    def _running(self, name: str) -> Any:
        (running,) = [one for one in self.session.running if one.name == name]
        return running

    def compare(self) -> None:
        """Hold every view against DuckDB's query, and what its changes add up to as well."""
        for name in self.texts:
            running = self._running(name)
            wanted = _bag(self.peer.sql(f"SELECT * FROM {name}").to_arrow_table())
            wanted = self.paused.get(name, wanted)
            changes = running.changelog().to_pylist()
            for line in changes:
                *values, weight = line.values()
                self.sums[name][tuple(values)] += weight
            assert _bag(running.table()) == wanted, (name, self.texts[name])
            assert sorted(self.sums[name].elements(), key=repr) == wanted, (name, self.texts[name])


def _bag(table: pa.Table) -> list[Any]:
    return sorted((tuple(line.values()) for line in table.to_pylist()), key=repr)


def _shares_any_stage(patch: pytest.MonkeyPatch) -> None:
    """Plant: stages are one whatever is before them."""

    def add(self: Any, node: Any) -> None:
        self.nodes.append(f"{node.stage.kind} {len(node.feeds)}")
        self._rows[node.number], self._changed[node.number] = self.nodes[-1], frozenset()
        self._arriving.append(frozenset())

    patch.setattr(Fingerprints, "_add", add)


def _forgets_conditions(patch: pytest.MonkeyPatch) -> None:
    """Plant: the steps of a feed do not count."""
    patch.setattr(Fingerprints, "_seen", lambda self, feed: (self.rows(feed.origin), frozenset()))


def _begins_empty(patch: pytest.MonkeyPatch) -> None:
    """Plant: the stages of a new view have no state."""
    right = Evolution.build

    def build(self: Evolution) -> None:
        right(self)
        self.built |= {one: _empty(self, one) for one in self.built}

    patch.setattr(Evolution, "build", build)


def _drops_too_much(patch: pytest.MonkeyPatch) -> None:
    """Plant: what a dropped view shared is taken from the others."""
    right = Evolution.operators

    def operators(self: Evolution) -> dict[int, Any]:
        is_less = len(self.plan.views) < len(self.origin.plan.views)
        return {number: _empty(self, number) if is_less else one for number, one in right(self).items()}

    patch.setattr(Evolution, "operators", operators)


def _empty(evolution: Evolution, number: int) -> Any:
    return (state := evolution.plan.state_of[number]).stage.build(state.options(evolution.options), None)


def _answers_all_again(patch: pytest.MonkeyPatch) -> None:
    """Plant: a view that continues gives all of its rows again."""
    patch.setattr(ViewDiff, "delta", property(lambda self: self.added))


_PLANTED: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    _shares_any_stage,
    _forgets_conditions,
    _begins_empty,
    _drops_too_much,
    _answers_all_again,
)


@pytest.mark.parametrize("seed", range(4))
def test_every_view_holds_what_duckdb_answers(seed: int) -> None:
    played = _Played(seed)
    with played.session:
        played.run(50)


def test_every_view_of_a_directory_equals_that_of_duckdb(tmp_path: Path) -> None:
    played = _Played(5, tmp_path)
    with played.session:
        played.run(40)


@pytest.mark.parametrize("plant", _PLANTED)
def test_a_planted_bug_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = False
    for seed in range(4):
        played = _Played(seed)
        try:
            played.run(50)
        except (AssertionError, ZsetJoinError, KeyError):
            found = True
            break

    assert found


def test_views_over_one_join_keep_it_once_in_one_pipeline() -> None:
    played = _Played(0)
    for number, text in enumerate(_QUERIES[:4]):
        played.create(f"v{number}", text)
        played.both(f"INSERT INTO orders VALUES ({number}, 'ada', 1, 5)", replaces=True)
        played.both("INSERT INTO customers VALUES ('ada', 'oslo')", replaces=True)
        played.compare()

    whole = {id(running.whole): running.whole for running in played.session.running}
    (pipeline,) = whole.values()
    kinds = [node.stage.kind for node in pipeline.plan.nodes if node.stage.kind != "latest"]
    assert kinds == ["join", "aggregate", "aggregate"]


def test_the_rows_of_a_table_are_held_once_however_many_queries_read_them() -> None:
    played = _Played(0)
    with played.session as session:
        played.both("INSERT INTO orders VALUES (1, 'ada', 1, 5), (2, 'bob', 1, 4)")
        for number, text in enumerate([_QUERIES[0], _QUERIES[8], _QUERIES[9], "SELECT * FROM customers"]):
            played.create(f"v{number}", text)
            played.both(f"INSERT INTO orders VALUES ({number}, 'ada', 1, 5)", replaces=True)
            played.both("INSERT INTO customers VALUES ('ada', 'oslo')", replaces=True)
            played.compare()
        memory: Any = session.running[0].whole._memory
        fed = memory.fed_alike()

        assert [len(fed[name]) for name in ("orders", "customers")] == [2, 2]
        assert [sum(bool(side.state_bytes()) for side in sides) for sides in fed.values()] == [1] * len(fed)


@pytest.mark.parametrize("where", ["memory", "directory"])
def test_a_failing_view_is_named_and_paused_while_the_others_go_on(where: str, tmp_path: Any) -> None:
    with connect(directory=None if where == "memory" else tmp_path / "s") as session:
        session.sql("CREATE TABLE a (k INT, v INT, PRIMARY KEY (k)); CREATE TABLE b (k INT, w INT, PRIMARY KEY (k))")
        session.sql("CREATE MATERIALIZED VIEW fine AS SELECT a.k, v, w FROM a JOIN b ON a.k = b.k")
        session.sql("CREATE MATERIALIZED VIEW shares AS SELECT a.k, v / w AS share FROM a JOIN b ON a.k = b.k")
        fine, shares = session.running
        session.sql("INSERT INTO a VALUES (1, 6); INSERT INTO b VALUES (1, 2)")

        with pytest.raises(BadInputError, match='query "shares"') as refused:
            session.sql("INSERT INTO b VALUES (1, 0)")
        assert (refused.value.facts["query"], fine.table().to_pylist()) == ("shares", [{"k": 1, "v": 6, "w": 2}])

        assert "PAUSE MATERIALIZED VIEW" in str(refused.value)

        session.sql("PAUSE MATERIALIZED VIEW shares; INSERT INTO b VALUES (1, 0)")
        shown = session.sql("SHOW QUERIES")
        assert (str(shown), shown.rows.column("state").to_pylist()) == ("fine\nshares (paused)", ["running", "paused"])
        assert fine.table().to_pylist() == [{"k": 1, "v": 6, "w": 0}]
        with pytest.raises(BadInputError, match='query "shares"'):
            session.sql("RESUME MATERIALIZED VIEW shares")
        assert (shares.is_paused, shares.table().to_pylist()) == (True, [{"k": 1, "share": 3.0}])

        session.sql("INSERT INTO b VALUES (1, 3); RESUME MATERIALIZED VIEW shares")
        assert shares.table().to_pylist() == [{"k": 1, "share": 2.0}]


@pytest.mark.parametrize("where", ["memory", "directory"])
def test_a_paused_view_that_writes_into_a_table_brings_the_difference(where: str, tmp_path: Any) -> None:
    with connect(directory=None if where == "memory" else tmp_path / "s", keep_inputs=True) as session:
        session.sql(
            "CREATE TABLE t (g STRING, k INT, v INT, PRIMARY KEY (k)); CREATE TABLE sums (g STRING, s BIGINT, PRIMARY KEY (g))"
        )
        session.sql("CREATE MATERIALIZED VIEW m INTO sums AS SELECT g, sum(v) AS s FROM t GROUP BY g")
        reader = session.sql("SELECT g, s * 10 AS ten FROM sums").start()
        session.sql("INSERT INTO t VALUES ('x', 1, 1), ('y', 2, 1); PAUSE MATERIALIZED VIEW m")
        session.sql(
            "INSERT INTO t VALUES ('x', 1, 5), ('z', 3, 1); DELETE FROM t WHERE k = 2; INSERT INTO sums VALUES ('z', 7)"
        )
        assert (_bag(reader.table()), reader.verify().equal) == ([("x", 10), ("y", 10), ("z", 70)], True)

        with pytest.raises(SinkError, match="SINK_KEY"):
            session.sql("RESUME MATERIALIZED VIEW m")
        session.sql("DELETE FROM t WHERE k = 3")
        reader.changelog()
        session.sql("RESUME MATERIALIZED VIEW m; PAUSE MATERIALIZED VIEW m; RESUME MATERIALIZED VIEW m")
        assert (_bag(reader.table()), reader.verify().equal) == ([("x", 50), ("z", 70)], True)
        assert _bag(reader.changelog()) == [("x", 10, -1), ("x", 50, 1), ("y", 10, -1)]
        assert session.running[0].verify().equal


@pytest.mark.parametrize("connector", ["duckdb", "filesystem"])
def test_a_paused_view_that_writes_outside_gives_the_difference_once(connector: str, tmp_path: Any) -> None:
    more = "'path' = '{0}/f', 'format' = 'json'" if connector == "filesystem" else "'path' = '{0}/d', 'table-name' = 'o'"
    made = (
        "CREATE TABLE t (k INT, v INT, PRIMARY KEY (k)); CREATE TABLE o (k INT, share DOUBLE, PRIMARY KEY (k)) WITH "
        f"('connector' = '{connector}', {more.format(tmp_path)}); CREATE MATERIALIZED VIEW m INTO o AS SELECT k, 6 / v AS share FROM t"
    )

    def written() -> list[Any]:
        if connector == "duckdb":
            with duckdb.connect(str(tmp_path / "d"), read_only=True) as database:
                return database.sql("SELECT * FROM o ORDER BY 1").fetchall()
        lines = [line for file in sorted((tmp_path / "f").glob("epoch-*")) for line in file.read_text().splitlines()]
        return [tuple(json.loads(line).values()) for line in lines]

    with connect(directory=tmp_path / "s") as session:
        session.sql(f"{made}; INSERT INTO t VALUES (1, 2), (2, 2); PAUSE MATERIALIZED VIEW m; INSERT INTO t VALUES (1, 0)")
        with pytest.raises(BadInputError, match="DIVIDE_BY_ZERO"):
            session.sql("RESUME MATERIALIZED VIEW m")
    with connect(directory=tmp_path / "s") as session:
        session.sql(f"{made}; DELETE FROM t WHERE k = 2")
        assert (session.running[0].is_paused, _bag(session.running[0].table())) == (True, [(1, 3.0), (2, 3.0)])
    before = written()
    with connect(directory=tmp_path / "s") as session:
        session.sql("INSERT INTO t VALUES (1, 3); RESUME MATERIALIZED VIEW m; INSERT INTO t VALUES (3, 6)")
    after = written()
    if connector == "duckdb":
        assert (before, after) == ([(1, 3.0), (2, 3.0)], [(1, 2.0), (3, 1.0)])
    else:
        assert (before, sorted(after[2:])) == (
            [(1, 3.0, 1), (2, 3.0, 1)],
            [(1, 2.0, 1), (1, 3.0, -1), (2, 3.0, -1), (3, 1.0, 1)],
        )


def test_a_view_without_kept_tables_is_not_paused() -> None:
    with connect(keep_tables=False) as session:
        session.sql("CREATE TABLE t (k INT); CREATE MATERIALIZED VIEW m AS SELECT k FROM t")
        with pytest.raises(SqlError) as refused:
            session.sql("PAUSE MATERIALIZED VIEW m")
        assert refused.value.code == "TABLES_NOT_KEPT"
        with pytest.raises(SqlError, match="no materialized view"):
            session.sql("PAUSE MATERIALIZED VIEW n")


@pytest.mark.parametrize("where", ["memory", "directory"])
def test_a_view_catches_up_behind_a_pause(where: str, tmp_path: Any) -> None:
    with connect(directory=None if where == "memory" else tmp_path / "s") as session:
        session.sql(
            "CREATE TABLE t (k INT, v INT, PRIMARY KEY (k)); CREATE MATERIALIZED VIEW m AS SELECT v, count(*) AS n FROM t GROUP BY v"
        )
        session.sql("CREATE MATERIALIZED VIEW other AS SELECT k FROM t; INSERT INTO t VALUES (1, 1)")
        emitted = str(session.sql("PAUSE MATERIALIZED VIEW m; PAUSE MATERIALIZED VIEW m"))
        session.sql("INSERT INTO t VALUES (2, 1); INSERT INTO t VALUES (1, 2)")
        held, other = (_bag(running.table()) for running in session.running)
        session.sql("RESUME MATERIALIZED VIEW m")

        assert (emitted, held, other) == ("m is paused already", [(1, 1)], [(1,), (2,)])
        assert _bag(session.running[0].table()) == [(1, 1), (2, 1)]


@pytest.mark.filterwarnings("ignore:.*has deletes and takes the time of its versions:UserWarning")
def test_stages_that_wait_for_time_are_shared_until_rows_come() -> None:
    at = "TIMESTAMP '2024-01-01 00:00:0{}'"
    joined = "orders AS o JOIN rates FOR SYSTEM_TIME AS OF o.t AS r ON o.k = r.k"
    with connect(dialect="flink") as session:
        session.sql(
            "CREATE TABLE rates (k STRING, rate INT, t TIMESTAMP(3), WATERMARK FOR t AS t, PRIMARY KEY (k) NOT ENFORCED)"
        )
        session.sql("CREATE TABLE orders (id INT, k STRING, t TIMESTAMP(3), WATERMARK FOR t AS t)")
        for name, columns in (("first", "o.id, r.rate"), ("second", "r.rate, o.k")):
            session.sql(f"CREATE MATERIALIZED VIEW {name} AS SELECT {columns} FROM {joined}")
        before = session.running[0].whole.plan
        session.sql(f"INSERT INTO rates VALUES ('a', 1, {at.format(1)}); INSERT INTO orders VALUES (1, 'a', {at.format(5)})")
        session.sql(f"INSERT INTO rates VALUES ('a', 2, {at.format(6)}); INSERT INTO orders VALUES (2, 'a', {at.format(2)})")
        session.sql(f"CREATE MATERIALIZED VIEW late AS SELECT o.id, r.rate FROM {joined}")
        session.sql(f"INSERT INTO rates VALUES ('a', 3, {at.format(9)}); INSERT INTO orders VALUES (3, 'a', {at.format(8)})")
        session.sql(f"INSERT INTO orders VALUES (4, 'a', {at.format(9)})")
        after = session.running[0].whole.plan
        held = [_bag(running.table()) for running in session.running]

    joins = [[node.number for node in plan.nodes if node.stage.kind == "temporal_join"] for plan in (before, after)]
    assert [len(numbers) for numbers in joins] == [1, 2]
    assert [after.views_of(number) for number in joins[1]] == [("first", "second"), ("late",)]
    # A table keeps its newest versions, and the order 2 came late for the views that were present: the last one has others.
    assert held == [[(1, 1), (3, 2), (4, 3)], [(1, "a"), (2, "a"), (3, "a")], [(3, 2), (4, 3)]]


def _rate(rate: int, at: int) -> str:
    return f"INSERT INTO rates VALUES ('a', {rate}, TIMESTAMP '2024-01-01 00:00:{at:02}'); "


def _order(number: int, at: int) -> str:
    return f"INSERT INTO orders VALUES ({number}, 'a', TIMESTAMP '2024-01-01 00:00:{at:02}'); "


_VISITS = "CREATE TABLE visits (id INT, k INT); CREATE TABLE names (k INT, n STRING, PRIMARY KEY (k))"
_AS_THEY_CAME = "SELECT id, n FROM visits LEFT JOIN names FOR SYSTEM_TIME AS OF PROCTIME() ON visits.k = names.k"


@pytest.mark.parametrize("where", ["memory", "directory"])
@pytest.mark.parametrize("settings", ["", "SET tombstone_retention = '3 h'; "], ids=["settings of the view", "other settings"])
def test_a_query_over_a_view_has_its_rows_and_leaves_it(where: str, settings: str, tmp_path: Path) -> None:
    session = connect(directory=tmp_path / "d" if where == "directory" else None)
    session.sql(f"{_VISITS}; CREATE TABLE target (id INT, n STRING, PRIMARY KEY (id))")
    session.sql(f"CREATE MATERIALIZED VIEW v AS {_AS_THEY_CAME}; CREATE SINK s INTO target AS SELECT * FROM v")
    session.sql("INSERT INTO visits VALUES (1, 7); INSERT INTO names VALUES (7, 'Ann'); INSERT INTO visits VALUES (2, 7)")
    session.sql("DELETE FROM names WHERE k = 7")

    listed = session.sql(f"{settings}SELECT * FROM v").table()
    session.sql("SELECT * FROM v").start("q")
    session.sql("CREATE MATERIALIZED VIEW w AS SELECT n, count(*) AS c FROM v GROUP BY n")
    session.sql("INSERT INTO visits VALUES (3, 7)")

    held = [(1, None), (2, "Ann"), (3, None)]
    rows = {name: _bag(table) for name, table in session.views().items()}
    assert _bag(listed) == held[:2]
    assert rows == {"v": held, "s": held, "q": held, "w": [("Ann", 1), (None, 2)]}
    assert _bag(session.sql("SELECT * FROM target").table()) == held
    session.close()


def test_what_a_stopped_view_held_stays_with_its_reader_in_a_directory(tmp_path: Path) -> None:
    with connect(directory=tmp_path / "d") as session:
        session.sql(f"{_VISITS}; CREATE MATERIALIZED VIEW v AS {_AS_THEY_CAME}")
        session.sql("INSERT INTO names VALUES (7, 'Ann'); INSERT INTO visits VALUES (2, 7); DELETE FROM names WHERE k = 7")
        session.sql("SELECT id AS visit, n FROM v").start("q")
        with pytest.raises(SqlError) as refused:
            session.sql("DROP MATERIALIZED VIEW v")
        session.running[0].stop()

        assert refused.value.code == "STILL_READ"

    with connect(directory=tmp_path / "d") as session:
        session.sql("INSERT INTO visits VALUES (3, 7)")

        assert {name: _bag(table) for name, table in session.views().items()} == {"q": [(2, "Ann"), (3, None)]}


@pytest.mark.filterwarnings("ignore:.*has deletes and takes the time of its versions:UserWarning")
def test_a_late_row_is_no_error_where_no_query_reads_another_table(tmp_path: Path) -> None:
    with connect(directory=tmp_path / "d") as session:
        session.sql("CREATE TABLE idle (a INT); CREATE TABLE o (id INT, k INT, at TIMESTAMP, WATERMARK FOR at AS at)")
        session.sql("CREATE TABLE r (k INT, n STRING, at TIMESTAMP, PRIMARY KEY (k), WATERMARK FOR at AS at)")
        session.sql("SELECT id, n FROM o LEFT JOIN r FOR SYSTEM_TIME AS OF o.at ON o.k = r.k").start("q")
        session.sql("INSERT INTO r VALUES (1, 'a', TIMESTAMP '2026-01-01 00:00:09')")
        session.sql("INSERT INTO o VALUES (1, 1, TIMESTAMP '2026-01-01 00:00:09')")
        session.sql("INSERT INTO o VALUES (2, 1, TIMESTAMP '2026-01-01 00:00:01')")

        assert _bag(session.views()["q"]) == [(1, "a")]


@pytest.mark.filterwarnings("ignore:.*has deletes and takes the time of its versions:UserWarning")
def test_views_over_one_table_that_has_rows_answer_in_a_directory_as_in_memory(tmp_path: Path) -> None:
    by_event = "orders AS o JOIN rates FOR SYSTEM_TIME AS OF o.t AS r ON o.k = r.k"
    by_now = "(SELECT *, PROCTIME() AS p FROM orders) AS o JOIN latest FOR SYSTEM_TIME AS OF o.p AS r ON o.k = r.k"
    tables = (
        "CREATE TABLE rates (k STRING, rate INT, t TIMESTAMP(3), WATERMARK FOR t AS t, PRIMARY KEY (k) NOT ENFORCED); "
        "CREATE TABLE orders (id INT, k STRING, t TIMESTAMP(3), WATERMARK FOR t AS t); "
        "CREATE TABLE latest (k STRING, rate INT, PRIMARY KEY (k) NOT ENFORCED); "
    )
    first = "INSERT INTO latest VALUES ('a', 5); " + _rate(1, 1) + _order(1, 5) + _rate(2, 7)
    steps = (
        tables + first,
        *(f"CREATE MATERIALIZED VIEW e{n} AS SELECT {n} AS n, o.id, r.rate FROM {by_event}" for n in range(2)),
        *(f"CREATE MATERIALIZED VIEW p{n} AS SELECT {n} AS n, o.id, r.rate FROM {by_now}" for n in range(2)),
        _order(2, 8) + _rate(3, 9),
        "PAUSE MATERIALIZED VIEW e1; " + _order(3, 9),
        f"RESUME MATERIALIZED VIEW e1; CREATE MATERIALIZED VIEW e2 AS SELECT o.id, r.rate FROM {by_event}",
        "INSERT INTO latest VALUES ('a', 6); DROP MATERIALIZED VIEW e0; " + _order(4, 20) + _rate(4, 30),
        _order(5, 29) + _rate(5, 40),
    )
    with connect(dialect="flink", clock=lambda: 0) as memory:
        for step in steps:
            memory.sql(step)
            with connect(dialect="flink", directory=tmp_path, clock=lambda: 0) as session:  # another process for each step
                session.sql(step)
                assert {name: _bag(one) for name, one in session.views().items()} == {
                    name: _bag(one) for name, one in memory.views().items()
                }
        assert {name: len(rows) for name, rows in memory.views().items()} == {"e1": 3, "p0": 5, "p1": 5, "e2": 3}


def test_a_pause_outlives_the_process(tmp_path: Any) -> None:
    made = "CREATE TABLE t (k INT, v INT, PRIMARY KEY (k)); CREATE MATERIALIZED VIEW m AS SELECT k, 6 / v AS share FROM t"
    with connect(directory=tmp_path / "s") as session:
        session.sql(f"{made}; INSERT INTO t VALUES (1, 2); PAUSE MATERIALIZED VIEW m; INSERT INTO t VALUES (1, 0)")
    with connect(directory=tmp_path / "s") as session:
        session.sql(f"{made}; INSERT INTO t VALUES (1, 3)")
        paused = session.running[0].is_paused, _bag(session.running[0].table())
        session.sql("RESUME MATERIALIZED VIEW m")
    with connect(directory=tmp_path / "s") as session:
        session.sql(made)

        assert (paused, session.running[0].is_paused) == ((True, [(1, 3.0)]), False)
        assert _bag(session.running[0].table()) == [(1, 2.0)]


_BANK = """
    CREATE TABLE accounts (id INT, branch INT, cents INT, PRIMARY KEY (id));
    CREATE MATERIALIZED VIEW of_all AS SELECT sum(cents) AS cents FROM accounts;
    CREATE MATERIALIZED VIEW of_accounts AS SELECT id, cents FROM accounts;
    CREATE MATERIALIZED VIEW of_branches AS SELECT branch, sum(cents) AS cents FROM accounts GROUP BY branch
"""


def _totals(session: Session) -> set[int]:
    seen = session.views()
    return {sum(seen[name].column("cents").to_pylist()) for name in ("of_all", "of_accounts", "of_branches")}


def test_a_reader_of_all_views_sees_one_moment_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[int]] = []
    right = Pipeline.commit
    with connect() as session:
        session.sql(_BANK)

        def commit(self: Pipeline[Any], *given: Any, **more: Any) -> Any:
            answers = right(self, *given, **more)
            seen.append(_totals(session))
            return answers

        session.insert("accounts", [{"id": number, "branch": number % 3, "cents": 100} for number in range(9)])
        monkeypatch.setattr(Pipeline, "commit", commit)
        session.sql(
            "INSERT INTO accounts VALUES (9, 0, 50); DELETE FROM accounts WHERE id = 0; PAUSE MATERIALIZED VIEW of_accounts"
        )
        session.sql("INSERT INTO accounts VALUES (1, 1, 70), (2, 2, 130); RESUME MATERIALIZED VIEW of_accounts")
        after = _totals(session)

    assert seen == [{900}, {950}, {850}]  # behind the commit of an epoch, before it is shown, the one before
    assert after == {850}


@pytest.mark.parametrize("statement", ["PAUSE MATERIALIZED VIEW b", "DROP MATERIALIZED VIEW b"])
@pytest.mark.parametrize("where", ["memory", "directory"])
def test_a_view_keeps_what_it_remembers_where_another_one_over_its_table_goes(
    where: str, statement: str, tmp_path: Path
) -> None:
    with connect(dialect="flink", directory=None if where == "memory" else tmp_path) as session:
        session.sql(
            "CREATE TABLE o (id INT, k STRING, PRIMARY KEY (id)); CREATE TABLE q (id INT, k STRING, PRIMARY KEY (id)); "
            "CREATE TABLE d (k STRING, n STRING, PRIMARY KEY (k))"
        )
        for name, table in (("a", "o"), ("b", "q")):
            session.sql(
                f"CREATE MATERIALIZED VIEW {name} AS SELECT x.id, d.n FROM {table} AS x "
                "JOIN d FOR SYSTEM_TIME AS OF PROCTIME() AS d ON x.k = d.k"
            )
        session.sql("INSERT INTO d VALUES ('k', 'old'); INSERT INTO o VALUES (1, 'k'); INSERT INTO d VALUES ('k', 'new')")
        session.sql("INSERT INTO o VALUES (2, 'k'); INSERT INTO q VALUES (7, 'k')")

        session.sql(statement)
        session.sql("INSERT INTO o VALUES (1, 'gone')")

        assert session.views()["a"].to_pylist() == [{"id": 2, "n": "new"}]
