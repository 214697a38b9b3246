"""Records of changes, decoded into changes of their table, for sessions whose queries read rows of tables: those in memory."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from zset_join.core.shown_values import counted
from zset_join.query.reading import Reading, readings_of
from zset_join.runners.local.dead_letters import PartlyRead
from zset_join.sql.tables.catalog import Table
from zset_join.sql.tables.connectors import form_of
from zset_join.sql.tables.records import puts_aside, record_options
from zset_join.sql.tables.settings import stage_options
from zset_join.sql.tables.table_sources import TableSource
from zset_join.sql_expressions.positions import SqlWarning
from zset_join.zset import ZSet

if TYPE_CHECKING:
    from zset_join.query import View
    from zset_join.runners.local.pipeline import Pipeline

__all__ = ["DecodedRecords", "rows_read"]


def rows_read(table: Table, given: Any) -> Any:
    """Return the rows that could be read, and warn of the rest."""
    if not isinstance(given, PartlyRead):
        return given
    if given.unread.num_rows:
        _warn(table, given.unread)
    return given.rows


def _warn(table: Table, letters: pa.Table) -> None:
    first = letters.slice(0, 1).to_pylist()[0]
    at = f" ({first['topic']}, partition {first['partition']}, offset {first['offset']})"
    place = "" if first["topic"] is None else at
    warnings.warn(
        SqlWarning(
            f'table "{table.name}": {counted(letters.num_rows, "record")} quarantined, the first{place}: {first["reason"]}. A '
            "session with a directory keeps them, for zset-join dead-letters."
        ),
        stacklevel=5,
    )


class DecodedRecords:
    """Turn the records of a source into changes of their table, by a pipeline that keeps the rows updates replace.

    Known limits: it begins with the source, whose position is of no use without the rows that are kept here.
    """

    def __init__(self, records: TableSource, table: Table, settings: Mapping[str, str]) -> None:
        self._records = records
        self._table = table
        self._settings = settings
        self._pipeline: Pipeline | None = None
        self._versions: Reading | None = None

    def open(self, position: Any) -> None:
        self._forget()
        self._records.open(position)

    def poll(self, *, wait_seconds: float) -> tuple[ZSet | None, Any]:
        records, position = self._records.poll(wait_seconds=wait_seconds)
        return None if records is None else self._changes(records), position

    def close(self) -> None:
        self._forget()
        self._records.close()

    def _forget(self) -> None:
        if self._pipeline is not None:
            self._pipeline.close()
        self._pipeline = self._versions = None

    def _changes(self, records: Any) -> ZSet:
        if self._table.is_versioned:
            return self._read_versions(records)
        if self._pipeline is None:
            from zset_join.runners.local.pipeline import Pipeline

            self._pipeline = Pipeline(self._view(), keep_view=False, options=stage_options(self._settings))
        delta = self._pipeline.step({self._table.name: records})
        if self._pipeline.dead_letters.num_rows:
            _warn(self._table, self._pipeline.dead_letters)
        return delta

    def _view(self) -> View:
        from zset_join.query.records import records as record_view

        table = self._table
        given = pa.schema([(one.name, one.type) for one in table.columns if one.is_given and one.metadata is None])
        return record_view(table.name, form_of(table.options), given, keys=table.primary_key, options=record_options(table))

    def _read_versions(self, records: pa.Table) -> ZSet:
        if self._versions is None:
            self._versions = readings_of([one.of_versions() for one in self._view().bindings])[self._table.name]
        if puts_aside(self._settings):
            delta, unread = self._versions.taken(records)
            if unread is not None:
                _warn(self._table, unread.records)
        else:
            delta = self._versions.delta(records)
        names = [column.name for column in self._table.columns if column.is_given]
        return ZSet(delta.rows.select(names), delta.weights)
