"""The directory of a pipeline: where it lies, and the description of the plan in it."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa

from zset_join.checkpoint.changed_plans import PLANS
from zset_join.checkpoint.owner import Ownership, claimed_query_id
from zset_join.checkpoint.reading import checkpoint_folder, stored_plan, stored_query_id
from zset_join.core.errors import OptionError
from zset_join.core.options import KeepState
from zset_join.plan.query_plan import QueryPlan
from zset_join.runners.local.contents import Contents
from zset_join.runners.local.outputs import Outputs, OutputsByView
from zset_join.runners.local.watermarks import Watermarks
from zset_join.stages.effect import CHANGEABLE
from zset_join.stages.stage import StageOptions
from zset_join.storage.folder import folder_below, is_local
from zset_join.zset import ZSet

__all__ = [
    "DirectoryChange",
    "PipelineOptions",
    "Place",
    "check_kept_here",
    "claimed",
    "described_beside",
    "described_plan",
    "digest_of",
    "place_of",
    "plan_of_directory",
    "written_plan",
]


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


_LINE = "line "


@dataclass(frozen=True, kw_only=True)
class DirectoryChange:
    """Parts that a pipeline keeps under another plan."""

    plan: QueryPlan
    watermarks: Watermarks
    contents: Mapping[str, Contents] | None
    answers: Mapping[str, ZSet]  # the difference; all rows of a view that is new or has other columns
    begins: Mapping[str, ZSet]  # all rows of the views whose new outputs begin here
    bare_view: str | None
    positions: Mapping[str, Any]
    progress: Mapping[str, Any]
    undo_epochs: int
    note: Any = None
    is_without_outputs: bool = False  # the next start gives outputs the epoch, and those before it that they lack


def described_beside(stored: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the description of a directory besides its plan, as stored."""
    return {key: value for key, value in (stored or {}).items() if not key.startswith(_LINE)}


def check_kept_here(location: str, described: Mapping[str, Any]) -> None:
    """Refuse a checkpoint whose state is not that of a pipeline."""
    if "keeps_view" not in described:
        raise OptionError(
            f"{location} is the checkpoint of a query whose state lies in Spark's executors; it is not changed here. "
            "Stop it and run zset-join evolve, or start its program and call query.evolve(view).",
            code="NOT_FROM_HERE",
            what="evolve",
        )


def plan_of_directory(directory: str | Path | Place, plan: QueryPlan, *, has_names: bool) -> QueryPlan:
    """Return a plan with the names that a directory gives its states, and its only view; whether it fits, a start sees."""
    location = place_of(directory).location
    try:
        has_changed = next(iter(checkpoint_folder(location).names(PLANS)), None) is not None
    except OSError:  # claiming the directory fails as well, with the reason
        return plan
    if not has_changed:
        return plan
    known = QueryPlan.from_json(stored_plan(location)["plan"])
    if len(known.views) == len(plan.views) == 1 and not has_names:
        plan = replace(plan, views=(replace(plan.view(), name=known.name),))
    return replace(plan, state_names=known.state_names) if len(known.states) == len(plan.states) else plan


def written_plan(plan: QueryPlan) -> dict[str, Any]:
    """Return a description that can build the operators of a plan without its program, JSON-ready."""
    return {
        "stages": [
            {"name": state.name, "stage": state.stage.to_json(), **({} if state.own is None else {"own": state.own.to_json()})}
            for state in plan.states
        ],
        "plan": plan.to_json(),
    }


def described_plan(plan: QueryPlan) -> dict[str, Any]:
    """Return the description of a plan, line by line, so that a message can show the difference."""
    # Another run may have another bound, and a baseline that is loaded need not be given again.
    unbounded = tuple(replace(source, max_watermark_jump=None, has_baseline=False) for source in plan.sources)
    explained = replace(plan, sources=unbounded).explain(buckets=1)
    lines = [line for line in explained.splitlines() if not line.startswith(CHANGEABLE)]
    schemas = [f"{source.name}: {_columns(source.relation.schema)}" for source in plan.sources]
    return {f"{_LINE}{number:03}": line for number, line in enumerate([*lines, *schemas])}


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def digest_of(deltas: Mapping[str, ZSet]) -> str:
    """Return a digest of what an epoch was fed: the same rows in the same order have the same one."""
    digest = hashlib.blake2b(digest_size=16)
    for name, delta in sorted(deltas.items()):
        if not len(delta):
            continue
        digest.update(f"{name} {len(delta)} ".encode())
        digest.update(delta.weights.tobytes())
        digest.update(delta.rows.serialize())
    return digest.hexdigest()
