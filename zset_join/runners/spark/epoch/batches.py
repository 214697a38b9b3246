"""Spark's batches and the epochs they are: every change of a query takes an epoch, and none of Spark's batches.

    parts of the record of a change:   "change"   the difference
                                       "begin"    all rows, for outputs that begin with the change

Spark writes `<checkpointLocation>/offsets/<batch>` before it requests a batch, and never changes it. When its files were rolled
back, it plans the batch again and writes another one. It writes `<checkpointLocation>/commits/<batch>` once the batch is in the
output, and never requests it again.

The law: batch N is epoch N + the changes before it. The batch before a change may come again behind it; it is not taken twice,
and refused when it has other input. On executors the start that follows gives outputs the change, unless they have it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from zset_join.checkpoint.answer_parts import ArrowParts, read_arrow_parts
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.reading import START_OVER, read_record, record_name
from zset_join.checkpoint.record import CHANGED_TO, ChangedPlan, CommitRecord, PartEntry
from zset_join.core.epochs import Tick
from zset_join.core.errors import StateError
from zset_join.storage.folder import open_folder
from zset_join.zset import ZSet

__all__ = [
    "change_rows",
    "check_same_batch",
    "epoch_before",
    "given_changes",
    "has_ended",
    "is_completed",
    "offsets_digest",
    "written_parts",
]


def offsets_digest(checkpoint_location: str, epoch: int) -> str | None:
    """Return the digest of an epoch's offsets; None when Spark keeps none where they are looked for."""
    content = open_folder(checkpoint_location).read(f"offsets/{epoch}")
    return None if content is None else hashlib.blake2b(content, digest_size=16).hexdigest()


def is_completed(checkpoint_location: str, epoch: int) -> bool:
    """Return whether Spark has completed an epoch and does not request it again."""
    return open_folder(checkpoint_location).size(f"commits/{epoch}") is not None


_CHANGE, _BEGIN = "change", "begin"


def epoch_before(checkpoint: Checkpoint, changed: ChangedPlan) -> int:
    """Return the last epoch with input before the last change of the query."""
    epoch = changed.epoch - 1
    for _ in range(changed.changes - 1):  # changes that followed each other
        if checkpoint.files.folder.size(record_name(epoch)) is None:
            break
        record = read_record(checkpoint.files, epoch)
        if record is None or record.offsets is None or not record.offsets.startswith(CHANGED_TO):
            break
        epoch -= 1
    return epoch


def has_ended(location: str, batch: int) -> StateError:
    """Return the error of a batch that comes to a query which has changed."""
    return StateError(
        f"the query of the checkpoint {location} has changed, and batch {batch} came to it as it was before; it was not taken. "
        "Spark plans it again for the changed query: no action is needed.",
        code="QUERY_CHANGED",
        location=location,
        batch=batch,
    )


def check_same_batch(checkpoint: Checkpoint, epoch: int, read: str | None) -> None:
    """Refuse a batch of Spark's that is not the one which an epoch before a change of the query has taken."""
    is_there = epoch >= 0 and checkpoint.files.folder.size(record_name(epoch)) is not None
    record = read_record(checkpoint.files, epoch) if is_there else None
    if record is None or record.offsets is None or read is None or record.offsets == read:
        return
    raise StateError(
        f"epoch {epoch} is committed in the checkpoint {checkpoint.files.folder.location}, and Spark runs it again with other "
        f"input: Spark's own files beside it were rolled back. {START_OVER}",
        code="EPOCH_REPLANNED",
        epoch=epoch,
    )


def written_parts(
    files: CheckpointFiles, tick: Tick, differences: Mapping[str, ZSet], begins: Mapping[str, ZSet]
) -> list[PartEntry]:
    """Write the differences of views, and all rows of those whose outputs begin, so that any output can be given them."""
    given = [(_CHANGE, view, rows) for view, rows in differences.items()]
    given += [(_BEGIN, view, rows) for view, rows in begins.items()]
    writer = ArrowParts(durable=True)
    return [
        replace(part, way=way, view=view)
        for way, view, rows in given
        for part in writer.write(files, 0, tick, rows.schema, [rows])
    ]


def given_changes(checkpoint: Checkpoint, views: Sequence[str]) -> dict[str, CommitRecord]:
    """Return, by view, the record of a change that no batch has followed, with what its outputs are given; {} where one has."""
    last, changed = checkpoint.last, checkpoint.changed
    if last is None or changed is None or changed.epoch != last.epoch:
        return {}
    new = {*changed.begins} - {*changed.altered}  # outputs of before do not continue
    given = {}
    for view in views:
        names = {view} if len(views) > 1 else {view, *new, *(part.view for part in last.parts)}  # the only one has any name
        begins = bool(new & names)
        link = last.link if last.link is None or not begins else replace(last.link, begins=True)
        way = _BEGIN if begins else _CHANGE
        parts = tuple(part for part in last.parts if part.way == way and part.view in names)
        given[view] = replace(last, link=link, parts=parts)
    return given


def change_rows(files: CheckpointFiles, change: CommitRecord, schema: pa.Schema) -> ZSet:
    return ZSet.concat(
        [
            ZSet(pa.RecordBatch.from_arrays(one.rows.columns, schema=schema), one.weights)
            for one in read_arrow_parts(files, change.parts)
        ],
        schema=schema,
    )
