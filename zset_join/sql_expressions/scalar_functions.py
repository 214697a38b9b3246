"""Functions of statements by the names five systems give them, as calls of `zset_join.expressions`.

| written | call |
|---|---|
| `get_json_object(j, '$.a')`, `json_value`, `json_extract_string(j, 'a')`, `j ->> 'a'`, `j -> 'a' ->> 'b'` | get_json_object |
| `array(1, 2)`, `ARRAY[1, 2]`, `a[i]`, `element_at`, `size`, `cardinality`, `array_contains`, `split`, `array_join` | arrays |
| `timestampdiff(unit, a, b)`, `timestampadd`, `date_format`, `to_char`, `unix_timestamp(t)`, `to_timestamp_ltz(n, 3)` | times |
| `pmod`, `nvl2`, `iff`, `decode`, `isnull`, `zeroifnull`, `right`, `btrim` | what they represent |

The law: a call means what Spark means by it. `a[i]` counts from 0 in Spark's and LaminarDB's dialects and fails where nothing
is; in the others it counts from 1 and is NULL there. `->` gives text, as `->>`.
"""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Callable, Sequence
from typing import Protocol

import pyarrow as pa
from sqlglot import exp
from sqlglot.dialects.spark import Spark

from zset_join.core.errors import SqlError
from zset_join.expressions import Call, Cast, Expression, Literal, lit
from zset_join.expressions.calendar_functions import PATTERN_LETTERS
from zset_join.expressions.computed import DECLARED
from zset_join.expressions.operations import FUNCTIONS
from zset_join.expressions.type_rules import kind_of
from zset_join.sql_expressions.consumed import argument

__all__ = ["FUNCTION_NAMES", "Binder", "bind_function", "declared_call", "second_of", "time_between", "whole_quotient"]

_UNITS = {"MICROSECOND": 1, "MILLISECOND": 1000, "SECOND": 10**6, "MINUTE": 60 * 10**6, "HOUR": 3600 * 10**6,
          "DAY": 86_400 * 10**6, "WEEK": 7 * 86_400 * 10**6}  # fmt: skip
_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_C_LETTERS = {letters: name for name, letters in reversed(PATTERN_LETTERS.items())}
_LETTERS = ", ".join(sorted(set(_C_LETTERS.values())))
_POSTGRES = {"YYYY": "yyyy", "YY": "yy", "MM": "MM", "DD": "dd", "HH24": "HH", "HH12": "hh", "HH": "hh", "MI": "mm", "SS": "ss",
             "AM": "a", "PM": "a", "Month": "MMMM", "Mon": "MMM", "Day": "EEEE", "Dy": "EEE"}  # fmt: skip


def bind_function(binder: Binder, node: exp.Expr) -> Expression | None:
    """Return the tree of a function; None where it is none of these."""
    bind = _NODES.get(type(node))
    if bind is not None:
        return bind(binder, node)
    if isinstance(node, exp.Anonymous):
        named = _NAMED.get(node.name.lower())
        if named is None:
            return declared_call(binder, node)
        least, most, make = named
        if not least <= len(node.expressions) <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            raise binder.refused(
                node, f"{node.name} takes {wanted} {'operand' if wanted == '1' else 'operands'}, not {len(node.expressions)}"
            )
        return make(binder, node, *node.expressions)
    return declared_call(binder, node) if isinstance(node, exp.Func) else None


def _texts(operation: str, *names: str) -> Callable[[Binder, exp.Expr], Expression]:
    """Call with the first operand as text, and the others as they are."""

    def make(binder: Binder, node: exp.Expr) -> Expression:
        rest = [binder.bind(argument(node, name)) for name in names if node.args.get(name) is not None]
        return Call(operation, (binder.text(node.this), *rest))

    return make


