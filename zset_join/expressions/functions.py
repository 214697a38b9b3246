"""Functions of rows, with the names, parameters and meaning of `pyspark.sql.functions`, as expression trees.

    when(col("total") > 100, "large").when(col("total") > 10, "medium").otherwise("small")
    concat(upper(substring("name", 1, 1)), lower(substring("name", 2)))

A function is a line of a table: its signature as PySpark has it, and the operation it calls, with that name unless another is
given; one with all that is its own in one row (`zset_join.expressions.computed`) is imported from its family. As in PySpark a
bare str names a column; where the signature has quotes around a parameter, it is a text.

Each builds a checked call; `function_types` and `library` define which types it takes, `evaluation` computes it.

Edge cases: `coalesce`, `greatest` and `least` pass over NULL, all others are NULL where an operand is. What CASE and COALESCE
do not choose is not looked at, so it cannot fail. `greatest` takes NaN for the largest number.

Known limits: patterns and units are literals (`rlike("s", lit("a.*"))`); a timestamp with a time zone can be truncated only in
UTC.
"""

from __future__ import annotations

import inspect

import pyarrow as pa

from zset_join.core.errors import OptionError, PlanError
from zset_join.expressions import text_functions
from zset_join.expressions.computed import Word
from zset_join.expressions.computed import operand as _operand
from zset_join.expressions.computed import word as _row
from zset_join.expressions.text_functions import *  # noqa: F403 - functions that are declared whole, each under its own name
from zset_join.expressions.tree import Call, Cast, Expression, Literal, lit

__all__ = [
    "CaseBuilder", "abs", "add_months", "array", "array_contains", "array_join", "ascii", "bitwise_not", "btrim", "cardinality",
    "ceil", "ceiling", "char_length", "character_length", "coalesce", "concat", "concat_ws", "contains", "date_add",
    "date_diff", "date_format", "date_sub", "date_trunc", "datediff", "day", "dayofmonth", "dayofweek", "dayofyear",
    "element_at", "endswith", "equal_null", "exp", "extract", "floor", "get_json_object", "greatest", "hour", "ifnull", "ilike",
    "initcap", "instr", "isnan", "isnotnull", "isnull", "last_day", "lcase", "least", "left", "length", "like", "ln", "log",
    "log10", "lower", "lpad", "ltrim", "make_date", "md5", "minute", "month", "negate", "negative", "nullif", "nvl", "nvl2",
    "octet_length", "pow", "power", "quarter", "regexp_extract", "regexp_like", "regexp_replace", "repeat", "replace",
    "reverse", "right", "rlike", "round", "round_half_up", "rpad", "rtrim", "second", "sha2", "sign", "signum", "size", "split",
    "split_part", "sqrt", "startswith", "substr", "substring", "timestamp_add", "timestamp_diff", "timestamp_micros",
    "timestamp_millis", "timestamp_seconds", "to_date", "translate", "trim", "try_element_at", "ucase", "unix_micros",
    "unix_millis", "unix_seconds", "upper", "weekofyear", "when", "year",
]  # fmt: skip
__all__ += text_functions.__all__

_MICROSECONDS = {"microsecond": 1, "millisecond": 1000, "second": 10**6, "minute": 60 * 10**6, "hour": 3600 * 10**6,
                 "day": 86_400 * 10**6, "week": 7 * 86_400 * 10**6}  # fmt: skip
_MONTHS = {"month": 1, "quarter": 3, "year": 12}


def _call(name: str, *operands: object) -> Expression:
    return Call(name, tuple(map(_operand, operands)))


class CaseBuilder(Call):
    """A CASE; `when` adds a branch and `otherwise` ends it. Without `otherwise` it is NULL where no condition is true.

    >>> from zset_join.expressions import col
    >>> when(col("x") > 0, "up").when(col("x") < 0, "down").otherwise("level")
    CASE WHEN x > 0 THEN 'up' WHEN x < 0 THEN 'down' ELSE 'level' END
    """

    __slots__ = ()

    def when(self, condition: Expression, value: object) -> CaseBuilder:
        """Add a condition, evaluated where none before it is true, and the value for it."""
        return CaseBuilder("case", (*self.operands, _condition(condition), lit(value)))

    def otherwise(self, value: object = None) -> Expression:
        """Return the CASE with the value where no condition is true; NULL unless given."""
        return Call("case", (*self.operands, lit(value)))


def when(condition: Expression, value: object) -> CaseBuilder:
    """Begin a CASE with a condition and the value where it is true."""
    return CaseBuilder("case", (_condition(condition), lit(value)))


