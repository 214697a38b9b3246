"""Records of JSON read by Spark's own `from_json`: what Debezium, Canal and Maxwell write becomes changes of a table.

The law: the same lines as `zset_join.sources.json_records` reads in process.

Records of formats with one row each, of tables with a key, are read by `typed_records` first; what is out of the ordinary
among them, and all others, as texts by the statements.

Cost: an ordinary record is parsed once, as texts once more; see `benchmarks/README.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import DataFrame

from zset_join.changelog.formats import RecordFormat, RecordOptions, record_format
from zset_join.changelog.formats.record_sql import CHANGE, REJECT, UNAVAILABLE_BITS, Dialect, RecordStatements, Step
from zset_join.spark.rows.conversions import is_by_value, json_value, of_either, of_json, of_text
from zset_join.spark.rows.names import quoted
from zset_join.spark.rows.schemas import spark_schema
from zset_join.spark.rows.typed_records import (
    CORRUPT,
    IS_TYPED,
    LINE,
    TypedRecords,
    can_read_values,
    literal,
    parsed_json,
    struct_fields,
)

__all__ = ["read_records"]

_DIGITS = 15  # of a decimal with a point that is written as a number, as in process


def read_records(
    records: DataFrame,
    format_name: str,
    schema: pa.Schema,
    keys: Sequence[str] = (),
    options: RecordOptions | None = None,
    *,
    kept: Sequence[str] = (),
    values_first: bool = True,
) -> DataFrame:
    """Return the lines of records: `kept`, `__change`, the columns of the table, `__unavailable`, `__reject`, the metadata.

    Args:
        records: `key` and `value` as text or bytes, and `topic`, `partition`, `offset` where their metadata are asked for.
        format_name: one of `RECORD_FORMATS`.
        schema: the columns of the table.
        keys: its key columns; none for a table without a key.
        options: what the format leaves open.
        kept: columns of `records` that go along.
        values_first: try to read values as they are before texts; the lines are the same.

    Raises:
        OptionError: there is no such format.
    """
    record = record_format(format_name)
    given = options or RecordOptions()
    dialect = _SparkDialect(schema, keys, record, given)
    reads_values = values_first and can_read_values(record, keys)
    statements = RecordStatements(
        record=record,
        schema=schema,
        keys=tuple(keys),
        options=given,
        dialect=dialect,
    )
    columns = [quoted(name) for name in records.columns if name not in ("key", "value")]
    key = "CAST(key AS STRING) AS key" if "key" in records.columns else "CAST(NULL AS STRING) AS key"
    rows = records.selectExpr(*columns, key, "CAST(value AS STRING) AS value")
    if not reads_values:
        return _by_steps(rows, statements.steps("", kept))
    typed = TypedRecords(
        record=record,
        schema=schema,
        keys=statements.keys,
        options=statements.options,
        converted=dialect.of_either,
    )
    for step in typed.steps(columns, statements.unwrapped("value")):
        rows = rows.selectExpr(*step)
    *before, last = statements.steps("", [*kept, IS_TYPED, LINE])
    records_read = _by_steps(rows, before).where(f"{IS_TYPED} OR {last.where}").selectExpr(*last.columns)
    return records_read.selectExpr(*map(quoted, kept), *_of_both(schema, statements.options))


def _by_steps(rows: DataFrame, steps: Sequence[Step]) -> DataFrame:
    for step in steps:
        rows = (rows if step.where is None else rows.where(step.where)).selectExpr(*step.columns)
    return rows


def _of_both(schema: pa.Schema, options: RecordOptions) -> list[str]:
    """Return the columns of a line, as its values said them or as texts did."""
    names = [CHANGE, *schema.names, UNAVAILABLE_BITS, REJECT, *options.metadata.values()]
    typed = {name: f"{LINE}.{quoted(name)}" for name in names} | {REJECT: "NULL"}
    return [f"CASE WHEN {IS_TYPED} THEN {typed[name]} ELSE {quoted(name)} END AS {quoted(name)}" for name in names]


class _SparkDialect(Dialect):
    """Spark's words.

    Args:
        schema: the columns of the table.
        keys: its key columns.
        record: the format.
        options: what it leaves open.
    """

    def __init__(self, schema: pa.Schema, keys: Sequence[str], record: RecordFormat, options: RecordOptions) -> None:
        self._decimals = options.decimals or record.decimals
        self._counts_days = record.counts_times
        self._rows = [list(schema.names), list(keys)]
        self._values = {field.name for field in schema if is_by_value(field.type) and not self._is_base64(field.type)}

    def _is_base64(self, kind: pa.DataType) -> bool:
        return bool(pt.is_decimal(kind)) and self._decimals == "base64"

    def _typed(self, fields: Mapping[str, object]) -> dict[str, object]:
        """Return fields with those of a row as VARIANT where numbers and texts are told apart."""
        values = self._values if list(fields) in self._rows else set()
        return {
            name: self._typed(inner) if isinstance(inner, Mapping) else "VARIANT" if name in values else inner
            for name, inner in fields.items()
        }

    def as_text(self, value: str, column: str) -> str:
        return json_value(value) if column in self._values else value

    def quoted(self, name: str) -> str:
        return quoted(name)

    def literal(self, text: str) -> str:
        return literal(text)

    def parsed(self, text: str, fields: Mapping[str, object]) -> str:
        return parsed_json(text, self._typed(fields))

    def once(self, name: str, value: str) -> str:
        # Spark's optimizer moves conditions and projections through each other, and computes anew what they use, but never
        # through a generator.
        return f"inline(array(named_struct('{name}', {value})))"

    def is_bad(self, struct: str) -> str:
        return f"({struct} IS NULL OR {struct}.{CORRUPT} IS NOT NULL)"

    def exploded(self, *values: str) -> str:
        return f"explode(array({', '.join(values)}))"

    def parsed_list(self, text: str, fields: Mapping[str, object]) -> str:
        row = struct_fields(self._typed(fields), ": ")
        return f"explode_outer(from_json({text}, {literal(f'ARRAY<STRUCT<{row}>>')}))"

    def member(self, text: str, name: str) -> str:
        return f"coalesce(get_json_object({text}, {self.literal(f'$.{name}')}), {text})"

    def converted(self, text: str, data_type: pa.DataType, options: RecordOptions, decimals: str) -> str:
        if self._is_base64(data_type) or not is_by_value(data_type):
            return self._of_plain(text, data_type)
        days = self._counts_days and pt.is_date(data_type)
        return of_json(text, data_type, counts_days=days, unit=options.time_unit, most_digits=_DIGITS)

    def of_either(self, text: str, data_type: pa.DataType) -> str:
        """Return the expression for a text of which Spark's reader does not tell whether it was a string or a number."""
        if self._is_base64(data_type) or not is_by_value(data_type):
            return self._of_plain(text, data_type)
        return of_either(text, data_type)

    @staticmethod
    def _of_plain(text: str, data_type: pa.DataType) -> str:
        if pt.is_string(data_type) or pt.is_large_string(data_type):
            return text
        wanted = spark_schema(pa.schema([pa.field("c", data_type)]))["c"].dataType.simpleString()
        if pt.is_binary(data_type) or pt.is_large_binary(data_type):
            return f"try_to_binary({text}, 'base64')"
        if pt.is_decimal(data_type):
            return _decimal(text, data_type, wanted)
        if pt.is_floating(data_type):
            return of_text(text, data_type)
        return f"from_json({text}, '{wanted}')"


