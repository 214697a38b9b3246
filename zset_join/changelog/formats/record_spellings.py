"""How records spell the values of one column: by their own schema, else by an option, else nothing is read.

Kafka Connect puts a schema beside a record (`{"schema": ..., "payload": ...}`), which names the encoding of every column. Per
column
it becomes one text, its *spelling*: the logical name (`io.debezium.time.MicroTimestamp`), for decimals followed by their scale
(`org.apache.kafka.connect.data.Decimal:2`), else the plain type (`int64`). Canal names MySQL's types in `mysqlType`.

| column     | a schema has                    | without one                                                                 |
|------------|--------------------------------|-----------------------------------------------------------------------------|
| timestamp  | the unit of a number           | `time_unit`; a number without a unit is not read                            |
| date       | days, or a text                | a number of days, where the format has those                                  |
| decimal    | bytes with their scale, a text | a number is itself; a text is read by `decimals`; else digits are refused |
| bytes      | bytes in base64                | `binary`, else what the format writes                                         |

An object of `scale` and `value` (Debezium's VariableScaleDecimal) describes itself.

Every expression here is NULL where the text holds no value, and `is_unsaid` where it may mean several.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.types as pt

from zset_join.changelog.formats.records import RecordFormat, RecordOptions, TimeUnit, placeholders

__all__ = ["EXACT", "Dialect", "Fields", "Spelling", "SpellingWords", "is_exact", "needs_schema"]

EXACT = "exact"
"""A field whose JSON is kept unchanged, so that numbers and texts differ: texts have quotes."""

Fields = Mapping[str, "Fields | str | None"]

_UNITS: Mapping[TimeUnit, tuple[str, ...]] = {
    "ms": ("io.debezium.time.Timestamp", "org.apache.kafka.connect.data.Timestamp"),
    "us": ("io.debezium.time.MicroTimestamp",),
    "ns": ("io.debezium.time.NanoTimestamp",),
}
_NUMBERS = ("int8", "int16", "int32", "int64")
_DAYS = ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date")
_TEXT_DAYS = ("string", "io.debezium.time.IsoDate")
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_NUMBER = "^[-+]?[0-9]*[.]?[0-9]*([eE][-+]?[0-9]+)?$"
_BINARY_TYPE = "^(binary|varbinary|tinyblob|blob|mediumblob|longblob|bit|geometry)"


class SpellingWords(ABC):
    """Names of the functions that parse spellings, in one engine."""

    @abstractmethod
    def is_envelope(self, text: str) -> str:
        """Return the condition, never NULL, that a text is a JSON object with the members `schema` and `payload`."""

    @abstractmethod
    def payload(self, text: str) -> str:
        """Return the expression for the text of an envelope's payload; NULL where that is null."""

    @abstractmethod
    def spellings(self, text: str, side: str | None) -> str:
        """Return the expression for the spellings in an envelope's schema: of the row at `side`, or of the record itself."""

    @abstractmethod
    def spelling(self, spellings: str, column: str) -> str:
        """Return the expression for the spelling of a column; NULL where none is given."""

    @abstractmethod
    def matches(self, text: str, pattern: str) -> str:
        """Return the condition that a part of a text matches a regular expression."""

    @abstractmethod
    def replaced(self, text: str, pattern: str, by: str) -> str:
        """Return the expression for a text in which every match of a regular expression is replaced."""

    @abstractmethod
    def unscaled(self, text: str) -> str:
        """Return the number whose big-endian bytes are written as base64, of 128 bits at most; NULL where that is no such text.

        A number that the engine has no type for may come as text.
        """

    @abstractmethod
    def placed(self, unscaled: str, scale: str) -> str:
        """Return the digits of an unscaled number, with a point in its place; NULL where there is no number."""

    @abstractmethod
    def bytes_of(self, text: str, encoding: str) -> str:
        """Return the expression for the bytes that a text is, encoded as base64, base64-url, hex or latin1."""

    @abstractmethod
    def is_no_object(self, text: str, path: Sequence[str], row: str, names: Sequence[str]) -> str:
        """Return the condition that what is at a path of a record is neither an object nor null."""

    def inside(self, text: str) -> str:
        """Return the text that an exact value is; NULL where it is no text."""
        return f"CASE WHEN {text} LIKE '\"%' THEN substr({text}, 2, length({text}) - 2) END"

    def quoted_text(self, text: str) -> str:
        """Return the text inside of an exact value's quotes."""
        return f"trim(BOTH '\"' FROM {text})"


