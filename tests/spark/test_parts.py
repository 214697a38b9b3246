from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zset_join.errors import StateError
from zset_join.spark.parts import ArrowParts, ParquetParts, merged, read_arrow_parts
from zset_join.tick import Tick
from zset_join.zset import ZSet

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.string()})


def chunk(*rows: tuple[int, str, int]) -> ZSet:
    return ZSet.of({"k": [r[0] for r in rows], "v": [r[1] for r in rows]}, [r[2] for r in rows], schema=SCHEMA)


def test_retractions_of_all_buckets_come_before_all_insertions(tmp_path: Path) -> None:
    first = ArrowParts().write(tmp_path, 0, Tick(1), SCHEMA, [chunk((1, "a", -1), (1, "b", 1))])
    second = ArrowParts().write(tmp_path, 1, Tick(1), SCHEMA, [chunk((2, "c", -2)), chunk((2, "d", 1))])

    rows = [row for found in read_arrow_parts(tmp_path, [*first, *second]) for row in found.to_pylist()]

    assert rows == [((1, "a"), -1), ((2, "c"), -2), ((1, "b"), 1), ((2, "d"), 1)]
    assert (first[0].retractions, second[0].retractions, second[0].file.rows) == (1, 1, 2)


def test_an_empty_answer_leaves_no_file(tmp_path: Path) -> None:
    assert ArrowParts().write(tmp_path, 0, Tick(1), SCHEMA, [ZSet.empty(SCHEMA)]) == []
    assert ParquetParts().write(tmp_path, 0, Tick(1), SCHEMA, []) == []
    assert list(tmp_path.iterdir()) == []


def test_a_lost_part_is_noticed_before_anything_is_handed_out(tmp_path: Path) -> None:
    parts = ArrowParts().write(tmp_path, 0, Tick(1), SCHEMA, [chunk((1, "a", 1))])
    (tmp_path / parts[0].file.name).unlink()

    with pytest.raises(StateError, match="is missing"):
        next(read_arrow_parts(tmp_path, parts))


def test_an_update_within_a_bucket_is_recognised_by_its_key(tmp_path: Path) -> None:
    parts = ParquetParts("row_kind", ("k",)).write(
        tmp_path, 0, Tick(1), SCHEMA, [chunk((1, "a", -1)), chunk((1, "b", 1), (2, "c", 1))]
    )

    found = pq.read_table(tmp_path / parts[0].file.name)
    assert found.column("_row_kind").to_pylist() == ["-U", "+U", "+I"]
    assert found.column("v").to_pylist() == ["a", "b", "c"]


def test_small_chunks_are_put_together_in_their_order() -> None:
    chunks = [chunk((1, "a", -1)), chunk((2, "b", -1)), chunk((3, "c", 1), (4, "d", 1)), chunk((5, "e", 1))]

    together = [found.to_pylist() for found in merged(chunks, 2)]

    assert together == [
        [((1, "a"), -1), ((2, "b"), -1)],
        [((3, "c"), 1), ((4, "d"), 1)],
        [((5, "e"), 1)],
    ]


def test_nothing_is_put_together_from_nothing() -> None:
    assert list(merged([], 2)) == []
