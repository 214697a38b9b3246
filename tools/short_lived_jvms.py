"""Options of the JVMs that tests start, and an archive of the classes that Spark loads.

    python -m tools.short_lived_jvms

The archive is in the virtual environment; `make setup` writes it in about 20 s. A session that runs one small stream costs
5.8 CPU s of its JVM with it and 10.3 without. A JVM of another version, or with other JARs, ignores it. Without Java nothing
is written, and the tests run as they do without an archive.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["ARCHIVE", "PLAIN_FILES", "SHORT_LIVED", "main", "use_short_lived_jvms"]

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Such a JVM ends before its second compiler and parallel collector have paid for themselves: on two busy cores it spent 67 s
on the 48 tests of test_row_steps.py with this, and 123 s on the first 16 of them without."""
PLAIN_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""A value of `spark.sql.streaming.checkpointFileManagerClass`: what keeps Spark's own checkpoint. The default starts 10
processes, `readlink` and `chmod`, for every file of it: 40 in an epoch."""
_ROOM = "-XX:ReservedCodeCacheSize=240m"
"""What Spark generates fills the 48 MB of code that a JVM with one compiler keeps; a thread then sweeps them all the time."""
_SHORT_PLANS = "-Dspark.sql.ui.explainMode=simple"
"""Spark writes every plan for its pages, which nobody opens here, and by default in its longest form."""
_OPTIONS = "SPARK_SUBMIT_OPTS"  # options of every JVM that spark-submit starts, which PySpark starts its own with
_PROGRAM = """
import sys
from pyspark.sql import SparkSession, functions as F, Window

directory = sys.argv[1]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.connect.grpc.binding.address", "127.0.0.1")
    .config("spark.connect.grpc.binding.port", 0)
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
    .config("spark.sql.shuffle.partitions", 2)
    .config("spark.sql.warehouse.dir", directory + "/warehouse")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
rows = spark.range(1000).select((F.col("id") % 7).alias("key"), F.col("id").cast("string").alias("text"))
rows.groupBy("key").agg(F.count("*"), F.max("text")).join(rows, "key").toArrow()
numbered = rows.withColumn("n", F.row_number().over(Window.partitionBy("key").orderBy("text")))
numbered.mapInArrow(lambda batches: batches, "key long, text string, n int").toArrow()
rows.write.parquet(directory + "/rows")
rows.write.json(directory + "/lines")
lines = spark.read.schema("key long, text string").json(directory + "/lines")
lines.selectExpr("from_json(to_json(struct(*)), 'key long')").toArrow()
stream = spark.readStream.schema("key long, text string").parquet(directory + "/rows")
query = (
    stream.writeStream.foreachBatch(lambda batch, number: batch.persist().toArrow().num_rows)
    .option("checkpointLocation", directory + "/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
spark.stop()
"""


def use_short_lived_jvms() -> None:
    """Give these options, and the archive if there is one, to the JVMs that this process and its children start."""
    shared = f" -XX:SharedArchiveFile={ARCHIVE} -Xlog:cds=off" if ARCHIVE.exists() else ""
    if SHORT_LIVED not in os.environ.get(_OPTIONS, ""):
        os.environ[_OPTIONS] = f"{os.environ.get(_OPTIONS, '')} {SHORT_LIVED} {_ROOM} {_SHORT_PLANS}{shared}".strip()


def main() -> int:
    """Write the archive; print a line where there is no Java, and return 0 then as well."""
    ARCHIVE.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        written = ARCHIVE.with_suffix(".new")
        environment = {
            **os.environ,
            _OPTIONS: f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={written} -Xlog:cds=off -Xlog:cds+dynamic=off",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, directory], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode or not written.exists():
            print(f"no archive of Spark's classes; tests start it without: {done.stderr.strip().splitlines()[-1:]}")
            return 0
        written.replace(ARCHIVE)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
