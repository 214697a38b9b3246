"""A query as it is written, as SQL: every node of its tree a SELECT, in Spark's dialect.

    SELECT `customer`, sum(`total`) AS `revenue` FROM `orders` GROUP BY `customer`

The law: the text, bound again over the same tables, is a query with the same answers; and what came from SQL is the same tree
again, from the second writing on (names that the binder makes are then there). So a text is a query's normal form.

Known limits: tables are named, not declared; joins with outside tables and rows of Python functions are not written; a list or
set has the usual bound.
"""

# ruff: noqa: S608 - every name goes through `quote_name`, every expression through `to_sql`.

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from zset_join.aggregates.calls import AggregateCall
from zset_join.errors import PlanError
from zset_join.expressions import Column, Expression
from zset_join.expressions.sql_text import quote_name, to_sql
from zset_join.pipeline import View
from zset_join.plan.requests import AggregateRequest, JoinRequest, LatestRequest
from zset_join.plan.row_steps import SelectStep, WhereStep
from zset_join.plan.timed_requests import DedupRequest, ExpiringRequest
from zset_join.plan.tree import Apply, Forward, Merge, Node, Operate, Read, visible
from zset_join.stages.join import JoinStage
from zset_join.state.join.join_shape import joined_schema

__all__ = ["plan_sql"]

_HOW = {"inner": "JOIN", "left": "LEFT JOIN", "right": "RIGHT JOIN", "full": "FULL JOIN", "left_semi": "LEFT SEMI JOIN",
        "left_anti": "LEFT ANTI JOIN"}  # fmt: skip
_FUNCTIONS = {"mean": "avg", "variance": "var_samp", "first": "min_by", "last": "max_by", "stddev": "stddev_samp"}
_USUAL_LIMIT = 10_000


def plan_sql(view: View) -> str:
    """Return a query as SQL.

    Args:
        view: what it gives.

    Raises:
        PlanError: it holds what is not written as SQL.

    >>> from zset_join.pipeline import appends
    >>> from zset_join.expressions import col
    >>> plan_sql(appends("t", {"a": pa.int32()}).where(col("a") > 1).distinct())
    'SELECT DISTINCT `a` FROM (SELECT `a` FROM `t` AS `rows` WHERE (`a` > 1)) AS `rows`'
    """
    return _Writer().select(view.node)


