"""The answer key of aggregates: the plain GROUP BY over the live rows, with dicts, loops and fractions only.

Nothing here is incremental and nothing here imports Arrow, NumPy or the engine. Sums are exact fractions, rounded once at the
end, as the contract demands; so an engine that rounds on the way, or remembers what is gone, cannot agree with it.

Source: semantics section 10 and Spark's result types, written down from the text and not from the code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

from zset_join.testing.reference import Bag, Counts, Row, identity, row_identity

__all__ = ["Call", "Filter", "batch_aggregate", "order_of"]

Filter = Callable[[Row], bool | None]
_DIGITS = Context(prec=100)


@dataclass(frozen=True, slots=True)
class Call:
    """One output column, in the oracle's own words."""

    kind: str
    columns: tuple[str, ...] = ()
    passes: Filter | None = None
    scale: int | None = None


def batch_aggregate(bag: Bag, group_by: Sequence[str], calls: Sequence[Call]) -> Counts:
    """Return the rows of the plain query: one per group that has rows, exactly one without `group_by`."""
    groups: dict[tuple[Hashable, ...], list[tuple[Row, int]]] = {} if group_by else {(): []}
    for row, weight in bag:
        groups.setdefault(row_identity(row[name] for name in group_by), []).append((row, weight))
    return {(*key, *(identity(_result(call, rows)) for call in calls)): 1 for key, rows in groups.items()}


def _result(call: Call, rows: Bag) -> Any:
    counted = [(row, weight) for row, weight in rows if call.passes is None or call.passes(row) is True]
    if call.kind == "count_distinct":
        kept = [tuple(row[name] for name in call.columns) for row, _ in counted]
        return len({row_identity(values) for values in kept if None not in values})
    if call.kind in ("min_by", "max_by"):
        return _extreme_by(call, counted)
    if not call.columns:
        return sum(weight for _, weight in counted)
    values = [(row[call.columns[0]], weight) for row, weight in counted if row[call.columns[0]] is not None]
    return _of_values(call, values)


def _of_values(call: Call, values: list[tuple[Any, int]]) -> Any:
    kind = call.kind
    copies = sum(weight for _, weight in values)
    if kind == "count":
        return copies
    if kind in ("collect_list", "collect_set"):
        ordered = sorted(values, key=lambda pair: order_of(pair[0]))
        if kind == "collect_list":
            return [value for value, weight in ordered for _ in range(weight)]
        return list({identity(value): value for value, _ in ordered}.values())
    if not values:
        return None
    if kind in ("min", "max"):
        pick = min if kind == "min" else max
        return pick((value for value, _ in values), key=order_of)
    if kind in ("sum", "avg"):
        return _sum_or_average(call, values, copies)
    return _variance(kind, values, copies)


def order_of(value: Any) -> tuple[Any, ...]:
    """Return a sort key in Spark's order: NaN above every number, NULL below everything."""
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (2,) if value != value else (1, value)
    return (1, value)


def _extreme_by(call: Call, counted: Bag) -> Any:
    shown, ordered = call.columns
    pairs = [(row[ordered], row[shown]) for row, _ in counted if row[ordered] is not None]
    if not pairs:
        return None
    pick = min if call.kind == "min_by" else max
    return pick(pairs, key=lambda pair: (order_of(pair[0]), order_of(pair[1])))[1]


def _special(values: Iterable[tuple[Any, int]]) -> float | None:
    """Return the contribution of NaN and infinities to a sum of floats; None if there are none."""
    floats = [value for value, _ in values if isinstance(value, float)]
    plus, minus = math.inf in floats, -math.inf in floats
    if any(value != value for value in floats) or (plus and minus):
        return math.nan
    return math.inf if plus else -math.inf if minus else None


def _exact_sum(values: Iterable[tuple[Any, int]]) -> Fraction:
    return sum((Fraction(value) * weight for value, weight in values), Fraction(0))


def _as_float(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _as_decimal(number: Fraction, scale: int) -> Decimal:
    """Round half up, away from zero, to so many digits behind the point."""
    scaled = abs(number) * 10**scale
    whole, rest = divmod(scaled.numerator, scaled.denominator)
    if 2 * rest >= scaled.denominator:
        whole += 1
    return Decimal(-whole if number < 0 else whole).scaleb(-scale, _DIGITS)


def _sum_or_average(call: Call, values: list[tuple[Any, int]], copies: int) -> Any:
    is_float = isinstance(values[0][0], float)
    special = _special(values)
    if special is not None:
        return special
    total = _exact_sum(values)
    if call.scale is not None:
        return _as_decimal(total if call.kind == "sum" else total / copies, call.scale)
    if call.kind == "sum":
        return _as_float(total) if is_float else int(total)
    return _as_float(total) / copies


def _variance(kind: str, values: list[tuple[Any, int]], copies: int) -> float | None:
    if kind.endswith("samp") and copies == 1:
        return None
    floats = [(float(value), weight) for value, weight in values]
    if _special(floats) is not None:
        return math.nan
    squares = sum((Fraction(value) ** 2 * weight for value, weight in floats), Fraction(0))
    scattered = copies * squares - _exact_sum(floats) ** 2
    divisor = copies * (copies - 1 if kind.endswith("samp") else copies)
    variance = _quotient(scattered, divisor)
    return math.sqrt(variance) if kind.startswith("stddev") else variance


def _quotient(number: Fraction, divisor: int) -> float:
    """Divide, rounding the number to 53 bits first and the quotient second, however large or small the number is."""
    if not number:
        return 0.0
    shift = number.numerator.bit_length() - number.denominator.bit_length()
    try:
        return math.ldexp(float(number / Fraction(2) ** shift) / divisor, shift)
    except OverflowError:
        return math.inf
