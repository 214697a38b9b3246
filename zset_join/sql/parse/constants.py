"""Constants of statements, as values of columns: those of VALUES, and of DEFAULT.

INSERT INTO t VALUES (1, DATE '2026-11-01', upper('x'))         whatever can be computed without a row
ALTER TABLE t ADD COLUMN c DECIMAL(8, 2) DEFAULT -1.5           a literal: what a statement makes is the same whenever it is run
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from sqlglot import exp
from sqlglot.tokenizer_core import Token

from zset_join.conversions import can_convert, convert_values
from zset_join.core.errors import SqlError, ZsetJoinError
from zset_join.expressions import Cast
from zset_join.expressions.rows import compute, value_type
from zset_join.expressions.type_rules import kind_of
from zset_join.expressions.zones import expression_in_zone, is_utc
from zset_join.sql_expressions.consumed import check_consumed
from zset_join.sql_expressions.dialects import Statement, parse_expression
from zset_join.sql_expressions.positions import Position
from zset_join.sql_expressions.scalars import ScalarBinder

__all__ = ["constant", "default_of"]

_LITERALS = (exp.Literal, exp.Neg, exp.Paren, exp.Boolean, exp.Null, exp.Cast, exp.DataType, exp.DataTypeParam)


def default_of(statement: Statement, tokens: tuple[Token, ...], kind: pa.DataType, column: str) -> pa.Scalar | None:
    """Return the DEFAULT value of a column; None for NULL."""
    if not tokens:
        raise SqlError(f'DEFAULT of "{column}" has no value.', code="SQL_SYNTAX", at=statement.place(len(statement.tokens) - 1))
    if not all(isinstance(node, _LITERALS) for node in parse_expression(statement, tokens).walk()):
        raise SqlError(
            f"DEFAULT of \"{column}\" is a literal, as 0, 'none' or DATE '2026-01-01': existing rows get one value.",
            code="NOT_OFFERED",
            at=_place(statement, tokens),
        )
    value = constant(ScalarBinder.over(pa.schema([]), statement), statement, tokens, kind, f'DEFAULT of "{column}"')
    return None if value is None else pa.scalar(value, kind)


def constant(
    binder: ScalarBinder, statement: Statement, tokens: tuple[Token, ...], kind: pa.DataType, place: str, zone: str = "UTC"
) -> Any:
    node = parse_expression(statement, tokens)
    tree = binder.bind(node)
    check_consumed(node, statement.text, _place(statement, tokens))
    if not is_utc(zone):
        is_text = kind_of(kind) == "instant" and kind_of(binder.type_of(tree)) == "string"
        tree = expression_in_zone(Cast(tree, kind) if is_text else tree, {}, zone)
    value = compute(tree, {}, 1)
    if pa.types.is_null(value.type):
        return None
    try:
        if pa.types.is_nested(kind) and not can_convert(value.type, kind):  # a struct's members go by position
            cast = Cast(tree, kind)
            value_type(cast, pa.schema([]))
            value = compute(cast, {}, 1)
        converted = convert_values(value, kind)
        if converted.unfit is None:
            return converted.values[0].as_py()
    except ZsetJoinError as error:
        raise _unfit(statement, tokens, node, kind, place) from error
    raise _unfit(statement, tokens, node, kind, place)


def _unfit(statement: Statement, tokens: tuple[Token, ...], node: exp.Expr, kind: pa.DataType, place: str) -> SqlError:
    return SqlError(
        f"{place}: {node.sql(dialect='spark')} does not fit a column of type {kind}; a value converts only where the column "
        "holds it exactly. Correct it, or write a CAST.",
        code="LITERAL",
        at=_place(statement, tokens),
    )


def _place(statement: Statement, tokens: tuple[Token, ...]) -> Any:
    return Position(statement.text, tokens[0].start)
