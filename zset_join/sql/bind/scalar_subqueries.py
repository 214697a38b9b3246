"""Scalar subqueries: each becomes a column of the rows by a LEFT join.

    WHERE total > (SELECT avg(total) FROM orders)                                     one row: joined to all
    (SELECT count(*) FROM orders o WHERE o.customer = c.id)                           grouped by the customer
    (SELECT name FROM customers c WHERE c.id = o.customer)                            its primary key allows one row only

The law: the column holds what Spark's subquery gives for the row. Of a correlated aggregate the join brings the aggregates, and
what is made of them is computed behind it: where no row is there a count is 0, others are NULL, and `coalesce(sum(v), 0)` is 0.

EXISTS within an expression is the count of its rows, above 0.

Over groups, the rows outside are the groups: a subquery in SELECT or HAVING is tied to keys of GROUP BY.

Refused: subqueries that may give several rows; conditions on the rows outside that are no equality; HAVING, LIMIT, lists.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from sqlglot import exp

from zset_join.core.errors import PlanError, SqlError
from zset_join.expressions import Call, Column, Expression, lit
from zset_join.expressions.rows import named
from zset_join.plan.conditions import together
from zset_join.query import View
from zset_join.sql.bind.aggregation import aggregates_in, joined_texts
from zset_join.sql.bind.binding import QueryContext, conjuncts_of
from zset_join.sql.bind.joins import JoinPlanner
from zset_join.sql.bind.scopes import Scope, on_side, seeing_no_outer
from zset_join.sql.tables.catalog import BoundQuery
from zset_join.sql_expressions.consumed import argument, copied, disregard, is_quantified
from zset_join.sql_expressions.scalars import ScalarBinder

__all__ = ["ScalarSubqueries"]

_COUNTS = (exp.Count, exp.CountIf, exp.ApproxDistinct)
_LISTS = (exp.ArrayAgg, exp.ArrayUniqueAgg)


@dataclass
class _Tied:
    """A correlated aggregate: what gives its aggregates for every key, and how they are read."""

    scope: Scope
    pairs: list[tuple[exp.Expr, exp.Expr]]
    calls: list[exp.Expr]


@dataclass
class ScalarSubqueries:
    """The subqueries of a SELECT that represent a value."""

    query: QueryContext
    ctes: Mapping[str, BoundQuery]
    scope: Scope

    def join(
        self, view: View, parts: list[exp.Expr], *, prefix: str = "subquery", but: Container[int] = ()
    ) -> tuple[View, dict[int, Expression]]:
        """Return rows with a column for each subquery in some expressions, and what represents which node."""
        replacements: dict[int, Expression] = {}
        for node in [subquery for part in parts for subquery in _subqueries(part) if id(subquery) not in but]:
            with seeing_no_outer(self.scope, node):
                view, replacements[id(node)] = self._joined(view, node, f"{prefix} {len(replacements) + 1}")
        return view, replacements

    def _joined(self, view: View, node: exp.Expr, name: str) -> tuple[View, Expression]:
        select = node.this
        while isinstance(select, exp.Subquery):
            select = select.this
        ctes = self.query.with_queries(select, self.ctes)
        if isinstance(node, exp.Exists):
            select = self._counted(select)
        at = self.query.at(node)
        if not isinstance(select, exp.Select) or len(select.expressions) != 1 or isinstance(select.expressions[0], exp.Star):
            raise SqlError("a subquery that represents a value selects one column.", code="NOT_OFFERED", at=at)
        self.query.check_clauses(select)
        if any(select.args.get(clause) is not None for clause in ("limit", "offset", "qualify")):
            raise SqlError(
                "LIMIT, OFFSET and QUALIFY are not supported in a subquery that represents a value.", code="NOT_OFFERED", at=at
            )
        rewritten, tied = self._keyed(select, ctes)
        bound = self.query.bind(rewritten, ctes=ctes)
        self.scope.items[0].reads = self.scope.items[0].reads | bound.reads
        values = len(tied.calls) or 1
        keys = bound.view.columns[values:]
        if not self._gives_one_row(select, bound, keys):
            raise SqlError(
                "this subquery may give several rows for one. Take max(...) or min(...) of it, or join it.",
                code="NOT_OFFERED",
                at=at,
            )
        names = [name, *(f"{name} value {place}" for place in range(2, values + 1))]
        renamed = {shown: named(column) for shown, column in zip(names, bound.view.columns, strict=False)}
        renamed |= {f"{name} {place}": named(key) for place, key in enumerate(keys)} if keys else {f"{name} 0": lit(1)}
        right = bound.view.select(renamed)
        trees = self._conditions(view, right, name, tied.pairs)
        if not tied.pairs:
            view = view.withColumn(f"{name} 0 here", lit(1))
            trees = [Call("eq", (Column("left", f"{name} 0 here"), Column("right", f"{name} 0")))]
        condition = together(trees)
        if condition is None:
            raise AssertionError("every subquery is joined on something")
        try:
            joined = view.join(right.alias(name), on=condition, how="left")
        except PlanError as error:
            raise SqlError(error.message, code=error.code, at=at) from error
        value = self._made(_output(select), tied, names, joined) if tied.calls else Column("row", name)
        return joined, Call("gt", (value, lit(0))) if isinstance(node, exp.Exists) else value

    @staticmethod
    def _counted(select: exp.Expr) -> exp.Select:
        """Return how many rows EXISTS requests."""
        is_plain = isinstance(select, exp.Select) and not any(select.args.get(clause) for clause in ("group", "having"))
        if not isinstance(select, exp.Select) or not is_plain or any(aggregates_in(one) for one in select.expressions):
            rows = exp.Subquery(this=select, alias=exp.TableAlias(this=exp.to_identifier("rows")))
            return exp.Select(expressions=[exp.Count(this=exp.Star())], from_=exp.From(this=rows))
        # Whether rows are present does not depend on what is selected of them.
        disregard([*select.expressions, select.args.get("distinct")])
        counted = copied(select)
        counted.set("expressions", [exp.Count(this=exp.Star())])
        counted.set("distinct", None)
        return counted

    def _made(self, output: exp.Expr, tied: _Tied, names: list[str], joined: View) -> Expression:
        """Return the expression over the aggregates that a join provides."""

        def replaced(node: exp.Expr) -> Expression | None:
            place = next((place for place, call in enumerate(tied.calls) if call is node or call == node), None)
            if place is None:
                return None
            column, call = Column("row", names[place]), node.this if isinstance(node, exp.Filter) else node
            if isinstance(call, exp.GroupConcat):
                return joined_texts(call, column)
            return Call("coalesce", (column, lit(0))) if isinstance(call, _COUNTS) else column

        def resolve(column: exp.Column) -> Expression:
            if tied.scope.search(column) is None:
                return self.scope.row_column(column)
            raise SqlError(
                f'"{column.name}" is not aggregated; take max or min of it.', code="NOT_GROUPED", at=self.query.at(column)
            )

        return ScalarBinder(resolve, {"row": joined.schema}, self.query.statement, replace=replaced).bind(output)

    def _conditions(self, view: View, right: View, name: str, pairs: list[tuple[exp.Expr, exp.Expr]]) -> list[Expression]:
        inner = {id(mine): f"{name} {place}" for place, (mine, _) in enumerate(pairs)}

        def resolve(column: exp.Column) -> Expression:
            tree = on_side(self.scope.row_column(column), "left")
            if isinstance(tree, Column) and tree.name not in view.schema.names:
                raise SqlError(
                    f'"{column.name}" is neither grouped by nor aggregated; over groups, tie a subquery to keys of GROUP BY.',
                    code="NOT_GROUPED",
                    at=self.query.at(column),
                )
            return tree

        def replaced(node: exp.Expr) -> Expression | None:
            return Column("right", inner[id(node)]) if id(node) in inner else None

        binder = ScalarBinder(resolve, {"left": view.schema, "right": right.schema}, self.query.statement, replace=replaced)
        return [binder.compared("eq", other, mine) for mine, other in pairs]

    def _keyed(self, select: exp.Select, ctes: Mapping[str, BoundQuery]) -> tuple[exp.Select, _Tied]:
        """Return a subquery that gives its value, or its aggregates, for every key, and how it is tied to the rows outside."""
        planner = JoinPlanner(self.query, ctes, self.scope)
        inner_scope, _, _ = planner.plan(select)
        if not planner.correlated:
            return select, _Tied(inner_scope, [], [])
        pairs = [self._pair(one, inner_scope) for one in planner.correlated]
        kept = [
            one for one in conjuncts_of(argument(select, "where").this) if not any(one is other for other in planner.correlated)
        ]
        keyed = copied(select)
        keyed.set("where", exp.Where(this=exp.and_(*(copied(one) for one in kept), copy=False)) if kept else None)
        value, calls = keyed.expressions[0], aggregates_in(_output(select))
        keys = [exp.alias_(copied(mine), f"key {place}", quoted=True, copy=False) for place, (mine, _) in enumerate(pairs)]
        value = value if isinstance(value, exp.Alias) else exp.alias_(value, "value", quoted=True, copy=False)
        keyed.set("expressions", [value, *keys])
        if not calls:
            return keyed, _Tied(inner_scope, pairs, [])
        for clause, why in (("group", "a subquery of groups may give several rows"), ("having", "HAVING is not allowed here")):
            if select.args.get(clause) is not None:
                raise SqlError(f"{why}. Join a query that groups by the key.", code="NOT_OFFERED", at=self.query.at(select))
        lists = next((call for call in calls if isinstance(call.this if isinstance(call, exp.Filter) else call, _LISTS)), None)
        if lists is not None:
            raise SqlError(
                "a list for each row outside is not supported. Join a query that groups by the key.",
                code="NOT_OFFERED",
                at=self.query.at(lists),
            )
        values = [exp.alias_(copied(call), f"value {place}", quoted=True, copy=False) for place, call in enumerate(calls, 1)]
        keyed.set("expressions", [*values, *keys])
        # An aggregate of one key is one row.
        disregard(select.args.get("distinct"))
        keyed.set("distinct", None)
        keyed.set("group", exp.Group(expressions=[copied(mine) for mine, _ in pairs]))
        return keyed, _Tied(inner_scope, pairs, calls)

    def _pair(self, node: exp.Expr, inner: Scope) -> tuple[exp.Expr, exp.Expr]:
        if isinstance(node, exp.EQ):
            for mine, other in ((node.this, node.expression), (node.expression, node.this)):
                columns = list(mine.find_all(exp.Column))
                outside = list(other.find_all(exp.Column))
                is_mine = bool(columns) and all(inner.search(one) is not None for one in columns)
                if is_mine and outside and all(inner.search(one) is None for one in outside):
                    return mine, other
        raise SqlError(
            "a subquery is tied to the rows outside by equalities, a column of each side, as i.key = o.key. Join it instead.",
            code="NOT_OFFERED",
            at=self.query.at(node),
        )

    @staticmethod
    def _gives_one_row(select: exp.Select, bound: BoundQuery, keys: list[str]) -> bool:
        if _is_aggregate(select):
            return select.args.get("group") is None
        unique = bound.view.node.relation.primary_key
        return bool(unique) and set(unique) <= set(keys)


def _output(select: exp.Select) -> exp.Expr:
    value = select.expressions[0]
    output: exp.Expr = value.this if isinstance(value, exp.Alias) else value
    return output


def _is_aggregate(select: exp.Select) -> bool:
    return bool(aggregates_in(_output(select))) or (
        argument(select, "having") is not None and bool(aggregates_in(argument(select, "having")))
    )


def _subqueries(node: exp.Expr) -> list[exp.Expr]:
    """Return the subqueries that represent a value, none inside others or behind IN, ANY or ALL."""
    found: list[exp.Expr] = []
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if isinstance(one, exp.Subquery | exp.Exists):
            found.append(one)
        elif not (isinstance(one, exp.Query) or is_quantified(one) or (isinstance(one, exp.In) and one.args.get("query"))):
            waiting += one.iter_expressions(reverse=True)
    return found
