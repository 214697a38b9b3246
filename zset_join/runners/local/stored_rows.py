"""Stored rows of a pipeline: those of its stages, its views and the history of its inputs.

The law: what is listed is the sum of everything that arrived along these feeds so far, without the rows that have NULL in one
of `gaps`, which `dropped` counts. Rows in upsert mode come as the live row of each key, and a delete of each key that is
remembered as deleted.

Cost: making the list is a look at every stage, without its state; of an entry whose rows, or their number, are wanted the state
is read, and reading it is a copy of its rows.

`ListedGroups`, `ListedPairs`: read a stage's answer, or a view, from the state of its operators instead of the sum of its
deltas.

The law: what is listed is the sum of all answers up to the last absorbed epoch. It holds for a view whose feeds all come from
stages whose operators list their answer whenever they are read: joins and groups in memory that forget no row and wait for no
time. Row steps behind them compute what they computed of the deltas.

Cost: a pass over the state per listing, and of the rows that the view's steps make; nothing per epoch.

`check_reread`, `read_again`: rows of a source that is read again for a changed query: they must be those that the query has
taken.

The law: where rows of the source are kept in any form, what was read again makes of itself these very rows; else it is refused
with the counts. Where none are kept, as before a group over an append-only source, the rows are taken as they are. Where
columns of the source change, those are compared that have the same values before and after.

Cost: a hash of every row that is kept of the source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zset_join.aggregates.value_codecs import codec_of
from zset_join.changelog import AppendFormat, WeightFormat
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import take_rows
from zset_join.evolution.changed_columns import ColumnChange
from zset_join.evolution.refusals import bad_reread
from zset_join.expressions.rows import columns_read, named, plain_column
from zset_join.plan.fingerprints import FeedPrint, Fingerprints
from zset_join.plan.query_plan import Feed, PlanSource, PlanView, QueryPlan, StateNode, emits_distinct_rows
from zset_join.plan.row_steps import RowStep, SelectStep
from zset_join.query.reading import Reading
from zset_join.runners.local.contents import Contents
from zset_join.runners.local.feeding import Feeding, columns_before, of_schema, transforms_of
from zset_join.runners.local.history import PastEpoch
from zset_join.shapes.kept_types import NullKeys
from zset_join.sources.source import rows_again
from zset_join.stages.stage import StageInput, StageOptions
from zset_join.stages.written import text_of
from zset_join.zset import ZSet, single_batch
from zset_join.zset.protocol import AnswerListingOperator, DurableOperator, ListingOperator, UnorderedOperator, is_timed

__all__ = [
    "Chunks",
    "ListedGroups",
    "StoredRows",
    "check_reread",
    "gaps_of",
    "list_view",
    "read_again",
    "stored_inputs",
    "stored_rows",
]

Chunks = Callable[[Collection[str] | None], Iterator[ZSet]]
"""Yields rows that are computed while they are read, with some of their columns, or all."""


@dataclass(frozen=True)
class ListedGroups:
    """Read the rows that an operator keeps of its answer."""

    operator: Callable[[], DurableOperator]
    relation: Relation
    keeps_copies: bool  # the weight of a row is the number of input rows behind it; else 1

    def __call__(self) -> ZSet:
        return ZSet.concat(list(self.chunks()), schema=self.relation.schema)

    def chunks(self) -> Iterator[ZSet]:
        for chunk in cast("ListingOperator", self.operator()).held():
            rows = pa.RecordBatch.from_arrays(chunk.rows.columns, schema=self.relation.schema)
            yield ZSet(rows, chunk.weights if self.keeps_copies else np.ones(len(chunk), np.int64))


@dataclass(frozen=True)
class ListedPairs:
    """Read the answer of an operator that computes it from its state."""

    operator: Callable[[], DurableOperator]
    relation: Relation

    def __call__(self) -> ZSet:
        return ZSet.concat(list(self.chunks(None)), schema=self.relation.schema)

    def chunks(self, columns: Collection[str] | None) -> Iterator[ZSet]:
        """Yield the rows in bounded chunks, with some columns or all; at least one column."""
        shown = self.relation.schema.names
        wanted = [name for name in shown if columns is None or name in columns] or shown[:1]
        schema = pa.schema([self.relation.schema.field(name) for name in wanted])
        for chunk in cast("AnswerListingOperator", self.operator()).listed(wanted):
            rows = [chunk.rows.column(name) for name in wanted]
            yield ZSet(pa.RecordBatch.from_arrays(rows, schema=schema), chunk.weights)


@dataclass(frozen=True)
class _ListedView:
    """Read the rows of a view from the stages it is made of."""

    feeding: Feeding
    answers: Mapping[int, Callable[[], Iterator[ZSet]]]
    is_distinct: bool

    def __call__(self) -> ZSet:
        """Return each distinct row with its weight."""
        parts = [self.feeding.collect({origin: chunk}) for origin, chunks in self.answers.items() for chunk in chunks()]
        rows = ZSet.concat([of_schema(part, self.feeding.schema) for part in parts], schema=self.feeding.schema)
        return rows if self.is_distinct else rows.consolidated()


def list_view(
    plan: QueryPlan,
    view: PlanView,
    operators: Mapping[int, DurableOperator],
    options: StageOptions,
    opened: Callable[[int], DurableOperator] | None = None,
) -> Callable[[], ZSet] | None:
    """Return a function that lists the rows of a view; None where the state of its stages does not hold them at all times.

    With a directory `operators` have no rows, and `opened` returns the operator of a stage while rows are read.
    """
    schema, answers = plan.output_of(view.name).schema, dict[int, Callable[[], Iterator[ZSet]]]()
    for feed in view.feeds:
        if isinstance(feed.origin, str):
            return None
        operator = operators[plan.state_of[feed.origin].number]
        known = partial(_itself, operator) if opened is None else partial(opened, feed.origin)
        same = [one.steps for one in view.feeds if one.origin == feed.origin]
        wanted = set[str]().union(*(columns_before(steps, schema.names) for steps in same))
        chunks = _chunks_of(plan, feed.origin, operator, known, options, wanted)
        if chunks is None:
            return None
        answers[feed.origin] = chunks
    first = view.feeds[0]
    stage = plan.nodes[first.origin].stage if isinstance(first.origin, int) and len(view.feeds) == 1 else None
    is_distinct = stage is not None and emits_distinct_rows(stage, first.steps)
    return _ListedView(Feeding(plan, view.feeds, schema), answers, is_distinct)


def _chunks_of(
    plan: QueryPlan,
    number: int,
    operator: DurableOperator,
    known: Callable[[], DurableOperator],
    options: StageOptions,
    wanted: Collection[str],
) -> Callable[[], Iterator[ZSet]] | None:
    """Return what lists the answer of a stage; None where its state does not hold it at all times."""
    stage, state = plan.nodes[number].stage, plan.state_of[number]
    used = state.options(options)
    if state.is_shared or not stage.follows_from_rows or is_timed(operator):
        return None
    if isinstance(operator, AnswerListingOperator):
        return None if not operator.lists_answer else partial(ListedPairs(known, stage.output).chunks, wanted)
    if isinstance(operator, ListingOperator) and (used.table_budget is None or stage.cold_state is None):
        return ListedGroups(known, stage.output, keeps_copies=stage.lists_input and not stage.answers_distinct_rows).chunks
    return None


def _itself(operator: DurableOperator) -> DurableOperator:
    return operator


_WEIGHT, _SEQUENCE = "_zset_weight", "_zset_sequence_"

_Operator = Callable[[], DurableOperator]


def _none() -> NullKeys:
    return NullKeys()


@dataclass(frozen=True)
class StoredRows:
    feeds: tuple[FeedPrint, ...]
    relation: Relation
    what: str  # where they are, for messages
    counted: Callable[[], int]  # keys that are remembered as deleted among them
    read: Callable[[], ZSet]
    gaps: tuple[str, ...] = ()  # columns in which none of them is NULL, because such rows were of no use
    dropped: Callable[[], NullKeys] = _none  # how many such rows there were
    chunks: Chunks | None = None  # where they are many, and computed while they are read
    counted_live: Callable[[], int] | None = None  # None: all live

    @cached_property
    def count(self) -> int:
        return self.counted()

    def lacks_only(self, columns: Collection[str]) -> bool:
        """Return whether only rows with NULL in these columns are absent. Cost: where others may be, the state is read."""
        return set(self.gaps) <= set(columns) or self.dropped().is_none

    def live(self) -> int:
        """Return how many live rows there are."""
        return self.count if self.counted_live is None else self.counted_live()

    @cached_property
    def text(self) -> str:
        """Return a text that is equal for rows of the same feeds."""
        return text_of([one.text for one in self.feeds])


def stored_rows(
    prints: Fingerprints,
    operators: Mapping[int, DurableOperator],
    options: StageOptions,
    contents: Mapping[str, Contents] | None,
    history: Iterable[PastEpoch] | None,
    shapes: Mapping[int, DurableOperator] | None = None,
) -> list[StoredRows]:
    """Return all rows that a pipeline still has; with `shapes`, the same stages without rows, `operators` are read later."""
    plan, found = prints.plan, list[StoredRows]()
    for state in plan.states:
        if not state.is_shared:
            number = state.number
            shape = operators[number] if shapes is None else shapes[number]
            found += _of_stage(prints, state, shape, partial(operators.__getitem__, number), state.options(options))
    for view in plan.views:
        if contents is not None:
            held = _Held(contents, view.name)
            feeds, relation = prints.feeds(view.feeds), plan.output_of(view.name)
            found.append(StoredRows(feeds, relation, f'view "{view.name}"', held.count, held))
    if history is not None:
        found += [stored_inputs(prints, source, history) for source in plan.sources]
    return found


def stored_inputs(prints: Fingerprints, source: PlanSource, history: Iterable[PastEpoch]) -> StoredRows:
    """Return everything that came of a source."""
    deltas = [past.deltas[source.name] for past in history if source.name in past.deltas]
    feed, what = prints.feed(Feed(source.name)), f'the inputs that were kept of "{source.name}"'
    return StoredRows((feed,), source.relation, what, lambda: sum(map(len, deltas)), _Summed(deltas, source.relation))


def gaps_of(given: StageInput) -> tuple[str, ...]:
    """Return the columns of an input for which a stage has no use of rows with NULL."""
    if given.keeps_unmatchable or given.unmatchable != "by_identity":
        return ()
    return tuple(
        name
        for name, is_value in zip(given.key, given.null_is_value, strict=True)
        if not is_value and given.relation.schema.field(name).nullable
    )


def _of_stage(
    prints: Fingerprints, state: StateNode, shape: DurableOperator, operator: _Operator, options: StageOptions
) -> Iterator[StoredRows]:
    """Yield the live rows of inputs, and what is listed of the answer."""
    node, stage = prints.plan.nodes[state.number], state.stage
    for name, key in stage.state_tables.items():
        if not key.is_whole or key.of_input is None:
            continue
        given = stage.inputs[key.of_input]
        gaps = gaps_of(given)
        columns = {*shape.snapshot_readers()[name].schema.names, given.everywhere}
        schema = pa.schema([field for field in given.relation.schema if field.name in columns])
        relation = Relation(
            name=given.relation.name,
            schema=schema,
            primary_key=given.relation.primary_key,
            sequence_by=given.relation.sequence_by,
            mode=given.relation.mode,
        )
        yield StoredRows(
            prints.feeds(node.feeds[key.of_input]),
            relation,
            f"the {name} rows of {node.name}",
            _Counted(operator, (f"{name}_rows", f"{name}_tombstones")),
            _Table(operator, name, relation),
            gaps,
            _NullKeysOf(operator, name) if gaps else _none,
            counted_live=_Counted(operator, (f"{name}_rows",)),
        )
    if isinstance(shape, ListingOperator) and (options.table_budget is None or stage.cold_state is None):
        groups = _Counted(operator, ("groups",))
        if stage.lists_input:
            fed = prints.feeds(node.feeds[0])
            relation = replace(stage.inputs[0].relation, join_key=(), primary_key=())
            yield StoredRows(
                fed, relation, f"the rows of {node.name}", groups, ListedGroups(operator, relation, keeps_copies=True)
            )
        feed = prints.feed(Feed(state.number))
        listed = ListedGroups(operator, stage.output, keeps_copies=stage.lists_input and not stage.answers_distinct_rows)
        yield StoredRows((feed,), stage.output, f"the groups of {node.name}", groups, listed)
    if isinstance(shape, AnswerListingOperator) and shape.lists_answer:
        whole = ListedPairs(operator, stage.output)
        count = _Counted(operator, tuple(f"{name}_rows" for name in stage.state_tables))
        feed, what = prints.feed(Feed(state.number)), f"the {'answer' if stage.kind == 'latest' else 'pairs'} of {node.name}"
        yield StoredRows((feed,), stage.output, what, count, whole, chunks=whole.chunks)


@dataclass(frozen=True)
class _Counted:
    operator: _Operator
    names: tuple[str, ...]

    def __call__(self) -> int:
        counts = self.operator().statistics()
        return sum(counts[name] for name in self.names)


@dataclass(frozen=True)
class _NullKeysOf:
    """Read how many rows an operator has dropped for NULL in their key. Cost: of an operator in buckets a snapshot."""

    operator: _Operator
    name: str

    def __call__(self) -> NullKeys:
        return NullKeys.of(_reader(self.operator(), self.name).schema.metadata)


@dataclass(frozen=True)
class _Held:
    contents: Mapping[str, Contents]
    name: str

    def count(self) -> int:
        return len(self())

    def __call__(self) -> ZSet:
        return self.contents[self.name].rows()


@dataclass(frozen=True)
class _Table:
    """Read a table of an operator's snapshot as rows."""

    operator: _Operator
    name: str
    relation: Relation

    def __call__(self) -> ZSet:
        table = _reader(self.operator(), self.name).read_all()
        weights = table.column(_WEIGHT).to_numpy().astype(np.int64)
        columns = {
            one.name: table.column(one.name).combine_chunks()
            if one.name in table.schema.names
            else pa.repeat(pa.scalar(0, one.type), len(table))  # the control word of a change that is whole
            for one in self.relation.schema
        }
        place, is_gone = 0, pa.array(weights == 0)
        for name in self.relation.sequence_by:  # of a deleted key only the words of its sequence are sure to be there
            order, words = _from_words(table, self.relation.schema.field(name).type, place)
            columns[name], place = pc.if_else(is_gone, order, columns[name]), place + words
        rows = single_batch(pa.table(columns).cast(self.relation.schema))
        return ZSet(rows, np.where(weights == 0, np.int64(-1), weights))


