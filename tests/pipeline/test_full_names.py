"""Names and files of any length: a long name of the user's never becomes a file's name, and what the disk refuses has a code."""

from __future__ import annotations

import errno
import os
from typing import Any

import pyarrow as pa
import pytest

from zset_join.core.errors import OptionError, StateError
from zset_join.pipeline import Pipeline, appends
from zset_join.sql import connect
from zset_join.storage.operations import Operation, observe

LONG = "é" * 300


@pytest.mark.parametrize("number", [errno.EFBIG, errno.ENAMETOOLONG])
def test_a_file_that_is_too_large_or_a_name_too_long_is_a_coded_error_and_the_epoch_is_not_committed(number, tmp_path):
    def failing(operation: Operation, act: Any) -> Any:
        if operation.kind in ("write", "create"):
            raise OSError(number, os.strerror(number), operation.path)
        return act()

    view = appends("rows", {"k": pa.int64()}).groupBy("k").count()
    with Pipeline(view, tmp_path) as pipeline, observe(failing), pytest.raises(StateError) as refused:
        pipeline.step({"rows": [{"k": 1}]})

    with Pipeline(view, tmp_path) as again:
        again.step({"rows": [{"k": 1}]})
        held = again.contents().to_pylist()
    assert (refused.value.code, refused.value.facts["outcome"]) == ("STORAGE_FAILED", "open")
    assert held == [((1, 1), 1)]


def test_names_of_sources_columns_tables_and_views_may_be_longer_than_a_file_name(tmp_path):
    view = appends(LONG, {"k": pa.int64(), f"{LONG}c": pa.string()}).groupBy("k").count()
    for _ in range(2):
        with Pipeline(view, tmp_path / "p") as pipeline:
            pipeline.step({LONG: [{"k": 1, f"{LONG}c": "x"}]})
            held = pipeline.contents().to_pylist()
    for value in (2, 3):
        with connect(directory=tmp_path / "s") as session:
            session.sql(f"CREATE TABLE {LONG} (k INT, v INT)")
            session.sql(f"CREATE MATERIALIZED VIEW {LONG}m AS SELECT k, sum(v) AS total FROM {LONG} GROUP BY k")
            session.sql(f"INSERT INTO {LONG} VALUES (1, {value})")
            total = session.sql(f"SELECT total FROM table({LONG}m)").table().to_pylist()

    assert held == [((1, 2), 1)]
    assert total == [{"total": 5}]


def test_a_directory_whose_name_is_too_long_is_refused_by_a_code(tmp_path):
    with pytest.raises(OptionError, match="cannot be used") as of_session:
        connect(directory=tmp_path / LONG)
    with pytest.raises(OptionError, match="cannot be used") as of_pipeline:
        Pipeline(appends("rows", {"k": pa.int64()}).groupBy("k").count(), tmp_path / LONG)

    assert (of_session.value.code, of_pipeline.value.code) == ("DIRECTORY", "DIRECTORY")
