"""FROM and its joins: in the order they are written, each over what was joined before it.

A comma is an inner join whose ON is in WHERE; items between commas are joined in an order in which each is tied to one
before. EXISTS and IN, joined to the rest of WHERE by AND, are semi joins; NOT EXISTS is an anti join (`semi_joins`). A
condition over one input of an inner join is evaluated before the join, so the join keeps fewer rows.

A semi or anti join shows the rows of its left side only: its right side is in sight in its own ON, and nowhere else.

Refused: a join without a pair of equal expressions, NOT IN, two items of one name, NATURAL joins, joins in brackets, RIGHT and
FULL joins behind a comma.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from zset_join.core.errors import PlanError, SqlError
from zset_join.expressions import Call, Column, Expression, references
from zset_join.expressions.rows import named
from zset_join.plan.conditions import together
from zset_join.query import View
from zset_join.sql.bind.binding import QueryContext, StateTtls, conjuncts_of, subquery_of, where_all
from zset_join.sql.bind.first_rows import is_shown, limits_of, take_first
from zset_join.sql.bind.scopes import Brought, Item, Merged, Scope, brought_columns, on_side, outer_columns
from zset_join.sql.bind.semi_joins import matched
from zset_join.sql.bind.table_functions import names_one_table, table_function
from zset_join.sql.bind.timed_joins import Version, as_of_join, temporal_join, versions_of
from zset_join.sql.parse.readers import Hints, read_hints
from zset_join.sql.tables.catalog import BoundQuery
from zset_join.sql_expressions.consumed import argument, check_distinct, near, pick
from zset_join.sql_expressions.scalars import ScalarBinder

__all__ = ["JoinPlanner"]

_SIDES = {
    ("", ""): "inner", ("", "INNER"): "inner", ("", "CROSS"): "inner", ("LEFT", ""): "left", ("LEFT", "OUTER"): "left",
    ("RIGHT", ""): "right", ("RIGHT", "OUTER"): "right", ("FULL", ""): "full", ("FULL", "OUTER"): "full", ("", "OUTER"): "full",
    ("LEFT", "SEMI"): "left_semi", ("", "SEMI"): "left_semi", ("LEFT", "ANTI"): "left_anti", ("", "ANTI"): "left_anti",
}  # fmt: skip
_KEEPS_LEFT = frozenset({"inner", "right", "left_semi"})
_KEEPS_RIGHT = frozenset({"inner", "left", "left_semi", "left_anti"})
_SHOWS_LEFT = frozenset({"left_semi", "left_anti"})


@dataclass
class _Step:
    item: Item
    node: exp.Join
    how: str
    version: Version | None = None
    on: list[exp.Expr] = field(default_factory=list)
    using: list[Expression] = field(default_factory=list)
    merged: dict[str, Merged] = field(default_factory=dict)

    @property
    def is_comma(self) -> bool:
        return self.node.args.get("on") is None and not self.node.args.get("using")

    @property
    def is_timed(self) -> bool:
        return self.version is not None or self.item.time_expression is not None or bool(self.node.args.get("method"))


def _padded(items: Sequence[Item], steps: Sequence[_Step]) -> set[str]:
    """Return the items whose conditions cannot be evaluated before the joins: those that are padded, or read as of a time."""
    fixed = {step.item.alias for step in steps if step.is_timed}
    fixed |= {item.alias for item in items if item.lookup is not None}
    for place, step in enumerate(steps):
        if step.how in {"left", "full"}:
            fixed.add(step.item.alias)
        if step.how in {"right", "full"}:
            fixed |= {item.alias for item in items[: place + 1]}
    return fixed


@dataclass
class JoinPlanner:
    query: QueryContext
    ctes: Mapping[str, BoundQuery]
    outer: Scope | None
    outer_view: View | None = None
    brought: Brought | None = None
    correlated: list[exp.Expr] = field(default_factory=list)
    hints: Hints = field(default_factory=Hints)
    state_ttls: StateTtls = field(default_factory=StateTtls)

    def plan(self, node: exp.Select) -> tuple[Scope, View, list[exp.Expr]]:
        self.hints = read_hints(node, self.query.warnings)
        scope = Scope(self.query.statement, outer=self.outer)
        first = self._item(argument(node, "from_").this)
        if argument(node, "from_").this.args.get("version") is not None:
            raise SqlError(
                "FOR SYSTEM_TIME AS OF is supported behind JOIN: the rows before it give the time.",
                code="NOT_OFFERED",
                at=self.query.at(node.args.get("from_")),
            )
        if first.lookup is not None or first.time_expression is not None:
            raise SqlError(
                f'"{first.alias}" is looked up for rows of another table; join it.', code="LOOKUP_ONLY", at=self.query.at(node)
            )
        steps = [self._step(join) for join in node.args.get("joins") or []]
        scope.items = [first, *(step.item for step in steps)]
        self._check_names(scope, node)
        self._check_commas(steps)
        self.state_ttls = StateTtls.of(self.hints, scope.items, self.query.settings, self.query.warnings)
        where = node.args.get("where")
        conjuncts = conjuncts_of(where.this if where is not None else None)
        conjuncts = self._first_rows(node, conjuncts, scope.items, steps)
        self._rename(scope)
        unseen = [step.item for step in steps if step.how in _SHOWS_LEFT]
        scope.items = [item for item in scope.items if not any(item is one for one in unseen)]
        scope.unseen = tuple(unseen)
        self._merge(scope, steps)
        self._bring(scope, first, steps, conjuncts)
        conjuncts = self._correlated([*conjuncts, *self._correlated_on(scope, steps)], scope)
        subqueries = [one for one in conjuncts if subquery_of(one) is not None]
        conjuncts = self._pushed([one for one in conjuncts if one not in subqueries], scope, steps)
        view, joined = first.view.alias(first.alias), [first]
        for step in self._in_order(first, steps, conjuncts, scope):
            view, conjuncts = self._joined(view, joined, step, conjuncts, scope)
            joined += [] if step.how in _SHOWS_LEFT else [step.item]
        self._check_hints(steps)
        self.state_ttls.check_used(scope.items, self.query.warnings)
        first.reads = first.reads.union(*(item.reads for item in unseen))
        first.is_bounded = first.is_bounded and all(item.is_bounded for item in unseen)
        for one in subqueries:
            view = matched(self, view, scope, one)
        return scope, view, conjuncts

    def within(self, ctes: Mapping[str, BoundQuery], outer: Scope, view: View | None = None) -> JoinPlanner:
        return JoinPlanner(self.query, ctes, outer, view)

    def _item(self, node: exp.Expr) -> Item:
        item, alias = self._unnamed_item(node), node.args.get("alias")
        names = [one.name for one in alias.columns] if isinstance(alias, exp.TableAlias) else []
        return item.named(names, self.query.at(node)) if names else item

    def _unnamed_item(self, node: exp.Expr) -> Item:
        query, at = self.query, self.query.at(node)
        if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table) and not node.alias:
            return self._unnamed_item(node.this)
        if node.args.get("joins"):
            raise SqlError(
                "a join inside of a join is not supported. Write it as a query with a name: JOIN (SELECT b.k, c.v FROM b JOIN "
                "c ON b.k = c.k) AS bc ON ...",
                code="NOT_OFFERED",
                at=at,
            )
        if isinstance(node, exp.Subquery):
            bound = query.bind(node.this, ctes=self.ctes)
            if bound.limit is not None:
                raise SqlError(
                    "LIMIT is supported at the end of a statement, not in a query within another. To keep the first rows of "
                    "each key, write ROW_NUMBER() ... <= n.",
                    code="NOT_OFFERED",
                    at=at,
                )
            return query.item_of_query(bound, node.alias or f"query_{at.line}_{at.column}")
        if isinstance(node, exp.Lateral):
            return self._lateral(node)
        if not isinstance(node, exp.Table):
            raise SqlError(
                f"{type(node).__name__.upper()} in FROM is not supported; name a table, a view or a query.",
                code="NOT_OFFERED",
                at=at,
            )
        inner = node.this
        if isinstance(inner, exp.Anonymous) and inner.name.lower() == "table" and names_one_table(inner):
            name = inner.expressions[0].name
            item = query.item_of(name, node.alias or name, query.at(inner.expressions[0]), self.ctes)
            item.is_bounded = True
            return item
        is_table = isinstance(inner, exp.Anonymous) and inner.name.upper() == "TABLE" and len(inner.expressions) == 1
        call = inner.expressions[0] if is_table else inner
        function = table_function(call) if isinstance(call, exp.Anonymous) else None
        if function is not None:
            name = call.expressions[0].name
            return function(query.item_of(name, node.alias or name, query.at(call), self.ctes), call, query)
        if isinstance(inner, exp.Func):
            raise SqlError(
                f"the table function {inner.sql(dialect='spark')} is not supported. A window is a column: date_trunc(...).",
                code="NOT_OFFERED",
                at=at,
            )
        if node.args.get("sample") or node.args.get("pivots"):
            raise SqlError("samples and PIVOT are not supported.", code="NOT_OFFERED", at=at)
        return query.item_of(node.name, node.alias or node.name, at, self.ctes)

    def _lateral(self, node: exp.Lateral) -> Item:
        """Return LATERAL TABLE(f(o.t)): the versions that a temporal table function names."""
        query, call = self.query, node.this
        inner = call.expressions[0] if isinstance(call, exp.Anonymous) and call.expressions else None
        is_known = isinstance(call, exp.Anonymous) and call.name.upper() == "TABLE" and isinstance(inner, exp.Anonymous)
        if not is_known or inner is None or len(inner.expressions) != 1:
            raise SqlError(
                "LATERAL is supported as LATERAL TABLE(function(time)), with a temporal table function.",
                code="NOT_OFFERED",
                at=query.at(node),
            )
        function = query.catalog.function(inner.name, at=query.at(inner.expressions[0]))
        item = query.item_of(function.relation, node.alias or function.name, query.at(node), self.ctes)
        item.time_expression = inner.expressions[0]
        item.view = versions_of(item, function.time, function.key)
        return item

    def _step(self, join: exp.Join) -> _Step:
        query = self.query
        if (join.args.get("method") or "").upper() == "NATURAL":
            raise SqlError("NATURAL joins change when columns are added; write USING.", code="NOT_OFFERED", at=query.at(join))
        sides = ((join.side or "").upper(), (join.kind or "").upper())
        how = _SIDES.get(sides)
        if how is None:
            raise SqlError(f"{' '.join(sides)} JOIN is not supported.", code="NOT_OFFERED", at=query.at(join))
        item = self._item(join.this)
        version = join.this.args.get("version") if isinstance(join.this, exp.Table) else None
        read = Version.of(version, item, query)
        if read is not None and read.versioned_on is not None and item.lookup is None:
            try:
                # The column may be the event time already; then its watermark stays.
                if item.view.node.relation.event_time != read.versioned_on:
                    item.view = item.view.versioned_by(read.versioned_on)
            except PlanError as error:
                raise SqlError(error.message, code=error.code, at=query.at(version)) from error
        if item.lookup is not None and read is None:
            raise SqlError(
                f'"{item.alias}" is an external table, looked up when a row arrives: write FOR SYSTEM_TIME AS OF PROCTIME().',
                code="LOOKUP_ONLY",
                at=query.at(join.this),
                name=item.alias,
            )
        return _Step(item, join, how, read, conjuncts_of(join.args.get("on")))

    def emit(self) -> Any:
        default = "eager" if self.query.statement.dialect == "laminardb" else "on_watermark"
        return self.query.settings.get("temporal_join_emit", default)

    def _check_hints(self, steps: Sequence[_Step]) -> None:
        """Warn of a hint that no join has taken: its table is not looked up here, or has another hint by its alias."""
        looked_up = [step.item for step in steps if step.item.lookup is not None]
        named_here = {name for item in looked_up for name in (item.alias, getattr(item.lookup, "name", ""))}
        for name in self.hints.lookups:
            if name not in self.hints.used:
                why = (
                    "each join that looks it up has a hint by its alias."
                    if name in named_here
                    else f"no table of that name is looked up here.{near(name, named_here)}"
                )
                self.query.warnings.append(f"the hint LOOKUP('table'='{name}') changes nothing: {why}")

    def _check_names(self, scope: Scope, node: exp.Select) -> None:
        names = [item.alias.lower() for item in scope.items]
        for item in scope.items:
            if names.count(item.alias.lower()) > 1:
                raise SqlError(
                    f'two items of FROM are called "{item.alias}"; give one of them another name with AS.',
                    code="DUPLICATE_NAME",
                    at=self.query.at(node.args.get("from_")),
                    name=item.alias,
                )

    @staticmethod
    def _in_order(first: Item, steps: Sequence[_Step], conjuncts: Sequence[exp.Expr], scope: Scope) -> list[_Step]:
        """Return the joins, and of those between commas first what is tied to an item before."""
        ties = [scope.aliases_of(one) for one in conjuncts if isinstance(one, exp.EQ | exp.NullSafeEQ)]
        ordered: list[_Step] = []
        waiting, joined = list(steps), {first.alias}
        while waiting:
            run = list(itertools.takewhile(lambda step: step.is_comma and step.how == "inner" and not step.is_timed, waiting))
            tied = (one for one in run if any(one.item.alias in tie and tie & joined for tie in ties))
            chosen = next(tied, waiting[0])
            ordered.append(chosen)
            waiting = [one for one in waiting if one is not chosen]
            joined.add(chosen.item.alias)
        return ordered

    def _check_commas(self, steps: Sequence[_Step]) -> None:
        """Refuse RIGHT and FULL joins behind a comma: they come before it, whatever is written first."""
        behind = False
        for step in steps:
            behind = behind or (step.is_comma and bool(step.node.meta.get("comma")))
            if behind and step.how in {"right", "full"}:
                raise SqlError(
                    f"a {step.how.upper()} JOIN behind a comma belongs to the table after the comma. Write JOIN ... ON "
                    "instead of the comma, or the joins behind it as a subquery.",
                    code="NOT_OFFERED",
                    at=self.query.at(step.node.this),
                )

    def _first_rows(
        self, node: exp.Select, conjuncts: list[exp.Expr], items: Sequence[Item], steps: Sequence[_Step]
    ) -> list[exp.Expr]:
        """Take the first rows of each key where WHERE or ON bounds them, before all else; return the other conditions."""
        behind = _padded(items, steps)
        for item in items:
            if item.first_rows is None:
                continue
            own = next((step for step in steps if step.item is item), None)
            limits: list[tuple[exp.Expr, int]] = []
            if item.alias not in behind and (own is None or own.how not in _SHOWS_LEFT):
                limits += limits_of(conjuncts, item, items)
            if own is not None and own.how in _KEEPS_RIGHT and not own.is_timed:
                limits += limits_of(own.on, item, items)
            taken = {id(one) for one, _ in limits}
            at = self.query.at(limits[0][0] if limits else node)
            take_first(item, [count for _, count in limits], at, is_shown=is_shown(item.first_rows.name, len(limits), node))
            conjuncts = [one for one in conjuncts if id(one) not in taken]
            if own is not None:
                own.on = [one for one in own.on if id(one) not in taken]
        return conjuncts

    def _rename(self, scope: Scope) -> None:
        """Give columns of one name in several items a name of their own."""
        listed = [physical for item in scope.items for physical in item.view.columns]
        shared = {name for name in listed if listed.count(name) > 1}
        if not shared:
            return
        for item in scope.items:
            mine = {physical: f"{item.alias}.{physical}" for physical in item.view.columns if physical in shared}
            if not mine:
                continue
            item.view = item.view.select({mine.get(name, name): named(name) for name in item.view.columns})
            item.columns = {name: mine.get(physical, physical) for name, physical in item.columns.items()}

    def _correlated_on(self, scope: Scope, steps: Sequence[_Step]) -> list[exp.Expr]:
        """Take the conditions that read the query around this one out of ON: of an inner join they are those of WHERE."""
        if self.outer is None:
            return []
        moved: list[exp.Expr] = []
        for step in steps:
            own = [one for one in step.on if self.is_outer(one, scope)]
            if own and (step.how != "inner" or step.is_timed):
                raise SqlError(
                    "a column of the query around is read in ON of a join that is not inner where all joins are INNER or LEFT "
                    "and WHERE ties the first table to that query by an equality. Write the condition into WHERE.",
                    code="NOT_OFFERED",
                    at=self.query.at(own[0]),
                )
            step.on = [one for one in step.on if not any(one is other for other in own)]
            moved += own
        return moved

    def is_outer(self, conjunct: exp.Expr, scope: Scope) -> bool:
        """Return whether a condition reads the query around this one; columns of queries within are theirs."""
        seen = Scope(scope.statement, [*scope.items, *scope.unseen])
        return self.outer is not None and bool(outer_columns(conjunct, seen, self.outer))

    def _bring(self, scope: Scope, first: Item, steps: list[_Step], conjuncts: Sequence[exp.Expr]) -> None:
        """Join the columns of the query around, where ON of a join that is not inner reads them."""
        on = [one for step in steps if step.how != "inner" for one in step.on]
        if self.outer is None or self.outer_view is None or not any(self.is_outer(one, scope) for one in on):
            return
        ties = [one for one in conjuncts if isinstance(one, exp.EQ | exp.NullSafeEQ) and self.is_outer(one, scope)]
        if any(step.is_timed or step.how in {"right", "full"} for step in steps) or not any(
            scope.aliases_of(one) == {first.alias} for one in ties
        ):
            return
        every = [*conjuncts, *(one for step in steps for one in step.on)]
        seen = Scope(scope.statement, [*scope.items, *scope.unseen])
        self.brought = brought_columns(every, seen, self.outer, self.outer_view)
        scope.items.insert(1, self.brought.item)
        steps.insert(0, _Step(self.brought.item, exp.Join(this=exp.Table(this=exp.to_identifier(first.alias))), "inner"))

    def _correlated(self, conjuncts: list[exp.Expr], scope: Scope) -> list[exp.Expr]:
        """Set those conditions aside that read the query around this one."""
        if self.outer is None:
            return conjuncts
        self.correlated = [one for one in conjuncts if self.is_outer(one, scope)]
        return [one for one in conjuncts if one not in self.correlated]

    def _pushed(self, conjuncts: list[exp.Expr], scope: Scope, steps: Sequence[_Step]) -> list[exp.Expr]:
        """Evaluate conditions over one item before the joins, where no join pads its rows."""
        if not steps:
            return conjuncts
        fixed = _padded([*scope.items[:1], *(step.item for step in steps)], steps)
        kept = []
        pushed: dict[str, list[Expression]] = {}
        for conjunct in conjuncts:
            aliases = scope.aliases_of(conjunct)
            alias = next(iter(aliases)) if len(aliases) == 1 else None
            item = None if alias is None or alias in fixed else scope.item(alias)
            if item is None or conjunct.find(exp.Query) is not None:
                kept.append(conjunct)
                continue
            binder = ScalarBinder(scope.row_column, {"row": item.view.schema}, self.query.statement)
            pushed.setdefault(item.alias, []).append(binder.condition(conjunct))
        for one in scope.items:
            one.view = where_all(one.view, pushed.get(one.alias, ()))
        return kept

    def _joined(
        self, view: View, joined: list[Item], step: _Step, conjuncts: list[exp.Expr], scope: Scope
    ) -> tuple[View, list[exp.Expr]]:
        node, item = step.node, step.item
        on = step.on
        if step.is_comma and step.how == "inner":
            mine = {one.alias for one in joined} | {item.alias}
            taken = [
                one
                for one in conjuncts
                if one.find(exp.Query) is None
                and item.alias in (read := scope.aliases_of(one))
                and len(read) > 1
                and read <= mine
            ]
            conjuncts = [one for one in conjuncts if one not in taken]
            on = taken
        later = tuple(one for one in scope.items if one is not item and not any(one is other for other in joined))
        near_scope = Scope(self.query.statement, [*joined, item], merged=step.merged, unseen=scope.unseen, later=later)

        def resolve(column: exp.Column) -> Expression:
            near_item, physical = near_scope.find(column)
            return Column("right", physical) if near_item is item else on_side(near_scope.row_column(column), "left")

        schemas = {"left": view.schema, "right": item.view.schema}
        binder = ScalarBinder(resolve, schemas, self.query.statement)
        trees = [binder.condition(one) for one in on]
        trees += step.using
        right = item.view.alias(item.alias)
        if step.version is not None or item.time_expression is not None:
            return temporal_join(self, view, joined, step, trees, resolve), conjuncts
        if (node.args.get("method") or "").upper() == "ASOF":
            given = node.args.get("match_condition")
            match = None if given is None else binder.condition(given)
            return as_of_join(self, view, step, trees, match), conjuncts
        view, right, trees = self._evaluated_before(view, right, trees, step.how)
        ttls = (self.state_ttls.of_items(joined), self.state_ttls.of_items([item]))
        return self.equi_join(view, right, trees, step.how, node, state_ttl=ttls), conjuncts

    def equi_join(
        self, view: View, right: View, trees: Sequence[Expression], how: str, node: exp.Expr, *, state_ttl: Any = None
    ) -> View:
        condition = together(list(trees))
        at = self.query.at(node)
        crossed = (
            f'the join of "{view.name}" and "{right.name}" has no pair of equal expressions; a cross join has no bounded '
            "change. Add ON a.key = b.key."
        )
        if condition is None:
            raise SqlError(crossed, code="CROSS_JOIN", at=at)
        try:
            return view.join(right, on=condition, how=how, state_ttl=state_ttl)
        except PlanError as error:
            message = crossed if error.code == "CROSS_JOIN" else error.message
            raise SqlError(message, code=error.code, at=at) from error

    @staticmethod
    def _evaluated_before(view: View, right: View, trees: list[Expression], how: str) -> tuple[View, View, list[Expression]]:
        """Evaluate conditions over one side before the join, where that is the same."""
        kept: list[Expression] = []
        for tree in trees:
            left_names, right_names = references(tree)
            if left_names and not right_names and how in _KEEPS_LEFT:
                view = view.where(tree)
            elif right_names and not left_names and how in _KEEPS_RIGHT:
                right = right.where(tree)
            else:
                kept.append(tree)
        return view, right, kept

    def _merge(self, scope: Scope, steps: Sequence[_Step]) -> None:
        """Let the columns of USING represent those of both sides, from one join to the next."""
        lefts = scope.items[:1]
        for step in steps:
            step.merged = scope.merged
            left = Scope(self.query.statement, lefts, merged=step.merged)
            using = step.node.args.get("using") or []
            check_distinct([one.name for one in using], "USING", self.query.at(step.node))
            merged = [self._using(left, step, name) for name in using]
            if step.how in _SHOWS_LEFT:
                continue
            scope.merged = dict(merged)
            scope.merged.update((name, one) for name, one in step.merged.items() if name not in scope.merged)
            lefts = [*lefts, step.item]

    def _using(self, left: Scope, step: _Step, name: exp.Expr) -> tuple[str, Merged]:
        """Note the equality of a USING column; return its meaning afterwards."""
        column = exp.Column(this=name if isinstance(name, exp.Identifier) else exp.to_identifier(name.name))
        place, theirs = left.search(column), pick(step.item.columns, column.name)
        if place is None or theirs is None:
            raise SqlError(
                f'USING names "{column.name}", which is not in both sides.',
                code="UNKNOWN_COLUMN",
                at=self.query.at(name),
                name=column.name,
            )
        item, physical = place
        one, other = left.row_column(column), Column("row", theirs)
        step.using.append(Call("eq", (on_side(one, "left"), Column("right", theirs))))
        shown, before = next(
            ((shown, merged) for shown, merged in left.merged.items() if merged.item is item and merged.name == physical),
            (next(shown for shown, own in item.columns.items() if own == physical), None),
        )
        aliases = frozenset({item.alias, step.item.alias}) | (frozenset() if before is None else before.aliases)
        if step.how == "full":
            return shown, Merged(item, physical, Call("coalesce", (one, other)), aliases)
        if step.how == "right":
            return shown, Merged(step.item, theirs, other, aliases)
        return shown, Merged(item, physical, one, aliases)
