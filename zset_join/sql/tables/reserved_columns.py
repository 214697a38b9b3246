"""Names of columns that the library keeps for itself beside the rows of a table."""

from __future__ import annotations

import re

from zset_join.core.errors import PlanError
from zset_join.sql.tables.catalog import Table

__all__ = ["refuse_our_columns"]

_OURS = re.compile(
    r"_stored_weight|_unread_reason|_file_order_\d+|__(time|value|place|corrupt|(value_|text|of_)\d+)", re.IGNORECASE
)


def refuse_our_columns(table: Table) -> None:
    """Refuse columns of a user that are named as those that hold how a row was read, or its number of copies."""
    columns = [name for name in table.schema.names if _OURS.fullmatch(name)]
    if columns:
        raise PlanError(
            f'the table "{table.name}" has columns {columns}, names that the library keeps for itself beside the rows of a '
            "table; rename them.",
            code="RESERVED_COLUMN",
            name=table.name,
            columns=columns,
        )
