"""`zset-join run pipeline.sql`: run the statements of a file, in this process or inside Spark.

    zset-join run pipeline.sql --once                                        until everything that is there has been read
    zset-join run pipeline.sql                                               until Ctrl-C or SIGTERM
    zset-join run pipeline.sql --directory /data/shop                        the same; run it again to go on
    zset-join run pipeline.sql --engine spark --directory /data/shop         the same inside Spark

Queries that write nowhere print their changes, as lines of JSON with `_tp_delta`; what is read from `table(t)` is printed once,
when everything that is there has been read. Progress goes to standard error, a line of JSON per query.

The law: with a directory, a pipeline that was stopped or killed goes on where it was: no change is written
twice and none is missing, where its sinks are exactly-once; statements that inserted rows insert them once. A printed line may
come again.

Known limits: in process and without a directory everything is in memory, so a pipeline that runs again begins again, and writes
only to what is empty.
A file is read once, by its name.
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TextIO, cast

from zset_join.core.errors import OptionError
from zset_join.sinks.printed import PrintSink
from zset_join.sql.commands import file_text, write_lines
from zset_join.sql.connecting import connect
from zset_join.sql.session import Session
from zset_join.sql.statements import execute
from zset_join.sql.tables.feeds import Feed, feed_of, feeds_of
from zset_join.sql.tables.results import Query
from zset_join.sql_expressions.dialects import Statement, split

if TYPE_CHECKING:
    from zset_join.sql.lasting import LastingSession
    from zset_join.sql.on_spark import SessionOnSpark

__all__ = ["run_file"]

_MOST_ROWS = 100_000
_IDLE_SECONDS = 0.2
_LOOK_SECONDS = 1.0


def run_file(
    path: str,
    *,
    engine: str,
    dialect: str,
    once: bool,
    directory: str | None = None,
    trigger: str | None = None,
    progress_seconds: float = 10.0,
    spark: Callable[[], Any] | None = None,
    output: TextIO | None = None,
) -> int:
    """Run the statements of a file.

    Args:
        path: of the file.
        engine: `local` or `spark`.
        dialect: whose SQL it is.
        once: end when everything that is there has been read; else run until Ctrl-C.
        directory: where rows, checkpoints and state are kept; None: they end with the run.
        trigger: inside Spark, an interval between epochs, such as "5 seconds".
        progress_seconds: between lines of progress; 0 for none.
        spark: gives the session, for `engine="spark"`; it is asked once the statements can be read.
        output: where to print.

    Returns:
        The exit code.

    Raises:
        OptionError: options that belong to the other engine.
    """
    if engine != "spark" and trigger is not None:
        raise OptionError(
            "--trigger belongs to --engine spark; in process an epoch is taken as soon as rows come.", code="ENGINE"
        )
    stream = output or sys.stdout
    statements = split(file_text(path), dialect=dialect)
    session = connect(engine=engine, dialect=dialect, spark=_asked(engine, spark), directory=directory)
    progress = _Progress(session, progress_seconds, sys.stderr)
    with session, _stopping():
        runner = _runner_of(session, engine, is_durable=directory is not None)
        runner.prepare(once=once, trigger=trigger)
        try:
            bounded = _run_statements(session, statements, runner, stream)
            runner.read()
            for query in bounded:
                write_lines(query.table(), stream)
            stream.flush()
            while not once and session.running:
                if not runner.step():
                    time.sleep(_IDLE_SECONDS)
                progress.tell()
        except KeyboardInterrupt:
            again = " Run it again to go on." if directory is not None else ""
            print(f"stopped.{again}", file=sys.stderr)  # noqa: T201 - a program's output
        finally:
            runner.close()
            progress.tell(is_last=True)
    return 0


def _runner_of(session: Session, engine: str, *, is_durable: bool) -> _Runner:
    if engine == "spark":
        return _OnSpark(session, is_durable=is_durable)
    return _InDirectory(cast("LastingSession", session)) if is_durable else _InProcess(session)


def _asked(engine: str, spark: Callable[[], Any] | None) -> Any:
    return spark() if engine == "spark" and spark is not None else None


def _run_statements(session: Session, statements: Sequence[Statement], runner: _Runner, stream: TextIO) -> list[Query]:
    """Run statements; return the queries that end."""
    bounded: list[Query] = []
    for statement in statements:
        with runner.statement(statement):
            result = execute(session, statement)
        if isinstance(result, Query) and not result.bound.is_bounded:
            session.start(result, output=PrintSink(stream=stream))
        elif isinstance(result, Query):
            bounded.append(result)
    return bounded


class _Runner(ABC):
    """What the engines do differently."""

    def prepare(self, *, once: bool, trigger: str | None) -> None:  # noqa: B027 - of Spark's
        """Say how queries run."""

    def statement(self, statement: Statement) -> Any:  # noqa: ARG002 - of Spark's
        """Return what a statement is run within."""
        return nullcontext()

    @abstractmethod
    def read(self) -> None:
        """Read everything that is there."""

    @abstractmethod
    def step(self) -> bool:
        """Read what has come since; return whether there was something.

        Raises:
            ZsetJoinError: what stopped a query.
        """

    def close(self) -> None:  # noqa: B027 - not all have sources
        """Release sources."""


class _Local(_Runner):
    """Queries of this process, whose sources are asked in turns."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._next_look = 0.0

    @abstractmethod
    def _poll(self, *, wait_seconds: float) -> bool:
        """Give the queries what sources have; return whether there was something."""

    def step(self) -> bool:
        """Give the next rows of every source to the queries, or let time pass."""
        if self._poll(wait_seconds=0.05):
            return True
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_SECONDS
            self._session.advance_due()
        return False


