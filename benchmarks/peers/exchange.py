"""Files of columns that the programs of other engines read, and the checksum of rows that both sides compute.

A file is 8-byte little-endian words. A table is its number of rows, then its columns: numbers as one word a row (doubles by
their bits, times as microseconds), texts as their lengths and then their bytes without gaps. NULL is 0 or the empty text.
"""

from __future__ import annotations

from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["checksum", "write_number", "write_table"]

FACTOR = 0x9E37_79B9_7F4A_7C15
WORD_BYTES = 8

Words = npt.NDArray[np.uint64]


def write_number(file: BinaryIO, number: int) -> None:
    """Write one word."""
    file.write(number.to_bytes(WORD_BYTES, "little", signed=True))


def write_table(file: BinaryIO, table: pa.Table | pa.RecordBatch) -> None:
    """Write the number of rows and all columns of a table."""
    write_number(file, len(table))
    for column in table.columns:
        array = _one_array(column)
        if pa.types.is_string(array.type):
            offsets, characters = _texts(array)
            file.write(np.diff(offsets).astype(np.int64).tobytes())
            file.write(characters[offsets[0] : offsets[-1]].tobytes())
        else:
            file.write(_words(array).tobytes())


def checksum(rows: pa.Table | pa.RecordBatch, weights: npt.NDArray[np.int64]) -> int:
    """Return the sum of a number per row times its weight, modulo 2**64: equal for equal bags, however they are cut.

    Args:
        rows: columns of numbers, times, doubles and texts; of a text the first eight bytes count.
        weights: of the rows, shape (rows,).
    """
    mixed = np.zeros(len(rows), np.uint64)
    for place, column in enumerate(rows.columns):
        mixed += _words(column) * np.uint64(FACTOR * (2 * place + 1) % 2**64)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(FACTOR)
    mixed ^= mixed >> np.uint64(29)
    return int((mixed * weights.view(np.uint64)).sum(dtype=np.uint64))


def _words(column: pa.Array | pa.ChunkedArray) -> Words:
    """Return a column as one word a row; a text as its first eight bytes."""
    array = _one_array(column)
    if not pa.types.is_string(array.type):
        numbers = pc.if_else(array.is_null(), pa.scalar(0).cast(array.type), array).to_numpy(zero_copy_only=False)
        return np.ascontiguousarray(numbers).view(np.uint64)
    offsets, characters = _texts(array)
    padded = np.append(characters, np.zeros(WORD_BYTES, np.uint8))
    lengths = np.diff(offsets)
    first = np.zeros((len(array), WORD_BYTES), np.uint8)
    for place in range(WORD_BYTES):
        first[:, place] = np.where(lengths > place, padded[offsets[:-1] + place], 0)
    return first.view(np.uint64)[:, 0]


def _texts(array: pa.StringArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return where the texts of an array begin and end, and its characters."""
    array = array.fill_null("")
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    characters = array.buffers()[2]
    return offsets, np.frombuffer(characters, np.uint8) if characters is not None else np.zeros(0, np.uint8)


def _one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
