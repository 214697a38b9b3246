"""The answer key: the plain query over everything that arrived, with dicts and loops only.

Two steps. `resolve` replays one side's changes, in arrival order, into its live rows. `batch_join` joins two such bags the
plain way: every left row against every right row of the same key. Nothing here is incremental and nothing here imports
Arrow, NumPy or the engine, so a mistake in the engine cannot hide behind the same mistake in its judge.

Rows are dicts, column name to value. Identity is Spark's (see `identity`): NaN equals NaN, 0.0 equals -0.0, NULL equals
NULL inside a row; whether a NULL *key* matches is decided per key column by its null-safe flag.

Edge cases: an upsert whose sequence equals the newest one wins (the later arrival); so does a delete; a delete leaves a
tombstone even when the primary key was unknown; tombstones never expire here.
Known limit: it starts from nothing each time, about 10 microseconds per change and per joined row.
Source: semantics sections 2 to 6, written down from the text and not from the code.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

__all__ = [
    "Bag",
    "Counts",
    "IllegalHistoryError",
    "JoinedLine",
    "Residual",
    "Row",
    "Side",
    "batch_join",
    "identity",
    "lay_out",
    "resolve",
    "row_identity",
    "total",
]

Row = Mapping[str, Any]
Bag = list[tuple[Row, int]]
Counts = dict[tuple[Hashable, ...], int]
JoinedLine = tuple[Row | None, Row | None, int]
Residual = Callable[[Row, Row], bool | None]


class IllegalHistoryError(AssertionError):
    """A history that no relation in its mode could produce: the test is wrong, not the engine."""


@dataclass(frozen=True, slots=True)
class Side:
    """Describe one input in the oracle's own words; the fields mean what they mean in `Relation`."""

    columns: tuple[str, ...]
    mode: str
    join_key: tuple[str, ...] = ()
    primary_key: tuple[str, ...] = ()
    sequence_by: tuple[str, ...] = ()


class _NotANumber(Enum):
    """The one NaN: equal to itself, unlike the IEEE one, and one even when copied."""

    NAN = "NaN"

    def __repr__(self) -> str:
        return "NaN"


def identity(value: Any) -> Hashable:
    """Return the value that represents `value` in comparisons.

    >>> identity(-0.0) == identity(0.0), identity(float("nan")) == identity(-float("nan")), identity("a") == identity("a ")
    (True, True, False)
    """
    # Decimals, dates and zoned timestamps compare by value and by instant in Python already; floats do not.
    if isinstance(value, float):
        if value != value:
            return _NotANumber.NAN
        return value + 0.0  # turns -0.0 into 0.0 and nothing else
    if isinstance(value, Mapping):
        return tuple(identity(field) for field in value.values())
    if isinstance(value, list | tuple):
        return ("list", *(identity(item) for item in value))
    hashable: Hashable = value
    return hashable


def row_identity(values: Iterable[Any]) -> tuple[Hashable, ...]:
    """Return the identity of a row, or of a key, from its values in order."""
    return tuple(identity(value) for value in values)


def _pick(row: Row, columns: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row[name] for name in columns)


def resolve(side: Side, changes: Iterable[tuple[Row, int]]) -> Bag:
    """Return the live rows of a relation after `changes`, each with its weight."""
    if side.mode == "upsert":
        return _resolve_upserts(side, changes)
    live: dict[tuple[Hashable, ...], tuple[Row, int]] = {}
    for row, weight in changes:
        if side.mode == "append" and weight < 0:
            raise IllegalHistoryError(f"append relation got weight {weight} for {dict(row)}")
        key = row_identity(_pick(row, side.columns))
        first, before = live.get(key, (row, 0))
        live[key] = (first, before + weight)
    negative = [line for line in live.values() if line[1] < 0]
    if negative:
        raise IllegalHistoryError(f"rows with negative weight: {negative}")
    return [(row, weight) for row, weight in live.values() if weight]


