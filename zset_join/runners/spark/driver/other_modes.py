"""Plan of a query in its other mode, for `zset-join rescale --execution`.

The law: it is planned from the program that starts, with the options it starts with, and written down at the end of a start
that nothing has refused. A start whose checkpoint has it already plans nothing. Over Spark Connect the client, which has the
program, makes a draft, and the server, which has the checkpoint, writes it down.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from zset_join.checkpoint.descriptions import SESSION, differences
from zset_join.checkpoint.reading import checkpoint_folder, stored_description
from zset_join.core.errors import OptionError, PlanError
from zset_join.core.options import QueryOptions
from zset_join.plan.query_plan import QueryPlan
from zset_join.runners.local.directory_plans import described_plan, written_plan
from zset_join.runners.spark.driver.driver_query import DriverQuery
from zset_join.runners.spark.frames.facts import is_connect
from zset_join.runners.spark.planning.other_mode import (
    READS_OTHERWISE,
    SEVERAL_VIEWS,
    WAITS_FOR_TIME,
    OtherMode,
    description_digest,
    read_other_mode,
    write_other_mode,
)
from zset_join.runners.spark.planning.placed_query import PlacedQuery
from zset_join.runners.spark.planning.source_stream import SourceStream
from zset_join.runners.spark.rows.baseline import resolve_baselines
from zset_join.runners.spark.rows.user_functions import with_functions

__all__ = ["OtherModes", "has_other_mode", "write_draft"]


@dataclass(frozen=True)
class OtherModes:
    """Plan a query in the mode in which it does not run."""

    mode: str
    options: QueryOptions
    placed: Callable[[], PlacedQuery]
    on_driver: Callable[[], DriverQuery]

    def write(self) -> None:
        """Write down what the other mode would be, where it is absent already."""
        location = self.options.checkpoint_location
        if not has_other_mode(location):
            write_draft(location, self.draft())

    def draft(self) -> OtherMode:
        """Return what the other mode would be, before it is known which description the checkpoint has."""
        other = "executors" if self.mode == "driver" else "driver"
        try:
            placed, here = self.placed(), self.on_driver()
            placed, here = self._in_one_order(placed, here)
            pairs = placed.state_pairs(here.plan)
        except (PlanError, OptionError) as error:
            return OtherMode(of="", mode=other, refused=error.message, description={}, plan={})
        streams = placed.streams if self.mode == "driver" else tuple(here.streams.values())
        plan: QueryPlan = placed.plan if self.mode == "driver" else here.plan
        return OtherMode(
            of="",
            mode=other,
            refused=_refused(placed, here),
            description=self._description(placed, here, streams),
            plan=placed.to_json() if self.mode == "driver" else written_plan(here.plan),
            sources=tuple(source.to_json() for source in plan.sources),
            pairs=pairs,
        )

    def _in_one_order(self, placed: PlacedQuery, here: DriverQuery) -> tuple[PlacedQuery, DriverQuery]:
        """Return both forms with the sources in the order of this mode, by which Spark's own files number them."""
        if self.mode == "driver":
            return placed.in_order(list(here.streams)), here
        return placed, here.in_order([stream.name for stream in placed.streams])

    def _description(self, placed: PlacedQuery, here: DriverQuery, streams: tuple[SourceStream, ...]) -> Mapping[str, Any]:
        kind = {SESSION: "connect"} if is_connect(placed.session) else {}
        if self.mode == "driver":
            return with_functions({**placed.description(), **kind}, None, placed.functions, self.options.udf_version)
        kept = {"keeps_view": False, "keeps_inputs": self.options.retain_input_log, **kind}
        functions = tuple(dict.fromkeys(one for stream in streams for one in stream.functions))
        beside = with_functions({"inputs": [stream.described for stream in streams]}, None, functions, self.options.udf_version)
        return {**described_plan(here.plan), **kept, **beside}


def has_other_mode(location: str, given: Mapping[str, Any] | None = None) -> bool:
    """Return whether a checkpoint holds what its query would be in the other mode."""
    description = stored_description(location)
    if description is not None and given and differences({one: description.get(one) for one in given}, _as_json(given)):
        return False
    written = None if description is None else read_other_mode(checkpoint_folder(location))
    if description is None or written is None:
        return False
    return written.of == description_digest(description)


def _as_json(given: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(given))


def write_draft(location: str, draft: OtherMode) -> None:
    """Write a draft down for the description that a checkpoint has; nothing where it has none."""
    stored = stored_description(location)
    if stored is None:
        return
    given = draft.description
    resolved = resolve_baselines(given, stored, is_loaded=True, is_draft=True) if given else given
    write_other_mode(checkpoint_folder(location), replace(draft, of=description_digest(stored), description=resolved))


def _refused(placed: PlacedQuery, here: DriverQuery) -> str | None:
    """Return why the state of a query cannot be moved, as far as its plans show."""
    if len(here.plan.views) > 1:
        return SEVERAL_VIEWS
    read_there = [stream.name for stream in placed.streams]
    if read_there != list(here.streams):
        return f"{READS_OTHERWISE}executors read {read_there}, the driver {list(here.streams)}"
    if any(node.stage.waits_for_time for plan in (placed.plan, here.plan) for node in plan.nodes):
        return WAITS_FOR_TIME
    return None
