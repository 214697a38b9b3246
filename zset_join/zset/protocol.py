"""The contract of every operator.

The law: after every epoch the sum of all answers equals the plain query over the sum of all inputs.

`answer` reads the state *before* the epoch and changes nothing; called twice it gives the same answer twice. `absorb` folds
the same deltas into the state. An answer is made while it is read: read after `absorb`, `restore` or `close` it raises
`ANSWER_OUTDATED` (`zset_join.state.rows.guarded`). An operator that raises has applied nothing. It uses no Spark, clock,
randomness or log.

An operator that must run at a given time returns it from `next_due`: it then runs, with empty deltas if need be, in the first
epoch whose watermark or processing time has come that far. Without `next_due`, an empty delta yields an empty answer.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
from typing_extensions import override

from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.zset import ZSet

__all__ = [
    "NOTHING_DUE",
    "AnswerListingOperator",
    "CorrectingOperator",
    "DurableOperator",
    "FillingOperator",
    "ListingOperator",
    "NextDue",
    "Operator",
    "TimedOperator",
    "UnorderedOperator",
    "corrections_of",
    "due_of",
    "earliest",
    "is_timed",
]


@dataclass(frozen=True, slots=True)
class NextDue:
    """When an operator must answer again though no row arrives.

    >>> NextDue(processing_time_us=5).is_due(watermark_us=None, processing_time_us=7)
    True
    """

    watermark_us: int | None = None
    processing_time_us: int | None = None

    def is_due(self, *, watermark_us: int | None, processing_time_us: int | None) -> bool:
        """Return whether it must answer at these times."""
        return (self.watermark_us is not None and watermark_us is not None and watermark_us >= self.watermark_us) or (
            self.processing_time_us is not None
            and processing_time_us is not None
            and processing_time_us >= self.processing_time_us
        )


NOTHING_DUE = NextDue()


@runtime_checkable
class Operator(Protocol):
    """Interface of an operator, for the engine, the checkpoint and the laws."""

    inputs: tuple[Relation, ...]
    output: Relation

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Yield the change of the output in bounded chunks; retractions come before insertions.

        Raises:
            BadInputError: rows that break their relation's contract, with policy `error`.
            WeightOverflowError: an output weight past int64.
            ResourceError: a limit of the options would be passed.
            StateError: `ANSWER_OUTDATED`: read after the state has changed.
        """

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        """Absorb the deltas of one epoch into the state; never those of an epoch whose `answer` raised."""

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        """Return the input rows that break their relation's contract: `input`, `row`, `weight`, `code`, `reason`."""

    def resident_bytes(self) -> int:
        """Return the bytes of state held in memory."""

    def snapshot(self) -> Mapping[str, pa.Table]:
        """Return the live rows, one table per kind of state; indexes are not part of it."""

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Replace the state by a snapshot."""


@runtime_checkable
class TimedOperator(Protocol):
    """An operator that may have rows to emit when time passes."""

    def next_due(self) -> NextDue:
        """Return when the operator must next run, by the state of the last absorbed epoch. Cost: O(1)."""


@runtime_checkable
class CorrectingOperator(Protocol):
    """An operator that may correct what it has answered, and counts it."""

    def corrections(self) -> int | None:
        """Return how many earlier answers, counted as rows, the last answer retracted; None where nothing is corrected ever.

        It is known once that answer has been read.
        """


@runtime_checkable
class UnorderedOperator(Protocol):
    """An operator that has the rows of its state sooner where their order does not count."""

    def rows_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        """Return readers of the tables of `snapshot`, their rows in any order, until the state changes."""


@runtime_checkable
class ListingOperator(Protocol):
    """An operator that can list the rows of its answer from its state alone."""

    def held(self) -> Iterator[ZSet]:
        """Yield every row of the sum of its answers, the weight being how many rows of the input are behind it.

        Raises:
            StateError: a part of the state is not in memory.
        """


@runtime_checkable
class AnswerListingOperator(Protocol):
    """An operator that can list its answer, any columns of it, though it does not remember it."""

    @property
    def lists_answer(self) -> bool:
        """Return whether its state suffices for that now."""

    def listed(self, columns: Collection[str] | None = None) -> Iterator[ZSet]:
        """Yield the sum of its answers so far in bounded chunks, from the state, with some of its columns or all."""


@runtime_checkable
class FillingOperator(ListingOperator, Protocol):
    """An operator that lists its answer, and whose first rows may come in chunks."""

    def fill(self, tick: Tick, chunks: Iterable[ZSet]) -> int:
        """Fold in one epoch that arrives in chunks, each of which only inserts; return its rows."""


def corrections_of(operator: Any) -> int | None:
    """Return how many earlier answers, counted as rows, the last answer of an operator retracted; None where it never does."""
    kind: Any = type(operator)
    corrections: int | None = operator.corrections() if _corrects(kind) else None
    return corrections


@functools.cache
def _corrects(kind: type) -> bool:
    return issubclass(kind, CorrectingOperator)


class DurableOperator(Operator, Protocol):
    """An operator whose state is mapped files."""

    @property
    def absorbed_epoch(self) -> int:
        """Return the last epoch folded in; -1 when fresh."""

    def statistics(self) -> dict[str, int]:
        """Return counts for users."""

    def is_current(self) -> bool:
        """Return whether the mapped files are still those of the directory, and whole."""

    def working_bytes(self) -> int:
        """Return the bytes of the working arrays."""

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        """Return readers of the tables of `snapshot`, batch by batch, until the state changes."""

    @override
    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        """Replace the state by a snapshot, or by what reads one."""

    def close(self) -> None:
        """Release the files."""


def due_of(operator: Any) -> NextDue:
    """Return when an operator must next run without input."""
    due: NextDue = operator.next_due() if is_timed(operator) else NOTHING_DUE
    return due


def is_timed(operator: Any) -> bool:
    """Return whether an operator may have rows to emit when time passes. Cost: a look into a table."""
    kind: Any = type(operator)
    return _is_timed(kind)


@functools.cache
def _is_timed(kind: type) -> bool:
    return issubclass(kind, TimedOperator)


def earliest(dues: Iterable[NextDue]) -> NextDue:
    """Return the first of several times.

    >>> earliest([NextDue(watermark_us=5), NextDue(watermark_us=3, processing_time_us=9)])
    NextDue(watermark_us=3, processing_time_us=9)
    """
    watermarks, times = [], []
    for due in dues:
        watermarks += [] if due.watermark_us is None else [due.watermark_us]
        times += [] if due.processing_time_us is None else [due.processing_time_us]
    return NextDue(min(watermarks, default=None), min(times, default=None))
