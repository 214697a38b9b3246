"""Texts as values, spelled as Spark's ANSI cast from STRING accepts them.

| type | text |
|---|---|
| integers | digits with a sign; no fraction, no exponent, no hexadecimal |
| FLOAT, DOUBLE | what Java reads: `1.`, `.5`, `1e2`, `1.5f`, `0x1p3`, `NaN`, `Infinity`, `inf`; beyond the range: infinite |
| DECIMAL | digits with point and exponent |
| BOOLEAN | t true y yes 1, f false n no 0, in any case |
| DATE | `2024`, `2024-2`, `2024-02-09`; what follows a space or a T behind the day does not count |
| TIMESTAMP | a date, or a date and `7:05`, `07:05:01.25`; behind seconds a zone: `Z`, `UTC+1`, `+05:30`, `Europe/Berlin` |

Spaces and control characters at the ends do not count; of FLOAT, DOUBLE and DECIMAL, DEL does.

Refused although the cast accepts it, because it would change what is written: digits that a DECIMAL or a timestamp cannot hold,
unless they are zeros; a zone in a TIMESTAMP without one; a time without a date, which would mean today; years outside of 1 to
9999, which not every system supports. A TIME is `7:05` or `07:05:01.25`. A text without a zone is in UTC.

Cost: a few passes in Arrow; value by value only what is spelled out of the ordinary (decimals with exponents, hexadecimal
floats, names of zones).

`Converted`: result of a conversion, and helpers of all conversions.
"""

from __future__ import annotations

import datetime
import decimal
import zoneinfo
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

__all__ = ["Bools", "Converted", "flags", "joined", "none_convert", "only", "read_texts", "whole"]

Bools: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Converted:
    """n values of the target type."""

    values: pa.Array
    unfit: Bools | None = None


def flags(array: pa.Array) -> Bools:
    """Return booleans as an array of NumPy, NULL as False."""
    values: Bools = array.fill_null(False).to_numpy(zero_copy_only=False)
    return values


def only(array: pa.Array, fits: Bools) -> pa.Array:
    return array if fits.all() else pc.if_else(pa.array(fits), array, pa.scalar(None, array.type))


def joined(values: pa.Array, fits: Bools, valid: Bools) -> Converted:
    """Return values of which some do not fit; NULLs among the given ones do."""
    unfit = valid & ~fits
    return Converted(values, unfit if unfit.any() else None)


def none_convert(array: pa.Array, kind: pa.DataType) -> Converted:
    """Return NULLs: no value of the array converts, but for its NULLs."""
    valid: Bools = array.is_valid().to_numpy(zero_copy_only=False)
    return Converted(pa.nulls(len(array), kind), valid if valid.any() else None)


def whole(parts: Sequence[tuple[npt.NDArray[np.int64], Converted]], length: int, kind: pa.DataType) -> Converted:
    """Return values that were converted in parts, each with the rows it is of; other rows are NULL."""
    unfit = np.zeros(length, np.bool_)
    at = np.full(length, -1, np.int64)
    arrays, begin = [], 0
    for rows, part in parts:
        at[rows] = np.arange(begin, begin + len(rows))
        begin += len(rows)
        arrays.append(part.values)
        if part.unfit is not None:
            unfit[rows] = part.unfit
    if not arrays:
        return Converted(pa.nulls(length, kind))
    values = pa.concat_arrays(arrays).take(pa.array(at, mask=at < 0))
    return Converted(values, unfit if unfit.any() else None)


FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""The days since 1970-01-01 that are in the years 1 to 9999."""

_BLANKS = "".join(map(chr, [*range(33), 127]))
_BLANKS_OF_FRACTIONS = _BLANKS[:-1]  # Java trims what is at most a space; Spark's own trimming takes DEL too
_TRUE, _FALSE = ("t", "true", "y", "yes", "1"), ("f", "false", "n", "no", "0")
_INTEGER = r"^[+-]?[0-9]+$"
_FLOAT = r"(?i)^([+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?[df]?|[+-]?(inf|infinity)|nan|(?-i:[+-]NaN))$"
_HEXADECIMAL = r"^[+-]?0[xX]([0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[dDfF]?$"
_PLAIN_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_PLAIN_STAMP = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?$"
_DATE = r"(?s)^\+?(?P<year>[0-9]{4,7})(?:-(?P<month>[0-9]{1,2})(?:-(?P<day>[0-9]{1,2})(?:[ T].*)?)?)?$"
_STAMP = (
    r"^\+?(?P<year>[0-9]{4,6})(?:-(?P<month>[0-9]{1,2})(?:-(?P<day>[0-9]{1,2})"
    r"(?:[ T](?P<hour>[0-9]{1,2})(?::(?P<minute>[0-9]{1,2})(?::(?P<second>[0-9]{1,2})(?:\.(?P<fraction>[0-9]*))?"
    r" *(?P<zone>(?:[A-Za-z+-][^ ]*)?))?)?)?)?)?$"
)
_OFFSET = (
    r"^(?:UTC|GMT|UT)?(?P<sign>[+-])(?:(?P<hour>[0-9]{1,2})(?::(?P<minute>[0-9]{1,2})(?::(?P<second>[0-9]{1,2}))?)?"
    r"|(?P<hours>[0-9]{2})(?P<minutes>[0-9]{2})(?P<seconds>[0-9]{2})?)$"
)
_TIME = r"^(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{1,2})(?::(?P<second>[0-9]{1,2})(?:\.(?P<fraction>[0-9]*))?)?$"
_PLACES = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_MOST_OFFSET = 18 * 3600
_SHORT_ZONES = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires", "ART": "Africa/Cairo",
    "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka", "CAT": "Africa/Harare",
    "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai", "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris", "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland", "PLT": "Asia/Karachi", "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh",
}  # fmt: skip
"""The zones of `java.time.ZoneId.SHORT_IDS`, which Spark reads too."""
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def read_texts(texts: pa.Array, kind: pa.DataType) -> Converted:
    """Return texts as values of a type.

    >>> read_texts(pa.array(["7", "0x10"]), pa.int64()).values.to_pylist()
    [7, None]
    """
    if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_binary(kind) or pt.is_large_binary(kind):
        return Converted(texts.cast(kind))
    if pt.is_string_view(texts.type):
        texts = texts.cast(pa.large_string())
    is_fraction = pt.is_floating(kind) or pt.is_decimal(kind)
    text = pc.utf8_trim(texts, characters=_BLANKS_OF_FRACTIONS if is_fraction else _BLANKS)
    if pt.is_integer(kind):
        return _integers(text, kind)
    if pt.is_floating(kind):
        return _floats(text, kind)
    if pt.is_decimal(kind):
        return _decimals(text, kind)
    if pt.is_boolean(kind):
        small = pc.utf8_lower(text)
        is_true, is_false = (flags(pc.is_in(small, pa.array(words, small.type))) for words in (_TRUE, _FALSE))
        fits = is_true | is_false
        valid = _valid(text)
        return joined(only(pa.array(is_true), fits), fits, valid)
    if pt.is_date(kind):
        return _dates(text, kind)
    if pt.is_timestamp(kind):
        return _stamps(text, kind)
    if pt.is_time(kind):
        return _times(text, kind)
    return none_convert(text, kind)


def _valid(array: pa.Array) -> Bools:
    valid: Bools = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _matches(text: pa.Array, pattern: str) -> Bools:
    return flags(pc.match_substring_regex(text, pattern))


def _integers(text: pa.Array, kind: pa.DataType) -> Converted:
    fits = _matches(text, _INTEGER)
    digits = pc.replace_substring_regex(only(text, fits), r"^\+?(-?)0*([0-9])", r"\1\2")
    longest = pc.max(pc.binary_length(digits)).as_py() or 0
    if longest <= 18:
        wide = digits.cast(pa.int64())
    else:
        fits &= flags(pc.less_equal(pc.binary_length(digits), 21))
        wide = only(digits, fits).cast(pa.decimal128(38, 0))
    limits = np.iinfo(kind.to_pandas_dtype())
    most = 2**63 - 1 if pt.is_integer(wide.type) else 2**64
    low, high = (pa.scalar(decimal.Decimal(min(int(limit), most)), pa.decimal128(38, 0)) for limit in (limits.min, limits.max))
    low, high = low.cast(wide.type), high.cast(wide.type)
    fits &= flags(pc.and_(pc.greater_equal(wide, low), pc.less_equal(wide, high)))
    values = only(wide, fits)
    if pt.is_decimal(values.type) and pt.is_uint64(kind):
        values = pa.array([None if one is None else int(one) for one in values.to_pylist()], kind)
    return joined(values.cast(kind), fits, _valid(text))


def _floats(text: pa.Array, kind: pa.DataType) -> Converted:
    fits = _matches(text, _FLOAT)
    plain = pc.replace_substring_regex(only(text, fits), r"^\+|^-(NaN)$", r"\1")
    plain = pc.replace_substring_regex(plain, r"([0-9.])[dDfF]$", r"\1")
    try:
        values = plain.cast(kind)
    except pa.ArrowInvalid:  # a number beyond the range
        with np.errstate(over="ignore"):
            dtype = kind.to_pandas_dtype()
            values = pa.array([None if one is None else dtype(float(one)) for one in plain.to_pylist()], kind)
    hexadecimal = np.flatnonzero(_matches(text, _HEXADECIMAL))
    if len(hexadecimal):
        fits[hexadecimal] = True
        numbers = {int(at): _from_hex(text[at].as_py()) for at in hexadecimal.tolist()}
        values = pa.array([numbers.get(at, one) for at, one in enumerate(values.to_pylist())], kind)
    return joined(values, fits, _valid(text))


def _from_hex(text: str) -> float:
    try:
        return float.fromhex(text.rstrip("dDfF") if "p" in text.lower() else text)
    except OverflowError:
        return float("-inf") if text.startswith("-") else float("inf")


def _decimals(text: pa.Array, kind: pa.DataType) -> Converted:
    """Read plain digits in Arrow, the rest by `decimal`."""
    whole_digits = kind.precision - kind.scale
    plain = f"^-?[0-9]{{1,{whole_digits}}}(\\.[0-9]{{1,{kind.scale}}})?$" if whole_digits > 0 and kind.scale > 0 else ""
    plain = plain or f"^-?[0-9]{{1,{max(whole_digits, 1)}}}$"
    fits = _matches(text, plain) if whole_digits > 0 else np.zeros(len(text), np.bool_)
    values = only(text, fits).cast(kind)
    others = np.flatnonzero(_valid(text) & ~fits)
    if len(others):
        read = {int(at): _decimal(text[at].as_py(), kind) for at in others.tolist()}
        values = pa.array([read.get(at, one) for at, one in enumerate(values.to_pylist())], kind)
        fits[[at for at, number in read.items() if number is not None]] = True
    return joined(values, fits, _valid(text))


def _decimal(text: str, kind: pa.DataType) -> decimal.Decimal | None:
    """Return a number that the type holds exactly; None of another, or of a text that is none."""
    if "_" in text or text != text.strip() or len(text) > 1_000:
        return None
    try:
        number = decimal.Decimal(text)
    except decimal.InvalidOperation:
        return None
    if not number.is_finite():
        return None
    if number == 0:
        return decimal.Decimal(0)
    if number.adjusted() >= kind.precision - kind.scale or number.adjusted() < -kind.scale:
        return None
    with decimal.localcontext(prec=1_100):
        exact = number.quantize(decimal.Decimal(1).scaleb(-kind.scale))
    return exact if exact == number else None


def _dates(text: pa.Array, kind: pa.DataType) -> Converted:
    if not pc.any(pc.invert(pc.match_substring_regex(text, _PLAIN_DATE))).as_py():
        try:
            read = text.cast(pa.date32())
            if not pc.any(pc.starts_with(text, "0000")).as_py():
                return Converted(read.cast(kind))
        except pa.ArrowInvalid:
            pass  # a month or day that is none
    days, fits = _days(pc.extract_regex(text, _DATE))
    values = pa.array(np.where(fits, days, 0).astype(np.int32), pa.date32())
    return joined(only(values, fits).cast(kind), fits, _valid(text))


def _numbers(fields: pa.StructArray, name: str, default: int) -> Any:
    """Return one group of a pattern as numbers; the default where it is not in the text."""
    group = pc.struct_field(fields, name)
    filled = pc.if_else(pc.equal(group, ""), str(default), group).fill_null(str(default))
    return filled.cast(pa.int64()).to_numpy(zero_copy_only=False)


def _days(fields: pa.StructArray) -> tuple[Any, Bools]:
    year, month, day = (_numbers(fields, name, default) for name, default in (("year", 1970), ("month", 1), ("day", 1)))
    fits = _valid(fields) & (year >= 1) & (year <= 9999) & (month >= 1) & (month <= 12) & (day >= 1)
    months = np.where(fits, (year - 1970) * 12 + month - 1, 0)
    begin = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    size = (months + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) - begin
    return begin + day - 1, fits & (day <= size)


def _stamps(text: pa.Array, kind: pa.DataType) -> Converted:
    has_zone = kind.tz is not None
    plain = pc.replace_substring_regex(text, r"([0-9])Z$", r"\1") if has_zone else text
    if kind.unit == "us" and not pc.any(pc.invert(pc.match_substring_regex(plain, _PLAIN_STAMP))).as_py():
        try:
            read = plain.cast(pa.timestamp("us"))
            if not pc.any(pc.starts_with(plain, "0000")).as_py():
                return Converted(read.cast(pa.int64()).cast(kind))
        except pa.ArrowInvalid:
            pass  # a month, day or hour that is none
    fields = pc.extract_regex(text, _STAMP)
    days, fits = _days(fields)
    hour, minute, second = (_numbers(fields, name, 0) for name in ("hour", "minute", "second"))
    fits = fits & (hour <= 23) & (minute <= 59) & (second <= 59)
    nanoseconds, places = _fraction(fields)
    fits &= places <= _PLACES[kind.unit]
    zones = pc.struct_field(fields, "zone").fill_null("")
    seconds = ((days * 24 + hour) * 60 + minute) * 60 + second
    if has_zone:
        offsets, known = _offsets(zones, seconds)
        seconds, fits = seconds - offsets, fits & known
        fits &= (seconds >= FIRST_DAY * 86_400) & (seconds < (LAST_DAY + 1) * 86_400)
    else:
        fits &= flags(pc.equal(zones, ""))
    per_second = _PER_SECOND[kind.unit]
    if kind.unit == "ns":
        fits &= np.abs(seconds) < 2**63 // per_second
    values = np.where(fits, seconds, 0) * per_second + nanoseconds // (10**9 // per_second)
    return joined(only(pa.array(values).cast(kind), fits), fits, _valid(text))


def _times(text: pa.Array, kind: pa.DataType) -> Converted:
    fields = pc.extract_regex(text, _TIME)
    hour, minute, second = (_numbers(fields, name, 0) for name in ("hour", "minute", "second"))
    nanoseconds, places = _fraction(fields)
    fits = _valid(fields) & (hour <= 23) & (minute <= 59) & (second <= 59) & (places <= _PLACES[kind.unit])
    per_second = _PER_SECOND[kind.unit]
    values = ((hour * 60 + minute) * 60 + second) * per_second + nanoseconds // (10**9 // per_second)
    width = pa.int32() if kind.bit_width == 32 else pa.int64()
    return joined(only(pa.array(values).cast(width).cast(kind), fits), fits, _valid(text))


def _fraction(fields: pa.StructArray) -> tuple[Any, Any]:
    """Return the fraction of a second in nanoseconds, and how many digits it has without zeros at the end."""
    digits = pc.utf8_rtrim(pc.struct_field(fields, "fraction").fill_null(""), characters="0")
    nine = pc.utf8_slice_codeunits(pc.utf8_rpad(digits, 9, "0"), 0, 9)
    return nine.cast(pa.int64()).to_numpy(zero_copy_only=False), pc.utf8_length(digits).to_numpy(zero_copy_only=False)


def _offsets(zones: pa.Array, local_seconds: Any) -> tuple[Any, Bools]:
    """Return the seconds that zones are ahead of UTC, and which zones there are."""
    parts = pc.extract_regex(zones, _OFFSET)
    hour, minute, second = (_numbers(parts, name, 0) + _numbers(parts, f"{name}s", 0) for name in ("hour", "minute", "second"))
    size = (hour * 60 + minute) * 60 + second
    is_negative = flags(pc.equal(pc.struct_field(parts, "sign"), "-"))
    known = _valid(parts) & (minute <= 59) & (second <= 59) & (size <= _MOST_OFFSET)
    offsets = np.where(is_negative, -size, size)
    known |= flags(pc.is_in(zones, pa.array(["", "Z", "UTC", "GMT", "UT"], zones.type)))
    for at in np.flatnonzero(~known & ~_valid(parts)).tolist():
        offset = _named_offset(zones[at].as_py(), int(local_seconds[at]))
        if offset is not None:
            offsets[at], known[at] = offset, True
    return offsets, known


_NO_ZONES = ("Factory", "ROC", "localtime", "posixrules", "posix/", "right/")  # files of zones that Java does not have


def _named_offset(name: str, local_second: int) -> int | None:
    """Return the seconds that a zone of this name is ahead of UTC at a local time; of two the earlier one's, as in Java."""
    if name.startswith(_NO_ZONES):
        return None
    try:
        zone = zoneinfo.ZoneInfo(_SHORT_ZONES.get(name, name))
        local = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=local_second)  # noqa: DTZ001 - the zone follows
        offset = local.replace(tzinfo=zone).utcoffset()
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError, OverflowError):
        return None
    return None if offset is None else int(offset.total_seconds())
