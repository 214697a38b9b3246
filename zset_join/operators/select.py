"""SELECT over a changing table: some columns, in any order, under other names.

The law: after every epoch the sum of all answers is the sum of the inputs without the other columns; rows that have become
equal add up.

Remembers nothing. Computed columns are Spark's business (`zset_join.spark`), or that of the delta's producer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from zset_join.core.errors import PlanError
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform
from zset_join.operators.stateless import StatelessOperator
from zset_join.zset import ZSet

__all__ = ["Select"]


class Select(StatelessOperator):
    """Keep some columns.

    Args:
        relation: the input, in changelog or append mode.
        columns: names of input columns, or output name to input column.
        on_bad_input: `error` raises and applies nothing; `quarantine` omits bad rows and lists them in `rejections`.
        chunk_rows: rows per chunk of an answer.

    Raises:
        PlanError: no column, or one that does not exist.

    >>> from zset_join import Tick
    >>> sales = Relation(name="sales", schema=pa.schema({"shop": pa.string(), "price": pa.int64()}), mode="changelog")
    >>> prices = Select(sales, {"amount": "price"})
    >>> delta = ZSet.of({"shop": ["A", "B"], "price": [3, 3]})
    >>> [row for chunk in prices.answer(Tick(0), [delta]) for row in chunk.to_pylist()]
    [((3,), 2)]
    """

    def __init__(
        self,
        relation: Relation,
        columns: Sequence[str] | Mapping[str, str],
        *,
        on_bad_input: str = "error",
        chunk_rows: int = 65_536,
    ) -> None:
        chosen = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
        missing = [name for name in chosen.values() if name not in relation.schema.names]
        if missing or not chosen:
            raise PlanError(
                f'the selection {chosen} from "{relation.name}" names {missing or "no column"}; its columns are '
                f"{relation.schema.names}.",
                code="UNKNOWN_COLUMN",
                relation=relation.name,
                missing=missing,
            )
        self._sources = tuple(chosen.values())
        schema = pa.schema([relation.schema.field(source).with_name(name) for name, source in chosen.items()])
        shown = {source: name for name, source in chosen.items()}
        kept_key = set(relation.primary_key) <= shown.keys()
        output = Relation(
            name=f"{relation.name}_select",
            schema=schema,
            primary_key=tuple(shown[name] for name in relation.primary_key) if kept_key else (),
            mode="changelog" if relation.mode != "append" else "append",
        )
        super().__init__([relation], output, on_bad_input=on_bad_input, chunk_rows=chunk_rows)

    def mapped(self, deltas: Sequence[ZSet]) -> ZSet:
        (delta,) = deltas
        rows = conform(delta.rows, self.inputs[0])
        kept = [rows.column(name) for name in self._sources]
        return ZSet(pa.RecordBatch.from_arrays(kept, schema=self.output.schema), delta.weights)
