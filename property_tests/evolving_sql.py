"""Random sessions of SQL whose views and tables change many times: `python -m property_tests.evolving_sql --changes 10000`.

The laws: after every statement each view holds what DuckDB answers to its present text over the rows of the tables, also behind
a restart, in memory and in a directory, with `keep_state` both ways. `EXPLAIN ALTER` lists what `ALTER` does and changes
nothing; rows before and the changelog are the rows after. What is refused has changed nothing.

Views read views: those of four columns come from `evolving_sets`, others are queries of `sql_queries` over the tables `lefts`
and `rights` or over views with their columns. `--words` draws the changes of `evolving_sets` instead.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from property_tests.evolving import Outcome
from property_tests.evolving_sets import changed_sets_hold, drawn_view
from property_tests.laws import LawBrokenError
from property_tests.sql_queries import drawn_query, predicate
from zset_join.core.errors import ZsetJoinError
from zset_join.sql import SqlWarning, connect

__all__ = ["changed_sessions_hold", "main"]

_TABLES = {
    "upserts": {"id": "BIGINT", "k": "STRING", "m": "DECIMAL(10, 2)", "t": "DATE", "n": "BIGINT"},
    "seen": {"k": "STRING", "m": "DECIMAL(10, 2)", "t": "DATE", "n": "BIGINT"},
    "lefts": {"id": "INT", "k": "INT", "v": "INT", "s": "STRING"},
    "rights": {"rid": "INT", "rk": "INT", "w": "INT", "u": "STRING"},
}
_KEYS = {"upserts": "id", "lefts": "id", "rights": "rid"}
_TABLE = re.compile(r"\b(lefts|rights)\b")
_VIEW = re.compile(r"\bview_\d+\b")
_CONDITIONS = ("n > 2", "m > 1.25", "t >= DATE '2026-01-03'", "k IS NOT NULL")
_ROWS = "SELECT k, m, t, n"
_MOST_VIEWS, _MOST_LETTERS = 7, 900
_REFUSALS = {"NOT_OFFERED", "EVOLVE_BY_TIME", "EVOLVE_NO_ROWS"}


@dataclass(frozen=True)
class _View:
    """A view: its text, what its columns are (`rows`, `lefts`, `rights`, `any`), and the columns of tables when it was made."""

    text: str
    shape: str
    is_materialized: bool
    tables: dict[str, list[str]] = field(compare=False)
    before: _View | None = field(default=None, compare=False)

    @property
    def reads(self) -> set[str]:
        return set(_VIEW.findall(self.text))


@dataclass(frozen=True)
class _Change:
    """A statement, and the views behind it; None: it is refused with one of these codes."""

    text: str
    views: dict[str, _View] | None
    codes: frozenset[str] = frozenset(_REFUSALS)
    column: tuple[str, str, str, str] | None = None


def _of_rows(drawn: tuple[Any, ...]) -> str:
    """Return the text of a view that `evolving_sets` draws."""
    match drawn:
        case ("view", name):
            return f"{_ROWS} FROM {name}"
        case ("bag",):
            columns = "s AS k, CAST(v AS DECIMAL(14, 3)) AS m, CAST(NULL AS DATE) AS t, CAST(id AS BIGINT) AS n"
            return f"SELECT {columns} FROM lefts"
        case ("added", table, column, kind):
            made = {"INT": f"CAST({column} AS BIGINT) AS n", "DATE": f"{column} AS t"}.get(
                kind, f"CAST({column} AS DECIMAL(14, 3)) AS m"
            )
            columns = {"k": "k", "m": "CAST(m AS DECIMAL(14, 3)) AS m", "t": "t", "n": "n"}
            return f"SELECT {', '.join((columns | {made[-1]: made}).values())} FROM {table}"
        case (table,):
            return f"SELECT k, CAST(m AS DECIMAL(14, 3)) AS m, t, n FROM {table}"
        case ("where", condition, rows):
            return f"{_ROWS} FROM ({_of_rows(rows)}) x WHERE {_CONDITIONS[condition]}"
        case ("select", rows):
            made = "k, CAST(m * 2 AS DECIMAL(14, 3)) AS m, CAST(t + INTERVAL '1' DAY AS DATE) AS t, n + 1 AS n"
            return f"SELECT {made} FROM ({_of_rows(rows)}) x"
        case ("groups", key, function, rows):
            made = {
                "k": "min(k) AS k",
                "m": f"CAST({function}(m) AS DECIMAL(14, 3)) AS m",
                "t": "max(t) AS t",
                "n": "count(*) AS n",
            }
            return f"SELECT {', '.join((made | {key: key}).values())} FROM ({_of_rows(rows)}) x GROUP BY {key}"
        case ("join", how, rows, others):
            word, columns = how.removeprefix("left_").upper(), "x.k, coalesce(y.m, x.m) AS m, y.t AS t, x.n"
            if word == "SEMI":
                within = f"SELECT 1 FROM {_item(others)} y WHERE y.k = x.k"
                return f"SELECT x.k, x.m, x.t, x.n FROM {_item(rows)} x WHERE EXISTS ({within})"
            return f"SELECT {columns} FROM ({_of_rows(rows)}) x {word} JOIN ({_of_rows(others)}) y ON x.k = y.k"
        case ("union", rows, others):
            return f"{_of_rows(rows)} UNION ALL {_of_rows(others)}"
        case ("distinct", rows):
            return f"SELECT DISTINCT k, m, t, n FROM ({_of_rows(rows)}) x"
    raise AssertionError(drawn)


def _item(drawn: tuple[Any, ...]) -> str:
    """Return an item of FROM, a view by its name: then an error names the item that lacks a column."""
    return drawn[1] if drawn[0] == "view" else f"({_of_rows(drawn)})"


class _Run:
    """A session that changes, beside DuckDB with the same tables."""

    def __init__(self, draw: random.Random, directory: Path | None, outcome: Outcome, what: str) -> None:
        self.draw, self.outcome, self.what, self._directory = draw, outcome, what, directory
        self.peer = duckdb.connect()
        self.peer.execute("SET default_null_order = 'nulls_first_on_asc_last_on_desc'")
        self.tables = {name: dict(columns) for name, columns in _TABLES.items()}
        self.views: dict[str, _View] = {}
        self.number = 0
        self.session = connect(directory=directory)
        if draw.random() < 0.5:
            self.session.sql("SET keep_state = 'needed'")
        for name, columns in _TABLES.items():
            shown = [f"{column} {kind}" for column, kind in columns.items()]
            self.both(f"CREATE TABLE {name} ({', '.join([*shown, *self._key(name)])})")
        for name in _TABLES:
            self.both(self._insert(name))

    def _key(self, table: str) -> list[str]:
        return [f"PRIMARY KEY ({_KEYS[table]})"] if table in _KEYS else []

    def both(self, text: str) -> None:
        """Run a statement in the session and in DuckDB."""
        self.session.sql(text)
        replaces = any(text.startswith(f"INSERT INTO {name} ") for name in _KEYS)
        self.peer.execute(text.replace("INSERT INTO", "INSERT OR REPLACE INTO") if replaces else text)

    # ---------------------------------------------------------------- rows

    def _literal(self, kind: str) -> str:
        draw = self.draw
        match kind:
            case "DATE":
                return f"DATE '{date(2026, 1, 1) + timedelta(days=draw.randint(0, 4))}'"
            case "STRING":
                return draw.choice(["'a'", "'b'", "'ab'", "'A'", "NULL"])
            case "BIGINT":
                return str(draw.randint(0, 5))
            case "INT":
                return draw.choice(["0", "1", "2", "3", "NULL"])
        return draw.choice(["NULL", *(str(Decimal(n) / 4) for n in range(-3, 12))])

    def _insert(self, table: str) -> str:
        columns = [name for name in self.tables[table] if name in _TABLES[table] or self.draw.random() < 0.7]
        key, rows = _KEYS.get(table), list[str]()
        keys = self.draw.sample(range(12), self.draw.randint(2, 8))
        for one in keys:
            rows.append(", ".join(str(one) if name == key else self._literal(self.tables[table][name]) for name in columns))
        return f"INSERT INTO {table} ({', '.join(columns)}) VALUES {', '.join(f'({row})' for row in rows)}"

    def step(self) -> None:
        """Change the rows of a table."""
        table = self.draw.choice([*_TABLES])
        number, key = self.draw.choice("n" if "n" in self.tables[table] else [*self.tables[table]][1:3]), _KEYS.get(table)
        statement = self._insert(table)
        if key is not None and self.draw.random() < 0.4:
            condition = f"{self.draw.choice([key, number])} {self.draw.choice(['=', '<', '>'])} {self.draw.randint(0, 5)}"
            set_to = f"{number} = {self.draw.choice([f'{number} + 1', str(self.draw.randint(0, 3))])}"
            statement = self.draw.choice([f"DELETE FROM {table}", f"UPDATE {table} SET {set_to}"]) + f" WHERE {condition}"
        self.both(statement)
        self.check(statement)

    # ---------------------------------------------------------------- views

    def _names(self, shape: str, but: str | None) -> list[str]:
        """Return the views of a shape that do not read one, directly or through others."""
        return [one for one, view in self.views.items() if view.shape == shape and (but is None or not self._reaches(one, but))]

    def _reaches(self, name: str, other: str) -> bool:
        return name == other or any(self._reaches(one, other) for one in self.views[name].reads)

    def _readers(self, name: str) -> list[str]:
        return [other for other, view in self.views.items() if name in view.reads]

    def _drawn(self, name: str | None, shape: str | None = None, *, is_materialized: bool) -> _View:
        """Draw a view that may have a name; of a shape if its readers need one."""
        draw = self.draw
        shape = shape or draw.choice(["rows", "rows", "rows", "any", "any", "lefts", "rights"])

        def below(number: int) -> int:
            return draw.randrange(number)

        def side(table: str) -> str:
            return draw.choice([table, *self._names(table, name)])

        while True:
            if shape == "rows":
                known: dict[str, Any] = {one: ("view", one) for one in self._names("rows", name)}
                known |= {f"{table} {column}": ("added", table, column, kind) for table, column, kind in self._added()}
                text = _of_rows(drawn_view(draw, known))
            elif shape == "any":
                text = _TABLE.sub(lambda found: side(found[0]), drawn_query(below))
            else:
                key, *others = _TABLES[shape]
                alias, columns, source = shape[0], ", ".join(_TABLES[shape]), side(shape)
                largest = ", ".join(f"max({one}) AS {one}" for one in others)
                text = draw.choice(
                    [
                        f"SELECT {columns} FROM {source} {alias} WHERE {predicate(below, alias)}",
                        f"SELECT {key}, {largest} FROM {source} {alias} GROUP BY {key}",
                    ]
                )
            if len(text) < _MOST_LETTERS:
                return _View(text, shape, is_materialized, {one: [*columns] for one, columns in self.tables.items()})

    def _added(self) -> list[tuple[str, str, str]]:
        return [
            (table, column, kind)
            for table in ("upserts", "seen")
            for column, kind in self.tables[table].items()
            if column not in _TABLES[table]
        ]

    # ---------------------------------------------------------------- changes

    def _change(self) -> _Change:
        draw, views = self.draw, self.views
        kinds = ["make"] * (3 if len(views) < _MOST_VIEWS else 0) + ["add"] * (sum(map(len, self.tables.values())) < 24)
        if views:
            kinds += ["alter"] * 5 + ["replace"] * 2 + ["undo"] * 2 + ["drop", "refused", "refused", "refused"]
        kind, name = draw.choice(kinds), draw.choice([*views]) if views else ""
        match kind:
            case "make":
                self.number += 1
                name = f"view_{self.number}"
                view = self._drawn(None, is_materialized=draw.random() < 0.6)
                words = f"CREATE {draw.choice(['', 'OR REPLACE '])}{_word(view)} {name} AS "
                return _Change(words + view.text, {**views, name: view})
            case "add":
                table, type_ = draw.choice([*_TABLES]), draw.choice(["INT", "DECIMAL(10, 2)", "DATE"])
                column = f"c{len(self.tables[table])}"
                default = f" DEFAULT {self._literal(type_)}" if draw.random() < 0.5 else ""
                statement = f"ALTER TABLE {table} ADD COLUMN {column} {type_}{default}"
                return _Change(statement, views, column=(table, column, type_, default))
            case "drop":
                words = f"DROP {_word(views[name])} {name}"
                if self._readers(name):
                    return _Change(words, None, frozenset({"STILL_READ"}))
                return _Change(words, {other: view for other, view in views.items() if other != name})
            case "refused":
                return self._refused(name)
        old = views[name]
        if kind == "undo" and old.before is not None and not any(self._is_gone(one, name) for one in old.before.reads):
            view = replace(old.before, tables={one: [*columns] for one, columns in self.tables.items()})
        else:
            shape = old.shape if old.shape != "any" and self._readers(name) else None
            view = self._drawn(name, shape, is_materialized=old.is_materialized)
        view = replace(view, before=replace(old, before=None))
        words = f"{'CREATE OR REPLACE' if kind == 'replace' else 'ALTER'} {_word(old)} {name} AS "
        # What a text of before reads may have other columns since.
        codes = _REFUSALS | ({"UNKNOWN_COLUMN"} if kind == "undo" else set())
        return _Change(words + view.text, {**views, name: view}, frozenset(codes))

    def _is_gone(self, read: str, reader: str) -> bool:
        return read not in self.views or self._reaches(read, reader)

    def _refused(self, name: str) -> _Change:
        draw, view = self.draw, self.views[name]
        readers, table = self._readers(name), draw.choice([*_TABLES])
        altered = f"ALTER {_word(view)} {name} AS"
        ways = [
            (f"ALTER TABLE {table} DROP COLUMN {[*self.tables[table]][-1]}", "NOT_OFFERED"),
            (f"ALTER TABLE {table} ADD COLUMN {[*self.tables[table]][-1]} DOUBLE", "DUPLICATE_COLUMN"),
            (f"ALTER TABLE {table} ADD COLUMN other INT NOT NULL", "NOT_OFFERED"),
            (f"CREATE TABLE {table} (id INT, other STRING)", "NAME_TAKEN"),
            (f"ALTER TABLE {name} ADD COLUMN other INT", "WRONG_KIND"),
            (f"DROP TABLE {name}", "WRONG_KIND"),
            (f"{altered} SELECT nothing FROM upserts", "UNKNOWN_COLUMN"),
            (f"{altered} SELECT k FROM view_0", "UNKNOWN_TABLE"),
            (f"{altered} SELECT * FROM {name}", "CIRCLE"),
            (f"CREATE {_word(view)} {name} AS SELECT k FROM seen", "NAME_TAKEN"),
            (f"DROP TABLE {table}", "STILL_READ" if self._is_read(table) else ""),
        ]
        if readers:
            ways.append((f"{altered} SELECT * FROM {draw.choice(readers)}", "CIRCLE"))
            if view.shape != "any":
                ways.append((f"{altered} SELECT v AS other FROM lefts", "UNKNOWN_COLUMN"))
        text, code = draw.choice([way for way in ways if way[1]])
        return _Change(text, None, frozenset({code}))

    def _is_read(self, table: str) -> bool:
        return any(re.search(rf"\b{table}\b", view.text) for view in self.views.values())

    def change(self) -> None:
        """Change views or a table, or have a change refused."""
        change = self._change()
        what = f"{change.text}"
        for running in self.session.running:
            running.changelog()
        before, shown = self._shown(), None
        epoch = self._epoch()
        if change.text.startswith("ALTER") and "VIEW" in change.text[:25] and self.draw.random() < 0.4:
            try:
                shown = str(self.session.sql(f"EXPLAIN {change.text}"))
            except ZsetJoinError as error:
                shown = error.code
            if self._shown() != before or any(len(running.changelog()) for running in self.session.running):
                raise LawBrokenError(f"{self.what}: EXPLAIN {what}: has changed views")
        try:
            text = str(self.session.sql(change.text))
        except ZsetJoinError as error:
            if error.code not in change.codes:
                raise LawBrokenError(f"{self.what}: {what}: refused by {error.code}: {error}") from error
            self.outcome.refused += 1
            self.outcome.codes[error.code] += 1
            if self._shown() != before or self._epoch() != epoch or shown not in (None, error.code):
                raise LawBrokenError(f"{self.what}: {what}: refused ({error}), and changed all the same") from error
            self.check(f"{what}, refused")
            return
        if change.views is None:
            raise LawBrokenError(f"{self.what}: {what}: was to be refused by {set(change.codes)}: {text}")
        listed, done = (shown or "").splitlines()[1:], text.splitlines()[1:]
        if text.endswith(" is there already"):  # a statement of before, in a directory that was opened again
            done = [line for line in listed if not line.startswith("view ") or line.endswith(" is unchanged")]
        if shown is not None and listed != done:
            raise LawBrokenError(f"{self.what}: {what}: listed\n{shown}\nand did\n{text}")
        self.views = change.views
        if change.column is not None:
            table, column, type_, _ = change.column
            self.peer.execute(change.text)
            self.tables[table][column] = type_
        self.outcome.evolved += 1
        self.check(what)
        self._check_changelogs(before, what)

    def _check_changelogs(self, before: dict[str, Any], what: str) -> None:
        """Compare the rows before and the changes with the rows after; a view of other columns begins with all its rows."""
        after = self._shown()
        for running in self.session.running:
            columns, rows = before.get(running.name, (None, ()))
            total = Counter(rows if columns == after[running.name][0] else ())
            for row in running.changelog().to_pylist():
                *values, weight = row.values()
                total[tuple(values)] += weight
            if Counter({row: n for row, n in total.items() if n}) != after[running.name][1]:
                raise LawBrokenError(f'{self.what}: {what}: "{running.name}" is not its rows before and its changes')

    # ---------------------------------------------------------------- what is there

    def _epoch(self) -> Any:
        return [running.pipeline.epoch for running in self.session.running]

    def _shown(self) -> dict[str, Any]:
        """Return the columns and the rows of every view."""
        return {name: ((rows.schema.names, rows.schema.types), _bag(rows)) for name, rows in self.session.views().items()}

    def answer(self, name: str) -> Counter[Any]:
        """Return DuckDB's answer to the text of a view."""
        parts, done = list[str](), set[str]()

        def define(one: str) -> None:
            if one in done:
                return
            done.add(one)
            view = self.views[one]
            for other in sorted(view.reads):
                define(other)
            pinned = ", ".join(
                f"{table} AS (SELECT {', '.join(names)} FROM main.{table})" for table, names in view.tables.items()
            )
            parts.append(f"{one} AS (WITH {pinned} SELECT * FROM ({view.text}) x)")

        define(name)
        return _bag(self.peer.sql(f"WITH {', '.join(parts)} SELECT * FROM {name}").to_arrow_table())

    def check(self, what: str) -> None:
        """Compare views with DuckDB's answers; one that is not materialized is read sometimes."""
        shown = self._shown()
        materialized = {name for name, view in self.views.items() if view.is_materialized}
        if shown.keys() != materialized:
            raise LawBrokenError(f"{self.what}: {what}: there are {sorted(shown)}, not {sorted(materialized)}")
        held = {name: rows for name, (_, rows) in shown.items()}
        plain = [name for name in self.views if name not in materialized]
        if plain and self.draw.random() < 0.1:
            name = self.draw.choice(plain)
            made: Any = self.session.sql(f"SELECT * FROM {name}")
            held[name] = _bag(made.table())
        for name, rows in held.items():
            expected = self.answer(name)
            self.outcome.rows += len(rows)
            if rows != expected:
                texts = "\n".join(f"  {one} AS {view.text}" for one, view in self.views.items())
                raise LawBrokenError(
                    f"{self.what}: {what}:\n{name} is {rows - expected} too much and lacks {expected - rows}\n{texts}"
                )

    def reopen(self) -> None:
        if self._directory is not None:
            self.session.close()
            self.session = connect(directory=self._directory)
            self.check("opened again")

    def close(self) -> None:
        self.session.close()
        self.peer.close()


