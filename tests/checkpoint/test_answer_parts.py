"""The parts of an answer are read back with all retractions before the first insertion."""

from __future__ import annotations

import pyarrow as pa
import pytest

from zset_join import Tick, ZSet
from zset_join.checkpoint.answer_parts import ArrowParts, read_arrow_parts
from zset_join.checkpoint.files import CheckpointFiles

SCHEMA = pa.schema({"x": pa.int64()})


@pytest.fixture
def files(tmp_path):
    return CheckpointFiles.at(str(tmp_path), "a-query")


def test_two_parts_are_read_as_one_answer_with_retractions_first(files):
    parts = ArrowParts(durable=True)
    written = parts.write(files, 0, Tick(0), SCHEMA, [ZSet.of({"x": [1, 2]}, [-1, 1], schema=SCHEMA)])
    written += parts.write(files, 1, Tick(0), SCHEMA, [ZSet.of({"x": [3]}, [-1], schema=SCHEMA)])

    rows = [row for chunk in read_arrow_parts(files, written) for row in chunk.to_pylist()]

    assert rows == [((1,), -1), ((3,), -1), ((2,), 1)]
    assert [(part.file.rows, part.retractions) for part in written] == [(2, 1), (1, 1)]


def test_an_empty_answer_leaves_no_part(files):
    assert ArrowParts().write(files, 0, Tick(0), SCHEMA, [ZSet.empty(SCHEMA)]) == []
