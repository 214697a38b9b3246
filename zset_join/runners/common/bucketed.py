"""A stage in several buckets that looks like one operator: its rows are partitioned by key, and threads work on the buckets.

    one thread:   delta -> operator -> answer
    several:      delta -> by key -> operators, one per bucket -> their answers, all retractions first

The law: after consolidation the answer is that of one operator over all rows, and so is `snapshot`. So a checkpoint has
nothing of these buckets: it is written and read with any number of threads, and an epoch has one log per stage.

An upsert whose key may move between buckets is a delete in every bucket that may have its old row (`MovedKeys`).

A raise while an epoch is answered has changed nothing in any bucket; `absorb` answers first where that has not been done.

Cost: beside the operators' own, a hash and a copy of every row that arrives, and a copy of every row that goes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zset_join.core.epochs import Tick
from zset_join.core.key_types import storage_type
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform, take_rows
from zset_join.runners.common.exchange import KeyBuckets, MovedKeys, RowBuckets, apart, side_table, together
from zset_join.runners.common.workers import Workers
from zset_join.stages.effect import has_effect
from zset_join.stages.stage import Stage, StageInput, StageOptions
from zset_join.state.rows.directories import check_same_epoch, make_directory
from zset_join.state.rows.guarded import guarded
from zset_join.state.rows.side_snapshot import snapshot_counts, with_unknown_deletes
from zset_join.zset import ZSet
from zset_join.zset.protocol import (
    AnswerListingOperator,
    DurableOperator,
    ListingOperator,
    NextDue,
    corrections_of,
    due_of,
    earliest,
    is_timed,
)

__all__ = ["Bucketed", "in_buckets", "why_in_one_bucket"]

ROWS_APART = 2_000
"""Rows of an epoch below which one thread works on all buckets: passing it on costs more than it saves."""


def why_in_one_bucket(stage: Stage, options: StageOptions) -> str | None:
    """Return why the rows of a stage stay together; None where they are partitioned by key."""
    if has_effect(stage):
        return "it queries external systems, in one place"
    if not all(given.key for given in stage.inputs):
        return "it has no key"
    if any(given.everywhere is not None for given in stage.inputs):
        return "some of its rows concern all keys"
    if stage.is_append_buffer and options.buffer_limit.max_bytes:
        return "its limit counts all rows"
    for number, given in enumerate(stage.inputs):
        if given.moves and not _may_move(stage, number, given, options):
            return f'the key of a row of "{given.relation.name}" may change, and what it was is in one bucket'
    return None


def _may_move(stage: Stage, number: int, given: StageInput, options: StageOptions) -> bool:
    is_listed = side_table(stage, number) is not None
    is_cast = any(
        storage_type(given.relation.schema.field(name).type) != storage_type(kind)
        for name, kind in zip(given.key, given.key_types, strict=True)
    )
    # A row that the stage refuses stays where it was, which only the stage itself finds.
    is_refused = is_cast and options.on_bad_input == "quarantine"
    return is_listed and not given.relation.sequence_by and not is_refused and options.hot_budget is None


@dataclass(slots=True)
class _Spread:
    tick: Tick
    deltas: tuple[ZSet, ...]
    rows: list[pa.RecordBatch]
    buckets: list[npt.NDArray[np.int64]]  # per input, of each row
    holders: dict[int, npt.NDArray[Any]]  # per input with moving keys, a bit per bucket that may have the row before
    parts: list[list[ZSet]]  # per bucket, the deltas of its operator, once they are gathered
    positions: list[list[npt.NDArray[np.int64]]]  # per bucket and input, where its rows were in the delta
    is_answered: bool = False  # nothing refuses the epoch any more


class _Moving:
    """Find the buckets that the rows of an input leave."""

    def __init__(self, relation: Relation, buckets: int) -> None:
        schema, key = relation.schema, relation.primary_key
        self.names = list(key)
        types = [schema.field(name).type for name in key]
        self.by_identity = [KeyBuckets(schema, key, types, buckets) for _ in range(buckets)]
        self.keys = MovedKeys(buckets)


@guarded("the stage in buckets")
class Bucketed:
    """Run the operators of a stage, one per bucket."""

    def __init__(
        self, stage: Stage, operators: list[DurableOperator], workers: Workers, *, rows_apart: int = ROWS_APART
    ) -> None:
        self.stage, self.operators, self._workers, self._rows_apart = stage, operators, workers, rows_apart
        self._buckets = buckets = len(operators)
        self._spread: _Spread | None = None
        self._unknown_deletes: dict[str, int] = {}  # per table that was restored
        self.inputs: tuple[Relation, ...] = operators[0].inputs
        self.output: Relation = operators[0].output
        # One for every slice of a delta that is hashed at the same time.
        self._by_key = [
            [RowBuckets(given, buckets, schema=relation.schema) for _ in range(buckets)]
            for relation, given in zip(self.inputs, stage.inputs, strict=True)
        ]
        self._moving = {number: _Moving(given.relation, buckets) for number, given in enumerate(stage.inputs) if given.moves}
        if self.absorbed_epoch >= 0:
            for number in self._moving:
                self._note_rows(number)

    @property
    def absorbed_epoch(self) -> int:
        return min(one.absorbed_epoch for one in self.operators)

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        spread = self._spread_out(tick, deltas)
        answers = self._answered(spread)
        for sign in (0, 1):
            for answer in answers:
                yield from answer[sign]

    def _answer(self, spread: _Spread, bucket: int) -> tuple[list[ZSet], list[ZSet]]:
        self._take(spread, bucket)
        retractions, insertions = [], []
        for chunk in self.operators[bucket].answer(spread.tick, spread.parts[bucket]):
            end = int(np.count_nonzero(chunk.weights < 0))
            if end:
                retractions.append(ZSet(chunk.rows.slice(0, end), chunk.weights[:end]))
            if end < len(chunk):
                insertions.append(ZSet(chunk.rows.slice(end), chunk.weights[end:]))
        return retractions, insertions

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        tick.check_follows(self.absorbed_epoch)
        spread = self._spread_out(tick, deltas)
        if not spread.is_answered:
            self._answered(spread)
        self._workers.run(
            [partial(one.absorb, tick, part) for one, part in zip(self.operators, spread.parts, strict=True)],
            apart=self._is_large(deltas),
        )
        self._spread = None
        for number, moving in self._moving.items():
            own = sum(len(one[number]) for one in spread.positions)
            if moving.keys.follow(own - len(deltas[number])):
                self._note_rows(number)

    def _note_rows(self, number: int) -> None:
        """Note where the rows of an input with moving keys are. Cost: all of them."""
        moving = self._moving[number]
        name = side_table(self.stage, number)
        readers = [one.snapshot_readers()[str(name)] for one in self.operators]
        hashes = [[moving.by_identity[0].hashes(batch.select(moving.names)) for batch in reader] for reader in readers]
        moving.keys.clear(sum(len(one) for own in hashes for one in own))
        for bucket, own in enumerate(hashes):
            for one in own:
                moving.keys.note(one, np.full(len(one), bucket, np.int64))

    def _answered(self, spread: _Spread) -> list[tuple[list[ZSet], list[ZSet]]]:
        """Return the answers of the buckets; from then on nothing refuses the epoch."""
        tasks = [partial(self._answer, spread, bucket) for bucket in range(self._buckets)]
        answers = self._workers.run(tasks, apart=self._is_large(spread.deltas))
        spread.is_answered = True
        return answers

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        spread = self._spread_out(tick, deltas)
        names = [relation.name for relation in self.inputs]
        tables = []
        for bucket, operator in enumerate(self.operators):
            self._take(spread, bucket)
            judged = operator.rejections(tick, spread.parts[bucket])
            tables.append(_placed(judged, spread, bucket, names))
        found = pa.concat_tables(tables)
        if not found.num_rows:
            return found
        order = {name: number for number, name in enumerate(names)}
        inputs = pa.array([order[name] for name in found.column("input").to_pylist()])
        return found.take(
            pc.sort_indices(
                pa.table({"input": inputs, "row": found.column("row")}), [("input", "ascending"), ("row", "ascending")]
            )
        )

    def corrections(self) -> int | None:
        counts = [corrections_of(one) for one in self.operators]
        return None if any(count is None for count in counts) else sum(cast("list[int]", counts))

    def resident_bytes(self) -> int:
        return sum(one.resident_bytes() for one in self.operators)

    def working_bytes(self) -> int:
        return sum(one.working_bytes() for one in self.operators)

    def is_current(self) -> bool:
        return all(one.is_current() for one in self.operators)

    def statistics(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for operator in self.operators:
            for name, count in operator.statistics().items():
                counts[name] = counts.get(name, 0) + count
        if self._moving:
            counts.pop("unknown_deletes", None)  # a bucket is given deletes of rows that may be in another one
        return counts

    def snapshot(self) -> Mapping[str, pa.Table]:
        """Return the live rows of all buckets, as one operator would; unknown deletes are those that were restored."""
        taken = self._workers.run([one.snapshot for one in self.operators])
        tables = together(self.stage, taken, {}, epoch=self.absorbed_epoch)
        for name, table in tables.items():
            if self.stage.state_tables[name].of_input in self._moving:
                tables[name] = with_unknown_deletes(table, self._unknown_deletes.get(name, 0))
        return tables

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        return {name: table.to_reader() for name, table in self.snapshot().items()}

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        self._spread = None
        read = {name: table if isinstance(table, pa.Table) else table.read_all() for name, table in tables.items()}
        self._unknown_deletes = {name: snapshot_counts(table)[1] for name, table in read.items()}
        parts = apart(self.stage, read, self._buckets)
        self._workers.run([partial(one.restore, part) for one, part in zip(self.operators, parts, strict=True)])
        for number in self._moving:
            self._note_rows(number)

    def close(self) -> None:
        self._spread = None
        with contextlib.ExitStack() as closing:
            for one in self.operators:
                closing.callback(one.close)

    # ---------------------------------------------------------------- one epoch

    def _spread_out(self, tick: Tick, deltas: Sequence[ZSet]) -> _Spread:
        """Return the buckets of the rows; repeated calls return the cached result."""
        kept = self._spread
        if kept is not None and kept.tick == tick and all(a is b for a, b in zip(kept.deltas, deltas, strict=True)):
            return kept
        self._spread = None
        rows = [conform(delta.rows, relation) for delta, relation in zip(deltas, self.inputs, strict=True)]
        buckets = self._in_slices(rows, [[one.of for one in by_key] for by_key in self._by_key])
        holders = {}
        moving = [number for number in self._moving if len(deltas[number])]
        hashing = [[one.hashes for one in self._moving[number].by_identity] for number in moving]
        for number, hashes in zip(moving, self._in_slices([rows[number] for number in moving], hashing), strict=True):
            keys, stays = self._moving[number].keys, deltas[number].weights > 0
            at = buckets[number]
            keys.note(*((hashes, at) if stays.all() else (hashes[stays], at[stays])))
            holders[number] = keys.of(hashes)
        self._spread = _Spread(
            tick, tuple(deltas), rows, buckets, holders, [[] for _ in self.operators], [[] for _ in self.operators]
        )
        return self._spread

    def _in_slices(
        self, rows: Sequence[pa.RecordBatch], ways: Sequence[Sequence[Callable[[pa.RecordBatch], npt.NDArray[np.int64]]]]
    ) -> list[npt.NDArray[np.int64]]:
        """Return the values of rows, each slice by its own function."""
        pieces = self._buckets if sum(one.num_rows for one in rows) >= self._rows_apart else 1
        tasks = []
        for one, own in zip(rows, ways, strict=True):
            ends = [piece * one.num_rows // pieces for piece in range(pieces + 1)]
            tasks += [partial(way, one.slice(begin, end - begin)) for way, begin, end in zip(own, ends, ends[1:], strict=False)]
        found = self._workers.run(tasks, apart=pieces > 1)
        return [found[at] if pieces == 1 else np.concatenate(found[at : at + pieces]) for at in range(0, len(found), pieces)]

    def _is_large(self, deltas: Sequence[ZSet]) -> bool:
        return sum(map(len, deltas)) >= self._rows_apart

    def _take(self, spread: _Spread, bucket: int) -> None:
        """Gather the rows of a bucket, once."""
        if spread.parts[bucket]:
            return
        parts = []
        for number, (delta, rows, buckets) in enumerate(zip(spread.deltas, spread.rows, spread.buckets, strict=True)):
            is_own = buckets == bucket
            holders = spread.holders.get(number)
            if holders is None:
                positions = np.flatnonzero(is_own)
                weights = delta.weights[positions]
            else:
                positions = np.flatnonzero(is_own | ((holders & holders.dtype.type(1 << bucket)) != 0))
                weights = np.where(is_own[positions], delta.weights[positions], np.int64(-1))
            whole = len(positions) == len(delta)
            parts.append(ZSet(rows if whole else take_rows(rows, positions), weights))
            spread.positions[bucket].append(positions)
        spread.parts[bucket] = parts


class _Timed(Bucketed):
    """Run the operators of a stage that may have rows to emit when time passes."""

    def next_due(self) -> NextDue:
        return earliest(due_of(one) for one in self.operators)


class _Listing(Bucketed):
    """Run the operators of a stage that can list the rows of its answer."""

    def held(self) -> Iterator[ZSet]:
        for one in self.operators:
            yield from cast("Any", one).held()


class _TimedListing(_Timed, _Listing):
    """Run the operators of a stage that does both."""


class _AnswerListing(Bucketed):
    """Run the operators of a stage that can list its answer, though it does not remember it."""

    @property
    def lists_answer(self) -> bool:
        return all(cast("AnswerListingOperator", one).lists_answer for one in self.operators)

    def listed(self, columns: Collection[str] | None = None) -> Iterator[ZSet]:
        for one in self.operators:
            yield from cast("AnswerListingOperator", one).listed(columns)


def in_buckets(stage: Stage, options: StageOptions, directory: str | None, workers: Workers) -> DurableOperator:
    """Return a stage in as many buckets as there are threads, over mapped files in a directory, or in memory (None)."""
    buckets = workers.threads
    shared = replace(
        options,
        hot_budget=None if options.hot_budget is None else options.hot_budget.share(buckets),
        table_budget=None if options.table_budget is None else options.table_budget.share(buckets),
    )
    home = None if directory is None else Path(directory) / f"of-{buckets}"
    operators: list[DurableOperator] = []
    with contextlib.ExitStack() as opened:
        for number in range(buckets):
            place = None if home is None else str(home / f"bucket-{number}")
            make_directory(place)
            operators.append(stage.build(shared, place))
            opened.callback(operators[-1].close)
        check_same_epoch((one.absorbed_epoch for one in operators), directory)
        opened.pop_all()
    timed, lists = is_timed(operators[0]), isinstance(operators[0], ListingOperator)
    kind = {(False, False): Bucketed, (True, False): _Timed, (False, True): _Listing, (True, True): _TimedListing}[timed, lists]
    return (_AnswerListing if isinstance(operators[0], AnswerListingOperator) else kind)(stage, operators, workers)


def _placed(judged: pa.Table, spread: _Spread, bucket: int, names: Sequence[str]) -> pa.Table:
    """Return the rejections of a bucket, with the positions of rows before partitioning."""
    if not judged.num_rows:
        return judged
    lines = []
    for line in judged.to_pylist():
        number = names.index(line["input"])
        row = int(spread.positions[bucket][number][line["row"]])
        if spread.buckets[number][row] == bucket:
            lines.append({**line, "row": row})
    return pa.Table.from_pylist(lines, schema=judged.schema)