def _word(view: _View) -> str:
    return "MATERIALIZED VIEW" if view.is_materialized else "VIEW"


def _bag(table: pa.Table) -> Counter[Any]:
    return Counter(tuple(row.values()) for row in table.to_pylist())


def changed_sessions_hold(seed: int, directory: Path | None, outcome: Outcome) -> None:
    """Change the views and tables of a random session many times.

    Raises:
        LawBrokenError: a law is broken.
    """
    draw = random.Random(f"sql {seed}")
    with warnings.catch_warnings(action="ignore", category=SqlWarning):
        run = _Run(draw, directory, outcome, f"seed {seed}")
        try:
            for _ in range(6):
                if draw.random() < 0.4:
                    run.reopen()
                for _ in range(draw.randint(1, 6)):
                    run.change()
                run.step()
        finally:
            run.close()


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="evolving_sql")
    parser.add_argument("--changes", type=int, default=1_000, help="statements that change something, or are refused (1000)")
    parser.add_argument("--seed", type=int, default=0, help="the first one (0)")
    parser.add_argument("--words", action="store_true", help="the changes are those of views in words")
    parser.add_argument("--go-on", action="store_true", help="list what fails, and continue")
    parser.add_argument("--minutes", type=float, default=1e6, help="most minutes")
    options = parser.parse_args(arguments)
    outcome, seed, failed, begun = Outcome(), options.seed, 0, time.monotonic()
    while outcome.evolved + outcome.refused < options.changes and time.monotonic() - begun < 60 * options.minutes:
        with tempfile.TemporaryDirectory() as directory:
            place = Path(directory) / "state" if seed % 3 == 0 else None
            try:
                (changed_sets_hold if options.words else changed_sessions_hold)(seed, place, outcome)
            except Exception as error:  # noqa: BLE001 - a raw error breaks the law
                print(f"seed {seed}: {type(error).__name__}: {str(error)[:4_000]}", flush=True)  # noqa: T201 - a program's output
                failed += 1
                if not options.go_on:
                    return 1
        seed += 1
    print(f"seeds {options.seed} to {seed - 1}: {outcome}, {failed} failed, {time.monotonic() - begun:.0f} s")  # noqa: T201 - a program's output
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
