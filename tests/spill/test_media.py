"""What the media of cold rows need."""

from __future__ import annotations

import pytest

from spill import media
from zset_join.core.errors import OptionError
from zset_join.core.options import HotBudget


def test_duckdb_is_refused_by_name_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "find_spec", lambda _name: None)

    with pytest.raises(OptionError, match=r"pip install .*\[duckdb\]") as refused:
        HotBudget.of("hybrid", max_hot_keys=1, cold_store="duckdb")

    assert refused.value.code == "MISSING_PACKAGE"


def test_files_need_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "find_spec", lambda _name: None)

    assert HotBudget.of("hybrid", max_hot_keys=1, cold_store="files") == HotBudget(max_hot_keys=1)


@pytest.mark.parametrize(
    ("kind", "cold_store", "reported"),
    [("hybrid", "rocksdb", '"files" or "duckdb"'), ("memory", "duckdb", "state in memory has no budget")],
)
def test_a_medium_that_is_none_or_does_nothing_is_refused(kind: str, cold_store: str, reported: str) -> None:
    limit = 1 if kind == "hybrid" else None

    with pytest.raises(OptionError, match=reported):
        HotBudget.of(kind, max_hot_keys=limit, cold_store=cold_store)
