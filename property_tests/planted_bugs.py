"""What planted bugs of joins and aggregates put in the place of the product: `property_tests.mutants` has the rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from property_tests.aggregate_shapes import AggregateSpec
from property_tests.append_buffer_laws import Mutate
from property_tests.registry import Build
from property_tests.shapes import JoinSpec
from zset_join.core.epochs import Tick
from zset_join.core.errors import BadInputError
from zset_join.kernels.rows.side import D_COMPARED_COLUMNS, H_COLD_BYTES
from zset_join.operators.first_load import LoadedJoin
from zset_join.operators.join import HashJoin
from zset_join.runners.common import exchange
from zset_join.runners.common.exchange import Exchange, RowBuckets
from zset_join.state.cold.cold_side import ColdSide
from zset_join.state.join.append_buffer import AppendBuffer, BufferedEpoch
from zset_join.state.join.hybrid_state import HybridState
from zset_join.state.join.residual_pairs import ResidualPairs
from zset_join.state.join.streamed_rows import StreamedGroup
from zset_join.state.rows.side import PreparedSide
from zset_join.zset import ZSet
from zset_join.zset.protocol import Operator

# ---------------------------------------------------------------- the outside of an operator


class Wrapped:
    """An operator with one planted bug; what a subclass does not override passes through."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class AbsorbsWhileAnswering(Wrapped):
    """Fold the delta when it is answered."""

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        answer = list(self.inner.answer(tick, deltas))
        if tick.epoch > self.absorbed_epoch:
            self.inner.absorb(tick, deltas)
        return iter(answer)

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        """Do nothing: it is done."""


class KeepsFirstChunkOnly(Wrapped):
    """Lose every chunk but the first."""

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        yield from list(self.inner.answer(tick, deltas))[:1]


class TurnsLinesAround(Wrapped):
    """Answer the last line first."""

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        for chunk in reversed(list(self.inner.answer(tick, deltas))):
            backwards = np.arange(len(chunk))[::-1]
            yield ZSet(chunk.rows.take(pa.array(backwards)), np.ascontiguousarray(chunk.weights[::-1]))


class IsOneEpochLate(Wrapped):
    """Answer each epoch with the answer of the one before."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._waiting: dict[int, list[ZSet]] = {}

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        self._waiting[tick.epoch] = list(self.inner.answer(tick, deltas))
        yield from self._waiting.get(tick.epoch - 1, [])


class AddsZeroLines(Wrapped):
    """Send every line again with weight 0."""

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        for chunk in self.inner.answer(tick, deltas):
            yield chunk
            yield ZSet(chunk.rows, np.zeros_like(chunk.weights))


class TalksWhenQuiet(Wrapped):
    """Yield an empty chunk for an empty answer."""

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        answer = list(self.inner.answer(tick, deltas))
        yield from answer or [ZSet.empty(self.output.schema)]


class RemembersByEpoch(Wrapped):
    """Keep the answer of an epoch and return it again, for any delta."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._given: dict[int, list[ZSet]] = {}

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        if tick.epoch not in self._given:
            self._given[tick.epoch] = list(self.inner.answer(tick, deltas))
        yield from self._given[tick.epoch]


class AnswersWhenRead(Wrapped):
    """Request the answer only when it is read, of whatever state there is by then."""

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        yield from self.inner.answer(tick, deltas)


class ReusesItsBuffer(Wrapped):
    """Give weights out of one buffer that the next chunk overwrites."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._buffer = np.zeros(4096, np.int64)

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        for chunk in self.inner.answer(tick, deltas):
            self._buffer[: len(chunk)] = chunk.weights
            yield ZSet(chunk.rows, self._buffer[: len(chunk)])


class IgnoresTheRightWhenBothChange(Wrapped):
    """Drop the right delta of an epoch in which both sides change."""

    @staticmethod
    def _first_only(deltas: Sequence[ZSet]) -> Sequence[ZSet]:
        left, right = deltas
        return (left, ZSet.empty(right.schema)) if len(left) and len(right) else deltas

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        return iter(self.inner.answer(tick, self._first_only(deltas)))

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        self.inner.absorb(tick, self._first_only(deltas))


class LosesARowOfEverySnapshot(Wrapped):
    """Leave the last row of each table out."""

    def snapshot(self) -> Mapping[str, pa.Table]:
        return {name: table.slice(0, max(table.num_rows - 1, 0)) for name, table in self.inner.snapshot().items()}


class RestoresNothing(Wrapped):
    """Ignore the snapshot."""

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Do nothing."""


