"""One cell of Nexmark for one side: this process measures us, or writes the rows for both sides.

    python -m benchmarks.peers.nexmark CELL

A cell is an object of JSON with `path` and `kind`, and either `query` or `events`. With `events` that many are written: to
`path` for the programs of other engines, and as Arrow beside it for us. With `query` it is measured on them: the CPU seconds
of all epochs but the first are printed, and the answer is written to the file `answer`, a line of tab-separated values a row.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from benchmarks.nexmark import COLUMNS, epochs, maintained, whole
from benchmarks.peers.exchange import write_number, write_table

__all__ = ["main", "measure_ours", "write_rows"]


def write_rows(cell: dict[str, Any]) -> None:
    """Write the events, epoch by epoch."""
    rows = epochs(cell["events"])
    if cell["kind"] != "narrow":
        rows = whole(rows)
    with Path(cell["path"]).open("wb") as file:
        write_number(file, len(rows))
        for epoch in rows:
            for table in COLUMNS:
                write_table(file, epoch[table])
    for table in COLUMNS:
        with ipc.new_file(f"{cell['path']}.{table}", rows[0][table].schema) as writer:
            for epoch in rows:
                writer.write_batch(epoch[table].combine_chunks().to_batches()[0])


def measure_ours(cell: dict[str, Any]) -> dict[str, float]:
    """Return the CPU seconds of all epochs but the first, and write the answer."""
    pa.set_cpu_count(1)
    by_table = {table: ipc.open_file(f"{cell['path']}.{table}") for table in COLUMNS}
    count = by_table["bid"].num_record_batches
    rows = [
        {table: pa.Table.from_batches([batches.get_batch(number)]) for table, batches in by_table.items()}
        for number in range(count)
    ]
    seconds, view = maintained(cell["query"], rows, cell["kind"])
    texts = [
        (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).cast(pa.string()) for column in view.columns
    ]
    Path(cell["answer"]).write_text("\n".join(pc.binary_join_element_wise(*texts, "\t").to_pylist()), encoding="utf-8")
    return {"seconds": seconds}


def main() -> None:
    """Measure the cell of the argument, or write its rows."""
    cell = json.loads(sys.argv[1])
    print(json.dumps(write_rows(cell) if "events" in cell else measure_ours(cell)))


if __name__ == "__main__":
    main()
