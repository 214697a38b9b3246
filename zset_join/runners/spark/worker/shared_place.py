"""A stage that has its state together with others: what it opens, and what it logs.

These are joins that look up in one table, and stages that prepare the same rows for such joins, which the first one logs.

The tasks of such stages have one state per bucket. Each opens it, answers in the state before the epoch, and logs the rows for
it; what the first one logs has the rows of the table too. The epoch is folded in by whichever opens the state next.

The law: what all of them logged of an epoch, added up, is what the table is fed in process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zset_join.operators.shared_table import SharedTable
from zset_join.plan.query_plan import SharedIndex
from zset_join.stages import Stage
from zset_join.stages.shared_table import SharedTableStage
from zset_join.zset import ZSet
from zset_join.zset.protocol import DurableOperator

__all__ = ["SharedPlace"]


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedPlace:
    """Name the state that a stage has together with others."""

    name: str
    stage: Stage
    place: int
    readers: tuple[int, ...]
    index: SharedIndex | None = None

    def input_of(self, side: int) -> int:
        """Return the input of what has the state that an input of the stage is."""
        if not isinstance(self.stage, SharedTableStage):
            return side
        return 0 if side == 1 else 1 + self.place

    def read_by(self, operator: DurableOperator) -> DurableOperator:
        """Return the operator that answers for the stage, of what has the state."""
        return operator.readers[self.place] if isinstance(operator, SharedTable) else operator

    @property
    def logs(self) -> bool:
        """Return whether the rows for the stage are logged by it, and not by another one that the same rows reach."""
        return self.place == 0 or isinstance(self.stage, SharedTableStage)

    def deltas(self, given: Sequence[ZSet]) -> list[ZSet]:
        """Return the logged deltas of this stage: of a table its left rows, and the table's own where it is the first."""
        if not isinstance(self.stage, SharedTableStage) and self.place == 0:
            return list(given)
        fed = [ZSet.empty(one.fed.schema) for one in self.stage.inputs]
        if not isinstance(self.stage, SharedTableStage):
            return fed
        if self.place == 0:
            fed[0] = given[1]
        fed[1 + self.place] = given[0]
        return fed

    def deltas_of(self, logged: Sequence[ZSet]) -> list[ZSet]:
        """Return the deltas of this stage among those that were logged."""
        if not isinstance(self.stage, SharedTableStage):
            return list(logged)
        own = self.stage.readers[self.place].inputs[1].relation.schema
        return [logged[1 + self.place], logged[0].with_schema(own)]
