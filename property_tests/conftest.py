"""Load the Hypothesis profile before any law is collected; let short histories merge what they put on disk."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest

from property_tests.profiles import load_profile
from spill.pair_store import PairStore
from spill.run_set import RunSet

load_profile()


@pytest.fixture(scope="session", autouse=True)
def runs_are_merged_soon() -> Iterator[None]:
    """Merge runs in pairs: a history has few puts."""
    with mock.patch.object(RunSet, "fanout", 2), mock.patch.object(PairStore, "fanout", 2):
        yield
