"""A query on the driver that is stopped, changed and started: Spark's batches continue, and outputs get the difference once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.spark.conftest import Collected, Source
from tests.spark.driver.test_driver_epochs import _filled, _joined
from zset_join.runners.local.checkpoint_diff import diff_of_checkpoint
from zset_join.runners.local.stopped import evolve_directory
from zset_join.spark import JoinedStream, JoinQuery
from zset_join.spark import functions as F  # noqa: N812 - PySpark's own habit

Run = Callable[..., JoinQuery]


def _sums(orders: Source, customers: Source, *, at_least: int) -> JoinedStream:
    return _joined(orders, customers).where(f"order_id >= {at_least}").groupBy("name").agg(F.count().alias("n"))


def _by_name(sink: Collected) -> list[tuple[str, int]]:
    assert set(sink.total().values()) <= {1}
    return sorted(row for row in sink.total())  # type: ignore[type-var]


def test_batches_go_on_behind_two_changes_and_a_batch_that_comes_again_is_not_taken_twice(
    orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    _filled(orders, customers)
    before, between, after = (_sums(orders, customers, at_least=at) for at in (0, 2, 4))
    checkpoint, sink = tmp_path / "checkpoint", Collected()
    run(before, sink, execution="driver")
    first, batches = _by_name(sink), len(list((checkpoint / "commits").glob("[0-9]*")))

    differs = diff_of_checkpoint(checkpoint, after.writeStream.planned)
    evolve_directory(checkpoint, between.writeStream.planned)
    run(between, sink, execution="driver")
    changed = evolve_directory(checkpoint, after.writeStream.planned)
    for path in (checkpoint / "commits").glob(f"*{batches - 1}*"):
        path.unlink()  # Spark runs the batch before the changes again
    orders.add((None, 5, 10, "bag", 4))
    query = run(after, sink, execution="driver")

    assert (changed.taken, differs.taken) == (batches + 1, None)
    assert first == [("ANNA", 1), ("BOB", 1)]
    assert _by_name(sink) == [("ANNA", 1), ("BOB", 1)]
    assert len(sink.epochs) == query._runner.progress.entries[-1]["epoch"] + 1 == batches + 3
    assert query.lastProgress["join"]["batch"] == batches  # type: ignore[index]
    assert len(list((checkpoint / "offsets").glob("[0-9]*"))) == batches + 1
    assert (sink.epochs[batches], dict(sink.epochs[batches + 1])) == ([], {("ANNA", 1): -1})
