"""A query in Spark as a program of its own, made to be killed: `python -m tests.services.spark_driver SETTINGS`.

    Kafka topics of Debezium's records -> Spark's connector -> orders LEFT JOIN cities -> PostgreSQL view + Kafka topic

SETTINGS is JSON, see `DriverRun`. The program ends when all records are read and says what became of the query as JSON, unless it
kills itself just before or just after an output writes an epoch.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from zset_join.errors import ZsetJoinError

__all__ = ["ROOT", "DriverRun", "main"]

_ENDS_WITHIN_SECONDS = 300.0
ROOT = Path(__file__).resolve().parents[2]
_ORDERS = pa.schema({"id": pa.int64(), "city": pa.int64(), "note": pa.string()})
_CITIES = pa.schema({"city": pa.int64(), "name": pa.string()})


@dataclass(frozen=True, kw_only=True)
class DriverRun:
    """Say what the program does.

    Args:
        conninfo: of the database that has the view.
        servers: of Kafka.
        orders: topic of their records.
        cities: topic of theirs.
        output: the view, and the topic of its changes.
        directory: of the checkpoint.
        kill: output (postgres, kafka), when (before, after) and the epoch in which the program kills itself; None: never.
        per_epoch: records of an epoch.
    """

    conninfo: str
    servers: str
    orders: str
    cities: str
    output: str
    directory: str
    kill: tuple[Literal["postgres", "kafka"], Literal["before", "after"], int] | None = None
    per_epoch: int = 4

    def outcome(self) -> tuple[int, dict[str, Any]]:
        """Run it to its end, and return how it ended and what it said."""
        command = [sys.executable, "-m", "tests.services.spark_driver", json.dumps(asdict(self))]
        said, complained = Path(self.directory) / "said", Path(self.directory) / "complained"
        with (
            said.open("wb") as out,
            complained.open("wb") as errors,
        ):  # files: a killed driver leaves a JVM with its pipes behind
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                start_new_session=True,
            )
            try:
                end = process.wait(_ENDS_WITHIN_SECONDS)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if end not in (0, -signal.SIGKILL):
            raise RuntimeError(f"the driver failed:\n{said.read_text()[-2000:]}{complained.read_text()[-4000:]}")
        return end, json.loads(said.read_text().splitlines()[-1]) if end == 0 else {}


def main() -> None:
    """Run the query."""
    from pyspark.errors import StreamingQueryException

    from tools.servers.maven_jars import SPARK_KAFKA, jars_of
    from zset_join.spark import changes, local_session

    run = DriverRun(**json.loads(sys.argv[1]))
    jars = sorted(map(str, jars_of(SPARK_KAFKA, with_dependencies=False).glob("*.jar")))
    session = local_session("spark_driver", cores=2, options={"spark.jars": ",".join(jars), "spark.ui.enabled": "false"})
    session.sparkContext.setLogLevel("OFF")
    if run.kill is not None:
        _kill_in(*run.kill)

    def table(name: str, topic: str, schema: pa.Schema, key: str) -> Any:
        options = {"kafka.bootstrap.servers": run.servers, "subscribe": topic, "startingOffsets": "earliest"}
        stream = session.readStream.format("kafka").options(**options, maxOffsetsPerTrigger=run.per_epoch).load()
        return changes(stream, format="debezium-json", name=name, schema=schema, keys=[key])

    view = table("orders", run.orders, _ORDERS, "id").join(table("cities", run.cities, _CITIES, "city"), on="city", how="left")
    writer = view.writeStream.option("checkpointLocation", f"{run.directory}/checkpoint").option("buckets", 2)
    writer = writer.option("localStateDir", f"{run.directory}/local").trigger(availableNow=True)
    writer = writer.toPostgres(run.conninfo, run.output, key=["id"])
    writer = writer.toKafka({"bootstrap.servers": run.servers}, run.output, key=["id"])
    query: Any = None
    said: dict[str, Any] = {}
    try:
        query = writer.start()
        query.awaitTermination()
    except ZsetJoinError as error:
        said = {"code": error.code, "message": str(error)}
    except StreamingQueryException as error:
        said = {"message": str(error)}
    told = said or {"epoch": query.lastProgress and query.lastProgress["batchId"], "verified": str(query.verify())}
    sys.stdout.write(json.dumps(told) + "\n")


def _kill_in(output: str, when: str, epoch: int) -> None:
    """Let the program kill itself around the writing of an epoch."""
    from zset_join.sinks.kafka_topic import KafkaTopicSink
    from zset_join.sinks.postgres_view import PostgresViewSink

    sink: Any = {"postgres": PostgresViewSink, "kafka": KafkaTopicSink}[output]
    write = sink.write

    def killed(self: Any, number: int, *arguments: Any, **options: Any) -> Any:
        if number == epoch and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = write(self, number, *arguments, **options)
        if number == epoch:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    sink.write = killed


if __name__ == "__main__":
    main()
