"""Interface of a measured engine, and the registry of engines.

The law of a fair measurement: every contestant sees the same relations, first rows and epochs, holds its state in
memory, runs on one thread, and has finished its answer, in its own natural form, when `step` returns. Turning Arrow
into that form (tuples for the dict join) happens in `prepare`, outside the clock; whatever comes out is counted
outside of it as well. A contestant is imported only in the process that measures it, so that none pays for the
libraries of another.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa

from benchmarks.workloads import Epoch
from zset_join.core.relation import Relation

__all__ = ["CONTESTANTS", "Contestant", "build_contestant"]

CONTESTANTS = {
    "zset_join": "benchmarks.engine_zset_join:ZsetJoinEngine",
    "zset_join_view": "benchmarks.engine_view:ZsetJoinView",
    "dict": "benchmarks.baseline_dict:DictJoin",
    "dict_without_gc": "benchmarks.baseline_dict:DictJoinWithoutGc",
    "polars": "benchmarks.baseline_polars:PolarsJoin",
    "duckdb": "benchmarks.baseline_duckdb:DuckdbJoin",
}


class Contestant(Protocol):
    """An inner join of two upsert relations that is kept up to date epoch by epoch."""

    def load(self, side: int, rows: pa.RecordBatch) -> None:
        """Add first rows to one side; their primary keys are new."""
        ...

    def loaded(self) -> None:
        """Hear that the first rows are complete."""
        ...

    def prepare(self, epoch: Epoch) -> Any:
        """Turn an epoch into this contestant's own form of input; not measured."""
        ...

    def step(self, prepared: Any) -> Any:
        """Apply one epoch and return the change of the output; this is what is measured."""
        ...

    def count_rows(self, answer: Any) -> int:
        """Count the rows of an answer; costs no more than a walk over its chunks."""
        ...

    def weighted_rows(self, answer: Any) -> Iterator[tuple[tuple[Any, ...], int]]:
        """Yield the answer as `(row, weight)`, left columns first; for the check of equality."""
        ...


def build_contestant(name: str, relations: tuple[Relation, Relation]) -> Contestant:
    """Import and build a contestant by its name.

    Raises:
        KeyError: the name is unknown.
        ImportError: its library, or the module itself, is missing.
    """
    module, _, attribute = CONTESTANTS[name].partition(":")
    built: Contestant = getattr(importlib.import_module(module), attribute)(relations)
    return built
