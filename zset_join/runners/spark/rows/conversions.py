"""SQL of Spark for the one table of conversions: a text, or a JSON value, as a value of a column.

The law: as `zset_join.conversions`, which defines what is read and what is refused. An expression is NULL where the text does
not convert; its caller checks that the text is NULL too.

A JSON value is in a text as `json_value` makes it of a VARIANT: a string in quotes, without escapes, anything else as JSON
has it. `exact_json` marks the numbers that Spark's parser would turn into other ones, see
`zset_join.changelog.formats.exact_numbers`; every reader here takes the marks away.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.types as pt

from zset_join.changelog.formats.exact_numbers import MARK, MARKED, RISKY, RISKY_NUMBER
from zset_join.changelog.formats.record_spellings import EXACT
from zset_join.runners.spark.rows.names import literal, quoted
from zset_join.runners.spark.rows.schemas import spark_type

__all__ = [
    "CORRUPT",
    "exact_json",
    "json_value",
    "of_json",
    "of_parsed",
    "of_text",
    "parsed_json",
    "parsed_type",
    "text_of_parsed",
]

CORRUPT = "__corrupt"
_BLANK = r"[\\x00-\\x20\\x7f]*"
_ZONE = r"[0-9]:[0-9]{1,2}:[0-9]{1,2}(\\.[0-9]*)? *[^0-9. \\x00-\\x20\\x7f]"
_PARTS = r'"[^"\\]*+(?:\\[\s\S][^"\\]*+)*+"|[^"]++|"'
"""Texts with their quotes, and what is between them."""
_GOES_ON = r"\}\s*[^\s,\]}]|[^}\s]\s*$"
"""What a text matches that may have more behind its first object."""
_ESCAPED = "\\u"
_HALF_PAIR = (
    r"(?<!\\)(?:\\\\)*+(?:\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F])"
)
_LOST_FRACTION = r"\\.[0-9]{6}[0-9]*[1-9]"


def parsed_json(text: str, fields: Mapping[str, object]) -> str:
    """Return an expression that reads an object of JSON; what cannot be read is in its field `CORRUPT`."""
    wanted = literal(struct_fields({**fields, CORRUPT: "STRING"}))
    options = f"'mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{CORRUPT}', 'allowSingleQuotes', 'false'"
    return f"from_json({text}, {wanted}, map({options}))"


def struct_fields(fields: Mapping[str, object], between: str = " ") -> str:
    """Return the fields of a struct, by type or by their own fields, None for text; inside STRUCT<> they have colons."""
    return ", ".join(
        f"{quoted(name)}{between}"
        + (
            f"STRUCT<{struct_fields(inner, ': ')}>"
            if isinstance(inner, Mapping)
            else "VARIANT"
            if inner == EXACT
            else str(inner or "STRING")
        )
        for name, inner in fields.items()
    )


def exact_json(text: str) -> str:
    """Return the expression for JSON in which the numbers that Spark's parser may change are marked; `no JSON` of odd text."""
    parts = f"regexp_extract_all({text}, {literal(_PARTS)}, 0)"
    quoted_number = f'"{MARK}$0"'
    marked = f"regexp_replace(s, {literal(RISKY_NUMBER)}, {literal(quoted_number)})"
    exact = f"array_join(transform({parts}, s -> CASE WHEN s LIKE '\"%' THEN s ELSE {marked} END), '')"
    return f"CASE WHEN {_is_odd(text)} THEN 'no JSON' WHEN {text} RLIKE {literal(RISKY)} THEN {exact} ELSE {text} END"


def _is_odd(text: str) -> str:
    """Return the condition that a text is JSON for Spark's parser alone."""
    # It stops behind the first value, and passes over what follows it; of half a surrogate pair it makes a question mark.
    counts = [f"length(replace({text}, '{one}', ''))" for one in "{}"]
    may_go_on = f"({text} RLIKE {literal(_GOES_ON)} OR {' <> '.join(counts)})"
    goes_on = f"{may_go_on} AND coalesce(json_array_length(concat('[', {text}, ']')), 0) <> 1"
    return f"({goes_on} OR contains({text}, {literal(_ESCAPED)}) AND {text} RLIKE {literal(_HALF_PAIR)})"


