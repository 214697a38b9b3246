"""GROUPING SETS, ROLLUP and CUBE: one SELECT for each set, put together by UNION ALL.

The law: Spark's. A key that is not in a set is NULL in its rows, and of its type: `max` of nothing represents it. Aggregates
read the rows as they are. An empty table has no groups, that of the empty set neither, unless it is the only one.

Known limits: at most 64 sets.
"""

from __future__ import annotations

import itertools

from sqlglot import exp

from zset_join.sql.bind.aggregation import SEVERAL_SETS, is_aggregate
from zset_join.sql.bind.scopes import Scope
from zset_join.sql_expressions.consumed import argument, copied, disregard
from zset_join.sql_expressions.positions import pick

__all__ = ["expanded"]

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
