"""Records that nobody should have written, of every format: `python -m property_tests.record_fuzz --records 5000000`.

The law: of every batch, records that are present = records with lines + records that mean no change + records set aside;
reading raises nothing, and a record that is well formed is never set aside because of its neighbours. A pipeline takes the same
batches: what it applies and what is in its dead letters are all of them.

Records are made of good ones by cutting, doubling and exchanging bytes, by values of other types, deep nesting, huge numbers,
duplicate and missing members, bytes that are no UTF-8, and pure noise. Each seed gives the same records.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from zset_join.changelog.formats import RECORD_FORMATS, RecordOptions
from zset_join.pipeline import Pipeline
from zset_join.query.records import records
from zset_join.sources.json_records import JsonRecordReader
from zset_join.stages import StageOptions

__all__ = ["fuzz", "main", "record"]

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "text": pa.string(),
        "small": pa.int8(),
        "real": pa.float64(),
        "exact": pa.decimal128(12, 2),
        "day": pa.date32(),
        "at": pa.timestamp("us"),
        "utc": pa.timestamp("us", tz="UTC"),
        "flag": pa.bool_(),
        "raw": pa.binary(),
        "many": pa.list_(pa.int64()),
    }
)
GIVEN = pa.schema(
    {"key": pa.binary(), "value": pa.binary(), "topic": pa.string(), "partition": pa.int32(), "offset": pa.int64()}
)
_UNITS = ("ts_us", "ts_us", "ts_ms")
METADATA = {"operation_time": "changed", "record_time": "written", "position": "lsn", "offset": "partition"}
_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 2**40, 2**63 - 1, -(2**63), 2**63, -(2**70), 1e308, -0.0,
    "", "x", "NaN", "Infinity", "1e400", "2024-02-30", "99999-01-01",
    "AQ==", "A", "====", [], [1, "x"], [[[]]], {}, {"a": {"b": []}},
    "__debezium_unavailable_value", "\u0000", "\ud83d\ude00", "1 ", "0x10", "true",
)  # fmt: skip


_BASE64 = ("BNI=", "AA==", "/w==")


def record(draw: random.Random, name: str) -> tuple[bytes | None, bytes | None]:
    """Return key and value of one record of a format, good or not."""
    key = json.dumps({"id": draw.randrange(20)}).encode() if draw.random() < 0.9 else _broken(draw, b'{"id":1}')
    if draw.random() < 0.03:
        return key, None
    value = json.dumps(_body(draw, name)).encode()
    return key, value if draw.random() < 0.6 else _broken(draw, value)


def _body(draw: random.Random, name: str) -> Any:
    made: dict[str, Callable[[], Any]] = {
        "debezium-json": lambda: _perhaps_enveloped(
            draw,
            {
                "op": _mostly(draw, draw.choice("crudtm")),
                "before": _row(draw, _BASE64),
                "after": _row(draw, _BASE64),
                "source": _mostly(draw, {"lsn": draw.randrange(10**12), draw.choice(_UNITS): draw.randrange(10**16)}),
                draw.choice(_UNITS): _mostly(draw, draw.randrange(10**16)),
            },
        ),
        "canal-json": lambda: {
            "type": _mostly(draw, draw.choice(["INSERT", "UPDATE", "DELETE", "TRUNCATE", "ALTER"])),
            "data": _mostly(draw, [_row(draw) for _ in range(draw.randrange(4))]),
            "es": _mostly(draw, draw.randrange(10**13)),
        },
        "maxwell-json": lambda: {
            "type": _mostly(draw, draw.choice(["insert", "update", "delete", "bootstrap-start", "table-alter"])),
            "data": _row(draw),
            "ts": _mostly(draw, draw.randrange(10**10)),
        },
        "dms-json": lambda: {
            "data": _row(draw),
            "metadata": _mostly(
                draw,
                {
                    "operation": _mostly(draw, draw.choice(["load", "insert", "update", "delete", "create-table"])),
                    "timestamp": _mostly(draw, "2024-07-29T00:30:47.258815Z"),
                },
            ),
        },
        "upsert-json": lambda: _row(draw),
    }
    return made[name]()


def _perhaps_enveloped(draw: random.Random, body: Any) -> Any:
    return {"schema": {"type": "struct"}, "payload": body} if draw.random() < 0.1 else body


def _row(draw: random.Random, decimals: tuple[str, ...] = ("12.50", "0", "-1.00")) -> Any:
    if draw.random() < 0.08:
        return draw.choice(_VALUES)
    good = {
        "id": draw.randrange(20),
        "text": draw.choice(["a", "", 'q"\\', None]),
        "small": draw.randrange(-128, 128),
        "real": draw.random(),
        "exact": draw.choice(decimals),
        "day": draw.randrange(-(10**5), 10**5),
        "at": draw.randrange(10**15),
        "utc": "2024-01-01T00:00:00Z",
        "flag": draw.random() < 0.5,
        "raw": "AQI=",
        "many": [1, None, 3],
    }
    for name in draw.sample(list(good), draw.choice((0, 0, 0, 1, 2))):
        if draw.random() < 0.3:
            del good[name]
        else:
            good[name] = draw.choice(_VALUES)
    return good


def _mostly(draw: random.Random, value: Any) -> Any:
    return draw.choice(_VALUES) if draw.random() < 0.05 else value


def _broken(draw: random.Random, data: bytes) -> bytes:
    what, at = draw.randrange(9), draw.randrange(len(data) + 1)
    if what == 0:
        return data[:at]
    if what == 1:
        return data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
    if what == 2:
        return data[:at] + data[at // 2 :]
    if what == 3:
        return draw.randbytes(draw.randrange(40))
    if what == 4:
        return b"[" * draw.randrange(1, 600)
    if what == 5:
        return b'{"op":' * draw.randrange(1, 200) + b"1" + b"}" * draw.randrange(200)
    if what == 6:
        return data.replace(b'"', b"'")
    if what == 7:
        return b" \n" + data + b"\t" + data[:at]
    return data.replace(b":", b":" * draw.randrange(1, 3), 1)


_TRAILING_COMMA = re.compile(rb",\s*([\]}])")


class LawBrokenError(AssertionError):
    """Records that were neither applied nor set aside."""


def fuzz(name: str, count: int, seed: int, *, batch: int = 2_000, keyed: bool = True) -> Counter[str]:
    """Read so many records of a format; return what became of them.

    Raises:
        LawBrokenError: the law does not hold.
    """
    draw = random.Random(f"{name} {seed}")
    keys = ["id"] if keyed else []
    reader = JsonRecordReader(name, SCHEMA, keys, RecordOptions(metadata=METADATA))
    found: Counter[str] = Counter()
    offset = 0
    try:
        while offset < count:
            made = [record(draw, name) for _ in range(min(batch, count - offset))]
            rows = [(*one, "t", 0, offset + at) for at, one in enumerate(made)]
            table = pa.table([list(column) for column in zip(*rows, strict=True)], schema=GIVEN)
            found += _read(reader, table, name, draw)
            offset += len(made)
    finally:
        reader.close()
    return found


def _read(reader: JsonRecordReader, table: pa.Table, name: str, draw: random.Random) -> Counter[str]:
    read = reader.read(table)
    bad = set(read.records[pc.is_valid(read.rejects).to_numpy(zero_copy_only=False)].tolist())
    lined = set(read.records.tolist())
    unknown = [one for one in lined if not 0 <= one < table.num_rows]
    ignored = [one for one in range(table.num_rows) if one not in lined]
    if unknown or (read.changes.null_count != len(read.rejects) - read.rejects.null_count):
        raise LawBrokenError(f"{name}: lines of records that are not there {unknown[:5]}, or lines without a reason")
    loud = [one for one in ignored if not _means_no_change(name, table, one)]
    if loud:
        raise LawBrokenError(f"{name}: neither applied nor put aside: {table.slice(loud[0], 1).to_pylist()}")
    for one in draw.sample(range(table.num_rows), 2):
        alone = reader.read(table.slice(one, 1))
        together = [read.rejects[at].as_py() for at in range(len(read.rejects)) if read.records[at] == one]
        if alone.rejects.to_pylist() != together:
            raise LawBrokenError(
                f"{name}: alone {alone.rejects.to_pylist()}, among others {together}: {table.slice(one, 1).to_pylist()}"
            )
    return Counter(records=table.num_rows, applied=len(lined - bad), dead=len(bad), ignored=len(ignored))


def _means_no_change(name: str, table: pa.Table, number: int) -> bool:
    """Return whether a record may be passed over in silence: a tombstone, or an operation that is none of rows."""
    value = table["value"][number].as_py()
    if value is None:
        return name != "upsert-json"
    try:
        reported = json.loads(_TRAILING_COMMA.sub(rb"\1", value), strict=False)  # DuckDB takes both
    except ValueError:
        return False
    reported = reported.get("payload", reported) if isinstance(reported, dict) and "schema" in reported else reported
    if reported is None:
        return True  # an enveloped tombstone
    form = RECORD_FORMATS[name]
    for step in form.operation:
        reported = reported.get(step) if isinstance(reported, dict) else None
    return form.operations.get(str(reported).lower()) == "ignore"


def pipeline_takes(name: str, count: int, seed: int, *, batch: int = 2_000) -> Counter[str]:
    """Feed a pipeline that quarantines; return what became of the records."""
    draw = random.Random(f"{name} {seed} pipeline")
    view = records("t", name, SCHEMA, keys="id", options=RecordOptions(metadata={"offset": "partition"}))
    found: Counter[str] = Counter()
    with Pipeline(view, options=StageOptions(on_bad_input="quarantine")) as pipeline:
        for _ in range(0, count, batch):
            made = [(*record(draw, name), "t", 0, at) for at in range(batch)]
            pipeline.step({"t": pa.table([list(column) for column in zip(*made, strict=True)], schema=GIVEN)})
            letters = pipeline.dead_letters
            unread = letters.filter(pc.is_null(letters["row"])).num_rows
            refused = letters.num_rows - unread
            found += Counter(records=batch, unread=unread, refused=refused, lines=pipeline.progress["rows"]["t"])
            if pipeline.progress["rejected_rows"] != refused:
                raise LawBrokenError(f"{name}: {pipeline.progress} and {refused} rows in the dead letters")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="record_fuzz")
    parser.add_argument("--records", type=int, default=100_000, help="over all formats (100000)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    forms = [*((name, True) for name in RECORD_FORMATS), ("debezium-json", False)]
    each = options.records // (len(forms) + 2)
    for name, keyed in forms:
        started = time.monotonic()
        reported = fuzz(name, each, options.seed, keyed=keyed)
        print(f"{name}{'' if keyed else ' without a key'}: {dict(reported)}, {time.monotonic() - started:.0f} s", flush=True)  # noqa: T201 - a program's output
    for name in ("debezium-json", "upsert-json"):
        started = time.monotonic()
        reported = pipeline_takes(name, each, options.seed)
        print(f"pipeline of {name}: {dict(reported)}, {time.monotonic() - started:.0f} s", flush=True)  # noqa: T201 - a program's output
    return 0


if __name__ == "__main__":
    sys.exit(main())