class HidesRejections(Wrapped):
    """Report no bad line."""

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        return self.inner.rejections(tick, deltas).slice(0, 0)


class RaisesWithoutFacts(Wrapped):
    """Raise without stream, key or epoch."""

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        try:
            yield from self.inner.answer(tick, deltas)
        except BadInputError as error:
            raise BadInputError("bad input") from error


def build_wrapped(
    make: Build,
    wrapper: Callable[[Any], Any] = Wrapped,
    distort: Callable[[Any], Any] = lambda spec: spec,
    options: Mapping[str, Any] | None = None,
) -> Build:
    """Build an operator, perhaps from a distorted spec or with other options, and wrap it."""

    def build(spec: Any, *, on_bad_input: str = "error", directory: str | None = None) -> Operator:
        given = {"on_bad_input": on_bad_input, "directory": directory, **(options or {})}
        wrapped: Operator = wrapper(make(distort(spec), **given))
        return wrapped

    return build


def null_safe_nowhere(spec: JoinSpec) -> JoinSpec:
    return dataclasses.replace(spec, null_safe=(False,) * len(spec.null_safe))


def without_residual(spec: JoinSpec) -> JoinSpec:
    return dataclasses.replace(spec, residual=None)


def shows_hidden_changes(join: Any) -> Any:
    """Let every column count where an upsert is compared with the live row."""
    for side in join._sides:
        columns = side.layout.columns(side.relation.schema.names)
        side._compared_columns = columns
        side._arrays.words[D_COMPARED_COLUMNS] = columns.address
    return join


def unsequenced(spec: JoinSpec) -> JoinSpec:
    return dataclasses.replace(
        spec, left=dataclasses.replace(spec.left, sequence_by=()), right=dataclasses.replace(spec.right, sequence_by=())
    )


def unfiltered(spec: AggregateSpec) -> AggregateSpec:
    return dataclasses.replace(spec, choices=tuple(dataclasses.replace(choice, filtered="") for choice in spec.choices))


def population(spec: AggregateSpec) -> AggregateSpec:
    return dataclasses.replace(
        spec,
        choices=tuple(
            dataclasses.replace(one, function="var_pop") if one.function == "var_samp" else one for one in spec.choices
        ),
    )


# ---------------------------------------------------------------- a part of it


@dataclass(frozen=True)
class BuildSpoiled:
    """Build an operator, and spoil the parts of it that there are."""

    make: Build
    parts: Callable[[Any], Iterable[Any]]
    spoil: Callable[[Any], None]

    def __call__(self, spec: Any, *, on_bad_input: str = "error", directory: str | None = None) -> Operator:
        operator = self.make(spec, on_bad_input=on_bad_input, directory=directory)
        for part in self.parts(operator):
            self.spoil(part)
        return operator


def hybrid_state(operator: Any) -> list[HybridState]:
    return [] if operator._hybrid is None else [operator._hybrid]


def cold_sides(operator: Any) -> list[ColdSide]:
    return [hybrid.cold_side(side) for hybrid in hybrid_state(operator) for side in range(len(operator.inputs))]


def pairs_with_a_residual(operator: Any) -> list[ResidualPairs]:
    return [] if operator._hybrid is None or operator._residual is None else [operator._residual]


def hybrid_groups(operator: Any) -> list[Any]:
    return [] if operator._input.hybrid is None else [operator._input.hybrid]


def messages_of_few(operator: Any) -> list[Any]:
    return [] if operator._joined._few is None else [operator._joined._few._message]


def fetches_no_partners(side: ColdSide) -> None:
    find_keys = side.find_keys
    side.find_keys = lambda codes: find_keys(codes[:0])  # type: ignore[method-assign]


def fetches_no_tombstones(side: ColdSide) -> None:
    find = side.find_tombstones
    side.find_tombstones = lambda prepared, missing: find(prepared, missing[:0])  # type: ignore[method-assign]


def leaves_tombstones_on_disk(side: ColdSide) -> None:
    if side._tombstones is not None:
        side._tombstones.store.remove = nothing  # type: ignore[method-assign]


def fetches_no_named_rows(side: ColdSide) -> None:
    find_named = side.find_named
    side.find_named = lambda prepared, missing: find_named(prepared, missing[:0])  # type: ignore[method-assign]


def nothing(*_: object) -> None:
    """Do nothing."""