def _condition(given: object) -> Expression:
    if not isinstance(given, Expression):
        raise PlanError(
            f'when(...) takes a condition such as col("x") > 1, not {given!r}.', code="NOT_AN_EXPRESSION", value=repr(given)
        )
    return given


# Of NULL and conditions.
coalesce = _row("coalesce(*cols)", "Return the first value that is not NULL.")
equal_null = _row("equal_null(col1, col2)", "Return whether two values are equal, NULL equal to NULL.", "eq_null_safe")
greatest = _row("greatest(*cols)", "Return the largest of the values that are not NULL.")
ifnull = _row("ifnull(col1, col2)", "Return the first value, the second where it is NULL.", "coalesce")
isnan = _row("isnan(col)", "Return whether a number is NaN; of NULL it is false.", "is_nan")
isnotnull = _row("isnotnull(col)", "Return whether a value is not NULL.", "is_not_null")
isnull = _row("isnull(col)", "Return whether a value is NULL.", "is_null")
least = _row("least(*cols)", "Return the smallest of the values that are not NULL.")
nullif = _row("nullif(col1, col2)", "Return NULL where the first value equals the second, else the first.")
nvl = _row("nvl(col1, col2)", "Return the first value, the second where it is NULL.", "coalesce")


def nvl2(col1: object, col2: object, col3: object) -> Expression:
    """Return the second value where the first is not NULL, else the third."""
    return Call("case", (_call("is_not_null", col1), _operand(col2), _operand(col3)))


# Of texts.
ascii = _row("ascii(col)", "Return the number of the first character.")  # noqa: A001 - the name PySpark users type
char_length = _row("char_length(str)", "Return the number of characters.", "length")
character_length = _row("character_length(str)", "Return the number of characters.", "length")
concat = _row("concat(*cols)", "Return strings one after the other; NULL if one of them is.")
concat_ws = _row("concat_ws('sep', *cols)", "Return strings with a separator between; NULL is passed over.")
contains = _row("contains(left, right)", "Return whether a string contains another.")
endswith = _row("endswith(str, suffix)", "Return whether a string ends with another.", "ends_with")
get_json_object = _row("get_json_object(col, 'path')", "Return what a path such as `$.a[0]` leads to in JSON, as text.")
ilike = _row("ilike(str, pattern, escapeChar=)", "Return whether a string matches a pattern of LIKE, in any case.")
initcap = _row("initcap(col)", "Return a string with every word in lower case but for its first letter.")
instr = _row("instr(str, 'substr')", "Return where a string is found in another, the first place is 1; 0 where it is not.")
lcase = _row("lcase(str)", "Return a string in small letters.", "lower")
length = _row("length(col)", "Return the number of characters of a string, of bytes of a binary.")
like = _row("like(str, pattern, escapeChar=)", "Return whether a string matches a pattern: `%` any characters, `_` one.")
lower = _row("lower(col)", "Return a string in small letters.")
lpad = _row("lpad(col, len, 'pad')", "Return a string of a length, cut, or filled at its beginning.")
md5 = _row("md5(col)", "Return the MD5 digest, as 32 hexadecimal digits.")
octet_length = _row("octet_length(col)", "Return the number of bytes of a string in UTF-8, or of a binary.")
regexp_extract = _row("regexp_extract(str, 'pattern', idx)", "Return a group of the first match of a pattern; '' without one.")
regexp_like = _row("regexp_like(str, regexp)", "Return whether a part of a string matches a pattern.")
regexp_replace = _row("regexp_replace(string, 'pattern', 'replacement')", "Return a string with every match replaced.")
repeat = _row("repeat(col, n)", "Return a string so many times.")
reverse = _row("reverse(col)", "Return the characters from the last to the first.")
rlike = _row("rlike(str, regexp)", "Return whether a part of a string matches a pattern.", "regexp_like")
rpad = _row("rpad(col, len, 'pad')", "Return a string of a length, cut, or filled at its end.")
sha2 = _row("sha2(col, numBits)", "Return a SHA-2 digest of 224, 256, 384 or 512 bits, as hexadecimal digits.")
split_part = _row("split_part(src, delimiter, partNum)", "Return a part of a string between separators, the first is 1.")
startswith = _row("startswith(str, prefix)", "Return whether a string begins with a literal.", "starts_with")
substr = _row("substr(str, pos, len=)", "Return characters from a place on, the first is 1.", "substring")
substring = _row("substring(str, pos, len=)", "Return characters from a place on, the first is 1; -1 is the last.")
translate = _row("translate(srcCol, 'matching', 'replace')", "Return a string with each character replaced by its partner.")
ucase = _row("ucase(str)", "Return a string in capital letters.", "upper")
upper = _row("upper(col)", "Return a string in capital letters.")