def _reader(operator: DurableOperator, table: str) -> pa.RecordBatchReader:
    readers = operator.rows_readers() if isinstance(operator, UnorderedOperator) else operator.snapshot_readers()
    return readers[table]


def _from_words(table: pa.Table, kind: pa.DataType, place: int) -> tuple[pa.Array, int]:
    """Return a sequence column from the words that order it, and how many these are."""
    if pt.is_struct(kind):
        fields, taken = [], 0
        for at in range(kind.num_fields):
            values, words = _from_words(table, kind.field(at).type, place + taken)
            fields.append(values)
            taken += words
        return pa.StructArray.from_arrays(fields, fields=[kind.field(at) for at in range(kind.num_fields)]), taken
    codec = codec_of(kind)
    lines = [table.column(f"{_SEQUENCE}{place + at}").to_numpy() for at in range(codec.words)]
    return codec.decode(np.stack(lines, axis=1), None, 0), codec.words


@dataclass(frozen=True)
class _Summed:
    """Read the logged changes; upserts in order of arrival."""

    deltas: list[ZSet]
    relation: Relation

    def __call__(self) -> ZSet:
        rows = ZSet.concat(self.deltas, schema=self.relation.schema)
        return rows if self.relation.mode == "upsert" else rows.consolidated()


def read_again(given: Mapping[str, Any], readings: Mapping[str, Reading]) -> dict[str, ZSet]:
    """Return the present rows of sources, as changes."""
    found = {}
    for name, one in given.items():
        if name not in readings:
            raise bad_reread(name, "are of no source that the new query reads")
        reading, rows = _of_live_rows(readings[name]), rows_again(one)
        if isinstance(rows, pa.Table | pa.RecordBatch):  # a table may have columns that the source does not
            rows = rows.select([column for column in rows.schema.names if column in reading.given.names])
        elif isinstance(rows, Mapping):
            rows = {column: values for column, values in rows.items() if column in reading.given.names}
        found[name] = reading.delta(rows)
    return found


