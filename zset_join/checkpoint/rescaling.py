"""The record of a rescaling: the state after an epoch, in another number of buckets, or as another plan has it.

The law: a rescaling counts exactly when its record is present, the epoch it was made after is the newest one, and the commit
record of that epoch is the very one it was made after. So it comes true in one step, as an epoch does, and an epoch that is
retracted takes its rescaling with it. The next commit record carries number and buckets on; from then on it alone counts.

What it lists is snapshots written for it under names of their own. Local state of the buckets before has other names folded in,
so it is never taken for that of the new buckets.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from zset_join.checkpoint.files import CHECKPOINT_FORMAT
from zset_join.checkpoint.record import BucketHistory
from zset_join.storage.sealed import read, seal, unseal

__all__ = ["RESCALINGS", "Rescaling", "record_digest", "rescaling_numbers"]

RESCALINGS = "rescalings"
_NAME = re.compile(rf"{RESCALINGS}/(\d{{20}})-(\d{{10}})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescaling:
    """Hold what is true after a rescaling, until the next epoch."""

    number: int
    query_id: str
    epoch: int
    record: str
    buckets: int
    histories: Mapping[str, BucketHistory]
    owner: str | None
    opened_at_ns: int
    plan: str | None = None

    @property
    def name(self) -> str:
        """Return the name of its file."""
        return f"{RESCALINGS}/{self.epoch:020d}-{self.number:010d}.json"

    def state_files(self) -> set[str]:
        """Return the names of all files the state consists of."""
        return {name for history in self.histories.values() for name in history.file_names()}

    def to_bytes(self) -> bytes:
        """Return the record as the bytes of its file."""
        return seal(self, version=CHECKPOINT_FORMAT, name=self.name)

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Rescaling:
        """Build from the bytes of a file."""
        return read(cls, unseal(data, version=CHECKPOINT_FORMAT, name=name))


def record_digest(data: bytes) -> str:
    """Return the digest of the bytes of a commit record."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def rescaling_numbers(name: str) -> tuple[int, int] | None:
    """Return the epoch and the number of a rescaling by the name of its file; None for another file.

    >>> rescaling_numbers("rescalings/00000000000000000007-0000000002.json")
    (7, 2)
    """
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))
