"""SQL of Spark for the one table of conversions: a text, or a JSON value, as a value of a column.

The law: as `zset_join.conversions`, which says what is read and what is refused. An expression is NULL where the text does not
convert; its caller checks that the text is NULL too.

A JSON value stands in a text as `json_value` makes it of a VARIANT: a string in quotes, without escapes, anything else as JSON
has it.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

from zset_join.changelog.formats.record_sql import FIRST_DAY, LAST_DAY, PER_SECOND, first_and_last
from zset_join.spark.rows.schemas import spark_type

__all__ = ["counted_day", "counted_instant", "json_value", "of_either", "of_json", "of_text"]

_BLANK = r"[\\x00-\\x20\\x7f]*"
_ZONE = r"[0-9]:[0-9]{1,2}:[0-9]{1,2}(\\.[0-9]*)? *[^0-9. \\x00-\\x20\\x7f]"
_LOST_FRACTION = r"\\.[0-9]{6}[0-9]*[1-9]"


def json_value(variant: str) -> str:
    """Return the expression for the text of a JSON value; NULL of null."""
    return (
        f"CASE schema_of_variant({variant}) WHEN 'VOID' THEN NULL "
        f"WHEN 'STRING' THEN concat('\"', CAST({variant} AS STRING), '\"') ELSE CAST({variant} AS STRING) END"
    )


def of_text(text: str, kind: pa.DataType) -> str:
    """Return the expression for a text as a value of a type; NULL where the text does not say one."""
    wanted = spark_type(kind).simpleString()
    cast = f"TRY_CAST({text} AS {wanted})"
    if pt.is_decimal(kind):
        return f"CASE WHEN {_is_exact(text, kind.scale)} THEN {cast} END"
    if pt.is_date(kind):
        return f"CASE WHEN {cast} BETWEEN DATE'0001-01-01' AND DATE'9999-12-31' THEN {cast} END"
    if pt.is_timestamp(kind):
        is_date = rf"{text} RLIKE '^{_BLANK}[+]?[0-9]{{4}}'"
        first, last = "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"
        if kind.tz is None:
            between = f"{cast} BETWEEN TIMESTAMP_NTZ'{first}' AND TIMESTAMP_NTZ'{last}' AND NOT {text} RLIKE '{_ZONE}'"
        else:
            between = f"{cast} BETWEEN TIMESTAMP'{first}Z' AND TIMESTAMP'{last}Z'"
        return f"CASE WHEN {is_date} AND {between} AND NOT {text} RLIKE '{_LOST_FRACTION}' THEN {cast} END"
    return cast


def of_either(text: str, kind: pa.DataType) -> str:
    """Return the expression for a text that may have been a JSON string or number; NULL also where it matters which it was."""
    if pt.is_date(kind) or pt.is_timestamp(kind):
        return rf"CASE WHEN {text} RLIKE '^{_BLANK}[+]?[0-9]{{4,7}}-' THEN {of_text(text, kind)} END"
    if pt.is_boolean(kind):
        return "CAST(NULL AS BOOLEAN)"
    if pt.is_decimal(kind):  # Spark's reader has put numbers with a point through a double
        few = rf"NOT {text} RLIKE '[.eE]' OR length({text}) <= 15"
        return f"CASE WHEN {few} THEN {of_text(text, kind)} END"
    return of_text(text, kind)


def of_json(
    value: str, kind: pa.DataType, *, counts_days: bool = False, unit: str | None = None, most_digits: int | None = None
) -> str:
    """Return the expression for a JSON value as a value of a type; NULL where it does not say one.

    Args:
        value: as `json_value` has it.
        kind: a type that `is_by_value`.
        counts_days: whether a number is a date.
        unit: of a number that is a timestamp; None where none is.
        most_digits: of a decimal with a point that is written as a number; None: any.
    """
    text = of_text(f"substr({value}, 2, length({value}) - 2)", kind)
    number = _of_number(value, kind, counts_days=counts_days, unit=unit, most_digits=most_digits)
    return f"CASE WHEN {value} LIKE '\"%' THEN {text} ELSE {number} END"


def _of_number(value: str, kind: pa.DataType, *, counts_days: bool, unit: str | None, most_digits: int | None) -> str:
    wanted = spark_type(kind).simpleString()
    if pt.is_boolean(kind):
        return f"CASE {value} WHEN 'true' THEN true WHEN 'false' THEN false END"
    if pt.is_integer(kind):
        return _whole(value, wanted)
    if pt.is_date(kind):
        return counted_day(_whole(value, "bigint")) if counts_days else f"CAST(NULL AS {wanted})"
    if pt.is_timestamp(kind):
        return (
            counted_instant(_whole(value, "bigint"), unit, with_zone=kind.tz is not None) if unit else f"CAST(NULL AS {wanted})"
        )
    if pt.is_decimal(kind) and most_digits is not None:
        digits = rf"length(regexp_replace(regexp_replace({value}, 'E.*$', ''), '[^0-9]', ''))"
        return f"CASE WHEN NOT {value} RLIKE '[.E]' OR {digits} <= {most_digits} THEN {of_text(value, kind)} END"
    return of_text(value, kind)


def _whole(value: str, wanted: str) -> str:
    """Return the expression for a JSON number that is whole, however it is written."""
    number = f"TRY_CAST({value} AS DOUBLE)"
    has_fraction = rf"{value} RLIKE '\\.[0-9]*[1-9]' AND NOT {value} RLIKE 'E'"
    is_whole = f"NOT ({has_fraction}) AND {number} = rint({number}) AND abs({number}) < 9223372036854775808D"
    of_double = f"TRY_CAST(TRY_CAST({number} AS BIGINT) AS {wanted})"
    return f"CASE WHEN NOT {value} RLIKE '[.E]' THEN TRY_CAST({value} AS {wanted}) WHEN {is_whole} THEN {of_double} END"


def _is_exact(text: str, scale: int) -> str:
    """Return the condition that a text of a decimal has no more decimal places than a scale, but for zeros."""
    mantissa = rf"regexp_extract({text}, '^{_BLANK}[+-]?([0-9.]*)', 1)"
    digits = f"replace({mantissa}, '.', '')"
    places = rf"length(regexp_extract({mantissa}, '\\.([0-9]*)', 1))"
    zeros = f"(length({digits}) - length(rtrim('0', {digits})))"
    exponent = rf"coalesce(TRY_CAST(regexp_extract({text}, '[eE]([+-]?[0-9]+)', 1) AS INT), 0)"
    is_plain = f"{places} <= {scale} AND NOT {text} RLIKE '[eE]'"
    return f"({is_plain} OR rtrim('0', {digits}) = '' OR {places} - {zeros} - {exponent} <= {scale})"


def counted_day(number: str) -> str:
    """Return the date of a number of days since 1970; NULL outside of the years 1 to 9999."""
    return f"CASE WHEN {number} BETWEEN {FIRST_DAY} AND {LAST_DAY} THEN date_add(DATE'1970-01-01', CAST({number} AS INT)) END"


def counted_instant(number: str, unit: str, *, with_zone: bool) -> str:
    """Return the instant of a number of units since 1970; NULL outside of the years 1 to 9999."""
    first, last = first_and_last(unit)
    begin = "TIMESTAMP'1970-01-01 00:00:00Z'" if with_zone else "TIMESTAMP_NTZ'1970-01-01 00:00:00'"
    micros = f"({number}) DIV 1000" if unit == "ns" else f"({number}) * {1_000_000 // PER_SECOND[unit]}"
    return f"CASE WHEN {number} BETWEEN {first}L AND {last}L THEN timestampadd(MICROSECOND, {micros}, {begin}) END"