def _replaced(binder: Binder, node: exp.Expr) -> Expression:
    """Call `replace`; without a replacement what is found is removed, as in Spark."""
    nothing = node.args.get("replacement") is None
    replacement = Literal("", pa.string()) if nothing else binder.bind(argument(node, "replacement"))
    return Call("replace", (binder.text(node.this), binder.bind(argument(node, "expression")), replacement))


def _numbers(operation: str) -> Callable[[Binder, exp.Expr], Expression]:
    def make(binder: Binder, node: exp.Expr) -> Expression:
        others = [] if node.args.get("expression") is None else [binder.bind(node.expression)]
        return Call(operation, (binder.bind(node.this), *others))

    return make


def _sha2(binder: Binder, node: exp.Expr) -> Expression:
    length = node.args.get("length")
    return Call("sha2", (binder.text(node.this), lit(256) if length is None else binder.bind(length)))


def _pad(binder: Binder, node: exp.Expr) -> Expression:
    fill = node.args.get("fill_pattern")
    filled = lit(" ") if fill is None else binder.bind(fill)
    return Call("lpad" if node.args.get("is_left") else "rpad", (binder.text(node.this), binder.bind(node.expression), filled))


def _position(binder: Binder, node: exp.Expr) -> Expression:
    if node.args.get("position") is not None:
        raise binder.refused(node, "a search begins at the first character; take a substring first")
    return Call("instr", (binder.text(node.this), binder.bind(argument(node, "substr"))))


def _right(binder: Binder, node: exp.Expr) -> Expression:
    count, text = binder.bind(node.expression), binder.text(node.this)
    if isinstance(count, Literal) and isinstance(count.value, int):
        return Call("substring", (text, lit(-count.value))) if count.value > 0 else Call("substring", (text, lit(1), lit(0)))
    raise binder.refused(node, "right takes a literal number of characters")


def _log(binder: Binder, node: exp.Expr) -> Expression:
    base, value = node.this, node.args.get("expression")
    if value is None:
        return Call("ln", (binder.bind(base),))
    if isinstance(base, exp.Literal) and base.name == "10":
        return Call("log10", (binder.bind(value),))
    return Call("divide", (Call("ln", (binder.bind(value),)), Call("ln", (binder.bind(base),))))


def _extracted(binder: Binder, node: exp.Expr) -> Expression:
    group = node.args.get("group")
    number = lit(1) if group is None else binder.bind(group)
    return Call("regexp_extract", (binder.text(node.this), binder.bind(node.expression), number))


def _decode(binder: Binder, node: exp.Expr) -> Expression:
    subject, *rest = node.expressions
    branches = [
        (binder.compared("eq_null_safe", subject, rest[place]), binder.bind(rest[place + 1]))
        for place in range(0, len(rest) - 1, 2)
    ]
    return binder.case(branches, binder.bind(rest[-1]) if len(rest) % 2 else None)


def _nvl2(binder: Binder, node: exp.Expr) -> Expression:
    if node.args.get("true") is None or node.args.get("false") is None:
        raise binder.refused(node, "nvl2 takes three operands")
    known = Call("is_not_null", (binder.bind(node.this),))
    return binder.case([(known, binder.bind(argument(node, "true")))], binder.bind(argument(node, "false")))


def _json_node(binder: Binder, node: exp.Expr) -> Expression:
    steps: list[str] = []
    inner = node
    while isinstance(inner, exp.JSONExtract | exp.JSONExtractScalar):
        steps.insert(0, _json_steps(binder, inner))
        inner = inner.this
    return Call("get_json_object", (binder.text(inner), lit("$" + "".join(steps))))


def _json_value(binder: Binder, node: exp.Expr) -> Expression:
    path = argument(node, "path")
    written = _path_text(binder, path) if isinstance(path, exp.JSONPath) else _dollar(path.name)[1:]
    return Call("get_json_object", (binder.text(node.this), lit("$" + written)))


