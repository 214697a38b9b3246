"""The owner of a table, its required shape, and its log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake

from zset_join.core.errors import SinkError
from zset_join.sinks import delta_log
from zset_join.sinks.delta_files import DataFile, write_data_files
from zset_join.sinks.delta_log import DeltaLog
from zset_join.storage.object_folder import ObjectFolder

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.string()})
BATCH = pa.record_batch({"k": [1], "v": ["a"]}, schema=SCHEMA)


def opened(place: Path, query_id: str = "query", schema: pa.Schema = SCHEMA, **properties: str) -> DeltaLog:
    log = DeltaLog(str(place / "table"))
    log.open(schema, query_id, {"kind": "view", **properties})
    return log


def one_file(log: DeltaLog) -> list[DataFile]:
    return write_data_files(log.folder, "part", SCHEMA, [BATCH], target_bytes=1 << 20)


def refused(place: Path, **options: Any) -> SinkError:
    with pytest.raises(SinkError) as caught:
        opened(place, **options)
    return caught.value


def test_a_table_that_somebody_else_made_is_left_alone(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "table", pa.table({"precious": [1]}))

    assert refused(tmp_path).code == "SINK_NAME_TAKEN"


def test_a_directory_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "thesis.txt").write_text("mine")

    assert refused(tmp_path).code == "SINK_NAME_TAKEN"


def test_the_table_of_another_query_is_refused_naming_both(tmp_path: Path) -> None:
    opened(tmp_path)

    error = refused(tmp_path, query_id="another")

    assert (error.code, error.facts["expected"], error.facts["actual"]) == ("SINK_QUERY_ID", "query", "another")


def test_other_columns_are_refused_naming_both(tmp_path: Path) -> None:
    opened(tmp_path)

    error = refused(tmp_path, schema=pa.schema({"k": pa.int32()}))

    assert error.code == "SINK_SCHEMA"
    assert "columns [k: long, v: string]" in str(error)
    assert "columns [k: integer]" in str(error)


def test_a_comment_on_a_column_is_no_other_column(tmp_path: Path) -> None:
    opened(tmp_path)

    DeltaTable(tmp_path / "table").alter.set_column_metadata("v", {"comment": "what it is"})

    assert opened(tmp_path).last_epoch() is None


def test_other_properties_are_refused(tmp_path: Path) -> None:
    opened(tmp_path, key="[]")

    assert "key='[\"k\"]'" in str(refused(tmp_path, key='["k"]'))


def test_a_table_that_was_given_deletion_vectors_is_refused(tmp_path: Path) -> None:
    opened(tmp_path)
    DeltaTable(tmp_path / "table").alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)

    error = refused(tmp_path)

    assert (error.code, error.facts["features"]) == ("SINK_FEATURES", ["deletionVectors"])


def test_an_epoch_is_a_commit_that_carries_its_number(tmp_path: Path) -> None:
    log = opened(tmp_path)

    log.commit(0, one_file(log))

    table = DeltaTable(tmp_path / "table")
    assert (table.version(), table.transaction_version("zset_join:query")) == (1, 0)


def test_an_epoch_that_is_there_is_not_added_again(tmp_path: Path) -> None:
    log, other = opened(tmp_path), opened(tmp_path)
    files = one_file(log)
    log.commit(0, files)

    assert not other.commit(0, files)
    assert len(other.files()) == 1


def test_epochs_are_known_after_the_log_was_cut_to_a_checkpoint(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.commit(0, one_file(log))
    log.commit(1, [])
    DeltaTable(tmp_path / "table").create_checkpoint()
    [path.unlink() for path in (tmp_path / "table" / "_delta_log").glob("*.json")]

    assert opened(tmp_path).last_epoch() == 1


def test_a_closed_log_refuses(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.close()

    with pytest.raises(SinkError, match="call open first"):
        log.last_epoch()


def test_a_store_that_cannot_be_reached_is_reported(tmp_path: Path) -> None:
    (tmp_path / "table").write_text("a file, not a directory")

    assert refused(tmp_path).code == "SINK_IO"


@pytest.mark.parametrize("name", ["with space", "100%", "näme", "a#b?c", "x=1"])
def test_a_table_may_lie_in_a_directory_of_any_name(name: str, tmp_path: Path) -> None:
    log = opened(tmp_path / name)
    log.commit(0, one_file(log))

    assert opened(tmp_path / name).last_epoch() == 0
    assert (tmp_path / name / "table" / log.files()[0].name).exists()


def test_the_data_files_may_lie_on_any_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "table"
    remote = ObjectFolder(pa.fs.LocalFileSystem(), str(place), f"store://{place}")
    monkeypatch.setattr(delta_log, "open_folder", lambda *_, **__: remote)
    log = opened(tmp_path)

    log.commit(0, one_file(log))

    assert DeltaTable(place).to_pyarrow_table().to_pylist() == BATCH.to_pylist()
