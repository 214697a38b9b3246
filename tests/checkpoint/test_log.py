from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from zset_join.checkpoint import record
from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.record import BucketHistory, LogEntry, merge_logs, read_log, write_log
from zset_join.core.epochs import Tick
from zset_join.core.errors import StateError
from zset_join.storage.trusted_files import json_text, read
from zset_join.zset import ZSet

ORDERS = pa.schema({"id": pa.int64(), "note": pa.string()})
CUSTOMERS = pa.schema({"id": pa.int64()})
SCHEMAS = [ORDERS, CUSTOMERS]


def files_at(root: Path, query_id: str = "q") -> CheckpointFiles:
    return CheckpointFiles.at(str(root), query_id)


def log_epoch(root: Path, epoch: int, orders: ZSet, customers: ZSet) -> LogEntry:
    entry = write_log(files_at(root), "log/join-0", tick=Tick(epoch, 1000 + epoch), deltas=[orders, customers])
    assert entry is not None
    return entry


def test_what_is_logged_comes_back_with_its_weights_and_tick(tmp_path: Path) -> None:
    orders = ZSet.of({"id": [1, 2], "note": ["a", None]}, [1, -3], schema=ORDERS)
    entry = log_epoch(tmp_path, 7, orders, ZSet.empty(CUSTOMERS))

    (logged,) = read_log(files_at(tmp_path), entry, schemas=SCHEMAS)

    assert logged.tick == Tick(7, 1007)
    assert logged.deltas[0].to_pylist() == [((1, "a"), 1), ((2, None), -3)]
    assert logged.deltas[1].to_pylist() == []
    assert entry.file.rows == 2


def test_a_large_epoch_that_is_written_piece_by_piece_comes_back_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_BYTES_AT_ONCE", 0)
    orders, customers = ZSet.of({"id": [1, 2], "note": ["a", None]}, [1, -3], schema=ORDERS), ZSet.of({"id": [5]})
    entry = log_epoch(tmp_path, 7, orders, customers)

    (logged,) = read_log(files_at(tmp_path), entry, schemas=SCHEMAS)

    assert [one.to_pylist() for one in logged.deltas] == [orders.to_pylist(), customers.to_pylist()]
    assert (tmp_path / entry.file.name).stat().st_size == entry.file.bytes


def test_an_epoch_without_rows_leaves_no_file(tmp_path: Path) -> None:
    empty = [ZSet.empty(schema) for schema in SCHEMAS]

    assert write_log(files_at(tmp_path), "log/join-0", tick=Tick(0), deltas=empty) is None
    assert list(tmp_path.iterdir()) == []


def test_nested_columns_and_exact_types_survive_the_log(tmp_path: Path) -> None:
    schema = pa.schema(
        {
            "amount": pa.decimal128(20, 4),
            "at": pa.timestamp("us", tz="UTC"),
            "tags": pa.list_(pa.struct({"k": pa.string(), "v": pa.float32()})),
            "map": pa.map_(pa.string(), pa.int32()),
        }
    )
    at = datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC)
    row = {"amount": Decimal("1.5000"), "at": at, "tags": [{"k": "x", "v": 0.5}], "map": [("a", 1)]}
    delta = ZSet.of(pa.Table.from_pylist([row], schema=schema))
    entry = write_log(files_at(tmp_path), "log/join-0", tick=Tick(0), deltas=[delta])
    assert entry is not None

    (logged,) = read_log(files_at(tmp_path), entry, schemas=[schema])

    assert logged.deltas[0].rows.equals(delta.rows)


def test_merged_logs_give_the_same_epochs_in_order(tmp_path: Path) -> None:
    first = log_epoch(tmp_path, 0, ZSet.of({"id": [1], "note": ["a"]}), ZSet.of({"id": [5]}))
    second = log_epoch(tmp_path, 3, ZSet.of({"id": [2], "note": ["b"]}), ZSet.empty(CUSTOMERS))

    merged = merge_logs(files_at(tmp_path), "log/join-0", [first, second])

    found = list(read_log(files_at(tmp_path), merged, schemas=SCHEMAS))
    assert [logged.tick.epoch for logged in found] == [0, 3]
    assert [logged.identity for logged in found] == [first.identity, second.identity]
    assert found[0].deltas[1].to_pylist() == [((5,), 1)]
    assert (merged.first_epoch, merged.last_epoch, merged.identity) == (0, 3, second.identity)


def test_what_several_joins_logged_of_an_epoch_is_one_entry_that_adds_up(tmp_path: Path) -> None:
    before = log_epoch(tmp_path, 1, ZSet.of({"id": [7], "note": ["z"]}), ZSet.empty(CUSTOMERS))
    first = log_epoch(tmp_path, 2, ZSet.of({"id": [1], "note": ["a"]}), ZSet.of({"id": [5]}))
    second = log_epoch(tmp_path, 2, ZSet.of({"id": [2], "note": ["b"]}), ZSet.empty(CUSTOMERS))

    together = read(LogEntry, json.loads(json_text(LogEntry.together([first, second]))))
    merged = merge_logs(files_at(tmp_path), "log/join-0", [before, together])

    (logged,) = read_log(files_at(tmp_path), together, schemas=SCHEMAS)
    assert logged.deltas[0].to_pylist() == [((1, "a"), 1), ((2, "b"), 1)]
    assert logged.deltas[1].to_pylist() == [((5,), 1)]
    assert (together.identity, together.rows, together.bytes) == (second.identity, 3, first.bytes + second.bytes)
    again = list(read_log(files_at(tmp_path), merged, schemas=SCHEMAS))
    assert [(one.tick.epoch, one.identity) for one in again] == [(1, before.identity), (2, second.identity)]
    assert again[1].deltas[0].to_pylist() == logged.deltas[0].to_pylist()
    assert BucketHistory(None, (before, together)).log_bytes == merged.bytes


def test_the_log_of_another_query_is_refused(tmp_path: Path) -> None:
    entry = log_epoch(tmp_path, 0, ZSet.of({"id": [1], "note": ["a"]}), ZSet.empty(CUSTOMERS))

    with pytest.raises(StateError, match="checksum"):
        list(read_log(files_at(tmp_path, "another"), entry, schemas=SCHEMAS))


def test_a_damaged_log_is_refused_before_a_row_is_read(tmp_path: Path) -> None:
    entry = log_epoch(tmp_path, 0, ZSet.of({"id": [1], "note": ["a"]}), ZSet.empty(CUSTOMERS))
    path = tmp_path / entry.file.name
    path.write_bytes(path.read_bytes()[:-4] + b"\1\2\3\4")

    with pytest.raises(StateError, match="checksum"):
        list(read_log(files_at(tmp_path), entry, schemas=SCHEMAS))
