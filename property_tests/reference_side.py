"""One input of the reference join: live rows, join-key index, newest sequence per primary key.

`resolve` turns a delta into the net change of the live rows without touching them; `apply` makes that change. A tombstone
is a primary key with a newest sequence and no live row; tombstones are kept only when there is a sequence to compare.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import pyarrow as pa

from zset_join.core.errors import WeightOverflowError
from zset_join.core.relation import Relation

__all__ = ["ReferenceSide", "SideStep", "Values"]

Values = tuple[Any, ...]
RowId = tuple[Hashable, ...]
Newest = tuple[Values, Values | None, Values]  # sequence, live row or None for a tombstone, primary key
_LARGEST = 2**63 - 1
_NEVER = -(2**62)  # the watermark of an epoch that has none
_RETENTION = 172_800 * 1_000_000


@dataclass
class SideStep:
    """What one delta does to one side."""

    delta: dict[RowId, tuple[Values, int]] = field(default_factory=dict)
    by_key: dict[Hashable, list[RowId]] = field(default_factory=dict)
    newest: dict[RowId, Newest] = field(default_factory=dict)
    rejected: list[tuple[int, int, str, str]] = field(default_factory=list)
    messages: list[tuple[Values, int]] = field(default_factory=list)
    identical: list[Values] = field(default_factory=list)
    moved: set[RowId] = field(default_factory=set)  # old rows whose successor has another join key
    deletes: dict[RowId, Values] = field(default_factory=dict)  # old row -> the line that deleted it

    def weight_of(self, row_id: RowId) -> int:
        """Return how much the weight of a row changes."""
        return self.delta[row_id][1] if row_id in self.delta else 0

    def output_delta(self, bugs: Collection[str]) -> Iterator[tuple[Values, int]]:
        """Yield the changed rows that reach the output: all of them, unless a bug is planted."""
        for row_id, (row, weight) in self.delta.items():
            if "key_move_loses_old_key" in bugs and row_id in self.moved:
                continue
            yield self.deletes.get(row_id, row) if "delete_payload_trusted" in bugs else row, weight


class ReferenceSide:
    """Hold one side's state.

    Args:
        relation: what the side holds.
        null_safe: per key column, True for `<=>`.
        bugs: names of the mistakes to make.
    """

    def __init__(self, relation: Relation, null_safe: Sequence[bool], bugs: frozenset[str]) -> None:
        self.relation = relation
        self.null_safe = null_safe
        self.bugs = bugs
        self.key_positions = relation.field_indices(relation.join_key)
        self.primary_positions = relation.field_indices(relation.primary_key)
        self.sequence_positions = relation.field_indices(relation.sequence_by)
        self.rows: dict[RowId, tuple[Values, int]] = {}
        self.by_key: dict[Hashable, dict[RowId, None]] = {}
        self.newest: dict[RowId, Newest] = {}
        self.deleted_at: dict[RowId, int] = {}  # watermark of each tombstone

    @staticmethod
    def plain_identity(values: Iterable[Any]) -> RowId:
        """Return the identity of a row."""
        return tuple(_normal(value) for value in values)

    def row_id(self, row: Values) -> RowId:
        """Return the identity of a row of this side."""
        if "retraction_compares_bits" in self.bugs:
            return tuple(_normal(value, zeros_differ=True) for value in row)
        return self.plain_identity(row)

    def key_of(self, row: Values) -> Hashable:
        """Return the join key's code, or None when it can never match."""
        positions = self.key_positions[:1] if "first_key_column_only" in self.bugs else self.key_positions
        codes: list[Hashable] = []
        for position, safe in zip(positions, self.null_safe, strict=False):
            value = row[position]
            matches_null = (safe or "null_matches" in self.bugs) and "null_safe_ignored" not in self.bugs
            if value is None and not matches_null:
                return None
            codes.append(_normal(value, zeros_differ="zeros_differ" in self.bugs, nans_differ="nans_differ" in self.bugs))
        return ("key", crc32(repr(codes).encode()) % 4) if "hash_trusted" in self.bugs else ("key", *codes)

    def resolve(self, lines: Sequence[tuple[Values, int]], epoch: int) -> SideStep:
        """Return the effect of a delta without applying it."""
        step = SideStep()
        if self.relation.mode == "upsert":
            self._resolve_upserts(lines, step)
        else:
            self._resolve_lines(lines, step, epoch)
        for row_id, (row, _) in step.delta.items():
            step.by_key.setdefault(self.key_of(row), []).append(row_id)
        return step

    def apply(self, step: SideStep, watermark: int | None = None) -> None:
        """Make the change, then let tombstones expire."""
        for row_id, (row, weight) in step.delta.items():
            stored, before = self.rows.get(row_id, (row, 0))
            self.rows[row_id] = (stored, before + weight)
            self.by_key.setdefault(self.key_of(row), {})[row_id] = None
            if before + weight == 0 and "dead_rows_kept" not in self.bugs:
                del self.rows[row_id]
                self._unlink(self.key_of(row), row_id)
        for key, newest in step.newest.items():
            self.deleted_at.pop(key, None)
            if newest[1] is not None:
                self.newest[key] = newest
            elif not self.sequence_positions or "tombstone_forgotten" in self.bugs:
                self.newest.pop(key, None)
            else:
                self.newest[key] = newest
                self.deleted_at[key] = _NEVER if watermark is None else watermark
        if watermark is not None and "tombstones_never_expire" not in self.bugs:
            for key in [key for key, moment in self.deleted_at.items() if moment < watermark - _RETENTION]:
                del self.newest[key], self.deleted_at[key]

    def _unlink(self, key: Hashable, row_id: RowId) -> None:
        members = self.by_key.get(key, {})
        members.pop(row_id, None)
        if not members:
            self.by_key.pop(key, None)

    def _resolve_lines(self, lines: Sequence[tuple[Values, int]], step: SideStep, epoch: int) -> None:
        gains: dict[RowId, int] = {}
        for position, (row, weight) in enumerate(lines):
            row_id = self.row_id(row)
            if weight < 0 and self.relation.mode == "append":
                step.rejected.append((position, weight, "APPEND_RETRACTION", f"key {self.shown_key(row)} has weight {weight}"))
            elif any(row[place] is None for place in self.primary_positions):
                step.rejected.append((position, weight, "NULL_PRIMARY_KEY", f"the primary key is {self.shown_key(row)}"))
            elif weight > 0:
                gains[row_id] = gains.get(row_id, 0) + weight
        rejected = {line[0] for line in step.rejected}
        for position, (row, weight) in enumerate(lines):
            if position in rejected or not weight:
                continue
            row_id = self.row_id(row)
            stored, before = self.rows.get(row_id, (row, 0))
            known = step.delta.get(row_id, (stored, 0))[1]
            if weight < 0:
                left_over = before + gains.get(row_id, 0)
                if left_over + weight < 0 and "absent_retraction_accepted" not in self.bugs:
                    reason = f"key {self.shown_key(row)} is retracted {-weight} times and held {left_over} times"
                    step.rejected.append((position, weight, "ABSENT_ROW", reason))
                    continue
                gains[row_id] = gains.get(row_id, 0) + weight
            if before + known + weight > _LARGEST:
                raise WeightOverflowError(f'relation "{self.relation.name}" in epoch {epoch}: a weight left int64.')
            step.delta[row_id] = (stored, known + weight)
            step.messages.append((row, weight))
        step.delta = {row_id: line for row_id, line in step.delta.items() if line[1]}

    def _resolve_upserts(self, lines: Sequence[tuple[Values, int]], step: SideStep) -> None:
        for position, (row, weight) in enumerate(lines):
            key = tuple(row[place] for place in self.primary_positions)
            sequence = tuple(row[place] for place in self.sequence_positions)
            if None in key:
                step.rejected.append((position, weight, "NULL_PRIMARY_KEY", f"the primary key is {key}"))
                continue
            if None in sequence:
                step.rejected.append((position, weight, "NULL_SEQUENCE", f"key {key} has sequence {sequence}"))
                continue
            key_id = self.plain_identity(key)
            current = step.newest.get(key_id) or self.newest.get(key_id)
            if current is not None and self._is_stale(sequence, current[0], weight):
                continue
            if current is None and weight < 0 and "no_tombstone_for_unknown" in self.bugs:
                continue
            if weight > 0 and current is not None and current[1] is not None and self.row_id(row) == self.row_id(current[1]):
                step.identical.append(row)
                row = current[1]
            step.messages.append((row, weight))
            step.newest[key_id] = (sequence, row if weight > 0 else None, key)
            if weight < 0:
                step.deletes[key_id] = row
        step.deletes = {
            self.row_id(self.newest[key_id][1] or ()): row for key_id, row in step.deletes.items() if key_id in self.newest
        }
        for key_id, (_, final, _) in step.newest.items():
            original = self.newest[key_id][1] if key_id in self.newest else None
            if original is not None and not (final is not None and "upsert_not_retracted" in self.bugs):
                self._change(step, original, -1)
                if final is not None and self.key_of(final) != self.key_of(original):
                    step.moved.add(self.row_id(original))
            if final is not None:
                self._change(step, final, 1)
        step.delta = {row_id: line for row_id, line in step.delta.items() if line[1]}

    def _is_stale(self, sequence: Values, newest: Values, weight: int) -> bool:
        if "stale_sequence_accepted" in self.bugs or ("late_delete_accepted" in self.bugs and weight < 0):
            return False
        if "first_sequence_column_only" in self.bugs:
            sequence, newest = sequence[:1], newest[:1]
        if "tie_goes_to_the_earlier" in self.bugs and sequence:
            return sequence <= newest
        return sequence < newest

    def _change(self, step: SideStep, row: Values, weight: int) -> None:
        row_id = self.row_id(row)
        stored, before = step.delta.get(row_id, (row, 0))
        step.delta[row_id] = (stored, before + weight)

    def shown_key(self, row: Values) -> Values:
        """Return how a message identifies a row: its primary key, or all of it."""
        return tuple(row[place] for place in self.primary_positions or range(len(row)))

    def snapshot(self) -> pa.Table:
        """Return live rows with `_weight`, tombstones with weight 0 and the watermark they were made at."""
        forgets = "snapshot_forgets_weights" in self.bugs
        lines: list[tuple[Values, int, int | None]] = [
            (row, 1 if forgets else weight, None) for row, weight in self.rows.values()
        ]
        if "snapshot_forgets_tombstones" not in self.bugs:
            lines += [
                (self._tombstone(key, sequence), 0, self.deleted_at[key_id])
                for key_id, (sequence, row, key) in self.newest.items()
                if row is None
            ]
        columns: list[Sequence[Any]] = list(zip(*(row for row, _, _ in lines), strict=True)) or [()] * len(self.relation.schema)
        arrays = [pa.array(list(column), kind) for column, kind in zip(columns, self.relation.schema.types, strict=True)]
        arrays += [pa.array([line[place] for line in lines], pa.int64()) for place in (1, 2)]
        return pa.table(arrays, names=[*self.relation.schema.names, "_weight", "_deleted_at"])

    def _tombstone(self, key: Values, sequence: Values) -> Values:
        values: list[Any] = [None] * len(self.relation.schema)
        for place, value in zip(self.primary_positions, key, strict=True):
            values[place] = value
        for place, value in zip(self.sequence_positions, sequence, strict=True):
            values[place] = value
        return tuple(values)

    def restore(self, table: pa.Table) -> None:
        """Replace the state by what `snapshot` returned."""
        if "restore_keeps_old_rows" not in self.bugs:
            self.rows, self.by_key, self.newest, self.deleted_at = {}, {}, {}, {}
        columns = [column.to_pylist() for column in table.columns]
        for *cells, weight, deleted_at in zip(*columns, strict=True):
            row = tuple(cells)
            if weight:
                row_id = self.row_id(row)
                self.rows[row_id] = (row, weight)
                self.by_key.setdefault(self.key_of(row), {})[row_id] = None
            if self.relation.mode == "upsert":
                key = tuple(row[place] for place in self.primary_positions)
                key_id = self.plain_identity(key)
                sequence = tuple(row[place] for place in self.sequence_positions)
                self.newest[key_id] = (sequence, row if weight else None, key)
                if deleted_at is not None:
                    self.deleted_at[key_id] = deleted_at


class _Nan:
    """What NaN is filed under."""


_NAN = _Nan()


def _normal(value: Any, *, zeros_differ: bool = False, nans_differ: bool = False) -> Hashable:
    if isinstance(value, float):
        if value != value:
            return object() if nans_differ else _NAN
        if value == 0:
            return repr(value) if zeros_differ else 0.0
    if isinstance(value, dict):
        return tuple(_normal(part, zeros_differ=zeros_differ, nans_differ=nans_differ) for part in value.values())
    if isinstance(value, list):
        return ("[]", *(_normal(part, zeros_differ=zeros_differ, nans_differ=nans_differ) for part in value))
    hashable: Hashable = value
    return hashable