def _json_steps(binder: Binder, node: exp.Expr) -> str:
    path = node.expression
    if isinstance(path, exp.JSONPath):
        return _path_text(binder, path)
    if isinstance(path, exp.Literal):
        if not path.args.get("is_string"):
            return f"[{path.name}]"
        return _dollar(path.name)[1:]
    raise binder.refused(node, "a path of JSON is a literal")


def _path_text(binder: Binder, path: exp.JSONPath) -> str:
    parts = []
    for part in path.expressions:
        if isinstance(part, exp.JSONPathRoot):
            continue
        if isinstance(part, exp.JSONPathKey) and isinstance(part.this, str):
            parts.append(f"['{part.this}']" if "'" not in part.this else f'["{part.this}"]')
        elif isinstance(part, exp.JSONPathSubscript) and isinstance(part.this, int):
            parts.append(f"[{part.this}]")
        else:
            raise binder.refused(path, "a path of JSON holds names and places, as '$.a.b[0]'")
    return "".join(parts)


def _dollar(path: str) -> str:
    """Return a path that begins at the whole value: `a.b` is `$.a.b`."""
    return path if path.startswith("$") else f"${path}" if path.startswith("[") else f"$.{path}"


def _bracket(binder: Binder, node: exp.Expr) -> Expression:
    if len(node.expressions) != 1 or isinstance(node.expressions[0], exp.Slice):
        raise binder.refused(node, "an array is subscripted to get one element")
    array, place = binder.bind(node.this), binder.bind(node.expressions[0])
    if node.args.get("offset") == 1:
        return Call("try_element_at" if node.args.get("safe") else "element_at", (array, place))
    if binder.dialect not in {"spark", "laminardb"}:
        return Call("try_element_at", (array, place))
    if isinstance(place, Literal) and isinstance(place.value, int) and place.value >= 0:
        return Call("element_at", (array, lit(place.value + 1)))
    raise binder.refused(node, "a place in brackets is a literal, the first is 0; write element_at(array, i), the first is 1")


def _array(binder: Binder, node: exp.Expr) -> Expression:
    if not node.expressions:
        raise binder.refused(node, "an array of nothing has no type; name an element")
    return Call("array", tuple(binder.bind(one) for one in node.expressions))


def _array_size(binder: Binder, node: exp.Expr) -> Expression:
    if node.args.get("expression") is not None and node.expression.name != "1":
        raise binder.refused(node, "the length of an array is that of its first dimension; leave the number out")
    return Call("size", (binder.bind(node.this),))


def _initcap(binder: Binder, node: exp.Expr) -> Expression:
    # The parser adds the separator of words where the statement has none.
    if node.args.get("expression") is not None and node.expression.name != Spark.INITCAP_DEFAULT_DELIMITER_CHARS:
        raise binder.refused(node, "initcap takes a text alone: words end at a space, as in Spark")
    return Call("initcap", (binder.text(node.this),))


def _split_index(binder: Binder, node: exp.Expr, text: exp.Expr, separator: exp.Expr, place: exp.Expr) -> Expression:
    if not isinstance(place, exp.Literal) or not place.name.isdecimal():
        raise binder.refused(node, "split_index takes a literal place, the first is 0")
    return Call("try_element_at", (_split_at(binder, node, text, separator), lit(int(place.name) + 1)))


def _split(binder: Binder, node: exp.Expr) -> Expression:
    if isinstance(node, exp.RegexpSplit):
        return Call("split", (binder.text(node.this), binder.bind(node.expression)))
    # Others split at a text, not at a pattern.
    return _split_at(binder, node, node.this, node.expression)


def _split_at(binder: Binder, node: exp.Expr, text: exp.Expr, separator: exp.Expr) -> Expression:
    if not isinstance(separator, exp.Literal):
        raise binder.refused(node, "a separator is a literal")
    return Call("split", (binder.text(text), lit(re.sub(r"([^A-Za-z0-9 _,;:/-])", r"\\\1", separator.name))))


