"""Expressions in the time zone of a session, where the columns are instants in UTC.

    hour(ts) > 4     ->     hour(CAST(CAST(ts AS timestamp[us, tz=America/New_York]) AS timestamp[us])) > 4

The law: the value is that of Spark in a session of this zone. What depends on the zone is computed of the local time; a text or
date that is a constant becomes the instant that it is there. What makes an instant of the local time of a row is refused,
`SPARK_ONLY_STEP`: `date_trunc` and `add_months` of an instant, a day or more added to one, texts and dates cast to one.

An instant that is cast to a zone by name keeps that zone.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from zset_join.core.errors import BadInputError, PlanError
from zset_join.expressions.conversions import names_zone
from zset_join.expressions.evaluation import TypeFinder
from zset_join.expressions.rows import columns_read, compute
from zset_join.expressions.tree import Call, Cast, Column, Expression, Literal, describe
from zset_join.expressions.type_rules import is_flat, kind_of

__all__ = ["expression_in_zone", "is_utc"]

_Typed = tuple[Expression, pa.DataType]
_TIMES = frozenset({"date", "timestamp", "instant"})
_LOCAL = frozenset({"extract", "date_format", "time_between", "subtract"})
"""What Spark computes of the local times of instants."""
_FREE = frozenset({
    "eq", "ne", "lt", "le", "gt", "ge", "eq_null_safe", "in", "is_null", "is_not_null", "case", "coalesce", "greatest", "least",
    "nullif", "array", "array_contains", "element_at", "try_element_at", "unix_time",
})  # fmt: skip
"""What takes instants and does not depend on the zone."""
_UTC = pa.timestamp("us", tz="UTC")
_A_DAY = datetime.timedelta(days=1)


def is_utc(zone: str) -> bool:
    """Return whether a zone is UTC, by one of its names."""
    return is_flat(pa.timestamp("us", tz=zone))


def expression_in_zone(expression: Expression, schemas: Mapping[str, pa.Schema], zone: str) -> Expression:
    """Return an expression that has the values of a session in a time zone.

    >>> schema = pa.schema({"ts": pa.timestamp("us", tz="UTC")})
    >>> expression_in_zone(Cast(Column("row", "ts"), pa.date32()), {"row": schema}, "Asia/Tokyo")
    CAST(CAST(CAST(ts AS timestamp[us, tz=Asia/Tokyo]) AS timestamp[us]) AS date32[day])
    """
    typed: _Typed = expression.accept(_InZone(schemas, zone))
    return typed[0]


class _InZone:
    """Rewrite a tree, children first, each with its type, which stays what it was."""

    def __init__(self, schemas: Mapping[str, pa.Schema], zone: str) -> None:
        self._types = TypeFinder(schemas)
        self._zone = zone
        self._is_utc = is_utc(zone)

    def visit_column(self, node: Column) -> _Typed:
        return node, self._types.visit_column(node)

    def visit_literal(self, node: Literal) -> _Typed:
        local = None if node.local is None else pa.array([node.local], pa.timestamp("us"))
        return node if local is None else self._instant(node, local), self._types.visit_literal(node)

    def visit_cast(self, node: Cast, operand: _Typed) -> _Typed:
        target = self._types.visit_cast(node, operand[1])
        return Cast(self._to_cast(node, operand, target), node.type), target

    def visit_call(self, node: Call, operands: tuple[_Typed, ...]) -> _Typed:
        trees = [tree for tree, _ in operands]
        kinds = {kind_of(kind) for _, kind in operands}
        times = kinds & _TIMES
        if self._is_utc:
            pass
        elif node.operation == "try_cast":
            trees[0] = self._to_cast(node, operands[0], operands[1][1])
        elif node.operation in _LOCAL and times == {"instant"} and "duration" not in kinds:
            trees = [self._local(node, one) for one in operands]
        elif node.operation in {"add", "subtract"} and times == {"instant"}:
            if not any(kind_of(kind) == "duration" and _is_short(tree) for tree, kind in operands):
                raise self._refused(node)
        elif ("instant" in times and (node.operation not in _FREE or len(times) > 1)) or (
            node.operation == "unix_time" and times - {"instant"}
        ):
            raise self._refused(node)
        return Call(node.operation, tuple(trees)), self._types.visit_call(node, tuple(kind for _, kind in operands))

    def _to_cast(self, node: Cast | Call, operand: _Typed, target: pa.DataType) -> Expression:
        """Return what is cast in place of an operand."""
        tree, kind = operand
        if self._is_utc:
            return tree
        if kind_of(kind) == "instant" and kind_of(target) != "instant":
            return self._local(node, operand)
        if kind_of(target) != "instant" or kind_of(kind) in {"instant", "null"}:
            return tree
        if columns_read(tree):
            raise self._refused(node)
        return self._constant(node, tree)

    def _local(self, node: Cast | Call, operand: _Typed) -> Expression:
        """Return the local time of an instant in UTC; another operand as it is."""
        tree, kind = operand
        if kind_of(kind) != "instant" or not is_flat(kind):
            return tree
        zoned = pa.timestamp(kind.unit, tz=self._zone)
        try:
            pc.local_timestamp(pa.scalar(0, zoned))
        except pa.ArrowException as error:
            raise self._refused(node) from error
        return Cast(Cast(tree, zoned), pa.timestamp(kind.unit))

    def _constant(self, node: Cast | Call, tree: Expression) -> Expression:
        """Return a constant text, date or local time as the instant that it is; one that is none as it is."""
        try:
            if names_zone(compute(tree, {}, 1)[0].as_py()):
                return tree
            return self._instant(node, compute(Cast(tree, pa.timestamp("us")), {}, 1))
        except BadInputError:
            return tree

    def _instant(self, node: Expression, local: pa.Array) -> Literal:
        """Return a local time as an instant: of two the earlier, of none the one by the offset before, as in Spark."""
        try:
            near = pc.assume_timezone(local, self._zone, ambiguous="earliest", nonexistent="earliest")
        except pa.ArrowException as error:
            raise self._refused(node) from error
        offset = pc.subtract(pc.local_timestamp(near), pc.local_timestamp(near.cast(_UTC)))
        instant = pc.subtract(local, offset)[0].as_py()
        return Literal(None if instant is None else instant.replace(tzinfo=datetime.UTC), _UTC)

    def _refused(self, node: Expression) -> PlanError:
        return PlanError(
            f"{describe(node)} depends on the time zone, the session's is {self._zone}, and this library computes it only in "
            "UTC. Compute it before the first stage, set spark.sql.session.timeZone to UTC, or take a column without a zone.",
            code="SPARK_ONLY_STEP",
            step=describe(node),
            reason="it depends on the time zone",
        )


def _is_short(duration: Expression) -> bool:
    """Return whether a duration is a constant shorter than a day; days have 23 to 25 hours."""
    if columns_read(duration):
        return False
    value = compute(duration, {}, 1)[0].as_py()
    return value is None or abs(value) < _A_DAY
