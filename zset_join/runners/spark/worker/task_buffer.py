"""Buffer for the receipts of a task and the rows of its later stages, across Spark's expressions.

Where expressions come after a stage, a Spark task consists of two Python functions with Spark's own operators between them. A
receipt among their rows would have to survive every filter. So the first function leaves its receipts in a file of the host,
and the second, in the same task, takes them once it has been given all rows. Rows that a fused stage behind the expressions
needs wait in a second file.

The law: `take` returns what `leave` was given in the same attempt of the same task, or raises, and Spark tries the task again.

Limits: the death of a worker between the two functions leaves the files behind.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from zset_join.checkpoint.local_state import default_local_state_dir
from zset_join.storage import local

__all__ = ["TaskBuffer"]

_DIRECTORY = "task_buffer"
_TRIES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBuffer:
    """Pass receipts from the first function of a task to the second."""

    local_state_dir: str | None
    query_id: str
    name: str

    def leave(self, lines: Sequence[str]) -> None:
        self._write(self._path(), json.dumps(list(lines)).encode())

    def _write(self, path: Path, data: bytes | pa.Buffer) -> None:
        for tries_left in reversed(range(_TRIES)):
            local.make_directories(path.parent, durable=False)
            try:
                local.write_atomic(path, data, durable=False)
                return
            except FileNotFoundError:  # another task has just taken the last file, and the directory
                if not tries_left:
                    raise

    def take(self) -> list[str]:
        lines: list[str] = json.loads(self._taken(self._path()))
        return lines

    def _taken(self, path: Path) -> bytes:
        data = local.read_bytes(path)
        if data is None:
            raise RuntimeError(f"{path} is missing: what this task left for itself was removed while it ran")
        local.remove_file(path)
        with contextlib.suppress(OSError):  # not empty: other tasks are running
            local.remove_directory(path.parent)
        return data

    def leave_rows(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Write rows down; before the receipts are left."""
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, batches[0].schema if batches else pa.schema([])) as writer:
            for batch in batches:
                writer.write_batch(batch)
        self._write(self._path(".arrows"), stream.getvalue())

    def take_rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, and remove them; before the receipts are taken."""
        yield from pa.ipc.open_stream(pa.py_buffer(self._taken(self._path(".arrows"))))

    def _path(self, suffix: str = ".json") -> Path:
        context = TaskContext.get()
        if context is None:
            raise RuntimeError("this function runs inside a Spark task")
        base = default_local_state_dir() if self.local_state_dir is None else Path(self.local_state_dir)
        return base / self.query_id / _DIRECTORY / f"{self.name}-{context.taskAttemptId()}{suffix}"
