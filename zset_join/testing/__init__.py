"""Test tools of this project, for tests of your own pipeline: a reference, laws, worked cases and strategies.

Importing it needs nothing beside the engine; `zset_join.testing.strategies` needs hypothesis and
`zset_join.testing.reference_temporal` sortedcontainers, from `pip install './path/to/the/clone[testing]'`.
"""

from __future__ import annotations

from zset_join.testing.comparison import (
    LAWS,
    Epoch,
    IllegalAnswerError,
    LawBrokenError,
    MakeOperator,
    OperatorRun,
    assert_answers_are_pure,
    assert_answers_are_tidy,
    assert_epochs_are_invisible,
    assert_incremental_equals_batch,
    assert_laws,
    assert_quiet_on_quiet,
    assert_snapshots_are_invisible,
    delta_of,
)
from zset_join.testing.reference_tables import BatchFunction, live_rows, reference_aggregate, reference_join
from zset_join.testing.worked_cases import WorkedCase, assert_worked_case, extremes_case, left_join_case, upsert_case

__all__ = [
    "LAWS",
    "BatchFunction",
    "Epoch",
    "IllegalAnswerError",
    "LawBrokenError",
    "MakeOperator",
    "OperatorRun",
    "WorkedCase",
    "assert_answers_are_pure",
    "assert_answers_are_tidy",
    "assert_epochs_are_invisible",
    "assert_incremental_equals_batch",
    "assert_laws",
    "assert_quiet_on_quiet",
    "assert_snapshots_are_invisible",
    "assert_worked_case",
    "delta_of",
    "extremes_case",
    "left_join_case",
    "live_rows",
    "reference_aggregate",
    "reference_join",
    "upsert_case",
]