def json_value(variant: str) -> str:
    """Return the expression for the text of a JSON value; NULL of null."""
    text = f"CAST({variant} AS STRING)"
    return (
        f"CASE schema_of_variant({variant}) WHEN 'VOID' THEN NULL "
        f"WHEN 'STRING' THEN CASE WHEN {_is_marked(text)} THEN {_unmarked(text)} ELSE concat('\"', {text}, '\"') END "
        f"ELSE {text} END"
    )


def plain_text(text: str) -> str:
    """Return the expression for a text that may be a marked number."""
    return f"CASE WHEN {_is_marked(text)} THEN {_unmarked(text)} ELSE {text} END"


def plain_string(text: str) -> str:
    """Return the expression for a text that may be a marked number, or JSON with such numbers, as a STRING."""
    # A number that a double holds is as Java writes doubles; another one as it was written.
    number = _unmarked(text)
    shown = f"CAST(TRY_CAST({number} AS DOUBLE) AS STRING)"
    digits = [f"replace(regexp_replace({one}, '[eE].*$|[-.]', ''), ' ', '')" for one in (number, shown)]
    held = " = ".join(f"trim(BOTH '0' FROM {one})" for one in digits)
    inside = f"regexp_replace({text}, {literal(MARKED)}, '$1')"
    return (
        f"CASE WHEN {_is_marked(text)} THEN CASE WHEN {held} THEN {shown} ELSE {number} END "
        f"WHEN contains({text}, {literal(MARK)}) THEN {inside} ELSE {text} END"
    )


def _is_marked(text: str) -> str:
    return f"startswith({text}, {literal(MARK)})"


def _unmarked(text: str) -> str:
    return f"substr({text}, {len(MARK) + 1})"


def of_text(text: str, kind: pa.DataType) -> str:
    """Return the expression for a text as a value of a type; NULL where the text is none."""
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


def of_json(value: str, kind: pa.DataType) -> str:
    """Return the expression for a JSON value, as `json_value` has it, as a value of a type; NULL where it is none."""
    text = of_text(f"substr({value}, 2, length({value}) - 2)", kind)
    number = _of_number(value, kind)
    return f"CASE WHEN {value} LIKE '\"%' THEN {text} ELSE {number} END"


def _of_number(value: str, kind: pa.DataType) -> str:
    wanted = spark_type(kind).simpleString()
    if pt.is_boolean(kind):
        return f"CASE {value} WHEN 'true' THEN true WHEN 'false' THEN false END"
    if pt.is_integer(kind):
        return _whole(value, wanted)
    if pt.is_date(kind) or pt.is_timestamp(kind):
        return f"CAST(NULL AS {wanted})"
    return of_text(value, kind)


def _whole(value: str, wanted: str) -> str:
    """Return the expression for a JSON number that is whole, however it is written."""
    exact = f"WHEN {_is_exact(value, 0)} THEN TRY_CAST(TRY_CAST({value} AS DECIMAL(38, 0)) AS {wanted})"
    return f"CASE WHEN NOT {value} RLIKE '[.eE]' THEN TRY_CAST({value} AS {wanted}) {exact} END"


def parsed_type(kind: pa.DataType) -> str:
    """Return the type that Spark's JSON parser reads a column as, for `of_parsed`."""
    is_text = pt.is_string(kind) or pt.is_large_string(kind) or pt.is_floating(kind) or pt.is_nested(kind)
    return "STRING" if is_text else "VARIANT"  # a VARIANT forgets the sign of zero, and how a number is written


def text_of_parsed(column: str, kind: pa.DataType) -> str:
    """Return the expression for the text of a column that was parsed as `parsed_type`, for `of_parsed`."""
    if pt.is_string(kind) or pt.is_large_string(kind):
        return plain_string(column)
    if pt.is_floating(kind):
        return plain_text(column)
    return column if pt.is_nested(kind) else json_value(column)


def of_parsed(text: str, kind: pa.DataType) -> str:
    """Return the expression for the value of a text that `text_of_parsed`gave; NULL where it is none."""
    if pt.is_nested(kind):
        return of_nested(text, kind)
    if pt.is_string(kind) or pt.is_large_string(kind):
        return text
    if pt.is_floating(kind):
        return of_text(text, kind)
    return _bytes_of(text) if pt.is_binary(kind) or pt.is_large_binary(kind) else of_json(text, kind)


def _bytes_of(text: str) -> str:
    """Return the expression for the bytes that a JSON string is in base64."""
    return f"CASE WHEN {text} LIKE '\"%' THEN try_to_binary(substr({text}, 2, length({text}) - 2), 'base64') END"


