"""Shared batch SQL of dedup, temporal and as-of joins.

Window functions over all pairs of equal keys: no index and no order is used, so a mistake of the engine's is not
made twice. What is late, and what was known when a row was released or, in eager mode, was past correction, is computed from
the epochs in which rows arrived and went, where both inputs come straight from sources whose changes are all known; behind
others nothing counts as late, and a temporal join that has counted late changes there is refused. Arrival, which breaks ties,
is that of the copies that are left: a retraction takes the oldest. Behind other stages only the state has it, and the tied
queries select the rows among which it decides.
"""

# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here, and expressions are quoted by
# `to_sql`.

from __future__ import annotations

from collections.abc import Sequence

from zset_join.expressions import Expression
from zset_join.shapes.version_join import VersionJoinShape
from zset_join.stages.batch.dialect import Dialect
from zset_join.stages.batch.tables import BatchTable, expression_sql

__all__ = ["chosen_rows", "equal_keys", "has_arrivals", "rest_of_on", "row_copies", "there_in"]


def has_arrivals(table: BatchTable) -> bool:
    """Return whether the order in which its rows arrived is known."""
    return table.history is not None and table.relation.mode != "upsert"


def row_copies(table: BatchTable, dialect: Dialect, came: str = "true", went: str = "true", more: Sequence[str] = ()) -> str:
    """Return every copy of a row that arrived: when, `e` and `n`, and the epoch in which it was retracted, `gone`, or NULL."""
    columns, history = table.columns, f"{table.history} h"
    listed, kept = ", ".join(f"h.{one}" for one in columns), [*columns, "e", "n", *more]
    place = f"row_number() OVER (PARTITION BY {', '.join(columns)} ORDER BY n) AS k"
    gained = f"SELECT {', '.join(f'h.{one}' for one in kept)} FROM {dialect.repeated(history, 'h.w')} WHERE h.w > 0 AND {came}"
    if table.relation.mode == "append":
        return f"SELECT *, CAST(NULL AS BIGINT) AS gone FROM ({gained})"
    lost = f"SELECT {listed}, h.e, h.n FROM {dialect.repeated(history, '-h.w')} WHERE h.w < 0 AND {went}"
    same = " AND ".join([*(f"a.{one} IS NOT DISTINCT FROM b.{one}" for one in columns), "a.k = b.k"])
    return (
        f"SELECT {', '.join(f'a.{one}' for one in kept)}, b.e AS gone "
        f"FROM (SELECT *, {place} FROM ({gained})) a LEFT JOIN (SELECT *, {place} FROM ({lost})) b ON {same}"
    )


def there_in(epoch: str) -> str:
    """Return whether a copy had not been retracted when an epoch ended."""
    return f"(r.gone IS NULL OR r.gone > {epoch})"


def equal_keys(shape: VersionJoinShape, left: BatchTable, right: BatchTable, dialect: Dialect, own: str = "l") -> list[str]:
    """Return the conditions that the keys of a left row, in the table `own`, and of a version `r` are equal."""
    parts = []
    for (one, other), kind in zip(shape.key, shape.key_types, strict=True):
        sides = []
        for alias, table, name in ((own, left, one), ("r", right, other)):
            text = f"{alias}.{table.column(name)}"
            is_kind = table.relation.schema.field(name).type == kind
            sides.append(text if is_kind else f"CAST({text} AS {dialect.type_name(kind)})")
        parts.append(f"{sides[0]} = {sides[1]}")
    return parts


def rest_of_on(residual: Expression, left: BatchTable, right: BatchTable, dialect: Dialect) -> str:
    """Return a condition over a left row `l` and a right row `r`."""
    schemas = {"left": left.relation.schema, "right": right.relation.schema}
    return f"({expression_sql(residual, schemas, dialect, {'left': 'l', 'right': 'r'})})"


def chosen_rows(
    shape: VersionJoinShape,
    left: BatchTable,
    right: BatchTable,
    pairs: str,
    order: Sequence[str],
    *,
    is_tied: bool,
    counts: str = "NOT r.deleted",
) -> str:
    """Return the join with the one right row that comes first in an order, then by arrival, if it counts."""
    # With `is_tied`: the answers of left rows for which several right rows come first, if they differ.
    first = f"rank() OVER (PARTITION BY l.id ORDER BY {', '.join(order)})"
    if not is_tied:
        first = f"row_number() OVER (PARTITION BY l.id ORDER BY {', '.join([*order, 'r.n DESC'])})"
    taken = [
        f"{f'r.{right.column(name)}' if side == 'right' else f'l.{left.column(name)}'} AS v{at}"
        for at, (side, name) in enumerate(shape.sources)
    ]
    # An id is read once: Spark may count again wherever a table is named.
    columns = ", ".join(["l.id AS id", f"coalesce({counts}, false) AS counts", f"{first} AS place", *taken])
    kind = "JOIN" if is_tied else "LEFT JOIN"
    shown = ", ".join(
        f"{f'CASE WHEN counts THEN v{at} END' if side == 'right' else f'v{at}'} AS c{at}"
        for at, (side, _) in enumerate(shape.sources)
    )
    rows = f"(SELECT {columns} FROM lefts l {kind} versions r ON {pairs})"
    dropped = " AND counts" if shape.how == "inner" else ""
    if not is_tied:
        return f"SELECT {shown} FROM {rows} WHERE place = 1{dropped}"
    answers = f"SELECT DISTINCT id, counts, {shown} FROM {rows} WHERE place = 1"
    several = f"SELECT *, count(*) OVER (PARTITION BY id) AS among FROM ({answers})"
    return f"SELECT {', '.join(f'c{at}' for at in range(len(shape.sources)))} FROM ({several}) WHERE among > 1{dropped}"
