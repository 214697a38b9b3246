"""WHERE over a changing table, and HAVING behind an aggregate.

The law: after every epoch the sum of all answers holds those rows of the sum of the inputs that pass. NULL does not pass. A
condition of `zset_join.expressions` depends on the row alone, so a retraction passes where its insertion did.

Remembers nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform, take_rows
from zset_join.expressions import Expression, check, evaluate, references
from zset_join.operators.stateless import StatelessOperator
from zset_join.zset import ZSet

__all__ = ["Where"]


class Where(StatelessOperator):
    """Let rows pass that fulfil a condition.

    Args:
        relation: the input, in changelog or append mode.
        condition: over columns named with `left(...)`.
        on_bad_input: `error` raises and applies nothing; `quarantine` omits bad rows and lists them in `rejections`.
        chunk_rows: rows per chunk of an answer.

    Raises:
        PlanError: a condition that cannot be evaluated on these columns.

    >>> from zset_join import Tick
    >>> from zset_join.expressions import left
    >>> sales = Relation(name="sales", schema=pa.schema({"shop": pa.string(), "total": pa.int64()}), mode="changelog")
    >>> large = Where(sales, left("total") > 10)
    >>> update = ZSet.of({"shop": ["A", "A"], "total": [9, 12]}, [-1, 1])
    >>> [row for chunk in large.answer(Tick(0), [update]) for row in chunk.to_pylist()]
    [(('A', 12), 1)]
    """

    def __init__(
        self, relation: Relation, condition: Expression, *, on_bad_input: str = "error", chunk_rows: int = 65_536
    ) -> None:
        check(condition, relation.schema, pa.schema([]))
        self.condition = condition
        output = replace(relation, name=f"{relation.name}_where")
        super().__init__([relation], output, on_bad_input=on_bad_input, chunk_rows=chunk_rows)

    def mapped(self, deltas: Sequence[ZSet]) -> ZSet:
        (delta,) = deltas
        rows = conform(delta.rows, self.inputs[0])
        columns = {name: rows.column(name) for name in references(self.condition)[0]}
        chosen = np.flatnonzero(evaluate(self.condition, columns, {}, len(delta)))
        kept = take_rows(rows, chosen)
        return ZSet(pa.RecordBatch.from_arrays(kept.columns, schema=self.output.schema), delta.weights[chosen])
