"""The one place where a node of the plan, or an aggregate behind it, becomes an operator.

A side may carry hidden columns that only order its changes. The join remembers them and does not show them, and a change of
nothing else says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, cast

import pyarrow as pa

from zset_join.aggregates.calls import AggregateCall
from zset_join.aggregates.preaggregation import Preaggregation
from zset_join.config import BadInputPolicy, BufferLimit, HotBudget
from zset_join.operators.aggregate import Aggregate
from zset_join.operators.join import HashJoin
from zset_join.operators.route import Route
from zset_join.plan import JoinNode, RouteNode, SideNode, ViewNode, read_schema, write_schema
from zset_join.protocol import DurableOperator
from zset_join.relation import Relation
from zset_join.state.join_shape import joined_schema, output_key, visible_columns
from zset_join.zset import ZSet

__all__ = [
    "NO_LIMIT",
    "AggregateNode",
    "OperatorOptions",
    "aggregate_builder",
    "join_builder",
    "output_relation",
    "project",
    "route_builder",
]

NO_LIMIT = BufferLimit(max_bytes=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOptions:
    """Hold what operators take from the options of a query."""

    on_bad_input: BadInputPolicy = "error"
    tombstone_retention_seconds: int = 2 * 86400
    chunk_rows: int = 65536
    buffer_limit: BufferLimit = NO_LIMIT
    hot_budget: HotBudget | None = None
    table_budget: HotBudget | None = None
    hash_seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class AggregateNode:
    """Describe an aggregate; it travels to the workers.

    Args:
        source: what is aggregated.
        group_by: the key columns; none for one global row.
        calls: the other columns.
    """

    source: Relation
    group_by: tuple[str, ...]
    calls: tuple[AggregateCall, ...]

    @cached_property
    def is_partial(self) -> bool:
        """Say whether sums are what travels to it, not rows."""
        return Preaggregation(self.source, self.group_by, self.calls).is_partial

    @cached_property
    def travelling(self) -> Relation:
        """Return what travels to it: partial lines, or the columns that it reads. The key columns come first."""
        return Preaggregation(self.source, self.group_by, self.calls).relation

    @cached_property
    def output(self) -> Relation:
        """Return its answer: the key columns, which identify a row, and a column per call.

        Raises:
            PlanError: columns or types that cannot be grouped or aggregated.
        """
        made = Aggregate(self.source, self.group_by, self.calls)
        try:
            return made.output
        finally:
            made.close()

    def to_json(self) -> dict[str, Any]:
        """Return everything about the aggregate, JSON-ready, so that it can be built without the query's program."""
        return {
            "name": self.source.name,
            "mode": self.source.mode,
            "columns": write_schema(self.source.schema),
            "group_by": list(self.group_by),
            "calls": [call.to_json() for call in self.calls],
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> AggregateNode:
        """Build from what `to_json` gave.

        Raises:
            PlanError: it describes no aggregate that this version knows.
        """
        return cls(
            source=Relation(name=found["name"], schema=read_schema(found["columns"]), mode=found["mode"]),
            group_by=tuple(found["group_by"]),
            calls=tuple(AggregateCall.from_json(call) for call in found["calls"]),
        )


def aggregate_builder(node: AggregateNode, options: OperatorOptions) -> Callable[[str | None], DurableOperator]:
    """Return what makes an aggregate of what `Preaggregation` leaves, over a directory, or in memory when given None."""
    budget = options.table_budget if node.group_by else None
    hybrid: dict[str, Any] = {} if budget is None else {"default_hash_table": "hybrid", **asdict(budget)}

    def build(directory: str | None) -> DurableOperator:
        return Aggregate(
            node.source if node.is_partial else node.travelling,
            node.group_by,
            node.calls,
            preaggregated=node.is_partial,
            hash_seed=options.hash_seed,
            chunk_rows=options.chunk_rows,
            directory=directory,
            **hybrid,
        )

    return build


def join_builder(node: JoinNode, options: OperatorOptions) -> Callable[[str | None], DurableOperator]:
    """Return what makes the join over a directory, or in memory when given None."""
    hybrid = _hybrid_rows(options)

    def build(directory: str | None) -> DurableOperator:
        made: Any = HashJoin(
            node.left.relation,
            node.right.relation,
            node.how,
            null_safe=node.null_safe,
            using=node.using,
            residual=node.residual,
            hash_seed=options.hash_seed,
            hidden=tuple(side.hidden for side in node.sides),
            on_bad_input=options.on_bad_input,
            tombstone_retention_seconds=options.tombstone_retention_seconds,
            join_max_buffered_bytes=options.buffer_limit.max_bytes,
            join_buffer_policy=options.buffer_limit.policy,
            on_evict=options.buffer_limit.on_evict,
            chunk_rows=options.chunk_rows,
            directory=directory,
            **hybrid,
        )
        return cast("DurableOperator", made)

    return build


def route_builder(node: RouteNode, options: OperatorOptions) -> Callable[[str | None], DurableOperator]:
    """Return what makes the route of one side over a directory, or in memory when given None."""
    hybrid = _hybrid_rows(options)

    def build(directory: str | None) -> DurableOperator:
        return Route(
            node.source.relation,
            hash_seed=options.hash_seed,
            on_bad_input=options.on_bad_input,
            tombstone_retention_seconds=options.tombstone_retention_seconds,
            chunk_rows=options.chunk_rows,
            directory=directory,
            **hybrid,
        )

    return build


def _hybrid_rows(options: OperatorOptions) -> dict[str, Any]:
    budget = options.hot_budget
    return {} if budget is None else {"default_hash_join": "hybrid", **asdict(budget)}


def output_relation(node: JoinNode) -> Relation:
    """Return the relation of the answer, hidden columns left out.

    Raises:
        PlanError: the condition does not fit the columns.
    """
    operator = join_builder(node, OperatorOptions())(None)
    try:
        whole = operator.output
    finally:
        operator.close()
    names = set(whole.schema.names)
    key = _key_behind_views(node) if any(isinstance(side, ViewNode) for side in node.sides) else whole.primary_key
    return Relation(
        name=whole.name,
        schema=whole.schema,
        primary_key=key if set(key) <= names else (),
        mode="changelog",
    )


def _key_behind_views(node: JoinNode) -> tuple[str, ...]:
    """Return the key of a join whose sides may have NULL in theirs.

    It counts as a value, and what follows from one row at most per key follows all the same; but of two rows that a FULL join
    pads, one per side, nothing may be left that tells them apart.
    """
    left, right = node.keyed
    if node.how == "full" and not any(_is_never_null(side) for side in node.sides):
        return ()
    columns = joined_schema(left, right, node.how, using=node.using, output_names=None)
    return output_key(left, right, node.how, *visible_columns(*columns, [side.hidden for side in node.sides]))


def _is_never_null(side: SideNode) -> bool:
    """Say whether NULL is refused in the primary key of a side."""
    return not isinstance(side, ViewNode) and side.relation.mode != "append"


def project(chunk: ZSet, schema: pa.Schema) -> ZSet:
    """Return the visible columns of a piece of an answer."""
    if chunk.schema.names == schema.names:
        return chunk
    columns = [chunk.rows.column(chunk.schema.get_field_index(field.name)) for field in schema]
    return ZSet(pa.RecordBatch.from_arrays(columns, schema=schema), chunk.weights)
