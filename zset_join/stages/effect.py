"""The contract of a stage that reads an external table: a fetch step before `answer`, whose result is one input more.

The law: `Effect.completed` gives, for one epoch and the same rows, the same deltas at every call; the
first call may fetch, and writes the answer down before it returns. So `answer` and `absorb` stay functions of
their inputs.

What a runner does: before it runs the operator of such a stage, it puts the deltas of the stage's inputs through `completed`,
and from there on treats the output as the epoch's deltas: it answers them, logs them, folds them. The operator has one
input more than the stage. Once an epoch is committed, with these deltas in its log, `forget` may drop what was written down
for it.

`OwnOptions`: options that the stages of one query of a pipeline have in place of those of the pipeline.

The law: two stages with other options are never one stage, whatever else they have in common. What is written of them is read
back equal.

`warm_up`: compile the kernels a query needs once, in the driver, before its workers start.

A compiled kernel is kept in a cache that all processes read. Without this, every worker would compile the same kernels at
the same time on a new machine, which takes minutes; with it they load them.

Cost: a second when the cache is filled.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, Protocol, Self, cast, runtime_checkable

import pyarrow as pa
import pyarrow.types as pt

from zset_join.core.epochs import Tick
from zset_join.core.options import BufferLimit, HotBudget
from zset_join.core.relation import Relation
from zset_join.stages.stage import Stage, StageOptions
from zset_join.stages.written import read_fields, write_fields
from zset_join.storage.folder import Folder
from zset_join.zset import ZSet
from zset_join.zset.protocol import DurableOperator

__all__ = [
    "CHANGEABLE",
    "Effect",
    "EffectPlace",
    "EffectStage",
    "Effects",
    "OwnOptions",
    "has_effect",
    "own_of",
    "unchangeable",
    "warm_up",
]

CHANGEABLE = "  fetches: "
"""The prefix of a line of `explain()` with options that may change between starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectPlace:
    """The bucket of a fetch step."""

    options: StageOptions
    name: str  # of the stage in its plan
    bucket: int = 0
    buckets: int = 1  # share the limits of the query
    folder: Folder | None = None  # of the checkpoint; None: answers are not written down


class Effect(Protocol):
    """The fetch step of one bucket of one stage, opened once per worker."""

    def completed(self, operator: DurableOperator, tick: Tick, deltas: Sequence[ZSet]) -> list[ZSet]:
        """Return the deltas for the operator, which is in the state before the epoch."""

    def forget(self, through_epoch: int) -> None:
        """Drop the journal of epochs that are committed and logged."""

    def counts(self) -> Mapping[str, int]:
        """Return the counts, for progress."""

    def close(self) -> None:
        """Release connections."""


@runtime_checkable
class EffectStage(Protocol):
    """A stage whose operator is fed external rows."""

    def rehearsed(self, operator: DurableOperator, tick: Tick, deltas: Sequence[ZSet]) -> list[ZSet]:
        """Return the deltas for the operator without external rows; nothing is fetched."""

    def open_effect(self, place: EffectPlace, beside: Effect | None = None) -> Effect:
        """Return the fetch step of one bucket; it uses the connections of the one `beside` it in this process."""


def unchangeable(stage: Stage) -> dict[str, Any]:
    """Return the JSON that identifies a stage after a restart, without the settings of the fetch."""
    described = stage.to_json()
    if isinstance(stage, EffectStage):
        described.pop("hint", None)
        described.get("source", {}).pop("max_answer_bytes", None)
    return described


def has_effect(stage: Stage) -> bool:
    """Return whether a stage queries external systems. Cost: a look into a table."""
    return _fetches(type(stage))


@cache
def _fetches(kind: type[Stage]) -> bool:
    return issubclass(kind, EffectStage)


class Effects:
    """Open the fetch steps of a runner as they are needed, and close them together."""

    def __init__(self) -> None:
        self._opened: dict[tuple[str, int], Effect] = {}

    def opened(self, stage: Stage, place: EffectPlace) -> Effect:
        """Return the fetch step of a bucket, kept from epoch to epoch; those of one stage use the same connections."""
        key = place.name, place.bucket
        effect = self._opened.get(key)
        if effect is None:
            beside = next((one for (name, _), one in self._opened.items() if name == place.name), None)
            effect = self._opened[key] = cast(EffectStage, stage).open_effect(place, beside)
        return effect

    def forget(self, through_epoch: int) -> None:
        for effect in self._opened.values():
            effect.forget(through_epoch)

    def counts(self) -> dict[str, dict[str, int]]:
        return {name: dict(effect.counts()) for (name, _), effect in self._opened.items()}

    def close(self) -> None:
        opened, self._opened = self._opened, {}
        for effect in opened.values():
            effect.close()


