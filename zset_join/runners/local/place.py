"""Location of a durable pipeline, for runners with their own storage, and the other arguments of a pipeline."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from zset_join.checkpoint.owner import Ownership, claimed_query_id
from zset_join.checkpoint.reading import checkpoint_folder, stored_query_id
from zset_join.core.errors import OptionError
from zset_join.core.options import KeepState
from zset_join.runners.local.outputs import Outputs, OutputsByView
from zset_join.stages.stage import StageOptions
from zset_join.storage.folder import folder_below, is_local

__all__ = ["PipelineOptions", "Place", "claimed", "place_of"]


class PipelineOptions(TypedDict, total=False):
    """Arguments of a pipeline besides its query and its directory; see `Pipeline`."""

    keep_view: bool
    keep_inputs: bool
    outputs: Outputs | OutputsByView
    options: StageOptions | None
    idle_timeout_seconds: float | None
    snapshot_after_bytes: int
    keep_state: KeepState
    undo_epochs: int
    threads: int
    before_begin: Callable[[Mapping[str, Any]], None] | None


@dataclass(frozen=True, kw_only=True)
class Place:
    """Storage of a pipeline."""

    location: str
    query_id: str | None = None  # the name of the query in its outputs; None: the one that is present, or a new one
    local_state_dir: str | None  # of mapped files, a cache on this machine's disk; None: in the temporary directory
    local_state_retention_seconds: int | None = None  # of unused state of others; None: the directory is this query's own
    dead_letters: str
    retain_input_log: bool = False
    # From the stored description, None where there is none, what the query is recognised by beside its plan; it refuses what
    # does not fit.
    described: Callable[[Mapping[str, Any] | None], Mapping[str, Any]] = field(default=lambda stored: {})  # noqa: ARG005


def place_of(directory: str | Path | Place) -> Place:
    """Return the place that a directory is. State of one on another file system is in the temporary directory."""
    if isinstance(directory, Place):
        return directory
    if not str(directory):
        raise OptionError("directory='' is not a directory; name one, or leave it out.", code="DIRECTORY", directory="")
    if not is_local(str(directory)):
        letters = folder_below(str(directory), "dead-letters", option="directory").location
        return Place(location=str(directory), local_state_dir=None, dead_letters=letters)
    path = Path(directory).absolute()
    return Place(location=str(path), local_state_dir=str(path / "local"), dead_letters=str(path / "dead-letters"))


def claimed(place: Place) -> tuple[Ownership, str]:
    """Take a directory for this process; return also the name of its query in the outputs."""
    location = place.location
    try:
        folder = checkpoint_folder(location)
        query_id = place.query_id or stored_query_id(location) or claimed_query_id(folder) or str(uuid.uuid4())
        return Ownership.claim(folder, query_id, on_trial=True), query_id
    except OSError as error:
        raise OptionError(
            f"the directory {location} cannot be used: {error}. Give one where this process may write.",
            code="DIRECTORY",
            directory=location,
        ) from error
