"""A captured database while things end: `python -m faults.captured_database [--long] [--engine local|spark]`.

PostgreSQL, Debezium, Kafka and the query of `examples.cdc_demo`, while an application commits transactions. Meanwhile the
driver is killed at moments spread over the run, the broker is killed and started once, and so is the database, each with
everything that hangs on it. What a supervisor does is
done: a driver that ended is started again, and so is a Debezium that lost its slot.

The law: at the end the view in PostgreSQL and the topic equal the query in the source database. `--long`, which `make soak`
runs, is 500,000 transactions and five kills; else 20,000 and two.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

import psycopg

from examples.cdc_demo import CapturedDatabase, Writer, caught_up, compare
from examples.cdc_driver import Engine
from examples.cdc_source import write_the_end

__all__ = ["main", "run"]

_SLOT_MISSED_SECONDS = 30.0


class CaughtUpTooLateError(AssertionError):
    """The view did not come to the end in time."""


def run(database: CapturedDatabase, *, transactions: int, kills: int, limit_seconds: float) -> bool:
    """Write, kill, restart; return whether both outputs are right at the end."""
    started = time.monotonic()

    def send(line: str) -> None:
        print(f"[{time.monotonic() - started:6.1f} s] {line}", flush=True)  # noqa: T201 - a program's output

    database.start_driver()
    writer = Writer(database.postgres.conninfo, transactions, per_second=400.0).start()
    database.capture()
    writer.captured.set()
    due = sorted([*_moments(kills, database.kill_driver, "driver"), (0.45, "broker", _restart_broker(database)),
                  (0.7, "database", _restart_database(database))], key=lambda one: one[0])  # fmt: skip
    printed = missed = time.monotonic()
    the_end = False
    while not (the_end and _caught_up(database)):
        writer.check()
        database.mind_driver()
        missed = _mind_connect(database, missed, send)
        while due and _has_offsets(database) and writer.committed >= due[0][0] * transactions:
            _, what, act = due.pop(0)
            send(f"{what} is killed after {writer.committed:,} transactions")
            act()
        if not due and not the_end and not writer.is_writing:
            write_the_end(database.postgres.conninfo)
            the_end = True
            send(f"{writer.committed:,} transactions are committed; the connection was lost {writer.lost_connections} times")
        if time.monotonic() - started > limit_seconds:
            raise CaughtUpTooLateError(f"not caught up after {limit_seconds:.0f} s:\n{database.driver_log()[-4000:]}")
        if time.monotonic() - printed > 20:
            printed = time.monotonic()
            send(f"{writer.committed:,} transactions")
        time.sleep(0.2)
    send(f"caught up; the driver was started again {database.ended_by_itself} times, {kills} of them after a kill")
    database.finish_driver()
    return compare(database, send)


def _has_offsets(database: CapturedDatabase) -> bool:
    """Return whether Debezium has written down how far it came.

    Before that it begins with another snapshot after a failure, and rows that were deleted since the first are never reported.
    """
    offsets = database.directory / "connect" / "offsets"
    return offsets.exists() and offsets.stat().st_size > 0


def _moments(kills: int, act: Callable[[], None], what: str) -> list[tuple[float, str, Callable[[], None]]]:
    return [((number + 1) / (kills + 1), what, act) for number in range(kills)]


def _restart_broker(database: CapturedDatabase) -> Callable[[], None]:
    def restart() -> None:
        database.kafka.kill()
        database.kafka.start()

    return restart


def _restart_database(database: CapturedDatabase) -> Callable[[], None]:
    def restart() -> None:
        database.postgres.kill()
        database.postgres.start()

    return restart


def _mind_connect(database: CapturedDatabase, missed: float, send: Callable[[str], None]) -> float:
    """Start Debezium again where its slot has been without it for long; return when it was last seen."""
    now = time.monotonic()
    try:
        active = database.postgres.execute("SELECT FROM pg_replication_slots WHERE active")
    except psycopg.OperationalError:
        return missed
    if active:
        return now
    if now - missed > _SLOT_MISSED_SECONDS and database.connect is not None:
        send("Debezium has left its slot; it is started again")
        database.connect.stop()
        database.connect.start()
        return time.monotonic()
    return missed


def _caught_up(database: CapturedDatabase) -> bool:
    try:
        return caught_up(database)
    except psycopg.OperationalError:
        return False


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; exit code 0 when both outputs are right."""
    parser = argparse.ArgumentParser(prog="captured_database")
    parser.add_argument("--long", action="store_true", help="500,000 transactions and five kills")
    parser.add_argument("--engine", choices=get_args(Engine), default="spark")
    parser.add_argument("--transactions", type=int)
    parser.add_argument("--kills", type=int)
    parser.add_argument("--keep", type=Path, help="keep all files in this directory")
    options = parser.parse_args(arguments)
    transactions = options.transactions or (500_000 if options.long else 20_000)
    kills = options.kills if options.kills is not None else (5 if options.long else 2)
    with tempfile.TemporaryDirectory(prefix="captured-") as made:
        directory = options.keep or Path(made)
        directory.mkdir(parents=True, exist_ok=True)
        with CapturedDatabase(directory, options.engine) as database:
            is_right = run(database, transactions=transactions, kills=kills, limit_seconds=900 + transactions / 100)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
