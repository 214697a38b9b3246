"""Cleaning of a checkpoint: removes unlisted files, old records, and leftovers of failed attempts.

The law: the two newest epochs can be gone back to, and no file goes that a lease holds (`zset_join.checkpoint.leases`), or that
the newest record still has for outputs: such a file is tried again after the next commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import is_not

from zset_join.checkpoint.leases import leased_names
from zset_join.checkpoint.reading import RECORD_NAME, CommittedState, record_name
from zset_join.checkpoint.record import BucketHistory, CommitRecord
from zset_join.checkpoint.rescaling import RESCALINGS, rescaling_numbers
from zset_join.storage.folder import Folder

__all__ = ["RECORDS_KEPT", "Clearing"]

RECORDS_KEPT = 10
"""As many of the newest commit records are present, or all where there were fewer epochs."""


class Clearing:
    """Clear away what a checkpoint has no use for any more."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._garbage: list[str] = []

    def after(self, before: CommittedState, record: CommitRecord) -> None:
        """Remove what the record before the last one listed and nobody lists any more."""
        removable, self._garbage = self._garbage, []
        if before.last is not None:
            states = (before.last.histories,) if before.rescaling is None else (before.last.histories, before.histories)
            gone = {name for state in states for name in _left_out(state, record.histories)}
            self._garbage = sorted(gone - record.state_files()) if gone else []
            self._garbage += [part.file.name for part in before.last.parts if _is_of_no_state(part.file.name, before.last)]
        held = leased_names(self._folder) | {part.file.name for part in record.parts} if removable else set()
        self._garbage += [name for name in removable if name in held]
        removable = [name for name in removable if name not in held]
        if record.epoch >= RECORDS_KEPT:
            removable.append(record_name(record.epoch - RECORDS_KEPT))
        for name in removable:
            self._folder.remove(name)

    def sweep(self, last: CommitRecord, states: Iterable[Mapping[str, BucketHistory]]) -> None:
        """Remove what dead attempts and drivers left behind: files of epochs before the last one that no record lists."""
        # What only the epoch before the last one needs goes with the next commit.
        of_newest, *of_earlier = (
            {name for history in histories.values() for name in history.file_names()} for histories in states
        )
        kept = last.state_files() | of_newest
        earlier = {name for names in of_earlier for name in names}
        self._garbage = sorted({*self._garbage, *(earlier - kept)})
        listed = kept | earlier | {part.file.name for part in last.parts} | leased_names(self._folder)
        for under in ("log", "snapshot", "delta"):
            for name in list(self._folder.names(under)):
                if _is_before(name, last.epoch) and name not in listed:
                    self._folder.remove(name)
        for name in [*self._folder.names("commits"), *self._folder.names(RESCALINGS)]:
            match = RECORD_NAME.fullmatch(name)
            numbers = (int(match[1]), 0) if match is not None else rescaling_numbers(name)
            if numbers is not None and numbers[0] <= last.epoch - RECORDS_KEPT:
                self._folder.remove(name)


def _is_of_no_state(name: str, record: CommitRecord) -> bool:
    """Return whether a part of a record is present for outputs alone."""
    # It is a file of its own, or the log of a view that has begun again since, which changes carry on that outputs have not
    # seen.
    if name.startswith("delta/"):
        return True
    return name.startswith("log/") and _is_before(name, record.epoch) and name not in record.state_files()


def _is_before(name: str, epoch: int) -> bool:
    written = name.rpartition("/")[2].partition("-")[0]
    return written.isdecimal() and int(written) < epoch


def _left_out(before: Mapping[str, BucketHistory], after: Mapping[str, BucketHistory]) -> Iterator[str]:
    """Yield the files of histories that do not continue, log by log, in later ones; most do, and cost one look."""
    for key, history in before.items():
        later = after.get(key)
        is_longer = later is not None and later.snapshot is history.snapshot and len(later.logs) >= len(history.logs)
        if later is None or not is_longer or any(map(is_not, history.logs, later.logs)):
            yield from history.file_names()
