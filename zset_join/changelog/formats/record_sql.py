"""The SQL that reads records of JSON, for Spark and for DuckDB.

The law: both give the same lines. Each step is one SELECT over the one before:

1. the record and its key are taken out of Kafka Connect's envelope of schema and payload, where they are in one;
2. both are parsed into structs of text, once each;
3. what the record does, and the texts of the row it brings or takes away;
4. the columns in their types, `__change`, `__unavailable` and `__reject`.

A text that is not NULL and does not convert makes the line bad, by name of the column; so nothing becomes NULL without a word.

Bits of `__unavailable`: column i of the table was not sent. Columns from the 63rd on cannot be told and make the line bad.
"""

# ruff: noqa: S608 - names cannot be parameters of a statement; each one here is ours or goes through `quoted`.

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from zset_join.changelog.formats.records import METADATA, UNAVAILABLE, RecordFormat, RecordOptions

__all__ = [
    "CHANGE",
    "FIRST_DAY",
    "IN_KAFKA",
    "LAST_DAY",
    "MARKS",
    "MOST_MARKED",
    "PER_SECOND",
    "REJECT",
    "UNAVAILABLE_BITS",
    "Dialect",
    "RecordStatements",
    "Step",
    "first_and_last",
]

CHANGE, UNAVAILABLE_BITS, REJECT = "__change", "__unavailable", "__reject"
MARKS = (UNAVAILABLE, f'"{UNAVAILABLE}"', f'"{UNAVAILABLE}', base64.b64encode(UNAVAILABLE.encode()).decode(), f'["{UNAVAILABLE}"]')
MOST_MARKED = 62
IN_KAFKA = ("topic", "partition", "offset")
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""The days since 1970-01-01 that lie in the years 1 to 9999: another number is no date, for not every system knows it."""
PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

Fields = Mapping[str, "Fields | None"]


def first_and_last(unit: str) -> tuple[int, int]:
    """Return the numbers of units since 1970-01-01 between which a number is an instant: the years 1 to 9999, in 64 bits.

    >>> first_and_last("s")
    (-62135596800, 253402300799)
    """
    first, last = ((day * 86_400) * PER_SECOND[unit] for day in (FIRST_DAY, LAST_DAY + 1))
    return max(first, -(2**63) + 1), min(last - 1, 2**63 - 1)


class Dialect(ABC):
    """What one engine calls the few functions that the statements need."""

    @abstractmethod
    def quoted(self, name: str) -> str:
        """Return a name as one identifier."""

    @abstractmethod
    def parsed(self, text: str, fields: Fields) -> str:
        """Return the expression for the struct of texts in a JSON object; NULL where the text is no JSON object."""

    @abstractmethod
    def parsed_list(self, text: str, fields: Fields) -> str:
        """Return the expression that gives a row per object of a JSON list, as a struct of texts; one NULL where it is none."""

    @abstractmethod
    def is_bad(self, struct: str) -> str:
        """Return the condition that what `parsed` gave was no JSON object."""

    @abstractmethod
    def exploded(self, *values: str) -> str:
        """Return the expression that gives a row per value."""

    @abstractmethod
    def member(self, text: str, name: str) -> str:
        """Return the expression for the text of one member of a JSON object."""

    @abstractmethod
    def converted(self, text: str, data_type: pa.DataType, options: RecordOptions, decimals: str) -> str:
        """Return the expression for a value in its type; NULL where the text does not say one."""

    def once(self, name: str, value: str) -> str:
        """Return what gives a column its name so that its value is computed once per row, however often it is used."""
        return f"{value} AS {name}"

    def as_text(self, value: str, column: str) -> str:  # noqa: ARG002 - for engines that tell texts from numbers
        """Return what was parsed for a column as text."""
        return value

    def literal(self, text: str) -> str:
        """Return a text as a literal."""
        return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True)
class Step:
    """One SELECT over an earlier one.

    Args:
        name: of the step.
        columns: what it selects.
        source: the step before, or the records.
        where: which lines it keeps; None for all.
    """

    name: str
    columns: tuple[str, ...]
    source: str
    where: str | None = None

    @property
    def select(self) -> str:
        """Return it as a statement."""
        return f"SELECT {', '.join(self.columns)} FROM {self.source}" + ("" if self.where is None else f" WHERE {self.where}")


@dataclass(frozen=True, kw_only=True)
class RecordStatements:
    """Make the query that reads the records of one table.

    Args:
        record: the format.
        schema: the columns of the table.
        keys: its key columns; none for a table without a key.
        options: what the format leaves open.
        dialect: of the engine.
    """

    record: RecordFormat
    schema: pa.Schema
    keys: Sequence[str]
    options: RecordOptions
    dialect: Dialect

    def steps(self, source: str, kept: Sequence[str] = ()) -> list[Step]:
        """Return the steps of the query, each over the one before; the last is the answer.

        Args:
            source: a relation with `key`, `value`, and, for their metadata, `topic`, `partition`, `offset`.
            kept: columns of it that go through all steps.
        """
        dialect, record = self.dialect, self.record
        goes_along = [dialect.quoted(name) for name in kept]
        # Under names of their own: a column of the table, or one that holds them, may have theirs.
        through = [*goes_along, *map(_inside, self._in_kafka())]
        first = [*goes_along, *(f"{dialect.quoted(name)} AS {_inside(name)}" for name in self._in_kafka())]
        parsed = [dialect.once("__record", self._parsed_record(dict.fromkeys(self.schema.names)))]
        parsed += ["key"] if self._has_key else []
        steps = [
            Step("__records", (*first, *(f"{self.unwrapped(text)} AS {text}" for text in ("key", "value"))), source),
            Step("__parsed", (*through, "value", *parsed), "__records"),
            Step("__said", (*through, *self._said()), "__parsed"),
        ]
        if record.is_list or not self.keys:
            body = ["__what", "__reject_record", "__body"]
            each = self._rows_of_record() if record.is_list else f"{dialect.exploded('0', '1')} AS __side"
            steps.append(Step("__each", (*through, *body, *(["key"] if self._has_key else []), each), "__said"))
        texts = (*through, *self._marks(), *self._meta_texts(), *self._texts())
        is_there = None if self.keys or record.is_list else self._has_side()
        steps.append(Step("__texts", texts, steps[-1].name, is_there))
        steps.append(Step("__values", (*through, "__what", "__reject_record", *self._values()), "__texts"))
        line = (*goes_along, *self._line())
        steps.append(Step("__lines", line, "__values", "__what IS NULL OR __what <> 'ignore'"))
        return steps

    def query(self, source: str, kept: Sequence[str] = ()) -> str:
        """Return the steps as one statement."""
        *before, last = self.steps(source, kept)
        return f"WITH {', '.join(f'{step.name} AS ({step.select})' for step in before)} {last.select}"

    # -- steps --------------------------------------------------------------------------------------------------------

    @property
    def _has_key(self) -> bool:
        return self.record.key_in_record_key and bool(self.keys)

    def _in_kafka(self) -> list[str]:
        return [name for name in IN_KAFKA if name in self.options.metadata]

    def unwrapped(self, text: str) -> str:
        """Return the expression for the text of a record, or of its key, outside of Connect's envelope."""
        if not self.record.enveloped:
            return text
        return f"CASE WHEN {text} LIKE '{{\"schema\":%' THEN {self.dialect.member(text, 'payload')} ELSE {text} END"

    def converted(self, text: str, data_type: pa.DataType) -> str:
        """Return the expression for a text in a type; NULL where it does not say one."""
        return self.dialect.converted(text, data_type, self.options, self.options.decimals or self.record.decimals)

    def _parsed_record(self, row_fields: Fields) -> str:
        record = self.record
        if not record.operation:
            return self.dialect.parsed("value", row_fields)
        fields: dict[str, Fields | None] = {}
        inner: Fields | None = None if record.is_list else row_fields
        for path in (record.row, record.deleted):
            _put(fields, path, inner)
        times = [path for path, _ in record.times.values()]
        for path in (record.operation, *times, *record.older_times.values(), record.position):
            _put(fields, path, None)
        return self.dialect.parsed("value", fields)

    def _said(self) -> list[str]:
        """Return what the record does, its body, and why it is bad."""
        record, text = self.record, self.dialect.literal
        if not record.operation:
            is_bad = f"value IS NOT NULL AND {self.dialect.is_bad('__record')}"
            what = f"CASE WHEN value IS NULL THEN 'delete' WHEN {is_bad} THEN NULL ELSE 'upsert' END AS __what"
            bad = f"CASE WHEN {is_bad} THEN 'UNDECODABLE_RECORD' END AS __reject_record"
            return [what, bad, "__record AS __body", *(["key"] if self._has_key else [])]
        operation = f"lower({self._path('__record', record.operation)})"
        cases = " ".join(f"WHEN {text(said)} THEN {text(means)}" for said, means in record.operations.items())
        is_bad = self.dialect.is_bad("__record")  # of a record that breaks off, what was read before may be an operation
        what = f"CASE WHEN value IS NULL THEN 'ignore' WHEN {is_bad} THEN NULL ELSE CASE {operation} {cases} END END AS __what"
        bad = (
            f"CASE WHEN value IS NULL THEN NULL WHEN {is_bad} THEN 'UNDECODABLE_RECORD' "
            f"WHEN {operation} IS NULL THEN 'NULL_OP' "
            f"WHEN {operation} NOT IN ({', '.join(map(text, record.operations))}) THEN 'UNDECODABLE_OP' END AS __reject_record"
        )
        return [what, bad, "__record AS __body", *(["key"] if self._has_key else [])]

    def _rows_of_record(self) -> str:
        return f"{self.dialect.parsed_list(self._path('__body', self.record.row), dict.fromkeys(self.schema.names))} AS __row"

    def _has_side(self) -> str:
        """Return the condition that a record of a table without a key has an old row, or a new one, for this line."""
        old, new = (f"{self._path('__body', path)} IS NOT NULL" for path in (self.record.old, self.record.row))
        line = f"(__side = 0 AND {old} AND __what = 'delete' OR __side = 0 AND {old} AND __what = 'upsert')"
        alone = "__side = 1 AND (__what IS NULL OR __what IN ('truncate', 'ignore'))"
        return f"{line} OR (__side = 1 AND {new} AND __what = 'upsert') OR {alone} OR ({self._is_empty()} AND __side = 1)"

    def _is_empty(self) -> str:
        """Return the condition that a record brings, or takes away, nothing."""
        old, new = (self._path("__body", path) for path in (self.record.deleted, self.record.row))
        if self.keys:
            return f"coalesce(__what = 'upsert' AND {new} IS NULL, false)"
        return f"coalesce(__what = 'upsert' AND {new} IS NULL OR __what = 'delete' AND {old} IS NULL, false)"

    def _marks(self) -> list[str]:
        """Return what the line does, and why its record is bad."""
        if self.keys or self.record.is_list:
            return ["__what", "__reject_record"]
        return ["CASE WHEN __what = 'upsert' AND __side = 0 THEN 'delete' ELSE __what END AS __what", "__reject_record"]

    def _meta_texts(self) -> list[str]:
        """Return the texts of the metadata that are asked for."""
        texts = []
        for name in self.options.metadata:
            if name in self.record.times:
                text = self._path("__body", self.record.times[name][0])
                if name in self.record.older_times:
                    text = f"coalesce({text}, {self._path('__body', self.record.older_times[name])} || '000')"
                texts.append(f"{text} AS __meta_{name}")
            elif name == "position" and self.record.position:
                texts.append(f"{self._path('__body', self.record.position)} AS __meta_position")
        return texts

    def _texts(self) -> list[str]:
        """Return the text of every column: of the row that comes, or of the one that goes."""
        record, q = self.record, self.dialect.quoted
        texts = []
        for position, name in enumerate(self.schema.names):
            if record.is_list:
                comes = goes = f"__row.{q(name)}"
            elif not record.operation:
                comes, goes = f"__body.{q(name)}", "NULL"
            else:
                comes, goes = (f"{self._path('__body', path)}.{q(name)}" for path in (record.row, record.deleted))
            if not self.keys:
                text = comes if record.is_list else f"CASE WHEN __side = 1 THEN {comes} ELSE {goes} END"
            elif name in self.keys:
                text = f"CASE WHEN __what = 'upsert' THEN {comes} ELSE {goes} END"
                if self._has_key:  # the record's key is parsed only where the record itself does not say it
                    text = f"coalesce({text}, ({self.dialect.parsed('key', dict.fromkeys(self.keys))}).{q(name)})"
            else:
                text = f"CASE WHEN __what = 'upsert' THEN {comes} END"  # the other columns of a delete may be defaults
            texts.append(f"{self.dialect.as_text(text, name)} AS __t{position}")
        if record.is_list:
            texts.append("coalesce(__what IN ('upsert', 'delete') AND __row IS NULL, false) AS __is_empty")
        elif record.operation:
            texts.append(f"{self._is_empty()} AS __is_empty")
        return texts

    def _values(self) -> list[str]:
        """Return every column in its type, what was not sent, and the names of the columns that say nothing readable."""
        columns, marked, bad = [], [], []
        for position, field in enumerate(self.schema):
            text = f"__t{position}"
            mark = f"{text} IN ({', '.join(map(self.dialect.literal, MARKS))})"
            value = self.converted(text, field.type)
            columns.append(f"CASE WHEN {mark} THEN NULL ELSE {value} END AS {self.dialect.quoted(field.name)}")
            unread = f"{text} IS NOT NULL AND NOT ({mark}) AND ({value}) IS NULL"
            if position > MOST_MARKED:
                unread = f"{text} IS NOT NULL AND ({mark} OR ({value}) IS NULL)"
            else:
                marked.append(f"CASE WHEN {mark} THEN CAST({1 << position} AS BIGINT) ELSE CAST(0 AS BIGINT) END")
            bad.append(f"WHEN {unread} THEN {self.dialect.literal(f'UNDECODABLE_VALUE {field.name}')}")
        columns.append(f"{' + '.join(marked) or 'CAST(0 AS BIGINT)'} AS {UNAVAILABLE_BITS}")
        empty = "WHEN __is_empty THEN 'UNDECODABLE_RECORD' " if self.record.operation else ""
        reasons = " ".join(bad)
        needed = f"CASE {empty}WHEN __what IN ('upsert', 'delete') THEN CASE {reasons} END END" if bad else "NULL"
        columns.append(f"coalesce(__reject_record, {needed}) AS {REJECT}")
        for name, column in self.options.metadata.items():
            columns.append(f"{self._metadata(name)} AS {self.dialect.quoted(column)}")
        return columns

    def _metadata(self, name: str) -> str:
        if name in IN_KAFKA:
            return _inside(name)
        if name == "position":
            return "TRY_CAST(__meta_position AS BIGINT)" if self.record.position else "CAST(NULL AS BIGINT)"
        if name not in self.record.times:
            return self.dialect.converted("CAST(NULL AS STRING)", METADATA[name], self.options, "text")
        unit = self.record.times[name][1]
        return self.dialect.converted(f"__meta_{name}", METADATA[name], RecordOptions(time_unit=unit), "text")

    def _line(self) -> list[str]:
        q = self.dialect.quoted
        columns = [*self.schema.names, UNAVAILABLE_BITS, REJECT, *self.options.metadata.values()]
        return [f"CASE WHEN {REJECT} IS NULL THEN __what END AS {CHANGE}", *map(q, columns)]

    def _path(self, start: str, path: Sequence[str]) -> str:
        return ".".join([start, *map(self.dialect.quoted, path)])


def _inside(name: str) -> str:
    """Return what the place of a record in Kafka is called between the steps."""
    return f"__in_{name}"


def _put(fields: dict[str, Fields | None], path: Sequence[str], inner: Fields | None) -> None:
    if not path:
        return
    for name in path[:-1]:
        within = fields.setdefault(name, {})
        if not isinstance(within, dict):
            raise TypeError(f"{path} goes through a text")
        fields = within
    fields.setdefault(path[-1], inner)
