"""The stages of a plan at work in one process: an epoch is answered stage by stage, then folded into all of them.

The law: after every epoch the sum of the answers is the plan over the sum of the inputs. `answer` changes nothing: asked twice
with the same rows and times it gives the same twice. An epoch that raises in `answer` has changed nothing.

A stage is asked when rows come to it, when it is due by watermark or processing time, and in the first epoch where it has
something to say without rows. All others cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from zset_join.pipeline.feeding import Feeding
from zset_join.pipeline.watermarks import SourceTime, Watermarks
from zset_join.plan.query_plan import QueryPlan, StageNode
from zset_join.protocol import DurableOperator, TimedOperator
from zset_join.relation import Relation
from zset_join.tick import Tick
from zset_join.zset import ZSet

__all__ = ["AnsweredEpoch", "Engine"]

BuildOperator = Callable[[StageNode], DurableOperator]


@dataclass(slots=True)
class AnsweredEpoch:
    """Hold one epoch that is answered and not folded in.

    Args:
        epoch: its number.
        processing_time_us: of the epoch.
        delta: the change of the view.
        times: what is known of the sources' event times after it.
        asked: the stages that were asked: tick and deltas by number.
        late: rows at or before the watermark of their epoch, by source.
    """

    epoch: int
    processing_time_us: int | None
    delta: ZSet
    times: dict[str, SourceTime]
    asked: dict[int, tuple[Tick, list[ZSet]]] = field(default_factory=dict)


class Engine:
    """Run the stages of a plan.

    Args:
        plan: the plan.
        build: makes the operator of a stage.
        watermarks: of the plan.

    Attributes:
        operators: of the stages, by number.
    """

    def __init__(self, plan: QueryPlan, build: BuildOperator, watermarks: Watermarks) -> None:
        self.plan = plan
        self.watermarks = watermarks
        self._inputs = [
            [
                Feeding(plan, feeds, stage_input.relation.schema)
                for feeds, stage_input in zip(node.feeds, node.stage.inputs, strict=True)
            ]
            for node in plan.nodes
        ]
        self._output = Feeding(plan, plan.outputs, plan.output.schema)
        self._is_tidy = len(plan.outputs) == 1 and not plan.outputs[0].steps and isinstance(plan.outputs[0].origin, int)
        self.operators: list[DurableOperator] = []
        try:
            for node in plan.nodes:
                self.operators.append(build(node))
        except BaseException:
            self.close()
            raise
        self._projections = [
            _projection(operator.output, node.stage.output) for operator, node in zip(self.operators, plan.nodes, strict=True)
        ]
        self._begins_alone = [node.stage.begins_alone for node in plan.nodes]
        self._timed = [operator if isinstance(operator, TimedOperator) else None for operator in self.operators]

    def answer(self, epoch: int, deltas: Mapping[str, ZSet], processing_time_us: int | None) -> AnsweredEpoch:
        """Return the change of the view, and what folding the epoch in takes.

        Raises:
            BadInputError: rows that break the contract of their source.
        """
        times = self.watermarks.advanced(deltas, processing_time_us) if self.watermarks.sources else {}
        known: dict[str | int, ZSet] = dict(deltas.items())
        asked: dict[int, tuple[Tick, list[ZSet]]] = {}
        for number, feedings in enumerate(self._inputs):
            fed = [feeding.collect(known) for feeding in feedings]
            before, after = None, None
            if times:
                before = self.watermarks.of_stage(number, self.watermarks.sources, processing_time_us)
                after = self.watermarks.of_stage(number, times, processing_time_us)
                if before is not None:
                    after = before if after is None else max(before, after)
            if not any(map(len, fed)) and not self._speaks(number, epoch, after, processing_time_us):
                continue
            tick = Tick(epoch, processing_time_us, before, after)
            asked[number] = tick, fed
            answer = self._gathered(number, list(self.operators[number].answer(tick, fed)))
            if answer is not None:
                known[number] = answer
        delta = self._output.collect(known)
        if not self._is_tidy and len(delta):
            (delta,) = list(delta.tidy_chunks(max(1, len(delta)))) or [self._output.nothing]
        return AnsweredEpoch(epoch, processing_time_us, delta, times, asked)

    def absorb(self, answered: AnsweredEpoch) -> None:
        """Fold an epoch into the stages that were asked."""
        for number, (tick, fed) in answered.asked.items():
            self.operators[number].absorb(tick, fed)
        if answered.times:
            self.watermarks.sources = answered.times

    def rejections(self, answered: AnsweredEpoch) -> list[tuple[str, pa.Table, list[ZSet]]]:
        """Return per stage that rejected rows their list and its deltas; ask before the epoch is folded in."""
        made = []
        for number, (tick, fed) in answered.asked.items():
            table = self.operators[number].rejections(tick, fed)
            if table.num_rows:
                made.append((self.plan.nodes[number].name, table, fed))
        return made

    def resident_bytes(self) -> int:
        """Return the bytes of state held in memory."""
        return sum(operator.resident_bytes() for operator in self.operators)

    def close(self) -> None:
        """Let go of all state."""
        for operator in self.operators:
            operator.close()

    def _speaks(self, number: int, epoch: int, watermark_us: int | None, processing_time_us: int | None) -> bool:
        if epoch == 0 and self._begins_alone[number]:
            return True
        timed = self._timed[number]
        return timed is not None and timed.next_due().is_due(watermark_us=watermark_us, processing_time_us=processing_time_us)

    def _gathered(self, number: int, chunks: Sequence[ZSet]) -> ZSet | None:
        if not chunks:
            return None
        whole = chunks[0] if len(chunks) == 1 else ZSet.concat(chunks, schema=chunks[0].schema)
        projection = self._projections[number]
        if projection is None:
            return whole
        positions, schema = projection
        columns = [whole.rows.column(at) for at in positions]
        return ZSet(pa.RecordBatch.from_arrays(columns, schema=schema), whole.weights)


def _projection(whole: Relation, shown: Relation) -> tuple[list[int], pa.Schema] | None:
    """Return which columns of an operator's answer a stage shows, and its schema; None where it shows them all."""
    if whole.schema.names == shown.schema.names:
        return None
    return [whole.schema.get_field_index(name) for name in shown.schema.names], shown.schema
