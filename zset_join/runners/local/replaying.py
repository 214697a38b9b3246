"""Dead letters that are records go through the decoder again, in one epoch, exactly once.

The law: the places of the letters are a position of the epoch that takes them, so after a crash between the commit and the
marks the next call marks the letters, and never takes them twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zset_join.core.errors import OptionError
from zset_join.tools.dead_letters import REPLAYED_POSITION, mark_places, pending_records, places_of, read_letters, records_of

__all__ = ["no_dead_letters", "replay_letters"]


def replay_letters(
    place: str, positions: Mapping[str, Any], step: Callable[..., Any], *, stream: str | None, code: str | None
) -> int:
    """Take the waiting letters of a checkpoint in one epoch; return how many there were."""
    letters = pending_records(read_letters(place, stream=stream, code=code))
    before = positions.get(REPLAYED_POSITION, [])
    if before:
        mark_places(place, before)
    if not letters.num_rows:
        return 0
    rows = {name: records_of(letters, name) for name in dict.fromkeys(letters["stream"].to_pylist())}
    marks = places_of(letters)
    step(rows, positions={REPLAYED_POSITION: marks})
    mark_places(place, marks)
    return int(letters.num_rows)


def no_dead_letters() -> OptionError:
    return OptionError(
        "replay() takes the dead letters of a directory, and this pipeline is in memory. Its attribute dead_letters has those "
        "of the last epoch; step() takes them again.",
        code="PIPELINE_DIRECTORY",
    )
