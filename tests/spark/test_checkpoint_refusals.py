"""What happens when the files of a checkpoint no longer belong together, and the way back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.spark.api.test_query import Run, join_of
from tests.spark.conftest import Collected, Source
from zset_join.checkpoint.reading import checkpoint_folder
from zset_join.core.errors import StateError
from zset_join.runners.spark.epoch.batches import offsets_digest
from zset_join.storage.trusted_files import seal


@pytest.fixture
def stopped(orders: Source, customers: Source, run: Run) -> Collected:
    """Give the output of a query that ran three epochs and was stopped."""
    orders.add(("i", 1, 10, "pen", 1)).add(("i", 2, 20, "ink", 1)).add(("u", 1, 20, "pen", 2))
    customers.add((10, "Ann", 1)).add((20, "Bob", 1)).add((20, "Bobby", 2))
    sink = Collected()
    run(join_of(orders, customers), sink, retainInputLog=True)
    assert len(sink.epochs) == 3
    return sink


def forget_in_spark(checkpoint: Path, folder: str, epoch: int) -> None:
    for name in (str(epoch), f".{epoch}.crc"):
        (checkpoint / folder / name).unlink(missing_ok=True)


def test_a_damaged_log_is_refused_and_one_epoch_can_be_gone_back(
    orders: Source, customers: Source, run: Run, tmp_path: Path, stopped: Collected
) -> None:
    checkpoint = tmp_path / "checkpoint"
    for log in (checkpoint / "zset" / "log").glob("*/00000000000000000002-*"):
        log.write_bytes(log.read_bytes()[:-1] + b"\x7f")
    shutil.rmtree(tmp_path / "local")
    orders.add(("d", 2, None, None, 3))
    customers.add((30, "Cas", 1))

    with pytest.raises(StateError) as refused:
        run(join_of(orders, customers), stopped, retainInputLog=True)
    (checkpoint / "zset" / "commits" / f"{2:020d}.json").unlink()
    forget_in_spark(checkpoint, "commits", 2)
    forget_in_spark(checkpoint, "offsets", 3)
    run(join_of(orders, customers), stopped, retainInputLog=True)

    assert refused.value.code == "DAMAGED_FILE"
    assert stopped.total() == {(20, 1, "pen", "Bobby"): 1}


def test_a_second_query_is_refused_and_so_are_files_of_spark_that_were_rolled_back_before_a_row_is_lost(
    orders: Source, customers: Source, run: Run, tmp_path: Path, stopped: Collected
) -> None:
    writer = join_of(orders, customers).writeStream.options(
        checkpointLocation=str(tmp_path / "checkpoint"), localStateDir=str(tmp_path / "local"), retainInputLog=True
    )
    running = writer.trigger(processingTime="1 hour").to(stopped).start()
    with pytest.raises(StateError, match="is in use by process") as in_use:
        run(join_of(orders, customers), Collected(), retainInputLog=True)
    running.stop()
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "checkpoint", copy, ignore=shutil.ignore_patterns("zset"))
    orders.add(("d", 2, None, None, 3))
    run(join_of(orders, customers), stopped)
    for folder in ("commits", "offsets", "sources"):
        shutil.rmtree(tmp_path / "checkpoint" / folder)
        shutil.copytree(copy / folder, tmp_path / "checkpoint" / folder)
    orders.add(("i", 3, 10, "cap", 4))

    with pytest.raises(StateError) as refused:
        run(join_of(orders, customers), stopped)

    assert in_use.value.code == "CHECKPOINT_IN_USE"
    assert refused.value.code == "EPOCH_REPLANNED"


def test_what_an_epoch_reads_has_a_digest(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("v1")
    (tmp_path / "offsets" / "1").write_text("v1 other")

    digests = [offsets_digest(str(tmp_path), epoch) for epoch in range(3)]

    assert len(set(digests)) == 3
    assert digests[2] is None


class Overtaken(Collected):
    """An output during whose epoch 1 another driver takes over and clears a file away."""

    def __init__(self, checkpoint: Path) -> None:
        super().__init__()
        self.folder = checkpoint_folder(str(checkpoint))

    def write(self, epoch: int, chunks: Any) -> None:
        super().write(epoch, chunks)
        if epoch == 1:
            claims = [name for name in self.folder.names("owners") if name.endswith(".json")]
            found = self.folder.read(max(claims))
            assert found is not None
            body = json.loads(found.to_pybytes())["body"] | {"number": 9, "token": "t", "host": "elsewhere"}
            self.folder.put_new("owners/0000000009.json", seal(body, version=2, name="owners/0000000009.json"))
            raise FileNotFoundError(2, "No such file or directory", "a file that the follower removed")


def test_a_driver_that_fails_after_it_was_followed_reports_that_it_was(
    orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    orders.add(("i", 1, 10, "pen", 1)).add(("i", 2, 20, "ink", 1))
    customers.add((10, "Ann", 1)).add((20, "Bob", 1))

    with pytest.raises(StateError, match="on host elsewhere") as refused:
        run(join_of(orders, customers), Overtaken(tmp_path / "checkpoint"))

    assert refused.value.code == "OWNER_LOST"
