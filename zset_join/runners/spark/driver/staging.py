"""Batches that a query of Spark writes down where another process takes them: what runs on a server of Spark Connect.

    <location>/zset/batches/7/          the rows of batch 7 and the place of each in it, in Parquet, as Spark wrote them
    <location>/zset/batches/7.json      which input they are of; written last: without it there is no batch

The law: a batch that is listed is whole. Spark completes a batch after that, so none is skipped; one that arrives again
replaces itself. Columns are found by the names that they have in the stream, so a batch that waits while its table gets more
columns has NULL in these.

Back-pressure: where as many batches wait as may, the next one is not written, and Spark reads nothing more, until some are
taken. That wait ends as soon as another reader lists the batches, or the reader closes: the query fails then, and its batch
comes again.

Cost: a batch is written once and read once, beside Spark's own files; of a batch that waits, one look at the folder per half
second.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.core.errors import StateError
from zset_join.runners.spark.driver.epochs import spark_query_id
from zset_join.runners.spark.epoch.batches import offsets_digest
from zset_join.runners.spark.rows.baseline import has_start, uri_below
from zset_join.storage.folder import Folder, is_local, local_path, open_folder
from zset_join.storage.local import remove_tree

__all__ = [
    "PLACE",
    "StagedBatch",
    "Staging",
    "batch_uri",
    "note_reader",
    "note_taken",
    "remove_place",
    "staged_batches",
    "stored_name",
    "taken_through",
]

PLACE = "__at"
"""The column with the place of a row in its batch."""
_BATCHES = "zset/batches"
_TAKEN = "zset/taken"
"""The number of the last batch that was committed elsewhere."""
_READER = "zset/reader"
"""Who takes the batches."""
_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class StagedBatch:
    """Which input the rows of a batch are of."""

    number: int
    read: str | None
    query: str | None
    run: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Staging:
    """Write batches down; callable, for `foreachBatch`; travels as its arguments."""

    location: str
    run: str
    names: Mapping[str, str]
    reader: str
    most_waiting: int

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Write a batch down, once there is room for it."""
        folder, name = open_folder(self.location), f"{_BATCHES}/{number}.json"
        while self.most_waiting and len({*_listed(folder)} - {name}) >= self.most_waiting:
            if bytes(folder.read(_READER) or b"").decode() != self.reader:
                raise StateError(
                    f"batch {number} waits in {self.location} for a reader that has ended, or that another one has replaced. "
                    "Read the table again: the batch is repeated.",
                    code="OWNER_LOST",
                    epoch=number,
                )
            time.sleep(_LOOK_SECONDS)
        folder.remove(name)
        placed = batch.withColumnsRenamed(dict(self.names)).withColumn(PLACE, F.monotonically_increasing_id())
        placed.write.mode("overwrite").parquet(batch_uri(self.location, number))
        read, query = offsets_digest(self.location, number), spark_query_id(self.location)
        staged = StagedBatch(number, read, query, self.run, tuple(self.names.values()))
        folder.put(name, json.dumps(asdict(staged)).encode())


def stored_name(column: str) -> str:
    """Return the stored name of a column, whatever letters it has: Spark ignores their case.

    >>> stored_name("a b")
    'c612062'
    """
    return f"c{column.encode().hex()}"


def batch_uri(location: str, number: int) -> str:
    """Return where the rows of a batch are, as Spark opens it."""
    return uri_below(location, f"{_BATCHES}/{number}")


def taken_through(location: str) -> int:
    """Return the last batch that was committed where its rows went; -1: none is noted."""
    content = open_folder(location).read(_TAKEN)
    return -1 if content is None else int(bytes(content))


def note_taken(location: str, number: int) -> None:
    """Note beside Spark's files that a batch is committed where its rows went."""
    open_folder(location).put(_TAKEN, str(number).encode())


def note_reader(location: str, reader: str) -> None:
    """Note who takes the batches; none has an empty name."""
    open_folder(location).put(_READER, reader.encode())


def staged_batches(location: str, through: int, done: int, reader: str) -> str:
    """Return as JSON the id of Spark's query, all present batches, whether it reads from our start, and the notes."""
    # Batches that are taken are removed; a query that waits for another reader ends.
    folder, noted = open_folder(location), taken_through(location)
    if noted > done:
        return json.dumps({"query": spark_query_id(location), "batches": [], "start": has_start(location), "taken": noted})
    if noted < done:
        note_taken(location, done)
    if bytes(folder.read(_READER) or b"").decode() != reader:
        note_reader(location, reader)
    found: list[StagedBatch] = []
    for name in _listed(folder):
        content = folder.read(name)
        if content is not None:
            found.append(StagedBatch(**json.loads(bytes(content))))
    for one in found:
        if one.number <= through:
            folder.remove(f"{_BATCHES}/{one.number}.json")
            _remove(location, f"{_BATCHES}/{one.number}")
    shown = [asdict(one) for one in sorted(found, key=lambda one: one.number)]
    return json.dumps({"query": spark_query_id(location), "batches": shown, "start": has_start(location), "taken": done})


def _listed(folder: Folder) -> list[str]:
    """Return the files of the batches that are whole."""
    return [one for one in folder.names(_BATCHES) if one.endswith(".json")]


def remove_place(location: str) -> None:
    """Remove all files of a query of Spark."""
    _remove(location, "")


def _remove(location: str, under: str) -> None:
    if is_local(location):
        remove_tree(local_path(location) / under)
        return
    folder = open_folder(location)
    for name in list(folder.names(under)):
        folder.remove(name)
