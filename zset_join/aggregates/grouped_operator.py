"""The operator protocol over one grouped input: what aggregates and DISTINCT share.

The law: after every epoch the sum of all answers equals the batch query over the sum of the inputs. An answer has, per group
that changed, at most one retraction, of exactly the row that was emitted last, and one insertion; retractions come first.
`answer` and `absorb` prepare the delta of an epoch once between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from zset_join.aggregates.accumulation import Accumulation
from zset_join.aggregates.accumulators import Int64s, Lines
from zset_join.aggregates.group_state import GroupState
from zset_join.aggregates.grouped_input import GroupedInput, PreparedGroups, describe_rejection, rejection_table
from zset_join.aggregates.results import Reading, Result
from zset_join.core.epochs import Tick
from zset_join.core.errors import OptionError, StateError
from zset_join.core.relation import Relation
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.rows.directories import HashTables, closed
from zset_join.state.rows.guarded import Answers
from zset_join.state.rows.side_changes import no_rejections
from zset_join.zset import ZSet

__all__ = ["GroupedOperator", "GroupedOutput"]


class GroupedOperator:
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
    def absorbed_epoch(self) -> int:
        """Return the last absorbed epoch, -1 if there was none."""
        if self._is_closed:
            raise closed("the aggregate")
        return self._input.state.absorbed_epoch

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Yield the change of the groups in chunks of at most `chunk_rows` rows; all retractions come first."""
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

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        """Fold the delta of one epoch into the state."""
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

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        """Return the rows that no group accepts: `input`, `row`, `weight`, `code`, `reason`."""
        (delta,) = deltas
        if len(delta) == 0:
            return no_rejections()
        return rejection_table(self.inputs[0], self._prepare(tick, delta).rejected)

    def resident_bytes(self) -> int:
        """Return the bytes of the state and of the working arrays."""
        return self._input.resident_bytes()

    def held(self) -> Iterator[ZSet]:
        """Yield every group after the absorbed epochs, with its number of rows as the weight.

        An answer that is being read meanwhile is outdated.

        Cost: a snapshot, and the columns of every group.
        """
        for lines in self._input.held():
            self._prepared = None  # its lines are where these are now
            yield from self._output.held(lines)

    def snapshot(self) -> Mapping[str, pa.Table]:
        """Return the groups as table `groups`, and each multiset as a table `values_<n>`."""
        return {name: reader.read_all() for name, reader in self.snapshot_readers().items()}

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        """Return readers of the tables of `snapshot`, batch by batch, until the state changes; groups on disk in chunks."""
        return self._input.snapshot_readers()

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        """Replace the state by a snapshot. Cost: its rows."""
        self._prepared = None
        self._answers.outdate()
        self._input.restore(tables)

    def statistics(self) -> dict[str, int]:
        """Return counts: groups, state bytes, rejected rows so far."""
        hybrid = {} if self._input.hybrid is None else self._input.hybrid.statistics()
        groups = self._input.state.groups + self._input.state.cold_groups
        return {**self._totals, "groups": groups, "groups_bytes": self.resident_bytes() - self.working_bytes(), **hybrid}

    def is_current(self) -> bool:
        """Return whether another process would open these mapped files: none was replaced, extended or partly written."""
        return self._input.is_current()

    def working_bytes(self) -> int:
        """Return the bytes of the working arrays, which are not part of the state."""
        return self._input.state.working_bytes()

    def close(self) -> None:
        """Unmap the state; the operator cannot be used afterwards."""
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
