"""Base of views: operations on single rows.

`view` adds the words that bring rows together: groups, joins, versions.

`PlannedQuery`: one view, or several as one plan: common parts are planned once.

The law: a source of one name is one source. Views that were written apart may each describe it, and must describe it alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import pyarrow as pa

from zset_join.core.errors import OptionError, PlanError
from zset_join.core.options import KeepState
from zset_join.expressions import Expression
from zset_join.expressions.rows import is_plain, named, plain_column
from zset_join.plan.planner import plan_query
from zset_join.plan.query_plan import QueryPlan
from zset_join.plan.row_steps import SelectStep, WhereStep, keeps_upserts
from zset_join.plan.table_index import TableIndex
from zset_join.plan.tree import Apply, Merge, Node, Operate, Views, levels_of, visible
from zset_join.plan.versioning import every_change
from zset_join.query.columns import ViewColumn, expr, resolved, text_column, titled
from zset_join.query.reading import Binding, Reading, readings_of
from zset_join.stages.aggregate import AggregateRequest
from zset_join.stages.expiring import lasting
from zset_join.stages.request import StageRequest

__all__ = ["PlannedQuery", "Rows", "bindings_of", "plan_of", "planned"]

MOST_STEPS = 500


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows(ABC):
    """Rows that change.

    Args:
        node: the query of the rows.
        name: in messages.
        bindings: of the sources to their rows.
        indexes: declared ones.
        steps: functions of opaque steps, for their runner.
    """

    node: Node
    name: str
    bindings: tuple[Binding, ...]
    indexes: tuple[TableIndex, ...] = ()
    steps: tuple[Any, ...] = ()

    @abstractmethod
    def agg(self, *calls: Any) -> Any: ...

    @property
    def row_source(self) -> object:
        """Return an object that identifies the rows: their node."""
        return self.node

    @property
    def columns(self) -> list[str]:
        """Return the names of the columns."""
        return list(visible(self.node))

    @property
    def arrow_schema(self) -> pa.Schema:
        """Return the columns as Arrow types."""
        return pa.schema([field for field in self.node.relation.schema if field.name not in self.node.hidden])

    @property
    def schema(self) -> Any:
        """Return the columns with their types."""
        return self.arrow_schema

    def plan(self, *, keep_state: KeepState = "all") -> QueryPlan:
        """Return the plan of the query that keeps this view.

        Args:
            keep_state: "needed" omits the columns of sources that nothing reads.

        Raises:
            PlanError: two of its sources share a name.
        """
        return plan_query(self.node, name=self.name, keep_state=keep_state)

    def explain(self) -> None:
        """Print the plan of the query and its state, as DataFrame.explain does."""
        print(self.plan().explain(buckets=1))  # noqa: T201 - printing is what explain() does in PySpark

    def alias(self, name: str) -> Self:
        """Return the same rows under another name, for messages.

        Raises:
            OptionError: the name is empty.
        """
        if not str(name).strip():
            raise OptionError(f"alias({name!r}): a view needs a name.", code="NAME")
        return replace(self, name=name)

    def __getitem__(self, item: Any) -> Any:
        """Return a column of these rows by its name, for conditions and computed columns; a list selects, a condition filters.

        Raises:
            PlanError: a column that does not exist.

        >>> import pyarrow as pa
        >>> from zset_join.pipeline import appends
        >>> sales = appends("sales", {"units": pa.int64(), "price": pa.int64()})
        >>> sales[sales["units"] > 1].columns
        ['units', 'price']
        """
        if isinstance(item, Expression):
            return self.where(item)
        if isinstance(item, list | tuple):
            return self.select(*item)
        self._check_columns([item], f'"{self.name}"[{item!r}]')
        return ViewColumn("row", item, self.node, self.name)

    def where(self, condition: Expression | str) -> Self:
        """Keep the rows that fulfil a condition; NULL does not pass.

        Args:
            condition: an expression, or a text of Spark's SQL.

        Raises:
            PlanError: it cannot be evaluated on these columns.
        """
        return self._then(WhereStep(self._condition(condition, "where")))

    def filter(self, condition: Expression | str) -> Self:
        """Keep the rows that fulfil a condition; the same as `where`."""
        return self.where(condition)

    def select(self, *columns: Any, **computed: Expression) -> Self:
        """Keep columns, and compute others.

        Args:
            columns: names, `"*"` for all, expressions, lists of them, or dicts of name and expression.
            computed: expressions by the names of their columns.

        Raises:
            PlanError: a column that does not exist, or an expression that cannot be computed.

        >>> import pyarrow as pa
        >>> from zset_join.expressions import col
        >>> from zset_join.query import appends
        >>> sales = appends("sales", {"units": pa.int64(), "price": pa.int64()})
        >>> sales.select("units", total=col("units") * col("price")).columns
        ['units', 'total']
        """
        chosen: list[tuple[str, Expression]] = []
        flat = columns[0] if len(columns) == 1 and isinstance(columns[0], list | tuple) else columns
        for given in (*flat, computed):
            if isinstance(given, Mapping):
                chosen += [(name, self._expression(expression, "select")) for name, expression in given.items()]
            elif isinstance(given, Expression):
                chosen.append(titled(given, self, "select"))
            elif isinstance(given, str) and given == "*":
                chosen += [(name, named(name)) for name in self.columns]
            elif isinstance(given, str):
                self._check_columns([given], f"select({given!r})")
                chosen.append((given, named(given)))
            else:
                raise OptionError(
                    f"select({given!r}): expected column names, or expressions by name as in select(total=...).",
                    code="ARGUMENT",
                    argument=repr(given),
                )
        return self._select(chosen)

    def selectExpr(self, *expressions: str) -> Self:  # noqa: N802 - the name PySpark users type
        """Select and compute columns given as Spark SQL: `selectExpr("*", "units * price AS total")`.

        Raises:
            PlanError: a text that cannot be read, or does not fit these columns.
        """
        chosen: list[tuple[str, Expression]] = []
        for text in expressions:
            if not isinstance(text, str):
                raise OptionError(f"selectExpr({text!r}): expected strings.", code="ARGUMENT", argument=repr(text))
            column = text_column(text, self)
            chosen += [(name, named(name)) for name in self.columns] if column is None else [column]
        return self._select(chosen)

    def withColumn(self, name: str, column: Expression) -> Self:  # noqa: N802 - the name PySpark users type
        """Add a column, or put another in its place.

        Raises:
            PlanError: it cannot be computed from these columns.
        """
        return self.withColumns({name: column})

    def withColumns(self, columns: Mapping[str, Expression]) -> Self:  # noqa: N802 - the name PySpark users type
        """Add columns, or put others in their places."""
        computed = {name: self._expression(expression, "withColumn") for name, expression in columns.items()}
        kept = [(name, computed.pop(name, named(name))) for name in self.columns]
        return self._select([*kept, *computed.items()])

    def withColumnRenamed(self, existing: str, new: str) -> Self:  # noqa: N802 - the name PySpark users type
        """Rename a column.

        Raises:
            PlanError: the column does not exist, or the name is taken.
        """
        self._check_columns([existing], "withColumnRenamed")
        return self._select([(new if name == existing else name, named(name)) for name in self.columns])

    def withColumnsRenamed(self, columns: Mapping[str, str]) -> Self:  # noqa: N802 - the name PySpark users type
        """Rename columns, by their present names.

        Raises:
            PlanError: one is absent, or a name is taken.
        """
        self._check_columns(list(columns), "withColumnsRenamed")
        return self._select([(columns.get(name, name), named(name)) for name in self.columns])

    def drop(self, *columns: str | Expression) -> Self:
        """Leave columns out.

        Raises:
            PlanError: a column that does not exist, or none would be left.
        """
        names = [one if isinstance(one, str) else plain_column(self._expression(one, "drop")) or repr(one) for one in columns]
        self._check_columns(names, "drop")
        return self._select([(name, named(name)) for name in self.columns if name not in names])

    def distinct(self, *, state_ttl: Any = None) -> Self:
        """Return every distinct row once, while at least one copy of it exists.

        Args:
            state_ttl: lifetime of a row after its last copy: a duration or a `StateTtl`.

        Raises:
            KeyTypeError: a column without equality, such as a map.
        """
        return self._operate(lasting(AggregateRequest(tuple(self.columns), ()), state_ttl, 1))

    def union(self, other: Rows) -> Self:
        """Return the rows of this view and of another one; columns are matched by position, equal rows are kept, as in PySpark.

        Raises:
            PlanError: incompatible columns.
        """
        if not isinstance(other, Rows):
            raise OptionError(f"union({other!r}): expected a view.", code="ARGUMENT", argument=repr(other))
        if len(other.columns) != len(self.columns):
            raise PlanError(
                f'"{self.name}" has the columns {self.columns} and "{other.name}" {other.columns}; a union goes by position. '
                "Select columns first.",
                code="UNION_TYPES",
                relation=other.name,
            )
        renamed: Rows = other
        if other.columns != self.columns:
            renamed = other._select([(name, named(own)) for name, own in zip(self.columns, other.columns, strict=True)])
        node = Merge((self.node, renamed.node))
        bindings, steps = _merged(self.bindings, other.bindings), (*self.steps, *renamed.steps)
        united = replace(self, node=node, bindings=bindings, steps=steps)
        return united._checked()

    unionAll = union  # noqa: N815 - the name PySpark users type

    def operate(self, request: StageRequest, *others: Rows) -> Self:
        """Put a stage of any kind over these rows, and perhaps those of others; see `zset_join.stages.request`."""
        return self._operate(request, *others)

    def every_change(self) -> Self:
        """Return these rows where every change of a record is a version, not only the newest row of an epoch.

        Records with values that were not sent, and truncates, are bad input there.
        """
        node = every_change(self.node)
        versions = tuple(replace(one, is_of_versions=True) for one in self.bindings)
        return self if node is self.node else replace(self, node=node, bindings=versions)

    def _operate(self, request: StageRequest, *others: Rows) -> Self:
        node = Operate(request, (self.node, *(other.node for other in others)))
        bindings, steps = self.bindings, self.steps
        for other in others:
            bindings, steps = _merged(bindings, other.bindings), (*steps, *other.steps)
        return replace(self, node=node, bindings=bindings, steps=steps)._checked()

    def _then(self, step: WhereStep | SelectStep, hides: tuple[str, ...] = ()) -> Self:
        return replace(self, node=Apply(self.node, step, hides))._checked()

    def _select(self, columns: Sequence[tuple[str, Expression]]) -> Self:
        step = SelectStep(tuple(columns))
        relation = self.node.relation
        if relation.mode == "upsert":
            # What orders changes goes along, hidden, where the rows can stay upserts.
            taken = {name for name, _ in columns}
            order = [name for name in relation.sequence_by if name not in step.kept and name not in taken]
            longer = SelectStep((*columns, *((name, named(name)) for name in order)))
            if order and keeps_upserts(relation, longer):
                return self._then(longer, tuple(name for name in order if name not in self.node.hidden))
        return self._then(step)

    def _checked(self) -> Self:
        """Return this view, once its rows are known to make sense."""
        reserved = [name for name in self.columns if name.startswith("__")]
        if reserved:
            raise PlanError(
                f"the columns {reserved} begin with two underscores; such names are the engine's. Rename them.",
                code="RESERVED_COLUMN",
                columns=reserved,
            )
        if levels_of(self.node) > MOST_STEPS:
            raise PlanError(
                f'"{self.name}" has more than {MOST_STEPS} steps behind each other. Write conditions with &, columns in one '
                "select, and unite views by halves: a.union(b).union(c.union(d)).",
                code="PLAN_TOO_DEEP",
            )
        return self

    def _condition(self, given: Any, call: str) -> Expression:
        return self._expression(expr(given) if isinstance(given, str) else given, call)

    def _expression(self, given: Any, call: str) -> Expression:
        return given if is_plain(given) else resolved(given, self, call)

    def _check_columns(self, names: Sequence[str], call: str) -> None:
        missing = [name for name in names if name not in self.columns]
        if missing:
            raise PlanError(
                f'{call} names {missing}, which "{self.name}" does not have; its columns are {self.columns}.',
                code="UNKNOWN_COLUMN",
                name=self.name,
                missing=missing,
            )


def _merged(first: tuple[Binding, ...], second: tuple[Binding, ...]) -> tuple[Binding, ...]:
    """Return the bindings of both, each once."""
    return (*first, *(binding for binding in second if binding not in first))


@dataclass(frozen=True, kw_only=True)
class PlannedQuery:
    """A planned query, and the readings of its sources in process."""

    plan: QueryPlan
    readings: Mapping[str, Reading]
    has_several: bool = False  # made of a mapping of views, whose answers go by their names
    inputs: tuple[Mapping[str, Any], ...] = ()


def planned(query: Rows | Mapping[str, Rows] | PlannedQuery, *, keep_state: KeepState = "all") -> PlannedQuery:
    """Return a view, or several views by their names, as a planned query; a planned one is returned unchanged."""
    if isinstance(query, PlannedQuery):
        return query
    if isinstance(query, Mapping):
        plan = plan_of(query, keep_state=keep_state)
        return PlannedQuery(plan=plan, readings=readings_of(bindings_of(query)), has_several=True)
    return PlannedQuery(plan=query.plan(keep_state=keep_state), readings=readings_of(query.bindings))


def plan_of(views: Mapping[str, Rows], *, keep_state: KeepState = "all") -> QueryPlan:
    if not views or not all(str(name).strip() for name in views):
        raise OptionError(
            f"a pipeline of several views takes a mapping from names to views, and was given the names {list(views)}; "
            "give one view or more, each under a name that is not empty.",
            code="VIEW_NAME",
            names=list(views),
        )
    bindings_of(views)
    root = Views(tuple(views), tuple(view.node for view in views.values()))
    return plan_query(root, keep_state=keep_state)


def bindings_of(views: Mapping[str, Rows]) -> tuple[Binding, ...]:
    found: dict[str, tuple[str, Binding]] = {}
    merged: list[Binding] = []
    for name, view in views.items():
        for binding in view.bindings:
            first, before = found.setdefault(binding.source.name, (name, binding))
            if not _is_same(before, binding):
                raise OptionError(
                    f'the views "{first}" and "{name}" describe the source "{binding.source.name}" differently. Describe it '
                    "once and build both views from that, or give the sources different names.",
                    code="SAME_NAME",
                    name=binding.source.name,
                    views=(first, name),
                )
            merged.append(binding)
    return tuple(merged)


def _is_same(one: Binding, other: Binding) -> bool:
    """Return whether two bindings read the same rows in the same way; whether a row is a version may differ."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    one, other = (replace(each, is_of_versions=True) for each in (one, other))
    pairs = ((getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    return all(a.same_as(b) if isinstance(a, Expression) else not isinstance(b, Expression) and a == b for a, b in pairs)
