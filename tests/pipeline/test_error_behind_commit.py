"""Errors of the disk at every operation of a step: the message about the epoch follows from whether its record is present."""

from __future__ import annotations

import errno
import os
import shutil

import pyarrow as pa
import pytest

from zset_join.checkpoint.bucket import close_kept_operators
from zset_join.core.errors import StateError
from zset_join.pipeline import Pipeline, appends
from zset_join.pipeline import functions as F  # noqa: N812 - PySpark's own habit
from zset_join.storage.operations import observe

GIVEN = {"rows": [{"k": 1, "v": 10}]}
EPOCH = 12  # old records are removed by then
RIGHT = [{"k": 1, "v": EPOCH + 10}]


def view():
    return appends("rows", {"k": pa.int64(), "v": pa.int64()}).groupBy("k").agg(F.sum("v").alias("v"))


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    place = tmp_path_factory.mktemp("stored") / "d"
    with Pipeline(view(), place) as pipeline:
        for _ in range(EPOCH):
            pipeline.step({"rows": [{"k": 1, "v": 1}]})
    return place


def is_record(operation):
    return operation.kind in ("link", "rename") and str(operation.target).endswith(f"/commits/{EPOCH:020d}.json")


class FailingFrom:
    """Let one operation fail, or it and all behind it of its kind; once it was done, or in its place."""

    def __init__(self, number, *, lasts, is_done):
        self.number, self.lasts, self.is_done = number, lasts, is_done
        self.operations = []
        self.kind = None

    def __call__(self, operation, act):
        self.operations.append(operation)
        is_it = len(self.operations) - 1 == self.number
        if is_it:
            self.kind = operation.kind
        if not is_it and not (self.lasts and operation.kind == self.kind):
            return act()
        if self.is_done or operation.kind == "close":
            act()
        raise OSError(errno.EIO, os.strerror(errno.EIO), operation.path)


def operations_from(stored, tmp_path):
    """Return how many operations a step does, and the number of the one that names its commit record."""
    shutil.copytree(stored, tmp_path / "counted")
    noting = FailingFrom(-1, lasts=False, is_done=False)
    with Pipeline(view(), tmp_path / "counted") as pipeline, observe(noting):
        pipeline.step(GIVEN)
    return len(noting.operations), next(number for number, one in enumerate(noting.operations) if is_record(one))


def obeyed(place, failing):
    """Take a step under a fault, follow its error, and return what the view holds, and the messages."""
    close_kept_operators()
    emitted = ""
    with Pipeline(view(), place) as pipeline:
        with observe(failing):
            try:
                pipeline.step(GIVEN)
            except StateError as error:
                emitted = error.facts["outcome"]  # which STORAGE_FAILED alone has
        is_there = (place / "zset" / "commits" / f"{EPOCH:020d}.json").exists()
        assert emitted in (("", "committed") if is_there else ("open",))
        if emitted == "open":
            pipeline.step(GIVEN)
    with Pipeline(view(), place) as again:
        assert again.epoch == EPOCH + 1
        return again.view().to_pylist(), emitted


@pytest.mark.parametrize(("lasts", "is_done"), [(False, True), (True, False)])
def test_the_message_about_an_epoch_follows_from_its_record_and_obeying_it_is_right(stored, tmp_path, lasts, is_done):
    count, record = operations_from(stored, tmp_path)
    reported = set()
    for number in [*range(0, record - 3, 11), *range(record - 3, count)]:
        place = tmp_path / str(number)
        shutil.copytree(stored, place)
        held, emitted = obeyed(place, FailingFrom(number, lasts=lasts, is_done=is_done))
        assert held == RIGHT, number
        reported.add(emitted)
        shutil.rmtree(place)

    assert {"open", "committed"} <= reported