def restores_outdated_rows(side: ColdSide) -> None:
    side.hot.note_written = nothing  # type: ignore[method-assign]


def forgets_primary_keys(side: ColdSide) -> None:
    side._put_keys = nothing  # type: ignore[method-assign]


def forgets_old_keys(hybrid: HybridState) -> None:
    fetch_named = hybrid._fetch_named

    def fetch(prepared: Sequence[PreparedSide | None]) -> list[Any]:
        fetch_named(prepared)
        return [np.empty(0, np.int64) if own is None else own.join_codes[: own.count].copy() for own in prepared]

    hybrid._fetch_named = fetch  # type: ignore[method-assign]


def fetches_nothing_twice(hybrid: HybridState) -> None:
    hybrid._fetched_by_own = (False, False)


def streams_nothing(hybrid: HybridState) -> None:
    fetch = hybrid.fetch

    def spoiled(prepared: Sequence[PreparedSide | None]) -> None:
        fetch(prepared)
        hybrid.oversized.begin()

    hybrid.fetch = spoiled  # type: ignore[method-assign]


def passes_nothing(hybrid: HybridState) -> None:
    fetch = hybrid.fetch

    def spoiled(prepared: Sequence[PreparedSide | None]) -> None:
        fetch(prepared)
        hybrid.oversized.streams = [False, False]

    hybrid.fetch = spoiled  # type: ignore[method-assign]


def keeps_no_rows(hybrid: HybridState) -> None:
    hybrid._witnesses.find = lambda *_: iter(())  # type: ignore[method-assign]


def keeps_changed_rows(hybrid: HybridState) -> None:
    mark = hybrid._witnesses._mark
    hybrid._witnesses._mark = lambda side, keys, replaced: mark(side, keys, replaced[:0])  # type: ignore[method-assign]


def keeps_no_witness_of_oversized_keys(hybrid: HybridState) -> None:
    hybrid.oversized._fetched_by_own = (False, False)


def forgets_unchanged_rows(hybrid: HybridState) -> None:
    fetch = hybrid.fetch

    def spoiled(prepared: Sequence[PreparedSide | None]) -> None:
        hybrid.oversized.forget()
        fetch(prepared)

    hybrid.fetch = spoiled  # type: ignore[method-assign]


def keeps_old_degrees(side: ColdSide) -> None:
    side.exchange = side.forget_revised  # type: ignore[method-assign]


def forgets_streamed_degrees(residual: ResidualPairs) -> None:
    with_streamed = residual._with_streamed

    def spoiled(part: Any, found: StreamedGroup, sign: int) -> Iterator[Any]:
        yield from with_streamed(part, found, sign)
        part.gains.clear()

    residual._with_streamed = spoiled  # type: ignore[method-assign]


def counts_nothing_that_passes(residual: ResidualPairs) -> None:
    with_streamed = residual._with_streamed

    def spoiled(part: Any, found: StreamedGroup, sign: int) -> Iterator[Any]:
        degrees, part.degrees = part.degrees, {}
        yield from with_streamed(part, found, sign)
        part.degrees = degrees

    residual._with_streamed = spoiled  # type: ignore[method-assign]


def never_spills(hybrid: HybridState) -> None:
    hybrid._spill_down = lambda: None  # type: ignore[method-assign]


def fetches_no_groups(hybrid: Any) -> None:
    hybrid.fetch = nothing  # type: ignore[method-assign]


def leaves_groups_on_disk(hybrid: Any) -> None:
    hybrid._cold.take = nothing  # type: ignore[method-assign]


def leaves_groups_in_memory(hybrid: Any) -> None:
    hybrid._tables.remove = nothing  # type: ignore[method-assign]


def forgets_values(hybrid: Any) -> None:
    insert = hybrid._tables.insert
    hybrid._tables.insert = lambda number, rows: insert(number, rows.slice(0, 0) if number else rows)  # type: ignore[method-assign]


def no_nulls(message: Any) -> None:
    write = message.write
    message.write = lambda rows, nulls, body_bytes: write(rows, [0] * len(nulls), body_bytes)


def row_short(message: Any) -> None:
    write = message.write
    message.write = lambda rows, nulls, body_bytes: write(rows - (rows > 2), nulls, body_bytes)


class LosesPart(LoadedJoin):
    def _parts(self, deltas: Sequence[ZSet]) -> Iterator[list[ZSet]]:
        yield from list(super()._parts(deltas))[:-1]


