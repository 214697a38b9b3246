"""One task's share of a Delta changelog, written without the package `deltalake`.

The law: a part is one file under a name nobody else uses, on the disk when it is reported; it belongs to the table once the
driver has committed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from zset_join.changelog import ChangelogForm, encoded_schema, format_named
from zset_join.core.errors import PlanError
from zset_join.sinks.changelog_lines import ChangelogLines
from zset_join.sinks.delta_files import DataFile, delta_schema, write_data_files
from zset_join.storage.folder import Folder, open_folder

__all__ = ["EPOCH_COLUMN", "DeltaPart", "delta_line_schema", "write_delta_lines", "write_delta_part"]

EPOCH_COLUMN = "_epoch"
_ONE_FILE = 1 << 62


@dataclass(frozen=True, slots=True)
class DeltaPart:
    """The file of a part."""

    file: DataFile
    retractions: int


def delta_line_schema(described: str, rows: pa.Schema, form: ChangelogForm) -> pa.Schema:
    """Return the columns of a Delta changelog: those of the rows, of the form, and `_epoch`."""
    if EPOCH_COLUMN in rows.names:
        raise PlanError(
            f'{described} adds the column "{EPOCH_COLUMN}", and the rows have one of that name; rename it.',
            code="DUPLICATE_COLUMN",
            columns=[EPOCH_COLUMN],
        )
    lines = encoded_schema(rows, format_named(form))
    return delta_schema(described, pa.schema([*lines, pa.field(EPOCH_COLUMN, pa.int64())]))


def write_delta_part(location: str, lines: ChangelogLines, *, part: int) -> DeltaPart | None:
    """Write one task's share of an epoch; nothing is visible before it is committed."""
    folder = open_folder(location, option="path of the Delta table")
    files = write_delta_lines(folder, lines, part=part, target_bytes=_ONE_FILE)
    return DeltaPart(files[0], lines.retractions) if files else None


def write_delta_lines(folder: Folder, lines: ChangelogLines, *, part: int, target_bytes: int) -> list[DataFile]:
    """Write lines to new files of a table."""
    schema = delta_line_schema(lines.described, lines.of, lines.form)
    prefix = f"part-{lines.epoch:08d}-{part:05d}"
    return write_data_files(folder, prefix, schema, _with_epoch(lines), target_bytes=target_bytes)


def _with_epoch(lines: ChangelogLines) -> Iterator[pa.RecordBatch]:
    for batch in lines:
        yield batch.append_column(EPOCH_COLUMN, pa.array(np.full(batch.num_rows, lines.epoch, np.int64)))
