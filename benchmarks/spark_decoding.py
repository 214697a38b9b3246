"""What does it cost to read Debezium's records inside Spark, beside the same rows as flat JSON?

    python -m benchmarks.spark_decoding [--rows 200000] [--runs 5] [--taken]

Both begin with a column of texts in Spark's memory and end in a sink that takes every column and keeps none. The rows are those
of an orders table: a number, another one, a decimal as text, a text of 40 characters, an instant in microseconds and a float.
Flat: `from_json` with the types of the table. Debezium: updates, as `changes(df, format="debezium-json")` prepares a stream for
executors, with weight, order and what is bad; a record is 2.7 times as long as its row. All by turns, three runs to warm up.
It prints seconds of CPU of this process and those below it, JVM and Python workers (min, median, max), and the ratios.
With `--texts` also the reading by Spark, which is left for sessions without DuckDB.

The same twice more, as queries on the driver take them: rows arrive by `toArrow()` and are taken apart. Spark has read
the columns of flat JSON; records of Debezium are read by this process, see `zset_join.runners.spark.driver.record_decoder`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from benchmarks.nexmark_spark import cpu_seconds
from zset_join.changelog.formats import RecordOptions
from zset_join.runners.spark.driver.collected import collected_layout, united_rows
from zset_join.runners.spark.planning.source_stream import SourceStream
from zset_join.runners.spark.rows.json_records import read_records
from zset_join.runners.spark.rows.record_streams import RecordTable, control_of, records_as_rows
from zset_join.runners.spark.rows.row_reading import CONTROL, RAW, REJECT, WEIGHT, RowReading
from zset_join.runners.spark.rows.schemas import arrow_schema
from zset_join.runners.spark.rows.undecoded_records import RecordsRead, UndecodedRecords, collected_records
from zset_join.spark import local_session

__all__ = ["main"]

_WARM_UPS = 3

_FLAT = "id BIGINT, customer_id BIGINT, total STRING, note STRING, created_at BIGINT, weight DOUBLE"
_OPTIONS = RecordOptions(decimals="text", time_unit="us")
_TABLE = pa.schema(
    {
        "id": pa.int64(),
        "customer_id": pa.int64(),
        "total": pa.decimal128(12, 2),
        "note": pa.string(),
        "created_at": pa.timestamp("us"),
        "weight": pa.float64(),
    }
)


def _records(rows: int) -> pa.Table:
    """Return the same rows as flat JSON and as Debezium's records."""
    flat, values, keys = [], [], []
    for number in range(rows):
        row = {
            "id": number,
            "customer_id": number * 7919 % 1000,
            "total": f"{number % 100000}.{number % 100:02d}",
            "note": f"a note about order number {number:016d}",
            "created_at": 1_767_323_045_678_901,
            "weight": number / 7,
        }
        source = {"version": "3.7.0.Final", "connector": "postgresql", "name": "shop", "ts_ms": 1, "ts_us": 1000, "lsn": number}
        source |= {"snapshot": "false", "db": "shop", "schema": "public", "table": "orders", "txId": number, "sequence": "[]"}
        flat.append(json.dumps(row))
        values.append(json.dumps({"before": None, "after": row, "source": source, "op": "u", "ts_ms": 2, "ts_us": 2000}))
        keys.append(json.dumps({"id": number}))
    return pa.table({"flat": flat, "key": keys, "value": values, "offset": pa.array(range(rows), pa.int64())})


def _flat(records: DataFrame) -> DataFrame:
    """Return the rows that Spark reads from flat JSON, in the types of the table."""
    parsed = records.selectExpr(f"from_json(flat, '{_FLAT}') AS row").select("row.*")
    made = {
        "total": "CAST(total AS decimal(12, 2))",
        "created_at": "timestampadd(MICROSECOND, created_at, TIMESTAMP_NTZ'1970-01-01 00:00:00')",
    }
    return parsed.selectExpr(*(f"{made.get(name, name)} AS {name}" for name in parsed.columns))


def _by_spark(records: DataFrame) -> DataFrame:
    """Return the lines that Spark itself reads of the records, as texts."""
    options = replace(_OPTIONS, metadata={"position": "position", "offset": "offset"})
    return read_records(records.drop("flat"), "debezium-json", _TABLE, ["id"], options, source="orders")