def _decimal(text: str, data_type: pa.DataType, wanted: str) -> str:
    """Return the expression for a decimal whose unscaled value is written as base64 of its big-endian bytes.

    The value is put together of two halves of 64 bits as text, because no type of Spark has 128.
    """
    digits = f"hex(try_to_binary({text}, 'base64'))"
    fill = f"CASE WHEN conv(substr({digits}, 1, 1), 16, 10) >= 8 THEN 'F' ELSE '0' END"
    wide = f"lpad({digits}, 32, {fill})"
    high, low = (
        f"CAST(conv(substr({wide}, {begin}, 16), 16, {base}) AS DECIMAL(38, 0))" for begin, base in ((1, -10), (17, 10))
    )
    unscaled = f"try_add(try_multiply({high}, CAST(18446744073709551616 AS DECIMAL(38, 0))), {low})"
    shown = f"lpad(CAST(abs({unscaled}) AS STRING), {data_type.scale + 1}, '0')"
    sign = f"CASE WHEN {unscaled} < 0 THEN '-' ELSE '' END"
    if data_type.scale:
        plain = f"CAST(abs({unscaled}) AS STRING)"
        padded = f"CASE WHEN length({plain}) > {data_type.scale} THEN {plain} ELSE {shown} END"
        shown = f"concat(substr({padded}, 1, length({padded}) - {data_type.scale}), '.', right({padded}, {data_type.scale}))"
    return f"CASE WHEN length({digits}) BETWEEN 1 AND 32 THEN TRY_CAST(concat({sign}, {shown}) AS {wanted}) END"
