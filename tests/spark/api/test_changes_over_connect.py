"""A running query that its client cannot change names what does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from zset_join.core.errors import OptionError
from zset_join.spark import JoinQuery


def test_a_change_of_a_running_query_on_executors_over_connect_names_the_command() -> None:
    query: Any = object.__new__(JoinQuery)
    vars(query).update(changing=None, _runner=SimpleNamespace(options=SimpleNamespace(checkpoint_location="/data/cp")))

    with pytest.raises(OptionError, match=r"NOT_FROM_HERE.*Stop it, run zset-join evolve /data/cp QUERY beside the server"):
        query.evolve(None)
    with pytest.raises(OptionError, match=r"NOT_FROM_HERE.*Stop it, run zset-join undo /data/cp beside the server"):
        query.undo()
