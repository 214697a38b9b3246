"""What every test of the checkpoint leaves behind: nothing that lives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.checkpoint.query_by_hand import QueryByHand


@pytest.fixture(autouse=True)
def no_driver_stays() -> Iterator[None]:
    """Stop every driver that is left: it would go on writing that it is alive, into whatever the next test observes."""
    yield
    for query in list(QueryByHand.running):
        query.stop()
