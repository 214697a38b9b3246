"""Options that the stages of one query of a pipeline have in place of those of the pipeline.

The law: two stages with other options are never one stage, whatever else they have in common. What is written of them is read
back equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from zset_join.core.options import BufferLimit, HotBudget
from zset_join.stages.stage import Stage, StageOptions
from zset_join.stages.written import read_fields, write_fields

__all__ = ["OwnOptions", "own_of"]


@dataclass(frozen=True, kw_only=True)
class OwnOptions:
    """Options of the operators of one query, which replace those of the pipeline; the arguments are as in `StageOptions`."""

    tombstone_retention_seconds: int
    buffer_limit: BufferLimit
    hot_budget: HotBudget | None
    table_budget: HotBudget | None

    def over(self, options: StageOptions) -> StageOptions:
        """Return the options of the pipeline with these in their place."""
        return replace(
            options,
            tombstone_retention_seconds=self.tombstone_retention_seconds,
            buffer_limit=self.buffer_limit,
            hot_budget=self.hot_budget,
            table_budget=self.table_budget,
        )

    def explained(self, stage: Stage) -> str:
        """Return in a line what a stage has of these."""
        facts = [f"deleted keys remembered for {self.tombstone_retention_seconds:,} seconds"]
        if stage.is_append_buffer:
            facts.append(f"at most {self.buffer_limit.max_bytes:,} bytes of rows, then {self.buffer_limit.policy}")
        for what, budget in {"rows of joins": self.hot_budget, "groups": self.table_budget}.items():
            facts.append(f"{what} {'all' if budget is None else f'at most {budget.describe()}'} in memory")
        return f"options of its own: {'; '.join(facts)}"

    def to_json(self) -> dict[str, Any]:
        return write_fields(self)

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Self:
        return read_fields(cls, written)


def own_of(options: StageOptions) -> OwnOptions:
    """Return the options that a single query may set."""
    return OwnOptions(
        tombstone_retention_seconds=options.tombstone_retention_seconds,
        buffer_limit=options.buffer_limit,
        hot_budget=options.hot_budget,
        table_budget=options.table_budget,
    )
