"""What names of columns stand for inside a query: the FROM items that are in sight, and where their columns went.

A column keeps its name unless two items share it; then both go by `alias.column` between the operators, and `*` shows the first
under its own name. A name without a table is looked for in all items and must fit one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from zset_join.errors import SqlError
from zset_join.expressions import Column, Expression
from zset_join.lookup.source import LookupSource
from zset_join.pipeline import View
from zset_join.plan.tree import Node
from zset_join.sql.bound import FirstRows
from zset_join.sql.catalog import Table, pick
from zset_join.sql.dialects import Statement
from zset_join.sql.places import near, place_of

__all__ = ["Item", "Scope"]


@dataclass
class Item:
    """One item of FROM.

    Args:
        alias: what its columns are qualified with.
        view: its rows.
        columns: the names of its columns in the statement, and in the view.
        table: the declared table it reads directly; None for others.
        processing_times: columns that hold a processing time.
        first_rows: a ROW_NUMBER() of it, not yet used.
        is_bounded: it reads what is stored, not what comes.
        reads: the declared tables below.
        shown: the columns that `*` stands for; None: all.
        time_expression: the argument of a temporal table function.
        lookup: the outside table it is; it is joined as of the processing time only.
        relation: the table or view it names; None for others.
        node: the rows of that, whatever is done to them here.
    """

    alias: str
    view: View
    columns: dict[str, str]
    table: Table | None = None
    processing_times: frozenset[str] = frozenset()
    first_rows: FirstRows | None = None
    is_bounded: bool = False
    reads: frozenset[str] = frozenset()
    shown: tuple[str, ...] | None = None
    time_expression: exp.Expr | None = None
    lookup: LookupSource | None = None
    relation: str | None = None
    node: Node | None = None

    @property
    def listed(self) -> tuple[str, ...]:
        """Return the columns that `*` stands for."""
        return tuple(self.columns) if self.shown is None else self.shown


@dataclass
class Scope:
    """The items in sight.

    Args:
        statement: for messages.
        items: those of FROM, in order.
        outer: the scope of the query around a subquery.
    """

    statement: Statement
    items: list[Item] = field(default_factory=list)
    outer: Scope | None = None
    merged: dict[str, Expression] = field(default_factory=dict)
    hidden: set[tuple[str, str]] = field(default_factory=set)

    def item(self, alias: str) -> Item | None:
        """Return the item of a name."""
        return pick({item.alias: item for item in self.items}, alias)

    def find(self, node: exp.Column) -> tuple[Item, str]:
        """Return the item of a column, and its name in the item's view.

        Raises:
            SqlError: no item has it, or several.
        """
        place = self.search(node)
        if place is not None:
            return place
        at = place_of(node, self.statement.text)
        if node.table and self.item(node.table) is None:
            raise SqlError(
                f'there is no "{node.table}" in FROM.{near(node.table, [item.alias for item in self.items])}',
                code="UNKNOWN_TABLE",
                at=at,
                name=node.table,
            )
        names: Iterable[str] = [name for item in self.items for name in item.columns]
        whose = f'"{node.table}" has no column' if node.table else "there is no column"
        if node.table:
            item = self.item(node.table)
            names = item.columns if item is not None else ()
        raise SqlError(f'{whose} "{node.name}".{near(node.name, names)}', code="UNKNOWN_COLUMN", at=at, name=node.name)

    def search(self, node: exp.Column) -> tuple[Item, str] | None:
        """Return what `find` does, or None where no item has it.

        Raises:
            SqlError: several have it.
        """
        if node.table:
            item = self.item(node.table)
            physical = None if item is None else pick(item.columns, node.name)
            return None if item is None or physical is None else (item, physical)
        exact = [(item, item.columns[node.name]) for item in self.items if node.name in item.columns]
        places = exact or [(item, name) for item in self.items if (name := pick(item.columns, node.name)) is not None]
        if len(places) > 1:
            owners = " and ".join(f'"{item.alias}"' for item, _ in places)
            raise SqlError(
                f'the column "{node.name}" is in {owners}. Say which, as in {places[0][0].alias}.{node.name}.',
                code="AMBIGUOUS_COLUMN",
                at=place_of(node, self.statement.text),
                name=node.name,
            )
        return places[0] if places else None

    def row_column(self, node: exp.Column) -> Expression:
        """Return a column of the joined row."""
        if not node.table and node.name in self.merged:
            return self.merged[node.name]
        return Column("row", self.find(node)[1])

    def aliases_of(self, node: exp.Expr) -> set[str]:
        """Return the items that an expression reads; those of outer queries are not among them."""
        aliases = set()
        for column in node.find_all(exp.Column):
            place = self.search(column)
            if place is not None:
                aliases.add(place[0].alias)
        return aliases

    def star(self, node: exp.Expr | None, alias: str = "") -> list[tuple[str, Expression]]:
        """Return the columns that `*` or `alias.*` stands for, each with the name it shows under."""
        items: Sequence[Item] = self.items
        if alias:
            item = self.item(alias)
            if item is None:
                raise SqlError(
                    f'there is no "{alias}" in FROM.{near(alias, [one.alias for one in self.items])}',
                    code="UNKNOWN_TABLE",
                    at=place_of(node, self.statement.text),
                    name=alias,
                )
            items = [item]
        columns: list[tuple[str, Expression]] = []
        taken: set[str] = set()
        for item in items:
            for name in item.listed:
                if (item.alias, name) in self.hidden and not alias:
                    continue
                shown = name if name not in taken else f"{item.alias}.{name}"
                taken.add(shown)
                merged = self.merged.get(name) if not alias else None
                columns.append((shown, merged if merged is not None else Column("row", item.columns[name])))
        return columns
