"""Which epochs the views in a DuckDB file hold, for who looks at them and does not write."""

from __future__ import annotations

from zset_join.core.errors import SinkError
from zset_join.core.extras import needed_for
from zset_join.sinks.duckdb_file import DuckDBFile
from zset_join.sinks.duckdb_sql import FIND_STORED
from zset_join.sinks.stored_epochs import StoredEpochs, stored_views

with needed_for("a DuckDB output"):
    import duckdb

__all__ = ["stored_epochs"]


def stored_epochs(path: str, table: str | None = None, *, patience_seconds: float = 10.0) -> list[StoredEpochs]:
    """Return which epochs the views in a file hold, all in one snapshot; it is opened for reading, and only for that long."""
    file = DuckDBFile(path, hold_seconds=0, patience_seconds=patience_seconds, read_only=True)
    try:
        with file.held() as connection:
            found = connection.execute(FIND_STORED)
            names = [column[0] for column in found.description or ()]
            rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    except duckdb.Error as error:
        raise SinkError(
            f'the views in "{path}" cannot be read: {str(error).splitlines()[0]}. Give a DuckDB file that a query writes.',
            code="SINK_IO",
            path=path,
        ) from error
    return stored_views(rows, table)