def _pattern(binder: Binder, node: exp.Expr, given: exp.Expr | None) -> Expression:
    """Return a pattern of Spark's; the parser has made C's letters of it."""
    if not isinstance(given, exp.Literal):
        raise binder.refused(node, "a pattern of a time is a literal")
    text = given.name.replace("strict", "")
    if "%" in text:
        if not _C_LETTERS.keys() >= set(re.findall(r"%-?[A-Za-z]", text)):
            raise binder.refused(node, f"the pattern of the time has a letter that is not supported; take {_LETTERS}")
        text = re.sub(r"%[A-Za-z]", lambda match: _C_LETTERS[match.group()], text)
    return lit(text)


def _date_format(binder: Binder, node: exp.Expr) -> Expression:
    value = node.this.this if isinstance(node.this, exp.TimeStrToTime | exp.TsOrDsToTimestamp) else node.this
    return Call("date_format", (binder.timed(value), _pattern(binder, node, node.args.get("format"))))


def _to_char(binder: Binder, node: exp.Expr) -> Expression:
    given = node.args.get("format")
    if not isinstance(given, exp.Literal):
        raise binder.refused(node, "a pattern of a time is a literal")
    words = sorted(_POSTGRES, key=len, reverse=True)
    pattern = re.sub("|".join(words), lambda found: _POSTGRES[found.group()], given.name)
    return Call("date_format", (binder.timed(node.this), lit(pattern)))


_STAMPS = frozenset({"date", "timestamp", "instant"})


def _unix(unit: str) -> Callable[[Binder, exp.Expr], Expression]:
    """Bind what counts from 1970 on: alike with a zone and without, so a cast from one to the other changes nothing."""

    def bind(binder: Binder, node: exp.Expr) -> Expression:
        value = binder.timed(node.this)
        if isinstance(value, Cast) and kind_of(value.type) == "instant" and kind_of(binder.type_of(value.operand)) in _STAMPS:
            value = value.operand
        return Call("unix_time", (lit(unit), value))

    return bind


def _unix_timestamp(binder: Binder, node: exp.Expr) -> Expression:
    value = binder.bind(node.this)
    if kind_of(binder.type_of(value)) == "string":
        value = Cast(value, pa.timestamp("us", tz="UTC"))
    return _seconds_since(value)


def _seconds_since(value: Expression) -> Expression:
    """Return the seconds since 1970, a fraction dropped: of a time before 1970 towards 1970, as in Spark's unix_timestamp."""
    micros = Call("unix_time", (lit("microsecond"), value))
    return whole_quotient(micros, lit(10**6), Literal(decimal.Decimal(10**6), pa.decimal128(20, 0)))


def whole_quotient(number: Expression, divisor: Expression, wide_divisor: Expression) -> Expression:
    """Return how many times a divisor goes into a number, cut towards zero and exact: the remainder is taken away before."""
    exact = Call("subtract", (number, Call("remainder", (number, divisor))))
    return Cast(Call("divide", (Cast(exact, pa.decimal128(20, 0)), wide_divisor)), pa.int64())


def second_of(value: Expression) -> Expression:
    """Return the second of a minute with its fraction, a DECIMAL(8, 6), as in Spark's extract."""
    a_minute, micros = lit(60 * 10**6), Call("unix_time", (lit("microsecond"), value))
    rest = Call("remainder", (Call("add", (Call("remainder", (micros, a_minute)), a_minute)), a_minute))
    return Cast(Call("multiply", (Cast(rest, pa.decimal128(8, 0)), lit(decimal.Decimal("0.000001")))), pa.decimal128(8, 6))


def _from_unix(binder: Binder, node: exp.Expr) -> Expression:
    seconds = Call("timestamp_of", (lit("second"), binder.bind(node.this)))
    given = node.args.get("format")
    return Call("date_format", (seconds, lit("yyyy-MM-dd HH:mm:ss") if given is None else _pattern(binder, node, given)))


