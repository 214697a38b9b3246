"""DISTINCT over a changing table: every row once, however many copies there are.

The law: after every epoch the sum of all answers holds each row of the sum of the inputs exactly once. A row is emitted with
its first copy and retracted with its last.

Remembers every distinct row with its number of copies: a row record and 13 to 26 bytes of table.

Edge cases: rows compare as Spark's do (NULL with NULL, NaN with NaN, 0.0 with -0.0); of these 0.0 is shown, as Spark does. A
retraction of a row that is not there is always noticed.

Known limits: the input is in changelog or append mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from zset_join.aggregates.accumulation import Accumulation
from zset_join.aggregates.grouped_operator import GroupedOperator
from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform
from zset_join.shapes.aggregate import check_grouping
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.rows.guarded import guarded
from zset_join.zset import ZSet

__all__ = ["Counted", "Distinct"]


@guarded("the distinct")
class Distinct(GroupedOperator):
    """Keep every row once.

    Args:
        relation: the input, in changelog or append mode.
        options: how it runs, and where its state lies.

    Raises:
        PlanError: an input in upsert mode, or a column that has no equality.
        OptionError: an option that is not allowed, or a hybrid table that cannot be one.
        StateError: the directory has other content.

    >>> import pyarrow as pa
    >>> from zset_join import Tick, ZSet
    >>> visits = Relation(name="visits", schema=pa.schema({"page": pa.string()}), mode="changelog")
    >>> pages = Distinct(visits)
    >>> [row for chunk in pages.answer(Tick(0), [ZSet.of({"page": ["a", "b", "a"]})]) for row in chunk.to_pylist()]
    [(('a',), 1), (('b',), 1)]
    """

    def __init__(
        self,
        relation: Relation,
        *,
        options: OperatorOptions = OperatorOptions(),
    ) -> None:
        keys = check_grouping(relation, relation.schema.names, ())
        super().__init__(
            Accumulation(relation, ()),
            keys,
            replace(relation, name=f"{relation.name}_distinct", join_key=(), primary_key=keys, mode="changelog"),
            options=options,
        )


@guarded("the counted rows")
class Counted(Distinct):
    """Pass rows on, netted, and remember how many copies of each there are: what is retracted is there.

    Of copies that differ in their bits, such as 0.0 and -0.0, those of the first are kept.

    >>> import pyarrow as pa
    >>> from zset_join import Tick, ZSet
    >>> visits = Relation(name="visits", schema=pa.schema({"page": pa.string()}), mode="changelog")
    >>> [row for chunk in Counted(visits).answer(Tick(0), [ZSet.of({"page": ["a", "b", "a"]})]) for row in chunk.to_pylist()]
    [(('a',), 2), (('b',), 1)]
    """

    def __init__(self, relation: Relation, *, options: OperatorOptions = OperatorOptions()) -> None:
        super().__init__(relation, options=options)
        self.output = replace(relation, join_key=(), sequence_by=())
        self._chunk_rows = options.chunk_rows
        self._input.state.keeps_bits = True

    def _answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        (delta,) = deltas
        if len(delta):
            kept = self._checked(tick, delta).rejected.kept
            yield from ZSet(conform(kept.rows, self.output), kept.weights).tidy_chunks(self._chunk_rows)
