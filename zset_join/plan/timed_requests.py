"""What a query asks of the stages about time: a dedup, a temporal join, an as-of join."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from zset_join.core.relation import Relation
from zset_join.expressions import Expression
from zset_join.plan.tree import InputRows, StageRequest
from zset_join.shapes.as_of_join import AsOfOptions
from zset_join.shapes.deduplicate import Keep
from zset_join.shapes.temporal_join import TemporalOptions
from zset_join.stages.as_of_join import AsOfJoinStage
from zset_join.stages.deduplicate import DeduplicateStage
from zset_join.stages.expiring import StateTtl, expiring_stage, state_ttls
from zset_join.stages.stage import Stage
from zset_join.stages.temporal_join import TemporalJoinStage

__all__ = ["AsOfRequest", "DedupRequest", "ExpiringRequest", "TemporalRequest", "lasting"]


@dataclass(frozen=True, eq=False)
class DedupRequest:
    """Ask for the first or last rows of every key.

    Args:
        keys: what rows are told apart by.
        order_by: the order, as `"t"` or `"price desc"`.
        keep: `first` in this order, or `last`.
        n: how many rows per key are shown.
    """

    keys: tuple[str, ...]
    order_by: tuple[str, ...]
    keep: Keep = "first"
    n: int = 1

    @property
    def computed_keys(self) -> tuple[tuple[()], ...]:
        """Return nothing: keys are columns."""
        return ((),)

    def takes_upserts(self, input: int) -> bool:  # noqa: A002, ARG002 - as the protocol has it
        """Say that it needs old values."""
        return False

    def with_keys_computed(self) -> DedupRequest:
        """Return the same request."""
        return self

    def stage(self, inputs: Sequence[InputRows]) -> DeduplicateStage:
        """Return the dedup of an input like this.

        Raises:
            PlanError: columns or types that cannot be deduplicated.
        """
        source = replace(inputs[0].relation, join_key=(), primary_key=())
        return DeduplicateStage(source=source, keys=self.keys, order_by=self.order_by, keep=self.keep, n=self.n)


@dataclass(frozen=True, eq=False)
class TemporalRequest:
    """Ask for a temporal join by event time.

    Args:
        keys: pairs of a left and a right column that must be equal.
        as_of: the left column that says when.
        version_key: the right columns that identify what has versions.
        options: how, when and what of late rows.
        is_change_time: the time of a version is that of its change.
        names: what messages call the two sides.
        index: the declared index of the versions; None: none.
    """

    keys: tuple[tuple[str, str], ...]
    as_of: str
    version_key: tuple[str, ...]
    options: TemporalOptions
    is_change_time: bool = False
    names: tuple[str, str] = ("left", "right")
    index: str | None = None

    @property
    def computed_keys(self) -> tuple[tuple[()], ...]:
        """Return nothing: keys are columns."""
        return ((), ())

    def takes_upserts(self, input: int) -> bool:  # noqa: A002 - as the protocol has it
        """Say that versions may be upserts; left rows need their old values."""
        return input == 1

    def with_keys_computed(self) -> TemporalRequest:
        """Return the same request."""
        return self

    def stage(self, inputs: Sequence[InputRows]) -> TemporalJoinStage:
        """Return the temporal join of inputs like these.

        Raises:
            PlanError: the rules of temporal joins.
        """
        left = _at(inputs[0].relation, self.as_of)
        left = replace(left, name=self.names[0], join_key=tuple(pair[0] for pair in self.keys))
        right = replace(
            inputs[1].relation,
            name=self.names[1],
            join_key=tuple(pair[1] for pair in self.keys),
            primary_key=self.version_key,
        )
        hidden = (inputs[0].hidden, inputs[1].hidden)
        options = replace(self.options, hidden=hidden)
        return TemporalJoinStage(left=left, right=right, options=options, is_change_time=self.is_change_time, index=self.index)


@dataclass(frozen=True, eq=False)
class AsOfRequest:
    """Ask for an as-of join.

    Args:
        keys: pairs of a left and a right column that must be equal.
        options: the times, the comparison, ties and tolerance.
        names: what messages call the two sides.
    """

    keys: tuple[tuple[str, str], ...]
    options: AsOfOptions
    names: tuple[str, str] = ("left", "right")

    @property
    def computed_keys(self) -> tuple[tuple[()], ...]:
        """Return nothing: keys are columns."""
        return ((), ())

    def takes_upserts(self, input: int) -> bool:  # noqa: A002, ARG002 - as the protocol has it
        """Say that it needs old values."""
        return False

    def with_keys_computed(self) -> AsOfRequest:
        """Return the same request."""
        return self

    def stage(self, inputs: Sequence[InputRows]) -> AsOfJoinStage:
        """Return the as-of join of inputs like these.

        Raises:
            PlanError: columns or types that cannot be joined so.
        """
        left, right = (
            replace(rows.relation, name=self.names[side], join_key=tuple(pair[side] for pair in self.keys))
            for side, rows in enumerate(inputs)
        )
        return AsOfJoinStage(left=left, right=right, options=self.options)


def _at(relation: Relation, column: str) -> Relation:
    """Return a relation by the time of a column; its watermark is of another one otherwise."""
    if relation.event_time == column:
        return relation
    return replace(relation, event_time=column, watermark_delay=None)


@dataclass(frozen=True, eq=False)
class ExpiringRequest:
    """Ask for a stage whose inputs' rows end by time.

    Args:
        inside: what is asked for.
        ttls: per input, how long its rows live; None: until they are taken back.
    """

    inside: StageRequest
    ttls: tuple[StateTtl | None, ...]

    @property
    def computed_keys(self) -> tuple[tuple[tuple[str, Expression], ...], ...]:
        """Return the keys that the request inside wants computed."""
        return self.inside.computed_keys

    def takes_upserts(self, input: int) -> bool:  # noqa: A002 - as the protocol has it
        """Say that rows which end must come with their old values."""
        return self.ttls[input] is None and self.inside.takes_upserts(input)

    def with_keys_computed(self) -> ExpiringRequest:
        """Return the same request once the keys are there."""
        return replace(self, inside=self.inside.with_keys_computed())

    def stage(self, inputs: Sequence[InputRows]) -> Stage:
        """Return the stage over inputs like these.

        Raises:
            PlanError: as the request inside; or an input has no event time where one is needed.
            OptionError: an option that does not fit.
        """
        changing = [
            rows if ttl is None else replace(rows, relation=replace(rows.relation, mode="changelog"))
            for rows, ttl in zip(inputs, self.ttls, strict=True)
        ]
        return expiring_stage(self.inside.stage(changing), [rows.relation for rows in inputs], self.ttls)


def lasting(request: StageRequest, state_ttl: Any, inputs: int) -> StageRequest:
    """Return a request whose state ends by time, where `state_ttl=` says so.

    Raises:
        OptionError: it is no duration, no `StateTtl`, and no tuple of them.
    """
    ttls = state_ttls(state_ttl, inputs)
    return request if all(ttl is None for ttl in ttls) else ExpiringRequest(request, ttls)
