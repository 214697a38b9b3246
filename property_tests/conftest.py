"""Load the Hypothesis profile before any law is collected; let short histories do what is worth it only in large epochs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest import mock

import pytest

from property_tests.profiles import load_profile
from spill.pair_store import PairStore
from spill.run_set import RunSet
from zset_join.operators import first_load
from zset_join.state.join import changed_groups
from zset_join.state.join.hybrid_state import HybridState
from zset_join.state.rows import side_snapshot
from zset_join.state.time import key_runs

# Tests compile what they call: a change of one kernel does not compile all of them.
os.environ.setdefault("ZSET_JOIN_COMPILE", "lazily")

load_profile()


@pytest.fixture(scope="package", autouse=True)
def runs_are_merged_soon() -> Iterator[None]:
    """Merge runs in pairs: a history has few puts."""
    with mock.patch.object(RunSet, "fanout", 2), mock.patch.object(PairStore, "fanout", 2):
        yield


@pytest.fixture(scope="package", autouse=True)
def working_memory_is_given_back_always() -> Iterator[None]:
    """Give the memory of changes and of output rows back after each epoch: a history has few of either."""
    with (
        mock.patch.object(changed_groups, "_MOST_KEPT_CHANGES", 1),
        mock.patch.object(HybridState, "is_tight", return_value=True),
    ):
        yield


@pytest.fixture(scope="package", autouse=True)
def first_rows_and_snapshots_have_several_parts() -> Iterator[None]:
    """Work first rows in parts from two rows on, and cut snapshots after three: a history has few rows."""
    with (
        mock.patch.object(first_load, "PARTS", 2),
        mock.patch.object(first_load, "_LISTED_AT_ONCE", 3),
        mock.patch.object(first_load, "_GATHERED_ROWS", 5),
        mock.patch.object(side_snapshot, "_SNAPSHOT_ROWS", 3),
        mock.patch.object(key_runs, "_SNAPSHOT_ROWS", 3),
    ):
        yield
