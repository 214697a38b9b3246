"""What a query asks of joins that look something up: in an outside table, or in another input as it is now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zset_join.core.relation import Relation
from zset_join.expressions import Expression
from zset_join.expressions.rows import named, plain_column
from zset_join.lookup.options import Lookup
from zset_join.lookup.source import LookupSource
from zset_join.plan.tree import InputRows
from zset_join.stages.current_versions import CurrentVersionsStage
from zset_join.stages.lookup_join import LookupJoinStage
from zset_join.stages.process_time_join import ProcessTimeJoinStage

__all__ = ["CurrentVersionsRequest", "LookupJoinRequest", "ProcessTimeJoinRequest"]

_KEY = "__key_"


@dataclass(frozen=True, eq=False)
class LookupJoinRequest:
    """Ask for a lookup join.

    Args:
        source: the outside table.
        keys: pairs of an expression over the row and a column of the table that must be equal.
        columns: columns of the table that are wanted.
        how: inner or left.
        hint: how to ask.
        constants: values that columns of the table must have.
        using: the pairs are columns of the same names, and the answer shows them once.
        condition: what must hold beside the keys; None for nothing.
        alias: what the table is called in this join; None: by its name.
        name: what messages call the stream.
    """

    source: LookupSource
    keys: tuple[tuple[Expression, str], ...]
    columns: tuple[str, ...]
    how: str
    hint: Lookup = field(default_factory=Lookup)
    constants: Mapping[str, Any] = field(default_factory=dict)
    using: bool = False
    condition: Expression | None = None
    alias: str | None = None
    name: str | None = None

    @property
    def computed_keys(self) -> tuple[tuple[tuple[str, Expression], ...], ...]:
        """Return the keys that are no plain columns."""
        return (tuple((f"{_KEY}{at}", own) for at, (own, _) in enumerate(self.keys) if plain_column(own) is None),)

    def takes_upserts(self, input: int) -> bool:  # noqa: A002, ARG002 - as the protocol has it
        """Say that the stream may be upserts: what was said of a row is kept by primary key."""
        return True

    def with_keys_computed(self) -> LookupJoinRequest:
        """Return the join of the columns that hold the keys."""
        keys = [
            (named(f"{_KEY}{at}") if plain_column(own) is None else own, column) for at, (own, column) in enumerate(self.keys)
        ]
        return replace(self, keys=tuple(keys))

    def stage(self, inputs: Sequence[InputRows]) -> LookupJoinStage:
        """Return the lookup join of an input like this.

        Raises:
            PlanError: keys, columns or names that do not go together.
            KeyTypeError: keys that cannot be compared.
        """
        (rows,) = inputs
        probe = _keyed(rows, tuple(str(plain_column(own)) for own, _ in self.keys))
        return LookupJoinStage(
            probe=probe if self.name is None else replace(probe, name=self.name),
            source=self.source,
            key=(*(column for _, column in self.keys), *self.constants),
            columns=self.columns,
            hint=self.hint,
            how=self.how,
            constants=self.constants,
            using=self.using,
            residual=self.condition,
            hidden=rows.hidden,
            alias=self.alias,
        )


@dataclass(frozen=True, eq=False)
class ProcessTimeJoinRequest:
    """Ask for a join with another input as it is when a row comes.

    Args:
        keys: pairs of expressions over the left and the right row that must be equal.
        how: inner or left.
        snapshot: `current` or `previous`.
        null_safe: per pair, True for `<=>`.
        using: the pairs are columns of the same names, and the answer shows them once.
        condition: what must hold beside the keys; None for nothing.
        names: what messages call the two sides; none: as their relations are called.
        index: the declared index of the right table; None: none.
        find_by: its columns; none: the whole key.
    """

    keys: tuple[tuple[Expression, Expression], ...]
    how: str
    snapshot: str
    null_safe: tuple[bool, ...]
    using: bool = False
    condition: Expression | None = None
    names: tuple[str, str] | None = None
    index: str | None = None
    find_by: tuple[str, ...] = ()

    @property
    def computed_keys(self) -> tuple[tuple[tuple[str, Expression], ...], ...]:
        """Return per side the keys that are no plain columns."""
        return tuple(
            tuple((f"{_KEY}{at}", pair[side]) for at, pair in enumerate(self.keys) if plain_column(pair[side]) is None)
            for side in (0, 1)
        )

    def takes_upserts(self, input: int) -> bool:  # noqa: A002, ARG002 - as the protocol has it
        """Say that both sides may be upserts."""
        return True

    def with_keys_computed(self) -> ProcessTimeJoinRequest:
        """Return the join of the columns that hold the keys."""
        keys = [
            tuple(named(f"{_KEY}{at}") if plain_column(one) is None else one for one in pair)
            for at, pair in enumerate(self.keys)
        ]
        return replace(self, keys=tuple((pair[0], pair[1]) for pair in keys))

    def stage(self, inputs: Sequence[InputRows]) -> ProcessTimeJoinStage:
        """Return the join of inputs like these.

        Raises:
            PlanError: keys, columns or names that do not go together.
            KeyTypeError: keys that cannot be compared.
        """
        left, right = (
            _keyed(rows, tuple(str(plain_column(pair[side])) for pair in self.keys)) for side, rows in enumerate(inputs)
        )
        if self.names is not None:
            left, right = replace(left, name=self.names[0]), replace(right, name=self.names[1])
        if left.name == right.name:
            right = replace(right, name=f"{right.name}_2")
        return ProcessTimeJoinStage(
            left=left,
            right=right,
            how=self.how,
            snapshot=self.snapshot,
            null_safe=self.null_safe,
            using=self.using,
            residual=self.condition,
            hidden=(inputs[0].hidden, inputs[1].hidden),
            index=self.index,
            find_by=self.find_by,
        )


@dataclass(frozen=True)
class CurrentVersionsRequest:
    """Ask for the versions that hold now.

    Args:
        key: what has versions.
        delete_column: a column that marks DELETEs; None: none does.
    """

    key: tuple[str, ...]
    delete_column: str | None = None

    @property
    def computed_keys(self) -> tuple[tuple[()], ...]:
        """Return nothing: keys are columns."""
        return ((),)

    def takes_upserts(self, input: int) -> bool:  # noqa: A002, ARG002 - as the protocol has it
        """Say that versions may be upserts."""
        return True

    def with_keys_computed(self) -> CurrentVersionsRequest:
        """Return the same request."""
        return self

    def stage(self, inputs: Sequence[InputRows]) -> CurrentVersionsStage:
        """Return the table of current versions of an input like this.

        Raises:
            PlanError: columns or types that have no current version.
        """
        (rows,) = inputs
        source = replace(rows.relation, join_key=(), primary_key=self.key)
        hidden = tuple(name for name in rows.hidden if name != self.delete_column)
        return CurrentVersionsStage(source=source, key=self.key, delete_column=self.delete_column, hidden=hidden)


def _keyed(rows: InputRows, key: tuple[str, ...]) -> Relation:
    primary_key = () if rows.is_derived and rows.relation.mode != "upsert" else rows.relation.primary_key
    return replace(rows.relation, join_key=key, primary_key=primary_key)
