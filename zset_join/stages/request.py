"""The contract of a request: what a method of the query requires of a stage, before its relations are known.

The fluent API and SQL write requests into the tree of a query (`zset_join.plan.tree.Operate`); passes rewrite the tree, and the
plan gets the stage of each request. A request is in the file of its stage; a new one subclasses `StageRequest`, and no
caller looks at its class.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import pyarrow as pa
from typing_extensions import override

from zset_join.core.relation import Relation
from zset_join.expressions import Expression
from zset_join.expressions.rows import named, plain_column
from zset_join.stages.stage import Stage

__all__ = [
    "ComputedKeys",
    "InputRows",
    "KeyedJoinRequest",
    "NamedColumnsRequest",
    "StageRequest",
    "VersionsBelow",
    "VersionsOf",
    "keyed_rows",
    "keys_computed",
    "keys_to_compute",
    "pairs_computed",
    "shown_only",
    "sides_read",
]

ComputedKeys = tuple[tuple[tuple[str, Expression], ...], ...]
"""Per input the columns that are computed before it, by name."""

_KEY = "__key_"


@dataclass(frozen=True)
class InputRows:
    """Describe the rows that a stage is fed."""

    relation: Relation
    hidden: tuple[str, ...]
    is_derived: bool
    only_adds: bool = False


@dataclass(frozen=True)
class VersionsOf:
    """Description of the versioned input."""

    key: tuple[str, ...]
    delete_column: str | None = None


@dataclass(frozen=True)
class VersionsBelow:
    """Return whether the rows below a stage are versions of its answer."""

    is_versioned: bool
    why: str
    key: tuple[str, ...] = ()


class StageRequest(Protocol):
    """Request of a query for a stage; subclass it for its defaults."""

    @property
    def computed_keys(self) -> ComputedKeys:
        """Return per input the columns that must be computed before it, hidden from the answer; empty: none."""
        return ()

    @property
    def outside(self) -> pa.Schema | None:
        """Return the columns of an external table, which a condition reads as the right row; None: it reads inputs alone."""
        return None

    def takes_upserts(self, input: int) -> bool:  # noqa: A002, ARG002 - the word the plan uses
        """Return whether an input may be in upsert mode; else it gets a changelog of whole rows."""
        return False

    def with_keys_computed(self) -> Self:
        """Return the same request once the columns of `computed_keys` are present."""
        return self

    def shown_as(self, name: str, side: int, *, is_of_both: bool) -> str | None:  # noqa: ARG002 - for those that show columns
        """Return the name in the answer of an input's column; None if the answer does not contain it unchanged.

        `is_of_both`: another input shows a column of that name.
        """
        return None

    def reading(self, stage: Stage, shown: Collection[str]) -> StageRequest:  # noqa: ARG002 - for those that leave columns out
        """Return the request of a stage that does no more than these columns of its answer need; itself where it is that."""
        return self

    def versions_below(self, source: Relation, output: Relation) -> VersionsBelow | None:  # noqa: ARG002 - subclasses use it
        """Return whether the rows of its input are versions of its answer; None for a stage of another kind."""
        return None

    @property
    def merges_changes(self) -> bool:
        """Return whether its input has changes that leave columns out, or truncates, so that only its answer has whole rows."""
        return False

    @property
    def picks_current(self) -> VersionsOf | None:
        """Return of what it picks the versions that hold now; None for a stage of another kind."""
        return None

    def stage(self, inputs: Sequence[InputRows]) -> Stage:
        """Return the stage over inputs like these; their hidden columns are not shown."""


def keys_to_compute(keys: Sequence[Expression]) -> tuple[tuple[str, Expression], ...]:
    """Return the keys of one input that are no plain columns, by the names that `pairs_computed` gives them."""
    return tuple((f"{_KEY}{at}", one) for at, one in enumerate(keys) if plain_column(one) is None)


def keys_computed(keys: Sequence[Expression]) -> list[Expression]:
    """Return keys as columns, once those of `keys_to_compute` are present."""
    return [named(f"{_KEY}{at}") if plain_column(one) is None else one for at, one in enumerate(keys)]


def pairs_computed(pairs: Sequence[tuple[Expression, Expression]]) -> tuple[tuple[Expression, Expression], ...]:
    """Return pairs of keys as columns, once those of `keys_to_compute` are present."""
    mine, theirs = (keys_computed([pair[side] for pair in pairs]) for side in (0, 1))
    return tuple(zip(mine, theirs, strict=True))


def keyed_rows(rows: InputRows, key: tuple[str, ...]) -> Relation:
    """Return the rows of a side that is looked at by a key; a changelog out of a stage has no primary key that counts."""
    primary_key = () if rows.is_derived and rows.relation.mode != "upsert" else rows.relation.primary_key
    return replace(rows.relation, join_key=key, primary_key=primary_key)


def shown_only(relation: Relation, hidden: tuple[str, ...]) -> Relation:
    """Return rows without their hidden columns."""
    if not hidden:
        return relation
    shown = [field for field in relation.schema if field.name not in hidden]
    names = {field.name for field in shown}
    time = relation.event_time if relation.event_time in names else None
    return replace(
        relation,
        schema=pa.schema(shown),
        primary_key=relation.primary_key if set(relation.primary_key) <= names else (),
        sequence_by=relation.sequence_by if set(relation.sequence_by) <= names else (),
        event_time=time,
        watermark_delay=None if time is None else relation.watermark_delay,
    )


def sides_read(
    sides: Sequence[pa.Schema],
    keys: Sequence[Collection[str]],
    sources: Sequence[tuple[str, tuple[int, str]]],
    shown: Collection[str],
) -> tuple[frozenset[str], ...]:
    """Return, per side of a join, its keys and the columns that show; a right one that is renamed needs the left one."""
    read = [set(one) for one in keys]
    for name, (side, column) in sources:
        if name in shown:
            read[side].add(column)
            if name != column and column in sides[0].names:
                read[0].add(column)
    return tuple(map(frozenset, read))


class NamedColumnsRequest(StageRequest):
    """Request a stage that shows the columns of its inputs under their own names, whichever input has them."""

    @override
    def shown_as(self, name: str, side: int, *, is_of_both: bool) -> str | None:
        return None if is_of_both else name


@dataclass(frozen=True, eq=False)
class KeyedJoinRequest(StageRequest):
    """Request a join of rows whose keys are equal."""

    keys: tuple[tuple[Expression, Expression], ...]
    how: str
    null_safe: tuple[bool, ...]
    using: bool = False
    condition: Expression | None = None
    names: tuple[str, str] | None = None

    @property
    @override
    def computed_keys(self) -> ComputedKeys:
        return tuple(keys_to_compute([pair[side] for pair in self.keys]) for side in (0, 1))

    @override
    def takes_upserts(self, input: int) -> bool:
        # A join keeps its rows by primary key itself.
        return True

    @override
    def with_keys_computed(self) -> Self:
        return replace(self, keys=pairs_computed(self.keys))

    def sides(self, inputs: Sequence[InputRows], keyed: Callable[[InputRows, tuple[str, ...]], Relation]) -> list[Relation]:
        """Return the rows of both sides by their keys, under names that differ."""
        left, right = (
            keyed(rows, tuple(str(plain_column(pair[side])) for pair in self.keys)) for side, rows in enumerate(inputs)
        )
        if self.names is not None:
            left, right = replace(left, name=self.names[0]), replace(right, name=self.names[1])
        return [left, replace(right, name=f"{right.name}_2") if left.name == right.name else right]
