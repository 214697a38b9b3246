"""A join by key and time as a stage: what temporal and as-of joins have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from functools import cached_property

from zset_join.core.relation import Relation
from zset_join.expressions import references
from zset_join.shapes.as_of_join import AsOfOptions
from zset_join.shapes.temporal_join import TemporalOptions
from zset_join.shapes.version_join import VersionJoinShape
from zset_join.stages.request import sides_read
from zset_join.stages.stage import Comparison, Joined, OutputKey, Stage, StageInput, compared_in_condition, compared_keys

__all__ = ["TimedJoinStage"]


class TimedJoinStage(Stage):
    """A join of left rows with the right rows of their key that their time chooses."""

    left: Relation
    right: Relation
    options: AsOfOptions | TemporalOptions

    @property
    @abstractmethod
    def shape(self) -> VersionJoinShape:
        """Return which rows meet, and when."""

    @cached_property
    def inputs(self) -> tuple[StageInput, ...]:
        """Return both inputs, bucketed by key; a NULL in it matches nothing."""
        return tuple(
            StageInput(
                relation=relation,
                key=tuple(pair[side] for pair in self.shape.key),
                key_types=self.shape.key_types,
                unmatchable="by_identity",
            )
            for side, relation in enumerate((self.shape.left, self.shape.right))
        )

    def read_of_sides(self, shown: Collection[str], more: Sequence[Collection[str]]) -> tuple[frozenset[str], ...]:
        """Return, per side, what these columns of the answer need: keys, times, the rest of ON, what shows, and `more`."""
        shape = self.shape
        keys = [{*relation.join_key, *extra} for relation, extra in zip((self.left, self.right), more, strict=True)]
        if self.options.residual is not None:
            for side, columns in enumerate(references(self.options.residual)):
                keys[side] |= columns
        sides = [0 if side == "left" else 1 for side, _ in shape.sources]
        sources = [
            (name, (side, column)) for name, side, (_, column) in zip(shape.schema.names, sides, shape.sources, strict=True)
        ]
        return sides_read((self.left.schema, self.right.schema), keys, sources, shown)

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        left, right = self.inputs[0].relation, self.inputs[1].relation
        keys = compared_keys(self.inputs, "a key of a join")
        return (*keys, *compared_in_condition(left, right, self.options.residual))

    @property
    def output_key(self) -> OutputKey:
        """Return the key of the output and the columns that show it: the left key is in every row."""
        shape = self.shape
        shown = dict(zip(shape.sources, shape.schema.names, strict=True))
        left = tuple(shown[("left", pair[0])] for pair in shape.key)
        aliases = tuple((shown[("left", a)], shown[("right", b)]) for a, b in shape.key if ("right", b) in shown)
        padded = tuple(name for _, name in aliases)
        is_padded = shape.how == "left" and bool(padded)
        return OutputKey(
            columns=self.output.primary_key, bucketed_by=left, aliases=aliases, padded=(padded,) if is_padded else ()
        )

    @property
    def answers_distinct_rows(self) -> bool:
        """Return False: equal left rows are answered one by one."""
        return False

    def never_null(self, inputs: Sequence[frozenset[str]]) -> frozenset[str]:
        shape = self.shape
        full = {"left": set(inputs[0]), "right": set(inputs[1]) if shape.how == "inner" else set()}
        if shape.how == "inner":
            full["left"] |= {pair[0] for pair in shape.key}
            full["right"] |= {pair[1] for pair in shape.key}
        shown = zip(shape.sources, shape.schema.names, strict=True)
        return frozenset(name for (side, column), name in shown if column in full[side])

    @property
    def waits_for_time(self) -> bool:
        return True

    @property
    def joined(self) -> Joined:
        return Joined(left=self.left, right=self.right, how=self.options.how, using=self.options.using)

    @property
    def chooses_by_key(self) -> bool:
        return True

    @property
    def condition(self) -> str:
        """Return ON as text: the key, then the rest."""
        pairs = " and ".join(f"{a} = {b}" for a, b in zip(self.left.join_key, self.right.join_key, strict=True))
        return pairs if self.options.residual is None else f"{pairs} and {self.options.residual!r}"
