"""Functions in FROM that make rows of the rows of a table: windows of time, and what others register.

    FROM TUMBLE(events, at, INTERVAL '10 minutes')          FROM name(events, column, ...)          FROM TABLE(name(...))

The first operand names a table, a view or a query of WITH; a function is given it as an item of FROM and returns the item with
other rows. One that needs a stage of its own puts it over the view with `View.operate`.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from zset_join.core.errors import OptionError, SqlError
from zset_join.core.extras import load_extensions
from zset_join.sql.bind.binding import QueryContext
from zset_join.sql.bind.scopes import Item
from zset_join.sql.bind.windows import WINDOWS, windowed
from zset_join.sql_expressions.positions import Position, near, pick

__all__ = ["Item", "QueryContext", "TableFunction", "column_of", "register_table_function", "table_function"]

TableFunction = Callable[[Item, exp.Anonymous, QueryContext], Item]
"""Given the table as an item of FROM, the call with all its operands, and the query: the item with other rows."""

_functions: dict[str, TableFunction] = dict.fromkeys(WINDOWS, windowed)


def register_table_function(name: str, function: TableFunction) -> None:
    """Let FROM call a function of a name, in whatever case it is written."""
    if _functions.setdefault(name.upper(), function) is not function:
        raise OptionError(f'there is a table function "{name}" already; choose another name.', code="TABLE_FUNCTION", name=name)


def table_function(call: exp.Anonymous) -> TableFunction | None:
    """Return the function that a call in FROM names, where its first operand names a table; None where there is none."""
    if not call.expressions or not isinstance(call.expressions[0], exp.Column):
        return None
    name = call.name.upper()
    if name not in _functions:
        load_extensions()
    return _functions.get(name)


def column_of(item: Item, operand: exp.Expr, at: Position) -> str:
    """Return the column of the view that an operand names, plainly or as DESCRIPTOR(column)."""
    if isinstance(operand, exp.Anonymous) and operand.name.upper() == "DESCRIPTOR" and len(operand.expressions) == 1:
        operand = operand.expressions[0]
    name = pick(item.columns, operand.name) if isinstance(operand, exp.Column) else None
    if name is None:
        text = operand.sql(dialect="spark")
        raise SqlError(f"{text} names no column of the table.{near(operand.name, item.columns)}", code="UNKNOWN_COLUMN", at=at)
    return name
