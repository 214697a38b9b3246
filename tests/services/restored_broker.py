"""A broker of its own whose files can be set back, as from a backup."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from tools.servers.kafka_broker import KafkaBroker


class RestoredBroker:
    """A Kafka broker, and a copy of its files."""

    def __init__(self, kafka: KafkaBroker) -> None:
        self.kafka = kafka
        self._kept = kafka.directory.parent / "kept"

    def save(self) -> None:
        """Copy its files."""
        self.kafka.stop()
        shutil.copytree(self.kafka.directory / "data", self._kept)
        self.kafka.start()

    def restore(self) -> None:
        """Set it back to the copy."""
        self.kafka.stop()
        shutil.rmtree(self.kafka.directory / "data")
        shutil.copytree(self._kept, self.kafka.directory / "data")
        self.kafka.start()

    def restart(self) -> None:
        """Stop and start it; it leads its topics in a new epoch then."""
        self.kafka.stop()
        self.kafka.start()


@contextlib.contextmanager
def restored_broker(directory: Path) -> Iterator[RestoredBroker]:
    """Run one in a directory."""
    kafka = KafkaBroker(directory)
    try:
        yield RestoredBroker(kafka.start())
    finally:
        kafka.stop()
