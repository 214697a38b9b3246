"""One driver per checkpoint: who it is, whether it still lives, and how a dead one is followed.

    owners/<number>.json    the claim: query, host, process, since when; never rewritten
    owners/<number>.beat    when its driver was last alive, every fifteen seconds
    owners/<number>.over    its driver ended in good order, and behind which epoch, where its runner numbers epochs itself
    owners/lock             held by the driver, on a local file system

A start that is refused leaves the record of the owner before it as it was: a claim is withdrawn until `confirm` was called.

The law: the owner is the claim with the greatest number. A claim is made with `put_new`, so a number has one owner. A new claim
is made only when the last owner is gone:

- it was released;
- or, on a local file system and the same boot of the host, the lock is free: the kernel frees it when a process dies;
- or, on another file system, it was a process of this host and that process no longer exists;
- or it was a process of this machine before the machine was started over;
- or its last beat is older than `SILENT_SECONDS` (other hosts; clocks must agree to a few seconds).

A driver that was taken for dead and was only slow is stopped at its next commit: `check` sees the greater number. Even if both
passed `check` at the same moment, a commit record is made with `put_new`, and only one of them gets the epoch.

Memory: one thread per claim. Cost: one listing per commit, one small file every fifteen seconds.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from zset_join.core.errors import StateError
from zset_join.storage.folder import Folder, LocalFolder
from zset_join.storage.local import FileLock, lock_file, make_directories, read_bytes
from zset_join.storage.trusted_files import seal, unseal

__all__ = [
    "BEAT_SECONDS",
    "SILENT_SECONDS",
    "Claim",
    "Ownership",
    "boot_of_host",
    "claimed_query_id",
    "epoch_at_end",
    "owner_seen",
]

BEAT_SECONDS = 15.0
SILENT_SECONDS = 90.0
_FORMAT = 2
_FOLDER = "owners"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MACHINE = Path("/etc/machine-id")
_PIDS_OF_A_MACHINE = "pid:[4026531836]"
"""The namespace of processes outside of containers; Linux gives it this number on every machine."""
_LOSS_CODES = frozenset({"OWNER_LOST", "COMMITTED_TWICE", "CHECKPOINT_IN_USE"})
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
_held: set[str] = set()
"""Tokens of the claims this process holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Identity of a driver."""

    number: int
    token: str
    query_id: str
    host: str
    boot: str
    pid: int
    process_started: str
    pid_namespace: str
    since: float
    machine: str = ""

    def describe(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.since))
        return f"process {self.pid} on host {self.host} (query {self.query_id}), since {since}"


@functools.cache
def boot_of_host() -> str:
    """Return a name of this boot of the host; empty where the host has none."""
    text = read_bytes(_BOOT)
    return "" if text is None else text.decode().strip()


@functools.cache
def machine_of_host() -> str:
    """Return a name of this installation, the same after a reboot; empty where there is none."""
    # A digest: the file is not meant to be shown around.
    text = read_bytes(_MACHINE)
    return "" if not text else hashlib.blake2b(text.strip(), digest_size=16, person=b"zset_join").hexdigest()


def owner_seen(folder: Folder) -> tuple[Claim, str] | None:
    """Return the last owner and whether it is at work, as far as that can be seen without a claim; None where nobody was."""
    # `running`: its process is alive. `stopped`: it released the checkpoint. `gone`: its process no longer exists. `unknown`:
    # it is on another host, boot or container.
    claim = _last_claim(folder)
    if claim is None:
        return None
    if folder.size(_name(claim.number, "over")) is not None:
        return claim, "stopped"
    is_here = claim.host == socket.gethostname() and claim.pid_namespace == _pid_namespace()
    if not (is_here and claim.boot and claim.boot == boot_of_host()):
        return claim, "unknown"
    if claim.process_started != _process_started(claim.pid):
        return claim, "gone"
    return claim, "stopped" if claim.pid == os.getpid() and claim.token not in _held else "running"


def claimed_query_id(folder: Folder) -> str | None:
    """Return the query whose driver claimed a checkpoint last; None where nobody has."""
    # A driver that died before it wrote down what the checkpoint is for has left no more than its claim: the next driver
    # continues as the same query.
    last = _last_claim(folder)
    return None if last is None else last.query_id


class Ownership:
    """The claim of this process; made by `Ownership.claim`."""

    def __init__(self, folder: Folder, claim: Claim, lock: FileLock | None) -> None:
        self.mine = claim
        self._folder = folder
        self._lock = lock
        self._is_over = threading.Event()
        self._is_confirmed = True
        self._ended = epoch_at_end(folder)[0]
        self._beat_failure: OSError | None = None
        self._thread = threading.Thread(target=self._keep_beating, name="zset_join-owner", daemon=True)

    @classmethod
    def claim(cls, folder: Folder, query_id: str, *, on_trial: bool = False) -> Ownership:
        """Become the owner of a checkpoint."""
        lock, has_locks = _locked(folder)
        if has_locks and lock is None:
            raise _in_use(folder, _last_claim(folder), "It is alive: it holds the lock. Stop it first.")
        try:
            last = _last_claim(folder)
            if last is not None and last.query_id != query_id:
                raise _foreign(folder, last, query_id)
            alive = "" if last is None else _why_it_may_live(folder, last, has_locks=has_locks)
            if alive:
                raise _in_use(folder, last, alive)
            mine = _own_claim(query_id, 1 if last is None else last.number + 1)
            try:
                folder.put_new(_name(mine.number, "json"), _sealed(mine))
            except FileExistsError as error:
                raise _in_use(folder, _last_claim(folder), "It was faster. Stop it first.") from error
            _refuse_unconditional(folder, mine)
            ownership = cls(folder, mine, lock)
            ownership._is_confirmed = False
            ownership._beat()
            if not on_trial:
                ownership.confirm()
        except BaseException:
            if lock is not None:
                lock.release()
            raise
        _held.add(mine.token)
        ownership._thread.start()
        return ownership

    def check(self) -> None:
        """Make sure that nobody has followed this driver."""
        last = max(_numbers(self._folder), default=0)
        if last != self.mine.number:
            follower = _last_claim(self._folder)
            why = "its owner record was removed" if follower is None else f"it belongs to {follower.describe()} now"
            failure = "" if self._beat_failure is None else f" (signs of life could not be written: {self._beat_failure})"
            raise StateError(
                f"this driver, {self.mine.describe()}, no longer owns the checkpoint {self._folder.location}: {why}{failure}. "
                "It commits nothing from now on. Let the other driver continue, or stop it and start this query again.",
                code="OWNER_LOST",
                owner=None if follower is None else follower.token,
            )

    @contextmanager
    def reporting_lost_ownership(self) -> Iterator[None]:
        """Report an error inside as a lost claim, where another driver has taken over: it clears files away."""
        try:
            yield
        except Exception as error:
            if getattr(error, "code", "") not in _LOSS_CODES:
                self._raise_if_lost(error)
            raise

    def _raise_if_lost(self, error: Exception) -> None:
        try:
            self.check()
        except StateError as lost:
            raise lost from error
        except OSError as unknown:
            error.add_note(f"Whether another driver has taken over could not be seen: {unknown}")

    def confirm(self) -> None:
        """Keep the claim: nothing refuses the start any more. What older owners left is removed."""
        if not self._is_confirmed:
            self._remove_older()
            self._is_confirmed = True

    def has_crashed_before(self) -> bool:
        """Return whether the last owner of a directory did not end in good order. Call it before `confirm`."""
        older = [number for number in _numbers(self._folder) if number < self.mine.number]
        return bool(older) and self._folder.size(_name(max(older), "over")) is None

    def release(self, *, epoch: int | None = None) -> None:
        """Release the claim, so that the next driver need not wait; done already is no error."""
        # A claim that was not confirmed is withdrawn. The first claim of a checkpoint stays: outputs may hold its query.
        if self._is_over.is_set():
            return
        self._is_over.set()
        _held.discard(self.mine.token)
        self._thread.join()
        try:
            if self._is_confirmed or not any(number < self.mine.number for number in _numbers(self._folder)):
                ended = self._ended if epoch is None else epoch
                name = _name(self.mine.number, "over")
                self._folder.put(name, seal({} if ended is None else {"epoch": ended}, version=_FORMAT, name=name))
            else:
                self._folder.remove(_name(self.mine.number, "beat"))
                self._folder.remove(_name(self.mine.number, "json"))
        finally:
            if self._lock is not None:
                self._lock.release()

    def _keep_beating(self) -> None:
        while not self._is_over.wait(BEAT_SECONDS):
            try:
                self._beat()
                self._beat_failure = None
            except OSError as error:
                self._beat_failure = error  # tried again; `check` reports it when another driver has taken over meanwhile

    def _beat(self) -> None:
        self._folder.put(_name(self.mine.number, "beat"), json.dumps({"at": time.time()}).encode())

    def _remove_older(self) -> None:
        for number, kind in _found(self._folder):
            if number < self.mine.number:
                self._folder.remove(_name(number, kind))


def epoch_at_end(folder: Folder) -> tuple[int | None, str]:
    """Return the epoch behind which the last owner ended, where that is known, and the file that has it."""
    # That file is not synced: a power cut may leave any part of it, and only a whole one counts.
    ends = [number for number, kind in _found(folder) if kind == "over"]
    name = _name(max(ends, default=1), "over")
    data = folder.read(name) if ends else None
    try:
        epoch = None if data is None else unseal(data.to_pybytes(), version=_FORMAT, name=name).get("epoch")
    except ValueError:
        epoch = None
    return epoch, folder.uri(name)


def _locked(folder: Folder) -> tuple[FileLock | None, bool]:
    """Take the lock; return it, None when another one holds it, and whether there are locks at all."""
    if not isinstance(folder, LocalFolder):
        return None, False
    make_directories(folder.uri(_FOLDER))
    try:
        return lock_file(folder.uri(f"{_FOLDER}/lock")), True
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None, False  # a mount without locks: whether the last owner lives is decided as on other file systems


def _sealed(claim: Claim) -> bytes:
    return seal(asdict(claim), version=_FORMAT, name=_name(claim.number, "json"))


def _refuse_unconditional(folder: Folder, mine: Claim) -> None:
    """Refuse an object store that takes a name twice: nothing would keep two drivers from committing one epoch."""
    if isinstance(folder, LocalFolder):
        return
    try:
        folder.put_new(_name(mine.number, "json"), _sealed(mine))
    except FileExistsError:
        return
    raise StateError(
        f"the object store of {folder.location} replaces an object in spite of If-None-Match: * in the request, so two drivers "
        "could commit the same epoch. Use a store, or a version of it, with conditional writes, or a local or mounted "
        "checkpoint.",
        code="STORE_UNCONDITIONAL",
        location=folder.location,
    )


def _why_it_may_live(folder: Folder, last: Claim, *, has_locks: bool) -> str:
    """Return why the last owner may still be at work; empty when it is gone. The lock, where there is one, is ours."""
    if folder.size(_name(last.number, "over")) is not None:
        return ""
    same_boot = bool(last.boot) and last.boot == boot_of_host()
    if same_boot and has_locks:
        return ""
    if same_boot and last.host == socket.gethostname() and last.pid_namespace == _pid_namespace():
        is_this_process = last.pid == os.getpid()
        lives = last.process_started == _process_started(last.pid) and (not is_this_process or last.token in _held)
        return "That process is alive. Stop it first." if lives else ""
    if not same_boot and _was_on_this_machine(last):
        return ""
    silent_seconds = time.time() - _last_sign(folder, last)
    if silent_seconds >= SILENT_SECONDS:
        return ""
    return (
        "Whether it is alive cannot be seen from this host, boot and container. Its last sign of life was "
        f"{max(silent_seconds, 0):.0f} seconds ago; {SILENT_SECONDS:.0f} seconds of silence are required. Stop it, or if it "
        f"is dead, start again in {SILENT_SECONDS - silent_seconds:.0f} seconds."
    )


def _was_on_this_machine(claim: Claim) -> bool:
    """Return whether a claim of another boot was made on this very machine, so that its process went with that boot."""
    # One sign alone does not do: host names repeat, and copies of an image share the machine's name. Containers share both
    # and move from machine to machine, so for them the answer is no.
    ours = (socket.gethostname(), machine_of_host(), _pid_namespace())
    has_boots = bool(claim.boot) and bool(boot_of_host()) and bool(claim.machine)
    return has_boots and (claim.host, claim.machine, claim.pid_namespace) == ours and ours[2] == _PIDS_OF_A_MACHINE


def _last_sign(folder: Folder, claim: Claim) -> float:
    """Return when an owner was last known to be alive; a sign that was cut off while written does not count."""
    beat = folder.read(_name(claim.number, "beat"))
    if beat is None:
        return claim.since
    try:
        return max(claim.since, float(json.loads(beat.to_pybytes())["at"]))
    except (ValueError, KeyError, TypeError):
        return claim.since


def _own_claim(query_id: str, number: int) -> Claim:
    return Claim(
        number=number,
        token=uuid.uuid4().hex,
        query_id=query_id,
        host=socket.gethostname(),
        boot=boot_of_host(),
        pid=os.getpid(),
        process_started=_process_started(os.getpid()),
        pid_namespace=_pid_namespace(),
        since=time.time(),
        machine=machine_of_host(),
    )


def _last_claim(folder: Folder) -> Claim | None:
    record = None
    while record is None:  # a record that is gone when it is read was removed by a newer owner
        number = max(_numbers(folder), default=0)
        if not number:
            return None
        name = _name(number, "json")
        record = folder.read(name)
    try:
        body: dict[str, Any] = unseal(record.to_pybytes(), version=_FORMAT, name=name)
        known = {field.name for field in fields(Claim)}
        return Claim(**{key: value for key, value in body.items() if key in known})  # a later version may add fields
    except (ValueError, TypeError) as error:
        raise StateError(
            f"the owner record {folder.uri(name)} cannot be read ({error}). Make sure that no driver runs on this checkpoint, "
            "then remove that file.",
            code="DAMAGED_FILE",
            file=folder.uri(name),
        ) from error


def _numbers(folder: Folder) -> list[int]:
    return [number for number, kind in _found(folder) if kind == "json"]


def _found(folder: Folder) -> list[tuple[int, str]]:
    """Return the number and kind of every file of an owner."""
    names = [name.rpartition("/")[2].partition(".") for name in folder.names(_FOLDER)]
    return [(int(stem), kind) for stem, _, kind in names if stem.isdecimal()]


def _name(number: int, kind: str) -> str:
    return f"{_FOLDER}/{number:010d}.{kind}"


def _in_use(folder: Folder, claim: Claim | None, why: str) -> StateError:
    owner = "another driver that is just starting" if claim is None else claim.describe()
    return StateError(
        f"the checkpoint {folder.location} is in use by {owner}; two drivers on one checkpoint would undo each other's work. "
        f"{why}",
        code="CHECKPOINT_IN_USE",
        owner=None if claim is None else claim.token,
        location=folder.location,
    )


def _foreign(folder: Folder, claim: Claim, query_id: str) -> StateError:
    return StateError(
        f"the checkpoint {folder.location} was last owned by a driver of query {claim.query_id}, and this is query {query_id}: "
        "Spark's own files in the checkpoint were removed or replaced, and the state stayed. Start with a new "
        "checkpointLocation, or restore the old directory from a copy.",
        code="FOREIGN_STATE",
        found=claim.query_id,
        expected=query_id,
    )


def _process_started(pid: int) -> str:
    """Return when a process started, as the kernel counts it; empty when there is none."""
    text = read_bytes(f"/proc/{pid}/stat")
    return "" if text is None else text.decode(errors="replace").rpartition(")")[2].split()[19]


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - not a path that leads anywhere
    except OSError:
        return ""
