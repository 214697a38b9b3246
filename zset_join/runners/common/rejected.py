"""Rows that are set aside, as every runner collects them before it writes them down in its own form.

The law: of every input and epoch, rows in = rows applied + rows here. A row is here once, with the first reason that was found.

Memory: the rows that were set aside.

`SinkEpochs`: a sink as the epochs of a query reach it: the same in this process and on Spark's driver.

    before an epoch counts    rows the sink can never hold are refused, or set aside
    once it counts            the other rows are written, with the epoch's place in the chain

The law: see `zset_join.sinks.sink` and `zset_join.sinks.unfit_values`.

Cost: two looks at the answer of an epoch for a sink that has such rows, one for any other.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.checkpoint.record import LATE_CHANGES_TOTAL
from zset_join.core.epochs import ChainLink
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import take_rows
from zset_join.sinks.sink import Sink, SinkProgress, write_epoch
from zset_join.sinks.unfit_values import (
    FormedSink,
    SelectiveSink,
    UnfitRows,
    check_fits,
    check_weights,
    fitting,
    reasons_by_row,
    unfit_rows,
)
from zset_join.zset import ZSet

__all__ = [
    "LATE",
    "Rejected",
    "RejectedRows",
    "SinkEpochs",
    "add_unfit",
    "count_late_changes",
    "late_change_counts",
    "listed",
    "rejected_rows",
    "taken",
    "unfit_flags",
    "warn_of_late_changes",
    "without",
]

LATE = "LATE_"
"""What the codes of rows begin with that break no contract and only come too late: they are set aside under either policy."""


def count_late_changes(given: Relation, codes: Sequence[str]) -> int:
    """Return how many of the rows that were set aside of an input are late changes; rows that are only added are none."""
    return 0 if given.mode == "append" else sum(code.startswith(LATE) for code in codes)


def late_change_counts(found: Iterable[tuple[str, int]], before: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return the counts of an epoch, from inputs and their late changes, and the progress of the epoch before."""
    epoch: dict[str, int] = {}
    total: dict[str, int] = dict(before.get(LATE_CHANGES_TOTAL, {}))
    for name, count in found:
        if count:
            epoch[name], total[name] = epoch.get(name, 0) + count, total.get(name, 0) + count
    return {"late_changes": epoch, LATE_CHANGES_TOTAL: total} if total else {}


def warn_of_late_changes(progress: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Warn where an epoch has the first late changes of a query."""
    if LATE_CHANGES_TOTAL in progress and LATE_CHANGES_TOTAL not in before:
        shown = ", ".join(f'{count} of "{name}"' for name, count in progress["late_changes"].items())
        warnings.warn(
            f"changes came behind the time up to which rows are kept, and were not applied: {shown} in epoch "
            f"{progress['epoch']}. They are dead letters, and counted in late_changes of the progress; this warning is given "
            "once. Raise keep_probe_for or the delay of the watermark to apply later ones.",
            stacklevel=2,
        )


@dataclass(slots=True)
class Rejected:
    """Collect the rows of one input, or of one output, that are set aside."""

    rows: list[ZSet] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def add(self, rows: ZSet, codes: Sequence[str], reasons: Sequence[str]) -> None:
        if len(rows):
            self.rows.append(rows)
            self.codes += codes
            self.reasons += reasons

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True, slots=True)
class RejectedRows:
    name: str
    rejected: Rejected
    is_of_source: bool = False  # none of them reached a stage
    late_changes: int = 0


def listed(judged: pa.Table, names: Sequence[str]) -> Iterator[tuple[int, npt.NDArray[np.int64], list[str], list[str]]]:
    """Yield, per input with rows in a table of `Operator.rejections`, its number, positions of rows, codes and reasons."""
    which = judged.column("input").to_pylist()
    positions = judged.column("row").to_numpy()
    codes, reasons = judged.column("code").to_pylist(), judged.column("reason").to_pylist()
    for number, name in enumerate(names):
        lines = [line for line, of_input in enumerate(which) if of_input == name]
        if lines:
            yield number, positions[lines], [codes[line] for line in lines], [reasons[line] for line in lines]


def rejected_rows(
    judged: pa.Table, inputs: Sequence[Relation], deltas: Sequence[ZSet], sources: Sequence[str]
) -> Iterator[RejectedRows]:
    """Yield the rows in a table of `Operator.rejections`, input by input."""
    for number, positions, codes, reasons in listed(judged, [one.name for one in inputs]):
        rejected, late = Rejected([taken(deltas[number], positions)], codes, reasons), count_late_changes(inputs[number], codes)
        yield RejectedRows(dict(enumerate(sources)).get(number) or inputs[number].name, rejected, late_changes=late)


def taken(delta: ZSet, positions: npt.NDArray[np.int64]) -> ZSet:
    """Return the rows of a delta at some positions, in the order of these."""
    return ZSet(take_rows(delta.rows, positions), np.ascontiguousarray(delta.weights[positions]))


def without(delta: ZSet, positions: npt.NDArray[np.int64]) -> ZSet:
    """Return the rows of a delta that are not at some positions."""
    kept = np.ones(len(delta), np.bool_)
    kept[positions] = False
    return taken(delta, np.flatnonzero(kept))


class SinkEpochs:
    """Give the epochs of a query to a sink, which its owner opens and closes."""

    def __init__(self, sink: Sink, *, quarantines: bool = False) -> None:
        self.sink = sink
        self.quarantines = quarantines

    @property
    def name(self) -> str:
        return repr(self.sink)

    def put_aside(self, epoch: int, chunks: Iterable[ZSet]) -> Rejected:
        """Return the rows of an answered epoch that the sink can never hold, each with its first reason."""
        rejected, kept = Rejected(), list[ZSet]()
        for chunk in chunks if isinstance(self.sink, SelectiveSink | FormedSink) else ():
            unfit = unfit_rows(self.sink, chunk.rows)
            if self.quarantines:
                add_unfit(rejected, chunk, unfit)
            else:
                check_fits(self.name, chunk, unfit, epoch=epoch)
            kept.append(without(chunk, np.flatnonzero(unfit_flags(chunk.rows, unfit))) if unfit else chunk)
        check_weights(self.sink, kept, epoch=epoch)
        return rejected

    def write(self, epoch: int, chunks: Iterable[ZSet], link: ChainLink | None) -> SinkProgress:
        """Write the rows of an epoch that the sink can hold."""
        return write_epoch(self.sink, epoch, self._fitting(epoch, chunks), link)

    def _fitting(self, epoch: int, chunks: Iterable[ZSet]) -> Iterator[ZSet]:
        for chunk in chunks:
            fit = fitting(self.sink, chunk, drops=self.quarantines, epoch=epoch)
            if len(fit):
                yield fit

    def unfit(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return which rows the sink can never hold; one that does not list such rows holds all."""
        return unfit_flags(rows, unfit_rows(self.sink, rows))


def unfit_flags(rows: pa.RecordBatch, unfit: Sequence[UnfitRows]) -> npt.NDArray[np.bool_]:
    """Return which rows are among those that do not fit, for whatever reason."""
    found = [one.rows for one in unfit]
    return np.logical_or.reduce(found) if found else np.zeros(rows.num_rows, np.bool_)


def add_unfit(rejected: Rejected, delta: ZSet, unfit: Sequence[UnfitRows]) -> None:
    """Put aside the rows of a delta that do not fit, each with its first reason."""
    if unfit:
        reasons = reasons_by_row(delta.rows, unfit)
        rejected.add(taken(delta, np.array(list(reasons), np.int64)), ["SINK_VALUE"] * len(reasons), list(reasons.values()))
