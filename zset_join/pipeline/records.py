"""Sources that are fed records of JSON: what Debezium, Canal or Maxwell write, or keys with nullable values.

A table with a primary key is a stage `latest` behind the source: values that were not sent are taken from the row that is
there, and a truncate empties the table. One without a key is a changelog of whole rows.

A record that cannot be read makes the epoch fail, or goes to a function of the user's, with its bytes, place and reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zset_join.changelog import AppendFormat
from zset_join.changelog.formats import METADATA, RecordOptions, record_format
from zset_join.errors import BadInputError, PlanError
from zset_join.operators.partial_upserts import TRUNCATE
from zset_join.pipeline.event_times import with_watermark
from zset_join.pipeline.reading import Reading
from zset_join.pipeline.view import View
from zset_join.plan.query_plan import PlanSource
from zset_join.plan.requests import LatestRequest
from zset_join.plan.tree import Node, Operate, Read
from zset_join.relation import Relation
from zset_join.sources.json_records import JsonRecordReader
from zset_join.zset import ZSet, single_batch

__all__ = ["RecordReading", "records"]

CONTROL = "__control"
_GIVEN = pa.schema(
    {"key": pa.string(), "value": pa.string(), "topic": pa.string(), "partition": pa.int32(), "offset": pa.int64()}
)
DEAD_LETTER_SCHEMA = pa.schema([*_GIVEN, pa.field("code", pa.string())])


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordReading(Reading):
    """Say how records become changes.

    Args:
        reader: reads them.
        dead_letters: takes the records that cannot be read, with their `code`; None: they make the epoch fail.
    """

    reader: JsonRecordReader
    dead_letters: Callable[[pa.Table], None] | None = None

    def delta(self, rows: Any) -> ZSet:
        """Return the changes that records mean.

        Args:
            rows: a table, batch, dict or list of dicts with `value`, and `key`, `topic`, `partition`, `offset` where they are
                known; or a ZSet of the table itself.

        Raises:
            PlanError: no column `value`.
            BadInputError: a record that cannot be read, where nobody takes it.
        """
        if isinstance(rows, ZSet):
            return rows
        table = self._records(rows)
        read = self.reader.read(table)
        bad = pc.is_valid(read.rejects)
        if pc.any(bad).as_py():
            self._put_aside(table, read.records, read.rejects)
        good = np.flatnonzero(~np.asarray(bad))
        batch = read.rows.take(pa.array(good))
        changes = read.changes.take(pa.array(good))
        is_delete = np.asarray(pc.equal(changes, "delete"))
        columns = list(batch.columns)
        relation = self.source.relation
        if CONTROL in relation.schema.names:
            truncates = np.asarray(pc.equal(changes, "truncate"))
            columns.append(pa.array(np.where(truncates, TRUNCATE, read.unavailable[good])))
        else:
            self._refuse_truncate(changes)
        weights = np.where(is_delete, np.int64(-1), np.int64(1))
        return ZSet(pa.RecordBatch.from_arrays(columns, schema=relation.schema), weights)

    def _records(self, rows: Any) -> pa.Table:
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        if not isinstance(rows, pa.Table):
            lines = rows if isinstance(rows, Mapping) else pa.RecordBatch.from_pylist(list(rows), schema=_GIVEN)
            rows = pa.table(dict(lines)) if isinstance(lines, Mapping) else pa.Table.from_batches([lines])
        if "value" not in rows.column_names:
            raise PlanError(
                f'source "{self.source.name}" is fed columns {rows.column_names}; a record has `value`, and may have `key`, '
                "`topic`, `partition` and `offset`.",
                code="UNKNOWN_COLUMN",
                relation=self.source.name,
            )
        for field in _GIVEN:
            if field.name not in rows.column_names:
                rows = rows.append_column(field.name, pa.nulls(rows.num_rows, field.type))
        return rows

    def _put_aside(self, table: pa.Table, origins: np.ndarray, rejects: pa.Array) -> None:
        lines = np.flatnonzero(np.asarray(pc.is_valid(rejects)))
        codes = rejects.take(pa.array(lines))
        records = table.take(pa.array(origins[lines])).select(_GIVEN.names)
        if self.dead_letters is not None:
            self.dead_letters(records.append_column("code", codes))
            return
        first = single_batch(records.slice(0, 1)).to_pylist()[0]
        shown = str(first["value"])[:200]
        raise BadInputError(
            f'source "{self.source.name}": record {int(origins[lines[0]])} (topic {first["topic"]}, partition '
            f"{first['partition']}, offset {first['offset']}) cannot be read, {codes[0].as_py()}: {shown} ({len(lines)} such "
            "records; nothing was applied). Mend the source, or give dead_letters=..., a function that takes them.",
            code=str(codes[0].as_py()).partition(" ")[0],
            relation=self.source.name,
            rejected_rows=len(lines),
        )

    def _refuse_truncate(self, changes: pa.Array) -> None:
        if pc.any(pc.equal(changes, "truncate")).as_py():
            raise BadInputError(
                f'source "{self.source.name}" was truncated, and a table without keys cannot tell which rows that takes away. '
                "Name its keys, or start anew.",
                code="TRUNCATED_WITHOUT_KEYS",
                relation=self.source.name,
            )


def records(
    name: str,
    format: str,  # noqa: A002 - the name PySpark users type
    schema: pa.Schema | Mapping[str, Any],
    *,
    keys: Sequence[str] | str = (),
    sequence_by: Sequence[str] | str = (),
    except_column_list: Sequence[str] = (),
    watermark: tuple[str, Any] | None = None,
    options: RecordOptions | None = None,
    dead_letters: Callable[[pa.Table], None] | None = None,
) -> View:
    """Describe a source that is fed records of JSON.

    Args:
        name: what messages and `Pipeline.step` call it.
        format: debezium-json, canal-json, maxwell-json or upsert-json.
        schema: the columns of the table.
        keys: its primary key; none for a table without one, whose old rows then come with every change.
        sequence_by: columns of the table or of the metadata that order the changes of a key; default: as they come, which is
            the order of a Kafka partition.
        except_column_list: columns, metadata among them, that only order changes and are not shown.
        watermark: as for `changes`.
        options: decimals, the unit of timestamps, and the metadata that become columns.
        dead_letters: is given the records that cannot be read, with `code`; default: they make the epoch fail.

    Raises:
        OptionError: no such format.
        PlanError: columns that do not exist or cannot be read from JSON.

    >>> orders = records("orders", "debezium-json", {"id": pa.int64(), "total": pa.int64()}, keys="id")
    >>> orders.columns
    ['id', 'total']
    """
    record_format(format)
    table = schema if isinstance(schema, pa.Schema) else pa.schema(list(dict(schema).items()))
    key = (keys,) if isinstance(keys, str) else tuple(keys)
    sequence = (sequence_by,) if isinstance(sequence_by, str) else tuple(sequence_by)
    given = RecordOptions() if options is None else options
    reader = JsonRecordReader(format, table, key, given)
    told = [pa.field(column, METADATA[what]) for what, column in given.metadata.items()]
    nullable = [field.with_nullable(True) for field in [*table, *told]]
    fields = [*nullable, pa.field(CONTROL, pa.int64())] if key else nullable
    hidden = (*except_column_list, CONTROL) if key else tuple(except_column_list)
    relation = Relation(
        name=name, schema=pa.schema(fields), primary_key=key, sequence_by=sequence, mode="upsert" if key else "changelog"
    )
    source = PlanSource(relation=relation if watermark is None else with_watermark(relation, watermark), hidden=hidden)
    reading = RecordReading(
        source=source, given=_GIVEN, changelog_format=AppendFormat(), reader=reader, dead_letters=dead_letters
    )
    node: Node = Read(source)
    if key:
        node = Operate(LatestRequest(control=CONTROL), (node,))
    return View(node=node, name=name, readings=(reading,))
