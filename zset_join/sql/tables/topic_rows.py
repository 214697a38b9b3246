"""The rows of a topic of Kafka, as a source of a table: plain JSON as rows, records of changes as they are.

Edge cases: a plain JSON record that cannot be read is refused with its offset, or set aside with `on_bad_input = 'quarantine'`;
names a record lacks are NULL, others are passed over. Columns `METADATA FROM 'offset'` and others (`metadata_of`) are filled
from the record.

Known limits: a topic is read from its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from zset_join.connectors.tables import kafka_config
from zset_join.core.errors import BadInputError
from zset_join.runners.local.dead_letters import PartlyRead
from zset_join.sql.tables.catalog import Table
from zset_join.sql.tables.connectors import form_of, metadata_of
from zset_join.sql.tables.records import puts_aside, start_of, texts_of

if TYPE_CHECKING:
    from zset_join.sources.kafka import KafkaSource
    from zset_join.sources.unread import UnreadText

__all__ = ["TopicRows"]

_MOST_ROWS = 100_000


class TopicRows:
    """Give the records of a topic: as rows, or as records where others decode them; a source of a table."""

    def __init__(
        self, table: Table, completed: Callable[[Table, pa.Table], pa.Table], settings: Mapping[str, str] | None = None
    ) -> None:
        start_of(table, ("earliest",))
        self._table = table
        self._completed = completed
        self._form = form_of(table.options)
        self._given = pa.schema([one.field for one in table.columns if one.is_given and one.metadata is None])
        self._source: KafkaSource | None = None
        self._is_lenient = puts_aside(settings or {})

    def open(self, position: Any) -> None:
        self.close()
        self._source = self._opened(position)

    def poll(self, *, wait_seconds: float) -> tuple[pa.Table | PartlyRead | None, Any]:
        records, position = self.poll_records(wait_seconds=wait_seconds)
        if not records.num_rows:
            return None, position
        if self._form != "json":
            return texts_of(records), position
        read = self.read(records)
        if isinstance(read, PartlyRead):
            return PartlyRead(self._completed(self._table, read.rows), read.unread), position
        return self._completed(self._table, read), position

    def poll_records(self, *, wait_seconds: float) -> tuple[pa.Table, Any]:
        """Return the next records as they are, and the position behind them."""
        if self._source is None:
            self._source = self._opened(None)
        return self._source.poll(most_rows=_MOST_ROWS, wait_seconds=wait_seconds)

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
        self._source = None

    def _opened(self, position: Any) -> KafkaSource:
        from zset_join.sources.kafka import KafkaSource

        source = KafkaSource(kafka_config(self._table.options), self._table.options["topic"])
        source.open(position)
        return source

    def read(self, records: pa.Table) -> pa.Table | PartlyRead:
        """Return rows of plain JSON, with the metadata of their records; and beside them what cannot be read, if it may be."""
        from zset_join.sources.json_values import part_json_rows

        kept = records.filter(pc.is_valid(records.column("value")))
        rows, bad = part_json_rows(kept.column("value").to_pylist(), self._given)
        if not bad:
            return self._with_metadata(rows, kept)
        if not self._is_lenient:
            self._refuse(bad[0], kept)
        numbers = pa.array([one.number for one in bad], pa.int64())
        is_bad = pc.is_in(pa.array(range(kept.num_rows), pa.int64()), numbers)
        unread = kept.select(["key", "value", "topic", "partition", "offset"]).take(numbers)
        unread = unread.append_column("code", pa.array([one.code for one in bad], pa.string()))
        unread = unread.append_column("reason", pa.array([one.reason for one in bad], pa.string()))
        return PartlyRead(self._with_metadata(rows, kept.filter(pc.invert(is_bad))), unread)

    def _with_metadata(self, rows: pa.Table, records: pa.Table) -> pa.Table:
        columns = {name: rows.column(name) for name in self._given.names if name in rows.column_names}
        for column in self._table.columns:
            if column.metadata is not None:
                columns[column.name] = records.column(metadata_of(self._table.options)[column.metadata]).cast(column.type)
        return pa.table(columns)

    def _refuse(self, first: UnreadText, records: pa.Table) -> None:
        raise BadInputError(
            f'table "{self._table.name}": the record at offset {records.column("offset")[first.number]} of topic '
            f"{records.column('topic')[first.number]} is not a row of it, {first.shown} Correct the producer of the "
            f"topic, or quarantine unreadable records: SET on_bad_input = 'quarantine'.",
            code=first.code,
            relation=self._table.name,
            column=first.column,
        )
