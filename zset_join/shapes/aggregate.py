"""Aggregate calls, one per output column, and the shape of an aggregate.

Names, result types and the treatment of NULL are Spark's:

| function | argument | result |
|---|---|---|
| `count` | nothing (rows), or a column (values that are not NULL) | bigint, never NULL |
| `count_distinct` | one column or more (rows without NULL among them) | bigint, never NULL |
| `sum` | integer / float / decimal(p,s) | bigint / double / decimal(p+10,s) |
| `avg`, `mean` | integer or float / decimal(p,s) | double / decimal(p+4,s+4) |
| `min`, `max` | number, date, time, boolean, string, binary | the column's type |
| `min_by`, `max_by` (`first`, `last`) | value, order | the value's type: the value where the order is least, largest |
| `variance`, `var_samp`, `var_pop`, `stddev`, `stddev_samp`, `stddev_pop` | number | double |
| `collect_list`, `collect_set` | any column | array, never NULL |
| `bool_and`, `bool_or` | boolean | boolean |
| `bit_and`, `bit_or`, `bit_xor` | signed integer | the column's type |

An empty group has no line; the one line of an empty global aggregate has 0 in its counts, an empty array in its lists and NULL
elsewhere. Precision stops at 38 digits.

What is decided here and not in Spark: a sum of floats is exact until it is rounded once, so it does not depend on the order and
may differ from Spark's in its last digits; of several values with the same order, `min_by` takes the smallest and `max_by` the
largest (NULL smallest of all); lists and sets come in ascending order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from zset_join.core.errors import PlanError
from zset_join.core.key_types import check_key_type, is_bytes, is_nested, storage_type
from zset_join.core.relation import Relation
from zset_join.expressions import Expression, check
from zset_join.shapes.kept_types import kept_as

__all__ = [
    "BIT_FUNCTIONS",
    "FUNCTIONS",
    "AggregateCall",
    "check_grouping",
    "grouped_relation",
    "is_orderable",
    "result_field",
]

FUNCTIONS = {
    "avg": "avg",
    "bit_and": "bit_and",
    "bit_or": "bit_or",
    "bit_xor": "bit_xor",
    "bool_and": "min",
    "bool_or": "max",
    "collect_list": "collect_list",
    "collect_set": "collect_set",
    "count": "count",
    "count_distinct": "count_distinct",
    "first": "min_by",
    "last": "max_by",
    "max": "max",
    "max_by": "max_by",
    "mean": "avg",
    "min": "min",
    "min_by": "min_by",
    "stddev": "stddev_samp",
    "stddev_pop": "stddev_pop",
    "stddev_samp": "stddev_samp",
    "sum": "sum",
    "var_pop": "var_pop",
    "var_samp": "var_samp",
    "variance": "var_samp",
}
"""Every function by the names it goes by."""

BIT_FUNCTIONS = ("bit_and", "bit_or", "bit_xor")
_MAX_DIGITS = 38
_COLUMNS = {"count": (0, 1), "count_distinct": (1, None), "min_by": (2, 2), "max_by": (2, 2)}
_MOMENTS = ("var_pop", "var_samp", "stddev_pop", "stddev_samp")


@dataclass(frozen=True, slots=True, eq=False)
class AggregateCall:
    """One output column of an aggregate.

    Args:
        function: a key of `FUNCTIONS`.
        columns: the column it reads, or several.
        name: of the output column; default: as Spark names it, such as `sum(x)`. A filter needs a name.
        where: only rows that pass count; an expression over columns named with `left(...)`.
        limit: most values in a list or set; a group that exceeds it stops the epoch.

    Raises:
        PlanError: an unknown function, or a wrong number of columns.

    >>> AggregateCall("max", "price").name, AggregateCall("count").name
    ('max(price)', 'count(1)')
    """

    function: str
    columns: tuple[str, ...] | str = ()
    name: str = ""
    where: Expression | None = None
    limit: int = 10_000

    def __post_init__(self) -> None:
        columns = (self.columns,) if isinstance(self.columns, str) else tuple(self.columns)
        object.__setattr__(self, "columns", columns)
        if self.function not in FUNCTIONS:
            raise PlanError(
                f"the aggregate function {self.function!r} is unknown; use one of {', '.join(FUNCTIONS)}.",
                code="UNKNOWN_FUNCTION",
                function=self.function,
            )
        least, most = _COLUMNS.get(self.kind, (1, 1))
        if len(columns) < least or (most is not None and len(columns) > most):
            wanted = f"{least}" if least == most else f"{least} or more" if most is None else f"{least} or {most}"
            raise PlanError(
                f"{self.function} is given the columns {list(columns)}; it takes {wanted}.",
                code="AGGREGATE_COLUMNS",
                function=self.function,
                columns=columns,
            )
        if not self.name:
            if self.where is not None:
                raise PlanError(
                    f"{self._described()} with a filter needs a name of its own; pass name=...",
                    code="AGGREGATE_NAME",
                    function=self.function,
                )
            object.__setattr__(self, "name", self._described())

    def _described(self) -> str:
        columns = ", ".join(self.columns)
        if self.kind == "count":
            return f"count({columns or '1'})"
        if self.kind == "count_distinct":
            return f"count(DISTINCT {columns})"
        return f"{self.function}({columns})"

    @property
    def kind(self) -> str:
        """Return the plain name of the function."""
        return FUNCTIONS[self.function]

    def __repr__(self) -> str:
        rest = f" where {self.where!r}" if self.where is not None else ""
        return f"{self._described()} as {self.name}{rest}"


def result_field(call: AggregateCall, schema: pa.Schema, relation: str) -> pa.Field:
    """Return name, type and nullability of a call's output column."""
    missing = [name for name in call.columns if name not in schema.names]
    if missing:
        raise PlanError(
            f'{call!r} names {missing}, which is not among the columns {schema.names} of "{relation}".',
            code="UNKNOWN_COLUMN",
            relation=relation,
            missing=missing,
        )
    if call.where is not None:
        check(call.where, schema, pa.schema([]))
    types = [schema.field(name).type for name in call.columns]
    result_type = _result_type(call, types)
    if result_type is None:
        raise PlanError(
            f"{call!r}: {call.function} does not take {', '.join(str(kind) for kind in types)}; cast the column of "
            f'"{relation}" to a type that it takes first.',
            code="AGGREGATE_TYPE",
            relation=relation,
            function=call.function,
            types=[str(kind) for kind in types],
        )
    if call.kind in ("count_distinct", "collect_list", "collect_set", "min_by", "max_by"):
        for name, kind in zip(call.columns, types, strict=True):
            check_key_type(kind, relation=relation, column=name)
    never_null = call.kind in ("count", "count_distinct", "collect_list", "collect_set")
    return pa.field(call.name, result_type, nullable=not never_null)


