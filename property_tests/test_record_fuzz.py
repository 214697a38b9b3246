"""A short run of the fuzzer over records of every format; `make soak` runs five million of them."""

from __future__ import annotations

import pytest

from property_tests.profiles import profile_name
from property_tests.record_fuzz import fuzz, pipeline_takes
from zset_join.changelog.formats import RECORD_FORMATS

COUNT = 400 if profile_name() == "push" else 20_000


@pytest.mark.parametrize("name", RECORD_FORMATS)
def test_records_are_applied_or_put_aside(name: str) -> None:
    found = fuzz(name, COUNT, 1, batch=200)
    assert found["records"] == COUNT
    assert found["applied"] + found["dead"] + found["ignored"] == COUNT


def test_a_pipeline_puts_aside_what_it_does_not_apply() -> None:
    found = pipeline_takes("debezium-json", 5 * COUNT, 1, batch=200)
    assert found["unread"] > 0
    assert found["refused"] > 0
