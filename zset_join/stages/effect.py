"""The contract of a stage that reads an external table: a fetch step before `answer`, whose result is one input more.

The law: `Effect.completed` gives, for one epoch and the same rows, the same deltas at every call; the
first call may fetch, and writes the answer down before it returns. So `answer` and `absorb` stay functions of
their inputs.

What a runner does: before it runs the operator of such a stage, it puts the deltas of the stage's inputs through `completed`,
and from there on treats the output as the epoch's deltas: it answers them, logs them, folds them. The operator has one
input more than the stage. Once an epoch is committed, with these deltas in its log, `forget` may drop what was written down
for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, cast, runtime_checkable

from zset_join.core.epochs import Tick
from zset_join.stages.stage import Stage, StageOptions
from zset_join.storage.folder import Folder
from zset_join.zset import ZSet
from zset_join.zset.protocol import DurableOperator

__all__ = ["CHANGEABLE", "Effect", "EffectPlace", "EffectStage", "Effects", "has_effect", "unchangeable"]

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
        ...

    def forget(self, through_epoch: int) -> None:
        """Drop the journal of epochs that are committed and logged."""
        ...

    def counts(self) -> Mapping[str, int]:
        """Return the counts, for progress."""
        ...

    def close(self) -> None:
        """Release connections."""
        ...


@runtime_checkable
class EffectStage(Protocol):
    """A stage whose operator is fed external rows."""

    def rehearsed(self, operator: DurableOperator, tick: Tick, deltas: Sequence[ZSet]) -> list[ZSet]:
        """Return the deltas for the operator without external rows; nothing is fetched."""
        ...

    def open_effect(self, place: EffectPlace, beside: Effect | None = None) -> Effect:
        """Return the fetch step of one bucket; it uses the connections of the one `beside` it in this process."""
        ...


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
