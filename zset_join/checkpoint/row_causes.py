"""Which changes of an epoch a row of a join follows from, where many rows are explained at once.

The law: a change is reported for a row if it changes a row of that side which the join row shows, or any row with its join
key where the join row shows none (it is padded there, or the side is not shown at all). So replaying the reported changes
of the rows of one key of an inner, left, right or full join gives these rows.

Of an upsert side a row is known by its primary key, else by all columns that the join shows. An upsert that moves a row to
another join key is reported for the row it removes.

Cost: a pass over the rows and the changes, in Python; there are at most as many as one question may report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from zset_join.checkpoint.row_history import InputChange, Row
from zset_join.core.relation import Relation

__all__ = ["CauseFinder", "frozen"]

_SIDES = ("left", "right")


class CauseFinder:
    """Assign changes to the rows they belong to."""

    def __init__(self, inputs: Sequence[Relation], columns: Mapping[tuple[str, str], str], null_safe: Sequence[bool]) -> None:
        self._inputs = tuple(inputs)
        self._positions = {relation.name: at for at, relation in enumerate(inputs)}
        self._null_safe = tuple(null_safe)
        self._shown = [
            {source: name for (side, source), name in columns.items() if side == _SIDES[at] and source in relation.schema.names}
            for at, relation in enumerate(inputs)
        ]
        pairs = zip(*(relation.join_key for relation in inputs), strict=True)
        self._key_names = [
            [columns[at] for at in (("both", left), ("left", left), ("right", right)) if at in columns] for left, right in pairs
        ]

    def find(self, rows: Sequence[Row], changes: Sequence[InputChange]) -> list[list[int]]:
        """Return, per row, the numbers of the changes that it follows from."""
        by_join_key: dict[Any, list[int]] = defaultdict(list)
        by_primary_key: dict[Any, list[int]] = defaultdict(list)
        for number, change in enumerate(changes):
            position = self._positions[change.stream]
            relation = self._inputs[position]
            by_join_key[position, _values(change.row, relation.join_key)].append(number)
            if relation.mode == "upsert":
                by_primary_key[position, _values(change.row, relation.primary_key)].append(number)
        return [self._of(row, changes, by_join_key, by_primary_key) for row in rows]

    def _of(
        self,
        row: Row,
        changes: Sequence[InputChange],
        by_join_key: Mapping[Any, list[int]],
        by_primary_key: Mapping[Any, list[int]],
    ) -> list[int]:
        key = tuple(next((row[name] for name in names if row[name] is not None), None) for names in self._key_names)
        key = tuple(map(frozen, key))
        meets = all(value is not None or safe for value, safe in zip(key, self._null_safe, strict=True))
        causes: list[int] = []
        for position, relation in enumerate(self._inputs):
            shown = self._shown[position]
            with_key = by_join_key.get((position, key), ())
            if all(row[name] is None for name in shown.values()):
                # Behind a key that never meets, only a row of nothing but NULLs shows as none.
                causes += [at for at in with_key if meets or (shown and all(changes[at].row[name] is None for name in shown))]
                continue
            values = {**dict(zip(relation.join_key, key, strict=True)), **{at: frozen(row[name]) for at, name in shown.items()}}
            if relation.mode == "upsert" and set(relation.primary_key) <= set(values):
                causes += by_primary_key.get((position, tuple(values[name] for name in relation.primary_key)), ())
            else:
                causes += [
                    number
                    for number in with_key
                    if relation.mode == "upsert" or all(frozen(changes[number].row[at]) == values[at] for at in shown)
                ]
        return sorted(causes)


def frozen(value: Any) -> Any:
    """Return a value of a row as one that can be compared and hashed; NaN equals NaN."""
    if isinstance(value, dict):
        return tuple((name, frozen(one)) for name, one in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(frozen, value))
    if isinstance(value, float) and value != value:
        return (float, "NaN")
    return value


def _values(row: Row, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(frozen(row[name]) for name in names)
