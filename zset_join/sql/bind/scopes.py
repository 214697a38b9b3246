"""Scopes of a query: the visible FROM items, and the current names of their columns.

A column keeps its name unless two items share it; then both go by `alias.column` between the operators, and `*` shows the first
under its own name. A name without a table is looked for in all items and must fit one. A column of USING represents those of
both sides: the left one, of a RIGHT join the right one, of a FULL join the first that is not NULL; `*` begins with it.

`PROCTIME() AS pt` in a query below, and the PROCTIME() of a table that is kept by its key, are names and no columns: their
value would change each time a row is read. A SELECT list passes them on to the joins as of a time in the query around it.

`Brought`: columns of the query around a subquery, brought into its FROM where ON of an outer join reads them.

    SELECT * FROM a WHERE EXISTS (SELECT 1 FROM b LEFT JOIN c ON b.x = c.x AND a.y = c.y WHERE a.x = b.x AND c.z IS NULL)

becomes, with d the different pairs (a.x, a.y) there are,

    SELECT * FROM a WHERE (x, y) IN (SELECT d.x, d.y FROM b JOIN d ON d.x = b.x LEFT JOIN c ON b.x = c.x AND d.y = c.y
                                     WHERE c.z IS NULL)

Why that is the same: for one row of `a`, the subquery reads of `a` nothing but its pair, and the joins behind `d` pad the rows
of `b` for each pair by itself. NULL in a pair is a value like others.

Remembers the different pairs, and what the join with them remembers.

Known limits: `b` is tied to `d` by an equality in WHERE; all joins of the subquery are INNER, LEFT, SEMI or ANTI.

Source: T. Neumann, A. Kemper, "Unnesting Arbitrary Queries", BTW 2015.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from sqlglot import exp

from zset_join.core.errors import SqlError
from zset_join.core.shown_values import counted
from zset_join.expressions import Column, Expression
from zset_join.expressions.rows import rewritten
from zset_join.lookup.source import LookupSource
from zset_join.plan.tree import Node
from zset_join.query import View
from zset_join.sql.tables.catalog import BoundQuery, FirstRows, Table
from zset_join.sql_expressions.consumed import Position, near, pick, position_of
from zset_join.sql_expressions.dialects import Statement

__all__ = [
    "Brought",
    "Item",
    "Merged",
    "Scope",
    "brought_columns",
    "on_side",
    "ordered_name",
    "outer_columns",
    "seeing_no_outer",
    "times_kept",
    "times_of_both",
    "times_of_stars",
]


@dataclass
class Item:
    """One item of FROM."""

    alias: str
    view: View
    columns: dict[str, str]  # names in the statement, to those in the view
    table: Table | None = None  # that it reads directly
    processing_times: frozenset[str] = frozenset()
    first_rows: FirstRows | None = None
    number: str | None = None  # name of the ROW_NUMBER(), once its first rows are taken
    is_bounded: bool = False
    reads: frozenset[str] = frozenset()
    shown: tuple[str, ...] | None = None
    time_expression: exp.Expr | None = None  # argument of a temporal table function
    lookup: LookupSource | None = None
    relation: str | None = None
    node: Node | None = None  # rows of `relation`, whatever is done to them here

    @property
    def listed(self) -> tuple[str, ...]:
        """Return the columns that `*` represents."""
        return tuple(self.columns) if self.shown is None else self.shown

    def named(self, names: Sequence[str], at: Position | None) -> Item:
        """Return the item with other names for its columns, as in `t AS x(a, b)`."""
        listed = self.listed
        if self.first_rows is not None:
            raise SqlError("name the columns beside a ROW_NUMBER() with AS in its SELECT list.", code="NOT_OFFERED", at=at)
        if len(names) != len(listed):
            raise SqlError(
                f'"{self.alias}" has {counted(len(listed), "column")} ({", ".join(listed)}), and '
                f"{counted(len(names), 'name')} for them.",
                code="NOT_OFFERED",
                at=at,
            )
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise SqlError(f'the name "{twice[0]}" is given to two columns.', code="DUPLICATE_COLUMN", at=at)
        given = dict(zip(listed, names, strict=True))
        unlisted = {name: physical for name, physical in self.columns.items() if name not in given and name not in names}
        return replace(
            self,
            columns={**{name: self.columns[one] for one, name in given.items()}, **unlisted},
            processing_times=frozenset(given.get(name, name) for name in self.processing_times),
            shown=None if self.shown is None else tuple(names),
        )


@dataclass(frozen=True, eq=False)
class Merged:
    """A column of USING."""

    item: Item
    name: str
    tree: Expression
    aliases: frozenset[str]  # items whose columns of this name it represents


@dataclass
class Scope:
    """The items in sight."""

    statement: Statement
    items: list[Item] = field(default_factory=list)
    outer: Scope | None = None
    merged: dict[str, Merged] = field(default_factory=dict)
    unseen: tuple[Item, ...] = ()
    later: tuple[Item, ...] = ()

    def item(self, alias: str) -> Item | None:
        return pick({item.alias: item for item in self.items}, alias)

    def find(self, node: exp.Column) -> tuple[Item, str]:
        """Return the item of a column, and its name in the item's view."""
        place = self.search(node)
        if place is not None:
            return place
        at = position_of(node, self.statement.text)
        if node.name.lower() in {one.number.lower() for one in self.items if one.number is not None}:
            raise SqlError(
                f'"{node.name}" limits the rows and cannot be shown: it would change for rows that stay. With = 1 it can.',
                code="NOT_OFFERED",
                at=at,
            )
        for other, why in self._hidden():
            if node.table.lower() not in {"", other.alias.lower()} or pick(other.columns, node.name) is None:
                continue
            raise SqlError(f'"{node.name}" is of "{other.alias}", {why}', code="UNKNOWN_COLUMN", at=at, name=node.name)
        named = self._named(node.table, at) if node.table else None
        times = [
            one for one in self.items if node.name in one.processing_times and node.table.lower() in {"", one.alias.lower()}
        ]
        if times:
            raise SqlError(
                f'"{node.name}" of "{times[0].alias}" is the time at which a row is read, and no column of it: it is used '
                "behind FOR SYSTEM_TIME AS OF. Give the source a column that holds a time.",
                code="NON_DETERMINISTIC",
                at=at,
                name=node.name,
            )
        names: Iterable[str] = [name for item in self.items for name in item.columns]
        whose = f'"{node.table}" has no column' if node.table else "there is no column"
        if named is not None:
            names = named.columns
        raise SqlError(f'{whose} "{node.name}".{near(node.name, names)}', code="UNKNOWN_COLUMN", at=at, name=node.name)

    def _hidden(self) -> list[tuple[Item, str]]:
        """Return the items of FROM that are not in sight here, and the reason."""
        semi = "the right side of a semi or anti join: in sight in its own ON only."
        later = "which is joined behind this: in sight from its own ON on. Write the condition there."
        return [*((one, semi) for one in self.unseen), *((one, later) for one in self.later)]

    def _named(self, alias: str, at: Position | None, *, is_star: bool = False) -> Item:
        """Return the item of FROM of a name, in sight or not, to name its columns."""
        item = self.item(alias)
        hidden = None if item is not None else pick({one.alias: (one, why) for one, why in self._hidden()}, alias)
        if hidden is not None and not is_star:
            return hidden[0]
        if item is None:
            known = near(alias, [one.alias for one in self.items])
            why = f'there is no "{alias}" in FROM.{known}' if hidden is None else f'"{alias}" is {hidden[1]}'
            raise SqlError(why, code="UNKNOWN_TABLE", at=at, name=alias)
        return item

    def search(self, node: exp.Column) -> tuple[Item, str] | None:
        """Return the result of `find`, or None if no item matches."""
        brought = node.meta.get("brought")
        if brought is not None:
            return next(((item, brought) for item in self.items if brought in item.columns), None)
        if node.table:
            item = self.item(node.table)
            physical = None if item is None else pick(item.columns, node.name)
            return None if item is None or physical is None else (item, physical)
        exact = [(item, item.columns[node.name]) for item in self.items if node.name in item.columns]
        places = exact or [(item, name) for item in self.items if (name := pick(item.columns, node.name)) is not None]
        merged = pick(self.merged, node.name)
        if merged is not None:
            places = [(merged.item, merged.name), *(one for one in places if one[0].alias not in merged.aliases)]
        if len(places) > 1:
            owners = " and ".join(f'"{item.alias}"' for item, _ in places)
            raise SqlError(
                f'the column "{node.name}" is in {owners}. Name its table, as in {places[0][0].alias}.{node.name}.',
                code="AMBIGUOUS_COLUMN",
                at=position_of(node, self.statement.text),
                name=node.name,
            )
        return places[0] if places else None

    def row_column(self, node: exp.Column) -> Expression:
        item, name = self.find(node)
        merged = None if node.table else pick(self.merged, node.name)
        return Column("row", name) if merged is None or item is not merged.item else merged.tree

    def aliases_of(self, node: exp.Expr) -> set[str]:
        """Return the items that an expression reads; those of outer queries are not among them."""
        aliases = set()
        for column in node.find_all(exp.Column):
            place = self.search(column)
            if place is not None:
                aliases.add(place[0].alias)
        return aliases

    def star(self, node: exp.Expr | None, alias: str = "") -> list[tuple[str, Expression]]:
        """Return the columns that `*` or `alias.*` represents, each with the name it shows under."""
        items: Sequence[Item] = self.items
        if alias:
            items = [self._named(alias, position_of(node, self.statement.text), is_star=True)]
        columns = [] if alias else [(name, merged.tree) for name, merged in self.merged.items()]
        taken = {name for name, _ in columns}
        for item in items:
            for name in item.listed:
                merged = None if alias else pick(self.merged, name)
                if merged is not None and item.alias in merged.aliases:
                    continue
                shown = name if name not in taken else f"{item.alias}.{name}"
                taken.add(shown)
                columns.append((shown, Column("row", item.columns[name])))
        return columns


