"""Follow two tables of a database: PostgreSQL -> Debezium -> Kafka -> zset_join -> a view in PostgreSQL and a Kafka topic.

    python -m examples.cdc_demo [--engine local|spark] [--transactions N] [--keep DIR]

Everything is real, and started on loopback without root: a PostgreSQL server, a Kafka broker, and Debezium in Kafka Connect.
While an application commits random transactions (see `cdc_source`), a driver (see `cdc_driver`) joins the two changing tables
and groups them. At the end the view, and what a compacted topic keeps, must equal the same SQL query *in the source database*.
Exit code 0 only when both are equal.

Needs Java 17 or newer, Maven 3.8 or newer to bring Kafka and Debezium once, and the packages of `zset-join[services,spark]`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import psycopg
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from examples.cdc_driver import TOPIC, VIEW, DriverSettings, Engine
from examples.cdc_source import CITY_OF_THE_END, QUERY, TABLES, write_the_end, write_transactions
from tools.servers.debezium_connect import DebeziumConnect
from tools.servers.kafka_broker import KafkaBroker
from tools.servers.postgres_server import PostgresServer

__all__ = ["CapturedDatabase", "Writer", "main", "topic_rows", "view_rows"]

ROOT = Path(__file__).resolve().parent.parent
_CATCHES_UP_WITHIN_SECONDS = 900.0
_ENDS_WITHIN_SECONDS = 120.0
_PRINTS_EVERY_SECONDS = 5.0
_PER_SECOND = 800.0  # slow enough that the query starts, and Debezium makes its snapshot, while rows change
_COLUMNS = ("city", "orders", "total", "notes", "last_note", "first_about")


class CapturedDatabase:
    """Run the database, Debezium, Kafka and a driver over them; a context manager.

    Args:
        directory: where all of them keep their files.
        engine: of the driver.
    """

    def __init__(self, directory: Path, engine: Engine) -> None:
        self.directory = directory
        self.postgres = PostgresServer(directory / "postgres")
        self.kafka = KafkaBroker(directory / "kafka")
        self.connect: DebeziumConnect | None = None
        self._engine: Engine = engine
        self._driver: subprocess.Popen[bytes] | None = None
        self.ended_by_itself = 0

    def __enter__(self) -> CapturedDatabase:
        try:
            self.postgres.start().execute(*TABLES)
            self.kafka.start()
            for table in ("orders", "customers"):
                self.kafka.create_topic(f"shop.public.{table}")
            self.kafka.create_topic(TOPIC, compacted=True)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def capture(self) -> None:
        """Start Debezium; it begins with a snapshot of both tables."""
        tables = ["public.orders", "public.customers"]
        self.connect = DebeziumConnect(self.directory / "connect", self.postgres, self.kafka, tables)
        self.connect.start()

    def start_driver(self) -> None:
        """Start the query, in a process of its own."""
        with (self.directory / "driver.log").open("ab") as log:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            command = self._settings.command
            self._driver = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=environment)

    def kill_driver(self) -> None:
        """End the query at once, as a machine that fails does."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.kill()
            driver.wait(60)

    def mind_driver(self) -> None:
        """Start the query again where it has ended by itself, as a supervisor does; its log has the reason."""
        if self._driver is None or self._driver.poll() is not None:
            self.ended_by_itself += 1
            if self.ended_by_itself > 40:
                raise RuntimeError(f"the driver ends again and again:\n{self.driver_log()[-4000:]}")
            time.sleep(0.5)
            self.start_driver()

    def finish_driver(self) -> None:
        """Let the query end after its epoch.

        Raises:
            RuntimeError: it does not; with the end of its log.
        """
        if self._driver is None:
            return
        (self.directory / "stop").touch()
        try:
            self._driver.wait(_ENDS_WITHIN_SECONDS)
        except subprocess.TimeoutExpired as error:
            self._driver.send_signal(signal.SIGQUIT)  # it prints what each thread does
            time.sleep(1.0)
            raise RuntimeError(f"the driver does not end:\n{self.driver_log()[-8000:]}") from error
        self._driver = None

    def driver_log(self) -> str:
        """Return the driver's output."""
        path = self.directory / "driver.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def stop(self) -> None:
        """End everything."""
        self.kill_driver()
        for server in (self.connect, self.kafka, self.postgres):
            if server is not None:
                server.stop()

    @property
    def _settings(self) -> DriverSettings:
        return DriverSettings(
            engine=self._engine,
            conninfo=self.postgres.conninfo,
            servers=self.kafka.servers,
            directory=str(self.directory / "driver"),
            stop=str(self.directory / "stop"),
        )


