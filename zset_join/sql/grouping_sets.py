"""GROUPING SETS, ROLLUP and CUBE: one SELECT for each set, put together by UNION ALL.

The law: Spark's. A key that is not in a set is NULL in its rows, and of its type: `max` of nothing stands for it.

Known limits: at most 64 sets; `grouping()` is not offered.
"""

from __future__ import annotations

import itertools

from sqlglot import exp

__all__ = ["expanded", "has_grouping_sets"]

MOST_SETS = 64
_KINDS = (exp.GroupingSets, exp.Rollup, exp.Cube)


def has_grouping_sets(node: exp.Select) -> bool:
    """Say whether a SELECT groups by several sets."""
    group = node.args.get("group")
    return group is not None and (
        any(isinstance(one, _KINDS) for one in group.expressions)
        or any(group.args.get(name) for name in ("rollup", "cube", "grouping_sets"))
    )


def expanded(node: exp.Select) -> list[exp.Select]:
    """Return one SELECT for each set of keys, with the same names of columns.

    Raises:
        ValueError: there are too many sets.
    """
    group = node.args["group"]
    sets: list[tuple[exp.Expr, ...]] = [()]
    plain = [one for one in group.expressions if not isinstance(one, _KINDS)]
    special = [one for one in group.expressions if isinstance(one, _KINDS)]
    for name in ("rollup", "cube", "grouping_sets"):
        for one in group.args.get(name) or []:
            # GROUP BY a, b WITH ROLLUP rolls up what stands before.
            special.append(one if one.expressions else type(one)(expressions=plain))
            plain = plain if one.expressions else []
    for one in special:
        sets = [(*before, *more) for before in sets for more in _sets(one)]
        if len(sets) > MOST_SETS:
            raise ValueError(f"more than {MOST_SETS} sets of keys; write fewer")
    keys = [*plain, *_distinct([key for one in sets for key in one])]
    return [_select(node, [*plain, *one], keys) for one in sets]


def _sets(node: exp.Expr) -> list[tuple[exp.Expr, ...]]:
    parts = [_keys(one) for one in node.expressions]
    if isinstance(node, exp.GroupingSets):
        nested = [_sets(one) if isinstance(one, _KINDS) else [_keys(one)] for one in node.expressions]
        return [one for sets in nested for one in sets]
    if isinstance(node, exp.Rollup):
        return [tuple(itertools.chain(*parts[:count])) for count in range(len(parts), -1, -1)]
    if len(parts) > 6:
        raise ValueError(f"more than {MOST_SETS} sets of keys; write fewer")
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


def _select(node: exp.Select, chosen: list[exp.Expr], keys: list[exp.Expr]) -> exp.Select:
    part = node.copy()
    absent = [key for key in keys if key not in chosen]
    part.set("group", exp.Group(expressions=[key.copy() for key in _distinct(chosen)]) if chosen else None)
    part.set(
        "expressions",
        [_named(original, _without(one, absent)) for original, one in zip(node.expressions, part.expressions, strict=True)],
    )
    if part.args.get("having") is not None:
        part.args["having"].set("this", _without(part.args["having"].this, absent))
    return part


def _named(original: exp.Expr, made: exp.Expr) -> exp.Expr:
    if isinstance(made, exp.Alias):
        return made
    title = original.name if isinstance(original, exp.Column) else original.sql(dialect="spark").lower()
    return exp.alias_(made, title, quoted=True)


def _without(node: exp.Expr, absent: list[exp.Expr]) -> exp.Expr:
    """Return an expression with NULL for the keys that are not grouped by."""
    if node in absent:
        return exp.Max(this=exp.Case(ifs=[exp.If(this=exp.false(), true=node.copy())]))
    if not isinstance(node, exp.AggFunc):
        for child in list(node.iter_expressions()):
            replaced = _without(child, absent)
            if replaced is not child:
                child.replace(replaced)
    return node
