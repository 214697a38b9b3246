"""The bidirectional join: INNER, LEFT, RIGHT, FULL, LEFT SEMI and LEFT ANTI over two changing inputs.

The law: after every epoch the sum of all answers equals the batch join of the sums of the inputs. For a pair (l, r) the
answer is `l_after * r_after - l_before * r_before`; for what outer, semi and anti joins say about one row, see
`zset_join.kernels.pairs`.

Remembers every live row of both sides: `layout.stride` bytes per row plus long strings, 13 to 26 bytes per join key and, where
rows have an identity, 13 to 26 more per row.

Edge cases. NULL under `=` never matches: dropped, or padded on a preserved side. Retractions come before insertions, over the
whole epoch. An update that keeps the join key keeps its place in all tables. Equal rows that arrive again say nothing.

Known limits. A residual predicate is evaluated on every candidate pair of a touched key, and its outer joins keep 16 bytes per
touched row during an epoch. 2^32 - 2 rows a side; one epoch at a time.

Source: Timeplus' bidirectional join (hash table plus assistant table), the join of DBSP (Budiu et al., VLDB 2023), Flink's
outer-join degrees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.errors import BadInputError, OptionError, PlanError, StateError, WeightOverflowError
from zset_join.expressions import Expression, check, evaluate, references
from zset_join.kernels import pairs as p
from zset_join.kernels.groups import find_group_rows, group_changes, group_degrees, make_changed_set
from zset_join.key_types import check_key_type, common_key_type
from zset_join.relation import Relation
from zset_join.state.joined_rows import JoinedRows, joined_schema
from zset_join.state.rejected_rows import describe_rejection, no_rejections, rejection_table
from zset_join.state.residual_degrees import ResidualDegrees, live_flags
from zset_join.state.scratch import Scratch
from zset_join.state.side import PreparedSide, SideState
from zset_join.tick import Tick
from zset_join.zset import ZSet

__all__ = ["JOIN_TYPES", "HashJoin"]

JOIN_TYPES = ("inner", "left", "right", "full", "left_semi", "left_anti")

_LEFT, _RIGHT = 0, 1
_LONE = {
    "inner": (0, 0),
    "left": (p.LONE_MISSING, 0),
    "right": (0, p.LONE_MISSING),
    "full": (p.LONE_MISSING, p.LONE_MISSING),
    "left_semi": (p.LONE_MATCHED, 0),
    "left_anti": (p.LONE_MISSING, 0),
}
_EPOCH_METADATA = b"zset_join.absorbed_epoch"


@dataclass(slots=True)
class _Prepared:
    """One epoch, resolved against the state before it."""

    tick: Tick
    deltas: tuple[ZSet, ZSet]
    sides: tuple[PreparedSide | None, PreparedSide | None]
    counts: tuple[int, int] = (0, 0)
    groups: int = 0
    changed: list[Any] = field(default_factory=list)
    masks: list[npt.NDArray[np.uint8]] = field(default_factory=list)
    degrees: dict[int, ResidualDegrees] | None = None

    @property
    def rejected(self) -> int:
        return sum(side.rejected for side in self.sides if side is not None)


class HashJoin:
    """Join two relations incrementally.

    Args:
        left: the left input.
        right: the right input; its join key has as many columns as the left one.
        how: one of `JOIN_TYPES`.
        null_safe: per key column, whether it is compared with `<=>` instead of `=`; default all `=`.
        using: put the key columns once and first, as Spark's `on=["k"]` does; both sides must name them equally.
        residual: a predicate over both rows that is part of ON.
        output_names: names of the output columns; default: the input's, a clashing right one with `_right`.
        on_bad_input: `error` raises and applies nothing; `quarantine` leaves bad rows out and lists them in `rejections`.
        tombstone_retention_seconds: how long a deleted key remembers its sequence (in watermark time).
        chunk_rows: rows per chunk of an answer.
        hash_bits: below 32, force collisions; for tests.
        directory: map the state from files here; None keeps it in memory.

    Raises:
        PlanError: relations that cannot be joined.
        KeyTypeError: key types that cannot be compared.
        StateError: the directory holds something else.

    >>> from zset_join.relation import Relation
    >>> schema = pa.schema({"k": pa.int64(), "v": pa.string()})
    >>> join = HashJoin(Relation(name="l", schema=schema, join_key=("k",)), Relation(name="r", schema=schema, join_key=("k",)))
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
        output_names: Sequence[str] | None = None,
        on_bad_input: str = "error",
        tombstone_retention_seconds: int = 172_800,
        chunk_rows: int = 65_536,
        hash_bits: int = 32,
        directory: str | None = None,
    ) -> None:
        null_safe = _checked_arguments(left, right, how, null_safe, using, on_bad_input, chunk_rows, hash_bits)
        key_types = [
            common_key_type(
                left.schema.field(a).type, right.schema.field(b).type, left_column=a, right_column=b
            )
            for a, b in zip(left.join_key, right.join_key, strict=True)
        ]
        if residual is not None:
            check(residual, left.schema, right.schema)
        self.inputs = (left, right)
        self.how = how
        self.on_bad_input = on_bad_input
        self._residual = residual
        self._lone = _LONE[how]
        self._pairs = how in ("inner", "left", "right", "full")
        schema, sources = joined_schema(left, right, how, using=using, output_names=output_names)
        self.output = Relation(
            name=f"{left.name}_{how}_{right.name}",
            schema=schema,
            primary_key=_output_key(left, right, how, schema, sources),
            mode="changelog",
        )
        self._chunk_rows = chunk_rows
        self._scratch = Scratch()
        self._prepared: _Prepared | None = None
        self._totals = {"stale_rows": 0, "unknown_deletes": 0, "rejected_rows": 0}
        self._sides = [
            SideState(
                relation,
                key_types=key_types,
                null_safe=null_safe,
                keeps_unmatchable=self._lone[side] == p.LONE_MISSING,
                has_degree=residual is not None and self._lone[side] != 0,
                tombstone_retention_us=tombstone_retention_seconds * 1_000_000,
                hash_bits=hash_bits,
                directory=directory,
                name="left" if side == _LEFT else "right",
            )
            for side, relation in enumerate(self.inputs)
        ]
        if self._sides[0].absorbed_epoch != self._sides[1].absorbed_epoch:
            raise StateError(
                f"the two sides of the local state in {directory} stand at epochs {self._sides[0].absorbed_epoch} and "
                f"{self._sides[1].absorbed_epoch}. It is a cache: delete the directory and it is rebuilt from the checkpoint.",
                code="STATE_HALF_WRITTEN",
                directory=directory,
            )
        self._joined = JoinedRows(self._sides[0], self._sides[1], schema, sources)

    # ---------------------------------------------------------------- the operator protocol

    @property
    def absorbed_epoch(self) -> int:
        """Return the last epoch folded into the state, -1 when there was none."""
        return self._sides[0].absorbed_epoch

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Yield the change of the join in chunks of at most `chunk_rows` rows; all retractions come first.

        Raises:
            BadInputError: rows that break their relation's contract, with policy `error`.
            WeightOverflowError: an output weight past int64.
        """
        if all(len(delta) == 0 for delta in deltas):
            return
        prepared = self._prepare(tick, deltas)
        self._refuse_bad_input(prepared)
        if not any(prepared.counts):
            return
        yield from self._emit(prepared)

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        """Fold the deltas of one epoch into the state.

        Raises:
            BadInputError: as `answer`; the state is unchanged.
            StateError: an epoch that was absorbed before.
        """
        if tick.epoch <= self.absorbed_epoch:
            raise StateError(
                f"epoch {tick.epoch} was absorbed before (the state stands at {self.absorbed_epoch}); every epoch is absorbed "
                "once, in order.",
                code="EPOCH_ABSORBED",
                epoch=tick.epoch,
                absorbed_epoch=self.absorbed_epoch,
            )
        prepared = self._prepare(tick, deltas)
        self._refuse_bad_input(prepared)
        degrees = self._degrees(prepared) if self._residual is not None else {}
        for side in self._sides:
            side.begin_absorb()
        for number, side in enumerate(self._sides):
            found = prepared.sides[number]
            if found is not None:
                side.absorb(found, tick.watermark)
                self._totals["stale_rows"] += found.stale
                self._totals["unknown_deletes"] += found.unknown_deletes
                self._totals["rejected_rows"] += found.rejected
        for number, found_degrees in degrees.items():
            found_degrees.store(prepared.sides[number])
        self._prepared = None
        for side in self._sides:
            side.end_absorb(tick.epoch)

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        """Return the rows that break their relation's contract: `input`, `row`, `weight`, `code`, `reason`."""
        if all(len(delta) == 0 for delta in deltas):
            return no_rejections()
        prepared = self._prepare(tick, deltas)
        return rejection_table(self.inputs, prepared.sides)

    def resident_bytes(self) -> int:
        """Return the bytes of both sides and of the working arrays."""
        return sum(side.resident_bytes() for side in self._sides) + self._scratch.resident_bytes()

    def snapshot(self) -> Mapping[str, pa.Table]:
        """Return the live rows of both sides as tables `left` and `right`."""
        metadata = {_EPOCH_METADATA: str(self.absorbed_epoch).encode()}
        return {side.name: side.snapshot().replace_schema_metadata(metadata) for side in self._sides}

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Replace the state by a snapshot. Cost: its rows.

        Raises:
            StateError: rows that contradict each other.
        """
        self._prepared = None
        for side in self._sides:
            side.restore(tables[side.name])
        for side in self._sides:
            metadata = tables[side.name].schema.metadata or {}
            side.end_absorb(int(metadata.get(_EPOCH_METADATA, b"-1")))

    def statistics(self) -> dict[str, int]:
        """Return counts: live rows, tombstones and state bytes per side, and what was ignored or rejected so far."""
        counts = dict(self._totals)
        for side in self._sides:
            counts.update(side.statistics())
        return counts

    def close(self) -> None:
        """Unmap the state; the operator cannot be used afterwards."""
        self._prepared = None
        for side in self._sides:
            side.close()

    # ---------------------------------------------------------------- one epoch

    def _prepare(self, tick: Tick, deltas: Sequence[ZSet]) -> _Prepared:
        """Resolve the deltas; asked again for the same ones, return what was found before."""
        left, right = deltas
        kept = self._prepared
        if kept is not None and kept.tick == tick and kept.deltas[0] is left and kept.deltas[1] is right:
            return kept
        self._prepared = None
        sides = tuple(
            side.prepare(delta) if len(delta) else None for side, delta in zip(self._sides, (left, right), strict=True)
        )
        prepared = _Prepared(tick, (left, right), (sides[0], sides[1]))
        if not (prepared.rejected and self.on_bad_input == "error"):
            self._group(prepared)
        self._prepared = prepared
        return prepared

    def _refuse_bad_input(self, prepared: _Prepared) -> None:
        if prepared.rejected and self.on_bad_input == "error":
            raise describe_rejection(self.inputs, prepared.sides, prepared.tick)

    def _group(self, prepared: _Prepared) -> None:
        """List the changes of both sides, group them by join key and look the keys up in both states."""
        scratch = self._scratch
        size = 2 * sum(side.count for side in prepared.sides if side is not None) + 2
        arrays = [scratch.array(name, size) for name in ("refs", "numbers", "before", "after", "hashes", "matchable")]
        end = 0
        counts = []
        for number, side in enumerate(self._sides):
            found = prepared.sides[number]
            begin = end
            if found is not None:
                end = side.list_changes(found, begin, arrays)
            counts.append(end - begin)
        prepared.counts = (counts[0], counts[1])
        if end == 0:
            return
        refs, numbers, _, after, hashes, matchable = arrays
        left, right = self._sides
        size = end + 2
        first = [scratch.array("first_left", size), scratch.array("first_right", size)]
        group_refs, group_sides = scratch.array("group_refs", size), scratch.array("group_sides", size)
        group_hashes = scratch.array("group_hashes", size)
        next_change = scratch.array("next_change", size)
        table, bits = scratch.table("groups", end)
        left_key = (left.arena.heap_address, left.join_columns)
        right_key = (right.arena.heap_address, right.join_columns)
        groups = prepared.groups = group_changes(
            counts[0], counts[1], refs, hashes, matchable, *left_key, *right_key, table, bits, next_change, *first,
            scratch.array("last_left", size), scratch.array("last_right", size), group_refs, group_sides, group_hashes,
        )
        prepared.changed = []
        for number in (_LEFT, _RIGHT):
            begin = 0 if number == _LEFT else counts[0]
            changed, changed_bits = scratch.table(f"changed{number}", counts[number])
            count = make_changed_set(begin, begin + counts[number], numbers, changed, changed_bits)
            prepared.changed.append((changed, changed_bits, count))
        heads = [scratch.array("head_left", size), scratch.array("head_right", size)]
        for number, side in enumerate(self._sides):
            other_is_lone = self._lone[1 - number] != 0
            asked = (number == _RIGHT or other_is_lone, number == _LEFT or other_is_lone)
            find_group_rows(
                side.view, side.join_columns, groups, *first, *asked, group_refs, group_sides, group_hashes,
                *left_key, *right_key, heads[number],
            )
        if self._residual is None and any(self._lone):
            for number, side in enumerate(self._sides):
                if self._lone[1 - number]:
                    changed, changed_bits, _ = prepared.changed[number]
                    group_degrees(
                        groups, first[number], heads[number], side.view, next_change, after, changed, changed_bits,
                        scratch.array(f"degree_before{number}", size), scratch.array(f"degree_after{number}", size),
                    )

    def _emit(self, prepared: _Prepared) -> Iterator[ZSet]:
        """Fill chunk after chunk: all retractions, then all insertions."""
        steps = self._residual_steps(prepared) if self._residual is not None else self._steps(prepared)
        scratch = self._scratch
        refs = [scratch.array("out_left", self._chunk_rows), scratch.array("out_right", self._chunk_rows)]
        weights = scratch.array("out_weights", self._chunk_rows)
        filled = 0
        for step in steps:
            done = False
            while not done:
                filled, done = step(filled, refs, weights)
                if filled == self._chunk_rows:
                    self._check_current(prepared)
                    yield from self._gather(refs, weights, 0, filled)
                    filled = 0
        if filled:
            yield from self._gather(refs, weights, 0, filled)

    def _check_current(self, prepared: _Prepared) -> None:
        if self._prepared is not prepared:
            raise StateError(
                f"the answer of epoch {prepared.tick.epoch} was read on after another epoch had begun; finish reading an answer first.",
                code="ANSWER_OUTDATED",
                epoch=prepared.tick.epoch,
            )

    def _gather(self, refs: Sequence[Any], weights: Any, begin: int, count: int) -> Iterator[ZSet]:
        try:
            rows = self._joined.gather(refs[0], refs[1], begin, count)
        except OverflowError:
            if count == 1:
                raise
            half = count // 2
            yield from self._gather(refs, weights, begin, half)
            yield from self._gather(refs, weights, begin + half, count - half)
            return
        yield ZSet(rows, weights[begin : begin + count].copy())

    def _steps(self, prepared: _Prepared) -> list[Any]:
        steps: list[Any] = []
        for sign in (-1, 1):
            if self._pairs:
                steps.append(self._pair_step(prepared, sign))
            for side in (_LEFT, _RIGHT):
                if self._lone[side]:
                    steps.append(self._lone_step(prepared, side, sign))
        return steps

    def _pair_step(self, prepared: _Prepared, sign: int, *, track: bool = False) -> Any:
        scratch = self._scratch
        cursor = np.array([0, 0, -1, -1], np.int64)
        named = [
            scratch.array(name, 0)
            for name in ("first_left", "first_right", "next_change", "head_left", "head_right", "refs", "before", "after")
        ]
        left_change = scratch.array("out_left_change", self._chunk_rows if track else 1)
        right_change = scratch.array("out_right_change", self._chunk_rows if track else 1)

        def step(filled: int, refs: Sequence[Any], weights: Any) -> tuple[int, bool]:
            filled = p.emit_pairs(
                self._sides[0].view, self._sides[1].view, prepared.groups, *named, *prepared.changed[0], *prepared.changed[1],
                sign, cursor, filled, refs[0][: self._chunk_rows], refs[1], weights[: self._chunk_rows], left_change, right_change, track,
            )
            if cursor[0] == p.OVERFLOW:
                raise self._weight_overflow(prepared.tick)
            return filled, bool(cursor[0] == prepared.groups)

        return step

    def _lone_step(self, prepared: _Prepared, side: int, sign: int) -> Any:
        scratch = self._scratch
        cursor = np.array([0, 0, -1, -1], np.int64)
        first = scratch.array(("first_left", "first_right")[side], 0)
        head = scratch.array(("head_left", "head_right")[side], 0)
        degrees = [scratch.array(f"degree_{when}{1 - side}", 0) for when in ("before", "after")]
        next_change, all_refs, before, after = (scratch.array(name, 0) for name in ("next_change", "refs", "before", "after"))
        view = self._sides[side].view

        def step(filled: int, refs: Sequence[Any], weights: Any) -> tuple[int, bool]:
            filled = p.emit_lone_rows(
                view, prepared.groups, first, next_change, head, *degrees, all_refs, before, after,
                *prepared.changed[side], self._lone[side], sign, cursor, filled, refs[side], refs[1 - side],
                weights[: self._chunk_rows],
            )
            return filled, bool(cursor[0] == prepared.groups + 2)

        return step

    # ---------------------------------------------------------------- residual predicate

    def _candidates(self, prepared: _Prepared) -> Iterator[tuple[Any, Any, Any, Any, Any]]:
        """Yield chunks of pairs with equal keys that changed: refs, weights, and the positions of either change."""
        scratch = self._scratch
        size = self._chunk_rows
        refs = [scratch.array("candidate_left", size), scratch.array("candidate_right", size)]
        weights = scratch.array("candidate_weights", size)
        step = self._pair_step(prepared, 0, track=True)
        changes = [scratch.array("out_left_change", size), scratch.array("out_right_change", size)]
        done = False
        while not done:
            count, done = step(0, refs, weights)
            if count:
                yield refs[0][:count], refs[1][:count], weights[:count], changes[0][:count], changes[1][:count]

    def _passes(self, left_refs: Any, right_refs: Any) -> npt.NDArray[np.bool_]:
        """Evaluate the predicate on candidate pairs; NULL does not pass."""
        assert self._residual is not None
        columns = []
        for side, names, refs in zip(self._sides, references(self._residual), (left_refs, right_refs), strict=True):
            ordered = sorted(names)
            positions = side.relation.field_indices(ordered)
            gathered = side.layout.gather(refs, 0, len(refs), side.arena.heap_address, positions) if ordered else []
            columns.append(dict(zip(ordered, gathered, strict=True)))
        return evaluate(self._residual, columns[0], columns[1], len(left_refs))

    def _degrees(self, prepared: _Prepared) -> dict[int, ResidualDegrees]:
        """Evaluate every candidate pair once; keep the outcome as bits and the degrees of the preserved sides."""
        if prepared.degrees is not None:
            return prepared.degrees
        names = ("refs", "numbers", "before", "after")
        refs, numbers, before, after = (self._scratch.array(name, 0) for name in names)
        bounds = ((0, prepared.counts[0]), (prepared.counts[0], sum(prepared.counts)))
        degrees = {
            side: ResidualDegrees(
                self._sides[side], self._lone[side], begin, refs[begin:end], numbers[begin:end], before[begin:end], after[begin:end]
            )
            for side, (begin, end) in enumerate(bounds)
            if self._lone[side]
        }
        prepared.masks = []
        if any(prepared.counts):
            for left_refs, right_refs, _, left_change, right_change in self._candidates(prepared):
                passing = self._passes(left_refs, right_refs)
                prepared.masks.append(np.packbits(passing))
                own = ((left_change[passing], left_refs[passing]), (right_change[passing], right_refs[passing]))
                for side, found in degrees.items():
                    other_was, other_is = live_flags(own[1 - side][0], before, after)
                    found.add(*own[side], other_was, other_is)
        for found in degrees.values():
            found.finish()
        prepared.degrees = degrees
        return degrees

    def _residual_steps(self, prepared: _Prepared) -> list[Any]:
        degrees = self._degrees(prepared)
        lone = {side: found.lone_rows() for side, found in degrees.items()}
        steps: list[Any] = []
        for sign in (-1, 1):
            if self._pairs:
                steps.append(_copy_step(self._passing_pairs(prepared, sign)))
            for side, (refs, weights) in lone.items():
                kept = weights * sign > 0
                empty = np.zeros(int(kept.sum()), np.int64)
                parts = (refs[kept], empty) if side == _LEFT else (empty, refs[kept])
                steps.append(_copy_step(iter([(*parts, weights[kept])])))
        return steps

    def _passing_pairs(self, prepared: _Prepared, sign: int) -> Iterator[tuple[Any, Any, Any]]:
        for number, (left_refs, right_refs, weights, _, _) in enumerate(self._candidates(prepared)):
            passing = np.unpackbits(prepared.masks[number], count=len(weights)).view(np.bool_)
            kept = passing & ((weights > 0) == (sign > 0))
            yield left_refs[kept], right_refs[kept], weights[kept]

    def _weight_overflow(self, tick: Tick) -> WeightOverflowError:
        left, right = (relation.name for relation in self.inputs)
        return WeightOverflowError(
            f'the join of "{left}" and "{right}", epoch {tick.epoch}: the product of two weights does not fit an int64; nothing was '
            "applied. Retract duplicate rows on one side; a weight is the number of copies of a row.",
            code="WEIGHT_OVERFLOW",
            epoch=tick.epoch,
        )


def _copy_step(parts: Iterator[tuple[Any, Any, Any]]) -> Any:
    """Return a step that copies arrays of pairs into the output, as far as there is room."""
    pending: list[Any] = []

    def step(filled: int, refs: Sequence[Any], weights: Any) -> tuple[int, bool]:
        if not pending:
            following = next(parts, None)
            if following is None:
                return filled, True
            pending.append(following)
        left, right, values = pending.pop()
        count = min(len(values), len(weights) - filled)
        refs[0][filled : filled + count] = left[:count]
        refs[1][filled : filled + count] = right[:count]
        weights[filled : filled + count] = values[:count]
        if count < len(values):
            pending.append((left[count:], right[count:], values[count:]))
        return filled + count, False

    return step


def _checked_arguments(
    left: Relation, right: Relation, how: str, null_safe: Sequence[bool] | None, using: bool, on_bad_input: str,
    chunk_rows: int, hash_bits: int,
) -> tuple[bool, ...]:
    """Refuse arguments that make no join; return one null-safe flag per key column."""
    if how not in JOIN_TYPES:
        raise OptionError(f"how={how!r} is unknown; use one of {', '.join(JOIN_TYPES)}.", code="UNKNOWN_JOIN_TYPE", how=how)
    if on_bad_input not in ("error", "quarantine"):
        raise OptionError(
            f'on_bad_input={on_bad_input!r} is unknown; use "error" or "quarantine".', code="UNKNOWN_POLICY", value=on_bad_input
        )
    if chunk_rows < 1 or not 1 <= hash_bits <= 32:
        raise OptionError(
            f"chunk_rows={chunk_rows} must be positive and hash_bits={hash_bits} between 1 and 32.", code="OPTION_RANGE"
        )
    if not left.join_key or len(left.join_key) != len(right.join_key):
        raise PlanError(
            f'"{left.name}" is joined on {list(left.join_key)} and "{right.name}" on {list(right.join_key)}; both need the same '
            "number of key columns, at least one.",
            code="JOIN_KEY_LENGTH",
            left=left.join_key,
            right=right.join_key,
        )
    if using and left.join_key != right.join_key:
        raise PlanError(
            f"using=True needs key columns of the same names; got {list(left.join_key)} and {list(right.join_key)}.",
            code="USING_NAMES",
        )
    for relation in (left, right):
        for column in relation.join_key:
            check_key_type(relation.schema.field(column).type, relation=relation.name, column=column)
        for column in relation.primary_key:
            check_key_type(relation.schema.field(column).type, relation=relation.name, column=column)
    flags = tuple(null_safe) if null_safe is not None else (False,) * len(left.join_key)
    if len(flags) != len(left.join_key):
        raise PlanError(
            f"null_safe={list(flags)} needs one flag per key column of {list(left.join_key)}.", code="NULL_SAFE_LENGTH"
        )
    return flags


def _output_key(
    left: Relation, right: Relation, how: str, schema: pa.Schema, sources: Sequence[tuple[str, str]]
) -> tuple[str, ...]:
    """Return the columns that identify an output row, empty where the inputs do not tell."""
    if how in ("left_semi", "left_anti"):
        wanted = {("left", name) for name in left.primary_key}
        needed = [left]
    else:
        right_is_unique = right.primary_key and set(right.primary_key) <= set(right.join_key)
        left_is_unique = left.primary_key and set(left.primary_key) <= set(left.join_key)
        sides = {"left", "right"}
        if right_is_unique and how in ("inner", "left"):
            sides = {"left"}
        elif left_is_unique and how in ("inner", "right"):
            sides = {"right"}
        needed = [relation for name, relation in (("left", left), ("right", right)) if name in sides]
        wanted = {(name, key) for name, relation in (("left", left), ("right", right)) if name in sides for key in relation.primary_key}
    if not all(relation.primary_key for relation in needed):
        return ()
    found = []
    for (side, source), name in zip(sources, schema.names, strict=True):
        hits = [(one, source) in wanted for one in (("left", "right") if side == "both" else (side,))]
        if any(hits):
            found.append(name)
    shown = {("left", s) for side, s in sources if side in ("left", "both")} | {("right", s) for side, s in sources if side in ("right", "both")}
    if using_hides := {key for key in wanted if key not in shown}:
        equal = {("right", r) for r in right.join_key} | {("left", l) for l in left.join_key}
        if not using_hides <= equal:
            return ()
        found += [name for (side, source), name in zip(sources, schema.names, strict=True) if source in {k for _, k in using_hides} and name not in found]
    return tuple(found)
