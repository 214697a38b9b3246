"""UNION ALL of changing tables: the sum of their Z-sets.

The law: after every epoch the sum of all answers is the sum of all inputs. A row that leaves one input and enters another in
one epoch emits nothing.

Remembers nothing. Columns go by position, as in Spark; the names are those of the first input. `Distinct` behind it gives
UNION.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from zset_join.core.errors import PlanError
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform
from zset_join.operators.stateless import StatelessOperator
from zset_join.zset import ZSet

__all__ = ["Union"]


class Union(StatelessOperator):
    """Add relations up.

    Args:
        relations: the inputs, in changelog or append mode, with columns of the same types in the same order.
        on_bad_input: `error` raises and applies nothing; `quarantine` omits bad rows and lists them in `rejections`.
        chunk_rows: rows per chunk of an answer.

    Raises:
        PlanError: fewer than two inputs, two of one name, or columns that do not go together.

    >>> from zset_join import Tick
    >>> schema = pa.schema({"x": pa.int64()})
    >>> both = Union([Relation(name="a", schema=schema), Relation(name="b", schema=schema)])
    >>> deltas = [ZSet.of({"x": [1, 2]}), ZSet.of({"x": [2]})]
    >>> [row for chunk in both.answer(Tick(0), deltas) for row in chunk.to_pylist()]
    [((1,), 1), ((2,), 2)]
    """

    def __init__(self, relations: Sequence[Relation], *, on_bad_input: str = "error", chunk_rows: int = 65_536) -> None:
        names = [relation.name for relation in relations]
        if len(relations) < 2 or len(set(names)) < len(names):
            raise PlanError(
                f"a union needs two inputs or more, of different names; got {names}.", code="UNION_INPUTS", inputs=names
            )
        first = relations[0]
        for relation in relations[1:]:
            if relation.schema.types != first.schema.types:
                raise PlanError(
                    f'the columns of "{relation.name}" have the types {[str(kind) for kind in relation.schema.types]}, those '
                    f'of "{first.name}" {[str(kind) for kind in first.schema.types]}; a union goes by position. Select or cast '
                    "columns first.",
                    code="UNION_TYPES",
                    relation=relation.name,
                )
        nullable = [any(one.schema.field(at).nullable for one in relations) for at in range(len(first.schema))]
        schema = pa.schema([field.with_nullable(flag) for field, flag in zip(first.schema, nullable, strict=True)])
        output = Relation(
            name="_and_".join(names),
            schema=schema,
            mode="append" if {one.mode for one in relations} == {"append"} else "changelog",
        )
        super().__init__(relations, output, on_bad_input=on_bad_input, chunk_rows=chunk_rows)

    def mapped(self, deltas: Sequence[ZSet]) -> ZSet:
        schema = self.output.schema
        parts = [
            ZSet(pa.RecordBatch.from_arrays(conform(delta.rows, relation).columns, schema=schema), delta.weights)
            for relation, delta in zip(self.inputs, deltas, strict=True)
        ]
        return ZSet.concat(parts, schema=schema)
