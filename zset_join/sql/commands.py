"""SQL verbs of the command line: check a file, explain it, or type statements.

    zset-join check pipeline.sql             parse, bind and plan; print what each query keeps; run nothing
    zset-join explain pipeline.sql           the plan of each query
    zset-join sql                            a shell

`zset-join run` is in `zset_join.sql.commands`.

A changelog is printed as lines of JSON, the weight as `_tp_delta`.

`views_of_file`: the query of a file of statements, over the sources that a plan has: what `zset-join diff` and `evolve` compare
it with.

    SELECT city, sum(total) AS t FROM orders JOIN people USING (who) GROUP BY city

The law: a source of the plan is present under its name, as it is described there; a file that declares one itself is taken at
its word. What the file keeps, by CREATE MATERIALIZED VIEW or INSERT INTO, is a view of that name; where it keeps nothing, its
only SELECT is the view.

Nothing runs and nothing is written.

`run_file`: `zset-join run pipeline.sql`: run the statements of a file, in this process or inside Spark.

    zset-join run pipeline.sql --once                                        until everything that is present has been read
    zset-join run pipeline.sql                                               until Ctrl-C or SIGTERM
    zset-join run pipeline.sql --directory /data/shop                        the same; run it again to continue
    zset-join run pipeline.sql --engine spark --directory /data/shop         the same inside Spark

Queries that write nowhere print their changes, as lines of JSON with `_tp_delta`; what is read from `table(t)` is printed once,
when everything that is present has been read. Progress goes to standard error, a line of JSON per query.

The law: with a directory, a pipeline that was stopped or killed continues where it was: no change is written
twice and none is missing, where its sinks are exactly-once; statements that inserted rows insert them once. A printed line may
come again.

Known limits: in process and without a directory a pipeline that runs again begins again, and writes only to what is empty. A
file is read once, by its name.
"""

from __future__ import annotations

import hashlib
import json
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
from sqlglot.errors import SqlglotError
from typing_extensions import override

from zset_join.changelog import AppendFormat
from zset_join.core.errors import OptionError, SqlError, ZsetJoinError
from zset_join.core.extras import needed_for
from zset_join.core.hidden_settings import holds_password, is_secret_name
from zset_join.plan.query_plan import PlanSource, QueryPlan
from zset_join.plan.tree import Read
from zset_join.query import View
from zset_join.query.reading import Reading
from zset_join.sinks.printed import PrintSink
from zset_join.sql.bind.aggregation import AGGREGATES
from zset_join.sql.session import Session
from zset_join.sql.tables.catalog import BoundQuery, NamedView
from zset_join.sql.tables.results import Message, Query, Running
from zset_join.sql.tables.settings import SETTINGS
from zset_join.sql_expressions.dialects import Statement, dialect_named, split
from zset_join.sql_expressions.scalars import SCALAR_FUNCTIONS
from zset_join.zset import ZSet

__all__ = ["check_file", "completions", "explain_file", "prompt", "run_file", "run_shell", "views_of_file"]

_BY_REFERENCE = re.compile(r"""[\w.'"`-]+\s*=\s*'\$\{ENV:\w+\}'""")


class CheckingSession(Session):
    """A session that plans, and neither writes outside nor opens what would."""

    writes = False

    @override
    def start(self, query: Query, *, name: str | None = None, output: Callable[[ZSet], None] | None = None) -> Running:
        return super().start(query, name=name)


def check_file(path: str, *, dialect: str) -> int:
    """Parse, bind and plan every statement of a file; print what each query keeps, and write nothing."""
    for number, result in enumerate(_checked(path, dialect), 1):
        if isinstance(result, Query):
            kept = [line.strip() for line in result.explain().splitlines() if "remembers" in line]
            _print(f"{number}: query of {', '.join(result.columns)}; {'; '.join(kept) or 'remembers: nothing'}", sys.stdout)
        else:
            _print(f"{number}: {result}", sys.stdout)
    return 0


def explain_file(path: str, *, dialect: str) -> int:
    """Print the plan of every query of a file."""
    for result in _checked(path, dialect):
        if isinstance(result, Query):
            _print(result.explain(), sys.stdout)
    return 0


def _checked(path: str, dialect: str) -> Iterator[Message | Query]:
    with CheckingSession(dialect=dialect) as session:
        for statement in split(file_text(path), dialect=dialect):
            yield session.run(statement)


def write_lines(table: pa.Table, stream: TextIO) -> None:
    """Print rows as lines of JSON."""
    for row in table.to_pylist():
        _print(json.dumps(row, default=str, ensure_ascii=False), stream)


def file_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SqlError(f"{path} cannot be read: {error}.", code="NO_FILE") from error


def _print(text: str, stream: TextIO) -> None:
    print(text, file=stream)


