"""An expression as SQL text: Spark's, for `explain` and Spark itself, and DuckDB's, to verify what was computed.

The law: the text means to that system what the tree means here, faults aside: where a tree fails, the text may be NULL.

Names and texts are quoted here and nowhere else. A name may hold any character, a text any but, for DuckDB, NUL outside of
`chr(0)`.

Known limits: DuckDB computes `float` as `double`, rounds doubles by their binary value, writes numbers as text in its own
way, and divides decimals as doubles.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal as OneOf

import pyarrow as pa
import pyarrow.types as pt

from zset_join.core.errors import PlanError
from zset_join.expressions.computed import Function
from zset_join.expressions.evaluation import result_type
from zset_join.expressions.function_types import LIBRARY
from zset_join.expressions.tree import Call, Cast, Column, Expression, Literal, describe
from zset_join.expressions.type_rules import is_flat, kind_of, plain_type

__all__ = ["Dialect", "quote_name", "quote_text", "to_sql", "type_name"]

Dialect = OneOf["spark", "duckdb"]

_INFIX = {
    "eq": "=",
    "ne": "<>",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "and": "AND",
    "or": "OR",
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "remainder": "%",
}


def quote_name(name: str, dialect: Dialect) -> str:
    """Quote a name, whatever it holds.

    >>> quote_name('a"b', "duckdb"), quote_name("a`b", "spark")
    ('"a""b"', '`a``b`')
    """
    mark = "`" if dialect == "spark" else '"'
    return mark + name.replace(mark, mark * 2) + mark


def quote_text(text: str, dialect: Dialect) -> str:
    r"""Quote a text, whatever it holds.

    >>> quote_text("it's", "duckdb"), quote_text("it's", "spark")
    ("'it''s'", "'it\\'s'")
    """
    if dialect == "spark":
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0") + "'"
    parts = ["'" + part.replace("'", "''") + "'" for part in text.split("\0")]
    return parts[0] if len(parts) == 1 else f"({' || chr(0) || '.join(parts)})"


def type_name(kind: pa.DataType, dialect: Dialect) -> str:
    """Return a system's name of a type."""
    plain = plain_type(kind)
    is_spark = dialect == "spark"
    if pt.is_decimal(plain):
        return f"DECIMAL({plain.precision},{plain.scale})"
    if pt.is_timestamp(plain):
        stamps = ("TIMESTAMP_NTZ", "TIMESTAMP") if is_spark else ("TIMESTAMP", "TIMESTAMPTZ")
        return stamps[plain.tz is not None]
    names = {
        "boolean": ("BOOLEAN", "BOOLEAN"),
        "string": ("STRING", "VARCHAR"),
        "binary": ("BINARY", "BLOB"),
        "date": ("DATE", "DATE"),
        "time": ("TIME", "TIME"),
        "duration": ("INTERVAL DAY TO SECOND", "INTERVAL"),
    }
    if pt.is_integer(plain):
        return {8: "TINYINT", 16: "SMALLINT", 32: "INT", 64: "BIGINT"}[plain.bit_width]
    if pt.is_floating(plain):
        return "DOUBLE" if plain.bit_width == 64 else "FLOAT"
    if kind_of(plain) == "array":
        element = type_name(plain.value_type, dialect)
        return f"ARRAY<{element}>" if is_spark else f"{element}[]"
    if kind_of(plain) not in names:
        raise PlanError(
            f"{dialect} has no text for the type {kind}; leave such columns out.", code="NO_SQL_TYPE", type=str(kind)
        )
    return names[kind_of(plain)][0 if is_spark else 1]


def to_sql(
    expression: Expression,
    schemas: Mapping[str, pa.Schema],
    *,
    dialect: Dialect,
    columns: Callable[[str, str], str] | None = None,
) -> str:
    """Write an expression.

    >>> from zset_join.expressions import col
    >>> to_sql(col("a b") > 1, {"row": pa.schema({"a b": pa.int32()})}, dialect="spark")
    '(`a b` > 1)'
    """
    result_type(expression, schemas)
    written: _Written = expression.accept(_Writer(schemas, dialect, columns))
    return written.text


