"""Views of Spark: the words of a pipeline's views, over streaming DataFrames, with Spark's own expressions.

A view is a tree (`zset_join.plan.tree`) over named sources; which stream a name represents is beside it. Joins,
groups, versions and lookups are the words that a pipeline in process has. What is done to single rows may be written as PySpark
users do, with text, Columns and functions of their own: such a step is Spark's, and opaque to the plan.

All that follows from several streams is one query with one checkpoint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType
from typing_extensions import override

from zset_join.core.errors import OptionError, PlanError
from zset_join.core.relation import Relation
from zset_join.expressions import Expression
from zset_join.expressions.rows import named
from zset_join.lookup import DataFrameSource, Lookup, LookupSource
from zset_join.plan.query_plan import PlanSource
from zset_join.plan.row_steps import OpaqueStep
from zset_join.plan.tree import Apply, Node, Operate, Read, Views, changelog_of, sources_of
from zset_join.query import joining
from zset_join.query import view as words
from zset_join.query.grouping import Aggregated
from zset_join.query.reading import Binding
from zset_join.query.rows import Rows
from zset_join.runners.spark.api.grouped import GroupedStream, Grouping
from zset_join.runners.spark.api.other_queries import register_writer_of_several
from zset_join.runners.spark.api.stream_arguments import check_stream_name
from zset_join.runners.spark.api.unknown_methods import missing_on_view
from zset_join.runners.spark.api.writer import JoinStreamWriter
from zset_join.runners.spark.driver.driver_query import WrittenQuery
from zset_join.runners.spark.epoch.named_outputs import ChosenSink
from zset_join.runners.spark.epoch.outputs import ChosenOutput
from zset_join.runners.spark.planning.lowering import BoundStep, lowered_query, translated
from zset_join.runners.spark.planning.placed_query import PlacedQuery, refuse_compared_collations
from zset_join.runners.spark.planning.row_steps import Transform, row_step
from zset_join.runners.spark.planning.source_stream import SourceStream
from zset_join.runners.spark.rows.names import check_names, column_named
from zset_join.runners.spark.rows.schemas import arrow_schema, spark_schema
from zset_join.runners.spark.rows.watermark import with_watermark
from zset_join.shapes.timed_join import Emit, Late

__all__ = [
    "BoundSource",
    "BoundTransform",
    "ChangeStream",
    "GroupedStream",
    "JoinedStream",
    "SeveralStreamWriter",
    "UnionedStream",
    "View",
    "writeStream",
]


@dataclass(frozen=True, kw_only=True, eq=False)
class BoundSource(Binding):
    """Bind a source to a stream."""

    stream: SourceStream
    origin: object = field(default_factory=object)

    @classmethod
    def of(cls, stream: SourceStream, origin: object | None = None) -> BoundSource:
        source = PlanSource(
            relation=stream.relation(()),
            hidden=stream.hidden,
            has_baseline=stream.baseline is not None,
            max_watermark_jump=stream.max_watermark_jump,
        )
        return cls(source=source, stream=stream, origin=origin or object())


@dataclass(frozen=True, eq=False)
class BoundTransform:
    """A step that only Spark can do."""

    step: OpaqueStep
    bound: BoundStep


@dataclass(frozen=True, kw_only=True, eq=False)
class View(words.View):
    """A query over streams. `changes`, `appends` and `versioned` return one, and so do its methods.

    Rows: `where`, `select`, `selectExpr`, `withColumn`, `withColumnRenamed`, `drop`, `union`, `distinct`,
        `dropDuplicates`, `dedup`, `every_change`.
    Joins: `join`, `temporal_join`, `join_asof`, `lookup_join`; `alias` names a side, `create_index` names an index.
    Groups: `groupBy(...).agg(...)`, `agg`.
    Time: `versioned_by`.
    Inspect: `columns`, `schema`, `describe`, `explain`, `plan`.
    Run: `writeStream`, with options, an output and a trigger.

    A view is immutable. `view["column"]` is a column in an expression.
    """

    @classmethod
    def over(cls, stream: SourceStream) -> View:
        """Return the rows of a stream."""
        bound = BoundSource.of(stream)
        return cls(node=Read(bound.source), name=stream.name, bindings=(bound,), indexes=())

    @classmethod
    def of_tree(cls, root: Node, streams: Callable[[PlanSource], SourceStream]) -> View:
        """Return the view of an existing query, such as one from SQL.

        Args:
            root: the query.
            streams: returns the stream of a source, with the columns of the source.
        """
        bindings = tuple(BoundSource(source=source, stream=streams(source)) for source in sources_of(root))
        return cls(node=root, name=root.relation.name, bindings=bindings, indexes=())

    if not TYPE_CHECKING:  # a type checker is to find unknown names
        _missing = staticmethod(missing_on_view)
    _warns = False

    @property
    def stream(self) -> SourceStream:
        """Return the stream, if the view is a plain stream.

        Raises:
            OptionError: it is not a plain stream.
        """
        if isinstance(self.node, Read):
            return self._own_source.stream
        raise OptionError(f'"{self.name}" is not a plain stream.', code="NOT_A_STREAM", name=self.name)

    @property
    def session(self) -> SparkSession:
        """Return the session of the streams."""
        return self._sources[0].stream.session

    @property
    def output(self) -> Relation:
        """Return the columns of the view, and its key where it has one."""
        return replace(changelog_of(self.node), name=self.name)

    @property
    @override
    def schema(self) -> StructType:
        """Return the columns of the view, as Spark types; an output adds its weight or row kind."""
        return spark_schema(self.arrow_schema)

    @cached_property
    def placed(self) -> PlacedQuery:
        """Return the query as executors run it: its plan, and its stages in their places.

        Raises:
            PlanError: it cannot be planned.
        """
        return self._written.placed()

    @cached_property
    def _written(self) -> WrittenQuery:
        return WrittenQuery(self.name, lowered_query(self.node, self.streams, {id(one.step): one.bound for one in self.steps}))

    @property
    def writeStream(self) -> JoinStreamWriter:  # noqa: N802 - the name PySpark users type
        """Return a writer to choose options, an output and a trigger with."""
        self._written.placed()  # what executors cannot run is refused at once
        return JoinStreamWriter(self._written)

    @property
    def streams(self) -> dict[int, SourceStream]:
        """Return the streams of its sources, by `id` of these."""
        return {id(one.source): one.stream for one in self._sources}

    @override
    def explain(self) -> None:
        """Print the plan of the query and its state, as DataFrame.explain does."""
        placed = self.placed
        print("\n".join([*placed.explained_indexes(), placed.explanation()]))  # noqa: T201 - printing is what explain() does in PySpark

    @override
    def alias(self, name: str) -> Self:
        """Return the same rows under another name.

        Raises:
            OptionError: the name is empty, or one of those the dead-letter table needs.
        """
        check_stream_name(name)
        if not isinstance(self.node, Read):
            return super().alias(name)
        own = self._own_source
        bound = BoundSource.of(replace(own.stream, name=name), own.origin)
        return replace(self, node=Read(bound.source), bindings=(bound,), name=name)

    # ---------------------------------------------------------------- rows, one by one

    @override
    def where(self, condition: str | Column | Expression) -> Self:
        """Keep the rows that satisfy a condition; after `agg` it is HAVING.

        Args:
            condition: SQL text, a Column, or an expression of `zset_join.expressions`.

        Raises:
            PlanError: Spark cannot resolve it, or it depends on more than the row.
        """
        if isinstance(condition, Expression):
            return super().where(condition)
        return self._opaque(f"where({condition})", lambda rows, _: rows.where(condition), condition=condition)

    @override
    def filter(self, condition: str | Column | Expression) -> Self:
        """Keep the rows that fulfil a condition, as `where`."""
        return self.where(condition)

    @override
    def select(self, *columns: Any, **computed: Expression) -> Self:
        """Select and compute columns: names, Columns, or a list of them, as for `DataFrame.select`.

        Args:
            columns: Spark's, or as for `View.select` in process.
            computed: expressions by the names of their columns.

        Raises:
            PlanError: as `where`; or the view would have no column, or two of one name.
        """
        chosen = columns[0] if len(columns) == 1 and isinstance(columns[0], list | tuple) else columns
        if computed or any(isinstance(one, Mapping | Expression) for one in chosen):
            return super().select(*chosen, **computed)
        if chosen and all(isinstance(one, str) and one in self.columns for one in chosen) and len(set(chosen)) == len(chosen):
            return super().select(*chosen)
        shown = ", ".join(map(str, chosen))
        return self._opaque(f"select({shown})", lambda rows, kept: rows.select(*chosen, *map(column_named, kept)))

    @override
    def selectExpr(self, *expressions: str) -> Self:
        """Select and compute columns given as SQL text.

        Raises:
            PlanError: as `select`.
        """
        return self._opaque(f"selectExpr{expressions}", lambda rows, kept: rows.selectExpr(*expressions, *kept))

    @override
    def withColumn(self, name: str, column: Column | Expression) -> Self:
        """Add a computed column, or replace the one of that name.

        Raises:
            PlanError: as `where`.
        """
        if isinstance(column, Expression):
            return super().withColumn(name, column)
        return self._opaque(f"withColumn({name!r}, {column})", lambda rows, _: rows.withColumn(name, column))

    @override
    def withColumns(self, columns: Mapping[str, Any]) -> Self:
        """Add or replace several computed columns.

        Raises:
            PlanError: as `where`.
        """
        if all(isinstance(one, Expression) for one in columns.values()):
            return super().withColumns(columns)
        return self._opaque(f"withColumns({dict(columns)})", lambda rows, _: rows.withColumns(dict(columns)))

    # ---------------------------------------------------------------- groups

    @override
    def groupBy(self, *columns: Any, **computed: Expression) -> GroupedStream:  # type: ignore[override]
        """Group the rows, for `.agg(...)`.

        Args:
            columns: names, Columns or expressions, or a list of them.
            computed: expressions by the names of their columns.

        Raises:
            PlanError: a column that does not exist, or cannot be grouped by.
        """
        return GroupedStream(Grouping.of(self, columns, computed))

    groupby = groupBy  # type: ignore[assignment]

    @override
    def agg(self, *calls: Aggregated | Column | Mapping[str, str]) -> Any:
        """Aggregate all rows into one, which is present from the first epoch on; see `GroupedStream.agg`."""
        return self.groupBy().agg(*calls)

    # ---------------------------------------------------------------- several views

    @override
    def join(
        self,
        other: Rows,
        on: Any = None,
        how: str = "inner",
        *,
        null_safe: bool | Sequence[bool] = False,
        condition: Expression | str | None = None,
        state_ttl: Any = None,
    ) -> Self:
        """Join with another stream or view, in one query; see `zset_join.query.View.join`."""
        _check_view(other, "join")
        return super().join(other, on, how, null_safe=null_safe, condition=condition, state_ttl=state_ttl)

    @override
    def union(self, other: Rows) -> Self:
        """Return the rows of this view and of another one, in the same query; equal rows are kept, as in PySpark.

        Raises:
            OptionError: `other` is no view.
            PlanError: incompatible columns.
        """
        if not isinstance(other, View):
            raise OptionError(f"union expects another view, got {type(other).__name__}.", code="NOT_A_VIEW")
        return super().union(other)

    unionAll = union  # noqa: N815 - the name PySpark users type

    @override
    def versioned_by(self, column: str, *, delay: Any = None, max_watermark_jump: Any = None) -> Self:
        """Set the column of this stream with the time of a row; see `zset_join.query.View.versioned_by`."""
        if delay is None or not isinstance(self.node, Read):
            raise PlanError(
                f'versioned_by("{column}"): inside Spark a stream is given its event time and its delay where it is described, '
                'as in changes(df, ..., watermark=("ts", "10 seconds")).',
                code="VERSIONED_BY",
                name=self.name,
            )
        stream = with_watermark(self.stream, (column, delay), max_watermark_jump)
        return replace(self, **{name: getattr(View.over(stream), name) for name in ("node", "bindings")})

    @override
    def temporal_join(
        self,
        other: Any,
        on: Any = None,
        how: str = "inner",
        *,
        as_of: Any = None,
        emit: Emit = "on_watermark",
        late: Late | None = None,
        keep_probe_for: Any = None,
        max_watermark_jump: Any = None,
        delete_column: str | None = None,
        is_change_time: bool = False,
        snapshot: str = "current",
        null_safe: bool | Sequence[bool] = False,
        condition: Expression | str | None = None,
        index: str | None = None,
        reload_interval: Any = None,
    ) -> Self:
        """Join each row with another view as it was at the time of the row; see `zset_join.query.View.temporal_join`.

        By processing time `other` may also be a batch DataFrame; it is read again every epoch, or after `reload_interval`.
        """
        if as_of == joining.PROCESSING_TIME and isinstance(other, DataFrame | DataFrameSource):
            joining.check_reloaded(snapshot=snapshot, null_safe=null_safe, index=index)
            source = _outside(other, None)
            if reload_interval is not None and isinstance(source, DataFrameSource):
                source = replace(source, reload_interval=reload_interval)
            return self.lookup_join(source, on, how, condition=condition)
        if isinstance(other, View) and isinstance(other.node, Operate) and other.node.stage.shows_newest:
            other = other.alias(other.node.inputs[0].relation.name)  # the dedup is planned away: its rows are the versions
        return super().temporal_join(
            other,
            on,
            how,
            as_of=as_of,
            emit=emit,
            late=late,
            keep_probe_for=keep_probe_for,
            max_watermark_jump=max_watermark_jump,
            delete_column=delete_column,
            is_change_time=is_change_time,
            snapshot=snapshot,
            null_safe=null_safe,
            condition=condition,
            index=index,
            reload_interval=reload_interval,
        )

    @override
    def lookup_join(
        self,
        source: LookupSource | DataFrame,
        on: Any = None,
        how: str = "inner",
        *,
        hint: Lookup | None = None,
        columns: Sequence[str] | None = None,
        constants: Mapping[str, Any] | None = None,
        condition: Expression | str | None = None,
        alias: str | None = None,
    ) -> Self:
        """Join with the rows of an external table when a row arrives; see `zset_join.query.View.lookup_join`.

        Args:
            source: the external table, such as `PostgresSource(...)`; each worker opens its own connections. A batch
                DataFrame is read once per epoch.
            on: a column name, a list of names, or a list of pairs (column of the rows, or an expression or Column over them;
                column of the table).
            how: inner or left.
            hint: settings of the lookups.
            columns: columns of the table that are wanted; default all.
            constants: values that columns of the table must have.
            condition: further condition on a pair, over `left(...)` and `right(...)`.
            alias: name of the table in this query, also for hints.

        Raises:
            PlanError: see the message; it names the argument, its value and the cure.
        """
        given = [on] if isinstance(on, str) or (isinstance(on, tuple) and len(on) == 2) else list(on or ())
        rows, pairs = self, []
        for at, entry in enumerate(given):
            if isinstance(entry, tuple | list) and len(entry) == 2 and isinstance(entry[0], Column):
                name = f"__key_{at}"
                rows = rows._with_hidden_column(name, entry[0])
                entry = (named(name), entry[1])
            pairs.append(entry)
        return words.View.lookup_join(
            rows,
            _outside(source, alias),
            pairs,
            how,
            hint=hint,
            columns=columns,
            constants=constants,
            condition=condition,
            alias=alias,
        )

    # ---------------------------------------------------------------- inside

    @property
    @override
    def row_source(self) -> object:
        """Return an object that identifies the rows; two names of one stream share it."""
        return self.stream.prepared if isinstance(self.node, Read) else self.node

    @property
    def _own_source(self) -> BoundSource:
        """Return the binding of a view that is one stream."""
        return next(one for one in self._sources if isinstance(self.node, Read) and one.source is self.node.source)

    @property
    def _sources(self) -> list[BoundSource]:
        return [one for one in self.bindings if isinstance(one, BoundSource)]

    @override
    def every_change(self) -> Self:
        """Return these rows where every change is a version: partial records and truncates are bad input."""
        if not isinstance(self.node, Read):
            return super().every_change()
        own = self._own_source
        whole = own.stream.of_whole_rows()
        if whole is own.stream:
            return self
        bound = BoundSource.of(whole, own.origin)
        return replace(self, node=Read(bound.source), bindings=(bound,))

    def opaque(
        self,
        call: str,
        transform: Transform,
        *,
        hides: tuple[str, ...] = (),
        is_internal: bool = False,
        condition: str | Column | None = None,
    ) -> Self:
        """Apply a row transformation that only Spark can evaluate.

        Args:
            call: the user's text, for messages.
            transform: from a DataFrame to a DataFrame, given the columns to keep besides the selected ones.
            hides: columns that are not part of the output.
            is_internal: its columns may have names that begin with two underscores.
            condition: of a filter.

        Raises:
            PlanError: Spark cannot resolve it, or it depends on more than the row.
        """
        before = changelog_of(self.node)
        step = row_step(self.session, before, call, transform, is_internal=is_internal or bool(hides))
        after = {now: old for old, now in step.kept.items()}
        names = step.relation.schema.names
        if step.is_selection and not hides and set(names) <= set(after):
            return self._select([(name, named(after[name])) for name in names])
        if not self._is_of_streams(self.node):
            view = replace(self, node=Apply(self.node, translated(step, before), hides))
            return view if is_internal else view._checked()
        is_filter = not step.is_selection and all(step.kept.get(name) == name for name in before.schema.names)
        digest = hashlib.blake2b(json.dumps(step.description).encode(), digest_size=16).hexdigest()
        opaque = OpaqueStep(
            step.title,
            digest,
            "it was written for Spark",
            step.relation,
            tuple(sorted(step.reads)) if step.is_selection or is_filter else None,
            is_filter=is_filter,
            kept=tuple(sorted(step.kept.items())),
        )
        bound = BoundStep(call=call, transform=transform, step=step, before=before.schema, condition=condition)
        node = Apply(self.node, opaque, hides)
        view = replace(self, node=node, steps=(*self.steps, BoundTransform(opaque, bound)))
        return view if is_internal else view._checked()

    _opaque = opaque

    def _is_of_streams(self, node: Node) -> bool:
        """Return whether Spark sees the rows of a node: they are before the first stage, and whole."""
        match node:
            case Read(source):
                return self.streams[id(source)].control is None
            case Operate():
                return False
        return all(map(self._is_of_streams, node.children))

    def _with_hidden_column(self, name: str, column: Column) -> Self:
        return self.opaque(f"on={column}", lambda found, _: found.withColumn(name, column), hides=(name,), is_internal=True)

    @override
    def _checked(self) -> Self:
        view = super()._checked()
        check_names(view.columns)
        if isinstance(view.node, Operate):
            refuse_compared_collations(view.node.stage)
        origins: dict[str, object] = {}
        for one in view._sources:
            if origins.setdefault(one.source.name, one.origin) is not one.origin:
                raise OptionError(
                    f'several streams of the query are called "{one.source.name}"; messages and the dead-letter table identify '
                    "streams by their names. Give each its own.",
                    code="SAME_NAME",
                    names=[one.source.name],
                )
        return view


ChangeStream = View
"""What `changes` and `appends` return, for annotations."""
JoinedStream = View
"""What `join` returns, for annotations."""
UnionedStream = View
"""What `union` returns, for annotations."""


class SeveralStreamWriter(JoinStreamWriter):
    """Settings of a query of several views, which share what they have in common, and one checkpoint.

        query = (
            writeStream({"by_city": by_city, "by_day": by_day})
            .options(checkpointLocation="/data/cp", execution="driver")
            .view("by_city").toDuckDB("/data/views.duckdb", "by_city")
            .view("by_day").toDuckDB("/data/views.duckdb", "by_day")
            .start()
        )

    An output is of the view that was named last. An epoch is one of all views or of none; every output gets it once, and those
    in one database in one transaction.
    """

    def __init__(self, views: Mapping[str, View]) -> None:
        streams = {known: stream for view in views.values() for known, stream in view.streams.items()}
        steps = {id(one.step): one.bound for view in views.values() for one in view.steps}
        root = Views(tuple(views), tuple(view.node for view in views.values()))
        super().__init__(WrittenQuery(" and ".join(views), lowered_query(root, streams, steps)))
        self._sinks = {}
        self._view = ""
        self._names = tuple(views)

    def view(self, name: str) -> Self:
        """Set which view the outputs behind this call are of."""
        if name not in self._names:
            raise _no_view(f"view({name!r}) is none of the views", self._names, name)
        self._view = name
        return self

    @property
    @override
    def _view_names(self) -> tuple[str, ...]:
        return self._names

    @override
    def _to(self, output: ChosenOutput, sink: ChosenSink | None = None) -> JoinStreamWriter:
        if not self._view:
            raise _no_view(f"the output {output.describe()} belongs to no view", self._names, None)
        return super()._to(output, sink)


def writeStream(views: Mapping[str, View]) -> SeveralStreamWriter:  # noqa: N802 - the name PySpark users type
    """Return a writer of several views, to choose options, outputs by view, and a trigger with.

    Args:
        views: one or more, by name.

    Raises:
        OptionError: `VIEW_NAME`: no view, or one without a name.
    """
    if not views or not all(str(name).strip() for name in views):
        raise _no_view("writeStream takes a mapping from names to views", tuple(views), None)
    return SeveralStreamWriter(dict(views))


def _no_view(what: str, names: tuple[str, ...], name: str | None) -> OptionError:
    return OptionError(
        f'{what}; the views are {list(names)}. Name one with .view("...") before its outputs.',
        code="VIEW_NAME",
        name=name,
        names=list(names),
    )


register_writer_of_several(writeStream)


def _check_view(given: Any, call: str) -> None:
    if not isinstance(given, View):
        raise OptionError(
            f"{call} expects another stream or view, got {type(given).__name__}. Wrap the DataFrame first: changes(df, "
            "name=..., keys=[...]) or appends(df, name=...).",
            code="NOT_A_STREAM",
        )


def _outside(source: Any, alias: str | None) -> LookupSource:
    """Return the external table; a batch DataFrame becomes one that is read once per epoch."""
    if isinstance(source, DataFrame):
        schema = arrow_schema(source.schema, relation=alias or "lookup")
        return DataFrameSource(name=alias or "lookup", schema=schema, dataframe=source)
    if not isinstance(source, LookupSource):
        raise OptionError(
            "lookup_join expects an external table, such as PostgresSource(...), or a batch DataFrame, got "
            f"{type(source).__name__}. For another stream use join, or temporal_join.",
            code="NOT_A_SOURCE",
        )
    return source
