"""EXISTS, NOT EXISTS and IN of WHERE, and INTERSECT and EXCEPT of rows: semi and anti joins with the rows of a query.

    x IN (A UNION B)                 EXISTS (A UNION B)        x is in A, or it is not and is in B: two parts, with UNION ALL
    x IN (A INTERSECT B)                                       x is in A and in B
    x IN (A EXCEPT B)                NOT EXISTS (A UNION B)    x is in A and not in B; there is none in A and none in B

A set operation whose parts read nothing around it is one query, and one join; only where a part does is it taken apart.

Refused: NOT IN; EXISTS over INTERSECT and EXCEPT with a part that reads the rows around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from zset_join.core.errors import PlanError, SqlError
from zset_join.expressions import Call, Cast, Column, Expression, lit
from zset_join.expressions.evaluation import result_type
from zset_join.expressions.type_rules import plain_type
from zset_join.plan.conditions import together
from zset_join.query import StateTtl, View
from zset_join.sql.bind.binding import JoinContext, subquery_of, where_all
from zset_join.sql.bind.scopes import Scope, on_side, seeing_no_outer
from zset_join.sql.tables.catalog import BoundQuery
from zset_join.sql_expressions.consumed import argument, copied, disregard
from zset_join.sql_expressions.scalars import ScalarBinder

__all__ = ["compared_whole", "matched", "of_one_type"]


def matched(planner: JoinContext, view: View, scope: Scope, conjunct: exp.Expr) -> View:
    """Return the rows that EXISTS, NOT EXISTS or IN keeps."""
    subquery = subquery_of(conjunct)
    assert subquery is not None  # noqa: S101 - only such conjuncts come here
    node, is_negated = subquery
    at = planner.query.at(conjunct)
    if isinstance(node, exp.In) and is_negated:
        raise SqlError(
            "NOT IN is not supported: one NULL in the list makes it NULL for every row. Write NOT EXISTS (SELECT 1 FROM "
            "... WHERE ... = ...).",
            code="NOT_IN",
            at=at,
        )
    select = argument(node, "query") if isinstance(node, exp.In) else node.this
    with seeing_no_outer(scope, node):
        return _SemiJoin(planner, scope, node).matched(view, select, "left_anti" if is_negated else "left_semi", planner.ctes)


@dataclass(frozen=True)
class _SemiJoin:
    planner: JoinContext
    scope: Scope
    node: exp.Expr

    def matched(self, view: View, select: exp.Expr, how: str, ctes: Mapping[str, BoundQuery]) -> View:
        """Return the rows that a query behind EXISTS or IN keeps."""
        scope, node, query = self.scope, self.node, self.planner.query
        at = query.at(node)
        while isinstance(select, exp.Subquery):
            select = select.this
        ctes = query.with_queries(select, ctes)
        cut = next(
            (select.args.get(name) for name in ("limit", "offset", "qualify") if select.args.get(name) is not None), None
        )
        if cut is not None:
            raise SqlError(
                "LIMIT, OFFSET and QUALIFY are not supported behind EXISTS and IN; the subquery is read whole.",
                code="NOT_OFFERED",
                at=query.at(cut),
            )
        # Rows are present, or not, in any order; for EXISTS it does not matter what is selected of them.
        disregard(select.args.get("order"))
        if isinstance(select, exp.SetOperation) and self._reads_outer(select, ctes):
            return self._matched_set(view, select, how, ctes)
        if isinstance(select, exp.Select):
            if argument(select, "distinct") is not None and argument(select, "distinct").args.get("on") is not None:
                raise SqlError("DISTINCT ON is not supported; write ROW_NUMBER() ... = 1.", code="NOT_OFFERED", at=at)
            if isinstance(node, exp.Exists):
                disregard([*select.expressions, select.args.get("distinct")])
        planner = self.planner.within(ctes, scope, view)
        outputs: list[exp.Expr]
        # Whether rows are present does not depend on how often.
        keys = _keys_alone(select, is_exists=isinstance(node, exp.Exists))
        if keys is not None and isinstance(select, exp.Select):
            query.check_clauses(select)
            warned = len(query.warnings)
            inner_scope, right, rest = planner.plan(select)
            if not (planner.correlated or planner.brought) and (keys or any(one.find(exp.Query) for one in rest)):
                # Bound whole, it is planned again.
                keys, query.warnings[warned:] = None, []
        if keys is not None:
            inner = ScalarBinder(inner_scope.row_column, {"row": right.schema}, query.statement)
            right = where_all(right, map(inner.condition, rest))
            for key in keys:
                inner.bind(key)
            disregard(select.args.get("group"))
            outputs = [one.this if isinstance(one, exp.Alias) else one for one in select.expressions]
            reads = frozenset().union(*(item.reads for item in inner_scope.items))
        else:
            bound = query.bind(select, ctes=ctes)
            right, reads = bound.view, bound.reads
            inner_scope = Scope(query.statement, [query.item_of_query(bound, "subquery")])
            outputs = [exp.column(exp.to_identifier(name, quoted=True)) for name in bound.columns]
        scope.items[0].reads = scope.items[0].reads | reads

        def resolve(column: exp.Column) -> Expression:
            # What neither has is named as this subquery's.
            is_outer = inner_scope.search(column) is None and scope.search(column) is not None
            return outside(column) if is_outer else on_side(inner_scope.row_column(column), "right")

        def outside(column: exp.Column) -> Expression:
            return on_side(scope.row_column(column), "left")

        schemas = {"left": view.schema, "right": right.schema}
        trees = [ScalarBinder(resolve, schemas, query.statement).condition(one) for one in planner.correlated]
        if planner.brought is not None:
            pairs_of_outer = planner.brought.columns
            trees += [Call("eq_null_safe", (on_side(one, "left"), Column("right", name))) for one, name in pairs_of_outer]
        if isinstance(node, exp.In):
            sought = node.this.expressions if isinstance(node.this, exp.Tuple) else [node.this]
            if len(outputs) != len(sought) or any(isinstance(one, exp.Star) for one in outputs):
                raise SqlError(f"IN takes a subquery of {len(sought)} column(s) here.", code="NOT_OFFERED", at=at)
            mine = {id(column) for column in node.this.find_all(exp.Column)}

            def both(column: exp.Column) -> Expression:
                return outside(column) if id(column) in mine else resolve(column)

            pairs = ScalarBinder(both, schemas, query.statement)
            trees += [pairs.compared("eq", one, other) for one, other in zip(sought, outputs, strict=True)]
        if not trees and isinstance(node, exp.Exists):
            # One row for all: whether there is any.
            here = "exists here"
            right = right.select({here: lit(1)}).distinct()
            view, trees = view.withColumn(here, lit(1)), [Call("eq", (Column("left", here), Column("right", here)))]
        ttls = (self.planner.state_ttls.of_items(scope.items), planner.state_ttls.of_items(inner_scope.items))
        return self.planner.equi_join(view, right.alias("subquery"), trees, how, node, state_ttl=ttls)

    def _reads_outer(self, query: exp.Expr, ctes: Mapping[str, BoundQuery]) -> bool:
        """Return whether a part of a set operation reads the rows around it."""
        while isinstance(query, exp.Subquery):
            query = query.this
        ctes = self.planner.query.with_queries(query, ctes)
        if isinstance(query, exp.SetOperation):
            return any(self._reads_outer(one, ctes) for one in (query.this, query.expression))
        if not isinstance(query, exp.Select):
            return False
        self.planner.query.check_clauses(query)
        planner = self.planner.within(ctes, self.scope)
        try:
            inner, _, _ = planner.plan(query)
        except SqlError:
            # Bound alone, with the rows around it, it is refused with its own reason.
            return True
        return bool(planner.correlated) or any(planner.is_outer(one, inner) for one in query.expressions)

    def _matched_set(self, view: View, select: exp.SetOperation, how: str, ctes: Mapping[str, BoundQuery]) -> View:
        """Return the rows that a set operation keeps whose parts read them: part by part."""
        first, second = select.this, select.expression
        is_union = isinstance(select, exp.Union)
        if not is_union and (isinstance(self.node, exp.Exists) or not select.args.get("distinct")):
            word = type(select).__name__.upper()
            raise SqlError(
                f"{word} behind EXISTS, with a part that reads the rows around it, is not supported: rows of both parts would "
                f"be compared for each row outside. Write x IN (... {word} ...) without ALL, or an EXISTS per part.",
                code="NOT_OFFERED",
                at=self.planner.query.at(self.node),
            )
        disregard(select.args.get("distinct"))
        # Copied before it is bound, which marks the columns around.
        again = copied(first)
        kept = self.matched(view, first, how, ctes)
        if not is_union or how == "left_anti":
            return self.matched(kept, second, "left_anti" if isinstance(select, exp.Except) else how, ctes)
        others = self.matched(self.matched(view, again, "left_anti", ctes), second, how, ctes)
        return kept.select(*view.columns).union(others.select(*view.columns))


def _keys_alone(select: exp.Expr, *, is_exists: bool) -> list[exp.Expr] | None:
    """Return the keys of groups that leave open only how often a row is present; None of a query that must be bound whole."""
    if not isinstance(select, exp.Select) or select.args.get("having"):
        return None
    group, listed = select.args.get("group"), [one.unalias() for one in select.expressions]
    keys: list[exp.Expr] = [] if group is None else argument(group, "expressions")
    names = {one.alias for one in select.expressions}
    is_alone = group is None or not any(one for name, one in group.args.items() if name != "expressions")
    is_alone = is_alone and all(isinstance(key, exp.Column) and (key.table or key.name not in names) for key in keys)
    if group is not None and not (is_alone and keys and (is_exists or all(one in keys for one in listed))):
        return None
    return None if not keys and any(one.find(exp.AggFunc) for one in listed) else keys


def of_one_type(left: View, right: View) -> tuple[View, View]:
    """Return two views whose columns, place by place, have the wider of both types, as in Spark; those without one stay."""
    schemas = {"left": left.schema, "right": right.schema}
    pairs = list(zip(left.columns, right.columns, strict=False))
    try:
        wider = [result_type(Call("coalesce", (Column("left", a), Column("right", b))), schemas) for a, b in pairs]
    except PlanError:
        # The union names the types that do not go together.
        return left, right

    def cast(view: View) -> View:
        if len(pairs) != len(view.columns) or [plain_type(column.type) for column in view.schema] == wider:
            return view
        return view.select({name: Cast(Column("row", name), kind) for name, kind in zip(view.columns, wider, strict=True)})

    return cast(left), cast(right)


def compared_whole(left: View, right: View, how: str, state_ttl: StateTtl | None) -> View:
    """Return the rows, each once, that are or are not among others; NULL equals NULL."""
    if len(left.columns) != len(right.columns):
        raise PlanError(
            f"the sides have {len(left.columns)} and {len(right.columns)} columns; select as many.", code="UNION_TYPES"
        )
    pairs = zip(left.columns, right.columns, strict=True)
    condition = together([Call("eq_null_safe", (Column("left", one), Column("right", other))) for one, other in pairs])
    if condition is None:
        raise PlanError("rows without columns are not compared.", code="UNION_TYPES")
    return left.distinct(state_ttl=state_ttl).join(right.alias("others"), on=condition, how=how, state_ttl=(None, state_ttl))
