"""Functions in FROM that make rows of the rows of a table: windows of time, and what others register.

    FROM TUMBLE(events, at, INTERVAL '10 minutes')          FROM name(events, column, ...)          FROM TABLE(name(...))

The first operand names a table, a view or a query of WITH; a function is given it as an item of FROM and returns the item with
other rows. One that needs a stage of its own puts it over the view with `View.operate`.

TUMBLE, HOP and CUMULATE give a table the columns `window_start` and `window_end`:

    FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(at), INTERVAL '10' MINUTES))          Flink
    FROM TUMBLE(events, at, INTERVAL '10 minutes')                                   RisingWave
    FROM tumble(events, at, 10m)                                                     Timeplus
    FROM HOP(events, at, INTERVAL '5' MINUTES, INTERVAL '10' MINUTES)                slide, then size; Timeplus' hop the same
    FROM TABLE(CUMULATE(TABLE events, DESCRIPTOR(at), INTERVAL '2' MINUTES, INTERVAL '10' MINUTES))     step, then size
    FROM tumble(events, 10m)                                                         Timeplus: over _tp_time

The law: a row is in the windows that hold its time, begin included and end not, and without a time in none; windows begin at
1970-01-01. A window is two columns more, so its groups are corrected as long as rows arrive; nothing waits for a watermark.

Windows of CUMULATE begin together and end a step later each, up to the size: a row is in those that end after its time.

Known limits: at most 100 windows hold a row. SESSION is not supported: its windows depend on the rows between.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable

import pyarrow as pa
from sqlglot import exp

from zset_join.core.errors import OptionError, PlanError, SqlError
from zset_join.core.extras import load_extensions
from zset_join.expressions import Call, Column, Expression, lit
from zset_join.expressions.rows import named
from zset_join.expressions.type_rules import kind_of, plain_type
from zset_join.query import View
from zset_join.sql.bind.binding import QueryContext
from zset_join.sql.bind.scopes import Item
from zset_join.sql_expressions.consumed import Position, near, pick
from zset_join.sql_expressions.types import span_of

__all__ = ["Item", "QueryContext", "column_of", "names_one_table", "register_table_function", "table_function"]

WINDOWS = ("TUMBLE", "HOP", "CUMULATE")
_MOST_WINDOWS = 100
_TP_TIME = "_tp_time"
_MICROSECOND = datetime.timedelta(microseconds=1)


def names_one_table(call: exp.Anonymous) -> bool:
    return len(call.expressions) == 1 and isinstance(call.expressions[0], exp.Column)


def windowed(item: Item, call: exp.Anonymous, query: QueryContext) -> Item:
    at = query.at(call)
    kind, operands = call.name.upper(), call.expressions
    spans_wanted = 1 if kind == "TUMBLE" else 2
    if len(operands) == spans_wanted + 1 and _TP_TIME in item.columns:
        operands = [operands[0], exp.column(_TP_TIME), *operands[1:]]
    if len(operands) != spans_wanted + 2:
        wanted = {"TUMBLE": "a size", "HOP": "a slide and a size", "CUMULATE": "a step and a size"}[kind]
        raise SqlError(
            f"{kind} takes a table, a time{'' if spans_wanted > 1 else ' and'}{',' if spans_wanted > 1 else ''} {wanted}.",
            code="NOT_OFFERED",
            at=at,
        )
    time = _time(item, operands[1], at)
    spans = [_span(one, at) for one in operands[2:]]
    slide, size = (spans[0], spans[0]) if kind == "TUMBLE" else (spans[0], spans[1])
    if size % slide or size // slide > _MOST_WINDOWS:
        raise SqlError(
            f"the size of a window is a multiple of its slide, at most {_MOST_WINDOWS} times.", code="NOT_OFFERED", at=at
        )
    taken = pick(item.columns, "window_start") or pick(item.columns, "window_end")
    if taken is not None:
        raise SqlError(f"the table has a column {taken}; rename it in a view.", code="DUPLICATE_COLUMN", at=at)
    timed = item.view.where(Call("is_not_null", (named(time),)))
    view: View | None = None
    try:
        for back in range(size // slide):
            one = (
                _with_step(timed, time, slide, size, size // slide - back)
                if kind == "CUMULATE"
                else _with_window(timed, time, slide, size, back)
            )
            view = one if view is None else view.union(one)
    except PlanError as error:
        raise SqlError(error.message, code=error.code, at=at) from error
    if view is None:
        raise AssertionError("a size holds at least one slide")
    item.view = view
    item.columns = {**item.columns, "window_start": "window_start", "window_end": "window_end"}
    item.shown = None if item.shown is None else (*item.shown, "window_start", "window_end")
    item.table = None
    return item


def _with_step(view: View, time: str, step: int, size: int, steps: int) -> View:
    """Return the rows that are in the window of so many steps."""
    whole = _with_window(view, time, size, size, 0)
    end = Call("add", (named("window_start"), lit(steps * step * _MICROSECOND)))
    windowed = whole.select({**{name: named(name) for name in whole.columns}, "window_end": end})
    return windowed if steps * step == size else windowed.where(Call("lt", (named(time), named("window_end"))))


def _with_window(view: View, time: str, slide: int, size: int, back: int) -> View:
    micros = Call("unix_time", (lit("microsecond"), Column("row", time)))
    rest: Expression = Call("remainder", (micros, lit(slide)))
    # Before 1970 a remainder is negative.
    rest = Call("case", (Call("lt", (rest, lit(0))), Call("add", (rest, lit(slide))), rest))
    begin = Call("subtract", (Column("row", time), Call("duration_of", (lit(1), rest))))
    if back:
        begin = Call("subtract", (begin, lit(back * slide * _MICROSECOND)))
    end = Call("add", (begin, lit(size * _MICROSECOND)))
    return view.select({**{name: named(name) for name in view.columns}, "window_start": begin, "window_end": end})


def _time(item: Item, node: exp.Expr, at: Position) -> str:
    if isinstance(node, exp.Anonymous) and node.name.upper() == "DESCRIPTOR" and len(node.expressions) == 1:
        node = node.expressions[0]
    name = pick(item.columns, node.name) if isinstance(node, exp.Column) else None
    if name is None:
        raise SqlError(
            f"a window is over a column of time of the table.{near(node.name, item.columns)}", code="UNKNOWN_COLUMN", at=at
        )
    kind = plain_type(item.view.schema.field(name).type)
    if kind_of(kind) not in {"timestamp", "instant"} or kind.unit != pa.timestamp("us").unit:
        raise SqlError(
            f'"{name}" is of type {kind}; a window is over a timestamp. Cast it in a view.', code="NOT_OFFERED", at=at
        )
    return name


def _span(node: exp.Expr, at: Position) -> int:
    if isinstance(node, exp.Column) and not node.table:
        # 10m is read as a name.
        node = exp.Interval(this=exp.Literal.string(node.name))
    try:
        months, span = span_of(node) if isinstance(node, exp.Interval) else (1, datetime.timedelta(0))
    except ValueError as error:
        raise SqlError(f"{error}.", code="NOT_OFFERED", at=at) from None
    micros = span // _MICROSECOND
    if months or micros <= 0:
        raise SqlError(
            "the size of a window is an interval of days or less, as INTERVAL '10' MINUTES.", code="NOT_OFFERED", at=at
        )
    return micros


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
