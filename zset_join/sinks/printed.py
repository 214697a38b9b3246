"""Changes as lines of JSON on a stream, for users: the view of a session, or of `PRINT`.

    {"customer": "Ada", "revenue": 30, "_tp_delta": 1}

Limits: what another process printed is not known, so after a crash an epoch may be printed twice, or not at all.
"""

from __future__ import annotations

import json
import sys
from typing import Any, TextIO

from zset_join.core.relation import Relation
from zset_join.sinks.sink import SinkProgress
from zset_join.zset import ZSet

__all__ = ["PrintSink"]


class PrintSink:
    """Print every change as a line of JSON, or nothing."""

    keeps_epochs = False

    def __init__(self, prefix: str = "", *, stream: TextIO | None = None, is_silent: bool = False) -> None:
        self._prefix = f"{prefix}> " if prefix else ""
        self._stream = stream
        self._is_silent = is_silent
        self._last: int | None = None

    def open(self, output: Relation, query_id: str) -> None:  # noqa: ARG002 - as the protocol has it
        self._last = None

    def last_epoch(self) -> int | None:
        return self._last

    def has(self, epoch: int, link: object) -> bool:  # noqa: ARG002 - as the protocol has it
        return self._last is not None and epoch <= self._last

    def write(self, epoch: int, chunks: Any, *, link: object = None) -> Any:  # noqa: ARG002 - as `has`
        rows = 0
        for chunk in chunks:
            rows += len(chunk)
            for row, weight in zip(chunk.rows.to_pylist(), chunk.weights.tolist(), strict=True) if not self._is_silent else ():
                line = json.dumps({**row, "_tp_delta": weight}, default=str, ensure_ascii=False)
                print(f"{self._prefix}{line}", file=self._stream or sys.stdout)
        self._last = epoch
        return SinkProgress(epoch, rows, 0, 0.0)

    def __call__(self, delta: ZSet) -> None:
        """Print the changes of the next epoch; what `session.start` takes as `output`."""
        self.write(0 if self._last is None else self._last + 1, [delta])

    def close(self) -> None:
        pass
