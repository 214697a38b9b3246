"""Rows put aside: each with the reason, in a Parquet table with one directory per epoch.

    <deadLetterPath>/epoch=12/part-...parquet      stream, weight, code, reason, and one struct per stream with the row

`spark.read.parquet(path).where("stream = 'orders'").select("orders.*")` gives the rows as they came.

The law: rows in = rows applied + rows here. A task writes under a name that readers pass over; the driver renames it once
the epoch is committed, and again when the epoch is replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from zset_join.checkpoint.files import NewFile, attempt_name, sync_directory
from zset_join.checkpoint.record import PartEntry
from zset_join.errors import BadInputError
from zset_join.tick import Tick
from zset_join.zset import ZSet

__all__ = ["Rejected", "refusal", "reveal", "write_quarantine"]

_SHOWN_VALUES = 5


@dataclass(slots=True)
class Rejected:
    """Collect rejected rows of one side.

    Args:
        rows: the rows, one Z-set per piece.
        codes: one code per row.
        reasons: one reason per row.
    """

    rows: list[ZSet] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def add(self, rows: ZSet, codes: Sequence[str], reasons: Sequence[str]) -> None:
        """Put rows aside."""
        if len(rows):
            self.rows.append(rows)
            self.codes += codes
            self.reasons += reasons

    def __len__(self) -> int:
        return len(self.codes)


def undecodable_reasons(raw: Sequence[str | None]) -> tuple[list[str], list[str]]:
    """Return code and reason of rows whose operation could not be read."""
    codes = ["UNKNOWN_OP" if value is not None else "NULL_OP" for value in raw]
    reasons = [
        f"the operation {value!r} is none of +I -U +U -D, insert, update and delete"
        if value is not None
        else "the operation or weight is NULL"
        for value in raw
    ]
    return codes, reasons


def refusal(name: str, key: Sequence[str], rejected: Rejected, tick: Tick) -> BadInputError:
    """Return the error for the first rejected row of a side."""
    first = rejected.rows[0].rows
    shown = [column for column in key if column in first.schema.names] or first.schema.names[:_SHOWN_VALUES]
    values = {column: first.column(column)[0].as_py() for column in shown}
    return BadInputError(
        f'relation "{name}", key {values}, epoch {tick.epoch}: {rejected.reasons[0]} ({len(rejected)} such rows in this '
        'bucket). Mend the source, or set the option onBadInput to "quarantine".',
        code=rejected.codes[0],
        relation=name,
        key=repr(values),
        epoch=tick.epoch,
        rows=len(rejected),
    )


def write_quarantine(
    directory: str,
    tick: Tick,
    bucket: int,
    names: Sequence[str],
    schemas: Sequence[pa.Schema],
    sides: Sequence[Rejected],
) -> list[PartEntry]:
    """Write the rejected rows of one bucket; nothing when there are none.

    Args:
        directory: `deadLetterPath`.
        tick: the epoch.
        bucket: the bucket.
        names: name of each stream.
        schemas: schema of each stream.
        sides: what was rejected, per stream.
    """
    pieces = [_table(number, names, schemas, rejected) for number, rejected in enumerate(sides) if len(rejected)]
    if not pieces:
        return []
    table = pa.concat_tables(pieces)
    root = Path(directory)
    with NewFile(root, f"epoch={tick.epoch}/_{attempt_name(tick.epoch, '.parquet')}") as file:
        pq.write_table(table, pa.PythonFile(file, mode="w"), compression="zstd")
    made = file.entry(table.num_rows)
    return [PartEntry(bucket, made, int(np.count_nonzero(table.column("weight").to_numpy() < 0)), "quarantine")]


def reveal(directory: str, parts: Sequence[PartEntry]) -> None:
    """Give the files of a committed epoch the names that readers look for; done already is no error."""
    for part in parts:
        hidden = Path(directory) / part.file.name
        if hidden.exists():
            hidden.rename(hidden.with_name(f"part-{part.bucket:05d}-{hidden.name.removeprefix('_')}"))
            sync_directory(hidden.parent)


def _table(number: int, names: Sequence[str], schemas: Sequence[pa.Schema], rejected: Rejected) -> pa.Table:
    rows = pa.Table.from_batches([piece.rows for piece in rejected.rows], schema=schemas[number])
    weights = np.concatenate([piece.weights for piece in rejected.rows])
    columns = {
        "stream": pa.array([names[number]] * len(rejected)),
        "weight": pa.array(weights),
        "code": pa.array(rejected.codes),
        "reason": pa.array(rejected.reasons),
    }
    for position, (name, schema) in enumerate(zip(names, schemas, strict=True)):
        struct = pa.struct(list(schema))
        if position == number:
            arrays = [column.combine_chunks() for column in rows.columns]
            columns[name] = pc.make_struct(*arrays, field_names=schema.names).cast(struct)
        else:
            columns[name] = pa.nulls(len(rejected), struct)
    return pa.table(columns)
