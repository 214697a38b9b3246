"""Damaged checkpoints: bytes flipped, files cut, missing, emptied and swapped; what the query does then.

A `Patient` is a small checkpoint with logs, merged logs, snapshots and several commit records, and what was published from it.
An `Injury` changes one of its files. Then the query starts on it, in one of three situations: on a cold host, so that all of
the state is read; on the host that has it mapped; and on a cold host with the last epoch not yet published, so that it is
replayed.

The law: the query refuses with a `ZsetJoinError`, or its answers are right and nobody read the injured file. A right answer out
of a file that was read and had changed is a gap, because only the value of the change made it harmless. What an owner leaves at
its end is not synced, so a power cut may leave any part of it: it counts whole or not at all, whatever the change.
"""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

from faults.copies import seal_copies
from faults.driver import QUERY_ID, Driver, Place
from faults.histories import HOWS, History, recorded_history
from faults.recovery import opened
from faults.tally import Tally
from faults.watching import Act, describe_path
from zset_join.checkpoint.owner import epoch_at_end
from zset_join.checkpoint.reading import checkpoint_folder
from zset_join.core.errors import ZsetJoinError
from zset_join.storage.operations import Operation, observe

__all__ = [
    "SITUATIONS",
    "Injury",
    "Patient",
    "examine",
    "flips",
    "healthy",
    "losses",
    "search_bytes",
    "search_files",
    "search_local",
    "swaps",
    "truncations",
]

Situation = Literal["cold", "warm", "replay"]

SITUATIONS: tuple[Situation, ...] = ("cold", "warm", "replay")
_READING = frozenset({"map", "open", "read"})
_LOCKS = frozenset({"lock"})
_LOCAL_WAYS = ("missing", "cut", "zeroed", "swapped", "linked")
_LAST = 5
_CHANGES = 3
_OTHER_QUERY = "5f0c7a52-0000-4000-8000-000000000002"


@dataclass(frozen=True)
class Injury:
    """Change one file, and perhaps a second one.

    Args:
        damage: what was done.
        changes: path below the checkpoint to new bytes; None removes the file.
    """

    reported: str
    changes: dict[str, bytes | None]


@dataclass(frozen=True)
class Patient:
    """A checkpoint, and what was published from it.

    Args:
        history: the query and its input.
        after: everything after the last epoch, with warm hosts.
        between: the output before the last epoch was published.
        last: the last epoch.
    """

    history: History
    after: Path
    between: Path
    last: int

    def files(self) -> dict[str, bytes]:
        """Return path below the checkpoint to bytes, for every file that is not a lock."""
        top = Place(self.after).checkpoint
        paths = sorted(path for path in top.rglob("*") if path.is_file() and path.name not in _LOCKS)
        return {path.relative_to(top).as_posix(): path.read_bytes() for path in paths}


def healthy(history: History, directory: Path, last: int, query_id: str = QUERY_ID) -> Patient:
    """Make a patient by running a history up to an epoch."""
    after, between = directory / "after", directory / "between"
    after.mkdir(parents=True)
    for epoch in range(last + 1):
        with opened(Driver(history, Place(after), query_id=query_id)) as driver:
            if epoch == last:
                shutil.copytree(Place(after).output, Place(between).output)
            driver.run_epoch(epoch)
    return Patient(history, after, between, last)


def flips(patient: Patient, rng: Random) -> Iterator[Injury]:
    """Yield one injury per byte: it becomes another one."""
    for name, data in patient.files().items():
        for position in range(len(data)):
            flipped = bytearray(data)
            flipped[position] ^= rng.randint(1, 255)
            yield Injury(f"byte {position} of {name} flipped", {name: bytes(flipped)})


def truncations(patient: Patient) -> Iterator[Injury]:
    """Yield one injury per byte: the file ends before it."""
    for name, data in patient.files().items():
        for length in range(len(data)):
            yield Injury(f"{name} cut to {length} of {len(data)} bytes", {name: data[:length]})


def losses(patient: Patient) -> Iterator[Injury]:
    """Yield every file missing, every file emptied or made longer, and every directory missing."""
    files = patient.files()
    for name, data in files.items():
        yield Injury(f"{name} missing", {name: None})
        yield Injury(f"{name} empty", {name: b""})
        yield Injury(f"{name} longer", {name: data + b"\0"})
    for folder in sorted({parent.as_posix() for name in files for parent in Path(name).parents} - {"."}):
        yield Injury(f"{folder}/ missing", {name: None for name in files if name.startswith(f"{folder}/")})


def swaps(patient: Patient, other: Patient) -> Iterator[Injury]:
    """Yield every two files of one patient exchanged, and every file replaced by one of the other patient.

    Args:
        patient: the one that is injured.
        other: the checkpoint of another query.
    """
    own, foreign = patient.files(), other.files()
    for one in own:
        for two in own:
            if one < two and own[one] != own[two]:
                yield Injury(f"{one} and {two} exchanged", {one: own[two], two: own[one]})
        for name, data in foreign.items():
            if Path(name).suffix == Path(one).suffix and data != own[one]:
                yield Injury(f"{one} replaced by {name} of another query", {one: data})


