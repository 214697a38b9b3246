"""A checkpoint and an output of different times, and savepoints of both: rows are never lost without an error.

The law. Let a query have run `ran` epochs, and a copy have been made after epoch `copied`. Restored alone, the checkpoint
makes the query stop at the first epoch that differs from the output's, with the output as it was. The output alone,
beside the newer checkpoint, is given the one epoch that it lacks, or the query stops, with the output as it was. Restored
together, from a savepoint, the query continues, whatever its input is by then, and the sums are right after every epoch.

What is read after the restore is another history than before: one epoch of it is missing.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from faults.driver import Driver, Kind, Place
from faults.histories import History
from faults.recovery import opened
from faults.tally import Tally
from zset_join.core.errors import SinkError
from zset_join.tools.savepoint import backup, restore

__all__ = ["search"]


def search(history: History, scratch: Path, tally: Tally, *, kind: Kind, copied: int, ran: int) -> None:
    """Restore a part, then all, and compare.

    Args:
        history: the query and its input; of upserts, so that an epoch may be missing.
        scratch: a directory of its own.
        tally: where to count.
        kind: which output.
        copied: the last epoch of the copy.
        ran: the last epoch that ran.
    """
    place, where = Place(scratch / f"{kind}-{copied}-{ran}"), f"{kind}, copied after {copied}, ran to {ran}"
    output = place.output_of(kind)
    with opened(Driver(history, place, kind)) as driver:
        driver.run(range(copied + 1))
    backup(place.checkpoint, place.root / "savepoint", outputs=[output])
    with opened(Driver(history, place, kind)) as driver:
        driver.run(range(copied + 1, ran + 1))
    other = replace(history, epochs=history.epochs[: copied + 1] + history.epochs[copied + 2 :])
    _checkpoint_alone(other, place, tally, kind, f"{where}, checkpoint alone", history.expected_after(ran), copied)
    _output_alone(history, place, tally, kind, f"{where}, output alone", copied, ran)
    restore(place.root / "savepoint", replace=True)
    with opened(Driver(other, place, kind)) as driver:
        for epoch in range(copied + 1, len(other.epochs)):
            driver.run_epoch(epoch)
            tally.compare(driver.output.contents(), other.expected_after(epoch), f"{where}, both: after epoch {epoch}")
    tally.count("savepoints")


def _output_alone(history: History, place: Place, tally: Tally, kind: Kind, where: str, copied: int, ran: int) -> None:
    """Restore the output alone beside the newer checkpoint and run on: the query stops, or gives it all that it lacks."""
    restore(place.root / "savepoint", replace=True)
    with opened(Driver(history, place, kind)) as driver:
        driver.run(range(copied + 1, ran + 1))
    newer = place.root / "newer"
    shutil.copytree(place.checkpoint, newer)
    restore(place.root / "savepoint", replace=True)
    shutil.rmtree(place.checkpoint)
    newer.rename(place.checkpoint)
    with opened(Driver(history, place, kind)) as driver:
        try:
            for epoch in range(ran, len(history.epochs)):
                driver.run_epoch(epoch)
                tally.compare(driver.output.contents(), history.expected_after(epoch), f"{where}: after epoch {epoch}")
        except SinkError as error:
            if error.code != "SINK_EPOCH_GAP":
                tally.problem(f"{where}: {error}")
            tally.count("older outputs refused")
            tally.compare(driver.output.contents(), history.expected_after(copied), where)
        else:
            tally.count("older outputs caught up")


def _checkpoint_alone(
    other: History,
    place: Place,
    tally: Tally,
    kind: Kind,
    where: str,
    held: dict[tuple[object, ...], int],
    copied: int,
) -> None:
    """Restore the checkpoint alone and run on: the epochs with other input must be refused."""
    shutil.rmtree(place.checkpoint)
    shutil.copytree(place.root / "savepoint" / "checkpoint", place.checkpoint)
    with opened(Driver(other, place, kind)) as driver:
        try:
            driver.run(range(copied + 1, len(other.epochs)))
        except SinkError as error:
            if error.code != "SINK_OTHER_CHAIN":
                tally.problem(f"{where}: {error}")
            tally.count("refusals")
        else:
            tally.problem(f"{where}: epochs with other input were taken for those that are there")
        tally.compare(driver.output.contents(), held, where)
