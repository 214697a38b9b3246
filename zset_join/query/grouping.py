"""GROUP BY on a view of a pipeline: the computed columns before it, and the calls of the aggregate.

Arguments, filters and keys that are expressions become columns of a selection before the aggregate, which takes columns only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.types as pt
from typing_extensions import override

from zset_join.core.errors import OptionError, PlanError
from zset_join.expressions import Expression, left
from zset_join.expressions.rows import check_condition, is_plain, named, plain_column
from zset_join.plan.row_steps import SelectStep
from zset_join.plan.tree import Apply
from zset_join.query.columns import expr, titled
from zset_join.query.rows import Rows
from zset_join.query.unknown_methods import missing_on_grouped
from zset_join.shapes.aggregate import AggregateCall
from zset_join.stages.aggregate import AggregateRequest
from zset_join.stages.expiring import lasting

__all__ = ["Aggregated", "GroupedView", "ShortAggregates"]

_R = TypeVar("_R", bound=Rows)
_V = TypeVar("_V")
_ARGUMENT = "__argument_"
_FILTER = "__filter_"


@dataclass(frozen=True, kw_only=True, eq=False)
class Aggregated:
    """An aggregate call; made by `zset_join.pipeline.functions`.

    Args:
        function: a name of `zset_join.shapes.aggregate.FUNCTIONS`.
        columns: its arguments.
        name: of the result; None: as Spark names it.
        condition: only rows that fulfil it count.
        limit: most values in a list or set.
        shown: default name, if it is not function and arguments.
    """

    function: str
    columns: tuple[str | Expression, ...] = ()
    name: str | None = None
    condition: Expression | None = None
    limit: int = 10_000
    shown: str | None = None

    def alias(self, name: str) -> Aggregated:
        """Name the result."""
        return replace(self, name=name)

    def filter(self, condition: Expression | str) -> Aggregated:
        """Let only rows count that fulfil a condition, an expression or a text of Spark's SQL."""
        passes = expr(condition) if isinstance(condition, str) else condition
        return replace(self, condition=passes if self.condition is None else self.condition & passes)

    @property
    def title(self) -> str:
        """Return the name of the result."""
        if self.name is not None:
            return self.name
        if self.shown is not None:
            return self.shown
        arguments = ", ".join(one if isinstance(one, str) else repr(one) for one in self.columns)
        if self.condition is not None:
            return f"{self.function}({arguments or '1'}) FILTER (WHERE {self.condition!r})"
        return f"{self.function}({arguments})" if any(isinstance(one, Expression) for one in self.columns) else ""


class ShortAggregates(ABC, Generic[_V]):
    """PySpark's short words for one aggregate of several columns: `groupBy(...).sum("total")`, in both runners.

    Results are named as PySpark names them, such as `sum(total)`.
    """

    @abstractmethod
    def agg(self, *calls: Any, state_ttl: Any = None) -> _V: ...

    @abstractmethod
    def _values(self) -> pa.Schema:
        """Return the columns that are no keys."""

    def count(self, *, state_ttl: Any = None) -> _V:
        """Return the number of rows of each group, as column `count`."""
        return self.agg(Aggregated(function="count", name="count"), state_ttl=state_ttl)

    def sum(self, *columns: str) -> _V:
        """Return the sum of columns per group; without names, of every number that is no key."""
        return self._each("sum", columns)

    def avg(self, *columns: str) -> _V:
        """Return the average of columns per group; without names, of every number that is no key."""
        return self._each("avg", columns)

    mean = avg

    def min(self, *columns: str) -> _V:
        """Return the smallest value of columns per group; without names, of every number that is no key."""
        return self._each("min", columns)

    def max(self, *columns: str) -> _V:
        """Return the largest value of columns per group; without names, of every number that is no key."""
        return self._each("max", columns)

    def _each(self, function: str, columns: Sequence[str]) -> _V:
        numbers = [field.name for field in self._values() if _is_number(field.type)]
        return self.agg(*(Aggregated(function=function, columns=(name,)) for name in columns or numbers))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind))


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupedView(ShortAggregates[_R], Generic[_R]):
    """A grouped view; made by `View.groupBy`.

    Args:
        rows: the view.
        keys: the key columns: names and expressions.
    """

    rows: _R
    keys: Mapping[str, Expression] = field(default_factory=dict)

    if not TYPE_CHECKING:  # a type checker is to find unknown names

        def __getattr__(self, name: str) -> Any:
            raise missing_on_grouped(name)

    @classmethod
    def of(cls, rows: _R, columns: Sequence[Any], computed: Mapping[str, Expression]) -> GroupedView[_R]:
        """Group a view.

        Raises:
            PlanError: a column that does not exist, or is named twice.
        """
        wanted = columns[0] if len(columns) == 1 and isinstance(columns[0], list | tuple) else columns
        keys: list[tuple[str, Expression]] = []
        for column in wanted:
            if isinstance(column, str) and column in rows.columns:
                keys.append((column, named(column)))
            elif isinstance(column, Expression):
                is_tree = is_plain(column)
                keys.append((plain_column(column) or repr(column), column) if is_tree else titled(column, rows, "groupBy"))
            elif isinstance(column, str):
                raise PlanError(
                    f'groupBy names "{column}", which "{rows.name}" does not have; its columns are {rows.columns}.',
                    code="UNKNOWN_COLUMN",
                    name=rows.name,
                    missing=[column],
                )
            else:
                raise OptionError(
                    f"groupBy({column!r}): expected column names or expressions.", code="ARGUMENT", argument=repr(column)
                )
        keys += [(name, rows._expression(one, "groupBy")) for name, one in computed.items()]
        names = [name for name, _ in keys]
        if len(set(names)) < len(names):
            raise PlanError(
                f"groupBy names {sorted({key for key in names if names.count(key) > 1})} twice; name every column once.",
                code="DUPLICATE_KEY_COLUMN",
                columns=names,
            )
        return cls(rows=rows, keys=dict(keys))

    @override
    def _values(self) -> pa.Schema:
        return pa.schema([one for one in self.rows.arrow_schema if one.name not in self.keys])

    @override
    def agg(self, *calls: Aggregated | AggregateCall | Mapping[str, str], state_ttl: Any = None) -> _R:
        """Return one row per group: the key columns, then one column per aggregate.

        Args:
            calls: of `zset_join.pipeline.functions`, or a dict of column name (or `"*"`) and function name.
            state_ttl: lifetime of a group after its last row: a duration or a `StateTtl`.

        Raises:
            PlanError: columns or types that cannot be aggregated.
        """
        flat: list[Any] = []
        for given in calls:
            if isinstance(given, Mapping):
                flat += [
                    Aggregated(function=function, columns=() if column == "*" else (column,))
                    for column, function in given.items()
                ]
            else:
                flat.append(given)
        if not flat:
            raise OptionError("agg() needs at least one aggregate, such as count().", code="ARGUMENT")
        lowering = _Lowering(self)
        lowered = tuple(lowering.call(one) for one in flat)
        request = lasting(AggregateRequest(tuple(self.keys), lowered), state_ttl, 1)
        return lowering.rows_before(lowered, keeps_time=state_ttl is not None)._operate(request)