def _unit(node: exp.Expr | None) -> str:
    name = "" if node is None else node.name.upper()
    return name.removeprefix("SQL_TSI_").removesuffix("S") if name not in _UNITS else name


def _difference(binder: Binder, node: exp.Expr) -> Expression:
    return time_between(binder, node, _unit(node.args.get("unit")), node.expression, node.this)


def time_between(binder: Binder, node: exp.Expr, unit: str, start: exp.Expr, end: exp.Expr) -> Expression:
    """Return how many whole units lie between two times, a BIGINT."""
    if unit not in _UNITS and unit not in _MONTHS:
        raise binder.refused(node, f"the unit of a difference is one of {', '.join([*_UNITS, *_MONTHS])}")
    operands = [binder.timed(start), binder.timed(end)]
    kinds = {kind_of(binder.type_of(one)) for one in operands}
    if "instant" in kinds and len(kinds) > 1:
        operands = [
            one if kind_of(binder.type_of(one)) == "instant" else Cast(one, pa.timestamp("us", tz="UTC")) for one in operands
        ]
    return Call("time_between", (lit(unit.lower()), *operands))


def _moved(binder: Binder, node: exp.Expr) -> Expression:
    return _added(binder, node, _unit(node.args.get("unit")), node.expression, node.this)


def _added(binder: Binder, node: exp.Expr, unit: str, amount: exp.Expr, value: exp.Expr) -> Expression:
    moved, count = binder.timed(value), binder.bind(amount)
    if binder.dialect == "spark" and kind_of(binder.type_of(moved)) == "date":
        moved = Cast(moved, binder.stamp)
    if unit in _MONTHS:
        factor = _MONTHS[unit]
        return Call("add_months", (moved, count if factor == 1 else Call("multiply", (count, lit(factor)))))
    if unit not in _UNITS:
        raise binder.refused(node, f"a time is moved by one of {', '.join([*_UNITS, *_MONTHS])}")
    if kind_of(binder.type_of(moved)) == "date":
        moved = Cast(moved, binder.stamp)
    return Call("add", (moved, Call("duration_of", (lit(_UNITS[unit]), count))))


def _ltz(binder: Binder, node: exp.Expr, value: exp.Expr, precision: exp.Expr | None = None) -> Expression:
    unit = {"0": "second", "3": "millisecond", "6": "microsecond"}.get("0" if precision is None else precision.name)
    if unit is None:
        raise binder.refused(node, "to_timestamp_ltz takes seconds (0), milliseconds (3) or microseconds (6)")
    return Call("timestamp_of", (lit(unit), binder.bind(value)))


def _pmod(binder: Binder, _: exp.Expr, value: exp.Expr, divisor: exp.Expr) -> Expression:
    by = binder.bind(divisor)
    rest = Call("remainder", (binder.bind(value), by))
    up, kind = Call("remainder", (Call("add", (rest, by)), by)), binder.type_of(rest)
    return binder.case([(Call("lt", (rest, lit(0))), up if binder.type_of(up) == kind else Cast(up, kind))], rest)


def _day_time_interval(binder: Binder, node: exp.Expr, *parts: exp.Expr) -> Expression:
    values = [binder.bind(part) for part in parts]
    numbers = [value.value for value in values if isinstance(value, Literal)]
    if len(numbers) != len(parts) or not all(isinstance(one, int | float | decimal.Decimal) for one in numbers):
        raise binder.refused(node, "make_dt_interval takes numbers; multiply an interval by a column")
    days, hours, minutes, seconds = (*numbers, 0, 0, 0)[:4]
    micros = int(decimal.Decimal(str(seconds)) * 10**6)
    return lit(datetime.timedelta(days=int(days), hours=int(hours), minutes=int(minutes), microseconds=micros))


def _iff(binder: Binder, _: exp.Expr, condition: exp.Expr, then: exp.Expr, otherwise: exp.Expr) -> Expression:
    return binder.case([(binder.condition(condition), binder.bind(then))], binder.bind(otherwise))


