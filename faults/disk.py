"""A model of a disk that loses power: which states a log of file operations may leave behind.

The law: every state that `states` yields is one that POSIX allows. It promises only this. The bytes of a file are on the disk
once the file was synced after they were written; a name is on the disk once its directory was synced after the name was given
or taken away. Everything else may be there or not, in any order: later writes without earlier ones, a file's name without its
bytes, bytes cut off or replaced by zeros at any place, a new name without the old one gone from the disk, a directory whose own
name was lost. A rename or a link is one step; a rename that moves between directories is on the disk once either is synced.

Real file systems promise more (most put names on the disk in the order they were given); a state here may therefore be harsher
than any that a given disk would show. Not modelled: sectors that go bad, and disks that lie about a sync.

The model is checked against the real disk: with nothing lost it equals the directory byte for byte (`Disk.whole`), so an
operation that did not go through the hook is noticed.

Source: the crash states of ALICE (Pillai et al., OSDI 2014) and CrashMonkey (Mohan et al., OSDI 2018), reduced to names and
bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from faults.watching import Act
from zset_join.storage.operations import Operation

__all__ = ["CrashState", "Disk", "Recorder", "Tree", "read_tree", "write_tree"]

Tree = Mapping[str, bytes | None]
"""Path below the root to bytes; None for a directory."""

_SILENT = frozenset({"close", "list", "lock", "read", "size", "touch"})
_TEARINGS = 4


@dataclass
class _File:
    """A file or a directory, whatever names it has."""

    is_directory: bool
    length: int = 0


@dataclass
class _Write:
    """Bytes that went to a file at some moment, and the moment they were on the disk."""

    at: int
    file: _File
    offset: int
    data: bytes
    durable_at: int | None = None


@dataclass
class _Naming:
    """Names given and taken away in one step, and the moment that was on the disk."""

    at: int
    changes: tuple[tuple[_File, str, _File | None], ...]
    durable_at: int | None = None


@dataclass(frozen=True)
class CrashState:
    """One state the disk may be in.

    Args:
        at: how many operations had been done.
        tree: what a reader finds.
        lost: what was lost, for messages.
        cause: dropped, reordered, torn, or whole.
    """

    at: int
    tree: Tree
    reported: str
    cause: str

    @property
    def fingerprint(self) -> bytes:
        """Return a digest of the tree."""
        digest = hashlib.blake2b(digest_size=16)
        for name, data in sorted(self.tree.items()):
            digest.update(f"{len(name)} {name} {-1 if data is None else len(data)} ".encode())
            digest.update(data or b"")
        return digest.digest()


class Disk:
    """Follow file operations below some directories, and list what a power cut may leave.

    Args:
        root: a directory that is on the disk and stays there.
        areas: names below the root that are followed; operations elsewhere are not.

    Attributes:
        operations: how many were recorded.
        paths: which path each of them gave, took or changed.
    """

    def __init__(self, root: Path, areas: Sequence[str]) -> None:
        self.root = str(root)
        self.operations = 0
        self.paths: list[str] = []
        self._tops = frozenset(f"{root}/{area}" for area in areas)
        self._prefixes = tuple(f"{top}/" for top in self._tops)
        self._top = _File(is_directory=True)
        self._now: dict[int, dict[str, _File]] = {id(self._top): {}}
        self._open: dict[str, _File] = {}
        self._writes: list[_Write] = []
        self._namings: list[_Naming] = []

    def follows(self, operation: Operation) -> bool:
        """Return whether an operation is in one of the areas and may change the disk."""
        if operation.kind == "sync_directory" and operation.path == self.root:
            return True
        is_inside = operation.path in self._tops or operation.path.startswith(self._prefixes)
        return is_inside and operation.kind not in _SILENT

    def record(self, operation: Operation, written: int = 0) -> None:
        """Follow an operation that has been done.

        Args:
            operation: what was done.
            written: for a write, how many bytes of it.

        Raises:
            ValueError: an operation whose effect is not in the model.
        """
        follow = getattr(self, f"_on_{operation.kind}", None)
        if follow is None:
            raise ValueError(f"the disk model has no effect of {operation.kind!r} of {operation.path}")
        follow(operation, written)
        self.operations += 1
        self.paths.append(operation.target or operation.path)

    def whole(self) -> Tree:
        """Return the tree with nothing lost."""
        return self._tree(self.operations, frozenset(), {})

    def state(self, at: int, *, nothing_lost: bool) -> CrashState:
        """Return the tree after some operations with nothing lost, or with all lost that may be."""
        lost = frozenset() if nothing_lost else frozenset(id(part) for part in self._pending(at))
        reported = "nothing lost" if nothing_lost else "all lost that may be"
        return CrashState(at, self._tree(at, lost, {}), reported, "whole" if nothing_lost else "dropped")

    def states(self, at: int, rng: Random, *, randomly: int) -> Iterator[CrashState]:
        """Yield states that may be found after a power cut; the same one may come twice.

        Args:
            at: operations done before it, 0 to `operations`.
            rng: where and what to tear.
            randomly: how many random combinations, beside the systematic ones.
        """
        pending = self._pending(at)
        writes = [part for part in pending if isinstance(part, _Write)]
        yield self.state(at, nothing_lost=True)
        if not pending:
            return
        yield self.state(at, nothing_lost=False)
        for part in pending:
            others = frozenset(id(other) for other in pending if other is not part)
            yield CrashState(at, self._tree(at, frozenset({id(part)}), {}), f"lost: {self._record(part)}", "dropped")
            yield CrashState(at, self._tree(at, others, {}), f"alone: {self._record(part)}", "reordered")
        for part in writes:
            for number in range(_TEARINGS):
                torn = {id(part): self._tear(part, rng, zeros=number % 2 == 1)}
                yield CrashState(at, self._tree(at, frozenset(), torn), f"torn: {self._record(part)}", "torn")
        for number in range(randomly if len(pending) > 1 else 0):
            lost = frozenset(id(part) for part in pending if rng.random() < 0.5)
            torn = {id(part): self._tear(part, rng, zeros=rng.random() < 0.5) for part in writes if rng.random() < 0.5}
            yield CrashState(at, self._tree(at, lost, torn), f"combination {number}", "torn" if torn else "reordered")

    # -- following ----------------------------------------------------------------------------------------------------

    def _find(self, path: str) -> tuple[_File, str]:
        """Return the directory a path is in and its name there.

        Raises:
            KeyError: a directory on the way was never made through the hook.
        """
        *above, name = path.removeprefix(f"{self.root}/").split("/")
        directory = self._top
        for part in above:
            directory = self._now[id(directory)][part]
        return directory, name

    def _name(self, *changes: tuple[_File, str, _File | None]) -> None:
        for directory, name, file in changes:
            if file is None:
                self._now[id(directory)].pop(name, None)
            else:
                self._now[id(directory)][name] = file
        self._namings.append(_Naming(self.operations, changes))

    def _on_make_directory(self, operation: Operation, _written: int) -> None:
        directory, name = self._find(operation.path)
        if name not in self._now[id(directory)]:
            made = _File(is_directory=True)
            self._now[id(made)] = {}
            self._name((directory, name, made))

    def _on_create(self, operation: Operation, _written: int) -> None:
        directory, name = self._find(operation.path)
        file = self._now[id(directory)].get(name)
        if file is None:
            file = _File(is_directory=False)
            self._name((directory, name, file))
        self._open[operation.path] = file

    _on_open = _on_create

    def _on_write(self, operation: Operation, written: int) -> None:
        file = self._open[operation.path]
        data = bytes(operation.data or b"")[:written]
        self._writes.append(_Write(self.operations, file, file.length, data))
        file.length += len(data)

    def _on_sync(self, operation: Operation, _written: int) -> None:
        file = self._open[operation.path]
        for write in self._writes:
            if write.file is file and write.durable_at is None:
                write.durable_at = self.operations

    def _on_sync_directory(self, operation: Operation, _written: int) -> None:
        if operation.path == self.root:
            directory = self._top
        else:
            above, name = self._find(operation.path)
            directory = self._now[id(above)][name]
        for naming in self._namings:
            if naming.durable_at is None and any(change[0] is directory for change in naming.changes):
                naming.durable_at = self.operations

    def _on_rename(self, operation: Operation, _written: int) -> None:
        source, source_name = self._find(operation.path)
        target, target_name = self._find(str(operation.target))
        moved = self._now[id(source)][source_name]
        self._name((source, source_name, None), (target, target_name, moved))

    _on_replace = _on_rename

    def _on_link(self, operation: Operation, _written: int) -> None:
        source, source_name = self._find(operation.path)
        target, target_name = self._find(str(operation.target))
        self._name((target, target_name, self._now[id(source)][source_name]))

    def _on_remove(self, operation: Operation, _written: int) -> None:
        directory, name = self._find(operation.path)
        if name in self._now[id(directory)]:
            self._name((directory, name, None))

    _on_remove_directory = _on_remove

    # -- what a power cut leaves --------------------------------------------------------------------------------------

    def _pending(self, at: int) -> list[_Write | _Naming]:
        """Return what had been done and was not on the disk yet."""
        done: list[_Write | _Naming] = [*self._namings, *self._writes]
        return [part for part in done if part.at < at and (part.durable_at is None or part.durable_at >= at)]

    @staticmethod
    def _tear(write: _Write, rng: Random, *, zeros: bool) -> bytes:
        """Return a write that is cut off somewhere, or has zeros somewhere."""
        begin = rng.randrange(max(len(write.data), 1))
        if not zeros:
            return write.data[:begin]
        end = rng.randint(begin + 1, max(len(write.data), begin + 1))
        return write.data[:begin] + bytes(end - begin) + write.data[end:]

    def _tree(self, at: int, lost: frozenset[int], torn: Mapping[int, bytes]) -> Tree:
        """Build what a reader finds when some parts are lost and some torn."""
        names: dict[int, dict[str, _File]] = {}
        for naming in self._namings:
            if naming.at >= at:
                break
            if id(naming) not in lost:
                for directory, name, file in naming.changes:
                    here = names.setdefault(id(directory), {})
                    if file is None:
                        here.pop(name, None)
                    else:
                        here[name] = file
        contents: dict[int, bytearray] = {}
        for write in self._writes:
            if write.at >= at:
                break
            if id(write) not in lost:
                data = torn.get(id(write), write.data)
                content = contents.setdefault(id(write.file), bytearray())
                content.extend(bytes(max(write.offset - len(content), 0)))
                content[write.offset : write.offset + len(data)] = data
        tree: dict[str, bytes | None] = {}
        self._walk(self._top, "", names, contents, tree)
        return tree

    def _walk(
        self,
        directory: _File,
        prefix: str,
        names: Mapping[int, Mapping[str, _File]],
        contents: Mapping[int, bytearray],
        tree: dict[str, bytes | None],
    ) -> None:
        for name, file in names.get(id(directory), {}).items():
            path = f"{prefix}{name}"
            tree[path] = None if file.is_directory else bytes(contents.get(id(file), b""))
            if file.is_directory:
                self._walk(file, f"{path}/", names, contents, tree)

    def _record(self, part: _Write | _Naming) -> str:
        if isinstance(part, _Write):
            return f"{len(part.data)} bytes written at operation {part.at}"
        changes = [f"{'-' if file is None else '+'}{name}" for _, name, file in part.changes]
        return f"names {' '.join(changes)} of operation {part.at}"


@dataclass
class Recorder:
    """Observe work and pass it to a disk.

    Args:
        disk: the model.
    """

    disk: Disk
    kinds: dict[str, int] = field(default_factory=dict)

    def __call__(self, operation: Operation, act: Act) -> Any:
        """Do it, then record it; what raised has not happened."""
        done = act()
        if self.disk.follows(operation):
            self.kinds[operation.kind] = self.kinds.get(operation.kind, 0) + 1
            self.disk.record(operation, done if operation.kind == "write" else 0)
        return done


def read_tree(root: Path, areas: Sequence[str]) -> Tree:
    """Return what is really below a directory."""
    tree: dict[str, bytes | None] = {}
    for area in areas:
        top = root / area
        for path in (top, *top.rglob("*")) if top.exists() else ():
            tree[path.relative_to(root).as_posix()] = None if path.is_dir() else path.read_bytes()
    return tree


def write_tree(root: Path, tree: Tree) -> None:
    """Make a tree real in an empty directory."""
    for name, data in tree.items():
        path = root / name
        if data is None:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.write_bytes(data)
