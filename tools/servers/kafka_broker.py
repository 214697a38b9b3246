"""A real Kafka broker on loopback: one KRaft node from Maven's jars, without root."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tools.servers.maven_jars import jars_of
from tools.servers.ports import free_port
from tools.short_lived_jvms import SHORT_LIVED

__all__ = ["KafkaBroker"]

_ARTIFACTS = ("org.apache.kafka:kafka_2.13:4.4.0", "org.slf4j:slf4j-simple:1.7.36")
_STARTS_WITHIN_SECONDS = 180.0
_STARTS = 3
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={logs}
num.partitions=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
"""


class KafkaBroker:
    """Run a broker in a directory; its topics stay there when it is stopped and started again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port, self._controller = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._jars = jars_of(_ARTIFACTS)

    @property
    def servers(self) -> str:
        """Return the address that clients are given."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Start, and wait until it answers; a broker that ends at once is started again, three times in all.

        Raises:
            RuntimeError: it does not; with the end of its log.
        """
        properties = self.directory / "server.properties"
        if not properties.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            text = _PROPERTIES.format(port=self.port, controller=self._controller, logs=self.directory / "data")
            properties.write_text(text, encoding="utf-8")
            self._java("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", str(properties))
        process, starts = self._started(properties), 1
        until = time.monotonic() + _STARTS_WITHIN_SECONDS
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        while True:
            try:
                admin.list_topics(timeout=1.0)
                return self
            except KafkaException as error:
                has_ended = process.poll() is not None
                if (has_ended and starts == _STARTS) or time.monotonic() > until:
                    raise RuntimeError(f"the Kafka broker did not start: {error}\n{self._tail()}") from error
                if has_ended:
                    process, starts = self._started(properties), starts + 1

    def stop(self) -> None:
        """Stop as an administrator would."""
        self._end(kill=False)

    def kill(self) -> None:
        """End it at once."""
        self._end(kill=True)

    def create_topic(
        self, name: str, *, partitions: int = 1, compacted: bool = False, max_message_bytes: int | None = None
    ) -> None:
        """Make a topic."""
        config = {"cleanup.policy": "compact"} if compacted else {}
        config |= {} if max_message_bytes is None else {"max.message.bytes": str(max_message_bytes)}
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        for made in admin.create_topics([NewTopic(name, partitions, 1, config=config)]).values():
            made.result(30)
        self._until(lambda: name in admin.list_topics(timeout=30).topics, f"topic {name} is not there after it was made")

    def delete_topic(self, name: str) -> None:
        """Remove a topic, and wait until it is gone."""
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        for gone in admin.delete_topics([name]).values():
            gone.result(30)
        self._until(lambda: name not in admin.list_topics(timeout=30).topics, f"topic {name} is still there")

    def delete_records(self, name: str, *, before: int) -> None:
        """Remove records of partition 0 as retention does, and wait until the broker's log begins there.

        Args:
            name: of the topic.
            before: the offset that becomes the first one.
        """
        partition = TopicPartition(name, 0, before)
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        for removed in admin.delete_records([partition], operation_timeout=120).values():
            removed.result(120)

        def log_start() -> int:
            earliest = admin.list_offsets({TopicPartition(name, 0): OffsetSpec.earliest()}, request_timeout=30)
            return int(next(iter(earliest.values())).result(30).offset)

        self._until(lambda: log_start() == before, f"the log of topic {name} does not begin at offset {before}")

    def ensure_topic(self, name: str) -> None:
        """Make a topic unless it is present."""
        if name not in AdminClient({"bootstrap.servers": self.servers, "log_level": 0}).list_topics(timeout=30).topics:
            self.create_topic(name)

    def _started(self, properties: Path) -> subprocess.Popen[bytes]:
        with (self.directory / "broker.log").open("ab") as log:
            quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
            command = [
                "java",
                *SHORT_LIVED.split(),
                "-Xmx256m",
                quiet,
                "-cp",
                f"{self._jars}/*",
                "kafka.Kafka",
                str(properties),
            ]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        return self._process

    def _java(self, *arguments: str) -> None:
        command = ["java", *SHORT_LIVED.split(), "-cp", f"{self._jars}/*", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{arguments[0]} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")

    def _until(self, is_so: Callable[[], bool], otherwise: str) -> None:
        until = time.monotonic() + 30.0
        while not is_so():
            if time.monotonic() > until:
                raise RuntimeError(otherwise)
            time.sleep(0.05)

    def _end(self, *, kill: bool) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        (process.kill if kill else process.terminate)()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)

    def _tail(self) -> str:
        return (self.directory / "broker.log").read_text(encoding="utf-8", errors="replace")[-3000:]
