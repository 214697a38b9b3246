"""SIGKILL before and after every file operation of a rescaling: the checkpoint has the old buckets or the new ones, whole.

`rescale` does what `zset_join.spark.rescale` does, and what Spark does in it is here: the rows of old buckets go to new
ones. Reading them, writing the snapshots and the record that makes them true are the product's own.

The epoch before the rescaling may be committed and not yet published: then Spark requests it again, and it must be answered
from the buckets it was committed in.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from faults.copies import copy_life
from faults.driver import JOIN, QUERY_ID, Driver, Place, bucket_of
from faults.histories import History
from faults.kills import KillAt, Moment, heard
from faults.processes import Send, forked
from faults.recovery import Known, check_recovery, opened
from faults.tally import Tally
from faults.watching import OperationList
from zset_join.checkpoint.bucket import BucketState
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.files import attempt_name
from zset_join.checkpoint.owner import Ownership
from zset_join.checkpoint.reading import checkpoint_folder, stored_buckets
from zset_join.checkpoint.record import BucketHistory
from zset_join.checkpoint.snapshot import write_snapshot
from zset_join.core.epochs import Tick
from zset_join.state.rows.side_snapshot import _facts, snapshot_counts
from zset_join.storage.operations import observe

__all__ = ["rescale", "search"]

_AROUND_THE_RECORD = 30


@dataclass(frozen=True)
class _Stage:
    """A stage, how its operator is made, and per table of its snapshot the columns that choose a bucket."""

    name: str
    build: Callable[[str | None], Any]
    keys: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]


def rescale(history: History, place: Place, buckets: int, *, host: str = "host-a") -> None:
    """Give the state of a stopped miniature another number of buckets."""
    location = str(place.checkpoint)
    owner = Ownership.claim(checkpoint_folder(location), QUERY_ID)
    try:
        checkpoint = Checkpoint(
            location,
            query_id=QUERY_ID,
            buckets=stored_buckets(location) or 0,
            description={"how": history.how},
            local_state_dir=str(place.local(host)),
            owner=owner,
        )
        histories: dict[str, BucketHistory] = {}
        for stage in _stages(history):
            histories |= _moved(checkpoint, stage, buckets)
        checkpoint.rescale(buckets, histories)
    finally:
        owner.release()


def _stages(history: History) -> Iterator[_Stage]:
    keys = {
        name: (relation.join_key, relation.primary_key or tuple(relation.schema.names))
        for name, relation in zip(("left", "right"), history.relations, strict=True)
    }
    yield _Stage(JOIN, history.build_join, keys)
    for side in (side for side in (0, 1) if history.routed[side]):
        yield _Stage(f"route-{side}", partial(history.build_route, side), {"route": (history.relations[side].primary_key, ())})


def _moved(checkpoint: Checkpoint, stage: _Stage, buckets: int) -> dict[str, BucketHistory]:
    if checkpoint.last is None:
        return {}
    epoch = checkpoint.last.epoch
    context = replace(checkpoint.stage(stage.name, Tick(epoch + 1)), snapshot_buckets=frozenset(), merge_buckets=frozenset())
    held = []
    for bucket in range(checkpoint.buckets):
        with BucketState(context, bucket, stage.build) as state:
            held.append(dict(state.operator.snapshot()))
    made = {}
    for bucket in range(buckets):
        tables = {}
        for name, (key, otherwise) in stage.keys.items():
            # What was counted is counted once, in bucket 0.
            counts = [sum(found) for found in zip(*(snapshot_counts(old[name]) for old in held), strict=True)]
            rows = pa.concat_tables([_of_bucket(old[name], bucket, buckets, key, otherwise) for old in held])
            tables[name] = rows.replace_schema_metadata(_facts(epoch, counts if bucket == 0 else (0,) * len(counts)))
        folder, identity = f"snapshot/{stage.name}-{bucket}", attempt_name(epoch, "-rescaled")
        snapshot = write_snapshot(checkpoint.files, folder, tables, through_epoch=epoch, identity=identity)
        made[f"{stage.name}/{bucket}"] = BucketHistory(snapshot)
    return made


def _of_bucket(table: pa.Table, bucket: int, buckets: int, key: tuple[str, ...], otherwise: tuple[str, ...]) -> pa.Table:
    chosen = [bucket_of(line, buckets, key, otherwise) == bucket for line in table.to_pylist()]
    return table.filter(pa.array(chosen, pa.bool_()))


def search(
    history: History, directory: Path, tally: Tally, *, epoch: int, buckets: int, is_published: bool, points: int | None
) -> None:
    """Kill a rescaling at its operations, and recover.

    Args:
        history: the query and its input.
        directory: scratch space.
        tally: where to count.
        epoch: the last epoch before the rescaling.
        buckets: the new number.
        is_published: that epoch is in the output; if not, it will be requested again.
        points: how many points, spread over all of them; None for all.
    """
    before, work = directory / "before", directory / "work"
    _prepare(history, Place(before), epoch, is_published=is_published)
    copy_life(before, work)
    listed = forked(partial(_list_operations, history, Place(work), buckets))
    if listed.signal or listed.error:
        raise RuntimeError(f"the rescaling failed without a fault\n{listed.error}")
    moments: tuple[Moment, ...] = ("before", "after")
    every = [(number, moment, reported) for number, reported in enumerate(listed.messages[-1]) for moment in moments]
    rng = Random(f"{epoch}/{buckets}")
    chosen = every
    if points is not None:  # one half anywhere, the other around the record that makes it true
        chosen = [*rng.sample(every[:-_AROUND_THE_RECORD], points // 2), *rng.sample(every[-_AROUND_THE_RECORD:], points // 2)]
    known = Known(epoch, epoch if is_published else epoch - 1)
    for number, moment, reported in chosen:
        where = f"{history.how}, to {buckets} buckets after epoch {epoch}, killed {moment} {number} {reported}"
        shutil.rmtree(work)
        copy_life(before, work)
        tally.count("kills injected")
        kill = KillAt(work, number, moment)
        outcome = forked(partial(_live, history, Place(work), buckets, kill))
        tally.count("kills observed", outcome.signal == signal.SIGKILL)
        if outcome.signal not in (0, signal.SIGKILL) or outcome.error:
            tally.problem(f"{where}: the life ended by signal {outcome.signal} and not by the kill\n{outcome.error}")
        found = stored_buckets(str(Place(work).checkpoint))
        tally.count("rescalings that counted", found == buckets)
        tally.count("rescalings that did not", found == 2)
        tally.add(heard(forked(partial(_recover, history, Place(work), known, where)), where))


def _prepare(history: History, place: Place, epoch: int, *, is_published: bool) -> None:
    with opened(Driver(history, place)) as driver:
        driver.run(range(epoch))
        record = driver.checkpoint.commit(driver.recorded(epoch, driver.answer(epoch)))
        if is_published:
            driver.output.publish(driver.checkpoint.files, record)


def _list_operations(history: History, place: Place, buckets: int, send: Send) -> None:
    listed = OperationList(place.root)
    with observe(listed):
        rescale(history, place, buckets)
    send(listed.described)


def _live(history: History, place: Place, buckets: int, kill: KillAt, send: Send) -> None:
    with observe(kill):
        rescale(history, place, buckets)


def _recover(history: History, place: Place, known: Known, where: str, send: Send) -> None:
    found = Tally()
    check_recovery(history, place, known, found, further=3, where=where)
    send({"counts": dict(found.counts), "problems": found.problems, "lost": found.lost, "doubled": found.doubled})