@dataclass(frozen=True, slots=True)
class _Written:
    text: str
    type: pa.DataType


class _Writer:
    """Write a tree, children first, each with its type."""

    def __init__(self, schemas: Mapping[str, pa.Schema], dialect: Dialect, columns: Callable[[str, str], str] | None) -> None:
        self.schemas = schemas
        self.dialect = dialect
        self.columns = columns or self._column

    def _column(self, side: str, name: str) -> str:
        quoted = quote_name(name, self.dialect)
        return quoted if side == "row" else f"{quote_name(side, self.dialect)}.{quoted}"

    def visit_column(self, node: Column) -> _Written:
        return _Written(self.columns(node.side, node.name), result_type(node, self.schemas))

    def visit_literal(self, node: Literal) -> _Written:
        return _Written(_literal(node, self.dialect), plain_type(node.type))

    def visit_cast(self, node: Cast, operand: _Written) -> _Written:
        text, target = operand.text, plain_type(node.type)
        whole = kind_of(target) == "integer" and kind_of(operand.type) in {"float", "decimal"}
        if whole and self.dialect == "duckdb":
            text = f"trunc({text})"
        if kind_of(operand.type) == "instant" and not is_flat(operand.type) and kind_of(target) == "timestamp":
            return _Written(_local_text(text, operand.type.tz, self.dialect), target)
        return _Written(f"CAST({text} AS {type_name(target, self.dialect)})", target)

    def visit_call(self, node: Call, operands: tuple[_Written, ...]) -> _Written:
        # The type of a call depends on the types of its operands and on which of them are literals.
        schema = {f"o{place}": operand.type for place, operand in enumerate(operands)}
        placeholders = tuple(
            child if isinstance(child, Literal) else Column("row", f"o{place}") for place, child in enumerate(node.operands)
        )
        result = result_type(Call(node.operation, placeholders), {"row": pa.schema(schema)})
        function = LIBRARY.get(node.operation)
        if function is not None:
            return _Written(_of_library(node, function, [operand.text for operand in operands], self.dialect), result)
        write = _spark if self.dialect == "spark" else _duckdb
        return _Written(write(node, operands, result), result)


def _local_text(text: str, zone: str, dialect: Dialect) -> str:
    """Return the local time of an instant in a zone, whatever the zone of the session."""
    quoted = quote_text(zone, dialect)
    if dialect == "duckdb":
        return f"timezone({quoted}, {text})"
    return f"timestampadd(MICROSECOND, unix_micros(from_utc_timestamp({text}, {quoted})), TIMESTAMP_NTZ '1970-01-01 00:00:00')"


def _of_library(node: Call, function: Function, texts: list[str], dialect: Dialect) -> str:
    write = function.spark if dialect == "spark" else function.duckdb
    if write is None:
        raise PlanError(
            f"{describe(node)}: DuckDB has no {node.operation} that means the same, so it verifies no view with it.",
            code="UNKNOWN_EXPRESSION",
            operation=node.operation,
        )
    return write(node, texts)


def _spark(node: Call, operands: tuple[_Written, ...], result: pa.DataType) -> str:
    texts = [operand.text for operand in operands]
    match node.operation:
        case "extract":
            word = {"dayofyear": "doy"}.get(_word(node), _word(node))
            return f"CAST(extract({word} FROM {texts[1]}) AS INT)"
        case "date_trunc":
            return f"CAST({node.operation}({', '.join(texts)}) AS {type_name(result, 'spark')})"
        case "date_diff":
            return f"datediff({', '.join(texts)})"
        case "nullif" | "coalesce" | "greatest" | "least" | "round" | "floor" | "ceil" | "add_months" | "date_add":
            name = node.operation
            if name == "add_months" and kind_of(result) != "date":
                return f"({texts[0]} + make_ym_interval(0, {texts[1]}))"
            return f"{name}({', '.join(texts)})"
    return _common(node, texts, {"startswith": "startswith", "null_safe": "<=>"}, "spark")


