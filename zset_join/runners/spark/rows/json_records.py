"""Records of JSON read by Spark's own `from_json`: what Debezium, Canal and Maxwell write becomes changes of a table.

The law: the same lines as `zset_join.sources.json_records` reads in process.

Only what `mapped_records` has no reader for is read here: records in a session without DuckDB, and maps with bytes as keys.

Cost: about sixteen times that of flat JSON, and planning takes a second; see `benchmarks/README.md`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import DataFrame

from zset_join.changelog.formats import RecordOptions, record_format
from zset_join.changelog.formats.record_spellings import Dialect, Fields, is_exact
from zset_join.changelog.formats.record_sql import RecordStatements
from zset_join.runners.spark.rows.conversions import (
    CORRUPT,
    exact_json,
    json_value,
    of_json,
    of_nested,
    of_text,
    parsed_json,
    plain_string,
    plain_text,
    struct_fields,
)
from zset_join.runners.spark.rows.names import literal, quoted

__all__ = ["read_records"]

_LATIN1 = r"^[\x00-\xFF]*$"


def read_records(
    records: DataFrame,
    format_name: str,
    schema: pa.Schema,
    keys: Sequence[str] = (),
    options: RecordOptions | None = None,
    *,
    kept: Sequence[str] = (),
    source: str | None = None,
) -> DataFrame:
    """Return the lines of records: `kept`, `__change`, the columns of the table, `__unavailable`, `__reject`, the metadata.

    Args:
        records: `key` and `value` as text or bytes, and `topic`, `partition`, `offset` where their metadata are requested.
        format_name: one of `RECORD_FORMATS`.
        schema: the columns of the table.
        keys: its key columns; none for a table without a key.
        options: of the format.
        kept: columns of `records` that go along.
        source: what the stream is called, and its table where no option names one; None: records of any table are read.

    Raises:
        OptionError: there is no such format.
    """
    record = record_format(format_name)
    statements = RecordStatements(
        record=record,
        schema=schema,
        keys=tuple(keys),
        options=options or RecordOptions(),
        dialect=_SparkDialect(counts_days=record.counts_times),
        source=source,
    )
    columns = [quoted(name) for name in records.columns if name not in ("key", "value")]
    key = "CAST(key AS STRING) AS key" if "key" in records.columns else "CAST(NULL AS STRING) AS key"
    exact = [f"{exact_json(name)} AS {name}" for name in ("key", "value")]
    no_topic = [] if "topic" in records.columns else ["CAST(NULL AS STRING) AS topic"]
    rows = records.selectExpr(*columns, *no_topic, key, "CAST(value AS STRING) AS value")
    columns += ["topic"] if no_topic else []
    rows = rows.selectExpr(*columns, *exact)
    for step in statements.steps("", kept):
        rows = (rows if step.where is None else rows.where(step.where)).selectExpr(*step.columns)
    return rows


class _SparkDialect(Dialect):
    """Spark's words.

    Args:
        counts_days: whether the format has numbers of days as dates.
    """

    def __init__(self, *, counts_days: bool) -> None:
        self._counts_days = counts_days

    def quoted(self, name: str) -> str:
        return quoted(name)

    def literal(self, text: str) -> str:
        return literal(text)

    def parsed(self, text: str, fields: Fields) -> str:
        return parsed_json(text, fields)

    def once(self, name: str, value: str) -> str:
        # Spark's optimizer moves conditions and projections through each other, and computes again what they use, but never
        # through a generator.
        return f"inline(array(named_struct('{name}', {value})))"

    def is_bad(self, struct: str) -> str:
        return f"({struct} IS NULL OR {struct}.{CORRUPT} IS NOT NULL)"

    def exploded(self, values: str) -> str:
        return f"explode({values})"

    def listed(self, *values: str) -> str:
        return f"array({', '.join(values)})"

    def parsed_lists(self, lists: Sequence[tuple[str, str, Fields]]) -> str:
        kinds = [f"ARRAY<STRUCT<{struct_fields(fields, ': ')}>>" for _, _, fields in lists]
        first, *others = [f"from_json({text}, {literal(kind)})" for (_, text, _), kind in zip(lists, kinds, strict=True)]
        names = [literal(name) for name, _, _ in lists]
        parts = [f"{names[0]}, r", *(f"{name}, get({one}, i)" for name, one in zip(names[1:], others, strict=True))]
        return f"explode_outer(transform({first}, (r, i) -> named_struct({', '.join(parts)})))"

    def exact_text(self, value: str) -> str:
        return json_value(value)

    def text_of(self, value: str, data_type: pa.DataType) -> str:
        if pt.is_string(data_type) or pt.is_large_string(data_type):
            return plain_string(value)
        return plain_text(value) if pt.is_floating(data_type) else super().text_of(value, data_type)

    def is_no_object(self, text: str, path: Sequence[str], row: str, names: Sequence[str]) -> str:  # noqa: ARG002 - the parser reports it
        return "false"

    def is_envelope(self, text: str) -> str:
        both = "array_contains({0}, 'payload') AND array_contains({0}, 'schema')".format(f"json_object_keys({text})")
        return f"coalesce(CASE WHEN contains({text}, 'payload') THEN {both} END, false)"

    def payload(self, text: str) -> str:
        return f"get_json_object({text}, '$.payload')"

    def spellings(self, text: str, side: str | None) -> str:
        columns = "ARRAY<STRUCT<field: STRING, type: STRING, name: STRING, parameters: STRUCT<scale: STRING>>>"
        inside = columns if side is None else f"ARRAY<STRUCT<field: STRING, fields: {columns}>>"
        fields = f"from_json(get_json_object({text}, '$.schema'), 'fields {inside}').fields"
        return fields if side is None else f"get(filter({fields}, f -> f.field = {literal(side)}), 0).fields"

    def spelling(self, spellings: str, column: str) -> str:
        found = f"get(filter({spellings}, f -> f.field = {literal(column)}), 0)"
        return f"coalesce({found}.name || coalesce(':' || {found}.parameters.scale, ''), {found}.type)"

    def matches(self, text: str, pattern: str) -> str:
        return f"{text} RLIKE {literal(pattern)}"

    def replaced(self, text: str, pattern: str, by: str) -> str:
        return f"regexp_replace({text}, {literal(pattern)}, {literal(by.replace(chr(92), '$'))})"

    def unscaled(self, text: str) -> str:
        # Put together of two halves of 64 bits, because no type of Spark has 128.
        digits = f"hex(try_to_binary({text}, 'base64'))"
        fill = f"CASE WHEN conv(substr({digits}, 1, 1), 16, 10) >= 8 THEN 'F' ELSE '0' END"
        wide = f"lpad({digits}, 32, {fill})"
        high, low = (
            f"CAST(conv(substr({wide}, {begin}, 16), 16, {base}) AS DECIMAL(38, 0))" for begin, base in ((1, -10), (17, 10))
        )
        number = f"try_add(try_multiply({high}, CAST(18446744073709551616 AS DECIMAL(38, 0))), {low})"
        return f"CASE WHEN length({digits}) BETWEEN 1 AND 32 AND length({text}) % 4 = 0 THEN {number} END"

    def placed(self, unscaled: str, scale: str) -> str:
        number = f"CAST(abs({unscaled}) AS STRING)"
        shown = f"lpad({number}, greatest(length({number}), {scale} + 1), '0')"
        shown = f"CASE WHEN {unscaled} < 0 THEN '-' ELSE '' END || {shown}"
        whole = f"{shown} || CASE WHEN {unscaled} = 0 THEN '' ELSE repeat('0', -{scale}) END"
        point = f"regexp_replace({shown}, '(.{{' || CAST({scale} AS STRING) || '}})$', '.$1')"
        return f"CASE WHEN {scale} BETWEEN 1 AND 76 THEN {point} WHEN {scale} BETWEEN -38 AND 0 THEN {whole} END"

    def bytes_of(self, text: str, encoding: str) -> str:
        if encoding == "latin1":
            return f"CASE WHEN {text} RLIKE {literal(_LATIN1)} THEN encode({text}, 'ISO-8859-1') END"
        if encoding == "base64-url":
            plain = f"translate({text}, '-_', '+/')"
            text, encoding = f"rpad({plain}, CAST(ceil(length({plain}) / 4) * 4 AS INT), '=')", "base64"
        return f"try_to_binary({text}, '{encoding}')"

    def converted(self, text: str, data_type: pa.DataType, options: RecordOptions) -> str:
        if pt.is_string(data_type) or pt.is_large_string(data_type):
            return text
        if pt.is_nested(data_type):
            return of_nested(text, data_type)
        if not is_exact(data_type):
            return of_text(text, data_type)
        days = self._counts_days and pt.is_date(data_type)
        unit = options.time_unit if isinstance(options.time_unit, str) else None
        return of_json(text, data_type, counts_days=days, unit=unit)
