"""Arrays, and JSON in text.

    array(1, 2)      element_at(tags, 1)      size(tags)      array_contains(tags, 'a')      split(text, ',')
    get_json_object(text, '$.customer.name')

Edge cases, as in Spark under ANSI mode: an element that is not there is a fault (`try_element_at`: NULL), a negative place
counts from the end; `array_contains` is NULL where the value is not found beside a NULL; `size` of NULL is NULL. JSON that
cannot be read is NULL, so is a path that leads nowhere; an object or array is given as text without blanks.

Known limits: paths are literals of names and places (`$.a['b c'][0]`, no `*`); strings of JSON have double quotes; a repeated
name represents its last value. JSON is read by Python, once for each distinct text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zset_join.expressions.computed import (
    NO_FAULTS,
    Computed,
    Function,
    Types,
    joint_length,
    literal_value,
    mismatch,
    of_texts,
    spread,
    strings_only,
    texts_of,
    translated,
    wants_literal,
)
from zset_join.expressions.conversions import java_number
from zset_join.expressions.text_functions import check_pattern
from zset_join.expressions.tree import Call
from zset_join.expressions.type_rules import common_type, kind_of, plain_type
from zset_join.expressions.vectors import Vector, compare, from_arrow, to_arrow, widen

__all__ = ["NESTED_FUNCTIONS"]

_STEP = re.compile(r"\.([^.\[\]'\"]+)|\[([0-9]+)\]|\[['\"]([^'\"]*)['\"]\]")
_NO_VALUE = object()


class _Number(str):
    """A number as JSON has it written."""

    __slots__ = ()


def _path(text: str) -> list[str | int] | None:
    """Return the steps of a path, or None where it is none."""
    if not text.startswith("$"):
        return None
    steps: list[str | int] = []
    place = 1
    while place < len(text):
        step = _STEP.match(text, place)
        if step is None or step.group(1) == "*":
            return None
        steps.append(int(step.group(2)) if step.group(2) is not None else step.group(1) or step.group(3) or "")
        place = step.end()
    return steps


def _json_rule(call: Call, types: Types) -> pa.DataType:
    strings_only(call, types)
    if _path(wants_literal(call, types, 1, str, "a path that is a literal")) is None:
        raise mismatch(call, types, "a path of names and places, as '$.a.b[0]'", "Take one value at a time, without *.")
    return pa.large_string()


def _refuse(text: str) -> Any:
    raise ValueError(text)


_DECODER = json.JSONDecoder(parse_float=lambda text: _Number(java_number(float(text))), parse_int=_Number,
                            parse_constant=_refuse, strict=False)  # fmt: skip


def _looked_up(steps: Sequence[str | int]) -> Callable[[str], str | None]:
    def look(text: str) -> str | None:
        try:
            value, _ = _DECODER.raw_decode(text.lstrip(" \t\r\n"))
        except (ValueError, RecursionError):
            return None
        for step in steps:
            if isinstance(step, int):
                value = value[step] if isinstance(value, list) and step < len(value) else _NO_VALUE
            else:
                value = value.get(step, _NO_VALUE) if isinstance(value, dict) else _NO_VALUE
        if value is None or value is _NO_VALUE:
            return None
        return value if isinstance(value, str) else _written(value)

    return look


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{_written(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    if isinstance(value, _Number):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def _json(call: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    look = _looked_up(_path(str(literal_value(call.operands[1]))) or [])
    return of_texts(translated(texts_of(operands[0]), look, pa.large_string()), result), "CAST_OVERFLOW", NO_FAULTS


def _duckdb_json(call: Call, texts: Sequence[str]) -> str:
    steps = _path(str(literal_value(call.operands[1]))) or []
    parts = [f"[{step}]" if isinstance(step, int) else f'."{step}"' for step in steps]
    path = "$" + "".join(parts).replace("'", "''")
    return f"json_extract_string(CASE WHEN json_valid({texts[0]}) THEN {texts[0]} END, '{path}')"


def _element(types: Types) -> pa.DataType:
    return plain_type(types[0].value_type)


def _array_rule(call: Call, types: Types) -> pa.DataType:
    common = reduce(lambda one, other: None if one is None else _one(one, other), types)
    if common is None:
        raise mismatch(call, types, "values of one type", "Cast them to one type with .cast(...).")
    narrow = pa.string() if kind_of(common) == "string" else pa.binary() if kind_of(common) == "binary" else common
    return pa.list_(narrow)


def _one(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if one == other or "null" in {kind_of(one), kind_of(other)}:
        return other if kind_of(one) == "null" else one
    common = common_type(one, other)
    return None if common is None or pa.types.is_decimal256(common) else common


def _arrays(call: Call, types: Types) -> None:
    if kind_of(types[0]) != "array":
        raise mismatch(call, types, "an array", "Make one with array(...) or split(...).")


def _size_rule(call: Call, types: Types) -> pa.DataType:
    _arrays(call, types)
    return pa.int32()


def _element_rule(call: Call, types: Types) -> pa.DataType:
    _arrays(call, types)
    if kind_of(types[1]) != "integer" or literal_value(call.operands[1]) == 0:
        raise mismatch(call, types, "a place, the first is 1", "Count from 1, or from the end with -1.")
    return _element(types)


def _contains_rule(call: Call, types: Types) -> pa.DataType:
    _arrays(call, types)
    shared_type = common_type(_element(types), types[1])
    if shared_type is None or pa.types.is_decimal256(shared_type):
        raise mismatch(call, types, "a value of the type of the elements", "Cast it with .cast(...).")
    return pa.bool_()


def _join_rule(call: Call, types: Types) -> pa.DataType:
    _arrays(call, types)
    if kind_of(_element(types)) != "string":
        raise mismatch(call, types, "an array of strings", "Join strings.")
    wants_literal(call, types, 1, str, "a separator that is a literal")
    return pa.large_string()


def _split_rule(call: Call, types: Types) -> pa.DataType:
    strings_only(call, types)
    pattern = wants_literal(call, types, 1, str, "a pattern that is a literal")
    if not pattern:
        raise mismatch(call, types, "a pattern of at least one character", "Split at something.")
    check_pattern(call, types, pattern)
    return pa.list_(pa.string())


def _with_nulls(vector: Vector, length: int) -> pa.Array:
    """Return a vector as an Arrow array of so many values."""
    if kind_of(vector.type) == "null":
        return pa.nulls(length)
    wide = spread(vector, length)
    if not isinstance(wide.values, pa.Array):
        return to_arrow(Vector(wide.type, np.ascontiguousarray(wide.values), wide.valid))
    return wide.values if wide.valid.all() else pc.if_else(pa.array(wide.valid), wide.values, pa.scalar(None, wide.type))


def _array(_: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    length, count = joint_length(*(len(operand.valid) for operand in operands)), len(operands)
    element = plain_type(result.value_type)
    columns = [_with_nulls(widen(operand, element), length).cast(result.value_type) for operand in operands]
    order = np.arange(count * length).reshape(count, length).T.ravel()
    values = pa.concat_arrays(columns).take(pa.array(order))
    lists = pa.ListArray.from_arrays(pa.array(np.arange(length + 1, dtype=np.int32) * count), values)
    return Vector(result, lists, np.ones(length, np.bool_)), "CAST_OVERFLOW", NO_FAULTS


def _bounds(vector: Vector, length: int) -> tuple[pa.Array, Any, Any]:
    """Return the elements of lists, with where each list begins and ends."""
    lists = _with_nulls(vector, length)
    # Offsets are taken from the array: it may be a slice.
    offsets = np.asarray(lists.offsets).astype(np.int64)
    return lists.values, offsets[:-1], np.where(lists.is_valid().to_numpy(zero_copy_only=False), offsets[1:], offsets[:-1])


def _element_at(call: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    length = joint_length(len(operands[0].valid), len(operands[1].valid))
    values, begin, end = _bounds(operands[0], length)
    places = spread(operands[1], length)
    numbers = places.values.astype(np.int64)
    wanted = np.where(numbers > 0, begin + numbers - 1, end + numbers)
    missing = (wanted < begin) | (wanted >= end) | (numbers == 0)
    known = np.asarray(spread(operands[0], length).valid & places.valid)
    if len(values) == 0:
        elements = pa.nulls(length, values.type)
    else:
        elements = values.take(pa.array(np.where(missing | ~known, 0, wanted), mask=missing | ~known))
    vector = from_arrow(elements)
    is_fault = call.operation == "element_at"
    valid = known & vector.valid if not is_fault else known & (vector.valid | missing)
    return Vector(result, vector.values, valid), "ARRAY_INDEX", missing if is_fault else NO_FAULTS


def _size(_: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    lengths = pc.list_value_length(_with_nulls(operands[0], len(operands[0].valid))).cast(pa.int32())
    return of_texts(lengths, result), "CAST_OVERFLOW", NO_FAULTS


def _contains(_: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    length = joint_length(len(operands[0].valid), len(operands[1].valid))
    values, begin, end = _bounds(operands[0], length)
    elements = from_arrow(values.slice(int(begin[0]) if length else 0, int(end.max() - begin[0]) if length else 0))
    parents = np.repeat(np.arange(length), end - begin)
    if len(parents) != len(elements.valid):
        # NULL lists with elements of their own below them.
        chosen = np.concatenate([np.arange(a, b) for a, b in zip(begin, end, strict=True)]) if length else np.zeros(0, np.int64)
        elements = from_arrow(values.take(pa.array(chosen, pa.int64())))
    common = common_type(elements.type, operands[1].type)
    sought = from_arrow(_with_nulls(widen(operands[1], common), length).take(pa.array(parents, pa.int64())))
    equal = compare("eq", widen(elements, common), widen(sought, common)) & elements.valid & sought.valid
    contains = np.bincount(parents, equal, length) > 0
    unknown = np.bincount(parents, ~elements.valid, length) > 0
    valid = spread(operands[0], length).valid & spread(operands[1], length).valid & (contains | ~unknown)
    return Vector(result, contains, np.asarray(valid)), "CAST_OVERFLOW", NO_FAULTS


def _join(call: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    separator = str(literal_value(call.operands[1]))
    lists = _with_nulls(operands[0], len(operands[0].valid)).to_pylist()
    texts = [None if one is None else separator.join(part for part in one if part is not None) for one in lists]
    return of_texts(pa.array(texts, result), result), "CAST_OVERFLOW", NO_FAULTS


def _split(call: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    parts = pc.split_pattern_regex(texts_of(operands[0]), pattern=str(literal_value(call.operands[1])))
    return of_texts(parts.cast(result), result), "CAST_OVERFLOW", NO_FAULTS


def _named(name: str) -> Callable[[Call, Sequence[str]], str]:
    return lambda _, texts: f"{name}({', '.join(texts)})"


NESTED_FUNCTIONS = {
    "array": Function(_array_rule, _array, _named("array"), _named("list_value")),
    "array_contains": Function(_contains_rule, _contains, _named("array_contains")),
    "array_join": Function(_join_rule, _join, _named("array_join"), _named("array_to_string")),
    "element_at": Function(_element_rule, _element_at, _named("element_at"), _named("list_extract")),
    "get_json_object": Function(_json_rule, _json, _named("get_json_object"), _duckdb_json),
    "size": Function(_size_rule, _size, _named("size"), lambda _, texts: f"CAST(len({texts[0]}) AS INT)"),
    "split": Function(_split_rule, _split, _named("split"), _named("regexp_split_to_array")),
    "try_element_at": Function(_element_rule, _element_at, _named("try_element_at"), _named("list_extract")),
}
"""By name."""
