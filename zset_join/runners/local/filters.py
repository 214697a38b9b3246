"""The conditions that several readers have on one delta, evaluated in one pass.

    a > 1, a > 2, b = 'x'       a > (1, 2) over two copies of the rows at once; b = 'x' beside it

The law: each reader is given what its condition alone passes. Conditions that differ only in the literals that they compare
with are one expression over as many copies of the rows; a reader that no row passes costs nothing more. Where the pass raises,
every condition is evaluated by itself, so that the error is that of the reader whose condition raises.

Memory: of a delta of at most `_MOST_ROWS` rows, the columns that are read, at most twice per condition of one shape; a longer
one is not copied.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from zset_join.core.errors import BadInputError
from zset_join.core.row_conversion import take_rows
from zset_join.expressions import Expression
from zset_join.expressions.rows import columns_read, named, rows_where
from zset_join.expressions.tree import Call, Cast, Literal, folded
from zset_join.expressions.vectors import Bools, Vector, from_arrow
from zset_join.expressions.written import write_expression
from zset_join.zset import ZSet

__all__ = ["Filters"]

_Loaded: TypeAlias = dict[tuple[str, str], Vector]  # columns by side and name

_MOST_ROWS = 1024
_LENGTHS_KEPT = 8
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "eq_null_safe"})


class _Shape:
    """Conditions that differ in the literals that they compare with alone."""

    def __init__(self, condition: Expression, types: dict[str, pa.DataType]) -> None:
        self.places: list[int] = []
        self.literals: list[list[object]] = []
        self.read = columns_read(condition) - types.keys()
        self._condition, self._types = condition, types
        self._values: dict[int, _Loaded] = {}

    @property
    def copies(self) -> int:
        """Return of how many copies of the rows it is one expression: a power of two, so that shapes share them."""
        return 1 << (len(self.places) - 1).bit_length() if self._types else 1

    def passes(self, columns: Mapping[str, pa.Array], loaded: _Loaded, length: int) -> Bools:
        """Return per condition and row whether the row passes, given the copies of the rows and what was read of them."""
        count = self.copies
        if self._types:
            loaded.update(self._values.get(length) or self._values_of(length))
        passes = rows_where(self._condition, columns, count * length, loaded).reshape(count, length)
        return passes[: len(self.places)] if self._types else np.broadcast_to(passes, (len(self.places), length))

    def _values_of(self, length: int) -> _Loaded:
        """Return the literals for so many rows; those of the last few lengths are kept."""
        if len(self._values) == _LENGTHS_KEPT:
            self._values.clear()
        owners = pa.array(np.repeat(np.arange(self.copies) % len(self.places), length))
        named_values = zip(self._types.items(), zip(*self.literals, strict=True), strict=True)
        self._values[length] = {
            ("row", name): from_arrow(pa.array(values, kind).take(owners)) for (name, kind), values in named_values
        }
        return self._values[length]


class Filters:
    """The conditions on the deltas of one source or stage."""

    def __init__(self, schema: pa.Schema) -> None:
        self._shapes: dict[str, _Shape] = {}
        self._count = 0
        self._nothing = ZSet.empty(schema)
        self._newest: Callable[[], ZSet | None] = _none
        self._passes = np.empty((0, 0), np.bool_)
        self._passing: frozenset[int] | None = None

    def add(self, condition: Expression, alone: Callable[[ZSet], ZSet]) -> tuple[int, Callable[[ZSet], ZSet]]:
        """Return the place of a condition, and what passes the rows of a delta that fulfil it."""
        place, literals = self._count, list[Literal]()
        general = _general(condition, literals)
        types = {_name(at): one.type for at, one in enumerate(literals)}
        text = json.dumps([write_expression(general), [str(kind) for kind in types.values()]])
        shape = self._shapes.setdefault(text, _Shape(general, types))
        shape.places.append(place)
        shape.literals.append([one.value for one in literals])
        self._count += 1

        def keep(delta: ZSet) -> ZSet:
            passing = self.passing(delta)
            if passing is None:
                return alone(delta)
            if place not in passing:
                return self._nothing
            chosen = np.flatnonzero(self._passes[place])
            return delta if len(chosen) == len(delta) else ZSet(take_rows(delta.rows, chosen), delta.weights[chosen])

        return place, keep

    def passing(self, delta: ZSet) -> frozenset[int] | None:
        """Return the places of the conditions that some row of a delta passes; None where each is evaluated by itself."""
        if self._newest() is not delta:
            self._evaluate(delta)
        return self._passing

    def _evaluate(self, delta: ZSet) -> None:
        self._newest, self._passing = weakref.ref(delta), None
        if self._count == 1 or len(delta) > _MOST_ROWS:
            return
        length, shapes = len(delta), self._shapes.values()
        passes = np.empty((self._count, length), np.bool_)
        read = sorted(set[str]().union(*(shape.read for shape in shapes)))
        rows = delta.rows.select(read).take(pa.array(np.tile(np.arange(length), max(shape.copies for shape in shapes))))
        copied: dict[int, tuple[dict[str, pa.Array], _Loaded]] = {}
        try:
            for shape in shapes:
                count = shape.copies
                if count not in copied:
                    copied[count] = dict(zip(read, rows.slice(0, count * length).columns, strict=True)), {}
                passes[shape.places] = shape.passes(*copied[count], length)
        except BadInputError:  # each condition raises its own error, or none
            return
        self._passes, self._passing = passes, frozenset(np.flatnonzero(passes.any(axis=1)).tolist())


def _general(expression: Expression, literals: list[Literal]) -> Expression:
    """Return an expression with columns in place of the literals that it compares with, which are added to a list."""

    def general(node: Expression, operands: tuple[Expression, ...]) -> Expression:
        match node:
            case Call():
                parts = list(operands)
                for at, operand in enumerate(node.operands):
                    if node.operation in _COMPARISONS and isinstance(operand, Literal) and operand.value is not None:
                        parts[at] = named(_name(len(literals)))
                        literals.append(operand)
                return Call(node.operation, tuple(parts))
            case Cast():
                return Cast(operands[0], node.type)
            case _:
                return node

    return folded(expression, general)


def _name(place: int) -> str:
    return f"\0{place}"


def _none() -> None:
    """Return no delta."""
