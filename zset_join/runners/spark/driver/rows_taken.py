"""Rows that Spark collected, as a pipeline takes them: changes, and what is known of rows that cannot be read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.shown_values import shown_names, shown_value
from zset_join.runners.common.rejected import Rejected
from zset_join.runners.local.taking import SCHEMA as DEAD_LETTERS
from zset_join.runners.local.taking import PartlyRead
from zset_join.runners.spark.driver.choosing import refuse_without_memory
from zset_join.runners.spark.driver.driver_query import CollectedLayout
from zset_join.runners.spark.driver.record_decoder import SourceRows
from zset_join.runners.spark.planning.source_stream import SourceStream
from zset_join.runners.spark.worker.quarantine import refusal, undecodable_reasons
from zset_join.tools.dead_letters import record_in
from zset_join.zset import ZSet

__all__ = ["batch_taken", "rows_taken", "together"]

_UNREAD = pa.schema([at for at in DEAD_LETTERS if at.name not in {"epoch", "source", "weight"}])
"""What is known of a row that cannot be read."""


def rows_taken(name: str, rows: SourceRows, key: Sequence[str], epoch: int, *, on_bad_input: str) -> ZSet | PartlyRead:
    if not len(rows.rejected):
        return rows.delta
    rejected = Rejected()
    rejected.add(rows.rejected, *undecodable_reasons(rows.raw))
    if on_bad_input == "error":
        raise refusal(name, tuple(key), rejected, Tick(epoch))
    return PartlyRead(rows.delta, _letters(rejected))


def batch_taken(
    stream: SourceStream,
    tables: Iterable[tuple[pa.Table, CollectedLayout]],
    number: int,
    *,
    on_bad_input: str,
) -> ZSet | PartlyRead | None:
    """Return the rows of a batch of one stream; None where it has none."""
    parts: list[ZSet | PartlyRead] = []
    size = 0
    for table, layout in tables:
        size += table.nbytes
        refuse_without_memory(size, number)
        parts += [
            rows_taken(stream.name, rows, stream.keys, number, on_bad_input=on_bad_input)
            for rows in layout.parted(table).values()
        ]
    return together(parts) if parts else None


def together(given: list[ZSet | PartlyRead]) -> ZSet | PartlyRead:
    """Return the rows of a source, in the order in which they were collected; the list is emptied."""
    if len(given) == 1:
        return given[0]
    deltas = [one.rows if isinstance(one, PartlyRead) else one for one in given]
    unread = [one.unread for one in given if isinstance(one, PartlyRead)]
    given.clear()
    rows = ZSet.concat_freeing(deltas, schema=deltas[0].schema)
    return PartlyRead(rows, pa.concat_tables(unread)) if unread else rows


def _letters(rejected: Rejected) -> pa.Table:
    """Return rows that cannot be read as `Undecodable` has them: records as they came, other rows as JSON."""
    lines: list[dict[str, Any]] = []
    for piece in rejected.rows:
        names = shown_names(piece.rows.schema.names)
        for at in range(len(piece)):
            code, reason = rejected.codes[len(lines)], rejected.reasons[len(lines)]
            row = {name: shown_value(piece.rows.column(name), at) for name in names}
            reported = record_in(reason) or {"row": json.dumps(row, default=str, ensure_ascii=False)}
            lines.append({"code": code, "reason": reason, **reported})
    return pa.Table.from_pylist(lines, schema=_UNREAD)