def run_shell(*, dialect: str) -> int:
    """Read statements from the terminal until the end of input; a statement ends with a semicolon."""
    with Session(dialect=dialect) as session:
        consoles: list[Running] = []
        for text in prompt(session):
            try:
                result = session.sql(text)
                if isinstance(result, Query) and result.emits_changelog and not result.bound.is_bounded:
                    running = result.start()
                    consoles.append(running)
                    _print(
                        f"{running.name}: {', '.join(running.query.columns)}; its changes are printed as they come", sys.stdout
                    )
                elif isinstance(result, Message):
                    _print(str(result), sys.stdout)
                else:
                    write_lines(result.table(), sys.stdout)
                for running in consoles:
                    lines = running.changelog()
                    if lines.num_rows:
                        _print(f"-- {running.name}", sys.stdout)
                        write_lines(lines, sys.stdout)
            except ZsetJoinError as error:
                _print(str(error), sys.stderr)
    return 0


_WORDS = (
    "CREATE TABLE", "CREATE STREAM", "CREATE MUTABLE STREAM", "CREATE VIEW", "CREATE MATERIALIZED VIEW", "DESCRIBE", "DROP",
    "EMIT CHANGELOG", "EXPLAIN", "FOR SYSTEM_TIME AS OF", "FROM", "FULL JOIN", "GROUP BY", "HAVING", "INSERT INTO", "JOIN",
    "LEFT JOIN", "ON", "PRIMARY KEY", "SELECT", "SET", "SETTINGS", "SHOW TABLES", "UNION ALL",
    "VALUES", "WATERMARK FOR", "WHERE",
)  # fmt: skip


def completions(session: Session) -> list[str]:
    """Return completions: keywords, names of the session, functions, settings."""
    columns = [column for table in session.catalog.tables.values() for column in table.schema.names]
    return sorted({*_WORDS, *session.catalog.relations(), *columns, *SCALAR_FUNCTIONS, *AGGREGATES.values(), *SETTINGS})


def prompt(session: Session) -> Iterator[str]:
    """Yield statements as they are typed, until the end of input; the history keeps none that may hold a literal secret."""
    if not sys.stdin.isatty():
        for statement in split(sys.stdin.read(), dialect=session.dialect):
            yield statement.sql
        return
    with needed_for("the shell of zset-join sql"):
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import DynamicCompleter, WordCompleter
        from prompt_toolkit.history import FileHistory, InMemoryHistory

    completer = DynamicCompleter(lambda: WordCompleter(completions(session), ignore_case=True, sentence=False))
    kept = FileHistory(str(Path.home() / ".zset_join_history"))
    earlier = InMemoryHistory(list(kept.load_history_strings())[::-1])
    typed: PromptSession[str] = PromptSession(history=earlier, completer=completer)
    lines: list[str] = []
    while True:
        try:
            line = typed.prompt("zset-join> " if not lines else "       ...> ")
        except KeyboardInterrupt:
            lines = []
            continue
        except EOFError:
            return
        lines.append(line)
        if line.rstrip().endswith(";"):
            text = "\n".join(lines)
            if not _may_hold_secret(text, session.dialect):
                for one in filter(str.strip, lines):
                    kept.store_string(one)
            yield text
            lines = []


def _may_hold_secret(text: str, dialect: str) -> bool:
    """Return whether a text has a secret name, but for one that is assigned a variable of the environment, or a password."""
    rest = _BY_REFERENCE.sub("", text)
    try:
        words = [token.text for token in dialect_named(dialect)().tokenize(rest)]
    except SqlglotError:
        return True
    return holds_password(rest) or any(is_secret_name(word) for word in [*words, *re.findall(r"[\w.-]+", rest)])


_DECLARES = re.compile(
    r"\s*CREATE\s+(?:OR\s+REPLACE\s+)?(?:MUTABLE\s+)?(?:TABLE|STREAM|SOURCE)\s+"
    r"(?:IF\s+NOT\s+EXISTS\s+)?[\"`]?(\w+)",
    re.IGNORECASE,
)


def views_of_file(path: str, plan: QueryPlan, *, dialect: str) -> View | Mapping[str, View]:
    statements = list(split(file_text(path), dialect=dialect))
    declared = {match[1].lower() for one in statements if (match := _DECLARES.match(one.sql)) is not None}
    selected: list[Query] = []
    with CheckingSession(dialect=dialect) as session:
        for source in plan.sources:
            if source.name.lower() not in declared:
                bound = BoundQuery(_view(source), frozenset({source.name}))
                session.catalog.add(NamedView(source.name, bound, f"the source {source.name}"))
        for statement in statements:
            result = session.run(statement)
            selected += [result] if isinstance(result, Query) else []
        running = {one.name: _shown(one.query.bound) for one in session.running}
    if running and not selected:
        return running
    if len(selected) == 1 and not running:
        return _shown(selected[0].bound)
    raise OptionError(
        f"{path} has {len(selected)} SELECT and {len(running)} other queries for the views {[one.name for one in plan.views]}; "
        "expected one SELECT for one view, or for several views an INSERT INTO or CREATE MATERIALIZED VIEW of each of their "
        "names.",
        code="PROGRAM",
        program=path,
    )