def on_side(tree: Expression, side: Literal["left", "right"]) -> Expression:
    """Return a tree over a row as one over a side of a join."""
    return rewritten(tree, lambda column: Column(side, column.name))


def ordered_name(node: exp.Expr, key: exp.Expr, columns: Sequence[str]) -> str | None:
    """Return the column of the SELECT list that ORDER BY means: by its place, its name, or the column it is."""
    if isinstance(key, exp.Literal) and key.is_int:
        return columns[int(key.name) - 1] if 1 <= int(key.name) <= len(columns) else None
    if not isinstance(key, exp.Column):
        return None
    known = pick({name: name for name in columns}, key.name)
    if not key.table:
        return known
    listed = node.expressions if isinstance(node, exp.Select) else []
    for one in listed:
        inner = one.this if isinstance(one, exp.Alias) else one
        is_same = isinstance(inner, exp.Column) and inner.name.lower() == key.name.lower()
        if is_same and inner.table.lower() in {"", key.table.lower()}:
            return pick({name: name for name in columns}, one.alias_or_name)
    # Of one item a star has the names of its columns.
    has_star = any(isinstance(one, exp.Star) for one in listed)
    return known if has_star and not node.args.get("joins") else None


def times_of_stars(node: exp.Select, scope: Scope) -> set[str]:
    """Return the names that stars bring along from queries below, and that are no columns there; a table leaves them out."""
    times: set[str] = set()
    for one in node.expressions:
        is_of_one = isinstance(one, exp.Column) and isinstance(one.this, exp.Star)
        if not is_of_one and not isinstance(one, exp.Star):
            continue
        table = one.table.lower() if is_of_one else ""
        for item in scope.items:
            if item.table is None and table in {"", item.alias.lower()}:
                times.update(name for name in item.processing_times if name not in item.columns)
    return times


