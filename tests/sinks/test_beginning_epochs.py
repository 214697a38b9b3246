"""Outputs that are new begin with the epoch of a change, which has all rows; one that has rows of before is not given it."""

from __future__ import annotations

import pytest

from zset_join.core.epochs import ChainLink
from zset_join.core.errors import SinkError
from zset_join.sinks.sink import is_same_epoch

BEGINS = ChainLink("d", "c", begins=True)


def test_an_epoch_that_outputs_begin_with_is_refused_by_one_that_has_epochs() -> None:
    digests = {3: "c", 4: "d"}

    with pytest.raises(SinkError, match="EVOLVE_OUTPUT"):
        is_same_epoch("view", 3, digests.get, 4, BEGINS)
    assert is_same_epoch("view", 4, digests.get, 4, BEGINS)
    assert not is_same_epoch("view", None, digests.get, 4, BEGINS)
