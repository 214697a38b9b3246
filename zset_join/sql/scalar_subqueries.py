"""Subqueries that stand for one value: each becomes a column of the rows by a LEFT join.

    WHERE total > (SELECT avg(total) FROM orders)                                     one row: joined to all
    (SELECT count(*) FROM orders o WHERE o.customer = c.id)                           grouped by the customer
    (SELECT name FROM customers c WHERE c.id = o.customer)                            its primary key says that it is one row

The law: the column holds what Spark's subquery gives for the row: NULL where no row is there, 0 where it counts.

Refused: subqueries that may give several rows; conditions on the rows outside that are no equality.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from zset_join.errors import PlanError, SqlError
from zset_join.expressions import Call, Column, Expression, lit
from zset_join.expressions.rows import named
from zset_join.pipeline import View
from zset_join.plan.conditions import together
from zset_join.sql.binding import QueryContext, conjuncts_of
from zset_join.sql.bound import BoundQuery
from zset_join.sql.joins import JoinPlanner
from zset_join.sql.scalars import ScalarBinder
from zset_join.sql.scopes import Scope

__all__ = ["ScalarSubqueries"]


@dataclass
class ScalarSubqueries:
    """The subqueries of a SELECT that stand for a value.

    Args:
        query: binds them.
        ctes: queries in sight.
        scope: the rows outside.
    """

    query: QueryContext
    ctes: Mapping[str, BoundQuery]
    scope: Scope

    def join(self, view: View, parts: list[exp.Expr]) -> tuple[View, dict[int, Expression]]:
        """Return rows with a column for each subquery in some expressions, and what stands for which node.

        Raises:
            SqlError: a subquery that may give several rows.
        """
        stands: dict[int, Expression] = {}
        for node in [subquery for part in parts for subquery in _subqueries(part)]:
            view, stands[id(node)] = self._joined(view, node, f"subquery {len(stands) + 1}")
        return view, stands

    def _joined(self, view: View, node: exp.Subquery, name: str) -> tuple[View, Expression]:
        select = node.this
        while isinstance(select, exp.Subquery):
            select = select.this
        at = self.query.at(node)
        if not isinstance(select, exp.Select) or len(select.expressions) != 1 or isinstance(select.expressions[0], exp.Star):
            raise SqlError("a subquery that stands for a value selects one column.", code="NOT_OFFERED", at=at)
        self.query.check_clauses(select)
        rewritten, pairs = self._keyed(select)
        bound = self.query.bind(rewritten, ctes=self.ctes)
        self.scope.items[0].reads = self.scope.items[0].reads | bound.reads
        keys = bound.view.columns[1:]
        if not self._gives_one_row(select, bound, keys):
            raise SqlError(
                "this subquery may give several rows for one. Take max(...) or min(...) of it, or join it.",
                code="NOT_OFFERED",
                at=at,
            )
        renamed = {name: named(bound.view.columns[0]), **{f"{name} {place}": named(key) for place, key in enumerate(keys)}}
        if not keys:
            renamed[f"{name} 0"] = lit(1)
        right = bound.view.select(renamed)
        trees = self._conditions(view, right, name, pairs)
        if not pairs:
            view = view.withColumn(f"{name} 0 here", lit(1))
            trees = [Call("eq", (Column("left", f"{name} 0 here"), Column("right", f"{name} 0")))]
        condition = together(trees)
        if condition is None:
            raise AssertionError("every subquery is joined on something")
        try:
            joined = view.join(right.alias(name), on=condition, how="left")
        except PlanError as error:
            raise SqlError(error.message, code=error.code, at=at) from error
        counts = isinstance(_output(select), exp.Count | exp.CountIf)
        column = Column("row", name)
        return joined, Call("coalesce", (column, lit(0))) if counts else column

    def _conditions(self, view: View, right: View, name: str, pairs: list[tuple[exp.Expr, exp.Expr]]) -> list[Expression]:
        inner = {id(mine): f"{name} {place}" for place, (mine, _) in enumerate(pairs)}

        def resolve(column: exp.Column) -> Expression:
            return Column("left", self.scope.find(column)[1])

        def replaced(node: exp.Expr) -> Expression | None:
            return Column("right", inner[id(node)]) if id(node) in inner else None

        binder = ScalarBinder(resolve, {"left": view.schema, "right": right.schema}, self.query.statement, replace=replaced)
        return [binder.compared("eq", other, mine) for mine, other in pairs]

    def _keyed(self, select: exp.Select) -> tuple[exp.Select, list[tuple[exp.Expr, exp.Expr]]]:
        """Return a subquery that gives its value for every key, and pairs of key and what it equals outside."""
        planner = JoinPlanner(self.query, self.ctes, self.scope)
        inner_scope, _, _ = planner.plan(select)
        if not planner.correlated:
            return select, []
        pairs = [self._pair(one, inner_scope) for one in planner.correlated]
        kept = [one for one in conjuncts_of(select.args["where"].this) if not any(one is other for other in planner.correlated)]
        keyed = select.copy()
        keyed.set("where", exp.Where(this=exp.and_(*kept, copy=True)) if kept else None)
        value = keyed.expressions[0]
        keys = [exp.alias_(mine.copy(), f"key {place}", quoted=True) for place, (mine, _) in enumerate(pairs)]
        value = value if isinstance(value, exp.Alias) else exp.alias_(value, "value", quoted=True)
        keyed.set("expressions", [value, *keys])
        if _is_aggregate(select):
            if select.args.get("group") is not None:
                raise SqlError("a subquery of groups may give several rows.", code="NOT_OFFERED", at=self.query.at(select))
            keyed.set("group", exp.Group(expressions=[mine.copy() for mine, _ in pairs]))
        return keyed, pairs

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
    return any(True for _ in _output(select).find_all(exp.AggFunc))


def _subqueries(node: exp.Expr) -> list[exp.Subquery]:
    """Return the subqueries that stand for a value, none inside others or behind EXISTS and IN."""
    if isinstance(node, exp.Subquery):
        return [node]
    if isinstance(node, exp.Exists | exp.Query) or (isinstance(node, exp.In) and node.args.get("query") is not None):
        return []
    return [subquery for child in node.iter_expressions() for subquery in _subqueries(child)]
