"""Rows set aside: each with the reason, in a Parquet table with one directory per epoch.

    <deadLetterPath>/epoch=12/part-...parquet      stream, weight, code, reason, and one struct per stream with the row

`spark.read.parquet(path).where("stream = 'orders'").select("orders.*")` gives the rows as they came.

The law: rows in = rows applied + rows here. A task writes under a name that readers pass over; the driver renames it once
the epoch is committed, and again when the epoch is replayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from zset_join.checkpoint.files import CheckpointFiles, attempt_name
from zset_join.checkpoint.record import PartEntry
from zset_join.core.epochs import Tick
from zset_join.core.errors import BadInputError
from zset_join.core.shown_values import shown_value
from zset_join.runners.common.rejected import Rejected
from zset_join.storage.folder import open_folder

__all__ = ["LETTERS", "DeadLetters", "forget", "publish_dead_letters", "refusal"]

LETTERS = "quarantine"
"""The form of a part that holds dead letters."""

_SHOWN_VALUES = 5
_REASONS = {
    "NULL_AFTER_BASELINE": "the condition after_baseline is NULL, so it is undecided whether the baseline has the row",
    "NULL_OP": "the operation is NULL",
    "TIME_JUMP": "the event time is further ahead of the watermark of its stream than max_watermark_jump allows: {}",
    "TRUNCATED": "the table was truncated, which a query in Spark does not carry out: {}",
    "UNAVAILABLE_VALUE": (
        "the database did not send a value that was not touched; let it send whole rows (REPLICA IDENTITY FULL): {}"
    ),
    "FOREIGN_TABLE": "the record is of another table, or does not name its table; name them with RecordOptions(table=...): {}",
    "OLD_ROW_MISSING": "an update of a table without keys has no old row (REPLICA IDENTITY FULL sends it): {}",
    "UNDECODABLE_RECORD": "the record cannot be read: {}",
    "UNKNOWN_ENCODING": (
        "a value may mean several things, and neither a schema in the record nor RecordOptions(time_unit=, decimals=, binary=) "
        "names it: {}"
    ),
    "UNDECODABLE_VALUE": "a value cannot be read as the type of its column: {}",
    "NO_FILE": "a file has all columns of its table, under their names: {}",
    "NOT_NULL": "a column that is NOT NULL has no value: {}",
    "NULL_WEIGHT": "the weight is NULL",
    "UNDECODABLE_OP": "the operation {!r} is none of +I -U +U -D, insert, update and delete",
}


def undecodable_reasons(raw: Sequence[str | None]) -> tuple[list[str], list[str]]:
    """Return code and reason of rows whose operation could not be read, in the words of `zset_join.changelog`."""
    parted = [(reason or "").partition(":") for reason in raw]
    return [code for code, _, _ in parted], [_REASONS[code].format(text) for code, _, text in parted]


def refusal(name: str, key: Sequence[str], rejected: Rejected, tick: Tick) -> BadInputError:
    """Return the error for the first rejected row of a side."""
    first = rejected.rows[0].rows
    shown = [column for column in key if column in first.schema.names] or first.schema.names[:_SHOWN_VALUES]
    values = {column: shown_value(first.column(column), 0) for column in shown}
    count = "1 such row" if len(rejected) == 1 else f"{len(rejected)} such rows"
    return BadInputError(
        f'relation "{name}", key {values}, epoch {tick.epoch}: {rejected.reasons[0]} ({count} in this '
        'bucket). Correct the source, or set the option onBadInput to "quarantine".',
        code=rejected.codes[0],
        relation=name,
        key=repr(values),
        epoch=tick.epoch,
        rows=len(rejected),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """Write rejected rows; sent to the workers."""

    directory: str
    query_id: str
    names: tuple[str, ...]
    schemas: tuple[pa.Schema, ...]

    def write(self, tick: Tick, bucket: int, rejected: Mapping[str, Rejected]) -> list[PartEntry]:
        """Write the rejected rows of one bucket; nothing when there are none."""
        pieces = [self._table(self.names.index(name), rows) for name, rows in rejected.items() if len(rows)]
        if not pieces:
            return []
        table = pa.concat_tables(pieces)
        files = CheckpointFiles(open_folder(self.directory, option="deadLetterPath"), self.query_id)
        with files.create(f"epoch={tick.epoch}/_{attempt_name(tick.epoch, '.parquet')}") as file:
            pq.write_table(table, pa.PythonFile(file, mode="w"), compression="zstd")
        entry = file.entry(table.num_rows)
        return [PartEntry(bucket, entry, int(np.count_nonzero(table.column("weight").to_numpy() < 0)), LETTERS)]

    def _table(self, number: int, rejected: Rejected) -> pa.Table:
        rows = pa.Table.from_batches([piece.rows for piece in rejected.rows])
        for column in self.schemas[number]:
            if column.name not in rows.column_names:  # behind the stage that fills a stream, where nothing orders it any more
                rows = rows.append_column(column.name, pa.nulls(len(rows), column.type))
        rows = rows.select(self.schemas[number].names)
        weights = np.concatenate([piece.weights for piece in rejected.rows])
        columns = {
            "stream": pa.array([self.names[number]] * len(rejected)),
            "weight": pa.array(weights),
            "code": pa.array(rejected.codes),
            "reason": pa.array(rejected.reasons),
        }
        for position, (name, schema) in enumerate(zip(self.names, self.schemas, strict=True)):
            struct = pa.struct(list(schema))
            if position == number:
                arrays = [column.combine_chunks() for column in rows.columns]
                columns[name] = pc.make_struct(*arrays, field_names=schema.names).cast(struct)
            else:
                columns[name] = pa.nulls(len(rejected), struct)
        return pa.table(columns)


def publish_dead_letters(directory: str, parts: Sequence[PartEntry]) -> None:
    """Give the files of a committed epoch the names that readers look for; done already is no error."""
    folder = open_folder(directory, option="deadLetterPath") if parts else None
    for part in parts:
        if folder is not None and folder.size(part.file.name) is not None:
            place, _, name = part.file.name.rpartition("/")
            folder.move(part.file.name, f"{place}/part-{part.bucket:05d}-{name.removeprefix('_')}")


def forget(directory: str, parts: Sequence[PartEntry]) -> None:
    """Remove the files of an attempt that is not to be trusted."""
    for part in parts:
        open_folder(directory, option="deadLetterPath").remove(part.file.name)