def _result_type(call: AggregateCall, types: Sequence[pa.DataType]) -> pa.DataType | None:
    kind = call.kind
    if kind == "count":
        return pa.int64()
    if kind == "count_distinct":
        return pa.int64() if all(_is_kept(one) for one in types) else None
    first = types[0]
    if call.function in ("bool_and", "bool_or") and not pt.is_boolean(storage_type(first)):
        return None
    if kind in BIT_FUNCTIONS:
        return first if pt.is_signed_integer(storage_type(first)) else None
    if kind in ("sum", "avg") or kind in _MOMENTS:
        return _number_result(kind, storage_type(first))
    if kind in ("min", "max"):
        return first if is_orderable(first) else None
    if kind in ("min_by", "max_by"):
        return first if _is_kept(first) and is_orderable(types[1]) else None
    return pa.list_(first) if _is_kept(first) else None


def is_orderable(declared: pa.DataType) -> bool:
    """Return whether min and max are offered for a type."""
    kind = storage_type(declared)
    return bool(
        pt.is_integer(kind)
        or pt.is_floating(kind)
        or pt.is_boolean(kind)
        or pt.is_temporal(kind)
        or (pt.is_decimal(kind) and kind.precision <= _MAX_DIGITS)
        or is_bytes(kind)
        or pt.is_fixed_size_binary(kind)
    )


def _is_kept(declared: pa.DataType) -> bool:
    return is_orderable(declared) or is_nested(storage_type(declared))


def _number_result(kind: str, stored: pa.DataType) -> pa.DataType | None:
    if pt.is_decimal(stored) and stored.precision <= _MAX_DIGITS:
        if kind in _MOMENTS:
            return pa.float64()
        more = 10 if kind == "sum" else 4
        scale = stored.scale if kind == "sum" else min(stored.scale + more, _MAX_DIGITS)
        return pa.decimal128(min(stored.precision + more, _MAX_DIGITS), scale)
    if pt.is_floating(stored):
        return pa.float64()
    if pt.is_integer(stored) and not pt.is_uint64(stored):
        return pa.int64() if kind == "sum" else pa.float64()
    return None


def grouped_relation(relation: Relation, group_by: Sequence[str], calls: Sequence[AggregateCall]) -> Relation:
    """Return the answer of an aggregate: the key columns, which identify a row, then a column per call."""
    keys = check_grouping(relation, group_by, calls)
    fields = [result_field(call, relation.schema, relation.name) for call in calls]
    return Relation(
        name=f"{relation.name}_by_{'_'.join(keys) or 'all'}",
        schema=pa.schema([*(relation.schema.field(name) for name in keys), *fields]),
        primary_key=keys,
        mode="changelog",
    )


def check_grouping(relation: Relation, group_by: Sequence[str], calls: Sequence[AggregateCall]) -> tuple[str, ...]:
    """Refuse arguments that make no aggregate; return the key columns."""
    if relation.mode == "upsert":
        raise PlanError(
            f'relation "{relation.name}" is in upsert mode; an aggregate needs full rows with weights. Join it, or normalise '
            "it to a changelog first.",
            code="AGGREGATE_OF_UPSERTS",
            relation=relation.name,
        )
    missing = [name for name in group_by if name not in relation.schema.names]
    if missing:
        raise PlanError(
            f"group_by={list(group_by)} names {missing}, which is not among the columns {relation.schema.names} of "
            f'"{relation.name}".',
            code="UNKNOWN_COLUMN",
            relation=relation.name,
            missing=missing,
        )
    for name in group_by:
        kind = relation.schema.field(name).type
        check_key_type(kind, relation=relation.name, column=name)
        kept_as(storage_type(kind), column=name)
    names = [*group_by, *(call.name for call in calls)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not names:
        what = f"would have more than one column named {twice}" if twice else "would have no column"
        raise PlanError(
            f'the aggregate over "{relation.name}" {what}; give each call a name of its own.',
            code="OUTPUT_NAMES",
            relation=relation.name,
            names=names,
        )
    return tuple(group_by)
