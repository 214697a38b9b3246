"""Rows of an append-only source are only added; a pipeline refuses an epoch that retracts one."""

from __future__ import annotations

import pyarrow as pa
import pytest

from zset_join.core.errors import BadInputError
from zset_join.pipeline import Pipeline, appends, changes
from zset_join.zset import ZSet

SEEN = appends("seen", {"k": pa.string()})
PEOPLE = changes("people", {"k": pa.string(), "city": pa.string()}, keys="k")
GIVEN = {
    "people": ZSet.of({"k": ["b", "c"], "city": ["Bonn", None]}, [1, -1]),
    "seen": ZSet.of({"k": ["a", "b"]}, [1, -1]),
}


def test_a_retraction_of_an_append_only_source_is_refused_and_one_of_another_source_is_not() -> None:
    with Pipeline(SEEN.join(PEOPLE, on="k")) as pipeline:
        with pytest.raises(BadInputError, match="row 1 retracts") as caught:
            pipeline.step(GIVEN)
        after = pipeline.step({"people": GIVEN["people"], "seen": [{"k": "b"}]}).to_pylist()

    assert (caught.value.code, caught.value.facts["relation"]) == ("RETRACTION_IN_APPEND", "seen")
    assert after == [(("b", "Bonn"), 1)]