class _Writer:
    """Write the nodes of a tree, one inside the other."""

    def select(self, node: Node) -> str:
        """Return a node as a SELECT of its columns, in order."""
        match node:
            case Read():
                return f"SELECT {_names(visible(node))} FROM {_quoted(node.source.name)}"
            case Forward():
                return self.select(node.inputs[0])
            case Merge():
                return " UNION ALL ".join(f"({self.select(part)})" for part in node.parts)
            case Apply():
                return self._applied(node)
            case Operate():
                return self._operated(node)
        raise _unwritten(type(node).__name__)

    def _applied(self, node: Apply) -> str:
        source, schema = self.source(node.child), node.child.relation.schema
        if isinstance(node.step, WhereStep):
            return f"SELECT {_names(visible(node))} FROM {source} WHERE {_row(node.step.condition, schema)}"
        if isinstance(node.step, SelectStep):
            hidden = set(node.hidden)
            chosen = [f"{_row(tree, schema)} AS {_quoted(name)}" for name, tree in node.step.columns if name not in hidden]
            return f"SELECT {', '.join(chosen)} FROM {source}"
        raise _unwritten(node.step.describe())

    def source(self, node: Node, name: str = "rows") -> str:
        """Return a node as an item of FROM."""
        while isinstance(node, Forward):
            node = node.inputs[0]
        if isinstance(node, Operate) and isinstance(node.request, LatestRequest):
            return self.source(node.inputs[0], name)
        if isinstance(node, Read):
            return f"{_quoted(node.source.name)} AS {_quoted(name)}"
        return f"({self.select(node)}) AS {_quoted(name)}"

    def _operated(self, node: Operate) -> str:
        match node.request:
            case JoinRequest():
                return self._joined(node, node.request)
            case AggregateRequest():
                return self._grouped(node, node.request)
            case DedupRequest():
                return self._first(node, node.request)
            case ExpiringRequest():
                raise _unwritten("state that ends by time")
            case LatestRequest():
                return f"SELECT {_names(node.relation.schema.names)} FROM {self.source(node.inputs[0])}"
        raise _unwritten(type(node.request).__name__.removesuffix("Request"))

    def _joined(self, node: Operate, request: JoinRequest) -> str:
        stage = node.stage
        if not isinstance(stage, JoinStage):
            raise _unwritten("join")
        names = request.names or (stage.left.name, stage.right.name)
        aliases = names if names[0].lower() != names[1].lower() else (names[0], f"{names[1]}_2")
        one, other = (self.source(child, alias) for child, alias in zip(node.inputs, aliases, strict=True))
        schemas = {"left": node.inputs[0].relation.schema, "right": node.inputs[1].relation.schema}
        on = [
            f"({_sided(mine, schemas['left'], aliases[0])} {'<=>' if is_safe else '='} "
            f"{_sided(theirs, schemas['right'], aliases[1])})"
            for (mine, theirs), is_safe in zip(request.keys, request.null_safe, strict=True)
        ]
        if request.condition is not None:
            tables = dict(zip(("left", "right"), aliases, strict=True))
            on.append(
                to_sql(
                    request.condition,
                    schemas,
                    dialect="spark",
                    columns=lambda side, name: f"{_quoted(tables[side])}.{_quoted(name)}",
                )
            )
        schema, sources = joined_schema(stage.left, stage.right, stage.how, using=stage.using, output_names=None)
        shown = dict(zip(schema.names, sources, strict=True))
        chosen = []
        for name in node.relation.schema.names:
            side, column = shown[name]
            mine, theirs = (f"{_quoted(alias)}.{_quoted(column)}" for alias in aliases)
            value = {"left": mine, "right": theirs}.get(side, f"coalesce({mine}, {theirs})")
            chosen.append(f"{value} AS {_quoted(name)}")
        return f"SELECT {', '.join(chosen)} FROM {one} {_HOW[stage.how]} {other} ON {' AND '.join(on)}"

    def _grouped(self, node: Operate, request: AggregateRequest) -> str:
        child = node.inputs[0]
        if not request.calls:
            return f"SELECT DISTINCT {_names(request.group_by)} FROM {self.source(child)}"
        texts = {name: _quoted(name) for name in child.relation.schema.names}
        if isinstance(child, Apply) and isinstance(child.step, SelectStep) and any(name.startswith("__") for name in texts):
            # What an aggregate computes before it is written inside its calls.
            inner = child.child.relation.schema
            texts = {name: _row(tree, inner) for name, tree in child.step.columns}
            child = child.child
        keys = [texts[name] for name in request.group_by]
        chosen = [f"{text} AS {_quoted(name)}" for name, text in zip(request.group_by, keys, strict=True)]
        chosen += [f"{_call(call, texts)} AS {_quoted(call.name)}" for call in request.calls]
        return f"SELECT {', '.join(chosen)} FROM {self.source(child)}" + (f" GROUP BY {', '.join(keys)}" if keys else "")

    def _first(self, node: Operate, request: DedupRequest) -> str:
        child = node.inputs[0]
        order = []
        for one in request.order_by:
            column, _, direction = one.rpartition(" ")
            name, is_down = (column, direction == "desc") if direction in {"asc", "desc"} and column else (one, False)
            # The last rows of an order are the first of the other way round.
            order.append(f"{_quoted(name)}{' DESC' if is_down is (request.keep == 'first') else ''}")
        columns = _names(visible(child))
        number = _quoted("number")
        keys = _names(request.keys)
        inner = (
            f"SELECT {columns}, ROW_NUMBER() OVER (PARTITION BY {keys} ORDER BY {', '.join(order)}) AS {number} "
            f"FROM {self.source(child)}"
        )
        return f"SELECT {columns} FROM ({inner}) AS `rows` WHERE {number} <= {request.n}"


def _call(call: AggregateCall, texts: Mapping[str, str]) -> str:
    if call.limit != _USUAL_LIMIT:
        raise _unwritten(f"{call.name} with a limit of {call.limit}")
    columns = ", ".join(texts[name] for name in call.columns)
    function = _FUNCTIONS.get(call.function, call.function)
    text = f"count(DISTINCT {columns})" if function == "count_distinct" else f"{function}({columns or '*'})"
    if call.where is None:
        return text
    if not isinstance(call.where, Column):
        raise _unwritten(f"{call.name} with a filter that is no column")
    return f"{text} FILTER (WHERE {texts[call.where.name]})"


def _names(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(map(_quoted, names))


def _quoted(name: str) -> str:
    return quote_name(name, "spark")


def _row(tree: Expression, schema: pa.Schema) -> str:
    """Return an expression over the rows of one table, which may call its side left, or nothing."""
    return to_sql(tree, dict.fromkeys(("row", "left", "right"), schema), dialect="spark", columns=lambda _, name: _quoted(name))


def _sided(tree: Expression, schema: pa.Schema, alias: str) -> str:
    schemas: Mapping[str, pa.Schema] = dict.fromkeys(("row", "left", "right"), schema)
    return to_sql(tree, schemas, dialect="spark", columns=lambda _, name: f"{_quoted(alias)}.{_quoted(name)}")


def _unwritten(what: str) -> PlanError:
    return PlanError(f"{what} is not written as SQL; see the plan instead.", code="NOT_WRITTEN", what=what)
