"""Names of types, in five dialects, as Arrow types.

| word | type |
|---|---|
| `TIMESTAMP` | without zone; in Spark's dialect an instant in UTC |
| `TIMESTAMP_LTZ`, `TIMESTAMPTZ`, `TIMESTAMP WITH LOCAL TIME ZONE`, `datetime64` | an instant in UTC |
| `DECIMAL` | `DECIMAL(10,0)`, as in Spark |

Lengths and precisions in brackets are taken and, but for decimals, not enforced.

`counts_days`, `factors`: intervals as statements write them: months and a span of time.

INTERVAL '5' MINUTE      INTERVAL 10 MINUTES      INTERVAL '1 day 2 hours'      INTERVAL '1 02:03:04' DAY TO SECOND
INTERVAL '1-2' YEAR TO MONTH      n * INTERVAL '1' DAY      3h
"""

from __future__ import annotations

import datetime
import decimal
import re

import pyarrow as pa
from sqlglot import exp

__all__ = ["counts_days", "factors", "is_interval", "span_of", "type_named", "type_of_node"]

_INSTANT = pa.timestamp("us", tz="UTC")
_PLAIN = {
    "BIGINT": pa.int64(),
    "BINARY": pa.binary(),
    "BOOL": pa.bool_(),
    "BOOLEAN": pa.bool_(),
    "BYTE": pa.int8(),
    "BYTEA": pa.binary(),
    "BYTES": pa.binary(),
    "CHAR": pa.string(),
    "CHARACTER": pa.string(),
    "DATE": pa.date32(),
    "DATE32": pa.date32(),
    "DATETIME": _INSTANT,
    "DATETIME64": _INSTANT,
    "DOUBLE": pa.float64(),
    "FLOAT": pa.float32(),
    "FLOAT32": pa.float32(),
    "FLOAT4": pa.float32(),
    "FLOAT64": pa.float64(),
    "FLOAT8": pa.float64(),
    "INT": pa.int32(),
    "INT16": pa.int16(),
    "INT2": pa.int16(),
    "INT32": pa.int32(),
    "INT4": pa.int32(),
    "INT64": pa.int64(),
    "INT8": pa.int8(),
    "INTEGER": pa.int32(),
    "LONG": pa.int64(),
    "REAL": pa.float32(),
    "SHORT": pa.int16(),
    "SMALLINT": pa.int16(),
    "STRING": pa.string(),
    "TEXT": pa.string(),
    "TIMESTAMPTZ": _INSTANT,
    "TIMESTAMP_LTZ": _INSTANT,
    "TIMESTAMP_NTZ": pa.timestamp("us"),
    "TINYINT": pa.int8(),
    "UINT16": pa.int32(),
    "UINT32": pa.int64(),
    "UINT64": pa.decimal128(20, 0),
    "UINT8": pa.int16(),
    "VARBINARY": pa.binary(),
    "VARCHAR": pa.string(),
}
_OF_POSTGRES = {"FLOAT": pa.float64(), "INT8": pa.int64()}
_OF_NODES = {
    "BIGINT": "BIGINT",
    "BINARY": "BINARY",
    "BOOLEAN": "BOOLEAN",
    "CHAR": "STRING",
    "DATE": "DATE",
    "DATETIME": "DATETIME",
    "DATETIME64": "DATETIME",
    "DOUBLE": "DOUBLE",
    "FLOAT": "FLOAT",
    "INT": "INT",
    "NCHAR": "STRING",
    "NVARCHAR": "STRING",
    "SMALLINT": "SMALLINT",
    "TEXT": "STRING",
    "TIMESTAMPLTZ": "TIMESTAMPTZ",
    "TIMESTAMPNTZ": "TIMESTAMP_NTZ",
    "TINYINT": "TINYINT",
    "VARBINARY": "BINARY",
    "VARCHAR": "STRING",
}


_WITHOUT_NUMBERS = frozenset({"BIGINT", "BOOLEAN", "DATE", "DOUBLE", "FLOAT", "INT", "SMALLINT", "TINYINT"})
_MOST_DIGITS = 9


def type_named(name: str, arguments: tuple[int, ...], *, dialect: str) -> pa.DataType | None:
    """Return the type of a name; None where there is none.

    >>> type_named("decimal", (10, 2), dialect="flink"), type_named("timestamp", (3,), dialect="flink")
    (Decimal128Type(decimal128(10, 2)), TimestampType(timestamp[us]))
    """
    word = name.upper()
    if word in {"DECIMAL", "NUMERIC", "DEC"}:
        precision = arguments[0] if arguments else 10
        scale = arguments[1] if len(arguments) > 1 else 0
        return pa.decimal128(precision, scale) if 1 <= precision <= 38 and 0 <= scale <= precision else None
    if word == "TIMESTAMP":
        return _INSTANT if dialect == "spark" else pa.timestamp("us")
    if dialect == "risingwave" and word in _OF_POSTGRES:
        return _OF_POSTGRES[word]
    return _PLAIN.get(word)


def type_of_node(node: exp.DataType, *, dialect: str) -> pa.DataType | None:
    """Return the type that sqlglot has read in a cast; None where it is none of ours."""
    kind = node.this.value if hasattr(node.this, "value") else str(node.this)
    numbers = [part.this for part in node.expressions if isinstance(part, exp.DataTypeParam)]
    most = 2 if kind == "DECIMAL" else 0 if kind in _WITHOUT_NUMBERS else 1
    if not all(number.name.isdecimal() for number in numbers) or len(numbers) > most:
        return None
    if kind.startswith("TIMESTAMP") and numbers and int(numbers[0].name) > _MOST_DIGITS:
        return None
    if kind == "DECIMAL":
        return type_named("DECIMAL", tuple(int(number.name) for number in numbers), dialect=dialect)
    if kind in {"TIMESTAMP", "TIMESTAMPTZ"}:
        # In Spark's grammar, which all dialects here are parsed by, TIMESTAMP is read as an instant.
        return type_named("TIMESTAMP", (), dialect=dialect)
    word = _OF_NODES.get(kind)
    return None if word is None else type_named(word, (), dialect=dialect)


