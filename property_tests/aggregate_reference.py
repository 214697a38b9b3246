"""A slow aggregate in plain dicts that obeys every law, and a switchboard of classical mistakes.

Unharmed (`bugs=()`) it is in the registry beside `Aggregate`: a law that it breaks is a wrong law. With a bug switched on
it must break a law (`mutants.py` lists the bugs with their stories).

It keeps the rows of every group, and computes a group again whenever it is touched; what engines keep in place of rows, running
sums and short buffers, is kept beside them where a bug wants it.

Known limits: one Python loop per row, one deep copy of a group per epoch that touches it. No directory.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from property_tests.aggregate_shapes import AggregateSpec, build_aggregate
from zset_join.core.epochs import Tick
from zset_join.core.errors import BadInputError
from zset_join.core.relation import Relation
from zset_join.testing.reference import row_identity
from zset_join.testing.reference_aggregate import Call, batch_aggregate, order_of
from zset_join.zset import ZSet

__all__ = ["ReferenceAggregate", "build_reference_aggregate"]

Key = tuple[Hashable, ...]
_REJECTION_SCHEMA = pa.schema(
    [("input", pa.string()), ("row", pa.int64()), ("weight", pa.int64()), ("code", pa.string()), ("reason", pa.string())]
)
_BUFFER = 2


@dataclass
class _Group:
    """The rows of one group by identity, and what the bugs remember instead of them."""

    key: tuple[Any, ...]
    rows: dict[Key, list[Any]] = field(default_factory=dict)
    running: dict[int, Any] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(weight for _, weight in self.rows.values())

    def bag(self) -> list[tuple[dict[str, Any], int]]:
        return [(row, weight) for row, weight in self.rows.values() if weight]


class ReferenceAggregate:
    """Aggregate a relation with dicts; same protocol as `Aggregate`.

    Args:
        spec: what to aggregate.
        on_bad_input: "error" or "quarantine".
        bugs: names of the mistakes to make.
    """

    def __init__(self, spec: AggregateSpec, *, on_bad_input: str = "error", bugs: Collection[str] = ()) -> None:
        self.spec = spec
        self.bugs = frozenset(bugs)
        self.inputs: tuple[Relation, ...] = spec.inputs
        self.output = build_aggregate(spec).output
        self.on_bad_input = on_bad_input
        self.calls = spec.oracle_calls()
        self.absorbed_epoch = -1
        self.groups: dict[Key, _Group] = {}

    # ---------------------------------------------------------------- the operator protocol

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Yield the change of the groups; retractions first."""
        is_due = not self.spec.group_by and self.absorbed_epoch < 0 and "first_row_waits" not in self.bugs
        if not len(deltas[0]) and not is_due:
            return
        after, _ = self._fold(tick, deltas[0])
        old_lines, new_lines = [], []
        if not self.spec.group_by:
            after.setdefault((), self.groups.get((), _Group(())))
        for key, group in after.items():
            before = self.groups.get(key)
            old = self._row(before, started=self.absorbed_epoch >= 0)
            new = self._row(group, started=True)
            if old is not None and new is not None and self._same(old, new):
                continue
            if "old_from_new_state" in self.bugs and old is not None and new is not None:
                old = new
            old_lines += [] if old is None else [(old, -1)]
            new_lines += [] if new is None else [(new, 1)]
        lines = new_lines + old_lines if "insertions_first" in self.bugs else old_lines + new_lines
        for begin in range(0, len(lines), self.spec.knobs.chunk_rows):
            yield self._chunk(lines[begin : begin + self.spec.knobs.chunk_rows])

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        """Fold the delta."""
        after, _ = self._fold(tick, deltas[0])
        self.groups.update(after)
        if "empty_groups_kept" not in self.bugs:
            self.groups = {key: group for key, group in self.groups.items() if group.count}
        self.absorbed_epoch = tick.epoch

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:  # noqa: ARG002 - part of the protocol
        """List the rows that cannot be taken."""
        delta = deltas[0]
        lines = [
            {"input": self.inputs[0].name, "row": row, "weight": int(delta.weights[row]), "code": "BAD", "reason": "bad"}
            for row in self._rejected_positions(delta)
        ]
        return pa.Table.from_pylist(lines, schema=_REJECTION_SCHEMA)

    def resident_bytes(self) -> int:
        """Return nothing of use."""
        return 0

    def snapshot(self) -> Mapping[str, pa.Table]:
        """Return the rows."""
        keeps_all = "empty_groups_kept" in self.bugs
        rows = [line for group in self.groups.values() for line in group.rows.values()]
        lines = [(row, weight) for row, weight in rows if weight or keeps_all]
        schema = self.inputs[0].schema
        columns = [pa.array([row[name] for row, _ in lines], schema.field(name).type) for name in schema.names]
        weights = [1 if "snapshot_forgets_copies" in self.bugs else weight for _, weight in lines]
        table = pa.table([*columns, pa.array(weights, pa.int64())], names=[*schema.names, "_weight"])
        return {"rows": table.replace_schema_metadata({b"epoch": str(self.absorbed_epoch).encode()})}

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Replace the rows."""
        table = tables["rows"]
        if "restore_adds" not in self.bugs:
            self.groups = {}
        rows = table.drop_columns(["_weight"]).combine_chunks().to_batches()
        if rows:
            delta = ZSet(rows[0], table.column("_weight").to_numpy())
            self.groups.update(self._fold(Tick(0), delta)[0])
        self.absorbed_epoch = int(table.schema.metadata[b"epoch"])

    # ---------------------------------------------------------------- one epoch

    def _fold(self, tick: Tick, delta: ZSet) -> tuple[dict[Key, _Group], list[int]]:
        """Return the touched groups as they will be."""
        bad = self._rejected_positions(delta)
        if bad and self.on_bad_input == "error" and "takes_what_is_not_there" not in self.bugs:
            row, weight = delta.to_pylist()[bad[0]]
            places = self.inputs[0].field_indices(self.inputs[0].primary_key) or range(len(row))
            key = tuple(row[place] for place in places)
            raise BadInputError(f'"{self.inputs[0].name}", epoch {tick.epoch}: {key} {weight}', code="BAD", key=key)
        after: dict[Key, _Group] = {}
        for number, (values, weight) in enumerate(delta.to_pylist()):
            if weight and (number not in bad or "takes_what_is_not_there" in self.bugs):
                self._fold_row(after, dict(zip(self.inputs[0].schema.names, values, strict=True)), weight)
        return after, bad

    def _fold_row(self, after: dict[Key, _Group], row: dict[str, Any], weight: int) -> None:
        shown = tuple(row[name] for name in self.spec.group_by)
        if "null_groups_dropped" in self.bugs and None in shown:
            return
        key = row_identity(shown)
        if "zeros_make_two_groups" in self.bugs:
            key = tuple((value, math.copysign(1, value)) if isinstance(value, float) else value for value in shown)
        if key not in after:
            after[key] = copy.deepcopy(self.groups.get(key)) or _Group(shown)
        group = after[key]
        entry = group.rows.setdefault(row_identity(row.values()), [row, 0])
        entry[1] += weight
        for number, call in enumerate(self.calls):
            self._run(group, number, call, row, weight)

    def _rejected_positions(self, delta: ZSet) -> list[int]:
        """Return the rows that take what is absent: insertions count first, retractions in order."""
        lines = [(row_identity(row), weight) for row, weight in delta.to_pylist()]
        if self.inputs[0].mode == "append":
            return [number for number, (_, weight) in enumerate(lines) if weight < 0]
        there: dict[Key, int] = {}
        for group in self.groups.values():
            for key, (_, weight) in group.rows.items():
                there[key] = there.get(key, 0) + weight
        for key, weight in lines:
            there[key] = there.get(key, 0) + max(weight, 0)
        bad = []
        for number, (key, weight) in enumerate(lines):
            if weight < 0 and there[key] + weight < 0:
                bad.append(number)
            elif weight < 0:
                there[key] += weight
        return bad

    # ---------------------------------------------------------------- results

    def _row(self, group: _Group | None, *, started: bool) -> tuple[Any, ...] | None:
        if not self.spec.group_by:
            if not started or ("global_row_leaves" in self.bugs and (group is None or not group.count)):
                return None
            group = group or _Group(())
        if group is None or (not group.count and self.spec.group_by and "empty_groups_shown" not in self.bugs):
            return None
        return (*group.key, *(self._result(number, call, group) for number, call in enumerate(self.calls)))

    def _result(self, number: int, call: Call, group: _Group) -> Any:
        bag = group.bag()
        if "filter_ignored" in self.bugs:
            call = Call(call.kind, call.columns, None, call.scale)
        if "nulls_counted" in self.bugs and call.kind == "count" and call.columns:
            call = Call(call.kind, (), call.passes)
        if "distinct_counts_copies" in self.bugs and call.kind == "count_distinct":
            call = Call("count", call.columns, call.passes)
        if "copies_ignored" in self.bugs:
            bag = [(row, 1) for row, _ in bag]
        (made,) = (row for row in batch_aggregate(bag, (), [call])) if bag else (batch_aggregate([], (), [call]))
        value = _plain(made[0])
        if number in group.running:
            value = self._running_result(call, group.running[number], value)
        if "sum_of_nothing_is_0" in self.bugs and call.kind == "sum" and value is None:
            return 0 if call.scale is None else value
        if "average_rounds_down" in self.bugs and call.kind == "avg" and call.scale is not None and value is not None:
            return value - value.scaleb(-1).quantize(value) if value % 1 else value
        if "sample_of_one_is_0" in self.bugs and call.kind.endswith("samp") and value is None and bag:
            return 0.0
        if "nan_is_smallest" in self.bugs and call.kind in ("min", "max") and isinstance(value, float):
            return self._with_small_nan(call, bag, value)
        return value

    def _with_small_nan(self, call: Call, bag: list[tuple[dict[str, Any], int]], value: float) -> float:
        floats = [row[call.columns[0]] for row, _ in bag if row[call.columns[0]] is not None]
        numbers = [one for one in floats if one == one]
        if call.kind == "max" and numbers:
            return max(numbers)
        return math.nan if call.kind == "min" and len(numbers) < len(floats) else value

    def _run(self, group: _Group, number: int, call: Call, row: dict[str, Any], weight: int) -> None:
        """Keep what an engine keeps that does not keep rows."""
        value = row[call.columns[0]] if call.columns else None
        counts = value is not None and (call.passes is None or call.passes(row) is True)
        if "naive_float_sum" in self.bugs and call.kind in ("sum", "avg") and isinstance(value, float) and counts:
            group.running[number] = group.running.get(number, 0.0) + value * weight
        if "short_buffer" in self.bugs and call.kind in ("min", "max") and counts:
            self._run_buffer(group, number, call, value, weight)
        if "extreme_never_retreats" in self.bugs and call.kind in ("min", "max") and counts and weight > 0:
            pick = min if call.kind == "min" else max
            known = group.running.get(number, value)
            group.running[number] = pick(known, value, key=order_of)

    def _run_buffer(self, group: _Group, number: int, call: Call, value: Any, weight: int) -> None:
        buffer = group.running.setdefault(number, [])
        if weight > 0:
            buffer += [value] * weight
            buffer.sort(key=order_of, reverse=call.kind == "max")
            del buffer[_BUFFER:]
        else:
            for _ in range(-weight):
                same = [place for place, one in enumerate(buffer) if order_of(one) == order_of(value)]
                if same:
                    del buffer[same[0]]

    def _running_result(self, call: Call, running: Any, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(running, list):
            return running[0] if running else value
        return value if call.kind == "avg" else running

    def _same(self, old: tuple[Any, ...], new: tuple[Any, ...]) -> bool:
        return "unchanged_groups_said" not in self.bugs and row_identity(old) == row_identity(new)

    def _chunk(self, lines: Sequence[tuple[tuple[Any, ...], int]]) -> ZSet:
        columns = list(zip(*(row for row, _ in lines), strict=True))
        schema = self.output.schema
        arrays = [pa.array(list(column), kind) for column, kind in zip(columns, schema.types, strict=True)]
        weights = np.array([weight for _, weight in lines], np.int64)
        return ZSet(pa.RecordBatch.from_arrays(arrays, schema=schema), weights)


def build_reference_aggregate(
    spec: AggregateSpec,
    *,
    on_bad_input: str = "error",
    directory: str | None = None,
    bugs: Collection[str] = (),
) -> ReferenceAggregate:
    """Build the reference aggregate of a spec, with or without bugs; it keeps nothing in a directory."""
    return ReferenceAggregate(spec, on_bad_input=on_bad_input, bugs=bugs)


def _plain(value: Any) -> Any:
    """Undo `identity` where it made a value that Arrow does not have."""
    if repr(value) == "NaN":
        return math.nan
    if isinstance(value, tuple) and value and value[0] == "list":
        return [_plain(item) for item in value[1:]]
    return value
