"""The as-of join: each left row meets the nearest right row in time, before it or after it.

The law: after every epoch the sum of all answers equals the batch as-of join of everything so far. Among right rows of equal
keys for which `left op right` holds (`>=`, `>`, `<=`, `<`), the nearest is chosen; of several at one time the one with the
smallest primary key, or the latest arrival, by `tie`. When a nearer row arrives, or the chosen one goes or changes, the old
answer is retracted and the new one emitted. The rest of ON decides which right rows may be chosen: the nearest that passes is.

Remembers all rows of both sides. A change of a right row touches the left rows from it to the next right row, no others; with a
rest of ON all left rows in its reach, of which each is compared with right rows, nearest first, until one passes.

Edge cases: NULL in the key or in the time, on either side, matches nothing. `tolerance` bounds the distance, itself included.

Known limits: INNER and LEFT. Neither side may be in upsert mode. `tie="smallest_key"` takes primary keys that are numbers,
dates, timestamps or decimals. No hybrid state: everything is in memory, or in mapped files. Nothing is freed by time.

Source: semantics section 14; ASOF JOIN of DuckDB, `joinAsOf` of pandas on Spark.
"""

from __future__ import annotations

from dataclasses import replace

from zset_join.core.relation import Relation
from zset_join.operators.timed_join import TimedJoin
from zset_join.shapes.as_of_join import AsOfOptions, as_of_relation, as_of_shape
from zset_join.shapes.join import check_join
from zset_join.shapes.operator_options import OperatorOptions

__all__ = ["AsOfJoin"]


class AsOfJoin(TimedJoin):
    """Join each left row with the nearest right row.

    Args:
        left: the left input, with a join key, in append or changelog mode.
        right: the right input, with a join key as long, in append or changelog mode.
        options: see `AsOfOptions`.
        options: how it runs, and where its state lies.

    Raises:
        PlanError: relations that cannot be joined so, or options (`OptionError`) that are not allowed.
        KeyTypeError: keys or times that cannot be compared.
        StateError: the directory has other content.

    >>> import pyarrow as pa
    >>> from zset_join import Tick, ZSet
    >>> schema = pa.schema({"k": pa.string(), "t": pa.int64()})
    >>> trades, quotes = (Relation(name=name, schema=schema, join_key=("k",)) for name in ("trades", "quotes"))
    >>> join = AsOfJoin(trades, quotes, AsOfOptions(left_time="t", right_time="t"))
    >>> delta = [ZSet.of({"k": ["A"], "t": [10]}), ZSet.of({"k": ["A", "A", "A"], "t": [3, 9, 11]})]
    >>> [chunk.to_pylist() for chunk in join.answer(Tick(0), delta)]
    [[(('A', 10, 'A', 9), 1)]]
    """

    def __init__(
        self,
        left: Relation,
        right: Relation,
        terms: AsOfOptions,
        *,
        options: OperatorOptions = OperatorOptions(),
    ) -> None:
        check_join(left, right, terms.how, None, terms.using)
        self.options = terms
        shape = as_of_shape(left, right, terms)
        super().__init__(
            shape,
            as_of_relation(shape),
            facts=("as_of", terms.left_time, terms.right_time, terms.op, terms.tie),
            options=replace(options, tombstone_retention_seconds=0),
        )
