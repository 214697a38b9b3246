"""Change a query that a server of Spark Connect runs: the process that holds its checkpoint does it, between two epochs.

    a question of the client -> the pipeline commits plan and difference, outputs get it -> the process releases the checkpoint
    and takes no batch any more -> the client stops Spark's query and starts the new one

The law: as for a query beside the server (`zset_join.runners.spark.api.changing_query`): one commit record makes the change
true. What is refused before it leaves the query running; what fails behind it carries the fact `changed`. A client that dies
between record and start leaves a query that stops with the next batch (`QUERY_CHANGED`); the new program starts it.

A process that was not given a batch yet holds no checkpoint. The job changes it then; where an output is written by Spark, as
`zset-join evolve` does: the start gives outputs the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from zset_join.core.errors import StateError, ZsetJoinError
from zset_join.runners.local.stopped import evolve_directory
from zset_join.runners.spark.driver.epochs import DriverEpochs, DriverSettings
from zset_join.runners.spark.driver.sent_changes import read_outputs, read_query, written_diff, written_query
from zset_join.runners.spark.epoch.frame_sink import TakesSession

__all__ = ["CHANGES", "HAS_CHANGED", "changed", "changed_beside", "ended_by_change"]

CHANGES = ("evolve", "undo")
HAS_CHANGED = "changed"
"""The fact of an error that arrived behind the commit of a change."""


class Changing(Protocol):
    """What runs the epochs of a query, until a change ends it."""

    @property
    def has_ended(self) -> bool:
        """Return whether a change counts."""
        ...

    def close(self) -> None: ...


@contextmanager
def ended_by_change(epochs: Changing) -> Iterator[None]:
    """Release a checkpoint behind a change of its query that counts; an error that comes then carries that fact."""
    try:
        yield
    except ZsetJoinError as error:
        if epochs.has_ended:
            error.facts = {**error.facts, HAS_CHANGED: True}
        raise
    finally:
        if epochs.has_ended:
            epochs.close()


def changed(about: str, given: Mapping[str, Any], epochs: DriverEpochs) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Change a query and release its checkpoint; return the difference and the new query, serialised."""
    with ended_by_change(epochs):
        if about == "undo":
            diff, query = epochs.undo()
        else:
            query = read_query(given["query"])
            diff = epochs.evolve(query, read_outputs(given["outputs"]), as_now=given["as_now"])
    return written_diff(diff), written_query(query)


def changed_beside(
    about: str, given: Mapping[str, Any], settings: DriverSettings, opened: Callable[[DriverSettings], DriverEpochs]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Change a query whose checkpoint no process holds; return as `changed`."""
    epochs = opened(settings)
    try:
        if not any(isinstance(one.sink, TakesSession) for chosen in settings.sinks.values() for one in chosen):
            return changed(about, given, epochs)
        if given.get("outputs"):
            raise StateError(
                "no batch has arrived since the query started, so no process of the server holds its outputs yet, one of which "
                "Spark writes. Call evolve() with new outputs again once a row has arrived.",
                code="QUESTION_FAILED",
                location=epochs.location,
            )
        query = epochs.opened()._query_before().query if about == "undo" else read_query(given["query"])
    finally:
        epochs.close()
    diff = evolve_directory(settings.options.checkpoint_location, query, as_now=given.get("as_now", False))
    return written_diff(diff), written_query(query)