def _duckdb(node: Call, operands: tuple[_Written, ...], result: pa.DataType) -> str:
    texts = [operand.text for operand in operands]
    kinds = [kind_of(operand.type) for operand in operands]
    name = "NULL" if kind_of(result) == "null" else type_name(result, "duckdb")
    match node.operation:
        case "divide":
            return f"(CAST({texts[0]} AS DOUBLE) / CAST({texts[1]} AS DOUBLE))"
        case "add" | "subtract" | "multiply" | "remainder" if kind_of(result) in {"integer", "float"}:
            one, other = (f"CAST({text} AS {name})" for text in texts)
            return f"({one} {_INFIX[node.operation]} {other})"
        case "subtract" if kind_of(result) == "duration" and kinds[0] != "duration":
            return f"to_microseconds(epoch_us({texts[0]}) - epoch_us({texts[1]}))"
        case "add" | "subtract" | "multiply" if kind_of(result) == "decimal":
            return f"CAST(({texts[0]} {_INFIX[node.operation]} {texts[1]}) AS {name})"
        case "length" if kinds[0] == "binary":
            return f"CAST(octet_length({texts[0]}) AS INT)"
        case "length":
            return f"CAST(length({texts[0]}) AS INT)"
        case "case":
            return f"CAST({_case(texts)} AS {name})" if kind_of(result) != "null" else "NULL"
        case "coalesce" | "greatest" | "least":
            return f"{node.operation}({', '.join(f'CAST({text} AS {name})' for text in texts)})"
        case "round" | "floor" | "ceil":
            return f"CAST({node.operation}({', '.join(texts)}) AS {name})"
        case "substring":
            return _duckdb_substring(node, texts)
        case "extract":
            word = _word(node)
            field = {"dayofweek": f"(dayofweek({texts[1]}) + 1)", "dayofyear": f"dayofyear({texts[1]})"}.get(
                word, f"extract({word} FROM {texts[1]})"
            )
            return f"CAST({field} AS INT)"
        case "date_trunc":
            return f"CAST(date_trunc({', '.join(texts)}) AS {name})"
        case "date_add":
            return f"CAST(({texts[0]} + CAST({texts[1]} AS INT)) AS DATE)"
        case "date_diff":
            return f"CAST(({texts[0]} - {texts[1]}) AS INT)"
        case "add_months":
            return f"CAST(({texts[0]} + to_months(CAST({texts[1]} AS INT))) AS {name})"
        case "concat":
            return _joined_texts(texts)
    return _common(node, texts, {"startswith": "starts_with", "null_safe": "IS NOT DISTINCT FROM"}, "duckdb")


def _common(node: Call, texts: list[str], words: Mapping[str, str], dialect: Dialect) -> str:
    """Render the syntax shared by both systems."""
    operation = node.operation
    first = node.operands[0]
    if operation in {"and", "or"} and isinstance(first, Call) and first.operation == operation:
        # A chain has one pair of brackets: a reader counts levels.
        return f"{texts[0][:-1]} {_INFIX[operation]} {texts[1]})"
    if operation in _INFIX:
        return f"({texts[0]} {_INFIX[operation]} {texts[1]})"
    match operation:
        case "eq_null_safe":
            return f"({texts[0]} {words['null_safe']} {texts[1]})"
        case "not":
            return f"(NOT {texts[0]})"
        case "negate":
            return f"(- {texts[0]})"
        case "absolute":
            return f"abs({texts[0]})"
        case "is_null":
            return f"({texts[0]} IS NULL)"
        case "is_not_null":
            return f"({texts[0]} IS NOT NULL)"
        case "starts_with":
            return f"{words['startswith']}({texts[0]}, {texts[1]})"
        case "in":
            return f"({texts[0]} IN ({', '.join(texts[1:])}))"
        case "like" | "ilike":
            escape = texts[2] if len(texts) == 3 else quote_text("\\", dialect)
            return f"({texts[0]} {operation.upper()} {texts[1]} ESCAPE {escape})"
        case "case":
            return _case(texts)
        case "trim" | "ltrim" | "rtrim" | "lower" | "upper" | "concat" | "substring" | "length" | "nullif":
            return f"{operation}({', '.join(texts)})"
    raise PlanError(
        f"{describe(node)} is not written as SQL; use an operation of zset_join.expressions.",
        code="UNKNOWN_EXPRESSION",
        operation=operation,
    )


