"""Where the streams of a query enter it, and what the notes of an epoch say of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zset_join.spark.worker.notes import TaskNote

__all__ = ["StreamPlace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlace:
    """Say where a stream enters a query.

    Args:
        name: of the stream.
        stage: the name of the stage that its rows reach first.
        side: which input of it they are.
        behind: names of stages and inputs that they reach later, the same rows as they are.
    """

    name: str
    stage: str
    side: int
    behind: tuple[tuple[str, int], ...] = ()

    def first_notes(self, notes: Sequence[TaskNote]) -> list[TaskNote]:
        """Return the notes of the stage that its rows reach first."""
        return [note for note in notes if note.stage == self.stage]

    def put_aside(self, notes: Sequence[TaskNote]) -> int:
        """Return how many of its rows were put aside, in whatever stage."""
        places = ((self.stage, self.side), *self.behind)
        return sum(note.quarantined_rows[side] for note in notes for stage, side in places if note.stage == stage)
