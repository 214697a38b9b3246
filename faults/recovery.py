"""Start again after whatever happened, replay, and compare: the check that every fault ends with.

The law. Let `committed` be the newest epoch whose commit had returned, `complete` the newest that was reported to Spark as
done. Then, whatever happened since: the checkpoint opens and holds `committed`, or the one epoch after it that was under way,
whole; the output holds `complete` or newer, never more than the checkpoint, and its rows sum to the plain query after that
epoch; and once Spark has requested the epoch after `complete` again, and for the next ones, the sum is right after each.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from faults.driver import Driver, Kind, Place
from faults.histories import History
from faults.tally import Tally

__all__ = ["Known", "check_recovery", "opened"]


@dataclass
class Known:
    """The newest epochs reported before the fault; -1 for none.

    Args:
        committed: the newest epoch whose commit had returned.
        complete: the newest epoch that was done.
    """

    committed: int = -1
    complete: int = -1

    def hear(self, event: str, epoch: int) -> None:
        """Take the events of a `Driver`."""
        if event == "committed":
            self.committed = max(self.committed, epoch)
        else:
            self.complete = max(self.complete, epoch)


@contextmanager
def opened(driver: Driver) -> Iterator[Driver]:
    """Open a driver, and release its files whatever happens."""
    try:
        yield driver.open()
    finally:
        driver.close()


def check_recovery(
    history: History,
    place: Place,
    known: Known,
    tally: Tally,
    *,
    kind: Kind = "changelog",
    host: str = "host-a",
    further: int = 1,
    where: str = "",
) -> None:
    """Recover, replay and compare; what is wrong goes to the tally.

    Args:
        history: the query and its input.
        place: where it lies.
        known: what must be there.
        tally: where to count.
        kind: which output.
        host: where tasks run.
        further: epochs to run after the replayed one.
        where: which fault it was, for the message.
    """
    try:
        with opened(Driver(history, place, kind, host)) as driver:
            _check_found(driver, known, tally, where)
            last = min(known.complete + 1 + further, len(history.epochs) - 1)
            for epoch in range(known.complete + 1, last + 1):
                driver.run_epoch(epoch)
                tally.compare(driver.output.contents(), history.expected_after(epoch), f"{where}: after epoch {epoch}")
        tally.count("recoveries")
    except Exception:  # noqa: BLE001 - whatever keeps a query from starting again is a finding
        tally.problem(f"{where}: recovery failed\n{traceback.format_exc(limit=-6)}")


def _check_found(driver: Driver, known: Known, tally: Tally, where: str) -> None:
    last = driver.checkpoint.last
    held = -1 if last is None else last.epoch
    if not known.committed <= held <= known.complete + 1:
        tally.problem(f"{where}: epoch {known.committed} was committed, {known.complete} complete; the checkpoint holds {held}")
    published = driver.output.last_epoch()
    shown = -1 if published is None else published
    if not known.complete <= shown <= held:
        tally.problem(f"{where}: {known.complete} was complete and the checkpoint holds {held}; the output holds {shown}")
    tally.compare(driver.output.contents(), driver.history.expected_after(published), f"{where}: as found, epoch {shown}")
