"""Row steps on Arrow: what a feed does to a delta on its way from a source or a stage to the next one.

The law: a step turns each row into what it turned it into before, so the sum of what is passed on is the step over the sum.

Upserts stay upserts: a row that does not pass becomes the delete of its key, see `zset_join.plan.row_steps`.

Cost: a few array passes per expression; rows are copied once where some do not pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import pyarrow as pa

from zset_join.core.relation import Relation
from zset_join.core.row_conversion import take_rows
from zset_join.expressions.rows import columns_read, compute, plain_column, rows_where
from zset_join.plan.query_plan import Feed, QueryPlan
from zset_join.plan.row_steps import OpaqueStep, RowStep, SelectStep, WhereStep
from zset_join.runners.local.filters import Filters
from zset_join.zset import ZSet

__all__ = ["Feeding", "Transform", "columns_before", "of_schema", "transforms_of"]

Transform = Callable[[ZSet], ZSet]


class Feeding:
    """Sources of one input of a stage, or of the output."""

    def __init__(
        self, plan: QueryPlan, feeds: Sequence[Feed], schema: pa.Schema, filters: dict[str | int, Filters] | None = None
    ) -> None:
        self.schema = schema
        self.nothing = ZSet.empty(schema)
        self.places: list[tuple[str | int, int] | None] = []  # per feed, its origin and the place of its first condition there
        self._feeds = tuple((feed.origin, self._transforms(plan, feed, filters)) for feed in feeds)

    def _transforms(self, plan: QueryPlan, feed: Feed, filters: dict[str | int, Filters] | None) -> list[Transform]:
        relation, place = plan.relation_of(feed.origin), None
        transforms = transforms_of(feed.steps, relation)
        condition = feed.steps[0].condition if feed.steps else None
        if filters is not None and condition is not None and relation.mode != "upsert":
            place, transforms[0] = filters.setdefault(feed.origin, Filters(relation.schema)).add(condition, transforms[0])
        self.places.append(None if place is None else (feed.origin, place))
        return transforms

    def collect(self, deltas: dict[str | int, ZSet]) -> ZSet:
        """Return the delta of the input, given those of sources and stages; the very object where nothing is done to it."""
        parts = []
        for origin, transforms in self._feeds:
            delta = deltas.get(origin)
            if delta is None or not len(delta):
                continue
            for transform in transforms:
                delta = transform(delta)
                if not len(delta):
                    break
            else:
                parts.append(delta)
        if not parts:
            return self.nothing
        if len(parts) == 1:
            return parts[0]
        return ZSet.concat([of_schema(part, self.schema) for part in parts], schema=self.schema)


def transforms_of(steps: Sequence[RowStep], relation: Relation) -> list[Transform]:
    transforms = []
    for step in steps:
        transforms.append(_transform(step, relation))
        relation = step.output(relation)
    return transforms


def columns_before(steps: Sequence[RowStep], wanted: Collection[str]) -> set[str]:
    """Return the columns that steps read of the rows before them, where these are wanted behind them."""
    read = set[str]()
    for step in steps:
        read |= step.filters_by or frozenset()
        if step.needs is not None:
            return read | step.needs
    return read.union(wanted)


def _transform(step: RowStep, relation: Relation) -> Transform:
    match step:
        case WhereStep():
            return _where(step, relation)
        case SelectStep():
            return _select(step, relation)
        case OpaqueStep():
            raise step.refusal()


def _where(step: WhereStep, relation: Relation) -> Transform:
    condition, read = step.condition, sorted(columns_read(step.condition))
    is_upsert = relation.mode == "upsert"

    def keep(delta: ZSet) -> ZSet:
        columns = {name: delta.rows.column(name) for name in read}
        passes = rows_where(condition, columns, len(delta))
        if passes.all():
            return delta
        if is_upsert:
            return ZSet(delta.rows, np.where(passes, delta.weights, np.int64(-1)))
        chosen = np.flatnonzero(passes)
        return ZSet(take_rows(delta.rows, chosen), delta.weights[chosen])

    return keep


def _select(step: SelectStep, relation: Relation) -> Transform:
    schema = step.output(relation).schema
    read = sorted({name for _, expression in step.columns for name in columns_read(expression)})
    plan = [
        (plain_column(expression), expression, field.type) for (_, expression), field in zip(step.columns, schema, strict=True)
    ]

    given, names = relation.schema, schema.names
    places = _places(given, [column for column, _, _ in plan], schema)

    def select(delta: ZSet) -> ZSet:
        rows = delta.rows
        if places is not None and rows.schema.equals(given):
            return ZSet(rows.select(places).rename_columns(names), delta.weights)
        columns = {name: rows.column(name) for name in read}
        arrays = []
        for column, expression, kind in plan:
            values = columns[column] if column is not None else compute(expression, columns, len(delta))
            arrays.append(values if values.type == kind else values.cast(kind))
        return ZSet(pa.RecordBatch.from_arrays(arrays, schema=schema), delta.weights)

    return select


def _places(given: pa.Schema, columns: Sequence[str | None], schema: pa.Schema) -> list[int] | None:
    """Return the places of columns among those given, where a selection only leaves out, moves and renames; else None."""
    places = [-1 if name is None else given.get_field_index(name) for name in columns]
    if -1 in places:
        return None
    renamed = [given.field(place).with_name(name) for place, name in zip(places, schema.names, strict=True)]
    return places if pa.schema(renamed, given.metadata).equals(schema, check_metadata=True) else None


def of_schema(delta: ZSet, schema: pa.Schema) -> ZSet:
    """Return rows with the columns of a schema, by name."""
    if delta.schema.equals(schema):
        return delta
    columns = [delta.rows.column(field.name) for field in schema]
    return ZSet(pa.RecordBatch.from_arrays(columns, schema=schema), delta.weights)
