"""GROUP BY over a changing table: count, sum, avg, min, max and more, exact under retraction.

The law: after every epoch the sum of all answers equals the batch query over the sum of the inputs: one row per group that
has rows, or exactly one row where there is no GROUP BY.

An answer has at most two lines per group, `-old` and `+new`, none where the columns stay what they are. A group whose last
row goes is gone. The one row of a global aggregate is emitted in the first epoch, even if that is empty, and from then on
only changes.

Remembers per group: its key, 8 bytes per state word (`zset_join.aggregates.accumulators`), and for min, max and their like
every distinct value with its number of copies.

Edge cases: group keys compare as Spark's do (NULL with NULL, NaN with NaN, 0.0 with -0.0; 0.0 is shown, as
Spark does). NULLs count nowhere but in count(1) and as the value of `min_by` and `max_by`. A sum that leaves its type stops the
epoch, under either policy, as Spark's ANSI mode does.

Known limits: rows are not remembered, so not every impossible retraction is noticed, see
`zset_join.aggregates.grouped_operator`. The input is in changelog or append mode.

Source: semantics section 10; group-by of differential dataflow and DBSP (Budiu et al., VLDB 2023).

`Counted`, `Distinct`: DISTINCT over a changing table: every row once, however many copies there are.

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

from typing_extensions import override

from zset_join.aggregates.accumulation import Accumulation
from zset_join.aggregates.grouped_operator import GroupedOperator
from zset_join.core.epochs import Tick
from zset_join.core.errors import OptionError
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform
from zset_join.shapes.aggregate import AggregateCall, check_grouping, grouped_relation
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.rows.guarded import guarded
from zset_join.zset import ZSet

__all__ = ["Aggregate", "Counted", "Distinct"]


@guarded("the aggregate")
class Aggregate(GroupedOperator):
    """Aggregate a relation incrementally.

    Args:
        relation: the input, in changelog or append mode.
        group_by: the key columns; none for a global aggregate.
        calls: the output columns besides the key.
        preaggregated: whether the deltas were reduced to partial lines before, see
            `zset_join.aggregates.accumulation`; goes with policy `error` only.
        options: how it runs, and where its state lies.

    Raises:
        PlanError: columns or types that cannot be grouped or aggregated.
        OptionError: an option that is not allowed, or a hybrid table that cannot be one.
        StateError: the directory has other content.

    >>> import pyarrow as pa
    >>> from zset_join import Tick, ZSet
    >>> sales = Relation(name="sales", schema=pa.schema({"shop": pa.string(), "price": pa.int64()}), mode="changelog")
    >>> totals = Aggregate(sales, ["shop"], [AggregateCall("sum", "price"), AggregateCall("max", "price")])
    >>> totals.absorb(Tick(0), [ZSet.of({"shop": ["A", "A"], "price": [3, 4]})])
    >>> gone = ZSet.of({"shop": ["A"], "price": [4]}, [-1])
    >>> [row for chunk in totals.answer(Tick(1), [gone]) for row in chunk.to_pylist()]
    [(('A', 7, 4), -1), (('A', 3, 3), 1)]
    """

    def __init__(
        self,
        relation: Relation,
        group_by: Sequence[str],
        calls: Sequence[AggregateCall],
        *,
        preaggregated: bool = False,
        options: OperatorOptions = OperatorOptions(),
    ) -> None:
        output = grouped_relation(relation, group_by, calls)
        self.calls = tuple(calls)
        accumulation = Accumulation(relation, calls)
        if preaggregated and (options.on_bad_input != "error" or not accumulation.is_linear):
            raise OptionError(
                f'preaggregated=True goes with on_bad_input="error" (here "{options.on_bad_input}") and with sums and counts '
                "only; feed the rows themselves.",
                code="PREAGGREGATED",
                relation=relation.name,
            )
        super().__init__(
            accumulation,
            output.primary_key,
            output,
            preaggregated=preaggregated,
            options=options,
        )


def _by_row(relation: Relation) -> tuple[Accumulation, tuple[str, ...], Relation]:
    keys = check_grouping(relation, relation.schema.names, ())
    output = replace(relation, name=f"{relation.name}_distinct", join_key=(), primary_key=keys, mode="changelog")
    return Accumulation(relation, ()), keys, output


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

    def __init__(self, relation: Relation, *, options: OperatorOptions = OperatorOptions()) -> None:
        super().__init__(*_by_row(relation), options=options)


@guarded("the counted rows")
class Counted(GroupedOperator):
    """Pass rows on, netted, and remember how many copies of each there are: what is retracted is there.

    Of copies that differ in their bits, such as 0.0 and -0.0, those of the first are kept.

    >>> import pyarrow as pa
    >>> from zset_join import Tick, ZSet
    >>> visits = Relation(name="visits", schema=pa.schema({"page": pa.string()}), mode="changelog")
    >>> [row for chunk in Counted(visits).answer(Tick(0), [ZSet.of({"page": ["a", "b", "a"]})]) for row in chunk.to_pylist()]
    [(('a',), 2), (('b',), 1)]
    """

    def __init__(self, relation: Relation, *, options: OperatorOptions = OperatorOptions()) -> None:
        super().__init__(*_by_row(relation), options=options)
        self.output = replace(relation, join_key=(), sequence_by=())
        self._chunk_rows = options.chunk_rows
        self._input.state.keeps_bits = True

    @override
    def _answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        (delta,) = deltas
        if len(delta):
            kept = self._checked(tick, delta).rejected.kept
            yield from ZSet(conform(kept.rows, self.output), kept.weights).tidy_chunks(self._chunk_rows)
