"""Reference of the searches with Spark: the files that Spark reports as read."""

from __future__ import annotations

from pathlib import Path

from faults.spark_faults import expected, files_read, write_files


def test_an_epoch_that_was_given_two_files_of_one_side_is_expected_to_have_read_both(tmp_path: Path) -> None:
    write_files(tmp_path, epochs=3, seed=1)
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    offsets.joinpath("0").write_text('v1\n{"batchWatermarkMs":0}\n{"logOffset":0}\n{"logOffset":0}')
    offsets.joinpath("1").write_text('v1\n{"batchWatermarkMs":0}\n{"logOffset":2}\n{"logOffset":1}')

    assert [files_read(tmp_path, epochs) for epochs in (0, 1, 2)] == [(0, 0), (1, 1), (3, 2)]
    assert expected(tmp_path, 0) == {}
    newest = max(row[3] for row in expected(tmp_path, 2) if row[3] is not None)
    assert newest >= 200, "orders of the third file are there"


def test_a_chain_is_expected_to_have_read_its_third_stream_too(tmp_path: Path) -> None:
    write_files(tmp_path, epochs=2, seed=1)
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    offsets.joinpath("0").write_text('v1\n{"batchWatermarkMs":0}\n{"logOffset":0}\n{"logOffset":0}\n{"logOffset":1}')

    assert files_read(tmp_path, 1, "chain") == (1, 1, 2)
    assert {title for _, title, *_ in expected(tmp_path, 1, "chain")} - {None} <= {"title 0", "title 1", "title 2"}
    assert expected(tmp_path, 0, "chain") == {}
