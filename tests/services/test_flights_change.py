"""The example that changes a view of real data, with PostgreSQL and Kafka as outputs, against a fresh build row by row."""

from __future__ import annotations

import pytest

from examples.flights_change import main
from tools.servers.kafka_broker import KafkaBroker
from tools.servers.postgres_server import PostgresServer


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("runner", ["process", pytest.param("spark", marks=pytest.mark.spark)])
def test_every_output_of_a_changed_view_equals_a_fresh_build(
    runner: str, kafka: KafkaBroker, postgres: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    postgres.clear()
    topic = f"delays-{runner}"
    kafka.create_topic(topic)
    outputs = ["--postgres", postgres.conninfo, "--kafka", f"{kafka.servers}/{topic}"]
    code = main(["--runner", runner, "--rows", "2000", "--epochs", "6", *outputs])
    printed = capsys.readouterr().out

    assert code == 0, printed
    assert [line.split(",")[0] for line in printed.splitlines() if "equal" in line] == [
        "DuckDB: equal",
        "PostgreSQL: equal",
        "Kafka: equal",
    ]
