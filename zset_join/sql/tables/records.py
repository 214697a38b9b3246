"""How the records of a table are read: their format, their metadata, where a topic begins, and what cannot be read."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from zset_join.changelog.formats import RecordOptions
from zset_join.core.errors import SqlError
from zset_join.sql.tables.catalog import Table
from zset_join.sql.tables.connectors import encodings_of, holds_records, metadata_of
from zset_join.sql.tables.settings import stage_options

__all__ = ["has_records", "puts_aside", "record_options", "start_of", "texts_of"]


def has_records(table: Table) -> bool:
    return table.word != "SINK" and holds_records(table.options)


def puts_aside(settings: Mapping[str, str]) -> bool:
    """Return whether unreadable rows become dead letters."""
    return stage_options(settings).on_bad_input == "quarantine"


def record_options(table: Table) -> RecordOptions:
    """Return how records of changes are read: which columns hold their metadata."""
    known = metadata_of(table.options)
    metadata = {known[one.metadata]: one.name for one in table.columns if one.metadata is not None}
    return RecordOptions(metadata=metadata, **encodings_of(table.options))


def texts_of(records: pa.Table) -> pa.Table:
    """Return records as the decoder of a query takes them."""
    return pa.table(
        {
            # As bytes: a record that is no UTF-8 is bad input of its own.
            name: records.column(name)
            for name in ("key", "value", "topic", "partition", "offset")
        }
    )


def start_of(table: Table, offered: tuple[str, ...]) -> str:
    """Return where a topic is read from: `earliest`, or `latest`."""
    given = table.options.get("scan.startup.mode", "earliest")
    mode = given.removesuffix("-offset")
    if mode not in offered:
        raise SqlError(
            f"\"{table.name}\": scan.startup.mode='{given}' is not supported; "
            f"{' and '.join(f'{one}-offset' for one in offered)} {'is' if len(offered) == 1 else 'are'}.",
            code="NOT_OFFERED",
            name=table.name,
        )
    return mode