class _Lowering(Generic[_R]):
    """Convert aggregates into calls over columns, and collect the columns to compute for them."""

    def __init__(self, grouped: GroupedView[_R]) -> None:
        self._grouped = grouped
        self._rows = grouped.rows
        self._computed: list[tuple[str, Expression]] = []

    def call(self, given: Any) -> AggregateCall:
        if isinstance(given, AggregateCall):
            return given
        if not isinstance(given, Aggregated):
            raise OptionError(
                f"agg({given!r}): expected calls of zset_join.pipeline.functions, such as sum('x').alias('total').",
                code="ARGUMENT",
                argument=repr(given),
            )
        where = None
        if given.condition is not None:
            condition = self._rows._expression(given.condition, "filter")
            check_condition(condition, self._rows.arrow_schema)
            where = left(self._column(condition, _FILTER))
            given = replace(given, condition=condition)
        trees = tuple(one if isinstance(one, str) else self._rows._expression(one, given.function) for one in given.columns)
        given = replace(given, columns=trees)
        columns = tuple(self._argument(one, given.function) for one in trees)
        return AggregateCall(given.function, columns, name=given.title, where=where, limit=given.limit)

    def rows_before(self, calls: Sequence[AggregateCall], *, keeps_time: bool = False) -> _R:
        """Return the view that is aggregated: with one more selection where something is computed."""
        keys = self._grouped.keys
        if not self._computed and all(plain_column(one) == name for name, one in keys.items()):
            return self._rows
        read = {name for call in calls for name in call.columns}
        read |= {str(self._rows.node.relation.event_time)} if keeps_time else set()
        plain = [name for name in self._rows.columns if name in read and name not in keys]
        columns = (*keys.items(), *((name, named(name)) for name in plain), *self._computed)
        return replace(self._rows, node=Apply(self._rows.node, SelectStep(tuple(columns))))

    def _argument(self, given: str | Expression, function: str) -> str:
        name = given if isinstance(given, str) else plain_column(given)
        if name is None:
            return self._column(given, _ARGUMENT) if isinstance(given, Expression) else given
        if name not in self._rows.columns:
            raise PlanError(
                f'{function} names "{name}", which "{self._rows.name}" does not have; its columns are {self._rows.columns}.',
                code="UNKNOWN_COLUMN",
                name=self._rows.name,
                missing=[name],
            )
        is_key = name in self._grouped.keys and plain_column(self._grouped.keys[name]) != name
        return self._column(named(name), _ARGUMENT) if is_key else name

    def _column(self, expression: Expression, prefix: str) -> str:
        """Return the column that holds an expression; equal ones share it."""
        for name, known in self._computed:
            if known.same_as(expression):
                return name
        self._computed.append((f"{prefix}{len(self._computed)}", expression))
        return self._computed[-1][0]
