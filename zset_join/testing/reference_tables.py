"""From the input of an operator to the result of a plain query over it.

A *bag* is the live rows of one input, each as a dict with its weight. `reference_join` and `reference_aggregate` return
functions of bags: the plain query, computed from nothing each time with dicts and loops (`zset_join.testing.reference`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from zset_join.core.relation import Relation
from zset_join.testing.reference import Bag, Residual, Side, batch_join, lay_out, resolve
from zset_join.testing.reference_aggregate import Call, batch_aggregate

__all__ = ["BatchFunction", "Lines", "live_rows", "reference_aggregate", "reference_join", "reference_side"]

Lines = Iterable[tuple[Sequence[Any] | Mapping[str, Any], int]]
BatchFunction = Callable[..., Lines]


def reference_side(relation: Relation) -> Side:
    """Return a relation in the words of the reference."""
    return Side(
        columns=tuple(relation.schema.names),
        mode=relation.mode,
        join_key=relation.join_key,
        primary_key=relation.primary_key,
        sequence_by=relation.sequence_by,
    )


def live_rows(relation: Relation, lines: Lines) -> Bag:
    """Return the live rows of an input after everything it was fed.

    Args:
        relation: the input.
        lines: `(row, weight)` in arrival order; a row is a dict or its values in column order.

    Raises:
        IllegalHistoryError: a retraction of a row that does not exist.

    >>> import pyarrow as pa
    >>> schema = pa.schema({"item": pa.string(), "n": pa.int64()})
    >>> stock = Relation(name="stock", schema=schema, primary_key=("item",), mode="upsert")
    >>> live_rows(stock, [(("nail", 5), 1), (("bolt", 1), 1), (("nail", 4), 1), (("bolt", None), -1)])
    [({'item': 'nail', 'n': 4}, 1)]
    """
    names = relation.schema.names
    changes = [(row if isinstance(row, Mapping) else dict(zip(names, row, strict=True)), weight) for row, weight in lines]
    return resolve(reference_side(relation), changes)


def reference_join(
    left: Relation,
    right: Relation,
    how: str = "inner",
    *,
    null_safe: Sequence[bool] | None = None,
    using: bool = False,
    residual: Residual | None = None,
) -> BatchFunction:
    """Return the plain join as a function of two bags; the arguments are those of `HashJoin`.

    Args:
        left: the left input.
        right: the right input.
        how: inner, left, right, full, left_semi or left_anti.
        null_safe: per key column, whether it is compared with `<=>`.
        using: the key columns appear once and first.
        residual: the further part of ON as a function of two row dicts; only True matches.
    """
    sides = reference_side(left), reference_side(right)
    flags = (False,) * len(left.join_key) if null_safe is None else tuple(null_safe)

    def join(left_bag: Bag, right_bag: Bag) -> Lines:
        joined = batch_join(
            left_bag,
            right_bag,
            how=how,
            left_key=left.join_key,
            right_key=right.join_key,
            null_safe=flags,
            residual=residual,
        )
        return lay_out(joined, how=how, left=sides[0], right=sides[1], using=using).items()

    return join


def reference_aggregate(group_by: Sequence[str], calls: Sequence[Call]) -> BatchFunction:
    """Return the plain GROUP BY as a function of one bag.

    Args:
        group_by: the key columns; none for one row over everything.
        calls: the other columns, in the words of `zset_join.testing.reference_aggregate`.
    """

    def aggregate(bag: Bag) -> Iterable[tuple[tuple[Hashable, ...], int]]:
        return batch_aggregate(bag, group_by, calls).items()

    return aggregate