def _debezium(records: DataFrame) -> SourceStream:
    """Return the rows that `changes` prepares, as a stream of them would be described."""
    table = RecordTable(schema=_TABLE, keys=("id",))
    found = records_as_rows(records.drop("flat"), "orders", "debezium-json", table, _OPTIONS)
    reading = RowReading(
        mode="upsert",
        columns=tuple(_TABLE.names),
        keys=("id",),
        sequence=found.order,
        operation=found.operation_of_parts,
        control=control_of(found, table, _TABLE.names, hidden=2),
    )
    prepared = reading.prepare(found.rows)
    schema = arrow_schema(prepared.drop(WEIGHT, REJECT, RAW).schema, relation="orders")
    read = RecordsRead(
        name="orders",
        format_name="debezium-json",
        table=_TABLE,
        keys=("id",),
        options=found.read,
        schema=schema,
        order=found.order_of,
        control=CONTROL,
    )
    collected = collected_records(records.drop("flat"))
    assert collected is not None
    return SourceStream(
        name="orders",
        mode="upsert",
        columns=tuple(_TABLE.names),
        keys=("id",),
        sequence_by=tuple(found.order_of),
        hidden=tuple(reading.hidden),
        dataframe=records,
        prepared=prepared,
        schema=schema,
        may_reject=True,
        control=CONTROL,
        undecoded=UndecodedRecords(rows=collected[0], schema=collected[1], read=read, prepared=prepared),
    )


def _flat_stream(records: DataFrame) -> SourceStream:
    """Return the rows of flat JSON, each one live."""
    rows = _flat(records)
    schema = arrow_schema(rows.schema, relation="orders")
    prepared = RowReading(mode="append", columns=tuple(rows.columns)).prepare(rows)
    return SourceStream(
        name="orders",
        mode="append",
        columns=tuple(rows.columns),
        keys=(),
        sequence_by=(),
        hidden=(),
        dataframe=records,
        prepared=prepared,
        schema=schema,
    )


def _into_nothing(rows: DataFrame) -> Callable[[], None]:
    return lambda: rows.write.format("noop").mode("overwrite").save()


def _taken(stream: SourceStream, count: int) -> Callable[[], None]:
    layout = collected_layout({"orders": stream})
    rows = united_rows(layout, {"orders": stream.collected})

    def take() -> None:
        taken = layout.parted(rows.toArrow())["orders"]
        if (len(taken.delta), len(taken.rejected)) != (count, 0):
            raise RuntimeError(f"{len(taken.delta)} rows and {len(taken.rejected)} rejected ones, of {count}")

    return take


def _seconds(runs: Mapping[str, Callable[[], None]], count: int) -> dict[str, list[float]]:
    """Return the CPU seconds of the whole tree of processes of each run, by turns; after some runs that do not count."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(count + _WARM_UPS):
        for name, run in runs.items():
            before = cpu_seconds()
            run()
            found[name].append(cpu_seconds() - before)
    return {name: seconds[_WARM_UPS:] for name, seconds in found.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.spark_decoding", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--explain", action="store_true", help="print the plan")
    parser.add_argument("--texts", action="store_true", help="also what Spark reads of the records itself")
    parser.add_argument("--taken", action="store_true", help="only what queries on the driver take")
    given = parser.parse_args(arguments)
    session = local_session("spark_decoding", cores=1, options={"spark.ui.enabled": "false"})
    session.sparkContext.setLogLevel("ERROR")
    with TemporaryDirectory() as place:
        pq.write_table(_records(given.rows), Path(place) / "records.parquet")
        records = session.read.parquet(place).cache()
        records.count()
        flat, debezium = _flat_stream(records), _debezium(records)
        if given.explain:
            debezium.prepared.explain(True)
        plans = {"flat": _flat(records), "debezium": debezium.prepared}
        if given.texts:
            plans["debezium, by Spark"] = _by_spark(records)
        runs = {name: _into_nothing(rows) for name, rows in plans.items()} if not given.taken else {}
        runs |= {"flat, taken": _taken(flat, given.rows), "debezium, taken": _taken(debezium, given.rows)}
        seconds = _seconds(runs, given.runs)
        for name, found in seconds.items():
            middle = statistics.median(found)
            print(
                f"{name}: {min(found):.2f} {middle:.2f} {max(found):.2f} s of CPU for {given.rows} rows, "
                f"{middle / given.rows * 1e9:.0f} ns a row"
            )
        for kind in (", taken",) if given.taken else ("", ", taken"):
            pairs = zip(seconds[f"debezium{kind}"], seconds[f"flat{kind}"], strict=True)
            ratios = [one / other for one, other in pairs]
            print(f"debezium to flat{kind}: {min(ratios):.2f} {statistics.median(ratios):.2f} {max(ratios):.2f}, run by run")
    session.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
