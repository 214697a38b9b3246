"""The joins of two inputs by key and time: the as-of join, and the temporal join by event time.

The as-of join: each left row meets the nearest right row in time, before it or after it. The law: after every epoch the sum of
all answers equals the batch as-of join of everything so far. Among right rows of equal keys for which `left op right` holds
(`>=`, `>`, `<=`, `<`), the nearest is chosen; of several at one time the one with the smallest primary key, or the latest
arrival, by `tie`. When a nearer row arrives, or the chosen one goes or changes, the old answer is retracted and the new one
emitted. The rest of ON decides which right rows may be chosen: the nearest that passes is.

Remembers all rows of both sides; nothing is freed by time. A change of a right row touches the left rows from it to the next
right row, no others; with a rest of ON all left rows in its reach, of which each is compared with right rows, nearest first,
until one passes. Edge cases: NULL in the key or in the time, on either side, matches nothing. `tolerance` bounds the distance,
itself included. Known limits: neither side may be in upsert mode. `tie="smallest_key"` takes primary keys that are numbers,
dates, timestamps or decimals.

The temporal join: each left row meets the one version that was valid at its time. The law: a left row at time t meets, among
the versions of its key, the newest at or before t; a DELETE ends validity. Of several at one time the larger sequence, then the
later arrival wins. The rest of ON is evaluated on that version only. `emit` sets when:

- `on_watermark`: once, when the watermark has passed the row; the sum of all answers is the batch join of the released rows.
- `eager`: at once, corrected when versions come late; the sum is the batch join of everything so far.
- `once`: at once with the versions known then, never corrected, nothing of the left is kept.

Remembers: versions above the watermark and the newest one below it per key, a DELETE for `tombstone_retention`; left rows that
wait (`on_watermark`), or that may be corrected: those above the watermark minus `keep_probe_for` (`eager`; all, without a
watermark). Left rows that may change (`eager`), and all versions for them, as long as they live, unless `keep_probe_for` is
given.

Edge cases. Late left rows (at or before the watermark before their epoch; of rows that may change, at or before that minus
`keep_probe_for`, and an error without `late`) are set aside, dropped or joined, by `late`; `join` sets those aside whose
version may be freed. A late version changes answers not yet given, and in eager mode those given; one older than the version
kept for its key is set aside and counted, and so is a retraction of what the watermark has passed. A NULL key of a left row
matches nothing. UPDATE_BEFORE is no matter of this operator: with a primary key, decoding leaves it out. A left relation in
upsert mode is refused. A version of a key among many that come out of order costs a move of what is behind it in its run.

Known limits of both: INNER and LEFT. No hybrid state: everything is in memory, or in mapped files.

Source: semantics sections 11 and 14; ASOF JOIN of DuckDB, `joinAsOf` of pandas on Spark; FOR SYSTEM_TIME AS OF of SQL:2011,
Flink's and Timeplus' temporal joins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from typing_extensions import override

from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import take_rows
from zset_join.shapes.join import check_join
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.shapes.timed_join import (
    AsOfOptions,
    TemporalOptions,
    VersionJoinShape,
    as_of_relation,
    as_of_shape,
    temporal_relation,
    temporal_shape,
)
from zset_join.state.rows.guarded import guarded
from zset_join.state.time.version_join import VersionJoin
from zset_join.state.time.version_joins import VersionJoins
from zset_join.zset import ZSet
from zset_join.zset.protocol import NOTHING_DUE, NextDue

__all__ = ["AsOfJoin", "TemporalJoin", "TimedJoin"]


@guarded("the join by time")
class TimedJoin:
    """Answer, absorb and keep; subclasses decide which rows meet, and when."""

    def __init__(
        self,
        shape: VersionJoinShape,
        output: Relation,
        *,
        facts: Sequence[object],
        options: OperatorOptions,
        place: int = 0,
        eager_places: int = 0,
        table_of: TimedJoin | None = None,
    ) -> None:
        self.inputs: tuple[Relation, ...] = (shape.left, shape.right)
        self.output = output
        self.on_bad_input = options.on_bad_input
        inputs = [(one.name, one.mode, one.primary_key, one.event_time) for one in self.inputs]
        self._join = VersionJoin(
            shape,
            facts=(*facts, inputs, shape.key, shape.tie_by, shape.emit),
            options=options,
            place=place,
            eager_places=eager_places,
            table_of=None if table_of is None else table_of.join,
        )
        self._joins = VersionJoins([self._join])

    @property
    def join(self) -> VersionJoin:
        return self._join

    @property
    def absorbed_epoch(self) -> int:
        return self._joins.absorbed_epoch

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        self._join.pairs.corrections = 0
        return self._join.answer(tick, deltas)

    def corrections(self) -> int | None:
        """Return how many earlier answers of an eager join the last answer retracted, because right rows changed."""
        return self._join.pairs.corrections if self._join.shape.emit == "eager" else None

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        self._joins.absorb(tick, [deltas])

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        return self._join.rejections(tick, deltas)

    def next_due(self) -> NextDue:
        due = self._join.next_due()
        return NOTHING_DUE if due is None else NextDue(watermark_us=due)

    def resident_bytes(self) -> int:
        return self._joins.resident_bytes() + self.working_bytes()

    def working_bytes(self) -> int:
        return self._joins.working_bytes()

    def is_current(self) -> bool:
        return self._joins.is_current()

    def statistics(self) -> dict[str, int]:
        return self._joins.statistics()

    def snapshot(self) -> Mapping[str, pa.Table]:
        return {name: reader.read_all() for name, reader in self.snapshot_readers().items()}

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        return self._joins.snapshot_readers()

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        self._joins.restore(tables)

    def close(self) -> None:
        self._joins.close()


class AsOfJoin(TimedJoin):
    """Join each left row with the nearest right row.

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


