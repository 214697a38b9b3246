"""The lookup join: rows of a stream, each with the rows of an external table at the time of the lookup.

An external table is no function of the input, so the operator never reads it. It returns the wanted keys (`keys_to_fetch`); the
caller fetches, writes the answers down, and passes them in as the second input; from there on everything is a function of its
inputs.

The law: the answer of an epoch is decided by the rows before it, its delta, and what was fetched for it. While the external
table does not advance, the sum of the answers is the batch join. A retraction retracts what was emitted, and queries nothing.

Remembers, for an append-only left, the rows that wait for another attempt; for any other, its live rows and per arrival what it
was joined with (`zset_join.state.join.lookup_rows`).

Edge cases. NULL in a lookup key: no lookup, no match. Several answers to one key are several matches. A row that the
residual predicate rejects is no miss: it is padded (LEFT) or dropped (INNER) at once. A miss waits only with `max_retries`; it
is due `delay_us` after the processing time of the epoch that missed it, and requested in the first epoch at or after that,
also in one without rows. After the last miss LEFT pads and INNER drops. The answers of an append-only left come in the order
of its rows.

Known limits. INNER and LEFT. Parked rows are joined as they came, whatever happened to the external table meanwhile.

Source: FLIP-234 (retryable lookup joins); the journal and rows that are parked between epochs are ours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.errors import LookupFailedError, ResourceError, StateError
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform, take_rows
from zset_join.core.shown_values import counted
from zset_join.operators.join_steps import columns_compared
from zset_join.shapes.lookup import FOUND, LookupShape, LookupTerms, RetryPolicy, looked_up_relation
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.join.lookup_rows import (
    ARRIVAL,
    ATTEMPTS,
    JOINED,
    KIND,
    PADDED,
    PARKED,
    PARKED_PADDED,
    SILENT,
    Answer,
    MatchMemo,
    MemoLines,
    Retracted,
    as_answer,
    fetched_rows,
    first_arrival,
)
from zset_join.state.rows.directories import HashTables, check_same_epoch
from zset_join.state.rows.guarded import guarded
from zset_join.state.rows.keyed_rows import KeyedRows
from zset_join.state.rows.side import SideRules, SideState
from zset_join.state.rows.side_changes import (
    REJECTION_SCHEMA,
    NetChanges,
    SideChanges,
    describe_rejection,
    no_rejections,
    rejection_table,
)
from zset_join.state.rows.side_snapshot import restore_side, side_reader, snapshot_epoch
from zset_join.zset import ZSet
from zset_join.zset.protocol import NOTHING_DUE, NextDue

__all__ = ["LookupJoin"]

Int64s = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Requests:
    """Rows whose keys are looked up in an epoch: new ones, then those that were parked and are due."""

    unaskable: Mapping[int, str]
    askable: Int64s
    changes: NetChanges | None
    taken: Retracted
    due: Int64s
    due_copies: Int64s
    rows: pa.RecordBatch
    copies: Int64s
    attempts: Int64s
    arrivals: Int64s
    was_padded: npt.NDArray[np.bool_]
    keys: pa.RecordBatch
    has_key: npt.NDArray[np.bool_]


@dataclass(slots=True)
class _Prepared:
    tick: Tick
    deltas: tuple[ZSet, ZSet]
    lookups: _Requests
    answer: Answer
    kept: MemoLines


@guarded("the lookup join")
class LookupJoin:
    """Join a stream with what was looked up for it.

    >>> orders = Relation(name="orders", schema=pa.schema({"id": pa.int64(), "who": pa.int64()}), join_key=("who",))
    >>> table = Relation(name="customers", schema=pa.schema({"id": pa.int64(), "name": pa.string()}), join_key=("id",))
    >>> join = LookupJoin(orders, table, LookupTerms(how="left", output_names=["id", "who", "customer", "name"]))
    >>> delta = ZSet.of({"id": [1, 2], "who": [7, 8]})
    >>> keys = join.keys_to_fetch(Tick(0), delta)
    >>> fetched = join.fetched_answer(keys, pa.table({"id": [7], "name": ["Ada"]}))
    >>> [row for chunk in join.answer(Tick(0), [delta, fetched]) for row in chunk.to_pylist()]
    [((1, 7, 7, 'Ada'), 1), ((2, 8, None, None), 1)]
    """

    def __init__(
        self,
        probe: Relation,
        table: Relation,
        terms: LookupTerms = LookupTerms(),
        *,
        misses: RetryPolicy = RetryPolicy(),
        options: OperatorOptions = OperatorOptions(),
    ) -> None:
        shape = LookupShape.of(
            probe,
            table,
            terms.how,
            constants=terms.constants,
            using=terms.using,
            output_names=terms.output_names,
        )
        self.output = looked_up_relation(shape, terms.how, residual=terms.residual, emits_padded_first=misses.padded_first)
        is_append_only = probe.mode == "append"
        self.shape = shape
        self.how = terms.how
        self.on_bad_input = options.on_bad_input
        self.inputs: tuple[Relation, ...] = (probe, shape.fetched)
        self._residual = terms.residual
        self._unaskable = terms.unaskable
        self._policy = misses
        self._chunk_rows = options.chunk_rows
        self._tables = HashTables.of(options)
        self._is_append_only = is_append_only
        identity = () if is_append_only else probe.primary_key if probe.mode == "upsert" else tuple(probe.schema.names)
        kept_key = probe.primary_key if probe.mode == "upsert" else tuple(probe.schema.names)
        self._side = SideState(
            Relation(
                name=probe.name,
                schema=probe.schema,
                join_key=kept_key,
                primary_key=probe.primary_key,
                sequence_by=probe.sequence_by,
                mode=probe.mode,
            ),
            key_types=[probe.schema.field(column).type for column in kept_key],
            null_safe=[True] * len(kept_key),
            tables=self._tables,
            name="left",
            rules=SideRules(
                tombstone_retention_us=options.tombstone_retention_us,
                compared=columns_compared((probe, table), terms.residual, (terms.hidden, ()))[0],
                arranges=False,
            ),
        )
        self._left = SideChanges(self._side, stores=not is_append_only)
        self._memo = MatchMemo(
            probe.name,
            shape.joined_schema,
            identity,
            tables=self._tables,
        )
        check_same_epoch((self._memo.lines.side.absorbed_epoch, self._side.absorbed_epoch), options.directory)
        self._lookups: tuple[Tick, ZSet, _Requests] | None = None
        self._prepared: _Prepared | None = None

    # ---------------------------------------------------------------- what is to be fetched

    @property
    def absorbed_epoch(self) -> int:
        return self._side.absorbed_epoch

    @property
    def parked_rows(self) -> int:
        return self._memo.parked_rows

    def keys_to_fetch(self, tick: Tick, delta: ZSet) -> pa.RecordBatch:
        """Return the keys that must be looked up before the epoch is answered, each once, none with a NULL."""
        # Columns are those of the external table's key, by name and in the types they are compared in.
        lookups = self._look_up(tick, delta)
        self._refuse_bad_input(lookups, tick)
        wanted = lookups.keys.filter(pa.array(lookups.has_key)) if not lookups.has_key.all() else lookups.keys
        distinct = ZSet(wanted, np.ones(wanted.num_rows, np.int64)).consolidated().rows
        return pa.RecordBatch.from_arrays(distinct.columns, schema=self.shape.key_schema)

    def fetched_answer(self, keys: pa.RecordBatch, rows: pa.Table, *, max_parked_rows: int | None = None) -> ZSet:
        """Return the second input: for each requested key what was found, or that nothing was."""
        policy = self._policy if max_parked_rows is None else replace(self._policy, max_parked_rows=max_parked_rows)
        return fetched_rows(self.shape, keys, rows, policy, hash_seed=self._tables.hash_seed)

    def final_for_limit(self, tick: Tick, deltas: Sequence[ZSet]) -> int:
        """Return how many misses of an epoch are final because `max_parked_rows` others wait; errors as of `answer`."""
        return self._prepare(tick, deltas).kept.over_limit

    # ---------------------------------------------------------------- the operator protocol

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        prepared = self._prepare(tick, deltas)
        yield from prepared.answer.chunks(self._chunk_rows)

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        tick.check_follows(self.absorbed_epoch)
        prepared = self._prepare(tick, deltas)
        lookups, memo = prepared.lookups, self._memo
        self._side.begin_absorb()
        memo.lines.side.begin_absorb()
        self._left.absorb(lookups.changes, tick.processing_time_us)
        memo.remove(lookups.taken)
        memo.remove(Retracted(lookups.due, lookups.due_copies))
        memo.forget_due(self._now(tick))
        kept = prepared.kept
        memo.add(kept.rows, kept.copies, kept.kinds, kept.arrivals, due_us=kept.due_us, attempts=kept.attempts)
        self._prepared = self._lookups = None
        if tick.processing_time_us is not None:
            memo.lines.side.absorb(None, tick.processing_time_us)
        self._side.shrink_working(None)
        self._side.end_absorb(tick.epoch)
        memo.end_absorb(tick.epoch)

    def next_due(self) -> NextDue:
        due_us = self._memo.next_due_us
        return NOTHING_DUE if due_us is None else NextDue(processing_time_us=due_us)

    @property
    def lists_answer(self) -> bool:
        return not self._is_append_only

    def listed(self, columns: Collection[str] | None = None) -> Iterator[ZSet]:  # noqa: ARG002 - all columns are in the lines
        for rows, copies in self._memo.emitted(self._chunk_rows):
            yield ZSet(self.shape.output_rows(rows), copies)

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        if len(deltas[0]) == 0:
            return no_rejections()
        lookups, name = self._look_up(tick, deltas[0]), self.inputs[0].name
        rejected = rejection_table(self.inputs, [None if lookups.changes is None else lookups.changes.prepared, None])
        if not lookups.unaskable:
            return rejected
        lines = [{**line, "row": int(lookups.askable[line["row"]])} for line in rejected.to_pylist()]
        for row, reason in lookups.unaskable.items():
            weight = int(deltas[0].weights[row])
            reported = f"has a key that {self._source_name} cannot be looked up by: {reason}"
            lines.append({"input": name, "row": row, "weight": weight, "code": "LOOKUP_KEY_VALUE", "reason": reported})
        return pa.Table.from_pylist(sorted(lines, key=lambda line: line["row"]), schema=REJECTION_SCHEMA)

    def resident_bytes(self) -> int:
        return self._side.resident_bytes() + self._memo.lines.side.resident_bytes()

    def working_bytes(self) -> int:
        return self._side.working_bytes() + self._memo.lines.side.working_bytes()

    def is_current(self) -> bool:
        return self._side.is_current() and self._memo.is_current()

    def statistics(self) -> dict[str, int]:
        return {
            **self._side.statistics(),
            **self._memo.lines.side.statistics(),
            "parked_rows": self._memo.parked_rows,
        }

    def snapshot(self) -> Mapping[str, pa.Table]:
        return {name: reader.read_all() for name, reader in self.snapshot_readers().items()}

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        return {"left": side_reader(self._side), "memo": self._memo.lines.reader()}

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        self._prepared = self._lookups = None
        restore_side(self._side, tables["left"])
        self._memo.restore(tables["memo"])
        epoch = snapshot_epoch(tables["left"])
        self._side.end_absorb(epoch)
        self._memo.end_absorb(epoch)

    def close(self) -> None:
        self._prepared = self._lookups = None
        self._side.close()
        self._memo.lines.close()

    # ---------------------------------------------------------------- resolving an epoch

    def _now(self, tick: Tick) -> int:
        """Return the processing time; where a tick has none, time does not advance."""
        return max(self._memo.lines.side.watermark, 0) if tick.processing_time_us is None else tick.processing_time_us

    def _look_up(self, tick: Tick, delta: ZSet) -> _Requests:
        """Find out which rows go, and whose keys are to be looked up."""
        kept = self._lookups
        if kept is not None and kept[0] == tick and kept[1] is delta:
            return kept[2]
        self._lookups = self._prepared = None
        memo, names = self._memo, self.inputs[0].schema.names
        unaskable = self._never_requested(delta)
        askable = np.setdiff1d(np.arange(len(delta)), np.fromiter(unaskable, np.int64))
        given = ZSet(delta.rows.take(pa.array(askable)), delta.weights[askable]) if unaskable else delta
        changes = self._left.resolve(given) if len(given) else None
        taken = Retracted() if changes is None else memo.retract(changes.lost, changes.lost_copies)
        due = memo.due(self._now(tick))
        due_copies = memo.lines.weights(due)
        if len(due) and len(taken.numbers):
            due_copies = due_copies - taken.copies_of(due)
            due, due_copies = due[due_copies > 0], due_copies[due_copies > 0]
        came = self._left.schema.empty_table().to_batches()[:0]
        parts = [changes.new] if changes is not None else came
        if len(due):
            parts = [*parts, memo.lines.gather(due, names).rename_columns(names)]
        rows = (
            pa.concat_batches([part.cast(self._left.schema) for part in parts])
            if parts
            else pa.RecordBatch.from_pylist([], schema=self._left.schema)
        )
        count_new = 0 if changes is None else changes.new.num_rows
        new_copies = np.zeros(0, np.int64) if changes is None else changes.new_copies
        keys = self.shape.keys_of(rows)
        has_key = np.ones(rows.num_rows, np.bool_)
        for column in keys.columns:
            if column.null_count:
                has_key &= ~column.is_null().to_numpy(zero_copy_only=False)
        lookups = _Requests(
            unaskable=unaskable,
            askable=askable,
            changes=changes,
            taken=taken,
            due=due,
            due_copies=due_copies,
            rows=rows,
            copies=np.concatenate([new_copies, due_copies]),
            attempts=np.concatenate([np.zeros(count_new, np.int64), memo.word(ATTEMPTS, due)]) + 1,
            arrivals=np.concatenate(
                [first_arrival(tick.epoch) + np.arange(count_new, dtype=np.int64), memo.word(ARRIVAL, due)]
            ),
            was_padded=np.concatenate([np.zeros(count_new, np.bool_), memo.word(KIND, due) == PARKED_PADDED]),
            keys=keys,
            has_key=has_key,
        )
        self._lookups = (tick, delta, lookups)
        return lookups

    def _prepare(self, tick: Tick, deltas: Sequence[ZSet]) -> _Prepared:
        kept = self._prepared
        if kept is not None and kept.tick == tick and kept.deltas[0] is deltas[0] and kept.deltas[1] is deltas[1]:
            return kept
        lookups = self._look_up(tick, deltas[0])
        self._refuse_bad_input(lookups, tick)
        met, fetched_rows, is_miss = self._meet(lookups, deltas[1], tick)
        policy = self.shape.policy_of(deltas[1].rows)
        count = lookups.rows.num_rows
        is_joined = np.zeros(count, np.bool_)
        is_joined[met] = True
        parks = is_miss & (lookups.attempts <= policy.max_retries) & (lookups.copies > 0)
        over_limit = self._bound(parks, lookups, tick, policy)
        is_left = self.how == "left"
        unmatched = ~is_joined & ~parks
        kinds = np.full(count, PADDED if is_left else SILENT, np.int64)
        kinds[parks] = PARKED_PADDED if policy.padded_first else PARKED
        # Lines in the order of the rows they belong to: matches, and one line for each row without any.
        others = np.flatnonzero(~is_joined).astype(np.int64)
        owners = np.concatenate([met, others])
        order = np.argsort(owners, kind="stable")
        owners = owners[order]
        sources = np.concatenate([fetched_rows, np.full(len(others), -1, np.int64)])[order]
        line_kinds = np.where(sources >= 0, JOINED, kinds[owners])
        joined = self.shape.joined_rows(lookups.rows, owners, deltas[1].rows, sources)
        copies = lookups.copies[owners]
        emits_now = ((line_kinds == JOINED) | (line_kinds == PADDED) | (line_kinds == PARKED_PADDED)) & ~(
            lookups.was_padded[owners] & (line_kinds != JOINED)
        )
        withdrawn = self._withdrawn(lookups, is_joined, parks | unmatched)
        answer = as_answer(
            self.shape,
            retracted=[self._taken_rows(lookups), withdrawn],
            inserted=(joined, copies, emits_now),
            is_plain=self.output.mode == "append",
        )
        stays = line_kinds >= PARKED if self._is_append_only else np.ones(len(owners), np.bool_)
        kept_lines = MemoLines(
            rows=take_rows(joined, np.flatnonzero(stays)) if not stays.all() else joined,
            copies=copies[stays],
            kinds=line_kinds[stays],
            arrivals=lookups.arrivals[owners][stays],
            attempts=lookups.attempts[owners][stays],
            due_us=self._now(tick) + policy.delay_us,
            over_limit=over_limit,
        )
        self._prepared = _Prepared(tick, (deltas[0], deltas[1]), lookups, answer, kept_lines)
        return self._prepared

    def _meet(self, lookups: _Requests, fetched: ZSet, tick: Tick) -> tuple[Int64s, Int64s, npt.NDArray[np.bool_]]:
        """Return the pairs of requested rows and fetched rows that pass ON, and which requested rows met nothing at all."""
        is_miss = np.zeros(lookups.rows.num_rows, np.bool_)
        if not lookups.has_key.any():
            return np.zeros(0, np.int64), np.zeros(0, np.int64), is_miss
        answers = KeyedRows("fetched", self.shape.lookup_schema, self.shape.lookup_names, tables=self._tables.beside())
        given = conform(fetched.rows, self.shape.fetched)
        answers.add(
            pa.RecordBatch.from_arrays(
                [given.column(name) for name in self.shape.lookup_names], schema=self.shape.lookup_schema
            )
        )
        keys = pa.RecordBatch.from_arrays(lookups.keys.columns, names=list(self.shape.lookup_names))
        positions, numbers = answers.find(keys)
        answers.close()
        seen = np.zeros(lookups.rows.num_rows, np.bool_)
        seen[positions] = True
        unfetched = np.flatnonzero(lookups.has_key & ~seen)
        if len(unfetched):
            key = tuple(column[int(unfetched[0])].as_py() for column in lookups.keys.columns)
            raise StateError(
                f'the lookup join of "{self.inputs[0].name}" with "{self.shape.table.name}", epoch {tick.epoch}: key {key} was '
                f"not fetched ({counted(len(unfetched), 'such row')}). What was fetched belongs to another delta; fetch what "
                "keys_to_fetch requests.",
                code="KEY_NOT_FETCHED",
                key=key,
                epoch=tick.epoch,
            )
        sources = numbers - 1  # rows of a fresh side are numbered from 1 on, in their order
        is_found = given.column(FOUND).to_numpy(zero_copy_only=False)[sources]
        is_miss[positions[~is_found]] = True
        positions, sources = positions[is_found], sources[is_found]
        if self._residual is not None and len(positions):
            passes = self.shape.passing_pairs(self._residual, lookups.rows, positions, given, sources)
            positions, sources = positions[passes], sources[passes]
        return positions, sources, is_miss

    def _bound(self, parks: npt.NDArray[np.bool_], lookups: _Requests, tick: Tick, policy: RetryPolicy) -> int:
        """Keep the number of rows that wait below its limit; return how many misses are final for that."""
        leaving = len(lookups.due) + int(np.count_nonzero(self._memo.word(KIND, lookups.taken.numbers) >= PARKED))
        room = max(0, policy.max_parked_rows - max(0, self._memo.parked_rows - leaving))
        waiting = np.flatnonzero(parks)
        if len(waiting) <= room:
            return 0
        if not policy.pads_at_limit:
            raise ResourceError(
                f'the lookup join of "{self.inputs[0].name}" with "{self.shape.table.name}", epoch {tick.epoch}: '
                f"{len(waiting)} more rows would wait for another attempt, and max_parked_rows leaves room for {room} (of "
                f"{policy.max_parked_rows}, this bucket's share); nothing was applied. Raise it, shorten fixed_delay or "
                'max_attempts, or set on_parked_limit="pad".',
                code="PARKED_LIMIT",
                limit=policy.max_parked_rows,
                waiting=len(waiting),
                epoch=tick.epoch,
            )
        parks[waiting[room:]] = False
        return len(waiting) - room

    def _taken_rows(self, lookups: _Requests) -> tuple[pa.RecordBatch, Int64s]:
        """Return the output rows that go with the left rows that go."""
        taken = lookups.taken
        kinds = self._memo.word(KIND, taken.numbers)
        emitted = (kinds == JOINED) | (kinds == PADDED) | (kinds == PARKED_PADDED)
        return self._memo.rows(taken.numbers[emitted]), taken.copies[emitted]

    def _withdrawn(
        self, lookups: _Requests, is_joined: npt.NDArray[np.bool_], stays_padded: npt.NDArray[np.bool_]
    ) -> tuple[pa.RecordBatch, Int64s]:
        """Return the padded rows that were shown first and go because a partner has come."""
        shown = np.flatnonzero(lookups.was_padded & is_joined & ~stays_padded).astype(np.int64)
        rows = self.shape.joined_rows(lookups.rows, shown, None, np.full(len(shown), -1, np.int64))
        return rows, lookups.copies[shown]

    @property
    def _source_name(self) -> str:
        return f'the lookup source "{self.shape.table.name}"'

    def _never_requested(self, delta: ZSet) -> Mapping[int, str]:
        """Return why rows have a key that can never be requested."""
        if self._unaskable is None or not len(delta):
            return {}
        reasons = self._unaskable(self.shape.keys_of(delta.rows))
        is_upsert = self.inputs[0].mode == "upsert"
        return {row: reason for row, reason in reasons.items() if not is_upsert or delta.weights[row] > 0}

    def _refuse_bad_input(self, lookups: _Requests, tick: Tick) -> None:
        if lookups.unaskable and self.on_bad_input == "error":
            row, reason = next(iter(lookups.unaskable.items()))
            raise LookupFailedError(
                f'relation "{self.inputs[0].name}", epoch {tick.epoch}: row {row} has a key that can never be looked up in '
                f"{self._source_name}: {reason} ({counted(len(lookups.unaskable), 'such row')}; nothing was fetched, nothing "
                "of the epoch was applied). Leave such rows out with where(...) before the lookup, use a service that takes "
                "keys in a body, "
                'many="body", or set on_bad_input="quarantine" to quarantine them.',
                code="LOOKUP_KEY_VALUE",
                relation=self.inputs[0].name,
                source=self.shape.table.name,
                row=row,
                epoch=tick.epoch,
                rejected_rows=len(lookups.unaskable),
            )
        if lookups.changes is not None and lookups.changes.prepared.rejected and self.on_bad_input == "error":
            raise describe_rejection(self.inputs[:1], [lookups.changes.prepared], tick)
