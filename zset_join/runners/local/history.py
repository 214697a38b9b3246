"""Kept inputs: the changes of every source, epoch by epoch, with `keep_inputs`.

The law: replayed in order through an empty pipeline they give the same answers.

Memory: all changes that ever came, as Arrow; with a directory they are in its log as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from zset_join.core.errors import OptionError
from zset_join.core.relation import Relation
from zset_join.evolution.changed_columns import ColumnChange
from zset_join.runners.local.feeding import transforms_of
from zset_join.zset import ZSet

__all__ = ["InputHistory", "PastEpoch", "inputs_not_kept", "part_of", "rows_under", "under_columns"]


@dataclass(frozen=True, slots=True)
class PastEpoch:
    epoch: int
    processing_time_us: int | None
    deltas: Mapping[str, ZSet] = field(default_factory=dict)  # by source, without empty ones
    fetched: Mapping[int, ZSet] | None = None  # external rows, by stage; None: not known


class InputHistory:
    def __init__(self) -> None:
        self._epochs: list[PastEpoch] = []

    def add(
        self,
        epoch: int,
        processing_time_us: int | None,
        deltas: Mapping[str, ZSet],
        *,
        fetched: Mapping[int, ZSet] | None = None,
    ) -> None:
        kept = {name: delta for name, delta in deltas.items() if len(delta)}
        self._epochs.append(PastEpoch(epoch, processing_time_us, kept, fetched))

    def go_over(self, epochs: Sequence[PastEpoch]) -> None:
        """These epochs in place of those there were: the same ones under other columns."""
        self._epochs = list(epochs)

    def copied(self) -> InputHistory:
        """Return the input until now; later input is not in it. Cost: a pointer per epoch."""
        copy = InputHistory()
        copy._epochs = list(self._epochs)
        return copy

    def __iter__(self) -> Iterator[PastEpoch]:
        return iter(self._epochs)

    def __len__(self) -> int:
        return len(self._epochs)


def under_columns(history: Iterable[PastEpoch], changes: Iterable[ColumnChange]) -> list[PastEpoch]:
    """Return epochs as if sources had always had the columns that they change to."""
    by_source = {change.source: change for change in changes}
    if not by_source:
        return list(history)
    return [
        replace(past, deltas={name: rows_under(by_source.get(name), delta) for name, delta in past.deltas.items()})
        for past in history
    ]


def rows_under(change: ColumnChange | None, delta: ZSet) -> ZSet:
    """Return rows of a source as if it had always had the columns that it changes to."""
    if change is None:
        return delta
    for transform in transforms_of((change.step,), Relation(name=change.source, schema=change.before)):
        delta = transform(delta)
    return ZSet(pa.RecordBatch.from_arrays(delta.rows.columns, schema=change.after), delta.weights)


def part_of(history: Iterable[PastEpoch], stages: Sequence[int], sources: Sequence[str]) -> Iterator[PastEpoch]:
    """Yield the input of some sources, for a plan of some of the stages, which are numbered from 0 there."""
    wanted = set(sources)
    for past in history:
        yield replace(
            past,
            deltas={name: delta for name, delta in past.deltas.items() if name in wanted},
            fetched=None
            if past.fetched is None
            else {at: past.fetched[number] for at, number in enumerate(stages) if number in past.fetched},
        )


def inputs_not_kept(what: str) -> OptionError:
    return OptionError(
        f"{what} needs every input change, and this pipeline does not keep them. Build it with keep_inputs=True.",
        code="INPUTS_NOT_KEPT",
    )