class KeepsTheLoad(LoadedJoin):
    """Whatever was loaded last is taken over, though another epoch is absorbed."""

    def _loaded_with(self, tick: Tick, deltas: Sequence[ZSet]) -> HashJoin | None:
        return super()._loaded_with(tick, deltas) if self._loaded is None else self._loaded


# ---------------------------------------------------------------- an append-only join at its limit


def with_buffer(kind: type[AppendBuffer]) -> Mutate:
    def mutate(join: HashJoin) -> HashJoin:
        spoiled: Any = join
        spoiled._buffer = kind(join._sides, join._buffer.limit, join._cold)
        return join

    return mutate


class RefusesPastTheLimit(AppendBuffer):
    def refuse_if_full(self, epoch: BufferedEpoch, found: Any, tick: Tick) -> None:
        if sum(epoch.after) > self.limit.max_bytes:
            super().refuse_if_full(epoch, found, tick)


class CountsWhatIsAllocated(AppendBuffer):
    def plan(self, found: Any) -> BufferedEpoch:
        made = super().plan(found)
        return BufferedEpoch(before=(self._sides[0].resident_bytes(), self._sides[1].resident_bytes()), after=made.after)


class CountsWhatItWasGiven(AppendBuffer):
    def plan(self, found: Any) -> BufferedEpoch:
        made = super().plan(found)
        sizes = [
            0 if side is None else side.count * state.layout.stride for state, side in zip(self._sides, found, strict=True)
        ]
        after = (made.before[0] + sizes[0], made.before[1] + sizes[1])
        return BufferedEpoch(before=made.before, after=after)


class CountsWhatIsInMemory(AppendBuffer):
    def plan(self, found: Any) -> BufferedEpoch:
        kept = [int(side.header[H_COLD_BYTES]) for side in self._sides]
        for side in self._sides:
            side.header[H_COLD_BYTES] = 0
        try:
            return super().plan(found)
        finally:
            for side, count in zip(self._sides, kept, strict=True):
                side.header[H_COLD_BYTES] = count


def loses_count(join: HashJoin) -> HashJoin:
    """A state that is opened again has forgotten what its rows on disk count for."""
    for side in join._sides:
        side.header[H_COLD_BYTES] = 0
    return join


def absorbs_anyway(join: HashJoin) -> HashJoin:
    """Only the answer is refused."""
    spoiled: Any = join
    honest = join.absorb

    def absorb(tick: Tick, deltas: Sequence[ZSet]) -> None:
        refuse, spoiled._refuse = spoiled._refuse, lambda _: None
        try:
            honest(tick, deltas)
        finally:
            spoiled._refuse = refuse

    spoiled.absorb = absorb
    return join


def keeps_all_in_memory(join: HashJoin) -> HashJoin:
    never_spills(join._hybrid)
    return join


# ---------------------------------------------------------------- exchanges


def forgets_a_key(self: Exchange, tick: Tick, delta: ZSet, absorb: Any = Exchange.absorb) -> None:
    """Fold in all changes but the last one."""
    absorb(self, tick, ZSet(delta.rows.slice(0, len(delta) - 1), delta.weights[:-1]) if len(delta) > 1 else delta)


def nulls_go_by_place(self: RowBuckets, rows: pa.RecordBatch, of: Any = RowBuckets.of) -> Any:
    """Send rows with NULL in their key to buckets by turns."""
    buckets = of(self, rows)
    for name in self._equal:
        lost = rows.column(name).is_null().to_numpy(zero_copy_only=False)
        buckets[lost] = np.arange(rows.num_rows)[lost] % 3
    return buckets


def deletes_with_an_old_sequence(self: Exchange, tick: Tick, delta: ZSet, routed: Any = Exchange.routed) -> ZSet:
    """Give deletes a sequence that is older than that of any row."""
    changes = routed(self, tick, delta)
    names = () if self.route is None else self.route.output.sequence_by
    rows = changes.rows
    for name in names:
        old = pa.array(
            [-9 if weight < 0 else value for value, weight in zip(rows[name].to_pylist(), changes.weights, strict=True)]
        )
        rows = rows.set_column(
            rows.schema.get_field_index(name), rows.schema.field(name), old.cast(rows.schema.field(name).type)
        )
    return ZSet(rows, changes.weights)


def taken_backwards(changes: ZSet, positions: Any, taken: Any = exchange._taken) -> ZSet:
    """Turn the rows of a part around."""
    return taken(changes, np.ascontiguousarray(positions[::-1])) if len(positions) < len(changes) else changes
