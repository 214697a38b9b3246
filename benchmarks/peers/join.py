"""One cell of orders/customers for one side: this process measures us, or writes the input of another engine's program.

    python -m benchmarks.peers.join CELL

A cell is an object of JSON with `scale`, `epoch_changes`, `epochs`, `warm_up`, and `engine` or `path`. With `engine` it is
measured: printed are the CPU seconds of the measured epochs, their changes, and rows and checksum of the answers of all epochs.
With `path` its rows are written to that file. Both come from the same seed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.contestant import build_contestant
from benchmarks.peers.exchange import checksum, write_number, write_table
from benchmarks.workloads import LEFT, RIGHT, OrdersCustomers
from zset_join.zset import ZSet

__all__ = ["main", "measure_ours", "write_input"]


def measure_ours(workload: OrdersCustomers, cell: dict[str, Any]) -> dict[str, float]:
    """Return CPU seconds and changes of the measured epochs, and rows and checksum of every epoch's answer."""
    pa.set_cpu_count(1)
    contestant = build_contestant(cell["engine"], workload.relations)
    inputs = [contestant.prepare(epoch) for epoch in workload.epochs(cell["warm_up"] + cell["epochs"], cell["epoch_changes"])]
    for side in (RIGHT, LEFT):
        for rows in workload.initial(side):
            contestant.load(side, rows)
    contestant.loaded()
    seconds, rows_in_all, sum_in_all = 0.0, 0, 0
    for number, prepared in enumerate(inputs):
        started = time.process_time()
        answer = contestant.step(prepared)
        spent = time.process_time() - started
        for chunk in [answer] if isinstance(answer, ZSet) else answer:
            rows_in_all += int(chunk.weights.sum())
            sum_in_all += checksum(_read_columns(chunk.rows), chunk.weights)
        started = time.process_time()
        del answer, chunk
        spent += time.process_time() - started
        seconds += spent if number >= cell["warm_up"] else 0.0
    changes = cell["epochs"] * cell["epoch_changes"]
    return {"seconds": seconds, "changes": changes, "rows": rows_in_all, "checksum": sum_in_all % 2**64}


def write_input(workload: OrdersCustomers, cell: dict[str, Any]) -> None:
    """Write the numbers of epochs, the first rows, and the upserts of all epochs."""
    epochs = workload.epochs(cell["warm_up"] + cell["epochs"], cell["epoch_changes"])
    with Path(cell["path"]).open("wb") as file:
        write_number(file, cell["warm_up"])
        write_number(file, len(epochs))
        for side in (LEFT, RIGHT):
            rows = pa.Table.from_batches(workload.initial(side)).combine_chunks()
            write_table(file, rows.append_column("weight", pa.array(np.ones(len(rows), np.int64))))
        for epoch in epochs:
            for delta in epoch.deltas:
                write_table(file, pa.Table.from_batches([delta.rows]).append_column("weight", pa.array(delta.weights)))


def main() -> None:
    """Measure the cell of the argument, or write its rows."""
    cell = json.loads(sys.argv[1])
    workload = OrdersCustomers(cell["scale"])
    print(json.dumps(write_input(workload, cell) if "path" in cell else measure_ours(workload, cell)))


def _read_columns(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns of the checksum: all but the customer's id, which is the order's second column."""
    return rows.select([place for place in range(rows.num_columns) if place != _CUSTOMER_ID])


_CUSTOMER_ID = 4

if __name__ == "__main__":
    main()