def _joined_texts(texts: list[str]) -> str:
    """Join texts by halves: a reader counts the levels of `a || b || c`."""
    if len(texts) <= 8:
        return f"({' || '.join(texts)})"
    half = len(texts) // 2
    return f"({_joined_texts(texts[:half])} || {_joined_texts(texts[half:])})"


def _case(texts: list[str]) -> str:
    branches = [f"WHEN {texts[place]} THEN {texts[place + 1]}" for place in range(0, len(texts) - 1, 2)]
    otherwise = f" ELSE {texts[-1]}" if len(texts) % 2 else ""
    return f"(CASE {' '.join(branches)}{otherwise} END)"


def _duckdb_substring(node: Call, texts: list[str]) -> str:
    start = node.operands[1]
    # The first character is 1; a place of 0 means it, too.
    place = "1" if isinstance(start, Literal) and start.value == 0 else f"coalesce(nullif({texts[1]}, 0), 1)"
    if isinstance(start, Literal) and start.value:
        place = texts[1]
    length = f", greatest(CAST({texts[2]} AS BIGINT), 0)" if len(texts) == 3 else ""
    return f"substring({texts[0]}, {place}{length})"


def _word(node: Call) -> str:
    unit = node.operands[0]
    return str(unit.value) if isinstance(unit, Literal) else ""


def _literal(node: Literal, dialect: Dialect) -> str:
    value, plain = node.value, plain_type(node.type)
    kind = kind_of(plain)
    if value is None:
        return "NULL" if kind == "null" else f"CAST(NULL AS {type_name(plain, dialect)})"
    if kind == "boolean":
        return str(bool(value)).upper()
    if kind == "integer":
        return str(value) if plain == pa.int32() and value >= 0 else f"CAST({value} AS {type_name(plain, dialect)})"
    if kind == "float":
        text = (
            repr(float(value))
            if math.isfinite(value)
            else {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(float(value))]
        )
        return f"CAST('{text}' AS {type_name(plain, dialect)})"
    if kind == "decimal":
        return f"CAST('{value:f}' AS {type_name(plain, dialect)})"
    if kind == "string":
        return quote_text(str(value), dialect)
    if kind == "binary":
        if dialect == "spark":
            return f"X'{value.hex()}'"
        return f"from_hex('{value.hex()}')"
    if kind == "date":
        return f"DATE '{value.isoformat()}'"
    if kind in {"timestamp", "instant"}:
        return _timestamp(value, kind, dialect)
    if kind == "duration":
        microseconds = value // datetime.timedelta(microseconds=1)
        if dialect == "duckdb":
            return f"to_microseconds({microseconds})"
        return f"make_dt_interval(0, 0, 0, CAST('{_seconds(microseconds)}' AS DECIMAL(18,6)))"
    return f"CAST('{value}' AS {type_name(plain, dialect)})"


def _seconds(microseconds: int) -> str:
    whole, rest = divmod(abs(microseconds), 10**6)
    return f"{'-' if microseconds < 0 else ''}{whole}.{rest:06d}"


def _timestamp(value: datetime.datetime, kind: str, dialect: Dialect) -> str:
    if kind == "timestamp":
        text = value.replace(tzinfo=None).isoformat(sep=" ")
        return f"TIMESTAMP_NTZ '{text}'" if dialect == "spark" else f"TIMESTAMP '{text}'"
    text = value.astimezone(datetime.UTC).replace(tzinfo=None).isoformat(sep=" ")
    return f"TIMESTAMP '{text} UTC'" if dialect == "spark" else f"TIMESTAMPTZ '{text}+00'"
