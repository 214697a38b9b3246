"""A stage that looks up in a table together with others: what it opens, and what it logs.

The tasks of such stages have one state per bucket. Each opens it, answers in the state before the epoch, and logs what came to
it; what the first one logs has the rows of the table too. The epoch is folded in by whichever opens the state next.

The law: what all of them logged of an epoch, added up, is what the table is fed in process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zset_join.plan.query_plan import SharedIndex
from zset_join.stages.shared_table import SharedTableStage
from zset_join.zset import ZSet

__all__ = ["SharedPlace"]


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedPlace:
    """Say which table a stage looks up in together with others.

    Args:
        name: what its state is called.
        table: how that is built.
        place: of the stage among those that look up in it.
        index: by what its rows are found, and the numbers of these stages.
    """

    name: str
    table: SharedTableStage
    place: int
    index: SharedIndex

    def deltas(self, given: Sequence[ZSet]) -> list[ZSet]:
        """Return what the table is fed of the deltas of this stage: its left rows, and the rows of the table by the first."""
        fed = [ZSet.empty(one.relation.schema) for one in self.table.inputs]
        if self.place == 0:
            fed[0] = given[1]
        fed[1 + self.place] = given[0]
        return fed

    def deltas_of(self, logged: Sequence[ZSet]) -> list[ZSet]:
        """Return the deltas of this stage among those that were logged of the table."""
        own = self.table.readers[self.place].inputs[1].relation.schema
        return [logged[1 + self.place], logged[0].with_schema(own)]
