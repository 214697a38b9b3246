"""Sources of JSON records: those of Debezium, Canal or Maxwell, or keys with nullable values.

A table with a primary key is a stage `latest` behind the source: values that were not sent are taken from the row that is
present, and a truncate empties the table. One without a key is a changelog of whole rows.

A record that cannot be read makes the epoch fail; or, with its bytes, place and reason, it goes to a function of the user's, or
to the dead letters of a pipeline that quarantines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from zset_join.changelog import AppendFormat
from zset_join.changelog.formats import METADATA, RecordOptions, record_format
from zset_join.conversions import python_values
from zset_join.core.errors import BadInputError, OptionError, PlanError
from zset_join.core.relation import Relation
from zset_join.plan.query_plan import PlanSource
from zset_join.plan.tree import Node, Operate, Read
from zset_join.query.columns import schema_given
from zset_join.query.event_times import jump_of, with_watermark
from zset_join.query.reading import Reading, table_of
from zset_join.query.view import View
from zset_join.shapes.deduplicate import TRUNCATE
from zset_join.sources.json_records import JsonRecordReader, ReadRecords
from zset_join.sources.source import Undecodable
from zset_join.stages.latest import LatestRequest
from zset_join.zset import ZSet, single_batch

__all__ = ["Baseline", "RecordReading", "records"]

CONTROL, SEQUENCE = "__control", "__sequence_0"
_GIVEN = pa.schema(
    {"key": pa.string(), "value": pa.string(), "topic": pa.string(), "partition": pa.int32(), "offset": pa.int64()}
)
_NOT_READ = ("timestamp", "timestampType", "headers")


@dataclass(frozen=True, slots=True)
class Baseline:
    """The rows of a table that are present before its records: `pipeline.step({"orders": Baseline(rows)})`.

    Every record of a key counts after its row, even one written before the rows were read. So the records may begin earlier:
    until they have caught up, older states of rows may show; in the end nothing is missing or counted twice.

    Args:
        rows: the columns of the table by name, as Arrow table or batch, dict of columns, or list of dicts.
    """

    rows: Any


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordReading(Reading):
    """How records become changes."""

    reader: JsonRecordReader
    position: str | None = None  # orders the changes of a key; None where the user names one, or nothing can
    dead_letters: Callable[[pa.Table], None] | None = None  # takes unreadable records; None: they fail the epoch

    @override
    def delta(self, rows: Any) -> ZSet:
        if isinstance(rows, ZSet):
            return rows
        if isinstance(rows, Baseline):
            return self._first_rows(rows.rows)
        delta, unread = self._read(rows)
        if unread is not None:
            self._refuse(unread)
        return delta

    @override
    def taken(self, rows: Any) -> tuple[ZSet, Undecodable | None]:
        if isinstance(rows, ZSet):
            return rows, None
        if isinstance(rows, Baseline):
            return self._first_rows(rows.rows), None
        delta, unread = self._read(rows)
        if unread is None or self.dead_letters is not None:
            return delta, None
        codes = unread["code"].to_pylist()
        reasons = pa.array([_reason(code) for code in codes], pa.string())
        plain = pa.array([code.partition(" ")[0] for code in codes], pa.string())
        rejected = unread.set_column(unread.schema.get_field_index("code"), "code", plain).append_column("reason", reasons)
        return delta, Undecodable(self.source.name, rejected.drop_columns(["record"]))

    def _read(self, rows: Any) -> tuple[ZSet, pa.Table | None]:
        """Return the changes that records mean, and those that cannot be read, unless a function has taken them."""
        table = self._records(rows)
        read = self.reader.read(table)
        rejects = self._rejects(read)
        bad = pc.is_valid(rejects)
        unread = self._unread(table, read.records, rejects) if pc.any(bad).as_py() else None
        if unread is not None and self.dead_letters is not None:
            self.dead_letters(unread.drop_columns(["record"]))
            unread = None
        good = np.flatnonzero(~np.asarray(bad))
        batch = read.rows.take(pa.array(good))
        changes = read.changes.take(pa.array(good))
        is_delete = np.asarray(pc.equal(changes, "delete"))
        columns = list(batch.columns)
        if self.position is not None:  # a record without a position comes in its turn
            order = pc.fill_null(batch.column(self.position), -1)
            columns = [column for name, column in zip(batch.schema.names, columns, strict=True) if name != SEQUENCE]
            columns.append(order)
        relation = self.source.relation
        if CONTROL in relation.schema.names:
            truncates = np.asarray(pc.equal(changes, "truncate"))
            columns.append(pa.array(np.where(truncates, TRUNCATE, read.unavailable[good])))
        else:
            self._refuse_truncate(changes)
        weights = np.where(is_delete, np.int64(-1), np.int64(1))
        return ZSet(pa.RecordBatch.from_arrays(columns, schema=relation.schema), weights), unread

    def _rejects(self, read: ReadRecords) -> pa.Array:
        """Return the error code of each line."""
        if not self.is_of_versions:
            return read.rejects
        truncates = pc.if_else(pc.fill_null(pc.equal(read.changes, "truncate"), False), "TRUNCATED", None)
        lacking = pc.if_else(pa.array(read.unavailable != 0), "UNAVAILABLE_VALUE", None)
        return pc.coalesce(read.rejects, truncates, lacking)

    def _first_rows(self, rows: Any) -> ZSet:
        """Return the rows of a baseline as insertions before every record."""
        relation = self.source.relation
        if not relation.primary_key:
            raise OptionError(
                f'source "{self.source.name}": a table without keys cannot start from a baseline, for a record that is in it '
                "already would count twice. Name its keys.",
                code="BASELINE_OVERLAP",
                relation=self.source.name,
            )
        wanted = {field.name: field for field in relation.schema if field.name not in (SEQUENCE, CONTROL)}
        if isinstance(rows, pa.RecordBatch | pa.Table):
            table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        else:
            schema = pa.schema(list(wanted.values()))
            table = pa.table(dict(rows)) if isinstance(rows, Mapping) else pa.Table.from_pylist(list(rows), schema=schema)
        missing = [name for name in wanted if name not in table.column_names]
        if missing:
            raise PlanError(
                f'source "{self.source.name}": the baseline lacks the columns {missing}; it has {table.column_names}.',
                code="BASELINE_COLUMNS",
                relation=self.source.name,
                missing=missing,
            )
        try:
            columns = [table[name].cast(field.type).combine_chunks() for name, field in wanted.items()]
        except pa.ArrowInvalid as error:
            raise PlanError(
                f'source "{self.source.name}": the baseline does not have the types of the table: {error}.',
                code="BASELINE_TYPE",
                relation=self.source.name,
            ) from error
        first = {SEQUENCE: -1, CONTROL: 0}
        count = table.num_rows
        columns += [pa.array(np.full(count, first[name])) for name in relation.schema.names if name not in wanted]
        return ZSet(pa.RecordBatch.from_arrays(columns, schema=relation.schema), np.ones(count, np.int64))

    def _records(self, rows: Any) -> pa.Table:
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        if isinstance(rows, Mapping) and not self._is_event(rows) and any(map(_is_column, rows.values())):
            rows = pa.table(dict(rows))
        if not isinstance(rows, pa.Table):
            columns = table_of(rows)
            rows = self._of_objects(rows) if columns is None else columns
        if "value" not in rows.column_names:
            raise PlanError(
                f'source "{self.source.name}" was given columns {rows.column_names}; a record has `value`, and may have `key`, '
                "`topic`, `partition` and `offset`.",
                code="UNKNOWN_COLUMN",
                relation=self.source.name,
            )
        for field in _GIVEN:
            if field.name not in rows.column_names:
                rows = rows.append_column(field.name, pa.nulls(rows.num_rows, field.type))
        return rows

    def _of_objects(self, rows: Any) -> pa.Table:
        """Return texts, parsed records, or dicts of a record and its place as records."""
        given = [rows] if isinstance(rows, str | bytes | Mapping) else list(rows)
        lines = [self._as_record(one) for one in given]
        columns = {}
        for field in _GIVEN:
            # As bytes: a record that is no UTF-8 is bad input of its own.
            kind = pa.binary() if field.name in {"key", "value"} else field.type
            values = [one.get(field.name) for one in lines]
            converted = python_values(values, kind)
            if converted.unfit is not None:
                row = int(np.flatnonzero(converted.unfit)[0])
                raise PlanError(
                    f'source "{self.source.name}": record {row} has {values[row]!r:.100} as `{field.name}`, no {kind}. '
                    "Feed texts, parsed records, or dicts of `value`, and `key`, `topic`, `partition`, `offset` where known.",
                    code="DELTA_TYPES",
                    relation=self.source.name,
                )
            columns[field.name] = converted.values
        return pa.table(columns)

    def _is_event(self, given: Mapping[str, Any]) -> bool:
        """Return whether a dict is a parsed record of the format, not one with its key and its place in Kafka."""
        record = self.reader.format
        if record.enveloped and {"schema", "payload"} <= given.keys():
            return True
        if record.operation:
            return record.operation[0] in given
        return not {"key", "value"} & given.keys() and not any(map(_is_column, given.values()))

    def _as_record(self, given: Any) -> Mapping[str, Any]:
        if isinstance(given, str | bytes):
            return {"value": _text(given)}
        if isinstance(given, Mapping):
            if self._is_event(given):
                return {"value": json.dumps(given)}
            unknown = sorted(given.keys() - {*_GIVEN.names, *_NOT_READ})
            if not unknown and {"key", "value"} & given.keys():
                texts = {name: _text(given.get(name)) for name in ("key", "value")}
                return {**{name: given.get(name) for name in _GIVEN.names}, **texts}
            what = f"a dict of {sorted(given)}"
        else:
            what = f"a {type(given).__name__}"
        raise PlanError(
            f'source "{self.source.name}" was given {what}, which is not a record of {self.reader.format.name}: a text, a '
            "parsed record, or a dict of `value` and, where they are known, `key`, `topic`, `partition` and `offset`.",
            code="UNKNOWN_COLUMN",
            relation=self.source.name,
        )

    def _unread(self, table: pa.Table, origins: np.ndarray, rejects: pa.Array) -> pa.Table:
        """Return the records that cannot be read, one line for each, with `code` and their number among the records."""
        lines = np.flatnonzero(np.asarray(pc.is_valid(rejects)))
        numbers, first = np.unique(origins[lines], return_index=True)  # of a record with several rows the first bad one decides
        records = table.take(pa.array(numbers)).select(_GIVEN.names)
        records = records.append_column("code", rejects.take(pa.array(lines[first])))
        return records.append_column("record", pa.array(numbers))

    def _refuse(self, unread: pa.Table) -> None:
        first = single_batch(unread.slice(0, 1)).to_pylist()[0]
        shown = str(first["value"])[:200]
        raise BadInputError(
            f'source "{self.source.name}": record {first["record"]} (topic {first["topic"]}, partition '
            f"{first['partition']}, offset {first['offset']}) cannot be read, {first['code']}: {shown} ({unread.num_rows} such "
            "records; nothing was applied). Correct the source, give dead_letters=..., a function that takes them, or let the "
            'pipeline put them aside: options=StageOptions(on_bad_input="quarantine"), in SQL SET on_bad_input = quarantine.',
            code=str(first["code"]).partition(" ")[0],
            relation=self.source.name,
            rejected_rows=unread.num_rows,
        )

    def _refuse_truncate(self, changes: pa.Array) -> None:
        if pc.any(pc.equal(changes, "truncate")).as_py():
            raise BadInputError(
                f'source "{self.source.name}" was truncated, and without keys the rows that it removes are unknown. '
                "Name its keys, or start over.",
                code="TRUNCATED_WITHOUT_KEYS",
                relation=self.source.name,
            )


def _is_column(value: Any) -> bool:
    return isinstance(value, list | tuple | np.ndarray | pa.Array | pa.ChunkedArray)


def _text(given: Any) -> Any:
    """Return a record or its key as text or bytes; a parsed one is written again."""
    return json.dumps(given) if isinstance(given, Mapping) else given


def _reason(code: str) -> str:
    what, _, column = code.partition(" ")
    named = f' "{column}"' if column else ""
    return {
        "UNDECODABLE_RECORD": "the record is no JSON of this format, or has no row that is an object of columns",
        "UNKNOWN_ENCODING": f"column{named} has a value that may mean several, and neither a schema in the record nor an "
        "option decides: give RecordOptions(time_unit=..., decimals=..., binary=...)",
        "FOREIGN_TABLE": "the record is of another table, or names none; name the tables that are read with "
        "RecordOptions(table=..., database=...), and others are left out",
        "OLD_ROW_MISSING": "an update of a table without keys has no old row; set REPLICA IDENTITY FULL, or name the keys",
        "UNDECODABLE_VALUE": f"the value of column{named} cannot be read as its type",
        "UNDECODABLE_OP": "the operation is not one of the format",
        "TRUNCATED": "the table was truncated, which ends no version",
        "UNAVAILABLE_VALUE": "a value was not sent; REPLICA IDENTITY FULL sends it",
        "NULL_OP": "the record has no operation",
    }.get(what, code)


def records(
    name: str,
    format: str,  # noqa: A002 - the name PySpark users type
    schema: pa.Schema | Mapping[str, Any] | str,
    *,
    keys: Sequence[str] | str = (),
    sequence_by: Sequence[str] | str = (),
    except_column_list: Sequence[str] = (),
    watermark: tuple[str, Any] | None = None,
    max_watermark_jump: Any = None,
    options: RecordOptions | None = None,
    dead_letters: Callable[[pa.Table], None] | None = None,
) -> View:
    """Describe a source that is fed records of JSON.

    Args:
        name: in messages and for `Pipeline.step`.
        format: one of `RECORD_FORMATS`, such as debezium-json; see `zset_join.changelog.formats.records`.
        schema: the columns of the table, as for `changes`.
        keys: its primary key; none for a table without one, whose records must contain old rows.
        sequence_by: columns of the table or of the metadata that order the changes of a key; default: the position in the
            database's log, if the format has one, so that records resent after a crash are ignored; else, and for equal
            positions, the order of arrival, which is that of a Kafka partition.
        except_column_list: columns, metadata among them, that only order changes and are not shown.
        watermark: as for `changes`.
        max_watermark_jump: as for `changes`.
        options: decimals, the unit of timestamps, and the metadata that become columns.
        dead_letters: receives unreadable records, with `code`; default: they fail the epoch.

    Raises:
        OptionError: an unknown format.
        PlanError: columns that do not exist or cannot be read from JSON.

    >>> orders = records("orders", "debezium-json", {"id": pa.int64(), "total": pa.int64()}, keys="id")
    >>> orders.columns
    ['id', 'total']
    """
    columns = schema_given(schema) if isinstance(schema, str) else schema
    table = columns if isinstance(columns, pa.Schema) else pa.schema(list(dict(columns).items()))
    key = (keys,) if isinstance(keys, str) else tuple(keys)
    sequence = (sequence_by,) if isinstance(sequence_by, str) else tuple(sequence_by)
    used = {*key, *sequence, *([watermark[0]] if watermark is not None else [])}
    # A column that nobody sees is not decoded, so that it need not be readable.
    unused = {field.name for field in table if field.name in except_column_list and field.name not in used}
    table = pa.schema([field for field in table if field.name not in unused])
    given = RecordOptions() if options is None else options
    is_ordered = bool(key) and not sequence and bool(record_format(format).position)
    read = given
    if is_ordered and "position" not in given.metadata:
        read = replace(given, metadata={**given.metadata, "position": SEQUENCE})
    reader = JsonRecordReader(format, table, key, read, source=name)
    metadata_fields = [pa.field(column, METADATA[what]) for what, column in given.metadata.items()]
    nullable = [field.with_nullable(True) for field in [*table, *metadata_fields]]
    own = [*([SEQUENCE] if is_ordered else []), *([CONTROL] if key else [])]
    fields = [*nullable, *(pa.field(one, pa.int64()) for one in own)]
    hidden = (*(one for one in except_column_list if one not in unused), *own)
    relation = Relation(
        name=name,
        schema=pa.schema(fields),
        primary_key=key,
        sequence_by=(SEQUENCE,) if is_ordered else sequence,
        mode="upsert" if key else "changelog",
    )
    relation = relation if watermark is None else with_watermark(relation, watermark)
    source = PlanSource(relation=relation, hidden=hidden, max_watermark_jump=jump_of(relation, max_watermark_jump))
    reading = RecordReading(
        source=source,
        given=_GIVEN,
        changelog_format=AppendFormat(),
        reader=reader,
        dead_letters=dead_letters,
        position=read.metadata["position"] if is_ordered else None,
    )
    node: Node = Read(source)
    if key:
        node = Operate(LatestRequest(control=CONTROL), (node,))
    return View(node=node, name=name, bindings=(reading,))
