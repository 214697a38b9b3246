"""Copies of the files of a query between two lives.

The seal of mapped files names the files themselves (device, inode, change time), so a plain copy is never trusted, and the
query is rebuilt from its checkpoint. A copy that represents the files themselves, as they were when a life ended, is sealed
again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from zset_join.storage.local import file_marks
from zset_join.storage.trusted_files import seal, unseal

__all__ = ["copy_life", "seal_copies"]


def copy_life(source: Path, target: Path) -> None:
    """Copy all files of a query, mapped ones too, so that the next life uses them as it would use its own."""
    shutil.copytree(source, target)
    seal_copies(target)


def seal_copies(hosts: Path) -> None:
    """Seal mapped files again that were copied, so that a query uses them as it would use its own."""
    for stamp in hosts.rglob("stamp.json"):
        body = unseal(stamp.read_bytes(), version=2, name=stamp.name)
        marks = file_marks(stamp.parent / "state", skip="cold")
        stamp.write_bytes(seal({**body, "files": marks}, version=2, name=stamp.name))
