"""Rows as they come: the answer is the delta, netted, retractions first.

The law: after every epoch the sum of all answers is the sum of the input. It is used where rows must pass a stage and no other
one is requested, such as a SELECT over one stream inside Spark.

Remembers nothing but the number of the last epoch, in its directory where it has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform
from zset_join.core.tick import Tick
from zset_join.operators.stateless import StatelessOperator
from zset_join.zset import ZSet

__all__ = ["Unchanged"]

_FILE = "absorbed_epoch"


class Unchanged(StatelessOperator):
    """Pass rows on.

    >>> clicks = Relation(name="clicks", schema=pa.schema({"page": pa.string()}), mode="append")
    >>> same = Unchanged(clicks)
    >>> [row for chunk in same.answer(Tick(0), [ZSet.of({"page": ["a", "a"]})]) for row in chunk.to_pylist()]
    [(('a',), 2)]
    """

    def __init__(
        self,
        relation: Relation,
        *,
        on_bad_input: str = "error",
        chunk_rows: int = 65_536,
        directory: str | None = None,
    ) -> None:
        output = replace(relation, join_key=(), sequence_by=())
        super().__init__([relation], output, on_bad_input=on_bad_input, chunk_rows=chunk_rows)
        self._file = None if directory is None else Path(directory) / _FILE
        if self._file is not None and self._file.exists():
            self._absorbed_epoch = int(self._file.read_text(encoding="ascii") or "-1")

    def mapped(self, deltas: Sequence[ZSet]) -> ZSet:
        (delta,) = deltas
        rows = conform(delta.rows, self.inputs[0])
        return ZSet(pa.RecordBatch.from_arrays(rows.columns, schema=self.output.schema), delta.weights)

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        super().absorb(tick, deltas)
        self._write_down()

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        super().restore(tables)
        self._write_down()

    def is_current(self) -> bool:
        if self._file is None:
            return True
        epoch = self._file.read_text(encoding="ascii") if self._file.exists() else "-1"
        return epoch == str(self._absorbed_epoch)

    def working_bytes(self) -> int:
        return 0

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        return {name: table.to_reader() for name, table in self.snapshot().items()}

    def _write_down(self) -> None:
        if self._file is not None:
            self._file.write_text(str(self._absorbed_epoch), encoding="ascii")
