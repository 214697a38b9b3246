"""The one table of conversions: how a value becomes one of a column's type, on every way in.

The law:

1. A text is spelled as Spark's ANSI cast from STRING accepts it, see `texts`.
2. A typed value converts only if the target holds it exactly: 3.0 is an INT, 3.9 is none. FLOAT and DOUBLE take the nearest.
   A float is the shortest decimal that is that number, as its JSON is.
3. A number becomes a DATE, a TIMESTAMP or a BOOLEAN only where the wire format defines it; that is done by its reader.
4. All else is refused, also where the ANSI cast would round.

Every function returns the values in the target type with the rows that do not convert; the caller refuses them or puts them
aside, naming row, column, value and expected type. NULL is NULL of every type.

| function | for |
|---|---|
| `read_texts` | texts of CSV, of JSON strings, of CDC records |
| `convert_values` | Arrow arrays of another type |
| `python_values` | lists of Python objects, of mixed classes too |
"""

from __future__ import annotations

from zset_join.conversions.texts import Converted, read_texts, whole
from zset_join.conversions.typed_values import Leaf, can_convert, convert_values, python_values

__all__ = ["Converted", "Leaf", "can_convert", "convert_values", "python_values", "read_texts", "whole"]
