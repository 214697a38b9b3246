"""An output as a user chose it: the sink itself where the query is written, how to make it anywhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zset_join.connectors import sink
from zset_join.sinks.sink import Sink

__all__ = ["ChosenSink"]


class ChosenSink:
    """A sink; where it has a connector's name, only name and options travel to another process."""

    def __init__(self, made: Sink | None, connector: str | None = None, options: Mapping[str, Any] | None = None) -> None:
        self._made = made
        self._connector = connector
        self._options = dict(options or {})

    def __reduce__(self) -> tuple[Any, ...]:
        again = self.again()
        return (ChosenSink, (again._made, again._connector, again._options))

    @property
    def sink(self) -> Sink:
        if self._made is None:
            self._made = sink(self._connector or "", **self._options)
        return self._made

    def written(self) -> tuple[str | None, Mapping[str, Any]]:
        """Return the name of the connector, None of a sink of the user's own, and its options."""
        return self._connector, self._options

    def again(self) -> ChosenSink:
        """Return the output for another start: one with a connector's name is made again, one of the user's own stays."""
        return ChosenSink(self._made if self._connector is None else None, self._connector, self._options)
