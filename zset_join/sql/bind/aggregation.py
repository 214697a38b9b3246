"""GROUP BY, HAVING and aggregates of a SELECT: what is computed for each group, and what represents it afterwards.

Keys may be expressions, names of the SELECT list, or places in it. An expression above the groups may use keys and
aggregates; a column that is neither is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlglot import exp

from zset_join.core.errors import PlanError, SqlError
from zset_join.expressions import Call, Column, Expression, lit
from zset_join.query import Aggregated, StateTtl, View
from zset_join.sql.bind.binding import QueryContext
from zset_join.sql.bind.scopes import Scope
from zset_join.sql_expressions.consumed import argument, disregard
from zset_join.sql_expressions.positions import is_quantified, near, written_name
from zset_join.sql_expressions.scalars import ScalarBinder

__all__ = [
    "AGGREGATES",
    "SEVERAL_SETS",
    "Aggregation",
    "aggregates_in",
    "has_aggregates",
    "has_grouping_sets",
    "is_aggregate",
    "joined_texts",
]

AGGREGATES: dict[type[exp.Expr], str] = {
    exp.Sum: "sum", exp.Avg: "avg", exp.Min: "min", exp.Max: "max", exp.Stddev: "stddev", exp.StddevPop: "stddev_pop",
    exp.StddevSamp: "stddev_samp", exp.Variance: "var_samp", exp.VariancePop: "var_pop", exp.ArgMax: "max_by", exp.ArgMin:
    "min_by", exp.LogicalAnd: "bool_and", exp.LogicalOr: "bool_or", exp.ArrayAgg: "collect_list", exp.ArrayUniqueAgg:
    "collect_set", exp.BitwiseAndAgg: "bit_and", exp.BitwiseOrAgg: "bit_or", exp.BitwiseXorAgg: "bit_xor", exp.GroupConcat:
    "collect_list", exp.AnyValue: "min",
}  # fmt: skip
SEVERAL_SETS = (exp.GroupingSets, exp.Rollup, exp.Cube)
_ORDERED = (exp.First, exp.FirstValue, exp.Last, exp.LastValue)
_ALIASES = {"every": exp.LogicalAnd, "some": exp.LogicalOr, "any": exp.LogicalOr}
_NAMES = ("avg", "bit_and", "bit_or", "bit_xor", "bool_and", "bool_or", "collect_list", "collect_set", "count", "count_if",
          "max", "max_by", "min", "min_by", "stddev", "stddev_pop", "stddev_samp", "sum", "var_pop",
          "var_samp", "variance")  # fmt: skip


def has_aggregates(node: exp.Select) -> bool:
    """Return whether a SELECT makes groups."""
    if node.args.get("group") is not None:
        return True
    parts = [*node.expressions, *([node.args.get("having")] if node.args.get("having") is not None else [])]
    return any(aggregates_in(part) for part in parts)


def has_grouping_sets(node: exp.Select) -> bool:
    group = node.args.get("group")
    return group is not None and (
        any(isinstance(one, SEVERAL_SETS) for one in group.expressions)
        or any(group.args.get(name) for name in ("rollup", "cube", "grouping_sets"))
    )


def is_aggregate(node: exp.Expr) -> bool:
    """Return whether a node is an aggregate, with its FILTER."""
    is_one = isinstance(node, exp.Filter | exp.AggFunc | exp.Any) and not is_quantified(node)
    return is_one or _is_named_aggregate(node)


def aggregates_in(node: exp.Expr) -> list[exp.Expr]:
    """Return the aggregates in an expression, outermost only, none inside windows or subqueries."""
    if isinstance(node, exp.Window | exp.Query | exp.Subquery):
        return []
    if is_aggregate(node):
        return [node]
    return [call for child in node.iter_expressions() for call in aggregates_in(child)]


def _is_named_aggregate(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.lower() in _ALIASES and len(node.expressions) == 1


class Aggregation:
    """Group the rows of a SELECT."""

    def __init__(self, query: QueryContext, scope: Scope, view: View, binder: ScalarBinder) -> None:
        self._query = query
        self._scope = scope
        self._view = view
        self._binder = binder
        self._keys: list[tuple[str, Expression]] = []
        self._calls: list[tuple[exp.Expr, str]] = []

    def group(
        self,
        node: exp.Select,
        outputs: Sequence[tuple[str, Any]],
        *,
        row_number: exp.Alias | None = None,
        state_ttl: StateTtl | None = None,
    ) -> View:
        """Return the groups, with keys and aggregates as columns."""
        group = node.args.get("group")
        if group is not None:
            if group.args.get("totals"):
                raise SqlError(
                    "GROUP BY ... WITH TOTALS is not supported; use GROUPING SETS.", code="NOT_OFFERED", at=self._query.at(node)
                )
            if group.args.get("all") is False or (group.args.get("all") and group.expressions):
                raise SqlError(
                    "GROUP BY ALL takes no list, and GROUP BY DISTINCT is not supported. Write GROUP BY and the keys.",
                    code="NOT_OFFERED",
                    at=self._query.at(node),
                )
            # GROUP BY () is one group.
            listed = [one for one in group.expressions if not (isinstance(one, exp.Tuple) and not one.expressions)]
            every = [one for _, one in outputs if isinstance(one, exp.Expr) and not aggregates_in(one)]
            for key in every if group.args.get("all") else listed:
                tree = self._binder.bind(self._key(key, outputs))
                name = tree.name if isinstance(tree, Column) else f"key {len(self._keys) + 1}"
                if not any(known.same_as(tree) for _, known in self._keys):
                    self._keys.append((name, tree))
        aggregated = []
        parts = [one for _, one in outputs if isinstance(one, exp.Expr)]
        if node.args.get("having") is not None:
            parts.append(argument(node, "having"))
        parts += [] if row_number is None else list(row_number.this.iter_expressions())
        for call in [call for part in parts for call in aggregates_in(part)]:
            if self._name_of(call) is None:
                name = f"aggregate {len(self._calls) + 1}"
                aggregated.append(self._aggregated(call).alias(name))
                self._calls.append((call, name))
            else:
                # It is written again.
                disregard(call)
        keys = {name: Column("left", tree.name) if isinstance(tree, Column) else tree for name, tree in self._keys}
        try:
            if not aggregated:
                return self._view.select(keys).distinct(state_ttl=state_ttl)
            return self._view.groupBy(**keys).agg(*aggregated, state_ttl=state_ttl)
        except PlanError as error:
            raise SqlError(error.message, code=error.code, at=self._query.at(node)) from error

    def replace(self, node: exp.Expr) -> Expression | None:
        """Return the column that represents an aggregate or a key; None for others."""
        name = self._name_of(node)
        if name is not None:
            column: Expression = Column("row", name)
            call = node.this if isinstance(node, exp.Filter) else node
            return joined_texts(call, column) if isinstance(call, exp.GroupConcat) else column
        if isinstance(node, exp.Literal | exp.Boolean | exp.Null | exp.Interval) or aggregates_in(node):
            return None
        try:
            tree = self._binder.bind(node)
        except PlanError:
            return None
        return next((Column("row", name) for name, known in self._keys if known.same_as(tree)), None)

    def not_grouped(self, node: exp.Column) -> Expression:
        """Refuse a column that is no key."""
        self._scope.find(node)
        keys = ", ".join(repr(tree) for _, tree in self._keys) or "nothing"
        raise SqlError(
            f'"{node.name}" is neither grouped by nor aggregated; the groups are by {keys}. Add it to GROUP BY, or take max or '
            "min of it.",
            code="NOT_GROUPED",
            at=self._query.at(node),
        )

    def _key(self, node: exp.Expr, outputs: Sequence[tuple[str, Any]]) -> exp.Expr:
        if isinstance(node, exp.Literal) and node.is_int:
            place = int(node.name)
            if not 1 <= place <= len(outputs) or not isinstance(outputs[place - 1][1], exp.Expr):
                raise SqlError(
                    f"GROUP BY {place}: the SELECT list has no such position.", code="NOT_OFFERED", at=self._query.at(node)
                )
            chosen: exp.Expr = outputs[place - 1][1]
            return self._no_aggregate(chosen, node)
        if isinstance(node, exp.Column) and not node.table and self._scope.search(node) is None:
            for name, one in outputs:
                if name.lower() == node.name.lower() and isinstance(one, exp.Expr):
                    return self._no_aggregate(one, node)
        return self._no_aggregate(node, node)

    def _no_aggregate(self, key: exp.Expr, node: exp.Expr) -> exp.Expr:
        if aggregates_in(key):
            raise SqlError(
                "rows are not grouped by an aggregate. Group a query that aggregates in FROM.",
                code="NOT_OFFERED",
                at=self._query.at(node),
            )
        return key

    def _name_of(self, node: exp.Expr) -> str | None:
        return next((name for call, name in self._calls if call is node or call == node), None)

    def _aggregated(self, node: exp.Expr) -> Aggregated:
        condition: Expression | None = None
        call = node
        if isinstance(node, exp.Filter):
            call = node.this
            condition = self._binder.condition(node.expression.this)
        aggregated = self._call(call)
        return aggregated if condition is None else aggregated.filter(condition)

    def _call(self, node: exp.Expr) -> Aggregated:
        if isinstance(node, exp.Any):
            node = exp.LogicalOr(this=node.this)
        elif _is_named_aggregate(node):
            node = _ALIASES[node.name.lower()](this=node.expressions[0])
        given = node.this
        if isinstance(node, exp.ApproxDistinct):
            # Exact, so near enough.
            return Aggregated(function="count_distinct", columns=(self._argument(given),))
        if isinstance(node, _ORDERED):
            raise SqlError(
                f"{node.sql_name()} depends on the order of arrival. Write min_by(value, time) or max_by(value, time).",
                code="NOT_OFFERED",
                at=self._query.at(node),
            )
        if isinstance(node, exp.CountIf):
            return Aggregated(function="count", condition=self._binder.condition(given), shown="count_if")
        if isinstance(node, exp.Count):
            if given is None or isinstance(given, exp.Star | exp.Literal):
                return Aggregated(function="count")
            if isinstance(given, exp.Distinct):
                if not given.expressions:
                    raise SqlError("count(DISTINCT ...) takes values.", code="NOT_OFFERED", at=self._query.at(node))
                return Aggregated(function="count_distinct", columns=tuple(self._argument(one) for one in given.expressions))
            if node.expressions:
                raise SqlError(
                    "count takes one value; write count(DISTINCT a, b).", code="NOT_OFFERED", at=self._query.at(node)
                )
            return Aggregated(function="count", columns=(self._argument(given),))
        function = AGGREGATES.get(type(node))
        name = written_name(node, self._query.statement.written).upper() or (
            node.sql_name() if isinstance(node, exp.Func) else type(node).__name__
        )
        if function is None:
            raise SqlError(
                f"the aggregate {name} is not supported.{near(name, _NAMES)}", code="UNKNOWN_FUNCTION", at=self._query.at(node)
            )
        if isinstance(given, exp.Distinct):
            if function not in {"min", "max"}:
                raise SqlError(
                    f"{name}(DISTINCT ...) is not supported; take the DISTINCT rows in a subquery.",
                    code="NOT_OFFERED",
                    at=self._query.at(node),
                )
            if len(given.expressions) != 1:
                raise SqlError(f"{name}(DISTINCT ...) takes one value.", code="NOT_OFFERED", at=self._query.at(node))
            given = given.expressions[0]
        if node.args.get("expressions") or node.args.get("count") is not None:
            more = "; write greatest(a, b) or least(a, b) for those of a row" if function in {"min", "max"} else ""
            raise SqlError(f"{name} is given too many operands{more}.", code="NOT_OFFERED", at=self._query.at(node))
        if isinstance(given, exp.Order):
            raise SqlError(
                f"{name} with an order is not supported: rows of a changelog have none. Sort its result.",
                code="NOT_OFFERED",
                at=self._query.at(node),
            )
        if isinstance(node, exp.GroupConcat):
            separator = node.args.get("separator")
            if separator is not None and not (isinstance(separator, exp.Literal) and separator.is_string):
                raise SqlError(f"the separator of {name} is a literal text.", code="NOT_OFFERED", at=self._query.at(node))
            return Aggregated(function=function, columns=(self._argument(given, is_text=True),))
        columns = [self._argument(given)]
        if function in {"min_by", "max_by"}:
            columns.append(self._argument(node.expression))
        return Aggregated(function=function, columns=tuple(columns))

    def _argument(self, node: exp.Expr, *, is_text: bool = False) -> Expression:
        if aggregates_in(node):
            raise SqlError(
                "an aggregate inside an aggregate is not supported; nest queries.", code="NOT_OFFERED", at=self._query.at(node)
            )
        tree = self._binder.text(node) if is_text else self._binder.bind(node)
        return Column("left", tree.name) if isinstance(tree, Column) else lit(tree)


def joined_texts(node: exp.Expr, values: Expression) -> Expression:
    """Return the values of a group as one text; NULL where there are none."""
    given = node.args.get("separator")
    separator = lit(given.name if isinstance(given, exp.Literal) else "")
    joined = Call("array_join", (values, separator))
    return Call("case", (Call("gt", (Call("size", (values,)), lit(0))), joined))