class TemporalJoin(TimedJoin):
    """Join each left row with the version that was valid at its time.

    Weight -1 is a DELETE of a version at its time in upsert mode; in changelog mode it retracts a version.

    >>> import pyarrow as pa
    >>> from zset_join import Tick, ZSet
    >>> orders = Relation(name="orders", schema=pa.schema({"id": pa.int64(), "cur": pa.string(), "t": pa.int64()}),
    ...                   join_key=("cur",), event_time="t", watermark_delay=0)
    >>> rates = Relation(name="rates", schema=pa.schema({"cur": pa.string(), "rate": pa.float64(), "at": pa.int64()}),
    ...                  join_key=("cur",), primary_key=("cur",), mode="upsert", event_time="at", watermark_delay=0)
    >>> join = TemporalJoin(orders, rates, TemporalOptions(emit="eager"))
    >>> delta = [ZSet.of({"id": [1], "cur": ["EUR"], "t": [1000]}),
    ...          ZSet.of({"cur": ["EUR"] * 3, "rate": [1.1, 1.2, 1.3], "at": [500, 800, 1200]})]
    >>> [chunk.to_pylist() for chunk in join.answer(Tick(0), delta)]
    [[((1, 'EUR', 1000, 'EUR', 1.2, 800), 1)]]
    """

    def __init__(
        self,
        left: Relation,
        right: Relation,
        terms: TemporalOptions = TemporalOptions(),
        *,
        options: OperatorOptions = OperatorOptions(),
        place: int = 0,  # among the joins that share the versions
        eager_places: int = 0,  # how many of these places may have runs of left rows
        table_of: TemporalJoin | None = None,  # the join whose versions are shared
    ) -> None:
        check_join(left, right, terms.how, None, terms.using)
        self.options = terms
        shape = temporal_shape(left, right, terms)
        super().__init__(
            shape,
            temporal_relation(shape),
            facts=("temporal", terms.delete_column),
            options=options,
            place=place,
            eager_places=eager_places,
            table_of=table_of,
        )
        self._chunk_rows = options.chunk_rows

    @override
    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Yield the change of the join; a version replaced by one that differs in hidden columns alone emits nothing."""
        # Cost, where versions have such columns and `eager` corrects: the answer of an epoch is in memory once.
        answer = super().answer(tick, deltas)
        return self._without_equals(answer) if self.options.hidden[1] and self.options.emit == "eager" else answer

    def _without_equals(self, answer: Iterator[ZSet]) -> Iterator[ZSet]:
        changed = ZSet.concat(list(answer), schema=self.output.schema).consolidated()
        for sign in (-1, 1):
            places = np.flatnonzero(np.sign(changed.weights) == sign)
            for begin in range(0, len(places), self._chunk_rows):
                chosen = places[begin : begin + self._chunk_rows]
                yield ZSet(take_rows(changed.rows, chosen), changed.weights[chosen])
