"""Expressions and schemas given as text, in Spark's dialect, over rows whose columns are known.

    bound_text("total > 100 AND city = 'Ulm'", {"row": ("orders", schema)})
    schema_of("id BIGINT, name STRING NOT NULL, tags ARRAY<STRING>")

The law: a text means what Spark means by it, under ANSI mode, and what cannot be bound is refused at its place. A column may be
qualified with the name of its rows. Nothing of a text reaches another engine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from zset_join.core.errors import SqlError
from zset_join.expressions import Column, Expression
from zset_join.sql_expressions.consumed import check_consumed, near, pick, position_of
from zset_join.sql_expressions.dialects import Statement, dialect_named, parse_expression, split
from zset_join.sql_expressions.scalars import ScalarBinder
from zset_join.sql_expressions.types import type_of_node

__all__ = ["BoundText", "Sides", "bound_text", "schema_of", "with_between"]

_BETWEEN = "zset_between"
_COLUMNS = re.compile(r",(?![^<(]*[>)])")
"""The commas between columns, outside of the parameters of a type."""
_QUOTED = re.compile(r"('(?:[^'\\]|\\.)*'|`(?:[^`]|``)*`)")

Sides = Mapping[str, tuple[str, pa.Schema]]
"""Side of an expression ("row", or "left" and "right") to the name and the columns of its rows."""


class BoundText(NamedTuple):
    title: str
    tree: Expression | None


def bound_text(text: str, sides: Sides) -> BoundText:
    """Return the expression of a text, which may end with AS and a name, or be a star.

    >>> bound_text("price * 2 AS double_price", {"row": ("sales", pa.schema({"price": pa.int32()}))})
    BoundText(title='double_price', tree=price * 2)
    """
    statements = split(text, dialect="spark")
    if len(statements) != 1:
        raise SqlError(f"{text!r} is not one expression.", code="SQL_SYNTAX")
    (statement,) = statements
    node = parse_expression(statement, statement.tokens, is_item=True)
    if isinstance(node, exp.Star):
        return BoundText("*", None)
    value, title = (node.this, node.alias) if isinstance(node, exp.Alias) else (node, None)

    def resolve(column: exp.Column) -> Expression:
        return _resolved(column, sides, statement)

    tree = ScalarBinder(resolve, {side: schema for side, (_, schema) in sides.items()}, statement).bind(value)
    check_consumed(node, statement.text, statement.place(0))
    return BoundText(title or (tree.name if isinstance(tree, Column) else statement.sql), tree)


def _resolved(node: exp.Column, sides: Sides, statement: Statement) -> Expression:
    at = position_of(node, statement.text)
    places = dict(sides)
    if node.table:
        places = {side: given for side, given in sides.items() if given[0].lower() == node.table.lower()}
        if not places:
            raise SqlError(
                f'there are no rows called "{node.table}" here.{near(node.table, [name for name, _ in sides.values()])}',
                code="UNKNOWN_TABLE",
                at=at,
            )
    found = {side: pick({name: name for name in schema.names}, node.name) for side, (_, schema) in places.items()}
    columns = [Column(side, name) for side, name in found.items() if name is not None]  # type: ignore[arg-type]  # a side
    if len(columns) > 1:
        raise SqlError(
            f'the column "{node.name}" is on both sides. Put the name of its rows before it, such as '
            f"{next(iter(places.values()))[0]}.{node.name}.",
            code="AMBIGUOUS_COLUMN",
            at=at,
        )
    if not columns:
        names = [name for _, schema in places.values() for name in schema.names]
        raise SqlError(
            f'there is no column "{node.name}".{near(node.name, names)}', code="UNKNOWN_COLUMN", at=at, name=node.name
        )
    return columns[0]


def schema_of(text: str) -> pa.Schema:
    """Return the columns that a text lists, as in CREATE TABLE or `StructType.fromDDL`.

    >>> schema_of("id BIGINT, name STRING NOT NULL").field("name")
    pyarrow.Field<name: string not null>
    """
    inner = text.strip()
    inner = inner[len("struct<") : -1] if inner.lower().startswith("struct<") and inner.endswith(">") else inner
    try:
        node = dialect_named("spark")().parse(f"CREATE TABLE t (s STRUCT<{inner}>)")[0]
    except (SqlglotError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise _no_schema(text, _unreadable(inner)) from error
    whole = node.this.expressions if isinstance(node, exp.Create) and isinstance(node.this, exp.Schema) else []
    columns = whole[0].args["kind"].expressions if len(whole) == 1 and isinstance(whole[0], exp.ColumnDef) else []
    if not columns or inner.endswith(","):
        raise _no_schema(text, "it is no list of columns")
    return pa.schema([_field(column, text) for column in columns])


def _unreadable(columns: str) -> str:
    """Return which column of a list is the first that cannot be read, where one of them alone cannot."""
    for one in _COLUMNS.split(columns):
        try:
            dialect_named("spark")().parse(f"CREATE TABLE t (s STRUCT<{one}>)")
        except (SqlglotError, ValueError, TypeError, AttributeError, IndexError):
            return f"the column {one.strip()!r} cannot be read as a name and a type"
    return "it cannot be read"


def _field(node: exp.Expr, text: str) -> pa.Field:
    kind = node.args.get("kind") if isinstance(node, exp.ColumnDef) else None
    if not isinstance(kind, exp.DataType):
        raise _no_schema(text, f"{node.sql(dialect='spark')} has no type")
    is_nullable = True
    for constraint in node.args.get("constraints") or []:
        what = constraint.args.get("kind")
        if isinstance(what, exp.NotNullColumnConstraint):
            is_nullable = bool(what.args.get("allow_null"))
        elif not isinstance(what, exp.CommentColumnConstraint):
            raise _no_schema(text, f"{constraint.sql(dialect='spark')} is not supported, only NOT NULL")
    return pa.field(node.name, _type(kind, text), nullable=is_nullable)


def _type(node: exp.DataType, text: str) -> pa.DataType:
    word = node.this.value if hasattr(node.this, "value") else str(node.this)
    if word == "ARRAY" and node.expressions:
        return pa.list_(_type(node.expressions[0], text))
    if word == "MAP" and len(node.expressions) == 2:
        return pa.map_(*(_type(one, text) for one in node.expressions))
    if word == "STRUCT":
        return pa.struct([_field(one, text) for one in node.expressions])
    known = type_of_node(node, dialect="spark")
    if known is None:
        raise SqlError(f"schema {text!r}: the type {node.sql(dialect='spark')} is not known.", code="UNKNOWN_TYPE")
    return known


def _no_schema(text: str, why: str) -> SqlError:
    return SqlError(f'schema {text!r}: {why}. Write it as "id BIGINT, name STRING NOT NULL".', code="SQL_SYNTAX")


def with_between(text: str) -> str:
    """Return a text in which BETWEEN is an operator; Spark's analyser writes it as a function, which no parser reads.

    >>> with_between("(NOT between(a, 1, 2))")
    '(NOT (a BETWEEN 1 AND 2))'
    """
    if "between(" not in text:
        return text

    def operator(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Anonymous) and node.name == _BETWEEN and len(node.expressions) == 3:
            this, low, high = node.expressions
            return exp.Paren(this=exp.Between(this=this, low=low, high=high))
        return node

    parts = _QUOTED.split(text)
    renamed = "".join(part if at % 2 else re.sub(r"\bbetween\(", f"{_BETWEEN}(", part) for at, part in enumerate(parts))
    return sqlglot.parse_one(renamed, dialect="spark").transform(operator).sql("spark")
