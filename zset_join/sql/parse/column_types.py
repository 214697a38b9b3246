"""The type of a column, as a declaration writes it.

    INT    DECIMAL(10, 2)    VARCHAR(20)    TIMESTAMP(3) WITH LOCAL TIME ZONE    ARRAY<INT>    INT[]    DATETIME64(3, 'UTC')

Brackets hold whole numbers, at most as many as the type takes; a type that takes none refuses them. Lengths and precisions of
other types than DECIMAL are read and not enforced, as `zset_join.sql_expressions.types` documents.
"""

from __future__ import annotations

import pyarrow as pa
from sqlglot.tokenizer_core import TokenType

from zset_join.core.errors import SqlError
from zset_join.sql.parse.readers import Reader
from zset_join.sql_expressions.positions import near
from zset_join.sql_expressions.types import type_named

__all__ = ["read_type"]

_NUMBERS = {
    **dict.fromkeys(("DEC", "DECIMAL", "NUMERIC"), 2),
    **dict.fromkeys(("BINARY", "BYTES", "CHAR", "CHARACTER", "DATETIME64", "STRING", "TIMESTAMP", "TIMESTAMPTZ",
                     "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "VARBINARY", "VARCHAR"), 1),
}  # fmt: skip
"""How many numbers the brackets of a type hold at most."""
_MOST_DIGITS = 9
_NAMES = ("BIGINT", "BOOLEAN", "BYTES", "DATE", "DECIMAL", "DOUBLE", "FLOAT", "INT", "SMALLINT", "STRING", "TIMESTAMP")


def read_type(reader: Reader) -> pa.DataType:
    place = reader.statement.place(reader.index)
    word = reader.name("a type").upper()
    if word in {"NULLABLE", "LOW_CARDINALITY"} and reader.has("("):
        kind = read_type(reader)
        reader.expect(")")
        return kind
    if word == "ARRAY" and reader.word in {"<", "("}:
        end = {"<": ">", "(": ")"}[reader.word]
        reader.index += 1
        kind = pa.list_(read_type(reader))
        if not reader.has(end):
            reader.fail("expected the end of the array")
        return kind
    if word == "DOUBLE":
        reader.has("PRECISION")
    if word == "CHARACTER":
        reader.has("VARYING")
    if word in {"CHARACTER VARYING", "CHAR VARYING"}:
        word = "VARCHAR"
    if word == "DOUBLE PRECISION":
        word = "DOUBLE"
    if word in {"ROW", "STRUCT", "MAP", "TUPLE", "MULTISET", "JSONB", "JSON", "VARIANT"}:
        raise SqlError(
            f"columns of type {word} are not supported. Declare a column per field, or a STRING: JSON_VALUE(c, '$.a') gives "
            "its fields.",
            code="UNKNOWN_TYPE",
            at=place,
        )
    arguments = _arguments(reader, word) if reader.has("(") else ()
    if word == "TIMESTAMP" and (reader.has("WITH", "LOCAL", "TIME", "ZONE") or reader.has("WITH", "TIME", "ZONE")):
        word = "TIMESTAMPTZ"
    elif word == "TIMESTAMP" and reader.has("WITHOUT", "TIME", "ZONE"):
        word = "TIMESTAMP_NTZ"
    kind = type_named(word, arguments, dialect=reader.statement.dialect)
    if kind is None and word in {"DEC", "DECIMAL", "NUMERIC"}:
        raise SqlError(
            f"{word}({', '.join(map(str, arguments))}) is not a type: it has 1 to 38 digits, of which at most as many are "
            "behind the point.",
            code="UNKNOWN_TYPE",
            at=place,
        )
    if kind is None:
        raise SqlError(f'the type "{word}" is not known.{near(word, _NAMES)}', code="UNKNOWN_TYPE", at=place)
    if reader.has("["):
        reader.expect("]")
        return pa.list_(kind)
    return kind


def _arguments(reader: Reader, word: str) -> tuple[int, ...]:
    """Read the numbers of a type, from behind the opening bracket on; the zone of a DATETIME64 is a text behind its number."""
    most = _NUMBERS.get(word, 0)
    if most == 0 and type_named(word, (), dialect=reader.statement.dialect) is not None:
        reader.index -= 1
        reader.fail(f"{word} takes no arguments in brackets")
    numbers: list[int] = []
    while True:
        token = None if reader.is_done else reader.tokens[reader.index]
        if numbers and word == "DATETIME64" and token is not None and token.token_type == TokenType.STRING:
            reader.index += 1
            break
        is_number = token is not None and token.text.isdecimal() and token.token_type == TokenType.NUMBER
        if not is_number or len(numbers) == max(most, 1):
            reader.fail(f"expected {'a number' if not numbers else 'a closing bracket'} of {word}")
        numbers.append(int(reader.value()))
        if not reader.has(","):
            break
    at = reader.statement.place(reader.index)
    reader.expect(")")
    if word.startswith(("TIMESTAMP", "DATETIME")) and numbers[0] > _MOST_DIGITS:
        raise SqlError(f"a {word} has at most {_MOST_DIGITS} digits behind the second.", code="UNKNOWN_TYPE", at=at)
    return tuple(numbers)