@dataclass(frozen=True, kw_only=True)
class OwnOptions:
    """Options of the operators of one query, which replace those of the pipeline; the arguments are as in `StageOptions`."""

    tombstone_retention_seconds: int
    buffer_limit: BufferLimit
    hot_budget: HotBudget | None
    table_budget: HotBudget | None

    def over(self, options: StageOptions) -> StageOptions:
        """Return the options of the pipeline with these in their place."""
        return replace(
            options,
            tombstone_retention_seconds=self.tombstone_retention_seconds,
            buffer_limit=self.buffer_limit,
            hot_budget=self.hot_budget,
            table_budget=self.table_budget,
        )

    def explained(self, stage: Stage) -> str:
        facts = [f"deleted keys remembered for {self.tombstone_retention_seconds:,} seconds"]
        if stage.is_append_buffer:
            facts.append(f"at most {self.buffer_limit.max_bytes:,} bytes of rows, then {self.buffer_limit.policy}")
        for what, budget in {"rows of joins": self.hot_budget, "groups": self.table_budget}.items():
            facts.append(f"{what} {'all' if budget is None else f'at most {budget.describe()}'} in memory")
        return f"options of its own: {'; '.join(facts)}"

    def to_json(self) -> dict[str, Any]:
        return write_fields(self)

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Self:
        return read_fields(cls, written)


def own_of(options: StageOptions) -> OwnOptions:
    """Return the options that a single query may set."""
    return OwnOptions(
        tombstone_retention_seconds=options.tombstone_retention_seconds,
        buffer_limit=options.buffer_limit,
        hot_budget=options.hot_budget,
        table_budget=options.table_budget,
    )


def warm_up(stages: Sequence[Stage], *, is_hybrid: bool = False, has_cold_groups: bool = False) -> None:
    """Run every operator of a query over one made-up row per input: in, kept in a snapshot and back, then out again."""
    nothing = HotBudget(max_hot_keys=0)
    options = StageOptions(hot_budget=nothing if is_hybrid else None, table_budget=nothing if has_cold_groups else None)
    with tempfile.TemporaryDirectory(prefix="zset_join-") as directory:
        for number, stage in enumerate(stages):
            _one_row(stage.inputs[0].relation, 1).consolidated()
            place = Path(directory) / str(number)
            place.mkdir()
            operator = stage.build(options, str(place))
            try:
                _exercise(operator, stage)
            finally:
                operator.close()


def _exercise(operator: DurableOperator, stage: Stage) -> None:
    for epoch, weight in enumerate((1, -1)):
        deltas = []
        for given in stage.inputs:
            row = _one_row(given.relation, weight)
            deltas.append(row if given.reduce is None else given.reduce.reduce(row))
        if isinstance(stage, EffectStage):
            deltas = stage.rehearsed(operator, Tick(epoch, 0), deltas)
        for _ in operator.answer(Tick(epoch, 0), deltas):
            pass
        operator.absorb(Tick(epoch, 0), deltas)
        operator.restore(operator.snapshot())


def _one_row(relation: Relation, weight: int) -> ZSet:
    if weight < 0 and relation.mode == "append":
        return ZSet.empty(relation.schema)
    row = {field.name: _plain_value(field.type) for field in relation.schema}
    return ZSet.of(pa.Table.from_pylist([row], schema=relation.schema), [weight])


def _plain_value(kind: pa.DataType) -> Any:
    if pt.is_struct(kind):
        return {kind.field(at).name: _plain_value(kind.field(at).type) for at in range(kind.num_fields)}
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_map(kind):
        return []
    if pt.is_string(kind) or pt.is_large_string(kind):
        return "text that is longer than twelve bytes"
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return b"bytes that are more than twelve"
    if pt.is_decimal(kind):
        return Decimal(0)
    if pt.is_boolean(kind):
        return False
    return None if pt.is_null(kind) else 0
