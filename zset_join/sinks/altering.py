"""Outputs that take more columns while they continue: what a changed query needs of them.

    sink.check_altered(output)       before the change counts: refuses what the output cannot become
    sink.open(output, id, ...)       of a later process: `may_lack_columns` where the change may not have reached the output
    sink.alter(output)               once the change counts: the next epoch that is written adds the columns

The law: the columns come with the epoch of the change, which holds the rows before, with NULL in them, as retractions, and the
new rows: the sum of all epochs stays what the output holds. A process that dies on the way leaves empty columns at most.

Only columns behind those that are present are added. Other types, fewer columns, another order or another key are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import pyarrow as pa

from zset_join.core.added_columns import adds_columns
from zset_join.core.errors import SinkError
from zset_join.core.relation import Relation
from zset_join.sinks.sink import Sink

__all__ = ["AlterableSink", "TableSink", "beside", "check_adds_columns"]


@runtime_checkable
class AlterableSink(Sink, Protocol):
    """A sink whose output takes more columns."""

    def open(self, output: Relation, query_id: str, *, may_lack_columns: bool = False) -> None:
        """Attach the sink to a query, as any sink.

        Args:
            output: what it is given.
            query_id: the query.
            may_lack_columns: the present content may lack the last columns; the next epoch adds them.
        """
        ...

    def check_altered(self, output: Relation) -> None:
        """Refuse columns that the open output cannot be given. Nothing changes.

        Raises:
            SinkError: `EVOLVE_OUTPUT`: they are not those of before with others behind them; or there is no type for one.
        """
        ...

    def alter(self, output: Relation) -> None:
        """Take rows with these columns from now on; the columns are added with the next epoch."""
        ...


@runtime_checkable
class TableSink(Sink, Protocol):
    """A sink whose output has a name, beside which another one can be made."""

    def beside(self, name: str) -> Sink:
        """Return a sink like this one, not opened, of a table of another name in the same place.

        Args:
            name: of the table; of what is a directory, the name of a directory beside it.
        """
        ...


def beside(location: str, name: str) -> str:
    """Return the path or URI of a directory of another name in the same place.

    >>> beside("s3://shop/views/totals", "totals_2")
    's3://shop/views/totals_2'
    """
    return f"{location.rstrip('/').rpartition('/')[0]}/{name}"


def check_adds_columns(
    described: str, before: pa.Schema, after: pa.Schema, key_before: Sequence[str], key_after: Sequence[str]
) -> None:
    """Refuse a change of columns that is not an addition behind them, or of the key."""
    if adds_columns(before, after) and tuple(key_before) == tuple(key_after):
        return
    raise SinkError(
        f"{described} has the columns {_listed(before)} and the key {list(key_before)}; the changed query has {_listed(after)} "
        f"and the key {list(key_after)}. An output that stays is given columns behind those it has, and nothing else. Select "
        "the columns in that order, or give the view a new output with outputs= or new_table=; it is filled at once.",
        code="EVOLVE_OUTPUT",
        output=described,
        before=before.names,
        after=after.names,
    )


def _listed(schema: pa.Schema) -> str:
    return "(" + ", ".join(f"{field.name} {field.type}" for field in schema) + ")"
