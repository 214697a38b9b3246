"""The operators a worker process keeps open between epochs.

Opening a bucket maps its files, and mapping means that the first touch of every page takes a detour through the kernel: for
100,000 changes against a million rows that costs more than answering them. So a worker keeps what it had open, and takes it up
again when the files are still the same, whole, and stamped with the epoch the operator is at. Other workers may have folded
epochs meanwhile: mapped memory is shared, so the operator sees them.

With it the worker keeps the deltas it logged last. When they are what the next epoch has to fold first, they need not be read
back, and what the operator found out about them need not be found again.

Law: what is taken is never in here any more, and everything in here is taken under the bucket's lock, so no two attempts share
an operator.

Bounds: all states of a plan are to stay open, since an epoch that opens them again takes twice as long. Together at most
`MOST_OPERATORS` operators, `MOST_FILES` mapped files, each of which holds a descriptor, and `MOST_BYTES` of working arrays and
deltas; the least recently used goes first, and the newest stays. None with working arrays above `MOST_WORKING_BYTES`; no deltas
above `MOST_DELTA_BYTES`.

Known limits: a plan that goes beyond a bound opens all its states in every epoch: each has gone before its turn comes again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from zset_join.core.tick import Tick
from zset_join.zset import ZSet

__all__ = ["KeptOperator", "LoggedDeltas", "OpenOperators", "Reopenable"]

MOST_OPERATORS = 64
MOST_FILES = 512
MOST_BYTES = 1 << 30
MOST_WORKING_BYTES = 128 << 20
MOST_DELTA_BYTES = 64 << 20


class Reopenable(Protocol):
    """Statistics of the operators in here."""

    def is_current(self) -> bool:
        """Return whether the mapped files are still those of the directory, and whole."""
        ...

    def working_bytes(self) -> int:
        """Return the bytes of the working arrays."""
        ...

    def close(self) -> None:
        """Release the files."""
        ...


_Operator = TypeVar("_Operator", bound=Reopenable)


@dataclass(frozen=True, slots=True)
class LoggedDeltas:
    """Hold what one attempt logged."""

    identity: str
    tick: Tick
    deltas: tuple[ZSet, ...]
    bytes: int

    @classmethod
    def small_enough(cls, identity: str, tick: Tick, deltas: Sequence[ZSet]) -> LoggedDeltas | None:
        """Return them if they are worth their memory."""
        held = sum(delta.rows.get_total_buffer_size() + delta.weights.nbytes for delta in deltas)
        return cls(identity, tick, tuple(deltas), held) if held <= MOST_DELTA_BYTES else None


@dataclass(frozen=True, slots=True)
class KeptOperator(Generic[_Operator]):
    """Hold an open operator."""

    operator: _Operator
    logged: LoggedDeltas | None
    files: int


class OpenOperators(Generic[_Operator]):
    """Keep operators open, by where their files are and which driver they work for."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int], tuple[KeptOperator[_Operator], int]] = OrderedDict()

    def take(self, directory: str, opened_at_ns: int) -> KeptOperator[_Operator] | None:
        """Return an operator whose files are still the same, and forget it; None when there is none."""
        kept, _ = self._kept.pop((directory, opened_at_ns), (None, 0))
        if kept is not None and not kept.operator.is_current():
            kept.operator.close()
            return None
        return kept

    def keep(self, directory: str, opened_at_ns: int, kept: KeptOperator[_Operator]) -> None:
        """Keep an operator open; close it, or others, where that is too much."""
        working = kept.operator.working_bytes()
        if working > MOST_WORKING_BYTES:
            kept.operator.close()
            return
        replaced, _ = self._kept.pop((directory, opened_at_ns), (None, 0))
        if replaced is not None:
            replaced.operator.close()
        held = working + (0 if kept.logged is None else kept.logged.bytes)
        self._kept[directory, opened_at_ns] = kept, held
        while len(self._kept) > 1 and self._is_too_much():
            _, (oldest, _) = self._kept.popitem(last=False)
            oldest.operator.close()

    def _is_too_much(self) -> bool:
        kept = list(self._kept.values())
        files, held = sum(one.files for one, _ in kept), sum(held for _, held in kept)
        return len(kept) > MOST_OPERATORS or files > MOST_FILES or held > MOST_BYTES

    def clear(self, opened_at_ns: int | None = None) -> None:
        """Close those of one driver, or all."""
        for key in [key for key in list(self._kept) if opened_at_ns in (None, key[1])]:
            kept, _ = self._kept.pop(key, (None, 0))
            if kept is not None:
                kept.operator.close()