def times_kept(outputs: Sequence[tuple[str, Expression | exp.Expr]], scope: Scope) -> frozenset[str]:
    """Return the columns of a SELECT list that hold the processing time of their row."""
    times = set()
    for name, one in outputs:
        known = {item.columns[time] for item in scope.items for time in item.processing_times if time in item.columns}
        place = scope.search(one) if isinstance(one, exp.Column) else None
        physical = place[1] if place is not None else one.name if isinstance(one, Column) else None
        if physical in known:
            times.add(name)
    return frozenset(times)


def times_of_both(left: BoundQuery, right: BoundQuery, *, keeps_all: bool, at: Position) -> frozenset[str]:
    """Return the columns of two queries behind each other that represent the processing time: those that do so in both."""
    alone = {*left.virtual} ^ {*right.virtual} if keeps_all else {*left.virtual, *right.virtual}
    if alone:
        raise SqlError(
            f"{min(alone)} has another value each time a row is read. UNION ALL keeps it where both queries give it under one "
            "name; elsewhere, give the sources a column that holds a time.",
            code="NON_DETERMINISTIC",
            at=at,
        )
    pairs = zip(left.columns, right.columns, strict=False)
    known = {one for one, other in pairs if one in left.processing_times and other in right.processing_times}
    return frozenset({*left.virtual, *known})


