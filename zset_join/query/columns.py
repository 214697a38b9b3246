"""Columns as users write them: of a view, as text, with a name; and the trees they represent.

    orders["total"] > 100      F.expr("total * 2")      "total > 100"      (F.col("a") + 1).alias("b")

The law: every word of a view resolves what it is given, so a plan holds plain trees alone.

A column of a view, `orders["total"]`, represents that column of any rows that still have it as it is: of the view itself,
behind filters and selections that keep it, and of either side of a join, also where that calls it `total_right`. Where both
sides have it, or neither, it is refused.

Parsing a text needs the extra `sql`; it is imported when the first text comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

from zset_join.core.errors import OptionError, PlanError
from zset_join.expressions import Column, Expression
from zset_join.expressions.rows import plain_column, rewritten
from zset_join.expressions.tree import Alias
from zset_join.plan.row_steps import SelectStep, WhereStep
from zset_join.plan.tree import Apply, Node, Operate, visible

if TYPE_CHECKING:
    from zset_join.sql_expressions.texts import BoundText

__all__ = [
    "ExternalRows",
    "NamedColumn",
    "RowsOfView",
    "TextColumn",
    "ViewColumn",
    "condition_on",
    "condition_over",
    "expr",
    "resolved",
    "schema_given",
    "text_column",
    "titled",
]


class RowsOfView(Protocol):
    """Rows that columns are resolved over."""

    @property
    def node(self) -> Node | None:
        """Return how they come about; None where no part of the query sets it."""

    @property
    def name(self) -> str:
        """Return the name for messages."""

    @property
    def arrow_schema(self) -> pa.Schema:
        """Return the columns with their types."""


class ExternalRows(NamedTuple):
    """Rows of an external table, for conditions that read them."""

    name: str
    arrow_schema: pa.Schema
    node: None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ViewColumn(Column):
    node: Node
    view: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TextColumn(Column):
    """An expression as text, bound where the columns are known; its name is the text."""


class NamedColumn(NamedTuple):
    name: str
    expression: Expression


def expr(str: str) -> Expression:  # noqa: A002 - the name PySpark users type
    """Return the expression of a text in Spark's SQL, such as `"total * 2"`; it is bound to the rows it is used on.

    Raises:
        OptionError: no text.
    """
    if not isinstance(str, _TEXT):
        raise OptionError(f"expr({str!r}): expected a string.", code="ARGUMENT", argument=repr(str))
    return TextColumn("row", str)


_TEXT = str


def resolved(given: Any, rows: RowsOfView, call: str) -> Expression:
    """Return an expression over rows as a plain tree."""
    if not isinstance(given, Expression):
        raise OptionError(
            f'{call}({given!r}): expected an expression such as col("total") > 100, with col from zset_join.expressions.',
            code="ARGUMENT",
            argument=repr(given),
        )

    def change(column: Column) -> Expression:
        if isinstance(column, ViewColumn):
            name = _name_in(rows.node, column)
            if name is None:
                raise _foreign(column, [rows])
            return Column("row", name)
        return _bound(column.name, {"row": rows}) if isinstance(column, TextColumn) else column

    return rewritten(given, change)


def titled(given: Any, rows: RowsOfView, call: str) -> NamedColumn:
    """Return an expression over rows and its name: from `alias`, its column, or its text."""
    tree = resolved(given, rows, call)
    if isinstance(given, Alias):
        return NamedColumn(given.title, tree)
    if isinstance(given, TextColumn):
        return NamedColumn(_read(given.name, {"row": rows}).title, tree)
    return NamedColumn(plain_column(tree) or repr(tree), tree)


def text_column(text: str, rows: RowsOfView) -> NamedColumn | None:
    """Return the column that a text of `selectExpr` computes; None of a star."""
    bound = _read(text, {"row": rows})
    return None if bound.tree is None else NamedColumn(bound.title, bound.tree)


def condition_over(given: Expression | str, left: RowsOfView, right: RowsOfView) -> Expression:
    """Return a condition over the rows of two views as a plain tree."""
    sides = {"left": left, "right": right}
    if isinstance(given, str):
        return _bound(given, sides)

    def change(column: Column) -> Expression:
        if isinstance(column, TextColumn):
            return _bound(column.name, sides)
        if not isinstance(column, ViewColumn):
            return column
        of_left, of_right = (_name_in(rows.node, column) for rows in (left, right))
        if (of_left is None) == (of_right is None):
            raise _foreign(column, [left, right])
        return Column("left", of_left) if of_left is not None else Column("right", str(of_right))

    return rewritten(given, change)


def condition_on(given: Any, name: str, schema: pa.Schema, argument: str) -> Expression:
    """Return a condition over rows of a source as a plain tree, given as an expression or a text."""
    return resolved(expr(given) if isinstance(given, str) else given, ExternalRows(name, schema), argument)


def schema_given(text: str) -> pa.Schema:
    from zset_join.sql_expressions.texts import schema_of

    return schema_of(text)


def _bound(text: str, sides: Mapping[str, RowsOfView]) -> Expression:
    tree = _read(text, sides).tree
    if tree is None:
        raise OptionError(f"{text!r} is not a value; a star is alone in a selection.", code="ARGUMENT", argument=text)
    return tree


def _read(text: str, sides: Mapping[str, RowsOfView]) -> BoundText:
    from zset_join.sql_expressions.texts import bound_text

    return bound_text(text, {side: (rows.name, rows.arrow_schema) for side, rows in sides.items()})


def _name_in(node: Node | None, column: ViewColumn) -> str | None:
    """Return the name of a view's column in rows that contain it unchanged; None where they do not."""
    if node is column.node:
        return column.name
    match node:
        case Apply(child, WhereStep()):
            return _name_in(child, column)
        case Apply(child, SelectStep() as step):
            name = _name_in(child, column)
            shown = None if name is None else dict(step.columns).get(name)
            return name if shown is not None and plain_column(shown) == name else None
        case Operate():
            names = [_name_in(one, column) for one in node.inputs]
            known = [name for name in names if name is not None]
            if len(known) != 1:
                return None
            is_of_both = sum(known[0] in visible(one) for one in node.inputs) > 1
            return node.request.shown_as(known[0], names.index(known[0]), is_of_both=is_of_both)
        case _:
            return None


def _foreign(column: ViewColumn, rows: list[RowsOfView]) -> PlanError:
    here = " and ".join(f'"{one.name}"' for one in rows)
    return PlanError(
        f'{column.view}["{column.name}"] is not a column of {here}: it is of another view, was computed '
        f'again, or is of both sides. Name it without the view: col("{column.name}"), in the condition of a join '
        f'left("{column.name}") or right("{column.name}").',
        code="UNKNOWN_COLUMN",
        name=column.view,
        missing=[column.name],
    )
