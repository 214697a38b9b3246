"""Receipt of an epoch for one bucket of one stage, and the commit record built from all receipts.

The law: a receipt lists files that nobody trusts yet; the commit record of the epoch makes them count. A runner that keeps
its state in this process, and one whose tasks send their receipts to a driver, commit by the same rule.

Cost: a few lines per bucket that was opened.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from zset_join.checkpoint.log import LogEntry
from zset_join.checkpoint.record import BucketHistory
from zset_join.checkpoint.snapshot import SnapshotEntry
from zset_join.zset.protocol import NOTHING_DUE, NextDue

__all__ = ["BucketReceipt", "dues_after", "histories_after"]


@dataclass(slots=True, kw_only=True)
class BucketReceipt:
    stage: str
    bucket: int
    log: LogEntry | None = None
    snapshot: SnapshotEntry | None = None
    merged: LogEntry | None = None
    statistics: dict[str, int] = field(default_factory=dict)
    corrections: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    due: list[int | None] | None = None  # event and processing time, by the state before the epoch; None: it never waits
    is_warm: bool | None = None  # local state was present, at most one epoch behind; None: nothing to remember
    was_rebuilt: bool = False

    @property
    def key(self) -> str:
        """Return stage and bucket as commit records name them."""
        return f"{self.stage}/{self.bucket}"


def histories_after(
    before: Mapping[str, BucketHistory], receipts: Iterable[BucketReceipt], states: Mapping[str, str]
) -> dict[str, BucketHistory]:
    """Return the histories after an epoch; `states`: from the name of a stage to that of its state, where they differ."""
    histories = dict(before)
    logs: dict[str, list[LogEntry]] = defaultdict(list)
    for receipt in receipts:
        key = f"{states.get(receipt.stage, receipt.stage)}/{receipt.bucket}"
        if receipt.log is not None:
            logs[key].append(receipt.log)
        if receipt.snapshot is not None or receipt.merged is not None:
            histories[key] = histories.get(key, BucketHistory()).after(snapshot=receipt.snapshot, merged=receipt.merged)
    for key, entries in logs.items():
        histories[key] = histories.get(key, BucketHistory()).with_log(LogEntry.together(entries))
    return histories


def dues_after(before: Mapping[str, NextDue], receipts: Iterable[BucketReceipt]) -> dict[str, NextDue]:
    """Return when stages must next run without input, after an epoch."""
    dues = dict(before)
    for receipt in receipts:
        if receipt.due is not None:
            dues.pop(receipt.key, None)
            due = NextDue(*receipt.due)
            dues |= {} if due == NOTHING_DUE else {receipt.key: due}
    return dues