@dataclass
class Writer:
    """Commit transactions in a thread of its own.

    Args:
        conninfo: of the database.
        transactions: how many.
        per_second: the most of them in a second.
        seed: of the choices.
    """

    conninfo: str
    transactions: int
    per_second: float = _PER_SECOND
    seed: int = 7
    committed: int = 0
    seconds: float = 0.0
    lost_connections: int = 0
    errors: list[BaseException] = field(default_factory=list)
    captured: threading.Event = field(default_factory=threading.Event)
    """Set once Debezium has its snapshot: before, no table is emptied."""

    def start(self) -> Writer:
        """Begin."""
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()
        return self

    @property
    def is_writing(self) -> bool:
        """Return whether it is under way."""
        return self._thread.is_alive()

    def check(self) -> None:
        """Raise what ended it, if something did."""
        if self.errors:
            raise self.errors[0]

    def _write(self) -> None:
        started = time.monotonic()
        try:
            self.lost_connections = write_transactions(
                self.conninfo,
                self.transactions,
                seed=self.seed,
                report=self._take,
                may_truncate=self.captured.is_set,
                per_second=self.per_second,
            )
        except BaseException as error:  # noqa: BLE001 - raised again by check, in the thread that waits
            self.errors.append(error)
        self.seconds = time.monotonic() - started

    def _take(self, number: int) -> None:
        self.committed = number


def view_rows(conninfo: str) -> list[tuple[Any, ...]]:
    """Return the view in PostgreSQL; nothing where it is absent yet."""
    with psycopg.connect(conninfo) as connection:
        if connection.execute("SELECT to_regclass(%s)", [VIEW]).fetchall() == [(None,)]:
            return []
        return _ordered(connection.execute(f"SELECT {', '.join(_COLUMNS)} FROM {VIEW}".encode()).fetchall())


def source_rows(conninfo: str) -> list[tuple[Any, ...]]:
    """Return what the view must be."""
    with psycopg.connect(conninfo) as connection:
        return _ordered(connection.execute(QUERY.encode()).fetchall())