def _of_live_rows(reading: Reading) -> Reading:
    """Return a reading of rows that all live, where the rows of epochs come with their weights, as from Spark."""
    form = reading.changelog_format
    is_weighted = isinstance(form, WeightFormat) and form.column not in reading.given.names
    return replace(reading, changelog_format=AppendFormat()) if is_weighted else reading


def check_reread(
    name: str, again: ZSet, plan: QueryPlan, kept: Iterable[StoredRows], origin: str, change: ColumnChange | None
) -> None:
    """Refuse rows that are not those that were taken."""
    relation = plan.source(name).relation
    for one in kept:
        if len(one.feeds) != 1 or one.feeds[0].origin != origin:
            continue
        steps, names = one.feeds[0].steps, one.relation.schema.names
        if change is not None:
            found = _comparable(steps, change)
            if found is None or not set(one.gaps) <= found[1]:
                continue
            steps, names = found[0], [column for column in names if column in found[1]]
            if not names:
                continue
            relation = Relation(name=name, schema=change.after)
        rows = again
        for transform in transforms_of(steps, relation):
            rows = transform(rows)
        now, before = (_live(side, names, one.gaps) for side in (rows, one.read()))
        differ = ZSet.concat([now, -before], schema=now.schema).consolidated()
        if len(differ):
            more, fewer = int((differ.weights > 0).sum()), int((differ.weights < 0).sum())
            what = f"{more:,} rows are new or changed, {fewer:,} are gone or were others"
            raise bad_reread(name, f"are not those of {one.what} ({one.count:,} rows): {what}", more=more, fewer=fewer)


