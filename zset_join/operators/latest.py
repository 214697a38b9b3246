"""From upserts to a changelog: what the row of a key was, and what it is now.

The law: after every epoch the sum of all answers holds the live row of every primary key, once. A row that is replaced by an
equal one emits nothing, however its sequence moved.

Remembers per primary key: the whole row, the sequence, and for deleted keys a tombstone; with a budget the busy ones in memory
and the others on disk.

Edge cases: of several changes of a key in one epoch only the first row before and the last one after are emitted. A delete of
an unknown key is counted and emits nothing. Columns that only order changes are not shown.

Source: the upsert normalisation of Flink (ChangelogNormalize).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import pyarrow as pa

from zset_join.core.relation import Relation
from zset_join.core.tick import Tick
from zset_join.operators.upsert_table import UpsertTable
from zset_join.shapes.latest import latest_rows
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.rows.guarded import guarded
from zset_join.zset import ZSet

__all__ = ["Latest"]


@guarded("the table")
class Latest(UpsertTable):
    """Emit the old and the new row of every key that changes.

    >>> schema = pa.schema({"id": pa.int64(), "name": pa.string()})
    >>> latest = Latest(Relation(name="customers", schema=schema, primary_key=("id",), mode="upsert"))
    >>> latest.absorb(Tick(0), [ZSet.of({"id": [1], "name": ["Ada"]}, schema=schema)])
    >>> renamed = [ZSet.of({"id": [1], "name": ["Ada L."]}, schema=schema)]
    >>> [row for chunk in latest.answer(Tick(1), renamed) for row in chunk.to_pylist()]
    [((1, 'Ada'), -1), ((1, 'Ada L.'), 1)]
    """

    def __init__(
        self,
        relation: Relation,
        *,
        hidden: Collection[str] = (),
        options: OperatorOptions = OperatorOptions(),
    ) -> None:
        output = latest_rows(relation, hidden)
        shown = output.schema.names
        super().__init__(
            relation,
            output,
            table="latest",
            kept=relation.schema.names,
            compared=shown,
            options=options,
        )
        self._plan = self._side.layout.gather_plan(self._side.relation.field_indices(shown))

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        return self._answers.guarded(self._answer(tick, deltas))

    def _answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        (delta,) = deltas
        if len(delta) == 0:
            return
        prepared, old_and_new = self._prepare(tick, delta)
        self._refuse_bad_input(prepared, tick)
        for refs, weight in zip(old_and_new, (-1, 1), strict=True):
            for columns in self._in_chunks(prepared, refs, self._plan):
                rows = pa.RecordBatch.from_arrays(columns, schema=self.output.schema)
                yield ZSet(rows, np.full(rows.num_rows, weight, np.int64))
