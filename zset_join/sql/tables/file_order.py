"""The order of rows of a table with a primary key over files: by the name of their file, then by their place in it.

The law: among the rows of a key, that of the last file by name wins, and of one file the last one, in whatever order the files
come. So a table has hidden sequence columns: the first bytes of the name, eight to a column, and the place of the row.

Known limits: of names that agree in their first 64 bytes, the file that is read later wins. A query that is started later in
a session without a directory does not have the keys that `_tp_delta` has deleted: a file with an earlier name brings them back.

Memory: 144 bytes a key in the state of a query, in its row and in its sequence.
"""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa

__all__ = ["FILE_ORDER", "NAME_WORDS", "with_file_order"]

NAME_WORDS = 8
"""How many words of eight bytes of a name count."""
FILE_ORDER = pa.schema([(f"__sequence_{number}", pa.int64()) for number in range(NAME_WORDS + 1)])
"""The hidden columns; Spark's streams call theirs so too."""


def with_file_order(rows: pa.Table, name: str) -> pa.Table:
    """Return the rows of a file with their hidden columns.

    >>> ordered = [with_file_order(pa.table({"k": [1]}), name).column("__sequence_0")[0].as_py() for name in ("b", "a.b", "a")]
    >>> ordered == sorted(ordered, reverse=True)
    True
    """
    begin = os.fsencode(name)[: 8 * NAME_WORDS].ljust(8 * NAME_WORDS, b"\0")
    # Unsigned words order as bytes do; signed ones with the first bit turned around.
    words = (np.frombuffer(begin, ">u8").astype(np.uint64) ^ np.uint64(1 << 63)).view(np.int64)
    columns = [*(np.full(rows.num_rows, word) for word in words), np.arange(rows.num_rows, dtype=np.int64)]
    for field, values in zip(FILE_ORDER, columns, strict=True):
        rows = rows.append_column(field, pa.array(values))
    return rows
