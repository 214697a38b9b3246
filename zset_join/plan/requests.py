"""What a query asks of the stages that this library has: a join, an aggregate, the latest rows of an upsert input.

A request is what the fluent API and SQL write down; which relations it meets is known only when the tree is built, and whether
its keys must be computed only when it is planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from zset_join.core.relation import Relation
from zset_join.expressions import Expression
from zset_join.expressions.rows import named, plain_column
from zset_join.plan.tree import InputRows, shown_only
from zset_join.shapes.aggregate import AggregateCall
from zset_join.stages.aggregate import AggregateStage
from zset_join.stages.join import JoinStage
from zset_join.stages.latest import LatestStage
from zset_join.stages.route import RouteStage
from zset_join.stages.unchanged import UnchangedStage

__all__ = ["AggregateRequest", "JoinRequest", "LatestRequest", "RouteRequest", "UnchangedRequest"]

_KEY = "__key_"


@dataclass(frozen=True, eq=False)
class JoinRequest:
    """Ask for a join.

    Args:
        keys: pairs of expressions over the left and the right row that must be equal.
        how: inner, left, right, full, left_semi or left_anti.
        null_safe: per pair, True for `<=>`.
        using: the pairs are columns of the same names, and the answer shows them once.
        condition: what must hold beside the keys, a tree over `left(...)` and `right(...)`; None for nothing.
        names: what messages call the two sides; none: as their relations are called.
    """

    keys: tuple[tuple[Expression, Expression], ...]
    how: str
    null_safe: tuple[bool, ...]
    using: bool = False
    condition: Expression | None = None
    names: tuple[str, str] | None = None

    @property
    def computed_keys(self) -> tuple[tuple[tuple[str, Expression], ...], ...]:
        """Return per side the keys that are no plain columns."""
        return tuple(
            tuple((f"{_KEY}{number}", pair[side]) for number, pair in enumerate(self.keys) if plain_column(pair[side]) is None)
            for side in (0, 1)
        )

    def takes_upserts(self, input: int) -> bool:  # noqa: A002, ARG002 - as the protocol has it
        """Say that both sides may be upserts: a join keeps its rows by primary key itself."""
        return True

    def with_keys_computed(self) -> JoinRequest:
        """Return the join of the columns that hold the keys."""
        keys = [
            tuple(named(f"{_KEY}{number}") if plain_column(one) is None else one for one in pair)
            for number, pair in enumerate(self.keys)
        ]
        return replace(self, keys=tuple((pair[0], pair[1]) for pair in keys))

    def stage(self, inputs: Sequence[InputRows]) -> JoinStage:
        """Return the join of inputs like these.

        Raises:
            PlanError: the condition does not fit the columns.
            KeyTypeError: keys that cannot be compared.
        """
        left, right = (
            self._keyed(rows, tuple(str(plain_column(pair[side])) for pair in self.keys)) for side, rows in enumerate(inputs)
        )
        if self.names is not None:
            left, right = replace(left, name=self.names[0]), replace(right, name=self.names[1])
        if left.name == right.name:
            right = replace(right, name=f"{right.name}_2")
        return JoinStage(
            left=left,
            right=right,
            how=self.how,
            null_safe=self.null_safe,
            using=self.using,
            residual=self.condition,
            hidden=(inputs[0].hidden, inputs[1].hidden),
            row_keys=(_row_key(inputs[0]), _row_key(inputs[1])),
        )

    @staticmethod
    def _keyed(rows: InputRows, key: tuple[str, ...]) -> Relation:
        primary_key = () if rows.is_derived else rows.relation.primary_key
        return replace(rows.relation, join_key=key, primary_key=primary_key)


def _row_key(rows: InputRows) -> tuple[str, ...] | None:
    return rows.relation.primary_key if rows.is_derived else None


@dataclass(frozen=True, eq=False)
class AggregateRequest:
    """Ask for GROUP BY; without calls, for DISTINCT.

    Args:
        group_by: the key columns; none for one global row.
        calls: the other columns.
        reduces: rows are brought down to sums before they travel; worth it where they do.
    """

    group_by: tuple[str, ...]
    calls: tuple[AggregateCall, ...]
    reduces: bool = False

    @property
    def computed_keys(self) -> tuple[tuple[tuple[str, Expression], ...], ...]:
        """Return nothing: groups are shown, so they are computed as columns that are no secret."""
        return ((),)

    def takes_upserts(self, input: int) -> bool:  # noqa: A002, ARG002 - as the protocol has it
        """Say that it needs old values."""
        return False

    def with_keys_computed(self) -> AggregateRequest:
        """Return the same request."""
        return self

    def stage(self, inputs: Sequence[InputRows]) -> AggregateStage:
        """Return the aggregate of an input like this.

        Raises:
            PlanError: columns or types that cannot be grouped or aggregated.
        """
        source = replace(inputs[0].relation, primary_key=(), join_key=(), event_time=None, watermark_delay=None)
        return AggregateStage(source=source, group_by=self.group_by, calls=self.calls, reduces=self.reduces)


@dataclass(frozen=True, eq=False)
class LatestRequest:
    """Ask for the latest rows of an upsert input, as a changelog.

    Args:
        control: its last column, where changes may leave columns out or be truncates; None where they are whole rows.
    """

    control: str | None = None

    @property
    def computed_keys(self) -> tuple[tuple[tuple[str, Expression], ...], ...]:
        """Return nothing."""
        return ((),)

    def takes_upserts(self, input: int) -> bool:  # noqa: A002, ARG002 - as the protocol has it
        """Say that upserts are what it is for."""
        return True

    def with_keys_computed(self) -> LatestRequest:
        """Return the same request."""
        return self

    def stage(self, inputs: Sequence[InputRows]) -> LatestStage:
        """Return the table of an input like this."""
        hidden = tuple(name for name in inputs[0].hidden if name != self.control)
        return LatestStage(source=replace(inputs[0].relation, join_key=()), hidden=hidden, control=self.control)


@dataclass(frozen=True, eq=False)
class RouteRequest:
    """Ask for the route of upserts to the bucket of another key than their own.

    Args:
        key: the columns whose value decides the bucket.
    """

    key: tuple[str, ...]

    @property
    def computed_keys(self) -> tuple[tuple[tuple[str, Expression], ...], ...]:
        """Return nothing."""
        return ((),)

    def takes_upserts(self, input: int) -> bool:  # noqa: A002, ARG002 - as the protocol has it
        """Say that upserts are what it is for."""
        return True

    def with_keys_computed(self) -> RouteRequest:
        """Return the same request."""
        return self

    def stage(self, inputs: Sequence[InputRows]) -> RouteStage:
        """Return the route of an input like this."""
        return RouteStage(source=replace(inputs[0].relation, join_key=self.key))


@dataclass(frozen=True, eq=False)
class UnchangedRequest:
    """Ask for rows as they come, where only the answer of a stage will do."""

    @property
    def computed_keys(self) -> tuple[tuple[tuple[str, Expression], ...], ...]:
        """Return nothing."""
        return ((),)

    def takes_upserts(self, input: int) -> bool:  # noqa: A002, ARG002 - as the protocol has it
        """Say that it needs old values."""
        return False

    def with_keys_computed(self) -> UnchangedRequest:
        """Return the same request."""
        return self

    def stage(self, inputs: Sequence[InputRows]) -> UnchangedStage:
        """Return the stage over an input like this, without its hidden columns."""
        return UnchangedStage(source=shown_only(replace(inputs[0].relation, join_key=()), inputs[0].hidden))
