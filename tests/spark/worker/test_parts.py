"""What tasks leave behind for the driver."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zset_join.checkpoint.files import CheckpointFiles
from zset_join.core.epochs import Tick
from zset_join.core.errors import SinkError, StateError
from zset_join.core.relation import Relation
from zset_join.runners.spark.epoch.outputs import ChangelogOutput
from zset_join.runners.spark.worker import parts
from zset_join.runners.spark.worker.parts import (
    ArrowParts,
    ChangelogParts,
    ParquetParts,
    PartWriter,
    merged,
    read_arrow_parts,
    tidied,
)
from zset_join.runners.spark.worker.quarantine import LETTERS
from zset_join.sinks.parquet_changelog import ParquetChangelogSink, PartFile, commit_epoch, read_changelog
from zset_join.zset import ZSet

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.string()})


@pytest.fixture
def files(tmp_path: Path) -> CheckpointFiles:
    return CheckpointFiles.at(str(tmp_path / "checkpoint"), "query")


def chunk(*rows: tuple[int, str, int]) -> ZSet:
    return ZSet.of({"k": [r[0] for r in rows], "v": [r[1] for r in rows]}, [r[2] for r in rows], schema=SCHEMA)


def test_retractions_of_all_buckets_come_before_all_insertions(files: CheckpointFiles) -> None:
    first = ArrowParts().write(files, 0, Tick(1), SCHEMA, [chunk((1, "a", -1), (1, "b", 1))])
    second = ArrowParts().write(files, 1, Tick(1), SCHEMA, [chunk((2, "c", -2)), chunk((2, "d", 1))])

    rows = [row for found in read_arrow_parts(files, [*first, *second]) for row in found.to_pylist()]

    assert rows == [((1, "a"), -1), ((2, "c"), -2), ((1, "b"), 1), ((2, "d"), 1)]
    assert (first[0].retractions, second[0].retractions, second[0].file.rows) == (1, 1, 2)


@pytest.mark.parametrize("kind", [ArrowParts, ParquetParts, ChangelogParts])
def test_an_empty_answer_leaves_no_file(files: CheckpointFiles, kind: type[PartWriter], tmp_path: Path) -> None:
    writer = kind(str(tmp_path / "output")) if kind is ChangelogParts else kind()

    assert writer.write(files, 0, Tick(1), SCHEMA, [ZSet.empty(SCHEMA)]) == []
    assert writer.write(files, 0, Tick(1), SCHEMA, []) == []
    assert list(tmp_path.rglob("*.*")) == []


def test_a_lost_part_is_noticed_before_anything_is_passed_on(files: CheckpointFiles) -> None:
    parts = ArrowParts().write(files, 0, Tick(1), SCHEMA, [chunk((1, "a", 1))])
    Path(files.uri(parts[0].file.name)).unlink()

    with pytest.raises(StateError, match="is missing"):
        next(read_arrow_parts(files, parts))


def test_an_update_within_a_bucket_is_recognised_by_its_key(files: CheckpointFiles) -> None:
    parts = ParquetParts("row_kind", ("k",)).write(
        files, 0, Tick(1), SCHEMA, [chunk((1, "a", -1)), chunk((1, "b", 1), (2, "c", 1))]
    )

    found = pq.read_table(files.uri(parts[0].file.name))
    assert found.column("_row_kind").to_pylist() == ["-U", "+U", "+I"]
    assert found.column("v").to_pylist() == ["a", "b", "c"]


def test_the_part_of_a_changelog_is_the_file_that_is_committed(files: CheckpointFiles, tmp_path: Path) -> None:
    ParquetChangelogSink(tmp_path / "log").open(Relation(name="answer", schema=SCHEMA, mode="changelog"), "query")

    (part,) = ChangelogParts(str(tmp_path / "log")).write(files, 3, Tick(0), SCHEMA, [chunk((1, "a", -1), (1, "b", 1))])

    assert (part.bucket, part.file.rows, part.retractions) == (3, 2, 1)
    reported = PartFile(part.file.name, part.file.rows, part.retractions, part.file.bytes, part.file.crc32)
    commit_epoch(tmp_path / "log", 0, [reported])
    assert read_changelog(tmp_path / "log").column("_weight").to_pylist() == [-1, 1]


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


def test_chunks_that_are_large_together_are_not_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = [chunk((number, "a", 1), (number, "b", 1)) for number in range(4)]
    monkeypatch.setattr(parts, "MOST_MERGED_BYTES", 2 * chunks[0].rows.nbytes)

    assert [len(found) for found in merged(chunks, 1000)] == [4, 4]


def test_rows_that_a_changelog_can_never_hold_are_refused_or_put_aside_by_the_task(
    files: CheckpointFiles, tmp_path: Path
) -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xffb")]
    )
    answer = ZSet(pa.RecordBatch.from_arrays([pa.array([1, 2, 3]), broken], schema=SCHEMA), np.array([-1, 1, 1]))
    retracted = ZSet(answer.rows.slice(1, 1), np.array([-1]))
    output = ChangelogOutput(str(tmp_path / "log"), "weight")
    relation = Relation(name="answer", schema=SCHEMA, mode="changelog")

    output.open(relation, "query")
    with pytest.raises(SinkError, match=r'log.*cannot take row 1 of the answer of epoch 0: column "v"') as refused:
        output.parts.write(files, 0, Tick(0), SCHEMA, [answer])
    assert refused.value.code == "SINK_VALUE"
    assert output.parts.write(files, 0, Tick(0), SCHEMA, [retracted]) == []
    output.quarantines, output.dead_letter_path = True, str(tmp_path / "dead")
    output.open(relation, "query")
    part, letters = output.parts.write(files, 0, Tick(0), SCHEMA, [answer])

    assert (part.file.rows, part.retractions, letters.form, letters.file.rows) == (2, 1, LETTERS, 1)
    assert repr(output.parts) == repr(output.parts.writer)  # type: ignore[attr-defined]  # as it is in records
    assert pq.read_table(tmp_path / "dead" / letters.file.name).column("code").to_pylist() == ["SINK_VALUE"]


def test_an_answer_is_tidied_unless_it_is_too_large_to_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MOST_TIDY_ROWS", 3)
    pieces = [chunk((1, "a", -1), (2, "b", -1)), chunk((2, "b", 1)), chunk((1, "a", 1))]

    small = [row for one in tidied(iter(pieces[:2]), 2) for row in one.to_pylist()]
    large = [row for one in tidied(iter(pieces), 2) for row in one.to_pylist()]

    assert small == [((1, "a"), -1)]
    assert large == [row for one in pieces for row in one.to_pylist()]