def _resolve_upserts(side: Side, changes: Iterable[tuple[Row, int]]) -> Bag:
    newest: dict[tuple[Hashable, ...], tuple[Any, ...]] = {}
    live: dict[tuple[Hashable, ...], Row] = {}
    for row, weight in changes:
        key = row_identity(_pick(row, side.primary_key))
        sequence = _pick(row, side.sequence_by)
        if key in newest and sequence < newest[key]:
            continue
        newest[key] = sequence
        if weight > 0:
            live[key] = row
        else:
            live.pop(key, None)
    return [(row, 1) for row in live.values()]


def batch_join(
    left: Bag,
    right: Bag,
    *,
    how: str,
    left_key: Sequence[str],
    right_key: Sequence[str],
    null_safe: Sequence[bool],
    residual: Residual | None = None,
) -> list[JoinedLine]:
    """Return the join of two bags as `(left row, right row, weight)`; a padded or absent side is None."""
    joined: list[JoinedLine] = []
    left_degrees = [0] * len(left)
    right_degrees = [0] * len(right)
    right_by_key: dict[tuple[Hashable, ...], list[int]] = {}
    for j, (right_row, _) in enumerate(right):
        right_by_key.setdefault(row_identity(_pick(right_row, right_key)), []).append(j)
    for i, (left_row, left_weight) in enumerate(left):
        key = row_identity(_pick(left_row, left_key))
        if any(value is None and not safe for value, safe in zip(key, null_safe, strict=True)):
            continue
        for j in right_by_key.get(key, ()):
            right_row, right_weight = right[j]
            if residual is not None and residual(left_row, right_row) is not True:
                continue
            left_degrees[i] += 1
            right_degrees[j] += 1
            joined.append((left_row, right_row, left_weight * right_weight))
    if how == "left_semi":
        return [(row, None, weight) for (row, weight), degree in zip(left, left_degrees, strict=True) if degree]
    if how == "left_anti":
        return [(row, None, weight) for (row, weight), degree in zip(left, left_degrees, strict=True) if not degree]
    if how in ("left", "full"):
        joined += [(row, None, weight) for (row, weight), degree in zip(left, left_degrees, strict=True) if not degree]
    if how in ("right", "full"):
        joined += [(None, row, weight) for (row, weight), degree in zip(right, right_degrees, strict=True) if not degree]
    return joined


def lay_out(
    joined: Iterable[JoinedLine],
    *,
    how: str,
    left: Side,
    right: Side,
    using: bool = False,
) -> Counts:
    """Return the output rows of a join in the column order of Spark, as identity to weight."""
    # With `using` the key columns appear once and first: the left ones, the right ones for a RIGHT join, whichever is present
    # for FULL. SEMI and ANTI show left columns only.
    existence = how in ("left_semi", "left_anti")
    counts: Counts = {}
    for left_row, right_row, weight in joined:
        values: list[Any] = []
        left_rest: Sequence[str] = left.columns
        right_rest: Sequence[str] = () if existence else right.columns
        if using:
            for left_name, right_name in zip(left.join_key, right.join_key, strict=True):
                values.append(_using_value(how, left_row, right_row, left_name, right_name))
            left_rest = [name for name in left.columns if name not in left.join_key]
            right_rest = [name for name in right_rest if name not in right.join_key]
        values += [None if left_row is None else left_row[name] for name in left_rest]
        values += [None if right_row is None else right_row[name] for name in right_rest]
        key = row_identity(values)
        counts[key] = counts.get(key, 0) + weight
    return {key: weight for key, weight in counts.items() if weight}


def _using_value(how: str, left_row: Row | None, right_row: Row | None, left_name: str, right_name: str) -> Any:
    from_right = None if right_row is None else right_row[right_name]
    if how == "right" or left_row is None:
        return from_right
    from_left = left_row[left_name]
    return from_right if how == "full" and from_left is None else from_left


def total(lines: Iterable[tuple[Sequence[Any], int]]) -> Counts:
    """Return the sum of `(row, weight)` lines as identity to weight, rows of weight 0 omitted."""
    counts: Counts = {}
    for row, weight in lines:
        key = row_identity(row)
        counts[key] = counts.get(key, 0) + weight
    return {key: weight for key, weight in counts.items() if weight}
