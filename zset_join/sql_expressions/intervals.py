"""Intervals as statements write them: months and a span of time.

INTERVAL '5' MINUTE      INTERVAL 10 MINUTES      INTERVAL '1 day 2 hours'      INTERVAL '1 02:03:04' DAY TO SECOND
INTERVAL '1-2' YEAR TO MONTH      n * INTERVAL '1' DAY      3h
"""

from __future__ import annotations

import datetime
import decimal
import re

from sqlglot import exp

__all__ = ["counts_days", "factors", "is_interval", "span_of"]

_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_SECONDS = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86400, "WEEK": 7 * 86400}
_SHORT = {"US": "MICROSECOND", "MS": "MILLISECOND", "S": "SECOND", "M": "MINUTE", "MIN": "MINUTE", "H": "HOUR", "D": "DAY",
          "W": "WEEK", "Q": "QUARTER", "Y": "YEAR", "MON": "MONTH", "SEC": "SECOND"}  # fmt: skip
_TOO_LONG = 10**15
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)")


def is_interval(node: exp.Expr) -> bool:
    """Return whether a node is an interval, or a multiple of one."""
    if isinstance(node, exp.Paren):
        return is_interval(node.this)
    if isinstance(node, exp.Mul):
        return isinstance(node.this, exp.Interval) != isinstance(node.expression, exp.Interval)
    return isinstance(node, exp.Interval)


def factors(node: exp.Expr) -> tuple[exp.Interval, exp.Expr | None]:
    """Return an interval, and how many times it is meant; None for once."""
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Interval):
        return node, None
    one, other = node.this, node.expression
    return (one, other) if isinstance(one, exp.Interval) else (other, one)


def counts_days(node: exp.Interval) -> bool:
    """Return whether an interval is written in days, weeks or longer: a date that it moves stays a date."""
    unit, text = node.args.get("unit"), node.this.name if isinstance(node.this, exp.Literal) else ""
    if isinstance(unit, exp.IntervalSpan):
        return False
    names = [unit.name] if unit is not None else re.findall(r"[A-Za-z]+", text)
    words = {_SHORT.get(name.upper(), name.upper().removesuffix("S")) for name in names}
    return words <= {"DAY", "WEEK", *_MONTHS}


def span_of(node: exp.Interval) -> tuple[int, datetime.timedelta]:
    """Return the months and the rest of an interval."""
    amount = node.this
    sign = 1
    if isinstance(amount, exp.Neg):
        amount, sign = amount.this, -1
    text = amount.name.strip() if isinstance(amount, exp.Literal) else ""
    unit = node.args.get("unit")
    if isinstance(unit, exp.IntervalSpan):
        return _ranged(text, unit.this.name.upper(), unit.expression.name.upper(), sign)
    if unit is not None:
        return _sum([(text, unit.name)], sign)
    parts = re.findall(r"([+-]?[0-9.]+)\s*([A-Za-z]+)", text)
    if not parts or re.sub(r"([+-]?[0-9.]+)\s*([A-Za-z]+)", "", text).strip():
        if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
            return _sum([(text, "SECOND")], sign)
        raise ValueError("an interval is a number and a unit, as in INTERVAL '5' MINUTE")
    return _sum(parts, sign)


def _sum(parts: list[tuple[str, str]], sign: int) -> tuple[int, datetime.timedelta]:
    months, microseconds = 0, decimal.Decimal(0)
    for text, name in parts:
        unit = _SHORT.get(name.upper(), name.upper().removesuffix("S"))
        if not _NUMBER.fullmatch(text):
            raise ValueError("an interval is a number and a unit, as in INTERVAL '5' MINUTE")
        number = decimal.Decimal(text) * sign
        if not abs(number) < _TOO_LONG:
            raise ValueError("the interval is longer than times go")
        if unit in _MONTHS:
            if number != int(number):
                raise ValueError(f"an interval has a whole number of {unit.lower()}s, not {text}")
            months += int(number) * _MONTHS[unit]
        elif unit in _SECONDS:
            microseconds += number * _SECONDS[unit] * 10**6
        elif unit in {"MILLISECOND", "MICROSECOND"}:
            microseconds += number * (1000 if unit == "MILLISECOND" else 1)
        else:
            raise ValueError(
                f"the unit of an interval is one of {', '.join([*_SECONDS, 'MILLISECOND', 'MICROSECOND', *_MONTHS])}"
            )
    if abs(months) > 120_000 or abs(microseconds) > decimal.Decimal(2**62):
        raise ValueError("the interval is longer than times go")
    try:
        return months, datetime.timedelta(microseconds=int(microseconds))
    except OverflowError:
        raise ValueError("the interval is longer than times go") from None


def _ranged(text: str, first: str, last: str, sign: int) -> tuple[int, datetime.timedelta]:
    if text.startswith("-"):
        text, sign = text[1:], -sign
    units = ["YEAR", "MONTH"] if first == "YEAR" else ["DAY", "HOUR", "MINUTE", "SECOND"]
    if first not in units or last not in units or units.index(first) >= units.index(last):
        raise ValueError(f"an interval goes from {' to '.join(units)}, or a part of that, not from {first} to {last}")
    numbers = re.split(r"[-]" if first == "YEAR" else r"[ :]", text)
    wanted = units[units.index(first) : units.index(last) + 1]
    if len(numbers) != len(wanted) or not all(re.fullmatch(r"[0-9]+(\.[0-9]+)?", number) for number in numbers):
        raise ValueError(f"'{text}' is no interval {first} TO {last}")
    return _sum(list(zip(numbers, wanted, strict=True)), sign)