def _multi_if(binder: Binder, node: exp.Expr, *operands: exp.Expr) -> Expression:
    if len(operands) % 2 == 0:
        raise binder.refused(node, "multi_if ends with the value for all other rows")
    branches = [
        (binder.condition(operands[place]), binder.bind(operands[place + 1])) for place in range(0, len(operands) - 1, 2)
    ]
    return binder.case(branches, binder.bind(operands[-1]))


def _path_call(binder: Binder, node: exp.Expr, text: exp.Expr, *path: exp.Expr) -> Expression:
    if not all(isinstance(step, exp.Literal) for step in path):
        raise binder.refused(node, "a path of JSON is a literal")
    if len(path) == 1:
        return Call("get_json_object", (binder.text(text), lit(_dollar(path[0].name))))
    steps = "".join(f"['{step.name}']" if step.args.get("is_string") else f"[{step.name}]" for step in path)
    return Call("get_json_object", (binder.text(text), lit("$" + steps)))


def _casting(kind: pa.DataType) -> Callable[..., Expression]:
    def make(binder: Binder, _: exp.Expr, value: exp.Expr) -> Expression:
        operand = binder.bind(value)
        return operand if binder.type_of(operand) == kind else Cast(operand, kind)

    return make


def _plain(operation: str) -> Callable[..., Expression]:
    return lambda binder, _, *operands: Call(operation, tuple(binder.bind(one) for one in operands))


def _beginning(unit: str) -> Callable[..., Expression]:
    return lambda binder, _, value: Call("date_trunc", (lit(unit), binder.timed(value)))


def _zeroifnull(binder: Binder, _: exp.Expr, value: exp.Expr) -> Expression:
    return Call("coalesce", (binder.bind(value), lit(0)))


def _btrim(binder: Binder, _: exp.Expr, text: exp.Expr, characters: exp.Expr | None = None) -> Expression:
    if characters is None:
        return Call("trim", (binder.text(text),))
    return Call("trim_characters", (binder.text(text), binder.bind(characters), lit("both")))


def _format_datetime(binder: Binder, node: exp.Expr, value: exp.Expr, pattern: exp.Expr) -> Expression:
    return Call("date_format", (binder.timed(value), _pattern(binder, node, pattern)))


_NODES: dict[type[exp.Expr], Callable[[Binder, exp.Expr], Expression]] = {
    exp.Array: _array,
    exp.ArrayContains: lambda binder, node: Call("array_contains", (binder.bind(node.this), binder.bind(node.expression))),
    exp.ArraySize: _array_size,
    exp.ArrayToString: lambda binder, node: Call("array_join", (binder.bind(node.this), binder.bind(node.expression))),
    exp.Ascii: _texts("ascii"),
    exp.BitwiseAnd: _numbers("bit_and"),
    exp.BitwiseNot: _numbers("bit_not"),
    exp.BitwiseOr: _numbers("bit_or"),
    exp.BitwiseXor: _numbers("bit_xor"),
    exp.Bracket: _bracket,
    exp.ConcatWs: lambda binder, node: Call("concat_ws", tuple(binder.text(one) for one in node.expressions)),
    exp.Contains: _texts("contains", "expression"),
    exp.DecodeCase: _decode,
    exp.EndsWith: _texts("ends_with", "expression"),
    exp.Exp: _numbers("exp"),
    exp.Initcap: _initcap,
    exp.IsNan: _numbers("is_nan"),
    exp.JSONExtract: _json_node,
    exp.JSONExtractScalar: _json_node,
    exp.JSONValue: _json_value,
    exp.LastDay: lambda binder, node: Call("last_day", (_date(binder, node.this),)),
    exp.Ln: _numbers("ln"),
    exp.Log: _log,
    exp.MD5: _texts("md5"),
    exp.Nvl2: _nvl2,
    exp.Pad: _pad,
    exp.Pow: _numbers("power"),
    exp.RegexpExtract: _extracted,
    exp.RegexpLike: _texts("regexp_like", "expression"),
    exp.RegexpReplace: _texts("regexp_replace", "expression", "replacement"),
    exp.RegexpSplit: _split,
    exp.Repeat: _texts("repeat", "times"),
    exp.Replace: _replaced,
    exp.Reverse: _texts("reverse"),
    exp.Right: _right,
    exp.SHA2: _sha2,
    exp.Sign: _numbers("sign"),
    exp.Split: _split,
    exp.SplitPart: _texts("split_part", "delimiter", "part_index"),
    exp.Sqrt: _numbers("sqrt"),
    exp.StrPosition: _position,
    exp.StrToUnix: _unix_timestamp,
    exp.TimeToStr: _date_format,
    exp.TimestampAdd: _moved,
    exp.TimestampDiff: _difference,
    exp.ToChar: _to_char,
    exp.Translate: _texts("translate", "from_", "to"),
    exp.UnixMicros: _unix("microsecond"),
    exp.UnixMillis: _unix("millisecond"),
    exp.UnixSeconds: _unix("second"),
    exp.UnixToStr: _from_unix,
}