def replace(src: object, search: object, replace: object = None) -> Expression:
    """Return a string with every occurrence of another replaced, or omitted."""
    return _call("replace", src, search, lit("") if replace is None else replace)


def left(str: object, len: object) -> Expression:  # noqa: A002 - the names PySpark users type
    """Return the first characters of a string."""
    return _call("substring", str, 1, len)


def right(str: object, len: object) -> Expression:  # noqa: A002 - the names PySpark users type
    """Return the last characters of a string; their number is a literal."""
    count = len.value if isinstance(len, Literal) else len
    if not isinstance(count, int) or isinstance(count, bool):
        raise OptionError(
            f"right({str!r}, {len!r}): expected a literal number of characters.", code="ARGUMENT", argument=repr(len)
        )
    return _call("substring", str, -count) if count > 0 else _call("substring", str, 1, 0)


def _trimming(name: str, plain: str, side: str, parameter: str, where: str) -> Word:
    def function(given: object, trim: object = None) -> Expression:
        return _call(plain, given) if trim is None else _call("trim_characters", given, trim, lit(side))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return a string without spaces, or without the given characters, {where}."
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    shown = [inspect.Parameter(parameter, kind), inspect.Parameter("trim", kind, default=None)]
    function.__signature__ = inspect.Signature(shown, return_annotation=Expression)  # type: ignore[attr-defined]  # as above
    return function


btrim = _trimming("btrim", "trim", "both", "str", "at its ends")
ltrim = _trimming("ltrim", "ltrim", "leading", "col", "at its beginning")
rtrim = _trimming("rtrim", "rtrim", "trailing", "col", "at its end")
trim = _trimming("trim", "trim", "both", "col", "at its ends")

# Of numbers.
abs = _row("abs(col)", "Return a number without its sign.", "absolute")  # noqa: A001 - the name PySpark users type
bitwise_not = _row("bitwise_not(col)", "Return an integer with every bit turned.", "bit_not")
ceil = _row("ceil(col)", "Return the smallest integer that is not smaller.")
ceiling = _row("ceiling(col)", "Return the smallest integer that is not smaller.", "ceil")
exp = _row("exp(col)", "Return e to the power of a number.")
floor = _row("floor(col)", "Return the largest integer that is not larger.")
ln = _row("ln(col)", "Return the natural logarithm; NULL of zero and less.")
log10 = _row("log10(col)", "Return the logarithm to base 10; NULL of zero and less.")
negate = _row("negate(col)", "Return a number with the other sign.")
negative = _row("negative(col)", "Return a number with the other sign.", "negate")
pow = _row("pow(col1, col2)", "Return a number to the power of another.", "power")  # noqa: A001 - as PySpark users type it
power = _row("power(col1, col2)", "Return a number to the power of another.")
round = _row("round(col, scale=)", "Return a number of so many decimals, halves away from zero.")  # noqa: A001 - as above
round_half_up = round
sign = _row("sign(col)", "Return -1, 0 or 1.")
signum = _row("signum(col)", "Return -1, 0 or 1.", "sign")
sqrt = _row("sqrt(col)", "Return the square root; NaN of what is negative.")


def log(arg1: object, arg2: object = None) -> Expression:
    """Return the natural logarithm of a number, or with two arguments that of the second to the base of the first."""
    if arg2 is None:
        return _call("ln", arg1)
    return Call("divide", (_call("ln", arg2), _call("ln", arg1)))