def _view(source: PlanSource) -> View:
    """Return a source of a plan as rows; how they are fed does not count here."""
    reading = Reading(source=source, given=source.relation.schema, changelog_format=AppendFormat())
    return View(node=Read(source), name=source.name, bindings=(reading,))


def _shown(query: BoundQuery) -> View:
    return query.view.select(*query.columns) if query.columns != query.view.columns else query.view


_IDLE_SECONDS = 0.2
_LOOK_SECONDS = 1.0
_POLL_SECONDS = 0.05
_LAST_SECONDS = 2.0


def run_file(
    path: str,
    *,
    engine: str,
    dialect: str,
    once: bool,
    directory: str | None = None,
    allow_env: Sequence[str] = (),
    trigger: str | None = None,
    progress_seconds: float = 10.0,
    spark: Callable[[], Any] | None = None,
) -> int:
    if engine != "spark" and trigger is not None:
        raise OptionError(
            "--trigger belongs to --engine spark; in process an epoch runs as soon as rows arrive.", code="ENGINE"
        )
    statements = split(file_text(path), dialect=dialect)
    session = Session(
        engine=engine, dialect=dialect, spark=_session_of(engine, spark), directory=directory, allow_env=allow_env
    )
    progress = _Progress(session, progress_seconds)
    apart = None  # the query of what runs on executors
    with session, _stopping():
        session.runtime.run_as(once=once, trigger=trigger)
        try:
            bounded = _run_statements(session, statements)
            session.read(wait_seconds=_LAST_SECONDS)
            for query in bounded:
                write_lines(query.table(), sys.stdout)
            sys.stdout.flush()
            apart, next_look = session.runtime.start_on_executors(), 0.0
            while (apart is not None and not apart.awaitTermination(_POLL_SECONDS)) or (not once and session.running):
                moved, next_look = _step(session, next_look)
                if not moved:
                    time.sleep(_IDLE_SECONDS)
                progress.report(apart)
        except KeyboardInterrupt:
            again = " Run it again to go on." if directory is not None else ""
            print(f"stopped.{again}", file=sys.stderr)  # noqa: T201 - a program's output
        finally:
            progress.report(apart, is_last=True)
            if apart is not None:
                apart.stop()
    return 0


def _session_of(engine: str, spark: Callable[[], Any] | None) -> Any:
    return spark() if engine == "spark" and spark is not None else None


def _run_statements(session: Session, statements: Sequence[Statement]) -> list[Query]:
    """Run statements; return the queries that end."""
    bounded: list[Query] = []
    names = _StatementNames()
    for statement in statements:
        with session.once(names.of(statement)):
            result = session.run(statement)
        if isinstance(result, Query) and not result.bound.is_bounded:
            session.start(result, output=PrintSink(stream=sys.stdout))
        elif isinstance(result, Query):
            bounded.append(result)
    return bounded


class _StatementNames:
    """Name the statements of a file: by their text, and the how-manieth of that text they are."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def of(self, statement: Statement) -> str:
        digest = hashlib.sha256(statement.sql.encode()).hexdigest()[:32]
        self._seen[digest] += 1
        return f"statement-{digest}-{self._seen[digest]}"


def _step(session: Session, next_look: float) -> tuple[bool, float]:
    """Take new rows, or let time pass; return whether rows arrived, and when time is looked at again."""
    if session.read(wait_seconds=_POLL_SECONDS, rounds=1):
        return True, next_look
    if time.monotonic() >= next_look:
        next_look = time.monotonic() + _LOOK_SECONDS
        session.advance_due()
    return False, next_look


class _Progress:
    def __init__(self, session: Session, seconds: float) -> None:
        self._session = session
        self._seconds = seconds
        self._next = time.monotonic() + seconds
        self._told: dict[str, Any] = {}

    def report(self, apart: Any, *, is_last: bool = False) -> None:
        """Print a line per query that has moved, if it is time; `apart`: the query on executors, or None."""
        if not self._seconds or (time.monotonic() < self._next and not is_last):
            return
        self._next = time.monotonic() + self._seconds
        moved = {running.name: running.progress() for running in self._session.running}
        epoch = None if apart is None else (apart.lastProgress or {}).get("join")
        if epoch is not None:
            counted = {"rows_in": sum(epoch["rows_in"].values()), "rows_out": epoch["delta_rows"]}
            moved["executors"] = {"query": "executors", "epoch": epoch["epoch"], **counted}
        for name, progress in moved.items():
            if progress is not None and self._told.get(name) != progress:
                self._told[name] = progress
                print(json.dumps(progress), file=sys.stderr)  # noqa: T201 - a program's output


@contextmanager
def _stopping() -> Iterator[None]:
    """Let SIGTERM end a run as Ctrl-C does, and neither cancel the jobs of Spark; threads but the main one have no signals."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