def topic_rows(servers: str) -> list[tuple[Any, ...]]:
    """Return the newest row of every key of the topic, as a reader of committed records sees it."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "cdc_demo",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    newest: dict[bytes | None, bytes | None] = {}
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        while True:
            message = consumer.poll(30.0)
            error = None if message is None else message.error()
            if message is None or (error is not None and error.code() != KafkaError._PARTITION_EOF):
                raise KafkaException(error)
            if error is not None:
                break
            newest[message.key()] = message.value()
    finally:
        consumer.close()
    rows = [json.loads(value) for value in newest.values() if value is not None]
    return _ordered([tuple({**row, "total": _decimal(row["total"])}[name] for name in _COLUMNS) for row in rows])


def caught_up(database: CapturedDatabase) -> bool:
    """Return whether the last order has come through."""
    return any(row[0] == CITY_OF_THE_END for row in view_rows(database.postgres.conninfo))


def differences(expected: Sequence[tuple[Any, ...]], found: Sequence[tuple[Any, ...]]) -> list[str]:
    """Return the rows in which two tables differ, shortened."""
    only = [("missing", row) for row in expected if row not in found] + [("extra", row) for row in found if row not in expected]
    return [f"{what}: {tuple(str(value)[:40] for value in row)}" for what, row in only]


def compare(database: CapturedDatabase, write: Callable[[str], None]) -> bool:
    """Compare both outputs with the query in the source database."""
    expected = source_rows(database.postgres.conninfo)
    equal = bool(expected)
    found = {"view in PostgreSQL": view_rows(database.postgres.conninfo), "Kafka topic": topic_rows(database.kafka.servers)}
    for name, rows in found.items():
        wrong = differences(expected, rows)
        equal = equal and not wrong
        write(f"{name}: {len(rows)} rows, {'equal to the query in the source database' if not wrong else 'DIFFERENT'}")
        for line in wrong[:10]:
            write(f"  {line}")
    return equal


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit code."""
    parser = argparse.ArgumentParser(prog="cdc_demo", description="follow two tables of a PostgreSQL database")
    parser.add_argument("--engine", choices=get_args(Engine), default="spark", help="where the query runs (spark)")
    parser.add_argument("--transactions", type=int, default=50_000, help="random transactions, 10 or more (50000)")
    parser.add_argument("--keep", metavar="DIR", help="keep all files in this new directory")
    options = parser.parse_args(arguments)
    if options.transactions < 10:
        parser.error("--transactions must be 10 or more")
    try:
        with _directory(options.keep) as directory, CapturedDatabase(directory, options.engine) as database:
            return _run(database, options.transactions)
    except (RuntimeError, FileExistsError) as error:
        print(f"cdc_demo: {error}")
        return 2


def _run(database: CapturedDatabase, transactions: int) -> int:
    started = time.monotonic()
    print(f"PostgreSQL and Kafka run; {transactions:,} transactions begin, and Debezium and the query start meanwhile ...")
    database.start_driver()
    writer = Writer(database.postgres.conninfo, transactions).start()
    database.capture()
    writer.captured.set()
    print(f"[{time.monotonic() - started:5.1f} s] Debezium streams; {writer.committed:,} transactions are committed")
    printed, the_end = time.monotonic(), False
    until = time.monotonic() + _CATCHES_UP_WITHIN_SECONDS
    while not the_end or not caught_up(database):
        writer.check()
        database.mind_driver()
        if not the_end and not writer.is_writing:
            write_the_end(database.postgres.conninfo)
            the_end = True
            print(f"[{time.monotonic() - started:5.1f} s] all {writer.committed:,} are committed, in {writer.seconds:.1f} s")
        if time.monotonic() > until:
            raise RuntimeError(f"the view did not catch up:\n{database.driver_log()[-4000:]}")
        if time.monotonic() - printed > _PRINTS_EVERY_SECONDS:
            printed = time.monotonic()
            view = _shown(view_rows(database.postgres.conninfo))
            print(f"[{printed - started:5.1f} s] {writer.committed:,} transactions; {view}")
        time.sleep(0.1)
    print(f"[{time.monotonic() - started:5.1f} s] the last order has come through; comparing ...")
    database.finish_driver()
    return 0 if compare(database, print) and not database.ended_by_itself else 1


def _shown(rows: Sequence[tuple[Any, ...]]) -> str:
    return f"the view has {len(rows)} cities with {sum(row[1] for row in rows):,} orders"


def _ordered(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)


def _decimal(value: Any) -> Decimal | None:
    return None if value is None else Decimal(value)


@contextlib.contextmanager
def _directory(keep: str | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="cdc_demo-") as made:
            yield Path(made)
        return
    directory = Path(keep).absolute()
    if directory.exists() and any(directory.iterdir()):
        raise FileExistsError(f"{directory}: the directory has files in it; name a new one")
    directory.mkdir(parents=True, exist_ok=True)
    yield directory


if __name__ == "__main__":
    raise SystemExit(main())
