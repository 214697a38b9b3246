"""Record batches of few rows, made from one buffer by one call: as a message of Arrow's IPC format.

Arrow's Python library takes some microseconds for every array that is made of buffers, and again for the batch. A message holds
all of them, so its cost is that of one call. A message of a schema is always the same but for numbers (rows; NULLs of every
column; position and length of every buffer), so it is made once, and the numbers are written in.

The law: the batch of a message is that of its arrays (`pa.RecordBatch.from_arrays`), with the same schema.

Source: https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc, and for the place
of the numbers https://flatbuffers.dev/internals/ (all are words of 64 bits, aligned).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["BatchMessage"]

_PREFIX = 8  # a continuation marker, and how many bytes of metadata follow
_ALIGNED = 64
_HEADER, _BODY_BYTES = 2, 3  # fields of a message
_ROWS, _NODES, _BUFFERS = 0, 1, 2  # fields of a record batch


class BatchMessage:
    """Message of the record batches of a schema."""

    def __init__(self, schema: pa.Schema) -> None:
        one = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
        text = one.serialize().to_pybytes()
        end = _PREFIX + int.from_bytes(text[4:8], "little")
        self.head_bytes = -(-end // _ALIGNED) * _ALIGNED
        head = bytearray(text[:end] + bytes(self.head_bytes - end))
        head[4:8] = (self.head_bytes - _PREFIX).to_bytes(4, "little")
        self.words: npt.NDArray[np.int64] = np.frombuffer(head, np.int64)
        self.address = int(self.words.ctypes.data)
        message = _PREFIX + _word32(head, _PREFIX)
        batch = _reference(head, _field(head, message, _HEADER))
        nodes, buffers = (_reference(head, _field(head, batch, field)) for field in (_NODES, _BUFFERS))
        self._body_at = _field(head, message, _BODY_BYTES) // 8
        self._rows_at = _field(head, batch, _ROWS) // 8
        self._nodes = self._vector(nodes, _word32(head, nodes))
        self.buffers = self._vector(buffers, _word32(head, buffers))

    def _vector(self, at: int, count: int) -> npt.NDArray[np.int64]:
        """Return the pairs of numbers of a vector."""
        begin = (at + 4) // 8
        return self.words[begin : begin + 2 * count]

    def write(self, rows: int, nulls: Sequence[int], body_bytes: int) -> None:
        """Write the numbers of a batch into the message, but for its buffers."""
        words = self.words
        words[self._rows_at] = rows
        words[self._body_at] = body_bytes
        self._nodes[::2] = rows
        self._nodes[1::2] = nulls


def _word32(head: bytearray, at: int) -> int:
    return int.from_bytes(head[at : at + 4], "little")


def _reference(head: bytearray, at: int) -> int:
    """Return where a reference points to."""
    return at + _word32(head, at)


def _field(head: bytearray, table: int, number: int) -> int:
    """Return the place of a field of a table."""
    description = table - int.from_bytes(head[table : table + 4], "little", signed=True)
    at = description + 4 + 2 * number
    return table + int.from_bytes(head[at : at + 2], "little")
