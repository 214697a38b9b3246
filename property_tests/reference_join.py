"""A slow join in plain dicts that obeys every law, and a switchboard of classical mistakes.

Two uses. Unharmed (`bugs=()`) it is in the registry beside `HashJoin`: a law that it breaks is a wrong law. With a bug
switched on it must break a law: that is how the suite proves that it still has teeth (`mutants.py` lists the bugs with
their stories).

It keeps, per side, the live rows by identity, an index by join key, and the newest sequence per primary key. The output of
an epoch is netted row by row, so retractions and insertions never meet.

Known limits: one Python loop per row; rows as tuples; a residual is a Python function over two dicts.
Source: semantics sections 1 to 6; the bugs come from the trackers of Flink, Spark and home-made joins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from property_tests.reference_side import ReferenceSide, SideStep, Values
from zset_join.core.epochs import Tick
from zset_join.core.errors import BadInputError
from zset_join.core.relation import Relation
from zset_join.zset import ZSet

__all__ = ["ReferenceJoin"]

RowId = tuple[Hashable, ...]
_REJECTION_SCHEMA = pa.schema(
    [("input", pa.string()), ("row", pa.int64()), ("weight", pa.int64()), ("code", pa.string()), ("reason", pa.string())]
)
_PRESERVED = {
    "inner": (False, False),
    "left": (True, False),
    "right": (False, True),
    "full": (True, True),
    "left_semi": (False, False),
    "left_anti": (True, False),
}


@dataclass
class _Net:
    """The output of one epoch, summed row by row."""

    bugs: frozenset[str]
    lines: dict[RowId, list[Any]] = field(default_factory=dict)
    loose: list[tuple[Values, int]] = field(default_factory=list)

    def add(self, row: Values, weight: int) -> None:
        if not weight:
            return
        if "weight_is_one" in self.bugs:
            weight = 1 if weight > 0 else -1
        if "answer_not_consolidated" in self.bugs:
            self.loose.append((row, weight))
            return
        entry = self.lines.setdefault(ReferenceSide.plain_identity(row), [row, 0])
        entry[1] += weight

    def sorted_lines(self) -> list[tuple[Values, int]]:
        lines = self.loose + [(row, weight) for row, weight in self.lines.values() if weight or "zero_weights" in self.bugs]
        newest_first = "insertions_first" in self.bugs
        return sorted(lines, key=lambda line: (line[1] > 0) != newest_first)


class ReferenceJoin:
    """Join two relations with dicts; same options and same protocol as `HashJoin`.

    Args:
        left: the left relation.
        right: the right relation.
        how: inner, left, right, full, left_semi or left_anti.
        null_safe: per key column, True for `<=>`.
        using: key columns once and first.
        residual: a Python function over two row dicts.
        on_bad_input: "error" or "quarantine".
        chunk_rows: rows per yielded chunk.
        directory: where to keep the state between openings; None for memory only.
        bugs: names of the mistakes to make.
    """

    def __init__(
        self,
        left: Relation,
        right: Relation,
        how: str = "inner",
        *,
        null_safe: Sequence[bool] | None = None,
        using: bool = False,
        residual: Callable[[Mapping[str, Any], Mapping[str, Any]], bool | None] | None = None,
        on_bad_input: str = "error",
        chunk_rows: int = 65536,
        directory: str | None = None,
        bugs: Collection[str] = (),
    ) -> None:
        self.inputs: tuple[Relation, ...] = (left, right)
        self.how = how
        self.using = using
        self.residual = residual
        self.on_bad_input = on_bad_input
        self.chunk_rows = chunk_rows
        self.bugs = frozenset(bugs)
        safe = tuple(null_safe or (False,) * len(left.join_key))
        self.sides = tuple(ReferenceSide(relation, safe, self.bugs) for relation in self.inputs)
        self.output = Relation(name="joined", schema=self._output_schema(), mode="changelog")
        self.absorbed_epoch = -1
        self.message_degrees: dict[tuple[int, RowId], int] = {}
        self.answers = 0
        self.directory = directory
        if directory is not None and (Path(directory) / "epoch").exists():
            self._reopen(Path(directory))

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Yield the change of the output; retractions first."""
        self.answers += 1
        steps = self._resolve(tick, deltas)
        if "absorbs_in_answer" in self.bugs:
            self._apply(steps)
        lines = self._join(steps).sorted_lines()
        if "identical_upsert_churns" in self.bugs:
            for step, side in zip(steps, self.sides, strict=True):
                lines += self._churn(step, side)
        if "order_changes_between_asks" in self.bugs and self.answers % 4 == 1:
            lines = lines[::-1]
        for start in range(0, len(lines), self.chunk_rows):
            if start and "second_chunk_dropped" in self.bugs:
                return
            chunk = lines[start : start + self.chunk_rows]
            yield _zset(self.output.schema, [row for row, _ in chunk], [weight for _, weight in chunk])

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        """Fold the deltas into the state."""
        steps = self._resolve(tick, deltas)
        if "absorbs_in_answer" not in self.bugs:
            self._apply(steps, tick.processing_time_us)
        self.absorbed_epoch = tick.epoch
        if self.directory is not None:
            self._persist(Path(self.directory))

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        """Return the lines that break their relation's contract."""
        rows = [
            {"input": side.relation.name, "row": position, "weight": weight, "code": code, "reason": reason}
            for side, delta in zip(self.sides, deltas, strict=True)
            for position, weight, code, reason in side.resolve(delta.to_pylist(), tick.epoch).rejected
        ]
        return pa.Table.from_pylist([] if "quarantine_is_silent" in self.bugs else rows, schema=_REJECTION_SCHEMA)

    def resident_bytes(self) -> int:
        """Return a rough size: 100 bytes per live row."""
        return sum(100 * len(side.rows) for side in self.sides)

    def snapshot(self) -> dict[str, pa.Table]:
        """Return live rows and tombstones; the column `_weight` is 0 for a tombstone."""
        return {name: side.snapshot() for name, side in zip(("left", "right"), self.sides, strict=True)}

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Replace the state by a snapshot."""
        for name, side in zip(("left", "right"), self.sides, strict=True):
            side.restore(tables[name])

    def close(self) -> None:
        """Do nothing; there is nothing to release."""

    def _resolve(self, tick: Tick, deltas: Sequence[ZSet]) -> list[SideStep]:
        steps: list[SideStep] = []
        for side, delta in zip(self.sides, deltas, strict=True):
            lines = delta.to_pylist()
            step = side.resolve(lines, tick.epoch)
            if step.rejected and self.on_bad_input == "error":
                if "error_applies_half" in self.bugs:
                    for earlier, done in zip(self.sides, steps, strict=False):
                        earlier.apply(done)
                    side.apply(step)
                position, weight, code, reason = step.rejected[0]
                when = "" if "message_without_epoch" in self.bugs else f" in epoch {tick.epoch}"
                key = side.shown_key(lines[position][0])
                raise BadInputError(
                    f'relation "{side.relation.name}"{when}, key {key}: {reason}. Correct the source, or set '
                    'on_bad_input="quarantine".',
                    code=code,
                    relation=side.relation.name,
                    epoch=tick.epoch,
                    key=() if "message_without_key" in self.bugs else key,
                    weight=weight,
                )
            if step.rejected and "quarantine_drops_the_epoch" in self.bugs:
                step = side.resolve([], tick.epoch)
            steps.append(step)
        return steps

    def _apply(self, steps: Sequence[SideStep], watermark: int | None = None) -> None:
        if "degree_counts_messages" in self.bugs:
            for number in (0, 1):
                for row_id, row in list(self._affected(steps, number)):
                    self.message_degrees[number, row_id] = self._degrees(steps, number, row_id, row)[1]
        for side, step in zip(self.sides, steps, strict=True):
            side.apply(step, watermark)

    def _join(self, steps: Sequence[SideStep]) -> _Net:
        net = _Net(self.bugs)
        left_step, right_step = steps
        if self.how not in ("left_semi", "left_anti"):
            first_after = "after_used_twice" in self.bugs
            second_after = "cross_term_missing" not in self.bugs
            for row, weight in left_step.output_delta(self.bugs):
                for _, other, other_weight in self._matches(steps, 0, row, after=first_after):
                    net.add(self._pair(row, other), weight * other_weight)
            for row, weight in right_step.output_delta(self.bugs):
                for _, other, other_weight in self._matches(steps, 1, row, after=second_after):
                    net.add(self._pair(other, row), weight * other_weight)
        for number in (0, 1):
            if _PRESERVED[self.how][number] or (self.how == "left_semi" and number == 0):
                self._add_one_sided(net, steps, number)
        return net

    def _add_one_sided(self, net: _Net, steps: Sequence[SideStep], number: int) -> None:
        """Add padded rows, or the rows of SEMI and ANTI: the degree rule of semantics section 4."""
        side, step = self.sides[number], steps[number]
        wants_match = self.how == "left_semi"
        for row_id, row in self._affected(steps, number):
            if "null_keys_dropped" in self.bugs and side.key_of(row) is None:
                continue
            before = side.rows[row_id][1] if row_id in side.rows else 0
            after = before + step.weight_of(row_id)
            degree_before, degree_after = self._degrees(steps, number, row_id, row)
            shown_before = before if (degree_before > 0) == wants_match else 0
            shown_after = after if (degree_after > 0) == wants_match else 0
            change = shown_after - shown_before
            if "pad_ignores_weight" in self.bugs:
                change = (shown_after > 0) - (shown_before > 0)
            if "semi_never_leaves" in self.bugs and wants_match and before == after:
                change = max(change, 0)
            if "anti_swapped_at_transition" in self.bugs and not wants_match and before == after:
                change = -change
            net.add(self._pad(row, number), change)

    def _affected(self, steps: Sequence[SideStep], number: int) -> Iterator[tuple[RowId, Values]]:
        """Yield the rows of one side whose presence or degree may change."""
        seen: dict[RowId, Values] = {row_id: row for row_id, (row, _) in steps[number].delta.items()}
        for row, _ in steps[1 - number].delta.values():
            for row_id, other, _ in self._matches(steps, 1 - number, row, after=False, whole_on=False):
                seen.setdefault(row_id, other)
        yield from seen.items()

    def _degrees(self, steps: Sequence[SideStep], number: int, row_id: RowId, row: Values) -> tuple[int, int]:
        whole_on = "degree_ignores_residual" not in self.bugs
        before, after = (
            sum(1 for _ in self._matches(steps, number, row, after=moment, whole_on=whole_on)) for moment in (False, True)
        )
        if "degree_counts_messages" in self.bugs and row_id in self.sides[number].rows:
            before = self.message_degrees.get((number, row_id), before)
            after = before + sum(
                weight for other, weight in steps[1 - number].messages if self._is_match(number, row, other, whole_on=True)
            )
        return before, after

    def _matches(
        self, steps: Sequence[SideStep], number: int, row: Values, *, after: bool, whole_on: bool = True
    ) -> Iterator[tuple[RowId, Values, int]]:
        """Yield the live rows of the other side that a row of side `number` joins."""
        key = self.sides[number].key_of(row)
        if key is None:
            return
        other, step = self.sides[1 - number], steps[1 - number]
        candidates = dict.fromkeys(other.by_key.get(key, ()))
        if after:
            candidates.update(dict.fromkeys(step.by_key.get(key, ())))
        for row_id in candidates:
            stored, weight = other.rows[row_id] if row_id in other.rows else (step.delta[row_id][0], 0)
            weight += step.weight_of(row_id) if after else 0
            if weight and (not whole_on or self._passes(number, row, stored)):
                yield row_id, stored, weight

    def _is_match(self, number: int, row: Values, other: Values, *, whole_on: bool) -> bool:
        key = self.sides[number].key_of(row)
        return (
            key is not None
            and key == self.sides[1 - number].key_of(other)
            and (not whole_on or self._passes(number, row, other))
        )

    def _passes(self, number: int, row: Values, other: Values) -> bool:
        if self.residual is None:
            return True
        left, right = (row, other) if number == 0 else (other, row)
        verdict = self.residual(
            dict(zip(self.inputs[0].schema.names, left, strict=True)),
            dict(zip(self.inputs[1].schema.names, right, strict=True)),
        )
        return verdict is True or (verdict is None and "residual_null_matches" in self.bugs)

    def _churn(self, step: SideStep, side: ReferenceSide) -> list[tuple[Values, int]]:
        number = self.sides.index(side)
        if (number == 1 and self.how.startswith("left_")) or not step.identical:
            return []
        padded = [self._pad(row, number) for row in step.identical]
        return [(row, -1) for row in padded] + [(row, 1) for row in padded]

    def _layout(self) -> list[tuple[int, int]]:
        """Return where each output column comes from, as (side, position); side 2 is a shared USING key."""
        left, right = self.inputs
        keys: list[tuple[int, int]] = []
        skipped: tuple[Collection[str], Collection[str]] = ((), ())
        if self.using:
            keys = [(2, number) for number in range(len(left.join_key))]
            skipped = (left.join_key, right.join_key)
        chosen = [(0, position) for position, name in enumerate(left.schema.names) if name not in skipped[0]]
        if self.how not in ("left_semi", "left_anti"):
            chosen += [(1, position) for position, name in enumerate(right.schema.names) if name not in skipped[1]]
        return keys + chosen

    def _output_schema(self) -> pa.Schema:
        fields: list[pa.Field] = []
        for side, position in self._layout():
            if side == 2:
                source = self.inputs[0].schema.field(self.inputs[0].join_key[position])
            else:
                source = self.inputs[side].schema.field(position)
            name = f"{source.name}_right" if source.name in {field.name for field in fields} else source.name
            fields.append(pa.field(name, source.type))
        return pa.schema(fields)

    def _pair(self, left: Values | None, right: Values | None) -> Values:
        values: list[Any] = []
        for side, position in self._layout():
            if side == 2:
                values.append(self._shared_key(left, right, position))
            else:
                row = (left, right)[side]
                values.append(None if row is None else row[position])
        return tuple(values)

    def _shared_key(self, left: Values | None, right: Values | None, position: int) -> Any:
        from_left = None if left is None else left[self.sides[0].key_positions[position]]
        from_right = None if right is None else right[self.sides[1].key_positions[position]]
        if self.how == "right":
            return from_right
        return from_right if from_left is None else from_left

    def _pad(self, row: Values, number: int) -> Values:
        return self._pair(row, None) if number == 0 else self._pair(None, row)

    def _persist(self, directory: Path) -> None:
        forgets = "reopening_forgets_an_epoch" in self.bugs and self.absorbed_epoch > 0
        if not forgets:
            for name, table in self.snapshot().items():
                with pa.ipc.new_file(directory / f"{name}.arrow", table.schema) as sink:
                    sink.write_table(table)
        (directory / "epoch").write_text(str(self.absorbed_epoch))

    def _reopen(self, directory: Path) -> None:
        self.restore({name: pa.ipc.open_file(directory / f"{name}.arrow").read_all() for name in ("left", "right")})
        self.absorbed_epoch = int((directory / "epoch").read_text())


def _zset(schema: pa.Schema, rows: Sequence[Values], weights: Sequence[int]) -> ZSet:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(list(column), data_type) for column, data_type in zip(columns, schema.types, strict=True)]
    return ZSet(pa.RecordBatch.from_arrays(arrays, schema=schema), np.asarray(weights, np.int64))
