"""Changes of sources as `Pipeline.step` takes them, and the rows that are set aside.

`dead_letters`, `replay_letters`: late rows of timed joins, and with `on_bad_input="quarantine"` bad input, with the reason.

The law: of every source and epoch, rows in = rows applied + rows set aside. A row is reported once, by the first stage that
refuses it. With a directory the rows of an epoch are in a file of their own before the epoch counts; an attempt that is
repeated writes the same file again.

    <directory>/dead-letters/<epoch>.parquet

A row that a stage refused is present as JSON, with its weight; a record that could not be decoded with its bytes, key and
value, and its place in Kafka. `zset-join dead-letters` lists them, see `zset_join.tools.dead_letters`.

Letters that are records can be replayed, exactly once: their places are a position of the epoch that takes them, so that after
a crash between its commit and the marks the next call marks them.

`RowTaking`: conversion of the arguments of `Pipeline.step` into the changes of its sources.

The law: of every source, rows in = rows taken + rows set aside; nothing is read of a source the pipeline does not have.

One row from far in the future would move the watermark past every row that is still to come. Where a source has a
`max_watermark_jump`, such a row is bad input. It is measured from the watermark before the epoch, so that an epoch that is
repeated judges as it did: rows of one epoch do not judge each other, and those of the first with event times all pass, as
NULL and the bound itself do.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from zset_join.changelog.encoding import MOST_SINGLE_ROWS
from zset_join.core.errors import BadInputError, OptionError, PlanError
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform
from zset_join.core.shown_values import shown_key, shown_names, shown_value
from zset_join.plan.query_plan import PlanSource, QueryPlan
from zset_join.query.reading import Reading
from zset_join.runners.common.rejected import Rejected, RejectedRows, taken, without
from zset_join.runners.local.watermarks import KnownTimes
from zset_join.shapes.event_time import EventTime
from zset_join.sources.source import Undecodable
from zset_join.state.rows.order_words import time_words
from zset_join.storage.folder import open_folder
from zset_join.tools.dead_letters import REPLAYED_POSITION, mark_places, pending_records, places_of, read_letters, records_of
from zset_join.zset import ZSet

__all__ = ["SCHEMA", "PartlyRead", "RowTaking", "dead_letters", "no_dead_letters", "replay_letters", "write_dead_letters"]

SCHEMA = pa.schema(
    [
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("row", pa.string()),
        pa.field("weight", pa.int64(), nullable=False),
        pa.field("code", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)


@dataclass(frozen=True)
class PartlyRead:
    """Decoded and undecodable rows of a reader; `Pipeline.step` processes the former and rejects the latter."""

    rows: Any
    unread: pa.Table  # as the records of `Undecodable`


@functools.cache
def _none() -> pa.Table:
    """Return the table without rows, made once, and not at import: Arrow looks for pandas when it makes one."""
    return SCHEMA.empty_table()


def dead_letters(epoch: int, rejected: Sequence[RejectedRows], undecodable: Sequence[Undecodable] = ()) -> pa.Table:
    """Return the refused rows of an epoch, each as JSON with weight and reason, and the records that could not be read."""
    if not rejected and not undecodable:
        return _none()
    lines: list[dict[str, Any]] = []
    for unread in undecodable:
        lines += [{**record, "epoch": epoch, "source": unread.source, "weight": 0} for record in unread.records.to_pylist()]
    for one in rejected:
        rejected_rows = zip(_shown_rows(one.rejected), one.rejected.codes, one.rejected.reasons, strict=True)
        lines += [
            {"epoch": epoch, "source": one.name, "row": row, "weight": weight, "code": code, "reason": reason}
            for (row, weight), code, reason in rejected_rows
        ]
    return pa.Table.from_pylist(lines, schema=SCHEMA)


def _shown_rows(rejected: Rejected) -> Iterator[tuple[str, int]]:
    for piece in rejected.rows:
        names = shown_names(piece.rows.schema.names)
        for at, weight in enumerate(piece.weights.tolist()):
            row = {name: shown_value(piece.rows.column(name), at) for name in names}
            yield json.dumps(row, default=str, ensure_ascii=False), weight


def write_dead_letters(directory: str | Path, epoch: int, table: pa.Table) -> None:
    """Write the rows of an epoch, in one step; nothing where there are none, in the place of an attempt that did not count."""
    folder, name = open_folder(directory), f"{epoch:020d}.parquet"
    if not table.num_rows:
        folder.remove(name)
        return
    written = pa.BufferOutputStream()
    pq.write_table(table, written)
    folder.put(name, written.getvalue().to_pybytes())


def replay_letters(
    place: str, positions: Mapping[str, Any], step: Callable[..., Any], *, stream: str | None, code: str | None
) -> int:
    """Take the waiting letters of a checkpoint in one epoch; return how many there were."""
    letters = pending_records(read_letters(place, stream=stream, code=code))
    before = positions.get(REPLAYED_POSITION, [])
    if before:
        mark_places(place, before)
    if not letters.num_rows:
        return 0
    rows = {name: records_of(letters, name) for name in dict.fromkeys(letters["stream"].to_pylist())}
    marks = places_of(letters)
    step(rows, positions={REPLAYED_POSITION: marks})
    mark_places(place, marks)
    return int(letters.num_rows)


def no_dead_letters() -> OptionError:
    return OptionError(
        "replay() takes the dead letters of a directory, and this pipeline is in memory. Its attribute dead_letters has those "
        "of the last epoch; step() takes them again.",
        code="PIPELINE_DIRECTORY",
    )


def check_appends(name: str, relation: Relation, delta: ZSet, *, epoch: int) -> None:
    if relation.mode != "append" or not (delta.weights < 0).any():
        return
    row = int(np.flatnonzero(delta.weights < 0)[0])
    raise BadInputError(
        f'source "{name}", epoch {epoch}: row {row} retracts, and rows of an append-only source are only added; '
        "nothing of the epoch was applied. Describe the source with changes(...).",
        code="RETRACTION_IN_APPEND",
        relation=name,
        epoch=epoch,
    )


class FarTimes:
    """Part the rows of sources whose `max_watermark_jump` bounds their event times."""

    def __init__(self, sources: Mapping[str, PlanSource]) -> None:
        self._sources = {name: source for name, source in sources.items() if source.max_watermark_jump is not None}
        self._times = {
            name: EventTime([source.relation], [str(source.relation.event_time)]) for name, source in self._sources.items()
        }

    def part(self, name: str, delta: ZSet, known: KnownTimes) -> tuple[ZSet, RejectedRows | None]:
        """Return the rows of a source that may be taken, and those that may not."""
        if not self._sources:
            return delta, None
        source, limit = self._sources.get(name), self._limit(name, known)
        if source is None or limit is None or not len(delta):
            return delta, None
        time = self._times[name]
        words, last = time_words(time, delta.rows, 0)[0], time.of_watermark(limit)
        if last is None or not (is_far := words > last).any():
            return delta, None
        bad = np.flatnonzero(is_far)
        refused = taken(delta, bad)
        column = refused.rows.column(str(source.relation.event_time))
        reasons = [_reason(source, column, row, limit) for row in range(len(refused))]
        rejected = Rejected([refused], ["TIME_JUMP"] * len(reasons), reasons)
        return without(delta, bad), RejectedRows(name, rejected, is_of_source=True)

    def refuse(self, refused: RejectedRows, epoch: int) -> None:
        name, (delta,) = refused.name, refused.rejected.rows
        relation = self._sources[name].relation
        shown = relation.primary_key or tuple(relation.schema.names)
        key = shown_key([delta.rows.column(column) for column in shown], 0)
        count = "1 such row" if len(delta) == 1 else f"{len(delta)} such rows"
        raise BadInputError(
            f'source "{name}", epoch {epoch}: the change with key {key} and weight {int(delta.weights[0])} '
            f"{refused.rejected.reasons[0]} ({count} in this epoch; nothing of it was applied). Correct the "
            'source, raise max_watermark_jump, or set on_bad_input="quarantine" to quarantine bad rows.',
            code="TIME_JUMP",
            relation=name,
            key=key,
            weight=int(delta.weights[0]),
            epoch=epoch,
            rejected_rows=len(delta),
        )

    def _limit(self, name: str, known: KnownTimes) -> int | None:
        """Return the largest time that is taken; None where every one is."""
        source, before = self._sources.get(name), known.sources.get(name)
        if source is None or source.max_watermark_jump is None or before is None or before.watermark_us is None:
            return None
        return before.watermark_us + source.max_watermark_jump


def _reason(source: PlanSource, column: pa.Array, row: int, limit: int) -> str:
    bound = pa.array([limit], pa.int64())
    if not pt.is_integer(column.type):
        bound = bound.cast(pa.timestamp("us"))
    return (
        f"has the time {shown_value(column, row)} in {source.relation.event_time}, further ahead of the watermark of its "
        f"source than max_watermark_jump allows; expected at most {shown_value(bound, 0)}"
    )


class RowTaking:
    def __init__(self, plan: QueryPlan, readings: Mapping[str, Reading], *, is_strict: bool) -> None:
        self._plan = plan
        self._readings = readings
        self._relations = {source.name: source.relation for source in plan.sources}
        self._far_times = FarTimes({source.name: source for source in plan.sources})
        self._append_only = {name for name, relation in self._relations.items() if relation.mode == "append"}
        self._is_strict = is_strict

    def deltas(
        self, rows: Mapping[str, Any], epoch: int, known: KnownTimes
    ) -> tuple[dict[str, ZSet], list[Undecodable], list[RejectedRows]]:
        """Return the changes that rows mean, and where bad input is set aside what cannot be read, and times too far ahead."""
        if not isinstance(rows, Mapping):
            raise PlanError(
                f"step() is given {type(rows).__name__}, expected a dict from source to rows, such as "
                f'{{"{min(self._readings)}": [...]}}.',
                code="DELTA_TYPES",
            )
        deltas, unread, far = {}, [], []
        for name, given in rows.items():
            reading = self._readings.get(name)
            if reading is None:
                raise PlanError(
                    f'step() is given rows for "{name}"; the sources of this pipeline are {sorted(self._readings)}.',
                    code="UNKNOWN_SOURCE",
                    name=name,
                )
            if isinstance(given, PartlyRead):
                unread += [Undecodable(name, given.unread)] if given.unread.num_rows else []
                given = given.rows
            if self._is_strict:
                delta = reading.delta(given)
                if name in self._append_only:
                    check_appends(name, self._relations[name], delta, epoch=epoch)
            else:
                delta, bad = reading.taken(given)
                unread += [] if bad is None else [bad]
            if delta.schema != self._relations[name].schema:
                delta = ZSet(conform(delta.rows, self._relations[name]), delta.weights)
            deltas[name], refused = self._far_times.part(name, delta, known)
            if refused is not None and self._is_strict:
                self._far_times.refuse(refused, epoch)
            far += [] if refused is None else [refused]
        return deltas, unread, far

    def without_heavy(self, deltas: Mapping[str, ZSet], views: Collection[str]) -> tuple[dict[str, ZSet], list[RejectedRows]]:
        """Return changes without the rows of more copies than outputs of some views take, and these rows."""
        # What rows make together, in a join, is not set aside.
        stages = {number for view in views for number in self._plan.stages_of(view)}
        feeds = [feed for view in views for feed in self._plan.view(view).feeds]
        feeds += [feed for number in stages for fed in self._plan.nodes[number].feeds for feed in fed]
        kept, heavy = dict(deltas), []
        for name in deltas.keys() & {feed.origin for feed in feeds}:
            delta = deltas[name]
            places = np.flatnonzero((delta.weights > MOST_SINGLE_ROWS) | (delta.weights < -MOST_SINGLE_ROWS))
            if len(places):
                kept[name] = without(delta, places)
                reason = f"has more than {MOST_SINGLE_ROWS} copies, which an output of single rows does not take"
                rejected = Rejected([taken(delta, places)], ["TOO_MANY_ROWS"] * len(places), [reason] * len(places))
                heavy.append(RejectedRows(name, rejected, is_of_source=True))
        return kept, heavy
