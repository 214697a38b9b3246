"""Row steps on Arrow: what a feed does to a delta on its way from a source or a stage to the next one.

The law: a step turns each row into what it turned it into before, so the sum of what is passed on is the step over the sum.

Upserts stay upserts: a row that does not pass becomes the delete of its key, see `zset_join.plan.row_steps`.

Cost: a few array passes per expression; rows are copied once where some do not pass.

`Filters`: the conditions that several readers have on one delta, evaluated in one pass.

    a > 1, a > 2, b = 'x'       a > (1, 2) over two copies of the rows at once; b = 'x' beside it

The law: each reader is given what its condition alone passes. Conditions that differ only in the literals that they compare
with are one expression over as many copies of the rows; a reader that no row passes costs nothing more. Where the pass raises,
every condition is evaluated by itself, so that the error is that of the reader whose condition raises.

Memory: of a delta of at most `_MOST_ROWS` rows, the columns that are read, at most twice per condition of one shape; a longer
one is not copied.

`failing_rows`, `unread_rows`: rows of a source that a query cannot evaluate: those for which its own WHERE or SELECT raises.

The law: a row fails alone or not at all, so a set of rows passes iff each of its rows does. What fails behind a stage (a
join, a group) depends on other rows and is not looked for here.

Cost: the steps once over all rows where none fails; else, per failing row, about log2(rows) times over ever smaller parts.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from zset_join.core.errors import BadInputError
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform, take_rows
from zset_join.core.shown_values import shown_names, shown_value
from zset_join.expressions import Expression
from zset_join.expressions.rows import columns_read, compute, named, plain_column, rows_where
from zset_join.expressions.tree import Call, Cast, Literal, folded
from zset_join.expressions.vectors import Bools, Vector, from_arrow
from zset_join.expressions.written import write_expression
from zset_join.plan.query_plan import Feed, QueryPlan
from zset_join.plan.row_steps import OpaqueStep, RowStep, SelectStep, WhereStep, as_changelog
from zset_join.query.reading import Reading
from zset_join.stages.latest import LatestStage
from zset_join.zset import ZSet

__all__ = ["Feeding", "Filters", "Transform", "columns_before", "failing_rows", "of_schema", "transforms_of", "unread_rows"]

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


_UNREAD = pa.schema([("row", pa.string()), ("code", pa.string()), ("reason", pa.string())])


def failing_rows(plan: QueryPlan, reading: Reading, rows: pa.Table | ZSet) -> dict[int, BadInputError]:
    """Return the positions of rows that fail in the steps between a source and the first stage, its own table apart."""
    name = reading.source.name
    relation = next(source.relation for source in plan.sources if source.name == name)
    steps = [transforms_of(one, as_changelog(relation)) for one in _steps(plan, name)]
    failing: dict[int, BadInputError] = {}
    left = [(0, len(rows) if isinstance(rows, ZSet) else rows.num_rows)] if steps else []
    while left:
        begin, end = left.pop()
        delta, _ = reading.taken(_part(rows, begin, end))
        if delta.schema != relation.schema:
            delta = ZSet(conform(delta.rows, relation), delta.weights)
        try:
            for transforms in steps:
                passed = delta
                for transform in transforms:
                    passed = transform(passed)
        except BadInputError as error:
            if end - begin == 1:
                failing[begin] = error
            else:
                middle = (begin + end) // 2
                left += [(begin, middle), (middle, end)]
    return failing


def unread_rows(rows: pa.Table | ZSet, failing: Mapping[int, BadInputError], query: str) -> pa.Table:
    """Return failing rows as `zset_join.runners.local.taking.Undecodable` lists them; the reason names the query."""
    batch = rows.rows if isinstance(rows, ZSet) else rows
    lines = [
        {
            "row": json.dumps(
                {name: shown_value(_array(batch, name, place), 0) for name in shown_names(batch.schema.names)},
                default=str,
                ensure_ascii=False,
            ),
            "code": error.code,
            "reason": f'query "{query}": {error.message}',
        }
        for place, error in sorted(failing.items())
    ]
    return pa.Table.from_pylist(lines, schema=_UNREAD)


def _array(batch: pa.RecordBatch | pa.Table, name: str, place: int) -> pa.Array:
    column = batch.column(name).slice(place, 1)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _steps(plan: QueryPlan, name: str) -> Iterator[tuple[RowStep, ...]]:
    """Yield the steps that depend on a row of a source alone: before the first stage, or behind the table of the source."""
    tables: dict[str | int, tuple[RowStep, ...]] = {name: ()}
    for node in plan.nodes:
        of_source = [(*tables[feed.origin], *feed.steps) for feeds in node.feeds for feed in feeds if feed.origin in tables]
        if isinstance(node.stage, LatestStage) and node.stage.control is None and of_source:
            tables[node.number] = of_source[0]
        yield from filter(None, of_source)
    for feed in plan.outputs:
        if feed.origin in tables and feed.steps:
            yield (*tables[feed.origin], *feed.steps)


def _part(rows: pa.Table | ZSet, begin: int, end: int) -> Any:
    if isinstance(rows, ZSet):
        return ZSet(rows.rows.slice(begin, end - begin), np.ascontiguousarray(rows.weights[begin:end]))
    return rows.slice(begin, end - begin)
