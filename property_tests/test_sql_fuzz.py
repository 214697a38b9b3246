"""A short run of the fuzzer over statements; `make soak` runs a million of them."""

from __future__ import annotations

import random

import pytest

from property_tests.profiles import profile_name
from property_tests.sql_fuzz import DIALECTS, FIXTURES, LawBrokenError, fuzz, names_mean_themselves, run_one
from zset_join.sql import connect

COUNT = 80 if profile_name() == "push" else 5_000


@pytest.mark.parametrize("dialect", DIALECTS)
def test_statements_run_or_are_refused(dialect: str) -> None:
    found, failures = fuzz(dialect, COUNT, 1)

    assert failures == []
    assert sum(found.values()) == COUNT
    assert found["bound"] + found["done"] + found["queried"] > 0
    assert found["refused"] > 0


def test_hostile_names_and_texts_mean_themselves() -> None:
    assert names_mean_themselves(COUNT // 2, 1) >= COUNT // 2


def test_the_fuzzer_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    with connect() as session:
        monkeypatch.setattr(session, "query", lambda *_, **__: 1 / 0)
        session.sql("CREATE TABLE t (a INT)")
        with pytest.raises(LawBrokenError, match="ZeroDivisionError"):
            run_one(session, "SELECT a FROM t", random.Random(1))


def test_every_dialect_has_fixtures() -> None:
    assert sorted(path.name for path in FIXTURES.iterdir() if path.is_dir()) == list(DIALECTS)
