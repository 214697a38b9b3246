"""GROUP BY, HAVING and aggregates of a SELECT: what is computed for each group, and what represents it afterwards.

Keys may be expressions, names of the SELECT list, or places in it. An expression above the groups may use keys and
aggregates; a column that is neither is refused.

`expanded`: GROUPING SETS, ROLLUP and CUBE: one SELECT for each set, put together by UNION ALL.

The law: Spark's. A key that is not in a set is NULL in its rows, and of its type: `max` of nothing represents it. Aggregates
read the rows as they are. An empty table has no groups, that of the empty set neither, unless it is the only one.

Known limits: at most 64 sets.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from sqlglot import exp

from zset_join.core.errors import PlanError, SqlError
from zset_join.expressions import Call, Column, Expression, lit
from zset_join.query import Aggregated, StateTtl, View
from zset_join.sql.bind.binding import QueryContext
from zset_join.sql.bind.scopes import Scope
from zset_join.sql_expressions.consumed import argument, copied, disregard, is_quantified, near, pick, written_name
from zset_join.sql_expressions.scalars import ScalarBinder

__all__ = ["AGGREGATES", "Aggregation", "aggregates_in", "expanded", "has_aggregates", "has_grouping_sets", "joined_texts"]

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


MOST_SETS = 64


def expanded(node: exp.Select, scope: Scope) -> list[exp.Select]:
    """Return one SELECT for each set of keys, with the same names of columns."""
    node = _qualified(node, scope)
    group = argument(node, "group")
    sets: list[tuple[exp.Expr, ...]] = [()]
    plain = [one for one in group.expressions if not isinstance(one, SEVERAL_SETS)]
    special = [one for one in group.expressions if isinstance(one, SEVERAL_SETS)]
    for name in ("rollup", "cube", "grouping_sets"):
        for one in group.args.get(name) or []:
            # GROUP BY a, b WITH ROLLUP rolls up what is before.
            special.append(one if one.expressions else type(one)(expressions=plain))
            plain = plain if one.expressions else []
    for one in special:
        sets = [(*before, *more) for before in sets for more in _sets(one)]
        if len(sets) > MOST_SETS:
            raise ValueError(f"more than {MOST_SETS} sets of keys; use fewer")
    meant = {id(key): _meant(key, node, scope) for key in [*plain, *(key for one in sets for key in one)]}
    chosen = [_distinct([meant[id(key)] for key in [*plain, *one]]) for one in sets]
    keys = _distinct([key for one in chosen for key in one])
    # Without any key there is one group, of an empty table too; beside sets with keys a set without is a group of rows.
    return [_select(node, one, keys, is_grouped=bool(keys)) for one in chosen]


def _qualified(node: exp.Select, scope: Scope) -> exp.Select:
    """Return a SELECT whose columns name their item, so that one column is written in one way."""
    part = copied(node)
    clauses = [
        *part.expressions,
        part.args.get("group"),
        *([part.args.get("having")] if part.args.get("having") is not None else []),
    ]
    listed = {one.alias.lower() for one in part.expressions if isinstance(one, exp.Alias)}
    for place, one in enumerate(part.expressions):
        if isinstance(one, exp.Column) and not isinstance(one.this, exp.Star):
            part.expressions[place].replace(exp.alias_(copied(one), one.name, quoted=True, copy=False))
    clauses = [*part.expressions, *clauses[len(part.expressions) :]]
    for column in [column for clause in clauses for column in clause.find_all(exp.Column)]:
        if column.find_ancestor(exp.Query) is not part or isinstance(column.this, exp.Star):
            continue
        is_alias = not column.table and column.name.lower() in listed
        if (is_alias and column.find_ancestor(exp.Having) is not None) or scope.search(column) is None:
            continue
        item, physical = scope.find(column)
        if not column.table and pick(scope.merged, column.name) is not None:
            continue
        name = next(shown for shown, own in item.columns.items() if own == physical)
        column.this.set("this", name)
        column.this.set("quoted", True)
        column.set("table", exp.to_identifier(item.alias, quoted=True))
    return part


def _meant(key: exp.Expr, node: exp.Select, scope: Scope) -> exp.Expr:
    """Return the meaning of a key: a position or a name of the SELECT list means that expression."""
    outputs = [one.this if isinstance(one, exp.Alias) else one for one in node.expressions]
    if isinstance(key, exp.Literal) and key.is_int:
        if not 1 <= int(key.name) <= len(outputs):
            raise ValueError(f"GROUP BY {key.name}: the SELECT list has no such position")
        chosen: exp.Expr = outputs[int(key.name) - 1]
        return chosen
    if isinstance(key, exp.Column) and not key.table and scope.search(key) is None:
        for one in node.expressions:
            if isinstance(one, exp.Alias) and one.alias.lower() == key.name.lower():
                meant: exp.Expr = one.this
                return meant
    return key


def _sets(node: exp.Expr) -> list[tuple[exp.Expr, ...]]:
    parts = [_keys(one) for one in node.expressions]
    if isinstance(node, exp.GroupingSets):
        nested = [_sets(one) if isinstance(one, SEVERAL_SETS) else [_keys(one)] for one in node.expressions]
        return [one for sets in nested for one in sets]
    if isinstance(node, exp.Rollup):
        return [tuple(itertools.chain(*parts[:count])) for count in range(len(parts), -1, -1)]
    if len(parts) > 6:
        raise ValueError(f"more than {MOST_SETS} sets of keys; use fewer")
    chosen = itertools.product([True, False], repeat=len(parts))
    return [tuple(itertools.chain(*(part for part, is_in in zip(parts, one, strict=True) if is_in))) for one in chosen]


def _keys(node: exp.Expr) -> tuple[exp.Expr, ...]:
    if isinstance(node, exp.Paren):
        return (node.this,)
    return tuple(node.expressions) if isinstance(node, exp.Tuple) else (node,)


def _distinct(keys: list[exp.Expr]) -> list[exp.Expr]:
    nodes: list[exp.Expr] = []
    for key in keys:
        if key not in nodes:
            nodes.append(key)
    return nodes


def _select(node: exp.Select, chosen: list[exp.Expr], keys: list[exp.Expr], *, is_grouped: bool) -> exp.Select:
    part = copied(node)
    listed = [copied(key) for key in chosen] or ([exp.true()] if is_grouped else [])
    part.set("group", exp.Group(expressions=listed) if listed else None)
    part.set("distinct", None)
    part.set("order", None)
    part.set("limit", None)
    part.set(
        "expressions",
        [
            _named(original, _without(one, chosen, keys))
            for original, one in zip(node.expressions, part.expressions, strict=True)
        ],
    )
    if part.args.get("having") is not None:
        argument(part, "having").set("this", _without(argument(part, "having").this, chosen, keys))
    return part


def _named(original: exp.Expr, made: exp.Expr) -> exp.Expr:
    return (
        made
        if isinstance(made, exp.Alias)
        else exp.alias_(made, original.sql(dialect="spark").lower(), quoted=True, copy=False)
    )


def _without(node: exp.Expr, chosen: list[exp.Expr], keys: list[exp.Expr]) -> exp.Expr:
    """Return an expression with NULL for the keys that are not grouped by."""
    if node in chosen or isinstance(node, exp.Query):
        return node
    if node in keys:
        return exp.Max(this=exp.Case(ifs=[exp.If(this=exp.false(), true=copied(node))]))
    if isinstance(node, exp.Grouping | exp.GroupingId):
        return _number(node, chosen, keys)
    if not is_aggregate(node):
        for child in list(node.iter_expressions()):
            replaced = _without(child, chosen, keys)
            if replaced is not child:
                child.replace(replaced)
    return node


def _number(node: exp.Expr, chosen: list[exp.Expr], keys: list[exp.Expr]) -> exp.Expr:
    """Return grouping(a): 1 where a is not grouped by; grouping_id(a, b): of these the number in binary."""
    grouped_by = node.expressions or keys
    if any(one not in keys for one in grouped_by) or (isinstance(node, exp.Grouping) and len(node.expressions) != 1):
        raise ValueError("grouping(a) and grouping_id(a, b) take keys of GROUP BY")
    # The keys are compared, not bound.
    disregard([*node.expressions])
    number = sum(1 << place for place, one in enumerate(reversed(grouped_by)) if one not in chosen)
    kind = "TINYINT" if isinstance(node, exp.Grouping) else "BIGINT"
    return exp.cast(exp.Literal.number(number), kind)