def _date(binder: Binder, node: exp.Expr) -> Expression:
    value = binder.bind(node)
    return value if kind_of(binder.type_of(value)) in {"date", "null"} else Cast(value, pa.date32())


_INSTANT = pa.timestamp("us", tz="UTC")
_ANY = 64

_NAMED: dict[str, tuple[int, int, Callable[..., Expression]]] = {
    "btrim": (1, 2, _btrim),
    "cardinality": (1, 1, _plain("size")),
    "date_diff": (3, 3, lambda binder, node, unit, start, end: time_between(binder, node, _unit(unit), start, end)),
    "ends_with": (2, 2, _plain("ends_with")),
    "format_datetime": (2, 2, _format_datetime),
    "iff": (3, 3, _iff),
    "isnull": (1, 1, lambda binder, _, value: Call("is_null", (binder.bind(value),))),
    "isnotnull": (1, 1, lambda binder, _, value: Call("is_not_null", (binder.bind(value),))),
    "json_extract_bool": (2, 2, lambda binder, node, text, path: Cast(_path_call(binder, node, text, path), pa.bool_())),
    "json_extract_float": (2, 2, lambda binder, node, text, path: Cast(_path_call(binder, node, text, path), pa.float64())),
    "json_extract_int": (2, 2, lambda binder, node, text, path: Cast(_path_call(binder, node, text, path), pa.int64())),
    "json_extract_string": (2, 2, _path_call),
    "json_query": (2, 2, _path_call),
    "json_value": (2, 2, _path_call),
    "jsonb_extract_path_text": (2, _ANY, _path_call),
    "length_utf8": (1, 1, lambda binder, _, text: Call("length", (binder.text(text),))),
    "make_date": (3, 3, _plain("make_date")),
    "make_dt_interval": (1, 4, _day_time_interval),
    "signum": (1, 1, _plain("sign")),
    "multi_if": (3, _ANY, _multi_if),
    "octet_length": (1, 1, _plain("octet_length")),
    "pmod": (2, 2, _pmod),
    "split_by_string": (2, 2, lambda binder, node, separator, text: _split_at(binder, node, text, separator)),
    "split_index": (3, 3, _split_index),
    "starts_with": (2, 2, _plain("starts_with")),
    "string_split": (2, 2, lambda binder, node, text, separator: _split_at(binder, node, text, separator)),
    "string_to_array": (2, 2, lambda binder, node, text, separator: _split_at(binder, node, text, separator)),
    "timestamp_micros": (1, 1, lambda binder, _, value: Call("timestamp_of", (lit("microsecond"), binder.bind(value)))),
    "timestamp_millis": (1, 1, lambda binder, _, value: Call("timestamp_of", (lit("millisecond"), binder.bind(value)))),
    "timestamp_seconds": (1, 1, lambda binder, _, value: Call("timestamp_of", (lit("second"), binder.bind(value)))),
    "to_bool": (1, 1, _casting(pa.bool_())),
    "to_date": (1, 1, _casting(pa.date32())),
    "to_float64": (1, 1, _casting(pa.float64())),
    "to_int": (1, 1, _casting(pa.int32())),
    "to_int32": (1, 1, _casting(pa.int32())),
    "to_int64": (1, 1, _casting(pa.int64())),
    "to_start_of_day": (1, 1, _beginning("day")),
    "to_start_of_hour": (1, 1, _beginning("hour")),
    "to_start_of_minute": (1, 1, _beginning("minute")),
    "to_start_of_month": (1, 1, _beginning("month")),
    "to_start_of_second": (1, 1, _beginning("second")),
    "to_start_of_year": (1, 1, _beginning("year")),
    "to_string": (1, 1, _casting(pa.string())),
    "to_timestamp_ltz": (1, 2, _ltz),
    "to_unix_timestamp": (1, 1, lambda binder, _, value: _seconds_since(binder.timed(value))),
    "zeroifnull": (1, 1, _zeroifnull),
}

