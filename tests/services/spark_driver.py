"""A query in Spark as a program of its own, made to be killed: `python -m tests.services.spark_driver SETTINGS`.

    Kafka topics of Debezium's records -> Spark's connector -> orders LEFT JOIN cities -> PostgreSQL view + Kafka topic

Both tables may begin with the rows that a database holds now, which Spark reads over JDBC. SETTINGS is JSON, see `DriverRun`. The
program ends when all records are read and prints the outcome of the query as JSON, unless it kills itself just before or just
after it commits an epoch, or an output writes one.
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

from zset_join.core.errors import ZsetJoinError

__all__ = ["ROOT", "DriverRun", "main"]

_ENDS_WITHIN_SECONDS = 800.0
ROOT = Path(__file__).resolve().parents[2]
_ORDERS = pa.schema({"id": pa.int64(), "city": pa.int64(), "note": pa.string()})
_CITIES = pa.schema({"city": pa.int64(), "name": pa.string()})
_JDBC = {"driver": "org.postgresql.Driver"}


@dataclass(frozen=True, kw_only=True)
class DriverRun:
    """What the program does.

    Args:
        conninfo: of the database that has the view.
        servers: of Kafka.
        orders: topic of their records.
        cities: topic of theirs.
        output: the view, and the topic of its changes.
        directory: of the checkpoint.
        kill: what (commit, postgres, kafka), when (before, after) and the epoch in which the program kills itself; None: never.
        per_epoch: records of an epoch.
        execution: where the epochs run.
        baseline: begin with the tables `orders` and `cities` of that database; records that cannot be applied go aside, and the
            view is not verified, for the database itself has what it must be.
    """

    conninfo: str
    servers: str
    orders: str
    cities: str
    output: str
    directory: str
    kill: tuple[Literal["commit", "postgres", "kafka"], Literal["before", "after"], int] | None = None
    per_epoch: int = 4
    execution: Literal["executors", "driver"] = "executors"
    baseline: bool = False

    def outcome(self) -> tuple[int, dict[str, Any]]:
        """Run it to its end, and return how it ended and what it printed."""
        command = [sys.executable, "-m", "tests.services.spark_driver", json.dumps(asdict(self))]
        emitted, complained = Path(self.directory) / "said", Path(self.directory) / "complained"
        with (
            emitted.open("wb") as out,
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
            raise RuntimeError(f"the driver failed:\n{emitted.read_text()[-2000:]}{complained.read_text()[-4000:]}")
        return end, json.loads(emitted.read_text().splitlines()[-1]) if end == 0 else {}


def main() -> None:
    """Run the query."""
    from pyspark.errors import StreamingQueryException

    from tools.servers.maven_jars import POSTGRES_JDBC, SPARK_KAFKA, jars_of
    from zset_join.spark import changes, local_session

    run = DriverRun(**json.loads(sys.argv[1]))
    folders = [
        jars_of(artifacts, with_dependencies=False)
        for artifacts in ((SPARK_KAFKA, POSTGRES_JDBC) if run.baseline else (SPARK_KAFKA,))
    ]
    jars = sorted(str(path) for folder in folders for path in folder.glob("*.jar"))
    options = {"spark.jars": ",".join(jars), "spark.ui.enabled": "false"}
    session = local_session("spark_driver", cores=2, options=options)
    session.sparkContext.setLogLevel("OFF")
    if run.kill is not None:
        _kill_in(*run.kill)

    def table(name: str, topic: str, schema: pa.Schema, key: str) -> Any:
        options = {"kafka.bootstrap.servers": run.servers, "subscribe": topic, "startingOffsets": "earliest"}
        stream = session.readStream.format("kafka").options(**options, maxOffsetsPerTrigger=run.per_epoch).load()
        rows = session.read.jdbc(_jdbc_url(run.conninfo), name, properties=_JDBC) if run.baseline else None
        return changes(stream, format="debezium-json", name=name, schema=schema, keys=[key], baseline=rows)

    view = table("orders", run.orders, _ORDERS, "id").join(table("cities", run.cities, _CITIES, "city"), on="city", how="left")
    writer = view.writeStream.option("checkpointLocation", f"{run.directory}/checkpoint")
    if run.execution == "driver":
        writer = writer.options(execution="driver", retainInputLog=True)
    else:
        writer = writer.option("buckets", 2)
    writer = writer.option("localStateDir", f"{run.directory}/local").trigger(availableNow=True)
    writer = writer.option("onBadInput", "quarantine" if run.baseline else "error")
    writer = writer.to("postgres", conninfo=run.conninfo, table=run.output, key=["id"])
    writer = writer.to("kafka", config={"bootstrap.servers": run.servers}, topic=run.output, key=["id"])
    query: Any = None
    emitted: dict[str, Any] = {}
    try:
        query = writer.start()
        query.awaitTermination()
    except ZsetJoinError as error:
        emitted = {"code": error.code, "message": str(error)}
    except StreamingQueryException as error:
        emitted = {"message": str(error)}
    if not emitted:
        emitted = {"epoch": query.lastProgress and query.lastProgress["batchId"]}
        if run.execution == "driver" and not run.baseline:
            with writer.attach() as stored:
                emitted["verified"] = str(stored.verify())
        elif not run.baseline:
            emitted["verified"] = str(query.verify())
    sys.stdout.write(json.dumps(emitted) + "\n")


def _jdbc_url(conninfo: str) -> str:
    """Return the address of a database as JDBC writes it."""
    words = dict(word.split("=") for word in conninfo.split())
    return f"jdbc:postgresql://{words['host']}:{words['port']}/{words['dbname']}?user={words['user']}"


def _kill_in(what: str, when: str, epoch: int) -> None:
    """Let the program kill itself around the commit of an epoch, or around its writing."""
    from zset_join.checkpoint.checkpoint import Checkpoint
    from zset_join.sinks.kafka_topic import KafkaTopicSink
    from zset_join.sinks.postgres_view import PostgresViewSink

    owner: Any = {"commit": Checkpoint, "postgres": PostgresViewSink, "kafka": KafkaTopicSink}[what]
    method = "commit" if what == "commit" else "write"
    act = getattr(owner, method)

    def killed(self: Any, first: Any, *arguments: Any, **options: Any) -> Any:
        is_wanted = (first.epoch if what == "commit" else first) == epoch
        if is_wanted and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = act(self, first, *arguments, **options)
        if is_wanted:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    setattr(owner, method, killed)


if __name__ == "__main__":
    main()