class _InProcess(_Local):
    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._feeds: list[Feed] | None = None

    def read(self) -> None:
        """Read until no source gives anything."""
        while self._poll(wait_seconds=2.0):
            pass

    def close(self) -> None:
        """Close the sources."""
        for feed in self._feeds or ():
            feed.close()

    def _poll(self, *, wait_seconds: float) -> bool:
        if self._feeds is None:
            self._feeds = feeds_of(self._session)
        moved = False
        for feed in self._feeds:
            rows = feed.poll(most_rows=_MOST_ROWS, wait_seconds=wait_seconds)
            if rows is not None:
                self._session.insert(feed.table.name, rows)
                moved = True
        return moved


class _InDirectory(_Local):
    """Queries that read for themselves, and go on where they were."""

    def __init__(self, session: LastingSession) -> None:
        super().__init__(session)
        self._lasting = session
        self._names = _StatementNames()

    def statement(self, statement: Statement) -> Any:
        """Let what a statement inserts be inserted once, however often the file is run."""
        return self._lasting.once(self._names.of(statement))

    def read(self) -> None:
        """Read until no source gives anything."""
        self._poll(wait_seconds=2.0)

    def _poll(self, *, wait_seconds: float) -> bool:
        return bool(self._lasting.read(wait_seconds=wait_seconds))


class _StatementNames:
    """Name the statements of a file: by their text, and the how-manieth of that text they are."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def of(self, statement: Statement) -> str:
        """Return the name of the next statement of this text."""
        digest = hashlib.sha256(statement.sql.encode()).hexdigest()[:32]
        self._seen[digest] += 1
        return f"statement-{digest}-{self._seen[digest]}"


class _OnSpark(_Runner):
    def __init__(self, session: Any, *, is_durable: bool) -> None:
        self._session: SessionOnSpark = session
        self._is_durable = is_durable
        self._once = False
        self._names = _StatementNames()

    def prepare(self, *, once: bool, trigger: str | None) -> None:
        """Let queries end where that is meant."""
        self._session.mode = "once" if once else "continuous"
        self._session.trigger = trigger
        self._once = once

    def statement(self, statement: Statement) -> Any:
        """Let what a statement inserts be inserted once, however often the file is run."""
        if not self._is_durable:
            return nullcontext()
        return self._session.once(self._names.of(statement))

    def read(self) -> None:
        """Read generated rows; wait until the queries have answered everything, where they end."""
        for table in list(self._session.catalog.tables.values()):
            feed = feed_of(table) if table.options.get("connector") == "datagen" else None
            number = 0
            while feed is not None and (rows := feed.poll(most_rows=_MOST_ROWS, wait_seconds=0.0)) is not None:
                with self._session.once(f"generated-{number:09d}"):
                    self._session.insert(table.name, rows)
                number += 1
        if self._once:
            self._session.refresh()

    def step(self) -> bool:
        """Look whether the queries run."""
        for running in self._session.running:
            self._session.pipeline_of(running).check()
        return False


class _Progress:
    """Tell what the queries do, now and then."""

    def __init__(self, session: Session, seconds: float, stream: TextIO) -> None:
        self._session = session
        self._seconds = seconds
        self._stream = stream
        self._next = time.monotonic() + seconds
        self._told: dict[str, Any] = {}

    def tell(self, *, is_last: bool = False) -> None:
        """Print a line per query that has moved, if it is time."""
        if not self._seconds or (time.monotonic() < self._next and not is_last):
            return
        self._next = time.monotonic() + self._seconds
        for running in self._session.running:
            progress = running.progress()
            if progress is not None and self._told.get(running.name) != progress:
                self._told[running.name] = progress
                print(json.dumps(progress), file=self._stream)


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