def examine(patient: Patient, injury: Injury, situation: Situation, directory: Path, tally: Tally) -> None:
    """Injure a copy, start the query on it, and judge.

    Args:
        patient: the checkpoint.
        injury: what happens to it.
        situation: see the module.
        directory: scratch space.
        tally: where to count.
    """
    place = _injured(patient, injury, situation, directory)
    is_ignored = epoch_at_end(checkpoint_folder(str(place.checkpoint)))[0] is None
    tally.count("damages injected")
    seen = _Reads()
    next_epoch = patient.last + (situation != "replay")
    where = f"{situation}: {injury.reported}"
    try:
        with observe(seen), opened(Driver(patient.history, place)) as driver:
            for epoch in (next_epoch, next_epoch + 1):
                driver.run_epoch(epoch)
                tally.compare(driver.output.contents(), patient.history.expected_after(epoch), f"{where}, epoch {epoch}")
    except ZsetJoinError as error:
        tally.count("damages detected")
        tally.count(f"as {error.code}")
        return
    except Exception:  # noqa: BLE001 - an error that no user can read is a finding
        tally.problem(f"{where}: not refused, but failed\n{traceback.format_exc(limit=-4)}")
        return
    read = [name for name in injury.changes if str(place.checkpoint / name) in seen.paths]
    if read and is_ignored and all(_is_end(name) for name in read):
        tally.count("damages of ends that do not count")
    elif read:
        tally.problem(f"{where}: the answer is right, and {describe_path(place.root, read[0])} was read without a word")
    else:
        tally.count("damages of files that nobody reads")


def _is_end(name: str) -> bool:
    return name.startswith("zset/owners/") and name.endswith(".over")


@dataclass
class _Reads:
    """Observe which files are read."""

    def __init__(self) -> None:
        self.paths: set[str] = set()

    def __call__(self, operation: Operation, act: Act) -> Any:
        """Note the file and do the operation."""
        if operation.kind in _READING:
            self.paths.add(operation.path)
        return act()


def _injured(patient: Patient, injury: Injury, situation: Situation, directory: Path) -> Place:
    shutil.rmtree(directory, ignore_errors=True)
    place = Place(directory)
    whole = Place(patient.after)
    shutil.copytree(whole.checkpoint, place.checkpoint)
    shutil.copytree((Place(patient.between) if situation == "replay" else whole).output, place.output)
    if situation == "warm":
        shutil.copytree(whole.root / "hosts", place.root / "hosts")
        seal_copies(place.root / "hosts")
    for name, data in injury.changes.items():
        path = place.checkpoint / name
        if data is None:
            path.unlink()
            if not any(path.parent.iterdir()):
                path.parent.rmdir()
        else:
            path.write_bytes(data)
    return place


def search_local(directory: Path, tally: Tally, *, ways: int) -> None:
    """Lose, cut, zero and swap the mapped files of a host: all answers are right, and no file that a link leads to is written.

    Args:
        directory: scratch space.
        tally: where to count.
        ways: in how many of the ways each file is damaged.
    """
    patient, decoy = _patient(directory, 0), directory / "decoy"
    hosts = patient.after / "hosts"
    files = sorted(path.relative_to(patient.after) for path in hosts.rglob("*") if path.is_file() and path.name not in _LOCKS)
    for number, name in enumerate(files):
        for way in range(number, number + ways):
            how = _LOCAL_WAYS[way % len(_LOCAL_WAYS)]
            place = _injured(patient, Injury(how, {}), "warm", directory / "copy")
            file, other = place.root / name, place.root / files[number - 1]
            data = file.read_bytes()
            decoy.write_bytes(data)
            file.unlink()
            if how == "linked":
                file.symlink_to(decoy)
            elif how != "missing":
                file.write_bytes({"cut": data[: len(data) // 2], "zeroed": bytes(len(data))}.get(how, other.read_bytes()))
            tally.count("local damages injected")
            with opened(Driver(patient.history, place)) as driver:
                for epoch in (patient.last + 1, patient.last + 2):
                    driver.run_epoch(epoch)
                    tally.compare(
                        driver.output.contents(), patient.history.expected_after(epoch), f"{name} {how}, epoch {epoch}"
                    )
            if decoy.read_bytes() != data:
                tally.problem(f"{name} was a link, and the file it leads to was written")


def search_bytes(what: Literal["flips", "cuts"], directory: Path, tally: Tally, *, sample: int | None, seed: int = 0) -> None:
    """Injure a checkpoint at its bytes.

    Args:
        what: flip a byte, or cut a file before it.
        directory: scratch space.
        tally: where to count.
        sample: at how many bytes; None for every byte of every file.
        seed: which bytes, and to what they are flipped.
    """
    rng = Random(f"{what}/{seed}")
    patient = _patient(directory, 0)
    every = list(flips(patient, rng) if what == "flips" else truncations(patient))
    tally.count("bytes there", len(every))
    for injury in every if sample is None else rng.sample(every, sample):
        examine(patient, injury, rng.choice(SITUATIONS), directory / "copy", tally)


def search_files(directory: Path, tally: Tally, *, sample: int | None, among: str = "", seed: int = 0) -> None:
    """Lose, empty, lengthen and swap whole files.

    Args:
        directory: scratch space.
        tally: where to count.
        sample: how many swaps, each injury in one situation; None for all of them, in every situation.
        among: injure only files whose names begin so.
        seed: which swaps.
    """
    rng = Random(f"files/{seed}")
    patient, other = _patient(directory, 0), _patient(directory / "other", 1, _OTHER_QUERY)
    exchanged = list(swaps(patient, other))
    tally.count("swaps there are", len(exchanged))
    every = [*losses(patient), *(exchanged if sample is None else rng.sample(exchanged, sample))]
    for injury in [
        injury for injury in every if all(Path(name).as_posix().startswith(f"zset/{among}") for name in injury.changes)
    ]:
        for situation in SITUATIONS if sample is None else (rng.choice(SITUATIONS),):
            examine(patient, injury, situation, directory / "copy", tally)


def _patient(directory: Path, number: int, query_id: str = QUERY_ID) -> Patient:
    history = recorded_history(HOWS[(3 + number) % len(HOWS)], "upserts", seed=number, changes=_CHANGES)
    return healthy(history, directory / f"patient-{number}", _LAST, query_id)
