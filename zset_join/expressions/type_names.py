"""Names of types in `cast("...")`, as in Spark SQL."""

from __future__ import annotations

import pyarrow as pa

from zset_join.core.errors import OptionError

__all__ = ["named_type"]

_CAST_NAMES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
}


def named_type(name: str) -> pa.DataType:
    """Return the type of a name.

    >>> named_type("decimal(10, 2)"), named_type("bigint")
    (Decimal128Type(decimal128(10, 2)), DataType(int64))
    """
    plain = "".join(name.lower().split())
    if plain in _CAST_NAMES:
        return _CAST_NAMES[plain]
    parts = plain.removeprefix("decimal(").removesuffix(")").split(",")
    if plain.startswith("decimal(") and len(parts) == 2 and all(part.isdecimal() for part in parts):
        precision, scale = int(parts[0]), int(parts[1])
        if 1 <= precision <= 38 and scale <= precision:
            return pa.decimal128(precision, scale)
    hint = ' For an instant pass an Arrow type that names its zone, as pa.timestamp("us", tz="UTC").'
    raise OptionError(
        f"cast({name!r}) names a type that is not known here; use one of {', '.join(sorted(_CAST_NAMES))}, "
        f"decimal(p,s) with p <= 38, or an Arrow type.{hint if plain == 'timestamp' else ''}",
        code="CAST_TYPE",
        type=name,
    )
