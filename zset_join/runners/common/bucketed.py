"""A stage in several buckets that looks like one operator: its rows are parted by key, and threads work on the buckets.

    one thread:   delta -> operator -> answer
    several:      delta -> by key -> operators, one per bucket -> their answers, all retractions first

The law: after consolidation the answer is that of one operator over all rows, and so is `snapshot`. So a checkpoint says nothing
of buckets: it is written and read with any number of threads, and an epoch has one log per stage.

An upsert whose key may move between buckets finds its old row by a `Route` beside the buckets, which is made of their rows: it
is in no snapshot.

A raise while an epoch is answered has changed nothing in any bucket; `absorb` answers first where that has not been done.

Cost: beside the operators' own, a hash and a copy of every row that comes, and a copy of every row that goes. Remembers for an
input with moving keys its primary and stage keys once more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zset_join.core.key_types import storage_type
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform, take_rows
from zset_join.core.tick import Tick
from zset_join.operators.route import Route
from zset_join.runners.common.key_buckets import KeyBuckets, Positions
from zset_join.runners.common.workers import Workers
from zset_join.stages.effect import asks_outside
from zset_join.stages.stage import Stage, StageInput, StageOptions
from zset_join.state.rows.guarded import guarded
from zset_join.state.rows.side_snapshot import SNAPSHOT_WATERMARK, SNAPSHOT_WEIGHT, snapshot_epoch
from zset_join.state.rows.usage import check_same_epoch
from zset_join.zset import ZSet, single_batch
from zset_join.zset.protocol import DurableOperator, ListingOperator, NextDue, corrections_of, due_of, earliest, is_timed

__all__ = ["Bucketed", "in_buckets", "why_in_one_bucket"]

ROWS_APART = 2_000
"""Rows of an epoch below which one thread works on all buckets: handing over costs more than it saves."""


def why_in_one_bucket(stage: Stage, options: StageOptions) -> str | None:
    """Return why the rows of a stage stay together; None where they are parted by key."""
    if asks_outside(stage):
        return "it asks the outside, in one place"
    if not all(given.key for given in stage.inputs):
        return "it has no key"
    if any(given.everywhere is not None for given in stage.inputs):
        return "some of its rows concern all keys"
    if stage.is_append_buffer and options.buffer_limit.max_bytes:
        return "its limit counts all rows"
    for number, given in enumerate(stage.inputs):
        if _moves(given) and not _may_move(stage, number, given, options):
            return f'the key of a row of "{given.relation.name}" may change, and its changes are ordered by a column'
    return None


def _moves(given: StageInput) -> bool:
    return given.relation.mode == "upsert" and not set(given.key) <= set(given.relation.primary_key)


def _may_move(stage: Stage, number: int, given: StageInput, options: StageOptions) -> bool:
    is_listed = any(table.is_whole and table.of_input == number for table in stage.state_tables.values())
    is_cast = any(
        storage_type(given.relation.schema.field(name).type) != storage_type(kind)
        for name, kind in zip(given.key, given.key_types, strict=True)
    )
    # A row that the stage refuses stays where it was, which only the stage itself knows.
    return is_listed and not given.relation.sequence_by and not (is_cast and options.on_bad_input == "quarantine")


@dataclass(slots=True)
class _Spread:
    """One epoch, parted.

    Args:
        tick: the epoch.
        deltas: what was given.
        rows: of each input, with the columns of its relation.
        parts: per bucket, the deltas of its operator.
        positions: per bucket and input, where its rows stood in the delta; -1 for deletes that are not in it.
        located: per input with moving keys, the deltas of its routes, and where their rows stood.
        deletes: per input with moving keys and bucket, the rows that leave it for another one or for good.
        is_answered: an answer was read to its end, so that nothing refuses it.
    """

    tick: Tick
    deltas: tuple[ZSet, ...]
    rows: list[pa.RecordBatch]
    parts: list[list[ZSet]]
    positions: list[list[Positions]]
    located: dict[int, tuple[list[ZSet], list[Positions]]]
    deletes: dict[int, list[list[pa.RecordBatch]]]
    is_answered: bool = False


class _Locator:
    """Know in which bucket the row of a primary key is.

    Args:
        given: the input.
        options: what operators take from the options of a query.
        directory: where it lies, None for memory.
        buckets: how many there are.
    """

    def __init__(self, given: StageInput, options: StageOptions, directory: str | None, buckets: int) -> None:
        relation = given.relation
        self.names = list(dict.fromkeys((*relation.primary_key, *given.key)))
        self.relation = replace(
            relation,
            schema=pa.schema([relation.schema.field(name) for name in self.names]),
            join_key=given.key,
            event_time=None,
            watermark_delay=None,
        )
        self.routes = [
            Route(
                self.relation,
                on_bad_input=options.on_bad_input,
                tombstone_retention_seconds=options.tombstone_retention_seconds,
                chunk_rows=options.chunk_rows,
                hash_seed=options.hash_seed,
                directory=None if directory is None else str(Path(directory) / f"route-{number}"),
            )
            for number in range(buckets)
        ]
        schema, key = self.relation.schema, relation.primary_key
        self.by_identity = KeyBuckets(schema, key, [schema.field(name).type for name in key], buckets)
        self.by_key = KeyBuckets(self.routes[0].output.schema, given.key, given.key_types, buckets)


@guarded("the stage in buckets")
class Bucketed:
    """Run the operators of a stage, one per bucket.

    Args:
        stage: what is computed.
        options: what operators take from the options of a query.
        operators: of the buckets.
        locators: by number of the input, where the rows of keys that may move are.
        workers: they work on the buckets.
    """

    def __init__(
        self,
        stage: Stage,
        options: StageOptions,
        operators: list[DurableOperator],
        locators: dict[int, _Locator],
        workers: Workers,
    ) -> None:
        self.stage, self.operators, self._locators, self._workers = stage, operators, locators, workers
        self._buckets = buckets = len(operators)
        self._rejects_all = options.on_bad_input == "error"
        self._spread: _Spread | None = None
        self.inputs: tuple[Relation, ...] = operators[0].inputs
        self.output: Relation = operators[0].output
        # One for every slice of a delta that is hashed at the same time.
        self._by_key = [
            [KeyBuckets(relation.schema, given.key, given.key_types, buckets) for _ in range(buckets)]
            for relation, given in zip(self.inputs, stage.inputs, strict=True)
        ]

    @property
    def absorbed_epoch(self) -> int:
        """Return the last epoch folded in; -1 when fresh."""
        return min(one.absorbed_epoch for one in self._all())

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Yield the change of the output, all retractions first.

        Raises:
            ZsetJoinError: as the operator of a bucket; of several that raise, that of the first one.
        """
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
        """Fold the deltas of one epoch into all buckets.

        Raises:
            ZsetJoinError: as `answer`; no bucket has changed.
            StateError: an epoch that was absorbed before.
        """
        tick.check_follows(self.absorbed_epoch)
        spread = self._spread_out(tick, deltas)
        if not spread.is_answered:
            self._answered(spread)
        tasks = [partial(one.absorb, tick, spread.parts[bucket]) for bucket, one in enumerate(self.operators)]
        for number, locator in self._locators.items():
            parts = spread.located[number][0]
            tasks += [partial(route.absorb, tick, [part]) for route, part in zip(locator.routes, parts, strict=True)]
        self._workers.run(tasks, apart=_is_large(deltas))
        self._spread = None

    def _answered(self, spread: _Spread) -> list[tuple[list[ZSet], list[ZSet]]]:
        """Return the answers of the buckets; from then on nothing refuses the epoch."""
        tasks = [partial(self._answer, spread, bucket) for bucket in range(self._buckets)]
        answers = self._workers.run(tasks, apart=_is_large(spread.deltas))
        spread.is_answered = True
        return answers

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        """Return the input rows that break their relation's contract: `input`, `row`, `weight`, `code`, `reason`."""
        spread = self._spread_out(tick, deltas, refuses=False)
        names = [relation.name for relation in self.inputs]
        tables = []
        for bucket, operator in enumerate(self.operators):
            self._take(spread, bucket)
            judged = operator.rejections(tick, spread.parts[bucket])
            tables.append(_placed(judged, dict(zip(names, spread.positions[bucket], strict=True))))
        for number, locator in self._locators.items():
            for route, part, positions in zip(locator.routes, *spread.located[number], strict=True):
                tables.append(_placed(route.rejections(tick, [part]), {names[number]: positions}))
        found = pa.concat_tables(tables)
        if not found.num_rows:
            return found
        order = {name: number for number, name in enumerate(names)}
        places = list(
            zip([order[name] for name in found.column("input").to_pylist()], found.column("row").to_pylist(), strict=True)
        )
        first = {place: at for at, place in reversed(list(enumerate(places)))}  # a row without a primary key is refused twice
        return found.take(pa.array([first[place] for place in sorted(first)]))

    def corrections(self) -> int | None:
        """Return how many earlier answers the last one retracted; None where nothing is corrected ever."""
        counts = [corrections_of(one) for one in self.operators]
        return None if any(count is None for count in counts) else sum(cast("list[int]", counts))

    def resident_bytes(self) -> int:
        """Return the bytes of state held in memory."""
        return sum(one.resident_bytes() for one in self._all())

    def working_bytes(self) -> int:
        """Return the bytes of the working arrays."""
        return sum(one.working_bytes() for one in self._all())

    def is_current(self) -> bool:
        """Return whether the mapped files are still those of the directory, and whole."""
        return all(one.is_current() for one in self._all())

    def statistics(self) -> dict[str, int]:
        """Return counts of all buckets together."""
        counts: dict[str, int] = {}
        for operator in self.operators:
            for name, count in operator.statistics().items():
                counts[name] = counts.get(name, 0) + count
        return counts

    def snapshot(self) -> Mapping[str, pa.Table]:
        """Return the live rows of all buckets, as one operator would."""
        taken = self._workers.run([one.snapshot for one in self.operators])
        tables = {}
        for name in taken[0]:
            parts = [one[name] for one in taken]
            metadata = [part.schema.metadata or {} for part in parts]
            table = pa.concat_tables([part.replace_schema_metadata(None) for part in parts])
            tables[name] = self.stage.regrouped(name, table, epoch=self.absorbed_epoch, metadata=metadata)
        return tables

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        """Return what reads the tables of `snapshot`. Cost: as `snapshot`, in memory."""
        return {name: table.to_reader() for name, table in self.snapshot().items()}

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        """Replace the state by a snapshot, whatever number of buckets it was taken of."""
        self._spread = None
        read = {name: table if isinstance(table, pa.Table) else table.read_all() for name, table in tables.items()}
        parts: list[dict[str, pa.Table]] = [{} for _ in range(self._buckets)]
        located: list[tuple[Route, pa.Table]] = []
        for name, table in read.items():
            whole = self.stage.state_tables[name]
            metadata = table.schema.metadata or {}
            given = self.stage.inputs[0 if whole.of_input is None else min(whole.of_input, len(self.stage.inputs) - 1)]
            if whole.columns:
                chosen = KeyBuckets(table.schema, whole.columns, given.key_types, self._buckets).split(single_batch(table))
            else:
                chosen = [np.arange(table.num_rows), *[np.empty(0, np.int64)] * (self._buckets - 1)]
            for bucket, positions in enumerate(chosen):
                rows = table.take(pa.array(positions)).replace_schema_metadata(None)
                facts = [metadata] if bucket == 0 else [_without_counts(metadata)]  # what is counted is counted once
                parts[bucket][name] = self.stage.regrouped(name, rows, epoch=snapshot_epoch(table), metadata=facts)
            locator = self._locators.get(-1 if whole.of_input is None else whole.of_input)
            if locator is not None and whole.is_whole:
                located += _located(locator, table)
        tasks = [partial(one.restore, part) for one, part in zip(self.operators, parts, strict=True)]
        tasks += [partial(route.restore, {"route": rows}) for route, rows in located]
        self._workers.run(tasks)

    def close(self) -> None:
        """Release all buckets; the workers stay."""
        self._spread = None
        self._close_all()

    def _close_all(self) -> None:
        with contextlib.ExitStack() as closing:
            for one in self._all():
                closing.callback(one.close)

    def _all(self) -> Iterator[DurableOperator]:
        yield from self.operators
        for locator in self._locators.values():
            yield from cast("Sequence[DurableOperator]", locator.routes)

    # ---------------------------------------------------------------- one epoch

    def _spread_out(self, tick: Tick, deltas: Sequence[ZSet], *, refuses: bool = True) -> _Spread:
        """Part the deltas; asked again for the same ones, return what was found before."""
        kept = self._spread
        if kept is not None and kept.tick == tick and all(a is b for a, b in zip(kept.deltas, deltas, strict=True)):
            return kept
        self._spread = None
        buckets = range(self._buckets)
        apart = _is_large(deltas)
        rows = [conform(delta.rows, relation) for delta, relation in zip(deltas, self.inputs, strict=True)]
        pieces = self._buckets if apart else 1
        tasks = [
            partial(by_key[piece].split, one, piece * len(delta) // pieces, (piece + 1) * len(delta) // pieces)
            for by_key, one, delta in zip(self._by_key, rows, deltas, strict=True)
            for piece in range(pieces)
        ]
        slices = self._workers.run(tasks, apart=apart)
        positions: list[list[Positions]] = [[] for _ in buckets]
        for number in range(len(deltas)):
            own = slices[number * pieces : (number + 1) * pieces]
            for bucket in buckets:
                found = [one[bucket] for one in own if len(one[bucket])]
                positions[bucket].append(found[0] if len(found) == 1 else np.concatenate([np.empty(0, np.int64), *found]))
        spread = _Spread(tick, tuple(deltas), rows, [[] for _ in buckets], positions, {}, {})
        self._rows = rows
        for number, locator in self._locators.items():
            self._locate(spread, number, locator, apart=apart, refuses=refuses)
        if refuses or not self._rejects_all:
            self._spread = spread
        return spread

    def _locate(
        self, spread: _Spread, number: int, locator: _Locator, *, apart: bool, refuses: bool
    ) -> None:
        """Find out which upserts of an input hold, and what they delete elsewhere."""
        weights = spread.deltas[number].weights
        narrow = spread.rows[number].select(locator.names)
        chosen = locator.by_identity.split(narrow)
        parts: list[ZSet] = [
            ZSet(take_rows(narrow, positions), weights[positions]) if len(positions) < len(weights) else ZSet(narrow, weights)
            for positions in chosen
        ]
        spread.located[number] = parts, chosen
        if not refuses and self._rejects_all:
            return
        moved = self._workers.run(
            [partial(route.moves, spread.tick, part) for route, part in zip(locator.routes, parts, strict=True)], apart=apart
        )
        holds = np.zeros(len(weights), np.bool_)
        deletes: list[list[pa.RecordBatch]] = [[] for _ in range(self._buckets)]
        for positions, (upserts, gone) in zip(chosen, moved, strict=True):
            holds[positions[upserts]] = True
            for batch in gone:
                for bucket, places in enumerate(locator.by_key.split(batch)):
                    if len(places):
                        deletes[bucket].append(take_rows(batch, places))
        for bucket in range(self._buckets):
            own = spread.positions[bucket][number]
            spread.positions[bucket][number] = own[holds[own]]
        spread.deletes[number] = deletes

    def _take(self, spread: _Spread, bucket: int) -> None:
        """Gather the rows of a bucket, once."""
        if spread.parts[bucket]:
            return
        parts = []
        for number, (delta, rows, positions) in enumerate(
            zip(spread.deltas, spread.rows, spread.positions[bucket], strict=True)
        ):
            part = delta if len(positions) == len(delta) else ZSet(take_rows(rows, positions), delta.weights[positions])
            deletes = spread.deletes.get(number, [[]] * self._buckets)[bucket]
            if deletes:
                part = _behind(deletes, part, rows.schema)
                gone = len(part) - len(positions)
                spread.positions[bucket][number] = np.concatenate([np.full(gone, -1, np.int64), positions])
            parts.append(part)
        spread.parts[bucket] = parts


class _Timed(Bucketed):
    """Run the operators of a stage that may have rows to emit when time passes."""

    def next_due(self) -> NextDue:
        """Return when the first of them must next run."""
        return earliest(due_of(one) for one in self.operators)


class _Listing(Bucketed):
    """Run the operators of a stage that can list the rows of its answer."""

    def held(self) -> Iterator[ZSet]:
        """Yield every row of the sum of the answers, the weight being how many rows of the input are behind it."""
        for one in self.operators:
            yield from cast("Any", one).held()


class _TimedListing(_Timed, _Listing):
    """Run the operators of a stage that does both."""


def in_buckets(stage: Stage, options: StageOptions, directory: str | None, workers: Workers) -> DurableOperator:
    """Return a stage in as many buckets as there are threads, over mapped files in a directory, or in memory when given None.

    Args:
        stage: one that `why_in_one_bucket` has no reason for.
        options: what operators take from the options of a query; budgets are those of all buckets.
        directory: where its state is; that of another number of threads in it is left alone.
        workers: they work on the buckets.

    Raises:
        StateError: the directory holds something else.
    """
    buckets = workers.threads
    shared = replace(
        options,
        hot_budget=None if options.hot_budget is None else options.hot_budget.share(buckets),
        table_budget=None if options.table_budget is None else options.table_budget.share(buckets),
    )
    home = None if directory is None else Path(directory) / f"of-{buckets}"
    operators: list[DurableOperator] = []
    locators: dict[int, _Locator] = {}
    with contextlib.ExitStack() as opened:

        def place(name: str) -> str | None:
            return None if home is None else str(home / name)

        for number in range(buckets):
            operators.append(stage.build(shared, place(f"bucket-{number}")))
            opened.callback(operators[-1].close)
        for number, given in enumerate(stage.inputs):
            if _moves(given):
                locators[number] = _Locator(given, options, place(f"input-{number}"), buckets)
                for route in locators[number].routes:
                    opened.callback(route.close)
        routes = [route for locator in locators.values() for route in locator.routes]
        check_same_epoch((one.absorbed_epoch for one in (*operators, *routes)), directory)
        opened.pop_all()
    timed, lists = is_timed(operators[0]), isinstance(operators[0], ListingOperator)
    kind = {(False, False): Bucketed, (True, False): _Timed, (False, True): _Listing, (True, True): _TimedListing}[timed, lists]
    return kind(stage, options, operators, locators, workers)


def _is_large(deltas: Sequence[ZSet]) -> bool:
    return sum(map(len, deltas)) >= ROWS_APART


def _behind(deletes: Sequence[pa.RecordBatch], part: ZSet, schema: pa.Schema) -> ZSet:
    """Return rows behind the deletes of others, of which only the key is known."""
    nullable = pa.schema([field.with_nullable(True) for field in schema])
    batches = [
        pa.RecordBatch.from_arrays(
            [
                batch.column(field.name) if field.name in batch.schema.names else pa.nulls(batch.num_rows, field.type)
                for field in nullable
            ],
            schema=nullable,
        )
        for batch in deletes
    ]
    gone = sum(batch.num_rows for batch in batches)
    batches.append(pa.RecordBatch.from_arrays(part.rows.columns, schema=nullable))
    return ZSet(pa.concat_batches(batches), np.concatenate([np.full(gone, -1, np.int64), part.weights]))


def _placed(judged: pa.Table, positions: Mapping[str, Positions]) -> pa.Table:
    """Return rejections with the positions that their rows had before they were parted."""
    if not judged.num_rows:
        return judged
    rows = [
        int(positions[name][row])
        for name, row in zip(judged.column("input").to_pylist(), judged.column("row").to_pylist(), strict=True)
    ]
    at = judged.schema.get_field_index("row")
    return judged.set_column(at, judged.schema.field(at), pa.array(rows, judged.schema.field(at).type))


def _located(locator: _Locator, table: pa.Table) -> list[tuple[Route, pa.Table]]:
    """Return the tables that routes are restored from, given all rows of their input."""
    kept = [name for name in table.schema.names if name in locator.names or name in (SNAPSHOT_WEIGHT, SNAPSHOT_WATERMARK)]
    rows = table.select(kept).filter(pc.greater(table.column(SNAPSHOT_WEIGHT), 0))
    chosen = locator.by_identity.split(single_batch(rows))
    epoch = str(snapshot_epoch(table)).encode()
    return [
        (route, rows.take(pa.array(positions)).replace_schema_metadata({b"zset_join.absorbed_epoch": epoch}))
        for route, positions in zip(locator.routes, chosen, strict=True)
    ]


def _without_counts(metadata: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return of the metadata of a table the times by name, which hold for every bucket."""
    return {name: text for name, text in metadata.items() if text.startswith(b"{")}
