"""Names of the work on cold rows during a file operation.

While `named_work` lasts, the description of an operation ends with ` while ` and the work of the outermost of `_CALLS`
that it happens in. So operations can be chosen and counted by what they are for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest import mock

from faults import watching
from spill.pair_store import PairStore
from spill.run import Runs
from spill.run_set import RunSet
from spill.run_store import RunStore
from zset_join.state.cold import cold_side
from zset_join.state.rows.row_tables import RowArena

__all__ = ["WHILE", "by_work", "named_work"]

WHILE = " while "
_CALLS: tuple[tuple[type[Any], str, str], ...] = (
    (RunSet, "__init__", "opening"),
    (Runs, "_read", "fetching"),
    (PairStore, "find", "fetching"),
    (RunSet, "begin_change", "taking"),
    (RunStore, "put", "putting"),
    (RunStore, "put_parts", "putting"),
    (RunStore, "restore", "restoring"),
    (RunStore, "revise", "revising"),
    (PairStore, "put", "putting"),
    (RunSet, "tidy", "merging"),
    (PairStore, "replace", "rewriting entries"),
    (RunSet, "commit", "committing"),
    (RunSet, "is_current", "looking"),
)


@contextmanager
def named_work() -> Iterator[None]:
    """Name the work of operations; let runs be merged, entries and tombstones tidied and memory given back in a few epochs."""
    with ExitStack() as stack:
        for owner, name, work in _CALLS:
            stack.enter_context(mock.patch.object(owner, name, _named(getattr(owner, name), work)))
        stack.enter_context(mock.patch.object(cold_side, "SPARE_ENTRIES", 0))
        stack.enter_context(mock.patch.object(cold_side, "SPARE_TOMBSTONES", 0))
        stack.enter_context(mock.patch.object(RunSet, "fanout", 4))
        stack.enter_context(mock.patch.object(RowArena, "is_sparse", _is_sparse))
        yield


def by_work(described: Iterable[str]) -> Counter[str]:
    """Return how many of some descriptions belong to which work."""
    return Counter(each.rpartition(WHILE)[2] for each in described if WHILE in each)


def _named(call: Callable[..., Any], work: str) -> Callable[..., Any]:
    @wraps(call)
    def named(*arguments: Any, **options: Any) -> Any:
        watching.work.append(f"{WHILE}{work}")
        try:
            return call(*arguments, **options)
        finally:
            watching.work.pop()

    return named


def _is_sparse(arena: RowArena, *, tight: bool = False) -> bool:
    """Give space back as soon as one record of two is dead."""
    return arena.record_bytes() > 2 * arena.layout.stride * (arena.live_rows + 1)
