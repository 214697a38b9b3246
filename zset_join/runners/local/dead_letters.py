"""Dead letters with their reason: late rows of joins by time, and with `on_bad_input="quarantine"` bad input.

The law: of every source and epoch, rows in = rows applied + rows set aside. A row is reported once, by the first stage that
refuses it. With a directory the rows of an epoch are in a file of their own before the epoch counts; an attempt that is
repeated writes the same file again.

    <directory>/dead-letters/<epoch>.parquet

A row that a stage refused is present as JSON, with its weight; a record that could not be decoded with its bytes, key and
value, and its place in Kafka. `zset-join dead-letters` lists them, see `zset_join.tools.dead_letters`.

Letters that are records can be replayed, exactly once: their places are a position of the epoch that takes them, so that after
a crash between its commit and the marks the next call marks them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from zset_join.core.errors import OptionError
from zset_join.core.shown_values import shown_names, shown_value
from zset_join.runners.common.rejected import Rejected, RejectedRows
from zset_join.sources.unread import Undecodable
from zset_join.storage.folder import open_folder
from zset_join.tools.dead_letters import REPLAYED_POSITION, mark_places, pending_records, places_of, read_letters, records_of

__all__ = ["SCHEMA", "PartlyRead", "dead_letters", "no_dead_letters", "replay_letters", "write_dead_letters"]

SCHEMA = pa.schema(
    [
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("row", pa.string()),
        pa.field("weight", pa.int64(), nullable=False),
        pa.field("code", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)


@dataclass(frozen=True)
class PartlyRead:
    """Decoded and undecodable rows of a reader; `Pipeline.step` processes the former and rejects the latter."""

    rows: Any
    unread: pa.Table  # as the records of `Undecodable`


@functools.cache
def _none() -> pa.Table:
    """Return the table without rows, made once, and not at import: Arrow looks for pandas when it makes one."""
    return SCHEMA.empty_table()


def dead_letters(epoch: int, rejected: Sequence[RejectedRows], undecodable: Sequence[Undecodable] = ()) -> pa.Table:
    """Return the refused rows of an epoch, each as JSON with weight and reason, and the records that could not be read."""
    if not rejected and not undecodable:
        return _none()
    lines: list[dict[str, Any]] = []
    for unread in undecodable:
        lines += [{**record, "epoch": epoch, "source": unread.source, "weight": 0} for record in unread.records.to_pylist()]
    for one in rejected:
        rejected_rows = zip(_shown_rows(one.rejected), one.rejected.codes, one.rejected.reasons, strict=True)
        lines += [
            {"epoch": epoch, "source": one.name, "row": row, "weight": weight, "code": code, "reason": reason}
            for (row, weight), code, reason in rejected_rows
        ]
    return pa.Table.from_pylist(lines, schema=SCHEMA)


def _shown_rows(rejected: Rejected) -> Iterator[tuple[str, int]]:
    for piece in rejected.rows:
        names = shown_names(piece.rows.schema.names)
        for at, weight in enumerate(piece.weights.tolist()):
            row = {name: shown_value(piece.rows.column(name), at) for name in names}
            yield json.dumps(row, default=str, ensure_ascii=False), weight


def write_dead_letters(directory: str | Path, epoch: int, table: pa.Table) -> None:
    """Write the rows of an epoch, in one step; nothing where there are none, in the place of an attempt that did not count."""
    folder, name = open_folder(directory), f"{epoch:020d}.parquet"
    if not table.num_rows:
        folder.remove(name)
        return
    written = pa.BufferOutputStream()
    pq.write_table(table, written)
    folder.put(name, written.getvalue().to_pybytes())


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
