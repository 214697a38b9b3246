"""The one table of conversions as data: what each spelling is in each type, or that it is refused.

`spark_casts.json` has what Spark's ANSI `TRY_CAST(text AS type)` answered, as text; `tests/spark/rows/test_conversions.py` runs it
again. On top of it are the refusals that the contract adds, decided here by other means than the product does.
"""

from __future__ import annotations

import datetime
import decimal
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

REFUSED = "refused"
TYPES = {
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DECIMAL(5,2)": pa.decimal128(5, 2),
    "DECIMAL(38,0)": pa.decimal128(38, 0),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
_FROZEN = json.loads((Path(__file__).parent / "spark_casts.json").read_text(encoding="utf-8"))
ANSWERS: dict[str, list[str | None]] = _FROZEN["answers"]
assert list(TYPES) == _FROZEN["types"]

NUMBERS: list[Any] = [
    0,
    1,
    -1,
    127,
    128,
    -129,
    32768,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    3.0,
    3.9,
    0.5,
    -2.5,
    1e18,
    1e19,
    1e300,
]
NUMBERS += [999.99, 1000.0, 0.1, 1.005, True, False, 2024, 19000]
"""Values of Python that are JSON as they are."""

WRITTEN_NUMBERS = [
    "-0",
    "-0.0",
    "1.50",
    "1e0",
    "1E+2",
    "100e-2",
    "9007199254740993.0",
    "9223372036854775807.0",
    "1e18",
    "1e+19",
]
WRITTEN_NUMBERS += [
    "9.223372036854775807e18",
    "-9223372036854775809",
    "18446744073709551616",
    "1e309",
    "-1e400",
    "1e-400",
    "5e-324",
]
WRITTEN_NUMBERS += [
    "1000000000000000000.0",
    "12345678901234567890123456789012345678",
    "123456789012345678901234567890123456789",
]
WRITTEN_NUMBERS += [
    "1234567890123456.78",
    "0.1000000000000000055511151231257827",
    "0.30000000000000004",
    "1.2345678901234567e+20",
]
WRITTEN_NUMBERS += ["1.00000000000000000000001", "1.00000000000000000000000", "12345678901234567890123e-20", "3.4e39"]
"""Numbers of JSON of which a double is another one, or whose spelling is out of the ordinary."""

ROWS_OF_JSON: list[tuple[str, Any]] = [
    ('{"id":0,"c2":1}', 1),
    ('{"id":0,"c2":1,"c2":2}', 2),
    ('{"id":0,"c2":"x","c2":2}', 2),
    ('{"id":0,"c2":1,"c2":null}', None),
    ('{"id":0,"c2":1,}', REFUSED),
    ('{"id":0,"c2":1}x', REFUSED),
    ('{"id":0,"c2":1}{"id":9,"c2":2}', REFUSED),
    ('{"id":0,"c2":1}}', REFUSED),
    ("{'id':0,'c2':1}", REFUSED),
    ('\ufeff{"id":0,"c2":1}', REFUSED),
    ('  {"id":0,"c2":1}  ', 1),
    ('{"id":0,"C2":1}', None),
    ('{"id":0,"\\u0063\\u0032":1}', 1),
    ('{"id":0,"c2":[1]}', REFUSED),
    ('{"id":0,"x":"\\ud83d\\ude00} x {","c2":1}', 1),
    ('{"id":0,"x":NaN,"c5":NaN}', "nan"),
    ('{"id":0,"c5":-0}', "0.0"),
    ('{"id":0,"x":1.2345678901234567890,"c5":2.5}', "2.5"),
]
"""A text that should be one object, and what it is; names of columns are c and the number of their type."""


def names() -> list[str]:
    """Return the names of the columns, one per type."""
    return [f"c{at}" for at in range(len(TYPES))]


def schema() -> pa.Schema:
    """Return `id` and a column of each type."""
    return pa.schema([("id", pa.int64()), *zip(names(), TYPES.values(), strict=True)])


def text_cells() -> list[tuple[int, str, Any]]:
    """Return every cell: the number of its type, the text, and its meaning."""
    return [(at, text, of_text(text, at)) for text in ANSWERS for at in range(len(TYPES))]


def number_cells() -> list[tuple[int, Any, Any]]:
    return [(at, value, of_number(value, kind)) for value in NUMBERS for at, kind in enumerate(TYPES.values())]


def of_text(text: str, at: int) -> Any:
    answer, kind = ANSWERS[text][at], list(TYPES.values())[at]
    if answer is None or answer == "today":
        return REFUSED
    if pt.is_integer(kind):
        return int(answer)
    if pt.is_floating(kind):
        return as_seen(np.float32(answer) if kind == pa.float32() else float(answer))
    if pt.is_boolean(kind):
        return answer == "true"
    if pt.is_decimal(kind):
        exact = decimal.Decimal(text.strip("".join(map(chr, range(33)))))
        return as_seen(decimal.Decimal(answer)) if exact == decimal.Decimal(answer) else REFUSED
    return _time(text, answer, kind)


def _time(text: str, answer: str, kind: pa.DataType) -> Any:
    if answer.startswith(("+", "-", "0000")):  # outside of the years 1 to 9999
        return REFUSED
    if pt.is_date(kind):
        return datetime.date.fromisoformat(answer)
    behind_seconds = re.search(r":\d+:\d+(?:\.(\d*))? *(.*)", text.strip())
    if behind_seconds and (behind_seconds[1] or "")[6:].strip("0"):
        return REFUSED
    if behind_seconds and behind_seconds[2] and kind.tz is None:
        return REFUSED
    read = datetime.datetime.fromisoformat(answer)
    return as_seen(read.replace(tzinfo=datetime.UTC) if kind.tz else read)


def of_number(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, bool) or pt.is_boolean(kind):
        return value if isinstance(value, bool) and pt.is_boolean(kind) else REFUSED
    exact = decimal.Decimal(repr(value))
    if pt.is_integer(kind):
        limits = np.iinfo(kind.to_pandas_dtype())
        return int(exact) if exact == exact.to_integral_value() and limits.min <= exact <= limits.max else REFUSED
    if pt.is_floating(kind):
        with np.errstate(over="ignore"):
            return as_seen(np.float32(float(value)) if kind == pa.float32() else float(value))
    if pt.is_decimal(kind):
        places = decimal.Decimal(1).scaleb(-kind.scale)
        fits = abs(exact) < decimal.Decimal(10) ** (kind.precision - kind.scale) and exact % places == 0
        return as_seen(exact.quantize(places)) if fits else REFUSED
    return REFUSED


def of_written_number(written: str, kind: pa.DataType) -> Any:
    exact = decimal.Decimal(written)
    if pt.is_integer(kind):
        limits = np.iinfo(kind.to_pandas_dtype())
        return int(exact) if exact == exact.to_integral_value() and limits.min <= exact <= limits.max else REFUSED
    if pt.is_floating(kind):
        number = 0.0 if written == "-0" else float(written)
        with np.errstate(over="ignore"):
            return as_seen(np.float32(number) if kind == pa.float32() else number)
    if pt.is_decimal(kind):
        with decimal.localcontext(prec=1_000):
            fits = abs(exact) < decimal.Decimal(10) ** (kind.precision - kind.scale) and exact == round(exact, kind.scale)
            return as_seen(abs(round(exact, kind.scale)) if exact == 0 else round(exact, kind.scale)) if fits else REFUSED
    return REFUSED


def as_seen(value: Any) -> Any:
    """Return a value so that equal ones are equal: NaN, the sign of zero, and zones by instant."""
    if isinstance(value, float | np.floating):
        return repr(float(value))
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC).isoformat()
    return str(value) if isinstance(value, decimal.Decimal) else value


def seen(rows: pa.Table | pa.RecordBatch, cells: int) -> list[Any]:
    """Return of each cell the value that its row has in it, refused where there is no row."""
    got: list[Any] = [REFUSED] * cells
    columns = [rows.column(name).to_pylist() for name in names()]
    for row, number in enumerate(rows.column("id").to_pylist()):
        got[number] = next((as_seen(column[row]) for column in columns if column[row] is not None), None)
    return got
