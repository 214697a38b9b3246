"""The lines of a changelog: the chunks of one epoch's answer, checked, written down in a form, and counted.

The law: lines in = chunks out; a line is called an update only when its other half is among the same chunks. So what is to be
looked at together is given together: all chunks of an epoch, or those of one task.

Memory: one chunk for the form `weight`; for the others, when there is a key to recognise updates by, all chunks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from zset_join.changelog import ChangelogForm, encode, encoded_schema, format_named
from zset_join.sinks.sink import check_chunk
from zset_join.zset import ZSet

__all__ = ["ChangelogLines"]


class ChangelogLines:
    """Iterate over the lines of one epoch, once.

    >>> gone = ZSet.of({"k": [1]}, [-2])
    >>> lines = ChangelogLines("log", gone.schema, "row_kind", (), [gone], epoch=3)
    >>> [line["_row_kind"] for batch in lines for line in batch.to_pylist()], lines.retractions
    (['-D', '-D'], 2)
    """

    def __init__(
        self,
        described: str,
        rows: pa.Schema,
        form: ChangelogForm,
        key: tuple[str, ...],
        chunks: Iterable[ZSet],
        *,
        epoch: int,
        committed_at_us: int | None = None,
    ) -> None:
        self.schema = encoded_schema(rows, format_named(form))
        self.rows = 0
        self.retractions = 0
        self.described = described
        self.of = rows
        self.form = form
        self._key = key
        self._chunks = chunks
        self.epoch = epoch
        self._committed_at_us = time.time_ns() // 1000 if committed_at_us is None else committed_at_us

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for delta in self._together():
            lines = encode(delta, self._key, format_named(self.form), epoch=self.epoch, committed_at_us=self._committed_at_us)
            self.rows += lines.num_rows
            self.retractions += self._retracted(delta)
            yield lines

    def _together(self) -> Iterator[ZSet]:
        """Yield the groups of chunks to examine: each chunk alone, or all when updates are detected."""
        checked = (chunk for chunk in self._chunks if self._fits(chunk))
        if self.form == "weight" or not self._key:
            yield from checked
            return
        whole = ZSet.concat(checked, schema=self.of)
        if len(whole):
            yield whole

    def _fits(self, chunk: ZSet) -> bool:
        check_chunk(self.described, self.epoch, self.of, chunk)
        return len(chunk) > 0

    def _retracted(self, delta: ZSet) -> int:
        negative = delta.weights[delta.weights < 0]
        return len(negative) if self.form == "weight" else -int(negative.sum(dtype=np.int64))