# Of dates and times.
add_months = _row("add_months(start, months)", "Return the date or timestamp so many months later.")
date_add = _row("date_add(start, days)", "Return the date so many days later.")
date_diff = _row("date_diff(end, start)", "Return the days from one date to another.")
date_format = _row("date_format(date, 'format')", "Return a date or timestamp as text, by a pattern such as yyyy-MM-dd.")
datediff = _row("datediff(end, start)", "Return the days from one date to another.", "date_diff")
day = _row("day(col)", "Return the day of the month.", "extract", "day")
dayofmonth = _row("dayofmonth(col)", "Return the day of the month.", "extract", "day")
dayofweek = _row("dayofweek(col)", "Return the day of the week, 1 is Sunday.", "extract", "dayofweek")
dayofyear = _row("dayofyear(col)", "Return the day of the year.", "extract", "dayofyear")
hour = _row("hour(col)", "Return the hour.", "extract", "hour")
last_day = _row("last_day(date)", "Return the last day of the month.")
make_date = _row("make_date(year, month, day)", "Return a date; what is no date fails the epoch.")
minute = _row("minute(col)", "Return the minute.", "extract", "minute")
month = _row("month(col)", "Return the month.", "extract", "month")
quarter = _row("quarter(col)", "Return the quarter.", "extract", "quarter")
second = _row("second(col)", "Return the second.", "extract", "second")
timestamp_micros = _row("timestamp_micros(col)", "Return the instant so many µs after 1970.", "timestamp_of", "microsecond")
timestamp_millis = _row("timestamp_millis(col)", "Return the instant so many ms after 1970.", "timestamp_of", "millisecond")
timestamp_seconds = _row("timestamp_seconds(col)", "Return the instant so many seconds after 1970.", "timestamp_of", "second")
unix_micros = _row("unix_micros(col)", "Return the microseconds since 1970.", "unix_time", "microsecond")
unix_millis = _row("unix_millis(col)", "Return the milliseconds since 1970, rounded down.", "unix_time", "millisecond")
unix_seconds = _row("unix_seconds(col)", "Return the seconds since 1970, rounded down.", "unix_time", "second")
weekofyear = _row("weekofyear(col)", "Return the ISO week of the year.", "extract", "week")
year = _row("year(col)", "Return the year.", "extract", "year")


def date_trunc(format: str, timestamp: object) -> Expression:  # noqa: A002 - the name PySpark users type
    """Return the beginning of the year, quarter, month, week, day, hour, minute or second that a timestamp is in."""
    return _call("date_trunc", lit(format.lower()), timestamp)


def date_sub(start: object, days: object) -> Expression:
    """Return the date so many days earlier."""
    return _call("date_add", start, lit(-days) if isinstance(days, int) else _call("negate", days))


def extract(field: str | Expression, source: object) -> Expression:
    """Return a field of a date or a timestamp as an int.

    Args:
        field: year, quarter, month, week (ISO), day, dayofweek (1 is Sunday), dayofyear, hour, minute or second.
        source: a date or a timestamp.
    """
    name = field.value if isinstance(field, Literal) else field
    return _call("extract", lit(name.lower() if isinstance(name, str) else name), source)


def timestamp_add(unit: str, quantity: object, ts: object) -> Expression:
    """Return the timestamp so many units later.

    Args:
        unit: microsecond, millisecond, second, minute, hour, day, week, month, quarter or year.
        quantity: how many, an integer.
        ts: a timestamp.
    """
    name, count = _unit("timestamp_add", unit), _operand(quantity)
    if name in _MONTHS:
        return _call("add_months", ts, count if name == "month" else Call("multiply", (count, lit(_MONTHS[name]))))
    return Call("add", (_operand(ts), Call("duration_of", (lit(_MICROSECONDS[name]), count))))


def timestamp_diff(unit: str, start: object, end: object) -> Expression:
    """Return how many whole units lie between two timestamps, a bigint; the units are those of `timestamp_add`."""
    return _call("time_between", lit(_unit("timestamp_diff", unit)), start, end)


def to_date(col: object) -> Expression:
    """Return a timestamp or a string such as 2024-02-29 as a date."""
    return Cast(_operand(col), pa.date32())


def _unit(function: str, unit: str) -> str:
    known = [*_MICROSECONDS, *_MONTHS]
    if str(unit).lower() not in known:
        raise OptionError(f"{function}({unit!r}, ...): the unit is one of {', '.join(known)}.", code="ARGUMENT", argument=unit)
    return unit.lower()


# Of arrays.
array = _row("array(*cols)", "Return an array of values of one type.")
array_contains = _row("array_contains(col, 'value')", "Return whether an array has an element that equals a value.")
array_join = _row("array_join(col, 'delimiter')", "Return the elements of an array as one text; NULL is passed over.")
cardinality = _row("cardinality(col)", "Return the number of elements; NULL of NULL.", "size")
element_at = _row("element_at(col, 'extraction')", "Return an element, the first is 1; one that is not there fails the epoch.")
size = _row("size(col)", "Return the number of elements; NULL of NULL.")
split = _row("split(str, 'pattern')", "Return the parts of a text between the matches of a pattern, as an array.")
try_element_at = _row("try_element_at(col, extraction)", "Return an element, the first is 1; NULL where it is not there.")
