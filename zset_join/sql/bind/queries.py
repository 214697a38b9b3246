"""Queries as views of the fluent API: names are bound, joins are put in order, aggregates and first rows are found.

    FROM and joins -> WHERE (EXISTS and IN become joins) -> GROUP BY, HAVING -> SELECT -> DISTINCT -> UNION ALL

The law: the view's contents are what Spark's batch query of the same text gives over the contents of its tables.

A condition that reads one input of inner joins is evaluated before them; one that reads both sides of a comma becomes its ON.
Refusals give the reason, the cure and the place (semantics 17).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from zset_join.core.errors import PlanError, SqlError
from zset_join.expressions import Column, Expression
from zset_join.expressions.rows import named
from zset_join.query import StateTtl, View, appends
from zset_join.sql.bind.aggregation import Aggregation, aggregates_in, expanded, has_aggregates, has_grouping_sets
from zset_join.sql.bind.binding import StateTtls, where_all
from zset_join.sql.bind.first_rows import keep_first, limit_of, numbered_by, read_row_number
from zset_join.sql.bind.joins import JoinPlanner
from zset_join.sql.bind.scalar_subqueries import ScalarSubqueries
from zset_join.sql.bind.scopes import Item, Scope, ordered_name, times_kept, times_of_both, times_of_stars
from zset_join.sql.bind.semi_joins import compared_whole, of_one_type
from zset_join.sql.bind.timed_joins import is_now
from zset_join.sql.tables.catalog import BoundQuery, Catalog, FirstRows, NamedView, Table
from zset_join.sql_expressions.consumed import Position, argument, check_distinct, disregard, near, pick, position_of
from zset_join.sql_expressions.dialects import Statement
from zset_join.sql_expressions.scalars import ScalarBinder

__all__ = ["QueryBinder"]

_MOST_NESTED = 40


@dataclass(frozen=True)
class _Apart:
    """Contents of a SELECT list besides its columns."""

    shows_delta: bool
    row_number: exp.Alias | None
    place: int
    processing_times: frozenset[str]


@dataclass
class QueryBinder:
    catalog: Catalog
    statement: Statement
    settings: Mapping[str, str]
    warnings: list[str] = field(default_factory=list)
    depth: int = 0
    names: set[str] = field(default_factory=set)

    def bind(self, node: exp.Expr, *, ctes: Mapping[str, BoundQuery] | None = None) -> BoundQuery:
        self.depth += 1
        if self.depth > _MOST_NESTED:
            raise SqlError(
                "queries are nested too deeply; write parts of them as views.", code="SQL_TOO_DEEP", at=self.at(node)
            )
        try:
            return self._bind(node, ctes or {})
        finally:
            self.depth -= 1

    def at(self, node: exp.Expr | None) -> Position:
        return position_of(node, self.statement.text) or self.statement.place(0)

    def _bind(self, node: exp.Expr, ctes: Mapping[str, BoundQuery]) -> BoundQuery:
        if isinstance(node, exp.Subquery):
            bound = self.bind(node.this, ctes=ctes)
            order, limit = self._order(node, bound.columns, is_bounded=bound.is_bounded)
            if not order and limit is None:
                return bound
            return replace(self._whole(bound, node), order_by=order, limit=limit)
        ctes = self.with_queries(node, ctes)
        if isinstance(node, exp.SetOperation):
            return self._set_operation(node, ctes)
        if isinstance(node, exp.Select):
            return self._select(node, ctes)
        raise SqlError(f"{type(node).__name__.upper()} is not supported; write SELECT.", code="NOT_OFFERED", at=self.at(node))

    def with_queries(self, node: exp.Expr, ctes: Mapping[str, BoundQuery]) -> dict[str, BoundQuery]:
        known, with_ = dict(ctes), node.args.get("with_")
        if with_ is None:
            return known
        if with_.args.get("recursive"):
            raise SqlError(
                "recursive queries are not supported; there is no bound on their state.",
                code="NOT_OFFERED",
                at=self.at(with_),
            )
        check_distinct([cte.alias for cte in with_.expressions], "WITH", self.at(with_), code="SAID_TWICE")
        for cte in with_.expressions:
            known[cte.alias] = self._named(self.bind(cte.this, ctes=known), cte)
        return known

    def _set_operation(self, node: exp.SetOperation, ctes: Mapping[str, BoundQuery]) -> BoundQuery:
        if not isinstance(node, exp.Union) and not node.args.get("distinct"):
            raise SqlError(
                f"{type(node).__name__.upper()} ALL is not supported: it counts repeats. Leave ALL out, or write EXISTS.",
                code="NOT_OFFERED",
                at=self.at(node),
            )
        nodes = _united(node)
        parts = [self._whole(self.bind(one, ctes=ctes), one) for one in nodes]
        while len(parts) > 1:
            # By halves: a plan counts its levels.
            pairs = zip(parts[::2], parts[1::2], strict=False)
            parts = [*(self._both(node, left, right) for left, right in pairs), *parts[len(parts) & ~1 :]]
        order, limit = self._order(node, parts[0].view.columns, is_bounded=parts[0].is_bounded)
        return replace(parts[0], order_by=order, limit=limit)

    def _both(self, node: exp.SetOperation, left: BoundQuery, right: BoundQuery) -> BoundQuery:
        ttl = StateTtls(self.settings).of_group(())
        keeps_all = isinstance(node, exp.Union) and not node.args.get("distinct")
        times = times_of_both(left, right, keeps_all=keeps_all, at=self.at(node.expression))
        try:
            one, other = of_one_type(left.view, right.view)
            if isinstance(node, exp.Union):
                view = one.union(other)
                view = view.distinct(state_ttl=ttl) if node.args.get("distinct") else view
            else:
                how = "left_semi" if isinstance(node, exp.Intersect) else "left_anti"
                view = compared_whole(one, other, how, ttl)
        except PlanError as error:
            raise SqlError(error.message, code=error.code, at=self.at(node.expression)) from error
        bounded = left.is_bounded and right.is_bounded
        return BoundQuery(view=view, reads=left.reads | right.reads, is_bounded=bounded, processing_times=times)

    def _whole(self, query: BoundQuery, node: exp.Expr) -> BoundQuery:
        """Return a query whose rows are its whole answer."""
        if query.first_rows is not None:
            raise SqlError(
                f"nothing uses the ROW_NUMBER(): keep the first rows with WHERE {query.first_rows.name} = 1 around this query.",
                code="NOT_OFFERED",
                at=self.at(node),
            )
        return self._unlimited(query, self.at(node))

    def _unlimited(self, query: BoundQuery, at: Position | None) -> BoundQuery:
        if query.limit is not None:
            raise SqlError(
                "LIMIT is supported at the end of a statement, not in a query within another. To keep the first rows of each "
                "key, write ROW_NUMBER() ... <= n.",
                code="NOT_OFFERED",
                at=at,
            )
        return query

    def _named(self, query: BoundQuery, cte: exp.CTE) -> BoundQuery:
        """Return the query of WITH under the names that are listed for its columns."""
        names = [one.name for one in argument(cte, "alias").columns]
        if not names:
            return query
        item = self.item_of_query(query, cte.alias).named(names, self.at(cte.args.get("alias")))
        return replace(query, view=item.view.select({name: named(physical) for name, physical in item.columns.items()}))

    def _grouping_sets(self, node: exp.Select, ctes: Mapping[str, BoundQuery]) -> BoundQuery:
        if node.args.get("qualify") is not None or any(one.find(exp.RowNumber) for one in node.expressions):
            raise SqlError(
                "number the rows of several sets of keys in a query around them.", code="NOT_OFFERED", at=self.at(node)
            )
        warned = len(self.warnings)
        planner = JoinPlanner(self, ctes, None)
        scope, _, _ = planner.plan(node)
        state_ttl = planner.state_ttls.of_group(scope.items)
        del self.warnings[warned:]
        try:
            selects = expanded(node, scope)
        except ValueError as error:
            raise SqlError(f"{error}.", code="NOT_OFFERED", at=self.at(node)) from None
        parts = [self.bind(one, ctes=ctes) for one in selects]
        view = parts[0].view
        for part in parts[1:]:
            view = view.union(part.view)
        if node.args.get("distinct") is not None:
            view = self._distinct(view, state_ttl, node)
        order, limit = self._order(node, view.columns, is_bounded=parts[0].is_bounded)
        return BoundQuery(view=view, reads=parts[0].reads, is_bounded=parts[0].is_bounded, order_by=order, limit=limit)

    def _select(self, node: exp.Select, ctes: Mapping[str, BoundQuery]) -> BoundQuery:
        self.check_clauses(node)
        if has_grouping_sets(node):
            return self._grouping_sets(node, ctes)
        planner = JoinPlanner(self, ctes, None)
        scope, view, rest = planner.plan(node)
        subqueries = ScalarSubqueries(self, ctes, scope)
        view, replacements = subqueries.join(view, [*rest, *_before_groups(node)])
        listed: dict[str, Expression] = {}
        resolve = _or_listed(scope, scope.row_column, listed)
        binder = ScalarBinder(resolve, {"row": view.schema}, self.statement, replace=lambda one: replacements.get(id(one)))
        view = where_all(view, map(binder.condition, rest))
        bounded = all(item.is_bounded for item in scope.items)
        outputs, apart = self._outputs(node, scope)
        row_number = apart.row_number
        qualify = node.args.get("qualify")
        if qualify is not None and row_number is None:
            row_number, qualify = numbered_by(qualify)
        remembers = has_aggregates(node) or node.args.get("distinct") is not None or row_number is not None
        planner.state_ttls.check_alone(scope.items, self.warnings, remembers=remembers)
        state_ttl = planner.state_ttls.of_group(scope.items)
        if has_aggregates(node):
            if not all(isinstance(one, exp.Expr) for _, one in outputs):
                raise SqlError("name the columns of a grouped query instead of *.", code="NOT_OFFERED", at=self.at(node))
            aggregation = Aggregation(self, scope, view, binder)
            view = aggregation.group(node, outputs, row_number=row_number, state_ttl=state_ttl)
            view, binder = self._grouped(node, subqueries, aggregation, view, outputs, listed)
        elif node.args.get("having") is not None:
            raise SqlError(
                "HAVING needs GROUP BY or an aggregate; write WHERE.", code="NOT_OFFERED", at=self.at(node.args.get("having"))
            )
        reads = frozenset().union(*(item.reads for item in scope.items))
        bound = []
        for name, one in outputs:
            bound.append((name, binder.bind(one) if isinstance(one, exp.Expr) else one))
            listed.setdefault(*bound[-1])
        chosen = _distinctly_named(bound)
        hidden: list[tuple[str, Expression]] = []
        first_rows: FirstRows | None = None
        if row_number is not None:
            first_rows, hidden = read_row_number(row_number, chosen, binder, self)
            first_rows = replace(first_rows, state_ttl=state_ttl, place=apart.place)
        view = self._projected(view, [*chosen, *hidden], node)
        shown = tuple(name for name, _ in chosen)
        if qualify is not None:
            view = self._qualified(view, qualify, first_rows, shown)
            first_rows = None
        if node.args.get("distinct") is not None:
            if argument(node, "distinct").args.get("on") is not None:
                raise SqlError("DISTINCT ON is not supported; use ROW_NUMBER() ... = 1.", code="NOT_OFFERED", at=self.at(node))
            if first_rows is not None:
                raise SqlError(
                    "DISTINCT beside a ROW_NUMBER() changes nothing: the numbers differ. Leave it out, or number the DISTINCT "
                    "rows of a subquery.",
                    code="NOT_OFFERED",
                    at=self.at(node),
                )
            view = self._distinct(view, state_ttl, node)
        order, limit = self._order(node, list(shown), is_bounded=bounded)
        return BoundQuery(
            view=view,
            reads=reads,
            is_bounded=bounded,
            shows_delta=apart.shows_delta,
            order_by=order,
            limit=limit,
            first_rows=first_rows,
            shown=shown if hidden and first_rows is not None else None,
            processing_times=apart.processing_times | times_kept(outputs, scope),
        )

    def _distinct(self, view: View, state_ttl: StateTtl | None, node: exp.Expr) -> View:
        try:
            return view.distinct(state_ttl=state_ttl)
        except PlanError as error:
            raise SqlError(error.message, code=error.code, at=self.at(node)) from error

    def check_clauses(self, node: exp.Select) -> None:
        if node.args.get("from_") is None:
            raise SqlError("a query reads FROM something.", code="NOT_OFFERED", at=self.at(node))
        refused = {
            "laterals": "LATERAL VIEW is not supported",
            "windows": "WINDOW is not supported; write GROUP BY",
            "connect": "recursive queries are not supported; there is no bound on their state",
            "sort": "SORT BY is not supported: a changelog has no order",
            "cluster": "CLUSTER BY is not supported: a changelog has no order",
            "distribute": "DISTRIBUTE BY is not supported: rows are placed by the plan",
            "sample": "a sample would choose other rows each time; filter by a column",
            "into": "write INSERT INTO ... SELECT",
            "locks": "FOR UPDATE is not supported: a query locks no rows",
            "pivots": "PIVOT is not supported; aggregate with FILTER",
        }
        for name, why in refused.items():
            if node.args.get(name):
                given = node.args[name]
                raise SqlError(f"{why}.", code="NOT_OFFERED", at=self.at(given if isinstance(given, exp.Expr) else node))

    def _qualified(self, view: View, qualify: exp.Expr, first_rows: FirstRows | None, shown: tuple[str, ...]) -> View:
        limit = None if first_rows is None else limit_of(qualify.this, first_rows.name)
        if first_rows is None or limit is None:
            raise SqlError(
                "QUALIFY is supported as the name of a ROW_NUMBER() of the SELECT list = 1, or <= n.",
                code="NOT_OFFERED",
                at=self.at(qualify),
            )
        return keep_first(view, first_rows, limit, self.at(qualify)).select(*shown)

    def _outputs(self, node: exp.Select, scope: Scope) -> tuple[list[tuple[str, Expression | exp.Expr]], _Apart]:
        """Return names with trees (of stars) or nodes, and what else the list holds."""
        outputs: list[tuple[str, Expression | exp.Expr]] = []
        shows_delta = False
        times = times_of_stars(node, scope)
        numbered: exp.Alias | None = None
        place = 0
        for one in node.expressions:
            inner = one.this if isinstance(one, exp.Alias) else one
            if isinstance(inner, exp.Star) or (isinstance(inner, exp.Column) and isinstance(inner.this, exp.Star)):
                outputs += self._star(one, inner, scope)
            elif isinstance(inner, exp.Column) and inner.name == "_tp_delta" and scope.search(inner) is None:
                shows_delta = True
            elif is_now(inner, scope.items) and (not isinstance(inner, exp.Column) or scope.search(inner) is None):
                times.add(self._time_name(one, inner))
            elif isinstance(inner, exp.Window) and isinstance(inner.this, exp.RowNumber):
                if numbered is not None or not isinstance(one, exp.Alias):
                    raise SqlError(
                        "one ROW_NUMBER() with a name is supported: ROW_NUMBER() OVER (...) AS rn.",
                        code="NOT_OFFERED",
                        at=self.at(one),
                    )
                numbered, place = one, len(outputs)
            else:
                name = one.alias if isinstance(one, exp.Alias) else self._title(inner)
                outputs.append((name, inner))
        if not outputs:
            why = "the SELECT list holds no column of a table."
            if times:
                why = f"{min(times)} has another value each time it is read, and the SELECT list holds no column beside it."
            raise SqlError(why, code="NON_DETERMINISTIC" if times else "NOT_OFFERED", at=self.at(node))
        return outputs, _Apart(shows_delta, numbered, place, frozenset(times))

    def _time_name(self, one: exp.Expr, inner: exp.Expr) -> str:
        """Return the name of the processing time in a SELECT list."""
        disregard(inner)
        if isinstance(one, exp.Alias):
            return one.alias
        return inner.name if isinstance(inner, exp.Column) else self._title(inner)

    def _star(self, one: exp.Expr, inner: exp.Expr, scope: Scope) -> list[tuple[str, Expression | exp.Expr]]:
        """Return the columns of a star, without those of EXCEPT and with those of REPLACE."""
        star = inner.this if isinstance(inner, exp.Column) else inner
        columns = scope.star(one, inner.table if isinstance(inner, exp.Column) else "")
        names = {name.lower(): name for name, _ in columns}
        left_out = {part.name.lower() for part in star.args.get("except_") or []}
        given = {part.alias.lower(): part.this for part in star.args.get("replace") or []}
        unknown = [name for name in (*left_out, *given) if name not in names]
        if unknown:
            raise SqlError(
                f'* has no column "{unknown[0]}".{near(unknown[0], names.values())}', code="UNKNOWN_COLUMN", at=self.at(one)
            )
        return [(name, given.get(name.lower(), tree)) for name, tree in columns if name.lower() not in left_out]

    def _title(self, node: exp.Expr) -> str:
        """Return the title of a column without a name: its text."""
        if isinstance(node, exp.Column):
            return node.name
        if isinstance(node, exp.Count) and node.this is None:
            return "count()" if self.statement.dialect == "timeplus" else "count(1)"
        try:
            text = node.sql(dialect="spark")
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            # The writer of texts stumbles over a call that lacks an operand.
            raise SqlError("a call lacks an operand here, or has one too many.", code="SQL_SYNTAX", at=self.at(node)) from error
        return text.lower() if isinstance(node, exp.AggFunc) else text

    def _grouped(
        self,
        node: exp.Select,
        subqueries: ScalarSubqueries,
        aggregation: Aggregation,
        grouped: View,
        outputs: Sequence[tuple[str, Expression | exp.Expr]],
        listed: Mapping[str, Expression],
    ) -> tuple[View, ScalarBinder]:
        """Return the groups that HAVING keeps, and what binds expressions over them."""
        having = node.args.get("having")
        before = {id(one) for part in _before_groups(node) for one in part.walk()}
        parts = [one for _, one in outputs if isinstance(one, exp.Expr)] + ([] if having is None else [having])
        grouped, replacements = subqueries.join(grouped, parts, prefix="value", but=before)

        def replaced(part: exp.Expr) -> Expression | None:
            replacement = replacements.get(id(part))
            return aggregation.replace(part) if replacement is None else replacement

        resolve = _or_listed(subqueries.scope, aggregation.not_grouped, listed)
        after = ScalarBinder(resolve, {"row": grouped.schema}, self.statement, replace=replaced)
        if having is None:
            return grouped, after

        def shown(part: exp.Expr) -> Expression | None:
            """Return a key of that name, or what the name represents in the SELECT list."""
            key = replaced(part)
            if key is None and isinstance(part, exp.Column) and not part.table:
                for name, one in outputs:
                    if name.lower() == part.name.lower() and isinstance(one, exp.Expr):
                        return after.bind(one)
            return key

        per_group = ScalarBinder(aggregation.not_grouped, {"row": grouped.schema}, self.statement, replace=shown)
        return grouped.where(per_group.condition(having.this)), after

    def _projected(self, view: View, chosen: Sequence[tuple[str, Expression]], node: exp.Expr) -> View:
        """Select columns, unless they are all there in this order."""
        if [name for name, _ in chosen] == view.columns and all(
            isinstance(tree, Column) and tree.name == name for name, tree in chosen
        ):
            return view
        names = [name for name, _ in chosen]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SqlError(
                f"the SELECT list names {', '.join(twice)} twice; give one of them another name with AS.",
                code="DUPLICATE_COLUMN",
                at=self.at(node),
            )
        try:
            return view.select({name: named(tree.name) if isinstance(tree, Column) else tree for name, tree in chosen})
        except PlanError as error:
            raise SqlError(error.message, code=error.code, at=self.at(node)) from error

    def _order(
        self, node: exp.Expr, columns: Sequence[str], *, is_bounded: bool
    ) -> tuple[tuple[tuple[str, bool, bool], ...], int | None]:
        order, limit = node.args.get("order"), node.args.get("limit")
        offset = node.args.get("offset")
        if order is None and limit is None and offset is None:
            return (), None
        given = order or limit or offset
        if not is_bounded or offset is not None:
            raise SqlError(
                "ORDER BY, LIMIT and OFFSET need a query over stored rows, FROM table(...): a view that changes "
                "has no order. To keep the first rows of each key, write ROW_NUMBER() ... = 1.",
                code="NOT_OFFERED",
                at=self.at(given),
            )
        keys = []
        for ordered in order.expressions if order is not None else ():
            name, descending = ordered_name(node, ordered.this, columns), bool(ordered.args.get("desc"))
            if name is None:
                raise SqlError("order by columns of the SELECT list.", code="NOT_OFFERED", at=self.at(ordered))
            # As in Spark, NULL is the smallest of all.
            nulls_first = ordered.args.get("nulls_first")
            keys.append((name, descending, not descending if nulls_first is None else bool(nulls_first)))
        if limit is None:
            return tuple(keys), None
        options = limit.args.get("limit_options")
        is_odd = options is not None and (options.args.get("percent") or options.args.get("with_ties"))
        count = limit.args.get("count") if isinstance(limit, exp.Fetch) else limit.expression
        if not isinstance(count, exp.Literal) or not count.is_int or is_odd:
            raise SqlError("LIMIT takes a whole number.", code="NOT_OFFERED", at=self.at(limit))
        return tuple(keys), int(count.name)

    def item_of(self, name: str, alias: str, at: Position | None, ctes: Mapping[str, BoundQuery]) -> Item:
        known = {one.lower(): query for one, query in ctes.items()}
        if name.lower() in known:
            return self.item_of_query(self._unlimited(known[name.lower()], at), alias)
        entry: Table | NamedView = self.catalog.find(name, at=at)
        self.names.add(entry.name)
        if isinstance(entry, NamedView):
            item = self.item_of_query(self._unlimited(entry.query, at), alias)
            return replace(item, relation=entry.name, node=item.view.node)
        view = entry.rows
        if entry.lookup is not None:
            lost = [one.name for one in entry.columns if one.name not in entry.lookup.schema.names]
            if lost:
                raise SqlError(
                    f'"{entry.name}" is an external table, which has no {", ".join(lost)}. Leave it out of the declaration, '
                    "and compute it in the SELECT list.",
                    code="NOT_OFFERED",
                    at=at,
                    name=entry.name,
                )
            columns = {column: column for column in entry.lookup.schema.names}
            return Item(
                alias=alias, view=appends(entry.name, entry.lookup.schema), columns=columns, table=entry, lookup=entry.lookup
            )
        return Item(
            alias=alias,
            view=view,
            columns={column: column for column in view.columns},
            table=entry,
            processing_times=frozenset(
                {*entry.processing_times, *(column.name for column in entry.columns if column.is_processing_time)}
            ),
            reads=frozenset({entry.name}),
            relation=entry.name,
            node=view.node,
        )

    @staticmethod
    def item_of_query(query: BoundQuery, alias: str) -> Item:
        return Item(
            alias=alias,
            view=query.view,
            columns={name: name for name in query.columns},
            first_rows=query.first_rows,
            is_bounded=query.is_bounded,
            reads=query.reads,
            processing_times=query.processing_times,
        )


def _united(node: exp.SetOperation) -> list[exp.Expr]:
    """Return the two parts of a set operation, or all that UNION ALL holds together."""
    parts: list[exp.Expr] = [node.expression]
    while _is_plain_union(node) and isinstance(node.this, exp.Union) and _is_plain_union(node.this):
        node = node.this
        parts.append(node.expression)
    return [node.this, *reversed(parts)]


def _is_plain_union(node: exp.SetOperation) -> bool:
    return isinstance(node, exp.Union) and not any(node.args.get(one) for one in ("distinct", "order", "limit", "offset"))


def _or_listed(
    scope: Scope, resolve: Callable[[exp.Column], Expression], listed: Mapping[str, Expression]
) -> Callable[[exp.Column], Expression]:
    """Return the meaning of a column, else of an earlier name in the SELECT list."""

    def either(column: exp.Column) -> Expression:
        known = pick(listed, column.name) if listed and not column.table and scope.search(column) is None else None
        return resolve(column) if known is None else known

    return either


def _before_groups(node: exp.Select) -> list[exp.Expr]:
    """Return the expressions of a SELECT that are computed for its rows, before they are grouped."""
    if not has_aggregates(node):
        return list(node.expressions)
    having, group = node.args.get("having"), node.args.get("group")
    parts = [*node.expressions, *([] if having is None else [having])]
    return [call for part in parts for call in aggregates_in(part)] + ([] if group is None else list(group.expressions))


def _distinctly_named(chosen: Sequence[tuple[str, Expression]]) -> list[tuple[str, Expression]]:
    """Return the columns, a second one of a name under that of the column it is (`alias.name`)."""
    renamed: list[tuple[str, Expression]] = []
    taken: set[str] = set()
    for name, tree in chosen:
        shown = name
        if shown in taken and isinstance(tree, Column) and tree.name not in taken:
            shown = tree.name
        number = 2
        while shown in taken:
            shown, number = f"{name}_{number}", number + 1
        taken.add(shown)
        renamed.append((shown, tree))
    return renamed
