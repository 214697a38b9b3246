"""A real Debezium in Kafka Connect, standalone, that writes the changes of a PostgreSQL database to a Kafka broker."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tools.servers.kafka_broker import KafkaBroker
from tools.servers.maven_jars import jars_of
from tools.servers.ports import free_port
from tools.servers.postgres_server import PostgresServer

__all__ = ["DebeziumConnect"]

_ARTIFACTS = (
    "org.apache.kafka:connect-runtime:4.4.0",
    "org.apache.kafka:connect-json:4.4.0",
    "io.debezium:debezium-connector-postgres:3.7.0.Final",
    "org.slf4j:slf4j-simple:1.7.36",
)
_STARTS_WITHIN_SECONDS = 300.0
_WORKER = """
bootstrap.servers={servers}
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
key.converter.schemas.enable=false
value.converter.schemas.enable=false
key.converter.replace.null.with.default=false
value.converter.replace.null.with.default=false
offset.storage.file.filename={offsets}
offset.flush.interval.ms=1000
plugin.discovery=only_scan
listeners=http://127.0.0.1:{port}
"""
_CONNECTOR = """
name=shop
connector.class=io.debezium.connector.postgresql.PostgresConnector
plugin.name=pgoutput
database.hostname=127.0.0.1
database.port={port}
database.user=postgres
database.password=none
database.dbname=postgres
topic.prefix=shop
table.include.list={tables}
skipped.operations=none
publication.autocreate.mode=filtered
slot.name=debezium
snapshot.mode={snapshot}
retriable.restart.connector.wait.ms=1000
poll.interval.ms=50
"""


class DebeziumConnect:
    """Run Kafka Connect with one connector; the topics are `shop.public.TABLE`."""

    def __init__(
        self,
        directory: Path,
        postgres: PostgresServer,
        kafka: KafkaBroker,
        tables: Sequence[str],
        *,
        snapshot: str = "initial",
    ) -> None:
        self.directory = directory
        self._postgres = postgres
        jars = jars_of(_ARTIFACTS)
        directory.mkdir(parents=True, exist_ok=True)
        worker = _WORKER.format(servers=kafka.servers, offsets=directory / "offsets", port=free_port())
        connector = _CONNECTOR.format(port=postgres.port, tables=",".join(tables), snapshot=snapshot)
        (directory / "worker.properties").write_text(worker, encoding="utf-8")
        (directory / "connector.properties").write_text(connector, encoding="utf-8")
        self._command = [
            "java",
            "-Xmx256m",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            f"{jars}/*",
            "org.apache.kafka.connect.cli.ConnectStandalone",
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start, and wait until it streams.

        Raises:
            RuntimeError: it does not; with the end of its log.
        """
        files = [str(self.directory / name) for name in ("worker.properties", "connector.properties")]
        with (self.directory / "connect.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*self._command, *files], stdout=log, stderr=log, env={**os.environ, "LC_ALL": "C"}
            )
        until = time.monotonic() + _STARTS_WITHIN_SECONDS
        while not self._postgres.execute("SELECT FROM pg_replication_slots WHERE slot_name = 'debezium' AND active"):
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"Debezium did not start:\n{self._log()[-4000:]}")
            time.sleep(0.2)
        return self

    def stop(self) -> None:
        """Stop it."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)

    def _log(self) -> str:
        return (self.directory / "connect.log").read_text(encoding="utf-8", errors="replace")
