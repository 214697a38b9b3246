"""Planted bugs: each is caught by one of the searches, or the search has lost its teeth.

A mutant spoils the product while it is entered, either by leaving out file operations behind the product's back (a disk that is
never synced) or by replacing a function. `hunt` runs a search until the first problem is noted.

Memory and cost: those of the search; most mutants are caught within the first dozens of faults.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from faults import crash_states, damage, io_errors, kills, zombies
from faults.histories import recorded_history
from faults.tally import Tally
from zset_join.checkpoint import local_state as local_state_module
from zset_join.checkpoint import record as record_module
from zset_join.checkpoint.bucket import BucketState
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.clearing import Clearing
from zset_join.checkpoint.files import CheckpointFiles, FileEntry
from zset_join.checkpoint.local_state import LocalState, Stamp
from zset_join.checkpoint.owner import Ownership
from zset_join.checkpoint.reading import CommittedState
from zset_join.checkpoint.record import CommitRecord, LogEntry
from zset_join.storage import local
from zset_join.storage.folder import LocalFolder
from zset_join.storage.local import FileLock, LocalFile
from zset_join.zset import ZSet

__all__ = ["MUTANTS", "CaughtError", "Mutant", "hunt"]

Search = Callable[[Path, Tally], None]
Spoil = Callable[[], AbstractContextManager[Any]]


class CaughtError(BaseException):
    """A search has noted a problem; nothing in between takes it for an error of the product."""


@dataclass
class _FirstProblem(Tally):
    """Stop at the first problem."""

    def problem(self, what: str) -> None:
        """Stop the search."""
        raise CaughtError(what)

    def add(self, other: Tally) -> None:
        """Stop the search if somebody else noted one."""
        super().add(other)
        if self.problems:
            raise CaughtError(self.problems[0])


@dataclass(frozen=True)
class Mutant:
    """A planted bug.

    Args:
        name: what it is called.
        story: what goes wrong, and why somebody would write it.
        spoil: puts it in, while entered.
        search: must catch it.
    """

    name: str
    story: str
    spoil: Spoil = field(repr=False)
    search: Search = field(repr=False)


def hunt(mutant: Mutant, directory: Path) -> None:
    """Search until the mutant is caught; return quietly when it is not.

    Raises:
        CaughtError: it was.
    """
    with mutant.spoil():
        mutant.search(directory, _FirstProblem())


# -- searches ---------------------------------------------------------------------------------------------------------


def _power_cuts(directory: Path, tally: Tally) -> None:
    crash_states.search("full", directory, tally, wanted=600)


def _power_cuts_after_kills(directory: Path, tally: Tally) -> None:
    crash_states.search("full", directory, tally, wanted=600, lives=True)


def _kills(directory: Path, tally: Tally) -> None:
    kills.search(recorded_history("full", "upserts", seed=1), "changelog", directory, tally, epochs=(3, 6), points=60)


def _kills_at_removals(directory: Path, tally: Tally) -> None:
    """Kill where logs are removed that epoch 3 has merged."""
    history = recorded_history("full", "upserts", seed=1)
    kills.search(history, "changelog", directory, tally, epochs=(3,), points=None, among="remove checkpoint/zset/log")


def _errors(directory: Path, tally: Tally) -> None:
    io_errors.search(recorded_history("full", "upserts", seed=0), "changelog", directory, tally, wanted=300)


def _late_drivers(directory: Path, tally: Tally) -> None:
    zombies.search(zombies.late_driver, directory, tally, wanted=150)


def _twins(directory: Path, tally: Tally) -> None:
    zombies.search(zombies.twin_tasks, directory, tally, wanted=30)


def _flips(directory: Path, tally: Tally) -> None:
    damage.search_bytes("flips", directory, tally, sample=300)


def _many_flips(directory: Path, tally: Tally) -> None:
    """Flip enough bytes to hit the values of a record, whichever bytes are drawn."""
    damage.search_bytes("flips", directory, tally, sample=900)


def _swaps(directory: Path, tally: Tally) -> None:
    damage.search_files(directory, tally, sample=None, among="commits/")


# -- bugs -------------------------------------------------------------------------------------------------------------


def _replaced(owner: Any, name: str, made: Any) -> Spoil:
    return partial(mock.patch.object, owner, name, made)


def _nothing(*_arguments: Any, **_options: Any) -> None:
    return None


def _record_named_before_its_bytes(path: str | Path, data: bytes) -> None:
    """Make a file under its own name and sync it afterwards."""
    file = LocalFile(path)
    file.write(data)
    file.flush()
    local.sync_directory(Path(path).parent)
    file.sync()
    file.close()


@contextmanager
def _current_epoch_folded() -> Iterator[None]:
    """Fold the epoch as soon as it is logged, and believe that the mapped files are right."""
    write, missing = BucketState.log, BucketState._missing_logs

    def log_and_fold(self: BucketState, deltas: Sequence[ZSet]) -> LogEntry | None:
        entry = write(self, deltas)
        if entry is not None:
            self.operator.absorb(self.context.tick, deltas)
            self._folded = entry.identity
            self._write_stamp()
        return entry

    def missing_or_none(self: BucketState) -> tuple[tuple[LogEntry, ...], bool]:
        return missing(self) if self._folded in self._starts() else ((), False)

    with (
        mock.patch.object(BucketState, "log", log_and_fold),
        mock.patch.object(BucketState, "_refuse_if_overtaken", _nothing),
        mock.patch.object(BucketState, "_is_known", return_value=True),
        mock.patch.object(BucketState, "_missing_logs", missing_or_none),
    ):
        yield


@contextmanager
def _follower_clears_everything() -> Iterator[None]:
    """Let a new driver remove whatever no record lists, and an old one not look whether it was followed."""

    def sweep(self: Checkpoint) -> None:
        listed = set() if self.last is None else self.last.state_files()
        for under in ("log", "snapshot"):
            for name in [name for name in self.files.folder.names(under) if name not in listed]:
                self.files.folder.remove(name)

    with mock.patch.object(Checkpoint, "_sweep", sweep), mock.patch.object(Ownership, "check", _nothing):
        yield


def _any_boot(self: LocalState, *, query_id: str, digest: str) -> Stamp | None:
    stamp = local_state_module._read_stamp(self._home)
    self._sealed = local.file_marks(self.directory, skip="cold")
    return stamp


def _lock_for_everyone(path: str | Path) -> FileLock:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return FileLock(str(path), os.open(path, os.O_WRONLY | os.O_CREAT))


def _collects_at_once(self: Clearing, before: CommittedState, record: CommitRecord) -> None:
    """Remove what the new record does not list, without waiting for the next one."""
    listed = {name for history in before.histories.values() for name in history.file_names()}
    for name in sorted(listed - record.state_files()):
        self._folder.remove(name)


def _believes_bytes(self: CheckpointFiles, entry: FileEntry, found: Any) -> Any:
    return found


def _unsealed_without_looking(data: bytes, *, version: int, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(data)["body"]
    return found


def _writes_once(self: LocalFile, view: memoryview) -> None:
    """Take a short write for a whole one."""
    descriptor = self._opened()
    local.perform("write", self.path, lambda: os.write(descriptor, view), data=view)


def _syncs_until_it_works(self: LocalFile) -> None:
    """Try a failed sync again, on the same file."""
    self.flush()
    descriptor = self._opened()
    try:
        local.perform("sync", self.path, lambda: os.fsync(descriptor))
    except OSError:
        local.perform("sync", self.path, lambda: os.fsync(descriptor))


def _swallows_failed_sync(self: LocalFile) -> None:
    """Go on as if a failed sync had worked."""
    self.flush()
    descriptor = self._opened()
    try:
        local.perform("sync", self.path, lambda: os.fsync(descriptor))
    except OSError:
        return


def _same_name(epoch: int, suffix: str) -> str:
    return f"{epoch:020d}-attempt{suffix}"


MUTANTS: tuple[Mutant, ...] = (
    Mutant("bytes_never_synced", "files are closed without fsync", _replaced(LocalFile, "sync", LocalFile.flush), _power_cuts),
    Mutant("names_never_synced", "directories are not synced", _replaced(local, "sync_directory", _nothing), _power_cuts),
    Mutant(
        "record_named_before_its_bytes",
        "the commit record gets its name first and its bytes later",
        _replaced(local, "write_new", _record_named_before_its_bytes),
        _power_cuts,
    ),
    Mutant(
        "record_named_before_its_logs",
        "the commit record gets its name while the files that it names still wait for the disk",
        _replaced(local, "sync_with_others", lambda *syncs, rest=local.sync_with_others: [sync() for sync in syncs] or rest()),
        _power_cuts,
    ),
    Mutant(
        "record_of_the_dead_believed",
        "a record that a killed driver had not synced is built upon as it is",
        _replaced(LocalFolder, "sync_names", _nothing),
        _power_cuts_after_kills,
    ),
    Mutant(
        "mapped_files_believed_after_a_boot",
        "mapped files are used although the host was restarted and their pages were lost",
        _replaced(LocalState, "read_stamp", _any_boot),
        _power_cuts,
    ),
    Mutant("current_epoch_folded", "the state takes in an epoch that is not committed", _current_epoch_folded, _kills),
    Mutant(
        "garbage_collected_at_once",
        "files of the epoch before are removed before the output has the epoch",
        _replaced(Clearing, "after", _collects_at_once),
        _kills_at_removals,
    ),
    Mutant(
        "follower_clears_everything",
        "a new driver removes files that a slow one is about to list",
        _follower_clears_everything,
        _late_drivers,
    ),
    Mutant(
        "mapped_files_not_locked",
        "two attempts on one host change the same mapped files",
        _replaced(local, "lock_file", _lock_for_everyone),
        _twins,
    ),
    Mutant(
        "attempts_share_a_name",
        "both attempts of a task write the same file",
        _replaced(record_module, "attempt_name", _same_name),
        _twins,
    ),
    Mutant(
        "checksum_ignored", "bytes are believed as they come", _replaced(CheckpointFiles, "_checked", _believes_bytes), _flips
    ),
    Mutant(
        "record_checksum_ignored",
        "a commit record is believed as it comes",
        _replaced(record_module, "unseal", _unsealed_without_looking),
        _many_flips,
    ),
    Mutant(
        "record_of_another_epoch_believed",
        "a commit record does not prove which epoch it is of",
        _replaced(record_module, "_name", lambda _epoch: "commits/record"),
        _swaps,
    ),
    Mutant(
        "short_write_taken_for_whole",
        "the count a write returns is not looked at",
        _replaced(LocalFile, "_write_out", _writes_once),
        _errors,
    ),
    Mutant(
        "failed_sync_tried_again",
        "a second fsync is taken for the first",
        _replaced(LocalFile, "sync", _syncs_until_it_works),
        _errors,
    ),
    Mutant(
        "failed_sync_swallowed", "a failed fsync is passed over", _replaced(LocalFile, "sync", _swallows_failed_sync), _errors
    ),
)
