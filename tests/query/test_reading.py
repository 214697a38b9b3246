"""A pipeline is fed the sources that are bound to rows in process, and refuses others."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from zset_join.core.errors import PlanError
from zset_join.pipeline import Pipeline, appends
from zset_join.query.reading import Binding


def test_a_source_that_is_bound_to_another_runner_is_refused_by_name() -> None:
    clicks = appends("clicks", {"user": pa.int64()})
    elsewhere = replace(clicks, bindings=tuple(Binding(source=one.source) for one in clicks.bindings))

    with pytest.raises(PlanError, match='source "clicks" is bound to a Binding') as refused:
        Pipeline(elsewhere)

    assert refused.value.code == "SPARK_ONLY_STEP"
