"""Epochs that outputs of a directory may lack: the newest one, and before it those of changes made without them.

The law: an output that is given these epochs in order, each unless it has it, holds what it would hold had it been there all
along. Epochs of before columns were added to a view come with NULL in these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from zset_join.checkpoint.reading import changed_plan_of, read_record
from zset_join.core.epoch_chain import ChainLink
from zset_join.zset import ZSet

if TYPE_CHECKING:
    from zset_join.checkpoint.changed_plans import ChangedPlan
    from zset_join.checkpoint.checkpoint import Checkpoint
    from zset_join.checkpoint.record import CommitRecord
    from zset_join.plan.query_plan import QueryPlan

__all__ = ["BEGIN", "EARLIER", "GivenEpoch", "altered_views", "pending_epochs"]

BEGIN, EARLIER = "begin", "earlier"
"""What the parts of a record are called that hold all rows of a view, and answers of epochs before it."""
GivenEpoch: TypeAlias = tuple[int, Mapping[str, ZSet], ChainLink | None, Mapping[str, ZSet]]
_Read: TypeAlias = "Callable[[CommitRecord, str, Collection[str]], ZSet]"


def pending_epochs(
    checkpoint: Checkpoint, plan: QueryPlan, record: CommitRecord, newest_answer: Mapping[str, ZSet], read: _Read
) -> Iterator[GivenEpoch]:
    """Yield the epochs that outputs may lack, oldest first."""
    # An epoch is its number, the answer of each view, its link, and all rows of the views whose outputs begin with it. A view
    # that was absent then, or had columns that are there no more, is omitted; epochs in which it got columns and lost them
    # again, without a start between, have no rows.
    newest, files = checkpoint.changed, checkpoint.files
    newest = newest if newest is not None and newest.epoch == record.epoch else None
    epochs = () if newest is None else newest.unseen
    records = [read_record(files, epoch) for epoch in epochs]
    found = [None if one is None else changed_plan_of(files.folder, one) for one in records]
    changes = [change if change is not None and change.epoch == at else None for change, at in zip(found, epochs, strict=True)]
    begun = [frozenset(() if change is None else change.begins) for change in (*changes, newest)]
    replaced = [frozenset(() if change is None else {*change.begins} - {*change.altered}) for change in (*changes, newest)]
    void = {} if newest is None else newest.void
    for at, (epoch, one) in enumerate(zip(epochs, records, strict=True)):
        names = [view.name for view in plan.views if not any(view.name in later for later in replaced[at + 1 :])]
        change, before = changes[at], f"{EARLIER} {epoch} "
        answers = {
            name: ZSet.empty(plan.output_of(name).schema)
            if epoch in void.get(name, ())
            else read(record, name, (before, f"{before}{name}"))
            for name in names
        }
        filled = () if change is None else change.filled
        begins = {
            name: read(record, name, (f"{before}{BEGIN} {name}",)) if name in filled else answers[name]
            for name in names
            if name in begun[at] and epoch not in void.get(name, ())
        }
        yield epoch, answers, None if one is None else one.link, begins
    filled = () if newest is None else newest.filled
    begins = {name: read(record, name, (f"{BEGIN} {name}",)) if name in filled else newest_answer[name] for name in begun[-1]}
    yield record.epoch, newest_answer, record.link, begins


def altered_views(checkpoint: Checkpoint, record: CommitRecord) -> frozenset[str]:
    """Return the views whose outputs may lack columns, since an epoch that they may not have adds some."""
    newest, files = checkpoint.changed, checkpoint.files
    if newest is None or newest.epoch != record.epoch:
        return frozenset()
    earlier = [read_record(files, epoch) for epoch in newest.unseen]
    plans: list[ChangedPlan | None] = [newest, *(changed_plan_of(files.folder, one) for one in earlier if one is not None)]
    return frozenset(
        name for plan in plans if plan is not None for name in plan.altered if plan.epoch not in newest.void.get(name, ())
    )