_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_SECONDS = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86400, "WEEK": 7 * 86400}
_SHORT = {"US": "MICROSECOND", "MS": "MILLISECOND", "S": "SECOND", "M": "MINUTE", "MIN": "MINUTE", "H": "HOUR", "D": "DAY",
          "W": "WEEK", "Q": "QUARTER", "Y": "YEAR", "MON": "MONTH", "SEC": "SECOND"}  # fmt: skip
_TOO_LONG = 10**15
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)")


def is_interval(node: exp.Expr) -> bool:
    """Return whether a node is an interval, or a multiple of one."""
    if isinstance(node, exp.Paren):
        return is_interval(node.this)
    if isinstance(node, exp.Mul):
        return isinstance(node.this, exp.Interval) != isinstance(node.expression, exp.Interval)
    return isinstance(node, exp.Interval)


def factors(node: exp.Expr) -> tuple[exp.Interval, exp.Expr | None]:
    """Return an interval, and how many times it is meant; None for once."""
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Interval):
        return node, None
    one, other = node.this, node.expression
    return (one, other) if isinstance(one, exp.Interval) else (other, one)


def counts_days(node: exp.Interval) -> bool:
    """Return whether an interval is written in days, weeks or longer: a date that it moves stays a date."""
    unit, text = node.args.get("unit"), node.this.name if isinstance(node.this, exp.Literal) else ""
    if isinstance(unit, exp.IntervalSpan):
        return False
    names = [unit.name] if unit is not None else re.findall(r"[A-Za-z]+", text)
    words = {_SHORT.get(name.upper(), name.upper().removesuffix("S")) for name in names}
    return words <= {"DAY", "WEEK", *_MONTHS}


def span_of(node: exp.Interval) -> tuple[int, datetime.timedelta]:
    """Return the months and the rest of an interval."""
    amount = node.this
    sign = 1
    if isinstance(amount, exp.Neg):
        amount, sign = amount.this, -1
    text = amount.name.strip() if isinstance(amount, exp.Literal) else ""
    unit = node.args.get("unit")
    if isinstance(unit, exp.IntervalSpan):
        return _ranged(text, unit.this.name.upper(), unit.expression.name.upper(), sign)
    if unit is not None:
        return _sum([(text, unit.name)], sign)
    parts = re.findall(r"([+-]?[0-9.]+)\s*([A-Za-z]+)", text)
    if not parts or re.sub(r"([+-]?[0-9.]+)\s*([A-Za-z]+)", "", text).strip():
        if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
            return _sum([(text, "SECOND")], sign)
        raise ValueError("an interval is a number and a unit, as in INTERVAL '5' MINUTE")
    return _sum(parts, sign)


def _sum(parts: list[tuple[str, str]], sign: int) -> tuple[int, datetime.timedelta]:
    months, microseconds = 0, decimal.Decimal(0)
    for text, name in parts:
        unit = _SHORT.get(name.upper(), name.upper().removesuffix("S"))
        if not _NUMBER.fullmatch(text):
            raise ValueError("an interval is a number and a unit, as in INTERVAL '5' MINUTE")
        number = decimal.Decimal(text) * sign
        if not abs(number) < _TOO_LONG:
            raise ValueError("the interval is longer than times go")
        if unit in _MONTHS:
            if number != int(number):
                raise ValueError(f"an interval has a whole number of {unit.lower()}s, not {text}")
            months += int(number) * _MONTHS[unit]
        elif unit in _SECONDS:
            microseconds += number * _SECONDS[unit] * 10**6
        elif unit in {"MILLISECOND", "MICROSECOND"}:
            microseconds += number * (1000 if unit == "MILLISECOND" else 1)
        else:
            raise ValueError(
                f"the unit of an interval is one of {', '.join([*_SECONDS, 'MILLISECOND', 'MICROSECOND', *_MONTHS])}"
            )
    if abs(months) > 120_000 or abs(microseconds) > decimal.Decimal(2**62):
        raise ValueError("the interval is longer than times go")
    try:
        return months, datetime.timedelta(microseconds=int(microseconds))
    except OverflowError:
        raise ValueError("the interval is longer than times go") from None


def _ranged(text: str, first: str, last: str, sign: int) -> tuple[int, datetime.timedelta]:
    if text.startswith("-"):
        text, sign = text[1:], -sign
    units = ["YEAR", "MONTH"] if first == "YEAR" else ["DAY", "HOUR", "MINUTE", "SECOND"]
    if first not in units or last not in units or units.index(first) >= units.index(last):
        raise ValueError(f"an interval goes from {' to '.join(units)}, or a part of that, not from {first} to {last}")
    numbers = re.split(r"[-]" if first == "YEAR" else r"[ :]", text)
    wanted = units[units.index(first) : units.index(last) + 1]
    if len(numbers) != len(wanted) or not all(re.fullmatch(r"[0-9]+(\.[0-9]+)?", number) for number in numbers):
        raise ValueError(f"'{text}' is no interval {first} TO {last}")
    return _sum(list(zip(numbers, wanted, strict=True)), sign)
