"""A query that a server of Spark Connect runs is not changed from its client."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from zset_join.core.errors import OptionError
from zset_join.runners.spark.driver.served import ServedQuery
from zset_join.spark import JoinQuery


def test_a_served_query_is_changed_by_the_command_line_where_its_checkpoint_is() -> None:
    query: Any = JoinQuery.__new__(JoinQuery)
    query.changing, query._runner = None, ServedQuery.__new__(ServedQuery)
    query._runner.settings = SimpleNamespace(options=SimpleNamespace(checkpoint_location="/there"))

    with pytest.raises(OptionError, match="zset-join evolve /there QUERY") as refused:
        query.evolve(None)

    assert refused.value.code == "NOT_FROM_HERE"
    assert "executors" not in str(refused.value)
