"""Description of a query inside Spark in its other mode, driver or executors, written by its program.

    zset/other_mode.json        description and plan of the other mode, and which of its states is which

The law: it holds for the description that it names, of the mode in which the checkpoint runs; beside another description it
counts for nothing. It is written at a start, before anything is answered, and nothing that an epoch does depends on it.

`zset-join rescale CHECKPOINT --execution ...` has no program, so all that it needs of the plan is here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from zset_join.storage.folder import Folder
from zset_join.storage.trusted_files import seal, unseal

__all__ = [
    "READS_OTHERWISE",
    "SEVERAL_VIEWS",
    "WAITS_FOR_TIME",
    "OtherMode",
    "StatePair",
    "description_digest",
    "is_comparable",
    "other_mode_of",
    "read_other_mode",
    "write_other_mode",
]

SEVERAL_VIEWS = "it has several views, whose outputs are known by other names there"
WAITS_FOR_TIME = "it has stages that wait for a time"
"""Why a state is not moved, though all of it has a form in the other mode: it is compared and changed there."""
READS_OTHERWISE = "Spark counts the sources of a query, and "
"""What such a reason begins with where only Spark's own files prevent a move; what each mode reads follows."""
_FILE = "other_mode.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePair:
    """Name one state in both modes, and the stages on executors that read it."""

    executors: str
    driver: str
    readers: tuple[str, ...]
    routes: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherMode:
    """Hold what a query would be in the other mode."""

    of: str
    mode: str
    refused: str | None = None
    description: Mapping[str, Any]
    plan: Mapping[str, Any]
    sources: tuple[Mapping[str, Any], ...] = ()
    pairs: tuple[StatePair, ...] = ()


def description_digest(description: Mapping[str, Any]) -> str:
    """Return what is equal for equal descriptions."""
    return hashlib.blake2b(json.dumps(description, sort_keys=True).encode(), digest_size=16).hexdigest()


def is_comparable(refused: str | None) -> bool:
    """Return whether a query is compared and changed in the form of the other mode, where a move is refused for a reason.

    >>> is_comparable(None), is_comparable(SEVERAL_VIEWS), is_comparable("rows are dropped at a limit")
    (True, True, False)
    >>> is_comparable(f"{READS_OTHERWISE}executors read ['a', 'b'], the driver ['b', 'a']")
    True
    """
    return refused in (None, WAITS_FOR_TIME, SEVERAL_VIEWS) or refused.startswith(READS_OTHERWISE)


def write_other_mode(folder: Folder, other: OtherMode) -> None:
    """Write it down; what was there is replaced."""
    folder.put(_FILE, seal(asdict(other), version=_FORMAT, name=_FILE))


def read_other_mode(folder: Folder) -> OtherMode | None:
    """Return what was written down; None where nothing was, or not so that this version can read it."""
    data = folder.read(_FILE)
    if data is None:
        return None
    try:
        written = unseal(data.to_pybytes(), version=_FORMAT, name=_FILE)
    except ValueError:  # damaged, or of another version: the next start writes it again
        return None
    return other_mode_of(written)


def other_mode_of(written: Mapping[str, Any]) -> OtherMode:
    """Return what `dataclasses.asdict` made of one."""
    pairs = tuple(StatePair(**{**pair, "readers": tuple(pair["readers"])}) for pair in written["pairs"])
    return OtherMode(**{**written, "pairs": pairs, "sources": tuple(written["sources"])})
