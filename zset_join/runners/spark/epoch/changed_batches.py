"""Spark's batches of a query that was changed in place: every change takes an epoch, and none of Spark's batches.

The law: batch N is epoch N + the changes before it. The batch before a change may come again behind it; it is not taken twice,
and refused when it has other input.
"""

from __future__ import annotations

from zset_join.checkpoint.changed_plans import CHANGED_TO, ChangedPlan
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.reading import START_OVER, read_record, record_name
from zset_join.core.errors import StateError

__all__ = ["check_same_batch", "epoch_before", "has_ended"]


def epoch_before(checkpoint: Checkpoint, changed: ChangedPlan) -> int:
    """Return the last epoch with input before the last change of the query."""
    if changed.unseen:
        return changed.unseen[0]
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