_ALIAS = "the query around"


@dataclass(frozen=True)
class Brought:
    """Columns of the outer query."""

    item: Item
    columns: tuple[tuple[Expression, str], ...]


def outer_columns(conjunct: exp.Expr, seen: Scope, outer: Scope) -> list[exp.Column]:
    """Return the columns of a condition that are of the query around; columns of queries within are theirs."""
    columns = [one for one in conjunct.walk(prune=lambda one: isinstance(one, exp.Query)) if isinstance(one, exp.Column)]
    return [one for one in columns if seen.search(one) is None and outer.search(one) is not None]


def brought_columns(conjuncts: Sequence[exp.Expr], seen: Scope, outer: Scope, view: View) -> Brought:
    """Return the columns of the query around that conditions read; from then on they are found in the item."""
    trees: list[Expression] = []
    for column in (one for conjunct in conjuncts for one in outer_columns(conjunct, seen, outer)):
        tree = outer.row_column(column)
        place = next((place for place, known in enumerate(trees) if known.same_as(tree)), len(trees))
        trees += [tree] if place == len(trees) else []
        column.meta["brought"] = f"outer {place}"
    names = [f"outer {place}" for place in range(len(trees))]
    item = Item(
        alias=_ALIAS,
        view=view.select(dict(zip(names, trees, strict=True))).distinct(),
        columns={name: name for name in names},
        is_bounded=all(one.is_bounded for one in outer.items),
        shown=(),
    )
    return Brought(item, tuple(zip(trees, names, strict=True)))


@contextmanager
def seeing_no_outer(outer: Scope, subquery: exp.Expr) -> Iterator[None]:
    """Name the reason where a part of a subquery reads a column that only the query around it has, or lacks."""
    try:
        yield
    except SqlError as error:
        if error.code not in {"UNKNOWN_TABLE", "UNKNOWN_COLUMN"}:
            raise
        place = (error.facts.get("line"), error.facts.get("column"))
        for column in subquery.find_all(exp.Column):
            at = position_of(column, outer.statement.text)
            if at is None or (at.line, at.column) != place or isinstance(column.this, exp.Star):
                continue
            if outer.search(column) is None and (not column.table or outer.item(column.table) is None):
                break
            # What it lacks is named by itself.
            outer.find(column)
            raise SqlError(
                f'"{column.name}" is of the query around this subquery, {_unseen_in(column, subquery)}',
                code="NOT_OFFERED",
                at=at,
                name=column.name,
            ) from error
        raise


def _unseen_in(column: exp.Column, subquery: exp.Expr) -> str:
    """Return why a column of the query around is not seen where it is read, and another way to write it."""
    select = column.find_ancestor(exp.Select)
    within = None if select is None else select.find_ancestor(exp.From, exp.Join, exp.CTE, exp.Select)
    if within is not None and any(within is one for one in subquery.walk()):
        if isinstance(within, exp.Select):
            return (
                "and read two queries further in. Compare with a column of the query between that equals it, or write both "
                "subqueries as one with a join."
            )
        return "and not seen in its FROM and WITH. Select what it is compared with there, and compare in WHERE of the subquery."
    if select is not None and select.args.get("group") is not None:
        return (
            "and not seen by one with groups. Group in a query in FROM, by what is compared with it, and compare in WHERE: "
            "EXISTS (SELECT 1 FROM (SELECT k, count(*) AS n FROM t GROUP BY k) g WHERE g.k = o.k AND g.n > 1)."
        )
    if isinstance(subquery, exp.Subquery):
        return "and seen in WHERE and beside its aggregates, not within them. Join the tables, and group by the key."
    return (
        "and not seen by one that aggregates. An aggregate without groups is one row in any case: compare with its value, as "
        "in o.v = (SELECT max(t.v) FROM t WHERE t.k = o.k)."
    )
