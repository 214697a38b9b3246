"""The epochs in which the query changed, as outputs are given them by the start that follows.

    parts of the newest record:   "change"            the difference
                                  "begin"             all rows, for outputs that begin with the change
                                  "earlier N ..."     those of epoch N, a change before the newest one

The law: an output that is given these epochs in order, each unless it has it, holds what it would hold had it been there all
along. Rows of before columns were added have NULL in these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from zset_join.checkpoint.answer_parts import ArrowParts, read_arrow_parts
from zset_join.checkpoint.changed_plans import ChangedPlan
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.reading import changed_plan_of, read_record
from zset_join.checkpoint.record import CommitRecord, PartEntry
from zset_join.core.errors import StateError
from zset_join.core.tick import Tick
from zset_join.runners.spark.epoch.changed_batches import epoch_before
from zset_join.zset import ZSet

__all__ = ["carried_parts", "given_changes", "unseen_epochs", "written_parts"]

MOST_UNSEEN = 8
"""How many changes outputs may lack."""
_CHANGE, _BEGIN, _EARLIER = "change", "begin", "earlier"


@dataclass(frozen=True, kw_only=True)
class GivenChange:
    record: CommitRecord
    adds_columns: bool
    schema: pa.Schema

    def rows(self, files: CheckpointFiles) -> ZSet:
        given = read_arrow_parts(files, self.record.parts)
        return ZSet.concat([_under(one, self.schema) for one in given], schema=self.schema)


def written_parts(files: CheckpointFiles, tick: Tick, difference: ZSet, begins: ZSet | None) -> list[PartEntry]:
    """Write a difference, and all rows where outputs begin with it, so that any output can be given them."""
    given = {_CHANGE: difference} | ({} if begins is None else {_BEGIN: begins})
    writer = ArrowParts(durable=True)
    return [replace(part, way=way) for way, rows in given.items() for part in writer.write(files, 0, tick, rows.schema, [rows])]


def unseen_epochs(checkpoint: Checkpoint, location: str) -> tuple[int, ...]:
    """Return the epochs before a change that outputs may lack: the last one with input, and changes behind it."""
    last, changed = checkpoint.last, checkpoint.changed
    assert last is not None  # noqa: S101 - without an epoch there is nothing to change
    if changed is None or changed.epoch != last.epoch:
        return (last.epoch,)
    unseen = (*(changed.unseen or (epoch_before(checkpoint, changed),)), last.epoch)
    if len(unseen) > MOST_UNSEEN:
        raise StateError(
            f"the query in {location} was changed {MOST_UNSEEN} times since its last batch, and its outputs may lack all these "
            "changes. Start it, so that they get them, let it answer a batch, and change it again.",
            code="EVOLVE_UNSEEN",
            epochs=unseen,
        )
    return unseen


def carried_parts(checkpoint: Checkpoint) -> list[PartEntry]:
    """Return the parts of changes that outputs may lack, for the record of one more change."""
    last, changed = checkpoint.last, checkpoint.changed
    if last is None or changed is None or changed.epoch != last.epoch:
        return []
    return [
        part if part.way.startswith(_EARLIER) else replace(part, way=f"{_EARLIER} {last.epoch} {part.way}")
        for part in last.parts
    ]


def given_changes(checkpoint: Checkpoint, schema: pa.Schema) -> Iterator[GivenChange]:
    """Yield the changes that no batch has followed, oldest first; none where a batch has."""
    last, newest, files = checkpoint.last, checkpoint.changed, checkpoint.files
    if last is None or newest is None or newest.epoch != last.epoch:
        return
    found = []
    for epoch in newest.unseen[1:]:
        record = read_record(files, epoch)
        changed = None if record is None else changed_plan_of(files.folder, record)
        if record is not None and changed is not None:
            before = f"{_EARLIER} {epoch} "
            own = [replace(part, way=part.way[len(before) :]) for part in last.parts if part.way.startswith(before)]
            found.append((replace(record, parts=tuple(own)), changed))
    found.append((replace(last, parts=tuple(one for one in last.parts if not one.way.startswith(_EARLIER))), newest))
    first = max((at for at, (_, changed) in enumerate(found) if _begins(changed)), default=0)
    void = {epoch for epochs in newest.void.values() for epoch in epochs}
    for record, changed in found[first:]:
        if record.epoch in void:
            yield GivenChange(record=replace(record, parts=()), adds_columns=False, schema=schema)
        else:
            yield _given(record, changed, schema)


def _begins(changed: ChangedPlan) -> bool:
    """Return whether outputs begin with a change: those of before do not continue."""
    return bool({*changed.begins} - {*changed.altered})


def _given(record: CommitRecord, changed: ChangedPlan, schema: pa.Schema) -> GivenChange:
    begins = _begins(changed)
    link = record.link if record.link is None or not begins else replace(record.link, begins=True)
    way = _BEGIN if begins else _CHANGE
    record = replace(record, link=link, parts=tuple(part for part in record.parts if part.way == way))
    return GivenChange(record=record, adds_columns=bool(changed.altered), schema=schema)


def _under(rows: ZSet, schema: pa.Schema) -> ZSet:
    had = rows.rows.columns
    added = [pa.nulls(len(rows), field.type) for field in list(schema)[len(had) :]]
    return ZSet(pa.RecordBatch.from_arrays([*had, *added], schema=schema), rows.weights)
