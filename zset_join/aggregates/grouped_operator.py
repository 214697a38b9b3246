"""The operator protocol over one grouped input: what aggregates and DISTINCT share.

The law: after every epoch the sum of all answers equals the batch query over the sum of the inputs. An answer has, per group
that changed, at most one retraction, of exactly the row that was emitted last, and one insertion; retractions come first.
`answer` and `absorb` prepare the delta of an epoch once between them.

`GroupedInput`: one input, grouped: what a delta does to every group, and the state behind it.

`prepare` reads the state and returns what each touched group was and will be; `absorb` writes exactly that. A row that the
groups cannot take is found here: a retraction of a value, or from a group, that does not exist.

Known limit: groups do not remember rows. A retraction of a row that was never inserted goes unnoticed when its group has rows
and all its values are present in other rows, or when no aggregate keeps single values; a sum that is not 0 when the last row
leaves gives it away at last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from zset_join.aggregates.accumulation import Accumulation, GroupTables, counted_at, partial_relation, parts_of, weights_of
from zset_join.aggregates.accumulators import Int64s, Lines
from zset_join.aggregates.group_state import GroupState
from zset_join.aggregates.hybrid_groups import HybridGroups
from zset_join.aggregates.results import Reading, Result
from zset_join.core.epochs import Tick
from zset_join.core.errors import BadInputError, OptionError, StateError, WeightOverflowError
from zset_join.core.options import HotBudget
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform
from zset_join.core.shown_values import counted, shown_key
from zset_join.kernels.aggregate.groups import add_rows, resolve_rows
from zset_join.kernels.rows import changes as ch
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.rows.directories import HashTables, closed
from zset_join.state.rows.guarded import Answers
from zset_join.state.rows.side_changes import REJECTION_SCHEMA, no_rejections
from zset_join.zset import ZSet, single_batch
from zset_join.zset.protocol import DurableOperator

__all__ = [
    "GroupedInput",
    "GroupedOperator",
    "GroupedOutput",
    "PreparedGroups",
    "RejectedChanges",
    "describe_rejection",
    "groups_at",
    "rejection_table",
]

_REASONS = {
    ch.ABSENT_ROW: (
        "ABSENT_ROW",
        "retracts an absent row; a changelog may not retract what it has not inserted",
    ),
    ch.WEIGHT_OVERFLOW: ("WEIGHT_OVERFLOW", "raises the number of rows of its group past 2^63 - 1"),
    ch.RETRACTION_IN_APPEND: (
        "RETRACTION_IN_APPEND",
        "has a negative weight, but the relation is append-only; declare keys or a weight column if it changes",
    ),
}


@dataclass(frozen=True, slots=True)
class RejectedChanges:
    """The rows of one delta that were omitted."""

    delta: ZSet  # all rows
    status: npt.NDArray[Any]  # per row, one of `zset_join.kernels.rows.changes`

    @property
    def kept(self) -> ZSet:
        """Return the changes that were not omitted."""
        if not self.positions:
            return self.delta
        is_kept = self.status <= ch.LAST_HARMLESS
        return ZSet(self.delta.rows.filter(pa.array(is_kept)), self.delta.weights[is_kept])

    @property
    def positions(self) -> list[int]:
        return np.flatnonzero(self.status > ch.LAST_HARMLESS).tolist()


def rejection_table(relation: Relation, rejected: RejectedChanges) -> pa.Table:
    """Return one line per bad row, with its position in its delta."""
    lines = []
    for row in rejected.positions:
        code, reason = _REASONS[int(rejected.status[row])]
        weight = int(rejected.delta.weights[row])
        lines.append({"input": relation.name, "row": row, "weight": weight, "code": code, "reason": reason})
    return pa.Table.from_pylist(lines, schema=REJECTION_SCHEMA)


def describe_rejection(relation: Relation, rejected: RejectedChanges, tick: Tick) -> BadInputError:
    """Return the error for the first bad row, naming stream, key, weight, epoch and cure."""
    positions = rejected.positions
    row = positions[0]
    code, reason = _REASONS[int(rejected.status[row])]
    columns = relation.primary_key or tuple(relation.schema.names)
    key = shown_key([rejected.delta.rows.column(name) for name in columns], row)
    weight = int(rejected.delta.weights[row])
    error_type = WeightOverflowError if code == "WEIGHT_OVERFLOW" else BadInputError
    return error_type(
        f'relation "{relation.name}", epoch {tick.epoch}: the change with key {key} and weight {weight} {reason} '
        f"({counted(len(positions), 'such row')} in this epoch; nothing of it was applied). "
        'Correct the source, start it from a snapshot, or set on_bad_input="quarantine" to quarantine bad rows.',
        code=code,
        relation=relation.name,
        key=key,
        weight=weight,
        epoch=tick.epoch,
        rejected_rows=len(positions),
    )


_EPOCH_METADATA = b"zset_join.absorbed_epoch"


@dataclass(slots=True)
class PreparedGroups:
    """Effect of one delta, computed before it is applied; valid until the next delta is prepared."""

    lines: Lines
    rejected: RejectedChanges
    rejected_rows: int
    contradiction: int  # an entry that has lost its last row but still has a sum, or -1
    rows: pa.RecordBatch  # rejected ones included


class GroupedInput:
    """Group a relation in changelog or append mode."""

    def __init__(
        self,
        accumulation: Accumulation,
        group_by: tuple[str, ...],
        *,
        preaggregated: bool,
        tables: HashTables,
        name: str,
        budget: HotBudget | None = None,
    ) -> None:
        self.relation = accumulation.relation
        self._preaggregated = preaggregated
        self._accumulation = accumulation
        schema = pa.schema([self.relation.schema.field(column) for column in group_by])
        self.state = GroupState(
            self.relation.name,
            schema,
            accumulation.accumulators,
            fingerprint=(self.relation.name, self.relation.mode, accumulation.meaning(), *(["hybrid"] if budget else [])),
            tables=tables,
            name=name,
        )
        self._tables = GroupTables(self.state, accumulation)
        self.hybrid = None if budget is None else HybridGroups(self.state, self._tables, budget)
        if preaggregated:
            self.relation = partial_relation(self.relation, group_by, accumulation.accumulators)

    # ---------------------------------------------------------------- reading

    def prepare(self, delta: ZSet) -> PreparedGroups:
        """Return the changes of a delta. Cost: the rows of the delta."""
        count = len(delta)
        rows = conform(delta.rows, self.relation)
        if self.hybrid is not None:
            self.hybrid.fetch(rows, count)
        weights = np.require(delta.weights, np.int64, ["C", "W"])
        status = np.full(count, ch.OK, np.int8)
        if self._preaggregated:
            return self._prepare_partial(delta, rows, weights, status)
        if self.relation.mode == "append" and count and weights.min() < 0:
            status[weights < 0] = ch.RETRACTION_IN_APPEND
            weights = np.where(status == ch.OK, weights, 0)
        lines = self.state.load(rows, count)
        if self._add(lines, rows, weights):
            status = self._resolve(lines, rows, weights, status)
            weights = np.where(status == ch.OK, weights, 0)
            lines.reset()
            self._add(lines, rows, weights)
        rejected_rows = int((status > ch.LAST_HARMLESS).sum()) if status.any() else 0
        return PreparedGroups(lines, RejectedChanges(delta, status), rejected_rows, self._contradiction(lines), rows)

    def _prepare_partial(self, delta: ZSet, rows: pa.RecordBatch, weights: Int64s, status: Any) -> PreparedGroups:
        """Add partial lines; one that leaves its group with less than nothing is refused with all lines of that group."""
        if len(delta) and (weights != 1).any():
            status[weights != 1] = ch.ABSENT_ROW
        lines = self.state.load(rows, len(delta))
        add_rows(lines.count, lines.entry_of, weights_of(rows), lines.line_words, lines.after_address)
        below = lines.after[:, 0] < 0
        for one in self._accumulation.accumulators:
            one.merge(lines, [rows.column(field.name) for field in one.columns()])
            counted = lines.after[:, counted_at(one)]
            below |= (counted < 0) | (lines.after[:, 0] < counted)
        status[below[lines.entry_of[: lines.count]]] = ch.ABSENT_ROW
        rejected_rows = int((status != ch.OK).sum())
        return PreparedGroups(lines, RejectedChanges(delta, status), rejected_rows, self._contradiction(lines), rows)

    def _add(self, lines: Lines, rows: pa.RecordBatch, weights: Int64s) -> bool:
        suspicious = bool(add_rows(lines.count, lines.entry_of, weights, lines.line_words, lines.after_address))
        return self._accumulation.add(lines, rows, weights) or suspicious

    def _resolve(self, lines: Lines, rows: pa.RecordBatch, weights: Int64s, status: Any) -> Any:
        """Decide row by row what the groups can take."""
        constraints = self._accumulation.constraints(lines, rows)
        places = np.array([[int(part.ctypes.data) for part in pair] for pair in constraints], np.int64)
        resolve_rows(lines.count, weights, status, len(constraints), int(places.ctypes.data))
        return status

    def _contradiction(self, lines: Lines) -> int:
        if (lines.after[:, 0] == 0).any():
            for one in self._accumulation.accumulators:
                entry = one.leftover(lines)
                if entry >= 0:
                    return entry
        return -1

    def refuse_contradiction(self, prepared: PreparedGroups, tick: Tick) -> None:
        """Raise if a group has lost its last row but still has a sum."""
        entry = prepared.contradiction
        if entry >= 0:
            group = prepared.lines.group_of(entry)
            raise BadInputError(
                f'relation "{self.relation.name}", epoch {tick.epoch}: the group {group} has lost its last row, but its '
                "sums are not 0; a retraction, in this epoch or before, had other values than its row. A changelog "
                "may not retract what it has not inserted: correct the source and start it from a snapshot.",
                code="GROUP_CONTRADICTION",
                relation=self.relation.name,
                group=group,
                epoch=tick.epoch,
            )

    def held(self) -> Iterator[Lines]:
        """Yield all groups as lines to which nothing is added, some at a time; each is valid until the next one."""
        if self.hybrid is not None:
            raise StateError(
                f'groups of "{self.relation.name}" may be on disk, only those in memory can be read without an epoch. Restore '
                "a snapshot into an aggregate without default_hash_table, and read that one.",
                code="GROUPS_ON_DISK",
                relation=self.relation.name,
            )
        schema = self._accumulation.relation.schema
        groups = self._tables.written(*self.state.live_lines())[0]
        parts = list(parts_of(groups)) if self.state.schema.names else [single_batch(groups.slice(0, 0))]
        for part in parts:
            known = self.state.schema.names
            columns = [part.column(at.name) if at.name in known else pa.nulls(part.num_rows, at.type) for at in schema]
            rows = pa.RecordBatch.from_arrays(columns, schema=schema)
            lines = self.state.load(rows, rows.num_rows)
            self._add(lines, rows, np.zeros(rows.num_rows, np.int64))
            yield lines

    # ---------------------------------------------------------------- writing

    def absorb(self, prepared: PreparedGroups | None, epoch: int) -> None:
        """Store the result of `prepare` (None: nothing). Cost: the touched groups, amortised."""
        self.state.begin()
        if prepared is not None:
            self.state.store(prepared.lines)
            if self.hybrid is not None:
                self.hybrid.spill_to_budget(prepared.rows, prepared.rows.num_rows)
        self._end(epoch)

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        """Return readers of the groups, and the values of every multiset, as tables with the key columns in front."""
        readers = {}
        for number, hot in enumerate(self._tables.written(*self.state.live_lines())):
            cold = () if self.hybrid is None else self.hybrid.written(number)
            schema = groups_at(hot.slice(0, 0), epoch=self.state.absorbed_epoch).schema
            readers[self._tables.names[number]] = pa.RecordBatchReader.from_batches(schema, chain(hot.to_batches(), cold))
        return readers

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        self.state.clear()
        self.state.begin()
        ordered = [tables[name] for name in self._tables.names]
        if self.hybrid is not None:
            self.hybrid.restore(ordered)
        else:
            for number, table in enumerate(ordered):
                for part in parts_of(table):
                    self._tables.insert(number, part)
        metadata = ordered[0].schema.metadata or {}
        self._end(int(metadata.get(_EPOCH_METADATA, b"-1")))

    def _end(self, epoch: int) -> None:
        """Declare everything whole at an epoch, the state in memory last."""
        if self.hybrid is not None:
            self.hybrid.commit(epoch)
        self.state.end(epoch)

    def is_current(self) -> bool:
        """Return whether the files are those another process would open: none replaced, grown or left half-written."""
        return self.state.is_current() and (self.hybrid is None or self.hybrid.is_current())

    def resident_bytes(self) -> int:
        return self.state.resident_bytes() + (0 if self.hybrid is None else self.hybrid.resident_bytes())

    def close(self) -> None:
        if self.hybrid is not None:
            self.hybrid.close()
        self.state.close()


def groups_at(table: pa.Table, *, epoch: int) -> pa.Table:
    """Return rows out of several snapshots of one aggregate as a table of a snapshot that is at an epoch."""
    return table.replace_schema_metadata({_EPOCH_METADATA: str(epoch).encode()})


class GroupedOperator(DurableOperator):
    """Answer with the change of some groups."""

    def __init__(
        self,
        accumulation: Accumulation,
        group_by: tuple[str, ...],
        output: Relation,
        *,
        preaggregated: bool = False,
        options: OperatorOptions,
    ) -> None:
        if options.budget is not None and not group_by:
            raise OptionError(
                'default_hash_table="hybrid" without group_by: the one group of all rows cannot be on disk in part. Leave the '
                "option out, or group by a column.",
                code="OPTION_VALUE",
                option="default_hash_table",
                value="hybrid",
            )
        self.group_by = group_by
        self.output = output
        self.on_bad_input = options.on_bad_input
        self._is_closed = False
        self._input = GroupedInput(
            accumulation,
            group_by,
            preaggregated=preaggregated,
            tables=HashTables.of(options),
            name="groups",
            budget=options.budget,
        )
        self.inputs: tuple[Relation, ...] = (self._input.relation,)
        self._output = GroupedOutput(self._input.state, accumulation.results(), output.schema, options.chunk_rows)
        self._prepared: tuple[Tick, ZSet, PreparedGroups] | None = None
        self._reader = object()
        self._answers = Answers()
        self._totals = {"rejected_rows": 0, "contradicting_groups": 0}

    # ---------------------------------------------------------------- the operator protocol

    @property
    @override
    def absorbed_epoch(self) -> int:
        if self._is_closed:
            raise closed("the aggregate")
        return self._input.state.absorbed_epoch

    @override
    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        return self._answers.guarded(self._answer(tick, deltas))

    def _answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        (delta,) = deltas
        if len(delta) == 0 and not self._is_due():
            return
        prepared = self._checked(tick, delta)
        self._reader = reader = object()
        chunks = self._output.chunks(prepared.lines, was_empty=self.absorbed_epoch < 0)
        while True:
            if self._reader is not reader or self._prepared is None:
                raise StateError(
                    "an answer was read on after the next one had begun; finish reading an answer before requesting another.",
                    code="ANSWER_OUTDATED",
                )
            chunk = next(chunks, None)
            if chunk is None:
                return
            yield chunk

    @override
    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        tick.check_follows(self.absorbed_epoch)
        (delta,) = deltas
        prepared = self._checked(tick, delta) if len(delta) else None
        if prepared is not None:
            self._totals["rejected_rows"] += prepared.rejected_rows
            self._totals["contradicting_groups"] += prepared.contradiction >= 0
        self._prepared = None
        self._answers.outdate()
        self._input.absorb(prepared, tick.epoch)

    def fill(self, tick: Tick, chunks: Iterable[ZSet]) -> int:
        """Fold in one epoch that arrives in chunks, each of which only inserts; return its rows. For groups in memory.

        The resulting groups are those that `held` lists.

        Cost: as `absorb`; memory of one chunk.
        """
        tick.check_follows(self.absorbed_epoch)
        rows = 0
        for chunk in chunks:
            prepared = self._prepare(tick, chunk)
            if prepared.rejected_rows and self.on_bad_input == "error":
                raise describe_rejection(self.inputs[0], prepared.rejected, tick)
            self._totals["rejected_rows"] += prepared.rejected_rows
            self._prepared = None
            self._answers.outdate()
            self._input.absorb(prepared, tick.epoch)
            rows += len(chunk)
        for lines in self._input.held():
            self._output.check(lines, tick, self.inputs[0].name)
        return rows

    @override
    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        (delta,) = deltas
        if len(delta) == 0:
            return no_rejections()
        return rejection_table(self.inputs[0], self._prepare(tick, delta).rejected)

    @override
    def resident_bytes(self) -> int:
        return self._input.resident_bytes()

    def held(self) -> Iterator[ZSet]:
        """Yield every group after the absorbed epochs, with its number of rows as the weight.

        An answer that is being read meanwhile is outdated.

        Cost: a snapshot, and the columns of every group.
        """
        for lines in self._input.held():
            self._prepared = None  # its lines are where these are now
            yield from self._output.held(lines)

    @override
    def snapshot(self) -> Mapping[str, pa.Table]:
        return {name: reader.read_all() for name, reader in self.snapshot_readers().items()}

    @override
    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        # Groups on disk in chunks.
        return self._input.snapshot_readers()

    @override
    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        self._prepared = None
        self._answers.outdate()
        self._input.restore(tables)

    @override
    def statistics(self) -> dict[str, int]:
        hybrid = {} if self._input.hybrid is None else self._input.hybrid.statistics()
        groups = self._input.state.groups + self._input.state.cold_groups
        return {**self._totals, "groups": groups, "groups_bytes": self.resident_bytes() - self.working_bytes(), **hybrid}

    @override
    def is_current(self) -> bool:
        return self._input.is_current()

    @override
    def working_bytes(self) -> int:
        return self._input.state.working_bytes()

    @override
    def close(self) -> None:
        self._is_closed = True
        self._prepared = None
        self._answers.outdate()
        self._input.close()

    # ---------------------------------------------------------------- one epoch

    def _is_due(self) -> bool:
        """Return whether the row of a global aggregate has yet to be emitted."""
        return not self.group_by and self.absorbed_epoch < 0

    def _prepare(self, tick: Tick, delta: ZSet) -> PreparedGroups:
        """Resolve the delta; a second call for the same one returns the first result."""
        if self._is_closed:
            raise closed("the aggregate")
        kept = self._prepared
        if kept is not None and kept[0] == tick and kept[1] is delta:
            return kept[2]
        self._prepared = None
        prepared = self._input.prepare(delta)
        self._prepared = (tick, delta, prepared)
        return prepared

    def _checked(self, tick: Tick, delta: ZSet) -> PreparedGroups:
        prepared = self._prepare(tick, delta)
        if self.on_bad_input == "error":
            if prepared.rejected_rows:
                raise describe_rejection(self.inputs[0], prepared.rejected, tick)
            self._input.refuse_contradiction(prepared, tick)
        self._output.check(prepared.lines, tick, self.inputs[0].name)
        return prepared


class GroupedOutput:
    def __init__(self, state: GroupState, results: Sequence[Result], schema: pa.Schema, chunk_rows: int) -> None:
        self._state, self._results, self._schema, self._chunk_rows = state, tuple(results), schema, chunk_rows

    def check(self, lines: Lines, tick: Tick, relation: str) -> None:
        """Refuse an epoch after which a column does not fit its type."""
        for result in self._results:
            result.check(lines, tick, relation)

    def chunks(self, lines: Lines, *, was_empty: bool) -> Iterator[ZSet]:
        """Yield the answer; `was_empty`: no epoch came before, so that a global aggregate has no row yet."""
        existed, exists = lines.before[:, 0] > 0, lines.after[:, 0] > 0
        if not self._state.schema.names:
            existed, exists = np.full(1, not was_empty), np.ones(1, np.bool_)
        readings = [result.read(lines) for result in self._results]
        changed = existed != exists
        for reading in readings:
            changed |= existed & exists & reading.differs()
        old, new = np.flatnonzero(existed & changed), np.flatnonzero(exists & changed)
        refs = self._state.key_refs(lines)
        for begin in range(0, len(old) + len(new), self._chunk_rows):
            end = begin + self._chunk_rows
            parts = old[begin:end], new[max(0, begin - len(old)) : max(0, end - len(old))]
            yield from self._chunk(refs, readings, *parts)

    def held(self, lines: Lines) -> Iterator[ZSet]:
        """Yield the current groups, each with its number of rows as the weight; a global group may have none."""
        readings = [result.read(lines) for result in self._results]
        exists = lines.after[:, 0] > 0 if self._state.schema.names else np.ones(1, np.bool_)
        there, refs = np.flatnonzero(exists), self._state.key_refs(lines)
        counts = lines.after[there, 0]
        done = 0
        for begin in range(0, len(there), self._chunk_rows):
            for chunk in self._chunk(refs, readings, there[:0], there[begin : begin + self._chunk_rows]):
                yield ZSet(chunk.rows, counts[done : done + len(chunk)])
                done += len(chunk)

    def _chunk(self, refs: Int64s, readings: Sequence[Reading], old: Int64s, new: Int64s) -> Iterator[ZSet]:
        chosen = np.concatenate([refs[old], refs[new]])
        try:
            columns = self._state.gather_keys(chosen)
        except OverflowError:
            if len(chosen) == 1:
                raise
            for some in (old, new):
                half = len(some) // 2
                for part in (some[:half], some[half:]):
                    yield from self._chunk(refs, readings, *((part, new[:0]) if some is old else (old[:0], part)))
            return
        columns += [reading.column(old, new) for reading in readings]
        weights = np.ones(len(chosen), np.int64)
        weights[: len(old)] = -1
        yield ZSet(self._rows(columns, len(chosen)), weights)

    def _rows(self, columns: list[pa.Array], count: int) -> pa.RecordBatch:
        if columns:
            return pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
