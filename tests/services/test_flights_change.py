"""The example that changes a view of real data, with PostgreSQL and Kafka as outputs, against a fresh build row by row."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.servers.kafka_broker import KafkaBroker
from tools.servers.postgres_server import PostgresServer

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("runner", ["process", pytest.param("spark", marks=pytest.mark.spark)])
def test_every_output_of_a_changed_view_equals_a_fresh_build(runner: str, kafka: KafkaBroker, postgres: PostgresServer) -> None:
    postgres.clear()
    topic = f"delays-{runner}"
    kafka.create_topic(topic)
    outputs = ["--postgres", postgres.conninfo, "--kafka", f"{kafka.servers}/{topic}"]
    # A process of its own: the example makes a session of Spark, and there is one per process.
    words = [sys.executable, "-m", "examples.flights_change", "--runner", runner, "--rows", "2000", "--epochs", "6", *outputs]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split(",")[0] for line in done.stdout.splitlines() if "equal" in line] == [
        "DuckDB: equal",
        "PostgreSQL: equal",
        "Kafka: equal",
    ]
