"""The SQL that reads records of JSON, for Spark and for DuckDB.

The law: both give the same lines. Each step is one SELECT over the one before:

1. the record and its key are taken out of Kafka Connect's envelope of schema and payload, where they are in one;
2. both are parsed into structs of text, once each;
3. what the record does, and whether it is of this table;
4. a line per row of it, and one more where an update takes the row of another key away;
5. the texts of the row it brings or takes away, and their spelling by the record's schema;
6. the columns in their types, `__change`, `__unavailable` and `__reject`.

A text that is not NULL and does not convert makes the line bad, by name of the column; so nothing becomes NULL without a word.

Bits of `__unavailable`: column i of the table was not sent. Columns from the 63rd on cannot be marked and make the line bad.
"""

# ruff: noqa: S608 - names cannot be parameters of a statement; each one here is ours or goes through `quoted`.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from zset_join.changelog.formats.record_spellings import EXACT, Dialect, Fields, Spelling, needs_schema
from zset_join.changelog.formats.records import METADATA, RecordFormat, RecordOptions

__all__ = [
    "CHANGE",
    "FIRST_DAY",
    "LAST_DAY",
    "PER_SECOND",
    "REJECT",
    "UNAVAILABLE_BITS",
    "RecordStatements",
    "Step",
    "first_and_last",
]

