"""The bidirectional join: INNER, LEFT, RIGHT, FULL, LEFT SEMI and LEFT ANTI over two changing inputs.

The law: after every epoch the sum of all answers equals the batch join of the sums of the inputs. For a pair (l, r) the
answer is `l_after * r_after - l_before * r_before`; for what outer, semi and anti joins emit for one row, see
`zset_join.kernels.join.pairs`.

Remembers every live row of both sides: `layout.stride` bytes per row plus long strings, 13 to 26 bytes per join key and, where
rows have an identity, 13 to 26 more per row.

Edge cases. NULL under `=` never matches: dropped, or padded on a preserved side. Retractions come before insertions, over the
whole epoch. An update that keeps the join key keeps its place in all tables. Equal rows that arrive again emit nothing, and so
does an update of hidden columns alone, which is remembered.

Known limits. A residual predicate is evaluated on every candidate pair of a touched key, and its outer joins keep up to 24
bytes per touched row during an epoch. 2^32 - 2 rows a side; one epoch at a time.

Source: Timeplus' bidirectional join (hash table plus assistant table), the join of DBSP (Budiu et al., VLDB 2023), Flink's
outer-join degrees.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
from typing_extensions import override

from zset_join.core.epochs import Tick
from zset_join.core.errors import StateError
from zset_join.core.relation import Relation
from zset_join.expressions import Expression
from zset_join.kernels.join import pairs as p
from zset_join.operators.join_steps import (
    ONE_SIDED,
    columns_compared,
    key_of,
    residual_filter,
    weight_overflow,
)
from zset_join.shapes.join import JOIN_TYPES, JoinTerms, join_shape
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.join.append_buffer import AppendBuffer, BufferedEpoch, PreparedEpoch, largest_key
from zset_join.state.join.changed_groups import ChangedGroups, ChangedKey, JoinParts, OutputArrays, Step
from zset_join.state.join.hybrid_state import HybridState
from zset_join.state.join.joined_rows import JoinedRows, ListedRows
from zset_join.state.join.residual_pairs import JudgedEpoch, ResidualPairs
from zset_join.state.join.streamed_rows import OversizedRows, Piece, Place, StreamedRows
from zset_join.state.rows.directories import HashTables, check_same_epoch, closed
from zset_join.state.rows.guarded import Answers, guarded
from zset_join.state.rows.side import SideRules, SideState
from zset_join.state.rows.side_changes import describe_rejection, no_rejections, rejection_table
from zset_join.state.rows.side_snapshot import restore_side, side_reader, snapshot_epoch
from zset_join.zset import ZSet
from zset_join.zset.protocol import DurableOperator

__all__ = ["JOIN_TYPES", "HashJoin"]

_LEFT = 0
_CHUNKS_AT_ONCE, _MOST_ROWS_AT_ONCE = 4, 1 << 20
_LISTED_ROWS = 1 << 18  # in a chunk of what is listed: no one concatenates these
_TIGHT_CHUNK_ROWS = 1 << 14  # where memory is short: what allocators keep of chunks that are gone follows their size


@guarded("the join")
class HashJoin(DurableOperator):
    """Join two relations incrementally. Options of the same names: `docs/reference/options.md`.

    Args:
        left: the left input.
        right: the right input; its join key has as many columns as the left one.
        how: one of `JOIN_TYPES`.
        null_safe: per key column, whether it is compared by `<=>` instead of `=`; default all `=`.
        using: emit the key columns once and first, as `on=["k"]` of Spark; their names must be equal.
        residual: a predicate over both rows that is part of ON.
        hidden: per input, columns that only order its changes; they are not emitted.
        output_names: of all output columns; default: the input's, a clashing right one with `_right`.
        options: how it runs, and where its state lies.

    Raises:
        PlanError: relations, keys (`KeyTypeError`) or options (`OptionError`) that do not fit.
        StateError: the directory has other content.

    >>> schema = pa.schema({"k": pa.int64(), "v": pa.string()})
    >>> join = HashJoin(*(Relation(name=name, schema=schema, join_key=("k",)) for name in "lr"))
    >>> delta = [ZSet.of({"k": [1], "v": ["x"]}), ZSet.of({"k": [1], "v": ["y"]})]
    >>> [row for chunk in join.answer(Tick(0), delta) for row in chunk.to_pylist()]
    [((1, 'x', 1, 'y'), 1)]
    """

    def __init__(
        self,
        left: Relation,
        right: Relation,
        how: str = "inner",
        *,
        null_safe: Sequence[bool] | None = None,
        using: bool = False,
        residual: Expression | None = None,
        hidden: Sequence[Collection[str]] = ((), ()),
        output_names: Sequence[str] | None = None,
        options: OperatorOptions = OperatorOptions(),
    ) -> None:
        terms = JoinTerms(
            how=how, null_safe=null_safe, using=using, residual=residual, hidden=hidden, output_names=output_names
        )
        shape = join_shape(left, right, terms)
        self.inputs: tuple[Relation, ...] = (left, right)
        self.how = how
        self.on_bad_input = options.on_bad_input
        self._one_sided = ONE_SIDED[how]
        is_append_only = left.mode == right.mode == "append"
        options.buffer_limit.check_applies(is_append_only=is_append_only, left=left.name, right=right.name)
        limit, budget = options.buffer_limit.beside(options.budget)
        has_degrees = residual is not None  # else the degree can be read off the other side
        self._pairs = how in ("inner", "left", "right", "full")
        compared = columns_compared(self.inputs, residual, hidden)
        self.output = shape.output
        self._chunk_rows = options.chunk_rows
        rows_at_once = max(options.chunk_rows, min(_CHUNKS_AT_ONCE * options.chunk_rows, _MOST_ROWS_AT_ONCE))
        self._output, self._spare = OutputArrays(rows_at_once), OutputArrays(rows_at_once)
        self._touched_rows = 0  # of the output arrays; the rest of them takes no memory
        self._overflowed = False
        self._reader = object()
        self._answers = Answers()
        self._prepared: PreparedEpoch | None = None
        self._is_closed = False
        self._tables = tables = HashTables.of(options)
        self._sides = [
            SideState(
                relation,
                key_types=shape.key_types,
                null_safe=shape.null_safe,
                tables=tables,
                name="left" if side == _LEFT else "right",
                rules=SideRules(
                    keeps_unmatchable=self._one_sided[side] == p.SHOWN_UNMATCHED,
                    has_degree=has_degrees and self._one_sided[side] != 0,
                    tombstone_retention_us=options.tombstone_retention_us,
                    compared=compared[side],
                    is_hybrid=budget is not None,
                ),
            )
            for side, relation in enumerate(self.inputs)
        ]
        check_same_epoch((side.absorbed_epoch for side in self._sides), options.directory)
        self._hybrid: HybridState | None = None
        if budget is not None:
            by_own = [not has_degrees and kind != 0 for kind in reversed(self._one_sided)]
            shown = [has_degrees or self._pairs or kind != 0 for kind in self._one_sided]
            self._hybrid = HybridState(self._sides, by_own, shown, budget, options.directory)
        self._groups = ChangedGroups(self._sides, self._one_sided, part_changes=options.part_changes, residual=has_degrees)
        self._cold = [] if self._hybrid is None else [self._hybrid.cold_side(side) for side in (0, 1)]
        self._buffer = AppendBuffer(self._sides, limit, self._cold) if is_append_only else None
        self._sources = tuple(shape.sources)
        self._joined = JoinedRows(self._sides[0], self._sides[1], self.output.schema, self._sources)
        passes = residual_filter(residual, self._sides)
        self._listed_rows = ListedRows(
            self._sides, self._one_sided, pairs=self._pairs, passes=None if residual is None else passes
        )
        parts = JoinParts(self._sides, self._groups, self._cold, self._one_sided, self._pairs, passes, self._output)
        self._streamed_rows, self._oversized_rows = StreamedRows(parts), OversizedRows(parts)
        self._residual: ResidualPairs | None = None
        if has_degrees:
            self._residual = ResidualPairs(parts, self._streamed_rows, self._oversized_rows, chunk_rows=options.chunk_rows)

    # ---------------------------------------------------------------- the operator protocol

    @property
    @override
    def absorbed_epoch(self) -> int:
        if self._is_closed:
            raise closed("the join")
        return self._sides[0].absorbed_epoch

    @property
    def shared_sides(self) -> Sequence[SideState]:
        """Return the sides that may hold their rows with others; one whose rows count the pairs that pass refuses it."""
        return self._sides

    @property
    def counts_pairs(self) -> bool:
        """Return whether folding an epoch in takes both sides as they were before it."""
        return self._residual is not None and any(self._one_sided)

    @override
    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        return self._answers.guarded(self._answer(tick, deltas))

    def _answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        if all(len(delta) == 0 for delta in deltas):
            return
        prepared = self._prepare(tick, deltas)
        self._refuse(prepared)
        yield from self._emit(prepared)

    @override
    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        tick.check_follows(self.absorbed_epoch)
        prepared = self._prepare(tick, deltas)
        self._refuse(prepared)
        if self._residual is not None:
            self._judge(prepared, self._residual)
        self._answers.outdate()
        if self._hybrid is not None:
            if self._residual is not None and self._residual.revises(prepared.judged):
                with self._hybrid.rewriting():
                    self._residual.revise(prepared.judged)
            self._hybrid.begin_absorb()
        for side in self._sides:
            side.begin_absorb()
        for number, side in enumerate(self._sides):
            side.absorb(prepared.sides[number], tick.processing_time_us)
        written = [] if self._residual is None else self._residual.store(prepared.judged, prepared.sides)
        self._prepared = None
        if self._hybrid is not None:
            self._hybrid.note_written(prepared.sides, written)
            self._groups.shrink(
                sum(side.shrink_working(one_side) for side, one_side in zip(self._sides, prepared.sides, strict=True))
            )
            if self._groups.is_tight:
                self._touched_rows = max(output.release(self._touched_rows) for output in (self._output, self._spare))
            self._hybrid.spill_to_budget(self.working_bytes())
            self._hybrid.commit(tick.epoch)
        elif self._groups.holds_far_more(sum(map(len, deltas))):
            self._groups.shrink(
                sum(side.shrink_working(one_side) for side, one_side in zip(self._sides, prepared.sides, strict=True))
            )
        for side in self._sides:
            side.end_absorb(tick.epoch)

    @override
    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        if all(len(delta) == 0 for delta in deltas):
            return no_rejections()
        prepared = self._prepare(tick, deltas)
        return rejection_table(self.inputs, prepared.sides)

    @override
    def resident_bytes(self) -> int:
        cold = 0 if self._hybrid is None else self._hybrid.resident_bytes()
        return sum(side.resident_bytes() for side in self._sides) + self._working_bytes() + cold

    @override
    def working_bytes(self) -> int:
        # They follow the largest epoch, not the state.
        return sum(side.working_bytes() for side in self._sides) + self._working_bytes()

    @override
    def is_current(self) -> bool:
        return all(side.is_current() for side in self._sides) and (self._hybrid is None or self._hybrid.is_current())

    def _working_bytes(self) -> int:
        judged = 0 if self._residual is None else self._residual.resident_bytes()
        touched = sum(8 * len(output.words) * self._touched_rows for output in (self._output, self._spare))
        return self._groups.resident_bytes() + judged + touched + self._joined.resident_bytes()

    def buffered(self, tick: Tick, deltas: Sequence[ZSet]) -> BufferedEpoch | None:
        """Return the bytes of an append-only join after an epoch; None for other joins.

        A row counts its record and, for each string, binary or nested value beyond 12 bytes, its block. Cost: resolving the
        deltas, which `answer` and `absorb` then reuse.
        """
        return self._prepare(tick, deltas).buffered

    def largest_key(self, tick: Tick, deltas: Sequence[ZSet]) -> tuple[tuple[Any, ...], int, int] | None:
        """Return the join key with the most bytes in the state and in the deltas, its rows and its bytes. Cost: the state."""
        return largest_key(self._sides, self._prepare(tick, deltas).sides, self._cold)

    @override
    def snapshot(self) -> Mapping[str, pa.Table]:
        return {name: reader.read_all() for name, reader in self.snapshot_readers().items()}

    @override
    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        # Rows on disk a MB at a time.
        return self._readers(keeps_order=True)

    def rows_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        """Return readers of the tables of `snapshot` with their rows in any order, in half the time."""
        return self._readers(keeps_order=False)

    def _readers(self, *, keeps_order: bool) -> Mapping[str, pa.RecordBatchReader]:
        if self._is_closed:
            raise closed("the join")
        if not self._cold:
            return {side.name: side_reader(side, keeps_order=keeps_order) for side in self._sides}
        return {
            cold.side.name: side_reader(cold.side, cold.scan(), cold.scan_tombstones(), keeps_order=keeps_order)
            for cold in self._cold
        }

    @override
    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        self._prepared = None
        self._answers.outdate()
        if self._hybrid is not None:
            self._hybrid.restore(tables)
        else:
            for side in self._sides:
                restore_side(side, tables[side.name])
        for side in self._sides:
            side.end_absorb(snapshot_epoch(tables[side.name]))

    @property
    def lists_answer(self) -> bool:
        """Return whether `listed` lists the answer: all rows are in memory."""
        return self._hybrid is None

    def listed(self, columns: Collection[str] | None = None) -> Iterator[ZSet]:
        """Yield the sum of all answers so far in chunks of at most `chunk_rows` rows, from the state; only with `lists_answer`.

        Args:
            columns: those that are wanted of the output; None: all.

        Raises:
            StateError: `ANSWER_OUTDATED`: read after the state has changed.

        Cost: a look-up per row of the larger side, plus the rows; memory of a chunk.
        """
        if self._is_closed:
            raise closed("the join")
        return self._answers.guarded(self._list(columns))

    def _list(self, columns: Collection[str] | None) -> Iterator[ZSet]:
        joined, schema = self._joined, self.output.schema
        if columns is not None:
            kept = [at for at, name in enumerate(schema.names) if name in columns]
            schema = pa.schema([schema.field(at) for at in kept])
            joined = JoinedRows(self._sides[0], self._sides[1], schema, [self._sources[at] for at in kept])
        for left, right, weights in self._listed_rows.pieces(min(self._chunk_rows, _LISTED_ROWS)):
            refs = int(left.ctypes.data), int(right.ctypes.data)
            for begin, rows in joined.batches(*refs, 0, len(weights), keeps_none=self._hybrid is not None):
                yield ZSet(rows, weights[begin : begin + rows.num_rows].copy())

    @override
    def statistics(self) -> dict[str, int]:
        ignored = zip(*(side.ignored for side in self._sides), strict=True)
        counts = dict(zip(("stale_rows", "unknown_deletes", "rejected_rows"), map(sum, ignored), strict=True))
        for side in self._sides:
            counts.update(side.statistics())
        if self._hybrid is not None:
            counts.update(self._hybrid.statistics())
        return counts

    def largest_fan_out(self) -> tuple[int, tuple[Any, ...]] | None:
        """Return the most pairs that one join key has in the last answer, and the key.

        None without pairs, and for semi and anti joins. Pairs are counted before a residual predicate, and those with rows
        from disk separately. Call it before the next epoch.
        """
        rows, ref, side = self._groups.largest_fan_out()
        return (rows, key_of(self._sides[side], ref)) if rows and self._prepared is not None else None

    @override
    def close(self) -> None:
        self._is_closed = True
        self._prepared = None
        self._answers.outdate()
        for side in self._sides:
            side.close()
        if self._hybrid is not None:
            self._hybrid.close()

    # ---------------------------------------------------------------- one epoch

    def _prepare(self, tick: Tick, deltas: Sequence[ZSet]) -> PreparedEpoch:
        """Resolve the deltas; for the same ones again, return the first result."""
        if self._is_closed:
            raise closed("the join")
        left, right = deltas
        kept = self._prepared
        if kept is not None and kept.deltas[0] is left and kept.deltas[1] is right and (kept.tick is tick or kept.tick == tick):
            return kept
        self._prepared = None
        sides = [side.encode(delta) if len(delta) else None for side, delta in zip(self._sides, (left, right), strict=True)]
        if self._hybrid is not None:
            self._hybrid.fetch(sides)
        for side, encoded in zip(self._sides, sides, strict=True):
            if encoded is not None:
                side.resolve(encoded)
        rejected = sum(side.rejected for side in sides if side is not None)
        prepared = PreparedEpoch(tick, (left, right), (sides[0], sides[1]), rejected)
        if self._hybrid is not None:
            prepared.oversized_codes = tuple(self._hybrid.oversized.codes)
            prepared.streams = tuple(self._hybrid.oversized.streams)
            prepared.judged = JudgedEpoch(prepared.streams, prepared.oversized_codes)
            self._groups.is_tight = self._hybrid.is_tight()
        if self._buffer is not None:
            prepared.buffered = self._buffer.plan(sides)
        if not (prepared.rejected and self.on_bad_input == "error"):
            self._groups.list_changes(sides)
        self._prepared = prepared
        return prepared

    def _refuse(self, prepared: PreparedEpoch) -> None:
        """Raise where the epoch breaks a contract, or would reach the limit."""
        if prepared.rejected and self.on_bad_input == "error":
            raise describe_rejection(self.inputs, prepared.sides, prepared.tick)
        if self._buffer is not None and prepared.buffered is not None:
            self._buffer.refuse_if_full(prepared.buffered, prepared.sides, prepared.tick)

    def _emit(self, prepared: PreparedEpoch) -> Iterator[ZSet]:
        """Yield all retractions, then all insertions.

        Part by part, both are made in one pass; the insertions are held back, as long as they fit, until all retractions are
        out. A part whose rows do not fit the output arrays is passed over once for each sign.
        """
        groups = self._groups
        most_held = self._chunk_rows if groups.is_tight else self._output.rows
        held: list[ZSet] = []
        held_rows = 0
        postponed: set[Place] = set()
        oversized_keys: list[ChangedKey] = []
        self._reader = reader = object()
        for place, steps in self._pieces(prepared, reader, None):
            if len(place) == 1:
                oversized_keys += groups.changed_keys(prepared.oversized_codes)
            filled = -1
            if held_rows < most_held and not self._overflowed:
                filled = self._fill(steps(0))
                self._overflowed = filled < 0
            if filled < 0:
                postponed.add(place)
                yield from self._fill_often(steps(-1), reader)
                continue
            retractions = self._output.partition_by_sign(filled, self._spare)
            if groups.parts == 1 and not oversized_keys and not any(prepared.streams):
                yield from self._chunks(reader, 0, filled)
                return
            yield from self._chunks(reader, 0, retractions)
            held.extend(self._chunks(reader, retractions, filled))
            held_rows += filled - retractions
        for key in oversized_keys:
            yield from self._streamed(prepared, reader, key, -1)
        yield from held
        rows = 0
        for _, steps in self._pieces(prepared, reader, postponed) if postponed else ():
            for chunk in self._fill_often(steps(1), reader):
                rows += len(chunk)
                yield chunk
        for key in oversized_keys:
            yield from self._streamed(prepared, reader, key, 1)
        self._overflowed = bool(postponed) and rows > self._output.rows // 2

    def _pieces(self, prepared: PreparedEpoch, reader: object, only: set[Place] | None) -> Iterator[Piece]:
        """Yield all pieces of an epoch, or some: its parts, as far as rows are in memory, and groups of rows that pass."""
        if self._residual is not None:
            pieces = self._residual.pieces(prepared.judged, only)
        else:
            pieces = chain(
                self._pieces_in_memory(only), self._streamed_rows.pieces(prepared.streams, prepared.oversized_codes, only)
            )
        for piece in pieces:
            yield piece
            self._check_current(reader)

    def _pieces_in_memory(self, only: set[Place] | None) -> Iterator[Piece]:
        for part in range(self._groups.parts):
            if only is None or (part,) in only:
                self._groups.enter(part)
                yield (part,), self._steps

    def _steps(self, sign: int) -> list[Step]:
        steps = [self._groups.pair_step(sign, self._output)] if self._pairs else []
        return steps + [
            self._groups.one_sided_step(side, kind, sign, self._output) for side, kind in enumerate(self._one_sided) if kind
        ]

    def _judge(self, prepared: PreparedEpoch, residual: ResidualPairs) -> None:
        """Evaluate the remaining pairs; an overflow becomes the error that names join and epoch."""
        try:
            residual.judge(prepared.judged)
        except OverflowError:
            raise weight_overflow(self.inputs, prepared.tick) from None

    def _run(self, step: Step, filled: int) -> tuple[int, bool]:
        """Run a step; its overflow becomes the error that names join and epoch."""
        try:
            return step(filled)
        except OverflowError:
            if self._prepared is None:
                raise
            raise weight_overflow(self.inputs, self._prepared.tick) from None

    def _fill(self, steps: Sequence[Step]) -> int:
        """Run steps that all fit the output arrays; return how far they are filled, -1 when they do not fit."""
        filled = 0
        for step in steps:
            filled, done = self._run(step, filled)
            if not done:
                return -1
        return filled

    def _streamed(self, prepared: PreparedEpoch, reader: object, key: ChangedKey, sign: int) -> Iterator[ZSet]:
        """Yield the pairs of the rows on disk of one key; a chunk of them is in memory at a time."""
        pieces = self._oversized_rows.answer(key, sign)
        rows = 0
        while True:
            self._check_current(reader)
            try:
                piece = next(pieces, None)
            except OverflowError:
                raise weight_overflow(self.inputs, prepared.tick) from None
            if piece is None:
                self._groups.note_fan_out(rows, key)
                return
            for chunk in self._fill_often([self._output.copying(piece)], reader):
                rows += len(chunk)
                yield chunk

    def _fill_often(self, steps: Sequence[Step], reader: object) -> Iterator[ZSet]:
        """Run the steps of one sign, yielding chunks whenever the output arrays are full and at the end."""
        filled = 0
        for step in steps:
            done = False
            while not done:
                self._check_current(reader)
                filled, done = self._run(step, filled)
                if filled == self._output.rows:
                    yield from self._chunks(reader, 0, filled)
                    filled = 0
        yield from self._chunks(reader, 0, filled)

    def _chunks(self, reader: object, begin: int, end: int) -> Iterator[ZSet]:
        self._touched_rows = max(self._touched_rows, end)
        most = min(self._chunk_rows, _TIGHT_CHUNK_ROWS) if self._groups.is_tight else self._chunk_rows
        while begin < end:
            self._check_current(reader)
            count = min(most, end - begin)
            yield from self._gather(begin, count)
            begin += count

    def _check_current(self, reader: object) -> None:
        if self._reader is not reader or self._prepared is None:
            raise StateError(
                "an answer was read on after the next one had begun; finish reading an answer before requesting another.",
                code="ANSWER_OUTDATED",
            )

    def _gather(self, begin: int, count: int) -> Iterator[ZSet]:
        left, right = self._output.addresses[:2]
        for at, rows in self._joined.batches(left, right, begin, count, keeps_none=self._hybrid is not None):
            yield ZSet(rows, self._output.weights[at : at + rows.num_rows].copy())