class Dialect(SpellingWords):
    """Names of the few functions that the statements need, in one engine."""

    @abstractmethod
    def quoted(self, name: str) -> str:
        """Return a name as one identifier."""

    @abstractmethod
    def parsed(self, text: str, fields: Fields) -> str:
        """Return the expression for the struct of texts in a JSON object; NULL where the text is no JSON object."""

    @abstractmethod
    def parsed_lists(self, lists: Sequence[tuple[str, str, Fields]]) -> str:
        """Return the expression that gives a row per object of a JSON list: a struct of texts, and those of lists beside it.

        Args:
            lists: the name of each list's part, its text and its fields; the first one decides how many rows there are, and
                gives one NULL where it is no list, or an empty one.
        """

    @abstractmethod
    def is_bad(self, struct: str) -> str:
        """Return the condition that what `parsed` gave was no JSON object."""

    @abstractmethod
    def exploded(self, values: str) -> str:
        """Return the expression that gives a row per value of a list."""

    @abstractmethod
    def listed(self, *values: str) -> str:
        """Return the expression for a list."""

    @abstractmethod
    def converted(self, text: str, data_type: pa.DataType, options: RecordOptions) -> str:
        """Return the expression for a plain text in a type; NULL where the text is no value of it.

        The text is exact where `is_exact` is true of the type: a JSON value, whose texts are in quotes. Of timestamps, a number
        counts the `time_unit` of the options, and is not read where that is None.
        """

    def keeps_json(self, data_type: pa.DataType) -> bool:
        """Return whether values of a column are parsed as `EXACT`."""
        return is_exact(data_type)

    def text_of(self, value: str, data_type: pa.DataType) -> str:
        """Return the text of what was parsed of a column: exact where `is_exact` is true of the type."""
        return self.exact_text(value) if self.keeps_json(data_type) else value

    def once(self, name: str, value: str) -> str:
        """Return a named column, so that its value is computed once per row, however often it is used."""
        return f"{value} AS {name}"

    def exact_text(self, value: str) -> str:
        """Return a value parsed as `EXACT` as text."""
        return value

    def literal(self, text: str) -> str:
        return "'" + text.replace("'", "''") + "'"

    def listing(self, texts: Sequence[str]) -> str:
        """Return literals, with commas."""
        return ", ".join(map(self.literal, texts))

    def is_placeholder(self, text: str, placeholder: str) -> str:
        """Return the condition that a text represents a value that was not sent, however the type of its column spells that."""
        member = "{" + ":".join([_in_json(placeholder)] * 2) + "}"
        compact = self.replaced(text, "[ ]*([{:}])[ ]*", r"\1")
        spaced = f"{text} LIKE '{{%' AND {compact} = {self.literal(member)}"
        return f"({text} IN ({self.listing(placeholders(placeholder))}) OR ({spaced}))"


def is_exact(data_type: pa.DataType) -> bool:
    """Return whether numbers and texts of a column are distinguished: of all but floats, texts and nested ones."""
    # Floats are read alike from both; inside Spark a VARIANT would forget the sign of zero.
    is_number = pt.is_integer(data_type) or pt.is_decimal(data_type)
    is_bytes = pt.is_binary(data_type) or pt.is_large_binary(data_type)
    return bool(is_number or is_bytes or pt.is_boolean(data_type) or pt.is_date(data_type) or pt.is_timestamp(data_type))