CHANGE, UNAVAILABLE_BITS, REJECT = "__change", "__unavailable", "__reject"
_MOST_MARKED = 62
_IN_KAFKA = ("topic", "partition", "offset")
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""The days since 1970-01-01 that are in the years 1 to 9999: another number is no date, for not every system has it."""
PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def first_and_last(unit: str) -> tuple[int, int]:
    """Return the numbers of units since 1970-01-01 between which a number is an instant: the years 1 to 9999, in 64 bits.

    >>> first_and_last("s")
    (-62135596800, 253402300799)
    """
    first, last = ((day * 86_400) * PER_SECOND[unit] for day in (FIRST_DAY, LAST_DAY + 1))
    return max(first, -(2**63) + 1), min(last - 1, 2**63 - 1)


@dataclass(frozen=True)
class Step:
    """One SELECT over an earlier one."""

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
    """Make the query that reads the records of one table."""

    record: RecordFormat
    schema: pa.Schema
    keys: Sequence[str]
    options: RecordOptions
    dialect: Dialect
    source: str | None = None
    opens: bool = True

    def steps(self, source: str, kept: Sequence[str] = ()) -> list[Step]:
        """Return the steps of the query, each over the one before; the last is the answer."""
        dialect, record = self.dialect, self.record
        goes_along = [dialect.quoted(name) for name in kept]
        # Under names of their own: a column of the table, or one that holds them, may have theirs.
        through = [*goes_along, *map(_inside, self._in_kafka())]
        first = [*goes_along, *(f"{dialect.quoted(name)} AS {_inside(name)}" for name in self._in_kafka())]
        steps = []
        if self._is_enveloped:
            opened = [f"{dialect.is_envelope(text)} AS __{text}_is_envelope" for text in ("key", "value")]
            steps.append(Step("__opened", (*first, "key", "value", *opened), source))
            unwrapped = [self._unwrapped(text) for text in ("key", "value")]
            steps.append(Step("__records", (*through, *unwrapped, f"{self._spellings()} AS __spellings"), "__opened"))
            through = [*through, "__spellings"]
        else:
            steps.append(Step("__records", (*first, "key", "value"), source))
        parsed = [dialect.once("__record", self._parsed_record())]
        key = ["key"] if self._has_key else []
        steps.append(Step("__parsed", (*through, "value", *parsed, *key), "__records"))
        steps.append(Step("__said", (*through, *self._written_as(), "__record AS __body", *key), "__parsed"))
        body = ["__what", "__reject_record", "__body", *key]
        if record.is_list:
            steps.append(Step("__rows", (*through, *body, f"{self._rows_of_record()} AS __rows"), "__said"))
        if not self.keys:
            sides = dialect.exploded(dialect.listed("0", "1"))
            steps.append(Step("__each", (*through, *body, "__is_update", f"{sides} AS __side"), "__said"))
        elif record.moved:
            sides = f"CASE WHEN {self._is_moved()} THEN {dialect.listed('0', '1')} ELSE {dialect.listed('1')} END"
            rows = ["__rows"] if record.is_list else []
            steps.append(Step("__each", (*through, *body, *rows, f"{dialect.exploded(sides)} AS __side"), steps[-1].name))
        of_line = (*through, *self._marks(), *self._meta_texts(), *self._texts())
        is_there = None if self.keys else self._has_side()
        steps.append(Step("__texts", of_line, steps[-1].name, is_there))
        marks = [*map(_inside, self._in_kafka()), "__what", "__reject_record", *self._meta_names(), *self._faults()]
        marks = [*goes_along, *marks]
        columns = range(len(self.schema))
        texts = [name for at in columns for name in (f"__t{at}", *([f"__s{at}"] if self._has_spelling(at) else []))]
        kinds = {f"__t{at}": field.type for at, field in enumerate(self.schema)}
        read = [f"{dialect.text_of(name, kinds[name])} AS {name}" if name in kinds else name for name in texts]
        steps.append(Step("__read", (*marks, *read), "__texts"))
        # Each step computes what the next one needs more than once.
        marked = [f"{self._spelling(at).is_marked} AS __m{at}" for at in columns]
        scaled = [at for at in columns if self._spelling(at).is_scaled]
        pairs = [(at, *self._spelling(at).scaled()) for at in scaled]
        parts = [f"{one} AS {name}{at}" for at, text, scale in pairs for name, one in (("__b", text), ("__c", scale))]
        steps.append(Step("__marked", (*marks, *texts, *marked, *parts), "__read"))
        texts += [f"__m{at}" for at in columns]
        if scaled:
            numbers = [f"{dialect.unscaled(f'__b{at}')} AS __u{at}" for at in scaled]
            steps.append(Step("__unscaled", (*marks, *texts, *(f"__c{at}" for at in scaled), *numbers), "__marked"))
            digits = [f"{dialect.placed(f'__u{at}', f'__c{at}')} AS __d{at}" for at in scaled]
            steps.append(Step("__digits", (*marks, *texts, *digits), steps[-1].name))
        plain = [f"{self._spelling(at).plain(f'__d{at}')} AS __p{at}" for at in columns]
        steps.append(Step("__plain", (*marks, *texts, *plain), steps[-1].name))
        texts += [f"__p{at}" for at in columns]
        values = [f"{self._spelling(at).value(f'__p{at}')} AS __v{at}" for at in columns]
        steps.append(Step("__converted", (*marks, *texts, *values), "__plain"))
        along = [*goes_along, *map(_inside, self._in_kafka())]
        steps.append(Step("__values", (*along, "__what", "__reject_record", *self._values()), "__converted"))
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

    @property
    def _is_enveloped(self) -> bool:
        """Return whether records may be beside a schema; not where a table has columns of the envelope's names."""
        return self.opens and self.record.enveloped and not {"schema", "payload"} <= set(self.schema.names)

    def _in_kafka(self) -> list[str]:
        return [name for name in _IN_KAFKA if name in self.options.metadata or (name == "topic" and self._reads_topic)]

    @property
    def _reads_topic(self) -> bool:
        return bool(self.record.table) and self.options.tables is None and self.source is not None

    def _unwrapped(self, text: str) -> str:
        return f"CASE WHEN __{text}_is_envelope THEN {self.dialect.payload(text)} ELSE {text} END AS {text}"

    def _spellings(self) -> str:
        """Return the spellings of the columns by the record's schema, or by its key's."""
        side = self.record.row[0] if self.record.row else None
        of_record = self.dialect.spellings("value", side)
        of_key = self.dialect.spellings("key", None)
        return f"CASE WHEN __value_is_envelope THEN {of_record} WHEN __key_is_envelope THEN {of_key} END"

    def _row_fields(self, names: Sequence[str] | None = None) -> Fields:
        names = self.schema.names if names is None else names
        return {name: EXACT if self.dialect.keeps_json(self.schema.field(name).type) else None for name in names}

    def _has_spelling(self, position: int) -> bool:
        """Return whether a record may hold the spelling of a column."""
        kind = self.schema.field(position).type
        if self.record.types:
            return bool(pt.is_binary(kind) or pt.is_large_binary(kind))
        return self._is_enveloped and needs_schema(kind)

    def _spelling(self, position: int) -> Spelling:
        coding = f"__s{position}" if self._has_spelling(position) else None
        field, text = self.schema.field(position), f"__t{position}"
        return Spelling(record=self.record, field=field, options=self.options, dialect=self.dialect, text=text, coding=coding)

    def _parsed_record(self) -> str:
        record, row_fields = self.record, self._row_fields()
        if not record.operation:
            return self.dialect.parsed("value", row_fields)
        fields: dict[str, Fields | str | None] = {}
        inner: Fields | None = None if record.is_list else row_fields
        for path in (record.row, record.deleted):
            _put(fields, path, inner)
        if record.moved and self.keys:
            _put(fields, record.moved, None if record.is_list else self._row_fields(self.keys))
        times = [path for path, _ in record.times.values()]
        for path in (record.operation, *times, *record.older_times.values(), record.position, *self._table_paths):
            _put(fields, path, None)
        if record.types:
            coding = dict.fromkeys(name for at, name in enumerate(self.schema.names) if self._has_spelling(at))
            _put(fields, record.types if coding else (), coding)
        return self.dialect.parsed("value", fields)

    def _written_as(self) -> list[str]:
        """Return the operation of a record, and its error."""
        record, text = self.record, self.dialect.literal
        if not record.operation:
            is_bad = f"value IS NOT NULL AND {self.dialect.is_bad('__record')}"
            what = f"CASE WHEN value IS NULL THEN 'delete' WHEN {is_bad} THEN NULL ELSE 'upsert' END AS __what"
            return [what, f"CASE WHEN {is_bad} THEN 'UNDECODABLE_RECORD' END AS __reject_record"]
        operation = f"lower({self._path('__record', record.operation)})"
        cases = " ".join(f"WHEN {text(coding)} THEN {text(means)}" for coding, means in record.operations.items())
        is_bad = self.dialect.is_bad("__record")  # of a record that breaks off, what was read before may be an operation
        left_out, unsaid = self._other_table()
        what = (
            f"CASE WHEN value IS NULL OR ({left_out}) THEN 'ignore' WHEN {is_bad} THEN NULL ELSE CASE {operation} {cases} END "
            "END AS __what"
        )
        ignored = [coding for coding, means in record.operations.items() if means == "ignore"]
        odd = "false" if record.is_list else self._is_odd()
        bad = (
            f"CASE WHEN value IS NULL OR ({left_out}) THEN NULL WHEN {is_bad} THEN 'UNDECODABLE_RECORD' "
            f"WHEN {operation} IS NULL THEN 'NULL_OP' "
            f"WHEN {operation} NOT IN ({self.dialect.listing(list(record.operations))}) THEN 'UNDECODABLE_OP' "
            f"WHEN {operation} IN ({self.dialect.listing(ignored)}) THEN NULL "
            f"WHEN {unsaid} THEN 'FOREIGN_TABLE' WHEN {odd} THEN 'UNDECODABLE_RECORD' END AS __reject_record"
        )
        update = f"coalesce({operation} IN ({self.dialect.listing(record.updates)}), false) AS __is_update"
        return [what, bad, *([] if self.keys else [update])]

    @property
    def _table_paths(self) -> list[tuple[str, ...]]:
        """Return where a record names its database and table, as far as that is read."""
        paths = [self.record.table] if self.options.tables is not None or self._reads_topic else []
        paths += [self.record.database] if self.options.databases is not None else []
        return [path for path in paths if path]

    def _other_table(self) -> tuple[str, str]:
        """Return the conditions, never NULL, that a record is of a table that is omitted, and that it may be of another."""

        def path(of: Sequence[str]) -> str:
            return self._path("__record", of)

        record, topic, left_out, unsaid = self.record, _inside("topic"), [], []
        for at, names in ((record.database, self.options.databases), (record.table, self.options.tables)):
            if at and names is not None:
                left_out.append(f"coalesce({path(at)} NOT IN ({self.dialect.listing(names)}), false)")
                unsaid.append(f"{path(at)} IS NULL")
        if self._reads_topic:
            table = path(record.table)
            own = f"{table} = {self.dialect.literal(str(self.source))}"
            of_topic = f"{topic} = {table} OR right({topic}, length({table}) + 1) = '.' || {table}"
            unsaid.append(f"coalesce({table} <> '' AND NOT ({own} OR coalesce({of_topic}, false)), false)")
        return " OR ".join(left_out) or "false", " OR ".join(unsaid) or "false"

    def _is_odd(self) -> str:
        """Return the condition that a row of the record is no object, such as a document as text."""
        rows = dict.fromkeys([self.record.row, self.record.deleted])
        return " OR ".join(
            self.dialect.is_no_object("value", path, self._path("__record", path), self.schema.names) for path in rows
        )

    def _rows_of_record(self) -> str:
        lists = [("row", self._path("__body", self.record.row), self._row_fields())]
        if self.record.moved:
            lists.append(("old", self._path("__body", self.record.moved), self._row_fields(self.keys)))
        return self.dialect.parsed_lists(lists)

    def _row(self, path: Sequence[str]) -> str:
        return "__rows.row" if self.record.is_list else self._path("__body", path)

    def _old_key(self, name: str) -> str:
        old = "__rows.old" if self.record.is_list else self._path("__body", self.record.moved)
        return f"{old}.{self.dialect.quoted(name)}"

    def _is_moved(self) -> str:
        """Return the condition that an update removed the row of another key, by its old values."""
        differs = []
        for name in self.keys:
            old, new = self._text(self._old_key(name), name), self._text(self._in_row(name), name)
            differs.append(f"({old} IS NOT NULL AND {new} IS NOT NULL AND {old} <> {new})")
        moved = f"__what = 'upsert' AND __reject_record IS NULL AND ({' OR '.join(differs)})"
        if self._has_key:  # who writes keys of records writes an update of one as a delete and an insert
            moved += f" AND ({' OR '.join(f'{self._in_key(name)} IS NULL' for name in self.keys)})"
        return f"coalesce({moved}, false)"

    def _in_row(self, name: str) -> str:
        return f"{self._row(self.record.row)}.{self.dialect.quoted(name)}"

    def _in_key(self, name: str) -> str:
        return f"({self.dialect.parsed('key', self._row_fields(self.keys))}).{self.dialect.quoted(name)}"

    def _text(self, parsed: str, name: str) -> str:
        return self.dialect.text_of(parsed, self.schema.field(name).type)

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
        """Return the operation of a line, and the error of its record."""
        if self.keys and not self.record.moved:
            return ["__what", "__reject_record"]
        return ["CASE WHEN __what = 'upsert' AND __side = 0 THEN 'delete' ELSE __what END AS __what", "__reject_record"]

    def _faults(self) -> list[str]:
        """Return the columns with what a record lacks."""
        if not self.record.operation:
            return []
        return ["__is_empty"] if self.keys else ["__is_empty", "__lacks_old"]

    def _meta_names(self) -> list[str]:
        return [text.rpartition(" AS ")[2] for text in self._meta_texts()]

    def _meta_texts(self) -> list[str]:
        """Return the texts of the metadata that are requested."""
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
        """Return the text of every column, of the row that arrives or of the one that goes, and its spelling."""
        record, q = self.record, self.dialect.quoted
        texts = []
        for position, name in enumerate(self.schema.names):
            comes, goes = self._in_row(name), f"{self._row(record.deleted)}.{q(name)}"
            if not record.operation:
                comes, goes = f"__body.{q(name)}", "NULL"
            if not self.keys:
                text = f"CASE WHEN __side = 1 THEN {comes} ELSE {goes} END"
            elif name in self.keys:
                moved = f"WHEN __side = 0 THEN coalesce({self._old_key(name)}, {comes}) " if record.moved else ""
                text = f"CASE {moved}WHEN __what = 'upsert' THEN {comes} ELSE {goes} END"
                if self._has_key:  # the record's key is parsed only where the record itself does not have it
                    text = f"coalesce({text}, {self._in_key(name)})"
            else:  # the other columns of a delete may be defaults
                text = f"CASE WHEN __what = 'upsert'{' AND __side = 1' if record.moved else ''} THEN {comes} END"
            texts.append(f"{text} AS __t{position}")
            if self._has_spelling(position):
                spelled = f"{self._path('__body', record.types)}.{q(name)}" if record.types else ""
                texts.append(f"{spelled or self.dialect.spelling('__spellings', name)} AS __s{position}")
        if record.is_list:
            texts.append("coalesce(__what IN ('upsert', 'delete') AND __rows.row IS NULL, false) AS __is_empty")
        elif record.operation:
            texts.append(f"{self._is_empty()} AS __is_empty")
        if not self.keys:
            old = self._path("__body", record.old)
            texts.append(f"coalesce(__what = 'upsert' AND __is_update AND {old} IS NULL, false) AS __lacks_old")
        return texts

    def _values(self) -> list[str]:
        """Return every column in its type, what was not sent, and the names of the unreadable columns."""
        columns, marked, bad = [], [], []
        for position, field in enumerate(self.schema):
            text, mark, value = f"__t{position}", f"__m{position}", f"__v{position}"
            columns.append(f"CASE WHEN {mark} THEN NULL ELSE {value} END AS {self.dialect.quoted(field.name)}")
            unread = f"{text} IS NOT NULL AND NOT ({mark}) AND ({value}) IS NULL"
            if position > _MOST_MARKED:
                unread = f"{text} IS NOT NULL AND ({mark} OR ({value}) IS NULL)"
            else:
                marked.append(f"CASE WHEN {mark} THEN CAST({1 << position} AS BIGINT) ELSE CAST(0 AS BIGINT) END")
            several = self._spelling(position).is_unsaid(f"__p{position}")
            if several is not None:
                bad.append(f"WHEN {unread} AND {several} THEN {self.dialect.literal(f'UNKNOWN_ENCODING {field.name}')}")
            bad.append(f"WHEN {unread} THEN {self.dialect.literal(f'UNDECODABLE_VALUE {field.name}')}")
        columns.append(f"{' + '.join(marked) or 'CAST(0 AS BIGINT)'} AS {UNAVAILABLE_BITS}")
        empty = "WHEN __is_empty THEN 'UNDECODABLE_RECORD' " if self.record.operation else ""
        empty += "" if self.keys else "WHEN __lacks_old THEN 'OLD_ROW_MISSING' "
        reasons = " ".join(bad)
        needed = f"CASE {empty}WHEN __what IN ('upsert', 'delete') THEN CASE {reasons} END END" if bad else "NULL"
        columns.append(f"coalesce(__reject_record, {needed}) AS {REJECT}")
        for name, column in self.options.metadata.items():
            columns.append(f"{self._metadata(name)} AS {self.dialect.quoted(column)}")
        return columns

    def _metadata(self, name: str) -> str:
        if name in _IN_KAFKA:
            return _inside(name)
        if name == "position":
            return "TRY_CAST(__meta_position AS BIGINT)" if self.record.position else "CAST(NULL AS BIGINT)"
        if name not in self.record.times:
            return self.dialect.converted("CAST(NULL AS STRING)", METADATA[name], self.options)
        unit = self.record.times[name][1]
        if unit is None:  # a text is JSON in its quotes
            return self.dialect.converted(f"'\"' || __meta_{name} || '\"'", METADATA[name], RecordOptions())
        return self.dialect.converted(f"__meta_{name}", METADATA[name], RecordOptions(time_unit=unit))

    def _line(self) -> list[str]:
        q = self.dialect.quoted
        columns = [*self.schema.names, UNAVAILABLE_BITS, REJECT, *self.options.metadata.values()]
        return [f"CASE WHEN {REJECT} IS NULL THEN __what END AS {CHANGE}", *map(q, columns)]

    def _path(self, start: str, path: Sequence[str]) -> str:
        return ".".join([start, *map(self.dialect.quoted, path)])


def _inside(name: str) -> str:
    """Return the name of a record's Kafka position between the steps."""
    return f"__in_{name}"


def _put(fields: dict[str, Fields | str | None], path: Sequence[str], inner: Fields | None) -> None:
    if not path:
        return
    for name in path[:-1]:
        within = fields.setdefault(name, {})
        if not isinstance(within, dict):
            raise TypeError(f"{path} goes through a text")
        fields = within
    fields.setdefault(path[-1], inner)
