"""Stored rows of a pipeline: those of its stages, its views and the history of its inputs.

The law: what is listed is the sum of everything that arrived along these feeds so far, without the rows that have NULL in one
of `gaps`, which `dropped` counts. Rows in upsert mode come as the live row of each key, and a delete of each key that is
remembered as deleted.

Cost: making the list is a look at every stage, without its state; of an entry whose rows, or their number, are wanted the state
is read, and reading it is a copy of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zset_join.aggregates.value_codecs import codec_of
from zset_join.core.relation import Relation
from zset_join.plan.fingerprints import FeedPrint, Fingerprints
from zset_join.plan.query_plan import Feed, PlanSource, StateNode
from zset_join.runners.local.contents import Contents
from zset_join.runners.local.history import PastEpoch
from zset_join.runners.local.listed_answers import Chunks, ListedGroups, ListedPairs
from zset_join.shapes.kept_types import NullKeys
from zset_join.stages.stage import StageInput, StageOptions
from zset_join.stages.written import text_of
from zset_join.zset import ZSet, single_batch
from zset_join.zset.protocol import AnswerListingOperator, DurableOperator, ListingOperator, UnorderedOperator

__all__ = ["Chunks", "StoredRows", "gaps_of", "stored_inputs", "stored_rows"]

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
