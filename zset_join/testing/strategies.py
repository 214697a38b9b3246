"""Hypothesis strategies: legal changelogs of your own relations, with the values and the order of events that go wrong.

A history is made row by row against a model of what is live: a retraction takes a row that is present, a change of a row with a
primary key retracts the old one first. So every prefix of a history is legal, and so is every way to cut it into epochs.

Edge cases are the point: duplicates, key moves, deletes of unknown keys and without payload, several copies, weight 0,
retractions whose floats have other bits than the row they retract. Values are few, so that they meet: NULL, two NaNs with
different bits, both zeros, strings that differ only in a trailing blank or after the twelfth byte, the ends of a range.

Needs the package hypothesis: `pip install './path/to/the/clone[testing]'`.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Hashable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pt

from zset_join.core.errors import OptionError
from zset_join.core.extras import needed_for
from zset_join.core.relation import Relation
from zset_join.testing.reference import row_identity

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["NEGATIVE_NAN", "Line", "LiveRows", "Values", "changelogs", "histories", "other_bits", "value_pool"]

NEGATIVE_NAN: float = struct.unpack("<d", bytes.fromhex("010000000000f8ff"))[0]
_NAN = float("nan")
_LONG_A = "the same first twelve bytes, then A"
_LONG_B = "the same first twelve bytes, then B"
_MOMENTS = (dt.datetime(2024, 2, 29, 12, 0, tzinfo=dt.UTC), dt.datetime(1969, 12, 31, 23, 59, tzinfo=dt.UTC))

Values = tuple[Any, ...]
Line = tuple[Values, int]
_Identity = tuple[Hashable, ...]


class LiveRows:
    """Track the live rows of one input while a history is made."""

    def __init__(self, relation: Relation) -> None:
        self._relation = relation
        self._names = relation.schema.names
        self._key_positions = relation.field_indices(relation.primary_key)
        self._live: dict[_Identity, list[Any]] = {}  # row identity -> [row, weight], changelog mode only
        self._by_primary_key: dict[_Identity, list[Any]] = {}  # the same entries, where there is a primary key
        self._previous: Values | None = None

    def change(self, row: Values, *, operation: int, pick: int = 0, copies: int = 0, bits: int = 0) -> list[Line]:
        """Return the change or changes that a row and a few small numbers represent."""
        if self._relation.mode == "append":
            repeated = self._previous if operation >= 12 and self._previous is not None else row
            self._previous = repeated
            return [(repeated, 1)]
        if self._relation.mode == "upsert":
            return [self._upsert(row, operation)]
        return self._changelog(row, operation, pick, copies, bits)

    def _upsert(self, row: Values, operation: int) -> Line:
        if operation < 12:
            return row, 1
        if operation % 2:  # the usual delete: primary key and sequence, nothing else
            kept = {*self._relation.primary_key, *self._relation.sequence_by}
            row = tuple(value if name in kept else None for name, value in zip(self._names, row, strict=True))
        return row, -1

    def _changelog(self, row: Values, operation: int, pick: int, copies: int, bits: int) -> list[Line]:
        if operation == 15:
            return [(row, 0)]
        if operation >= 9 and self._live:
            return [self._retract(list(self._live.values())[pick % len(self._live)], copies, bits)]
        old = self._by_primary_key.get(self._primary_key(row))
        changes = [] if old is None else [self._retract(old, 0, bits)]
        weight = 1 if self._key_positions or operation < 7 else 1 + operation % 3
        entry = self._live.setdefault(row_identity(row), [row, 0])
        entry[1] += weight
        if self._key_positions:
            self._by_primary_key[self._primary_key(row)] = entry
        return [*changes, (row, weight)]

    def _primary_key(self, row: Values) -> _Identity:
        return row_identity(row[position] for position in self._key_positions)

    def _retract(self, entry: list[Any], copies: int, bits: int) -> Line:
        weight = 1 + copies % entry[1]
        row = tuple(other_bits(value) for value in entry[0]) if bits % 2 else entry[0]
        entry[1] -= weight
        if not entry[1]:
            del self._live[row_identity(entry[0])]
            self._by_primary_key.pop(self._primary_key(entry[0]), None)
        return row, -weight


def value_pool(kind: pa.DataType) -> tuple[Any, ...]:
    """Return values of a type, the plainest first and NULL among them.

    >>> value_pool(pa.float64())
    (1.5, None, 0.0, -0.0, nan, nan)
    """
    if pt.is_boolean(kind):
        return (True, None, False)
    if pt.is_integer(kind):
        least = 0 if pt.is_unsigned_integer(kind) else -(2 ** (kind.bit_width - 1))
        return (1, None, 0, 2, 3, 2 ** (kind.bit_width - (1 if least else 0)) - 1, least)
    if pt.is_floating(kind):
        return (1.5, None, 0.0, -0.0, _NAN, NEGATIVE_NAN)
    if pt.is_string(kind) or pt.is_large_string(kind):
        return ("a", None, "", "a ", _LONG_A, _LONG_B)
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return (b"a", None, b"", b"\x00", b"z" * 20, b"z" * 19 + b"y")
    if pt.is_date(kind):
        return (dt.date(2024, 2, 29), None, dt.date(1970, 1, 1), dt.date(1969, 12, 31))
    if pt.is_timestamp(kind):
        zone = None if kind.tz is None else dt.UTC
        return (_MOMENTS[0].replace(tzinfo=zone), None, _MOMENTS[1].replace(tzinfo=zone))
    if pt.is_decimal(kind):
        unit = Decimal(1).scaleb(-kind.scale)
        return (unit, None, Decimal(0).scaleb(-kind.scale), -unit, 2 * unit)
    if pt.is_struct(kind):
        pools = [value_pool(kind.field(at).type) for at in range(kind.num_fields)]
        names = [kind.field(at).name for at in range(kind.num_fields)]
        first = {name: pool[0] for name, pool in zip(names, pools, strict=True)}
        return (first, None, dict.fromkeys(names), {name: pool[-1] for name, pool in zip(names, pools, strict=True)})
    if pt.is_list(kind) or pt.is_large_list(kind):
        inner = value_pool(kind.value_type)
        return ([inner[0]], None, [], [None], list(inner[:3]))
    if pt.is_dictionary(kind):
        return value_pool(kind.value_type)
    raise TypeError(f"there are no values of type {kind} to draw from; pass values={{column: [...]}} for its column")


def other_bits(value: Any) -> Any:
    """Return an equal value with other bits where there is one: the other zero, the other NaN."""
    if isinstance(value, float):
        return NEGATIVE_NAN if value != value else (-value if value == 0 else value)
    return value


with needed_for("zset_join.testing.strategies, unlike the rest of zset_join.testing,"):
    from hypothesis import strategies as st


_Values = Mapping[str, Sequence[Any]]
_NOTHING: _Values = {}


def changelogs(relation: Relation, *, values: _Values = _NOTHING, max_changes: int = 12) -> SearchStrategy[list[Line]]:
    """Draw legal runs of changes of one relation, as `(row, weight)` lines in arrival order."""
    # Every prefix is legal. Drawn often: equal values, duplicates, moves of the join key, deletes, also of unknown keys and
    # without payload, equal and late sequences, several copies, NULL, NaN, both zeros, empty strings.
    return _drawn(relation, values, max_changes).map(lambda drawn: _legal(relation, drawn))


def histories(
    *relations: Relation, values: _Values = _NOTHING, max_changes: int = 12, max_epochs: int = 4
) -> SearchStrategy[list[list[list[Line]]]]:
    """Draw epochs for an operator with these inputs: per epoch and input, its lines."""
    known = {name for relation in relations for name in relation.schema.names}
    _refuse_unknown(values, known)
    own = [{name: values[name] for name in values if name in relation.schema.names} for relation in relations]
    return st.integers(1, max_epochs).flatmap(
        lambda epochs: st.tuples(
            *(
                st.tuples(
                    changelogs(relation, values=chosen, max_changes=max_changes),
                    st.lists(st.integers(0, epochs - 1), min_size=2 * max_changes, max_size=2 * max_changes),
                )
                for relation, chosen in zip(relations, own, strict=True)
            )
        ).map(lambda inputs: _cut(inputs, epochs))
    )


def _drawn(relation: Relation, values: _Values, max_changes: int) -> SearchStrategy[list[Any]]:
    _refuse_unknown(values, set(relation.schema.names))
    never_null = {*relation.primary_key, *relation.sequence_by}
    pools = []
    for field in relation.schema:
        pool = tuple(values[field.name]) if field.name in values else value_pool(field.type)
        if field.name in never_null:
            pool = tuple(value for value in pool if value is not None)
        if not pool:
            raise OptionError(
                f'values={{"{field.name}": [...]}} leaves nothing to draw for "{field.name}" of "{relation.name}"; a primary '
                "key and a sequence are never NULL.",
                code="ARGUMENT",
                column=field.name,
            )
        pools.append(st.sampled_from(pool))
    small = st.integers(0, 15)
    return st.lists(st.tuples(st.tuples(*pools), small, small, small, small), max_size=max_changes)


def _legal(relation: Relation, drawn: Sequence[Any]) -> list[Line]:
    live = LiveRows(relation)
    return [
        line
        for row, operation, pick, copies, bits in drawn
        for line in live.change(row, operation=operation, pick=pick, copies=copies, bits=bits)
    ]


def _cut(inputs: Sequence[tuple[list[Line], list[int]]], epochs: int) -> list[list[list[Line]]]:
    cut: list[list[list[Line]]] = [[[] for _ in inputs] for _ in range(epochs)]
    for number, (lines, places) in enumerate(inputs):
        for line, place in zip(lines, sorted(places[: len(lines)]), strict=True):
            cut[place][number].append(line)
    return cut


def _refuse_unknown(values: _Values, known: set[str]) -> None:
    unknown = sorted(set(values) - known)
    if unknown:
        raise OptionError(f"values= names {unknown}, and the columns are {sorted(known)}.", code="ARGUMENT", unknown=unknown)