def _comparable(steps: Sequence[RowStep], change: ColumnChange) -> tuple[tuple[RowStep, ...], set[str]] | None:
    """Return steps from rows under the columns of now to rows that were stored, and the columns that have the same values."""
    # None where a condition reads another column, or nothing is the same.
    plain = {plain_column(expression): name for name, expression in change.step.columns}
    first = tuple((before, named(now)) for before, now in plain.items() if before is not None)
    found: list[RowStep] = [SelectStep(first)]
    there = {name for name, _ in first}
    for step in steps:
        if step.condition is not None and columns_read(step.condition) <= there:
            found.append(step)
        elif isinstance(step, SelectStep):
            columns = tuple((name, expression) for name, expression in step.columns if columns_read(expression) <= there)
            found.append(SelectStep(columns))
            there = {name for name, _ in columns}
        else:
            return None
        if not there:
            return None
    return (tuple(found), there) if there else None


def _live(rows: ZSet, names: list[str], gaps: tuple[str, ...]) -> ZSet:
    """Return the rows that are present, with these columns, but for those with NULL in one of `gaps`."""
    lives = rows.weights > 0
    for name in gaps:
        lives &= rows.rows.column(name).is_valid().to_numpy(zero_copy_only=False)
    chosen = take_rows(rows.rows, np.flatnonzero(lives))
    schema = pa.schema([chosen.schema.field(name).with_nullable(True) for name in names])
    return ZSet(pa.RecordBatch.from_arrays([chosen.column(name) for name in names], schema=schema), rows.weights[lives])
