from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from zset_join.checkpoint import snapshot
from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.snapshot import SnapshotEntry, open_snapshot, read_snapshot, write_snapshot
from zset_join.core.epochs import Tick
from zset_join.core.errors import StateError
from zset_join.core.options import HotBudget
from zset_join.core.relation import Relation
from zset_join.operators.aggregate import Aggregate
from zset_join.operators.join import HashJoin
from zset_join.shapes.aggregate import AggregateCall
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.storage.trusted_files import json_text, read
from zset_join.zset import ZSet

_ROWS = pa.schema({"id": pa.int64(), "k": pa.int64(), "v": pa.string()})
_BUDGET = 1 << 20
_EPOCHS, _EPOCH_ROWS = 10, 10_000


def files_at(root: Path) -> CheckpointFiles:
    return CheckpointFiles.at(str(root), "q")


def test_tables_come_back_with_types_and_metadata(tmp_path: Path) -> None:
    table = pa.table({"k": pa.array([1, None], pa.int16()), "d": pa.array([5, 6], pa.duration("us"))})
    table = table.replace_schema_metadata({b"epoch": b"4"})

    entry = write_snapshot(files_at(tmp_path), "snapshot/join-0", {"left": table}, through_epoch=4, identity="x")

    found = read_snapshot(files_at(tmp_path), entry)["left"]
    assert found.equals(table, check_metadata=True)


def test_an_entry_survives_json(tmp_path: Path) -> None:
    entry = write_snapshot(files_at(tmp_path), "s", {"left": pa.table({"k": [1]})}, through_epoch=4, identity="x")

    assert read(SnapshotEntry, json.loads(json_text(entry))) == entry


def test_a_missing_snapshot_file_is_named(tmp_path: Path) -> None:
    entry = write_snapshot(files_at(tmp_path), "s", {"left": pa.table({"k": [1]})}, through_epoch=4, identity="x")
    (tmp_path / entry.tables["left"].name).unlink()

    with pytest.raises(StateError, match=r"left\.parquet is missing"):
        read_snapshot(files_at(tmp_path), entry)


def hybrid_join() -> HashJoin:
    right = Relation(name="few", schema=_ROWS, join_key=("k",), primary_key=("id",), mode="upsert")
    left = Relation(name="many", schema=_ROWS, join_key=("k",), primary_key=("id",), mode="upsert")
    return HashJoin(left, right, options=OperatorOptions(budget=HotBudget(max_hot_bytes=_BUDGET)))


def hybrid_groups() -> Aggregate:
    source = Relation(name="many", schema=_ROWS, mode="changelog")
    calls = [AggregateCall("max", "v"), AggregateCall("count")]
    return Aggregate(source, ["k"], calls, options=OperatorOptions(budget=HotBudget(max_hot_bytes=_BUDGET)))


@pytest.mark.parametrize("build", [hybrid_join, hybrid_groups])
def test_a_state_on_disk_is_never_in_memory_whole_on_its_way_into_a_snapshot_and_back(
    build: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_GROUP_BYTES", _BUDGET)
    monkeypatch.setattr(snapshot, "_ROWS_AT_ONCE", 1 << 12)
    operator, again = build(), build()
    for epoch in range(_EPOCHS):
        operator.absorb(Tick(epoch), rows_of(epoch, len(operator.inputs)))
    watch = Watch()

    written = {name: watch.watched(reader) for name, reader in operator.snapshot_readers().items()}
    entry = write_snapshot(files_at(tmp_path), "s", written, through_epoch=_EPOCHS - 1, identity="x")

    assert entry.live_bytes > 8 * _BUDGET
    assert watch.most_bytes() < 4 * _BUDGET
    del written
    watch = Watch(again)
    again.restore({name: watch.watched(reader) for name, reader in open_snapshot(files_at(tmp_path), entry).items()})
    assert watch.most_bytes() < 4 * _BUDGET + entry.bytes
    assert watch.most_hot_bytes <= _BUDGET
    assert again.statistics()["postponed_spills"] == 0
    assert sorted_rows(again.snapshot()) == sorted_rows(operator.snapshot())


def rows_of(epoch: int, inputs: int) -> list[ZSet]:
    numbers = range(epoch * _EPOCH_ROWS, (epoch + 1) * _EPOCH_ROWS)
    text = [f"{number:090d}" for number in numbers]
    rows = pa.RecordBatch.from_pydict({"id": list(numbers), "k": list(numbers), "v": text}, schema=_ROWS)
    return [ZSet.of(rows), *(ZSet.empty(_ROWS) for _ in range(inputs - 1))]


def sorted_rows(tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    return {name: table.sort_by("k") for name, table in tables.items()}


class Watch:
    """Follow what Arrow holds, and what an operator has in memory, whenever a batch is requested."""

    def __init__(self, operator: Any = None) -> None:
        self._operator = operator
        self._begin = self._most = pa.total_allocated_bytes()
        self.most_hot_bytes = 0

    def watched(self, reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(reader.schema, self._batches(reader))

    def most_bytes(self) -> int:
        """Return the most that Arrow held beyond the beginning."""
        return self._most - self._begin

    def _batches(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        for batch in reader:
            self._most = max(self._most, pa.total_allocated_bytes())
            if self._operator is not None:
                self.most_hot_bytes = max(self.most_hot_bytes, self._operator.statistics().get("hot_bytes", 0))
            yield batch


def test_a_part_that_cannot_be_decoded_is_an_error_behind_the_parts_before_it() -> None:
    def parts() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"k": [1]})
        yield pa.record_batch({"k": [2]})
        raise OSError("damaged")

    coming = snapshot._read_ahead(parts())

    assert [next(coming), next(coming)] == [pa.record_batch({"k": [1]}), pa.record_batch({"k": [2]})]
    with pytest.raises(OSError, match="damaged"):
        next(coming)
    assert "zset_join-snapshot" not in str([thread.name for thread in threading.enumerate()])