def of_nested(text: str, kind: pa.DataType) -> str:
    """Return the expression for the text of a JSON list or object as a nested value; NULL where it is none."""
    return f"get(transform(array(try_parse_json({text})), v -> {of_variant('v', kind)}), 0)"


def of_variant(variant: str, kind: pa.DataType) -> str:
    """Return the expression for a VARIANT as a value of a type; NULL where it, or a member of it, is none."""
    value, fits = _value_and_fit(variant, kind, 0)
    return f"CASE WHEN {fits} THEN {value} END"


def _value_and_fit(variant: str, kind: pa.DataType, depth: int) -> tuple[str, str]:
    """Return the expressions for a value, and whether all of it converts, which is never NULL."""
    is_null = f"({variant} IS NULL OR is_variant_null({variant}))"
    if pt.is_struct(kind):
        members = f"try_variant_get({variant}, '$', 'MAP<STRING, VARIANT>')"
        name = f"m{depth}"
        parts = [(one.name, *_value_and_fit(f"{name}[{literal(one.name)}]", one.type, depth + 1)) for one in kind]
        struct = ", ".join(f"{literal(of)}, {value}" for of, value, _ in parts)
        fits = " AND ".join(["true", *(fit for _, _, fit in parts)])
        value = f"get(transform(array({members}), {name} -> CASE WHEN {name} IS NOT NULL THEN named_struct({struct}) END), 0)"
        return value, f"({is_null} OR coalesce(forall(array({members}), {name} -> {name} IS NOT NULL AND {fits}), false))"
    if pt.is_map(kind):
        members = f"try_variant_get({variant}, '$', 'MAP<STRING, VARIANT>')"
        key, name = f"k{depth}", f"x{depth}"
        value, fit = _value_and_fit(name, kind.item_type, depth + 1)
        read_key = key if pt.is_string(kind.key_type) else of_text(key, kind.key_type)
        read = f"transform_keys(transform_values({members}, ({key}, {name}) -> {value}), ({key}, {name}) -> {read_key})"
        keys_fit = f"forall(map_keys({members}), {key} -> {read_key} IS NOT NULL)"
        return read, f"({is_null} OR coalesce(forall(map_values({members}), {name} -> {fit}) AND {keys_fit}, false))"
    if pt.is_list(kind) or pt.is_large_list(kind):
        members, name = f"try_variant_get({variant}, '$', 'ARRAY<VARIANT>')", f"x{depth}"
        value, fit = _value_and_fit(name, kind.value_type, depth + 1)
        return f"transform({members}, {name} -> {value})", f"({is_null} OR coalesce(forall({members}, {name} -> {fit}), false))"
    text = json_value(variant)
    if pt.is_string(kind) or pt.is_large_string(kind):
        return _string_of(variant), "true"
    value = _bytes_of(text) if pt.is_binary(kind) or pt.is_large_binary(kind) else of_json(text, kind)
    return value, f"({is_null} OR {value} IS NOT NULL)"


def _string_of(variant: str) -> str:
    """Return the expression for a VARIANT as a STRING, which takes the text of any value."""
    text = f"CAST({variant} AS STRING)"
    is_fraction = f"schema_of_variant({variant}) LIKE 'DECIMAL%' AND length({text}) <= 18"  # longer ones are integers
    as_double = f"CAST(CAST({variant} AS DOUBLE) AS STRING)"
    return f"CASE WHEN is_variant_null({variant}) THEN NULL WHEN {is_fraction} THEN {as_double} ELSE {plain_string(text)} END"


def _is_exact(text: str, scale: int) -> str:
    """Return the condition that a text of a decimal has no more decimal places than a scale, but for zeros."""
    mantissa = rf"regexp_extract({text}, '^{_BLANK}[+-]?([0-9.]*)', 1)"
    digits = f"replace({mantissa}, '.', '')"
    places = rf"length(regexp_extract({mantissa}, '\\.([0-9]*)', 1))"
    zeros = f"(length({digits}) - length(rtrim('0', {digits})))"
    exponent = rf"coalesce(TRY_CAST(regexp_extract({text}, '[eE]([+-]?[0-9]+)', 1) AS INT), 0)"
    is_plain = f"{places} <= {scale} AND NOT {text} RLIKE '[eE]'"
    return f"({is_plain} OR rtrim('0', {digits}) = '' OR {places} - {zeros} - {exponent} <= {scale})"