_OTHERS = """
array array_contains array_join array_size ascii cardinality concat_ws contains date_format decode element_at endswith exp
from_unixtime get_json_object if initcap instr isnan json_value last_day ln locate log log10 lpad md5 nvl2 position power
regexp_extract regexp_like regexp_replace repeat replace reverse right rlike rpad sha2 sign size split split_part sqrt
timestampadd timestampdiff to_char translate try_cast try_element_at unix_millis unix_timestamp
"""
FUNCTION_NAMES = tuple(sorted({*_NAMED, *DECLARED, *_OTHERS.split()}))
"""Names that may be called."""


class Binder(Protocol):
    """Binder of the operands of a function."""

    @property
    def dialect(self) -> str:
        """Whose SQL it is."""

    @property
    def stamp(self) -> pa.DataType:
        """The type that TIMESTAMP names."""

    def bind(self, node: exp.Expr) -> Expression:
        """Return the tree of a node."""

    def condition(self, node: exp.Expr) -> Expression:
        """Return the tree of a condition."""

    def type_of(self, tree: Expression) -> pa.DataType:
        """Return the type of a tree."""

    def text(self, node: exp.Expr) -> Expression:
        """Return the tree of a node, as text."""

    def timed(self, node: exp.Expr) -> Expression:
        """Return the tree of a node, as a date or a timestamp."""

    def case(self, branches: Sequence[tuple[Expression, Expression]], otherwise: Expression | None) -> Expression:
        """Return a CASE whose values have one type."""

    def compared(self, operation: str, first: exp.Expr, second: exp.Expr) -> Expression:
        """Return a comparison of two nodes."""

    def refused(self, node: exp.Expr, why: str) -> SqlError:
        """Return the refusal of a node."""


def declared_call(binder: Binder, node: exp.Func) -> Expression | None:
    """Return the call of a function that is declared in one row; None where it is none."""
    name = (node.name if isinstance(node, exp.Anonymous) else node.sql_name()).lower()
    if name not in DECLARED:
        return None
    operands = node.expressions
    if not isinstance(node, exp.Anonymous):
        given = [argument(node, one) for one in node.arg_types if node.args.get(one) is not None]
        operands = [one for some in given for one in (some if isinstance(some, list) else [some])]
    least, most = FUNCTIONS[name]
    if len(operands) < least or (most is not None and len(operands) > most):
        wanted = str(least) if least == most else f"{least} or more" if most is None else f"{least} to {most}"
        raise binder.refused(node, f"{name} takes {wanted} {'operand' if wanted == '1' else 'operands'}, not {len(operands)}")
    return Call(name, tuple(map(binder.bind, operands)))
