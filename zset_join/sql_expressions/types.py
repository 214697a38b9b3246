"""Names of types, in five dialects, as Arrow types.

| word | type |
|---|---|
| `TIMESTAMP` | without zone; in Spark's dialect an instant in UTC |
| `TIMESTAMP_LTZ`, `TIMESTAMPTZ`, `TIMESTAMP WITH LOCAL TIME ZONE`, `datetime64` | an instant in UTC |
| `DECIMAL` | `DECIMAL(10,0)`, as in Spark |

Lengths and precisions in brackets are taken and, but for decimals, not enforced.
"""

from __future__ import annotations

import pyarrow as pa
from sqlglot import exp

__all__ = ["type_named", "type_of_node"]

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
