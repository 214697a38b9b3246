"""The plans that a query has changed to: one file each, under the digest of its bytes, which a commit record names.

    plans/<digest>.json         the description and the plan of the query from some epoch on
    plans/<digest>.given        outputs have the change to this plan, which was made without them

The law: a plan counts from the epoch whose commit record names it, and as long as later records do; a file that no record names
is that of a change that did not come true. So the record is the one file that makes plan and difference true together.

Cost: a file per change of the query.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zset_join.checkpoint.files import CHECKPOINT_FORMAT
from zset_join.storage.folder import Folder
from zset_join.storage.trusted_files import json_text, read, seal, unseal

__all__ = [
    "CHANGED_TO",
    "PLANS",
    "ChangedPlan",
    "note_given",
    "read_changed_plan",
    "was_given",
    "write_changed_plan",
]

PLANS = "plans"
CHANGED_TO = "changed to "
"""What the offsets of an epoch begin with in which the query changed; the digest of the plan follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedPlan:
    """Hold what a query has changed to."""

    epoch: int  # that the change takes; its answer is the difference
    changes: int  # epochs that are changes, this one among them: so many epochs is one behind it ahead of Spark's batches
    before: str | None  # digest of the plan before; None: the one that the checkpoint was made with
    description: Mapping[str, Any]
    plan: Mapping[str, Any]
    sources: tuple[Mapping[str, Any], ...]  # all that the query ever had, in the order of their logs
    begins: tuple[str, ...] = ()  # new views, whose outputs begin with this epoch
    filled: tuple[str, ...] = ()  # those of `begins` whose rows are parts of their own, not the answer of the epoch
    altered: tuple[str, ...] = ()  # views that get columns behind those they had: their outputs continue
    is_unseen: bool = False  # made without outputs: the next start gives it to them, and the epoch before where they lack it
    bare_view: str | None = None  # the view whose outputs the query's id alone owns; "": the only, unnamed one
    undo_epochs: int = 1000
    columns: tuple[Mapping[str, Any], ...] = ()  # changes of columns of sources, oldest first; `slot` is a place in `sources`
    note: Any = None
    gone: Mapping[str, int] = field(default_factory=dict)  # by dropped source, how many of its rows states held then

    @property
    def digest(self) -> str:
        return hashlib.blake2b(json.dumps(json.loads(json_text(self)), sort_keys=True).encode(), digest_size=16).hexdigest()


def write_changed_plan(folder: Folder, changed: ChangedPlan) -> str:
    """Write a plan, and return the digest that it is found by once a record names it; one that is present stays."""
    name = _name(changed.digest)
    if folder.size(name) is None:
        folder.put_new(name, seal(changed, version=CHECKPOINT_FORMAT, name=name))
    return changed.digest


def read_changed_plan(folder: Folder, digest: str) -> ChangedPlan:
    """Return a plan that a record names."""
    name = _name(digest)
    data = folder.read(name)
    return read(ChangedPlan, unseal(b"" if data is None else data.to_pybytes(), version=CHECKPOINT_FORMAT, name=name))


def note_given(folder: Folder, digest: str) -> None:
    """Write down that outputs have the change to a plan, which was made without them."""
    if not was_given(folder, digest):
        folder.put_new(_given(digest), b"{}")


def was_given(folder: Folder, digest: str) -> bool:
    """Return whether outputs have the change to a plan, which was made without them."""
    return folder.size(_given(digest)) is not None


def _given(digest: str) -> str:
    return f"{PLANS}/{digest}.given"


def _name(digest: str) -> str:
    return f"{PLANS}/{digest}.json"
