"""`zset-join run pipeline.sql`: run the statements of a file, in this process or inside Spark.

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
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from zset_join.core.errors import OptionError
from zset_join.sinks.printed import PrintSink
from zset_join.sql.commands import file_text, write_lines
from zset_join.sql.session import Session
from zset_join.sql.tables.results import Query
from zset_join.sql_expressions.dialects import Statement, split

__all__ = ["run_file"]

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
    with session, _stopping():
        session.runtime.run_as(once=once, trigger=trigger)
        try:
            bounded = _run_statements(session, statements)
            session.read(wait_seconds=_LAST_SECONDS)
            for query in bounded:
                write_lines(query.table(), sys.stdout)
            sys.stdout.flush()
            next_look = 0.0
            while not once and session.running:
                moved, next_look = _step(session, next_look)
                if not moved:
                    time.sleep(_IDLE_SECONDS)
                progress.report()
        except KeyboardInterrupt:
            again = " Run it again to go on." if directory is not None else ""
            print(f"stopped.{again}", file=sys.stderr)  # noqa: T201 - a program's output
        finally:
            progress.report(is_last=True)
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
        """Return the name of the next statement of this text."""
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

    def report(self, *, is_last: bool = False) -> None:
        """Print a line per query that has moved, if it is time."""
        if not self._seconds or (time.monotonic() < self._next and not is_last):
            return
        self._next = time.monotonic() + self._seconds
        for running in self._session.running:
            progress = running.progress()
            if progress is not None and self._told.get(running.name) != progress:
                self._told[running.name] = progress
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