def needs_schema(data_type: pa.DataType) -> bool:
    """Return whether a schema can change how a column is read."""
    return not (pt.is_boolean(data_type) or pt.is_nested(data_type))


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """Make the expressions that read one column."""

    record: RecordFormat
    field: pa.Field
    options: RecordOptions
    dialect: Dialect
    text: str
    coding: str | None

    @property
    def is_marked(self) -> str:
        """Return the condition that the value was not sent."""
        text = self.dialect.quoted_text(self.text) if is_exact(self.field.type) else self.text
        return self.dialect.is_placeholder(text, self.options.unavailable)

    @property
    def is_scaled(self) -> bool:
        """Return whether values of the column may be unscaled numbers in base64."""
        base64 = self.record.decimals == "base64" or self.options.decimals == "base64" or self.coding is not None
        return bool(pt.is_decimal(self.field.type)) and (base64 or self.record.enveloped)

    def scaled(self) -> tuple[str, str]:
        """Return the expressions for the base64 of an unscaled number, and for its scale; NULL for other values."""
        inside = self.dialect.quoted_text(self.text)
        parts = f"({self.dialect.parsed(self.text, {'scale': None, 'value': None})})"
        is_object = f"{self.text} LIKE '{{%'"
        declared = self.options.decimals or self.record.decimals
        text = scale = "NULL"
        if declared == "base64":
            is_several = "" if self.options.decimals else f" AND NOT {self.dialect.matches(inside, _NUMBER)}"
            unsaid = "" if self.coding is None else f" AND {self.coding} IS NULL"
            text, scale = f"CASE WHEN {self.text} LIKE '\"%'{is_several}{unsaid} THEN {inside} END", str(self.field.type.scale)
        if self.coding is not None:
            by_schema = f"WHEN {self.coding} LIKE '{_DECIMAL}:%' AND {self.text} LIKE '\"%' THEN"
            text = f"CASE {by_schema} {inside} ELSE {text} END"
            scale = f"CASE {by_schema} TRY_CAST(substr({self.coding}, {len(_DECIMAL) + 2}) AS INT) ELSE {scale} END"
        return (
            f"CASE WHEN {is_object} THEN {parts}.value ELSE {text} END",
            f"CASE WHEN {is_object} THEN TRY_CAST({parts}.scale AS INT) ELSE CAST({scale} AS INT) END",
        )

    def fitting(self, digits: str) -> str:
        """Return the digits of a decimal as the column can hold them; NULL where that would be another number."""
        scale = max(self.field.type.scale, 0)
        more = self.dialect.matches(digits, f"[.][0-9]{{{scale}}}[0-9]*[1-9]")
        return f"CASE WHEN NOT {more} THEN '\"' || {digits} || '\"' END"

    def plain(self, digits: str) -> str:
        """Return the text of the value without its encoding."""
        kind = self.field.type
        if self.is_scaled:
            quoted = f"{self.text} LIKE '\"%'"
            unread = (
                f"{quoted}"
                if self.coding is None
                else f"{quoted} AND ({self.coding} IS NULL OR {self.coding} LIKE '{_DECIMAL}:%')"
            )
            rest = f"WHEN NOT ({unread}) THEN {self.text} "
            if (self.options.decimals or self.record.decimals) == "text":
                rest = "" if self.coding is None else f"WHEN {quoted} AND {self.coding} LIKE '{_DECIMAL}:%' THEN NULL "
                rest += f"WHEN {self.text} NOT LIKE '{{%' THEN {self.text} "
            return f"CASE WHEN {digits} IS NOT NULL THEN {self.fitting(digits)} {rest}END"
        if (
            self.coding is None
            or pt.is_decimal(kind)
            or not (pt.is_integer(kind) or pt.is_floating(kind) or pt.is_string(kind) or pt.is_large_string(kind))
        ):
            return self.text
        # Base64 is none of these types; digits may be both, where there are as many as base64 has.
        is_number = f"{self.dialect.matches(self.text, _NUMBER)} AND length({self.text}) % 4 <> 0"
        return f"CASE WHEN {self.coding} NOT LIKE '{_DECIMAL}:%' OR {self.coding} IS NULL OR {is_number} THEN {self.text} END"

    def value(self, plain: str) -> str:
        kind = self.field.type
        if pt.is_timestamp(kind):
            return self._instant(plain)
        if pt.is_date(kind) and self.coding is not None:
            read = self.dialect.converted(plain, kind, self.options)
            days = self.dialect.listing((*_DAYS, *_TEXT_DAYS))
            return f"CASE WHEN {self.coding} IS NULL OR {self.coding} IN ({days}) THEN {read} END"
        if pt.is_binary(kind) or pt.is_large_binary(kind):
            return self._bytes(plain)
        return self.dialect.converted(plain, kind, self.options)

    def is_unsaid(self, plain: str) -> str | None:
        """Return the condition that the text of a value that is not read may mean several; None where it never does."""
        kind = self.field.type
        unsaid = (
            "true" if self.coding is None else f"({self.coding} IS NULL OR {self.coding} IN ({self.dialect.listing(_NUMBERS)}))"
        )
        if pt.is_timestamp(kind) and self.options.unit_of(self.field.name) is None:
            return f"{unsaid} AND {self.dialect.matches(plain, '^-?[0-9]+$')}"
        if pt.is_decimal(kind) and self.options.decimals is None and self.record.decimals == "base64":
            text = self.dialect.quoted_text(self.text)
            coding = "" if self.coding is None else f"{self.coding} IS NULL AND "
            return f"{coding}{self.text} LIKE '\"%' AND {self.dialect.matches(text, _NUMBER)}"
        if (pt.is_binary(kind) or pt.is_large_binary(kind)) and self.coding is not None and self.options.binary is None:
            return f"{self.coding} = 'string'"
        return None

    # -- times --------------------------------------------------------------------------------------------------------

    def _instant(self, plain: str) -> str:
        declared = self._counted(plain, self.options.unit_of(self.field.name))
        if self.coding is None:
            return declared
        cases = [f"WHEN {self.coding} IS NULL OR {self.coding} IN ({self.dialect.listing(_NUMBERS)}) THEN {declared}"]
        cases += [
            f"WHEN {self.coding} IN ({self.dialect.listing(names)}) THEN {self._counted(plain, unit)}"
            for unit, names in _UNITS.items()
        ]
        return f"CASE {' '.join(cases)} ELSE {self._counted(plain, None)} END"

    def _counted(self, plain: str, unit: TimeUnit | None) -> str:
        return self.dialect.converted(plain, self.field.type, replace(self.options, time_unit=unit))

    # -- bytes --------------------------------------------------------------------------------------------------------

    def _bytes(self, exact: str) -> str:
        plain = self.dialect.inside(exact)
        declared = self.dialect.bytes_of(plain, self.options.binary or self.record.binary)
        if self.coding is None:
            return declared
        if self.record.binary == "latin1":
            is_binary = self.dialect.matches(f"lower({self.coding})", _BINARY_TYPE)
            return f"CASE WHEN {self.coding} IS NULL OR {is_binary} THEN {declared} END"
        cases = f"WHEN {self.coding} = 'bytes' THEN {self.dialect.bytes_of(plain, 'base64')}"
        if self.options.binary is not None:
            cases += f" WHEN {self.coding} = 'string' THEN {declared}"
        return f"CASE WHEN {self.coding} IS NULL THEN {declared} {cases} END"


def _in_json(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
