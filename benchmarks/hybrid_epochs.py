"""The epochs of the hybrid benchmarks, and a process apart that draws them.

Orders join customers. First come the rows of both tables (those of `benchmarks.workloads`, customers before orders), then
changes: 45 % order updates of which half move to another customer, 45 % new orders, 5 % deleted orders, 5 % customer updates.
Orders and customers are drawn uniformly, or by Zipf's law with exponent 1.1, in an order that has nothing to do with their ids.

Where the memory of a join is measured, its process must not hold what draws the epochs: `drawn_apart` has them drawn by another
one and holds one epoch at a time. They come through a pipe, so the other process waits for the next request.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.workloads import LEFT, RIGHT, OrdersCustomers
from zset_join.zset import ZSet

__all__ = ["Changes", "drawn_apart", "first_epochs"]

SEED = 20260403
EXPONENT = 1.1

_WIRE = pa.schema(
    [("id", pa.int64()), ("second", pa.int64()), ("third", pa.float64()), ("word", pa.string()), ("weight", pa.int64())]
)

Ints = npt.NDArray[np.int64]
Draw = Callable[[int], Ints]


class Changes:
    """Draw epochs, the same ones for the same arguments.

    Args:
        workload: whose tables change.
        keys: `zipf` or `uniform`.
        changes: rows per epoch.
    """

    def __init__(self, workload: OrdersCustomers, keys: str, changes: int) -> None:
        self._workload = workload
        self._rng = np.random.default_rng([SEED, changes])
        self._customers, self._orders = self._drawn(keys, workload.scale), self._drawn(keys, 3 * workload.scale)
        parts = [batch.column(1).to_numpy() for batch in workload.initial(LEFT)]
        self._customer_of: Ints = np.concatenate(parts).astype(np.int64)
        self._changes = changes

    def _drawn(self, keys: str, count: int) -> Draw:
        if keys == "uniform":
            return lambda size: self._rng.integers(0, count, size)
        shares = np.cumsum(np.arange(1, count + 1, dtype=np.float64) ** -EXPONENT)
        names = np.random.default_rng(SEED).permutation(count)
        return lambda size: names[np.searchsorted(shares, self._rng.random(size) * shares[-1])]

    def epochs(self, count: int) -> Iterator[list[ZSet]]:
        """Yield epochs."""
        updates, few = self._changes * 45 // 100, self._changes * 5 // 100
        for _ in range(count):
            updated, deleted = self._orders(updates), self._orders(few)
            first_new = len(self._customer_of)
            new = np.arange(first_new, first_new + self._changes - updates - 2 * few)
            moved = np.where(np.arange(updates) % 2 == 0, self._customers(updates), self._customer_of[updated])
            self._customer_of = np.concatenate([self._customer_of, self._customers(len(new))])
            self._customer_of[updated] = moved
            ids = np.concatenate([updated, new, deleted])
            weights = np.ones(len(ids), np.int64)
            weights[-few:] = -1
            buyers = self._customers(few)
            yield [
                ZSet.of(self._rows(LEFT, ids, self._customer_of[ids]), weights),
                ZSet.of(self._rows(RIGHT, buyers, self._rng.integers(0, 50, few))),
            ]

    def _rows(self, side: int, ids: Ints, second: Ints) -> pa.RecordBatch:
        words = pa.array([f"word-{number:03d}" for number in range(1000)])
        third = pa.array(self._rng.random(len(ids)))
        columns = [pa.array(ids), pa.array(second), third, words.take(pa.array(self._rng.integers(0, 1000, len(ids))))]
        return pa.RecordBatch.from_arrays(columns, schema=self._workload.relations[side].schema)


def first_epochs(workload: OrdersCustomers, changes: int) -> Iterator[list[ZSet]]:
    """Yield the first rows of both tables as the deltas of epochs of so many rows."""
    for side in (RIGHT, LEFT):
        nothing = ZSet.empty(workload.relations[1 - side].schema)
        for rows in workload.initial(side):
            for begin in range(0, len(rows), changes):
                part = ZSet.of(rows.slice(begin, changes))
                yield [part, nothing] if side == LEFT else [nothing, part]


def drawn_apart(scale: int, keys: str, *, first: int = 0, changes: int = 0, epochs: int = 0) -> Iterator[list[ZSet]]:
    """Yield epochs that another process draws, each when it is requested.

    Args:
        scale: of the workload whose tables they are.
        keys: `zipf` or `uniform`.
        first: rows per epoch of the first rows; 0 leaves these out.
        changes: rows per epoch of the changes that follow.
        epochs: how many of those.

    Raises:
        CalledProcessError: the other process failed.
    """
    given = {"scale": scale, "keys": keys, "first": first, "changes": changes, "epochs": epochs}
    command = [sys.executable, "-m", "benchmarks.hybrid_epochs", json.dumps(given)]
    schemas = [relation.schema for relation in OrdersCustomers(1).relations]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        with pa.ipc.open_stream(process.stdout) as reader:
            while deltas := _read_epoch(reader, schemas):
                yield deltas
                del deltas
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, command)


def _read_epoch(reader: pa.RecordBatchStreamReader, schemas: Sequence[pa.Schema]) -> list[ZSet]:
    """Return the next epoch; nothing at the end."""
    deltas = []
    for schema in schemas:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return []
        rows = pa.RecordBatch.from_arrays(batch.columns[:-1], schema=schema)
        deltas.append(ZSet(rows, batch.column(len(schema)).to_numpy()))
    return deltas


def _send(given: dict[str, Any]) -> None:
    """Write the epochs that `drawn_apart` requests to standard output."""
    workload = OrdersCustomers(given["scale"])
    with pa.ipc.new_stream(sys.stdout.buffer, _WIRE) as writer:
        if given["first"]:
            _write(writer, first_epochs(workload, given["first"]))
        if given["epochs"]:
            _write(writer, Changes(workload, given["keys"], given["changes"]).epochs(given["epochs"]))


def _write(writer: pa.RecordBatchWriter, epochs: Iterator[list[ZSet]]) -> None:
    for deltas in epochs:
        for delta in deltas:
            writer.write_batch(pa.RecordBatch.from_arrays([*delta.rows.columns, pa.array(delta.weights)], schema=_WIRE))


if __name__ == "__main__":
    _send(json.loads(sys.argv[1]))
