"""A value is shown whatever it is: as Python has it, or else as text."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from zset_join.core.shown_values import shown_key, shown_rows, shown_value

NOT_UTF8 = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xff\xfe")])
FAR_DATE = pa.array([365_000_000], pa.int32()).cast(pa.date32())


@pytest.mark.parametrize(
    ("column", "shown"),
    [
        (pa.array([7]), 7),
        (pa.array([None], pa.date32()), None),
        (pa.array([dt.date(2024, 2, 29)]), dt.date(2024, 2, 29)),
        (FAR_DATE, "1001306-01-22"),
        (pa.array([-800_000], pa.int32()).cast(pa.date32()), "-221-09-04"),
        (pa.array([86_400_000 * 365_000_000]).cast(pa.date64()), "1001306-01-22"),
        (pa.array([2**62]).cast(pa.timestamp("us")), "148108-07-06T14:00:27.387904"),
        (pa.array([253_402_300_800]).cast(pa.timestamp("s", "UTC")), "10000-01-01T00:00:00Z"),
        (NOT_UTF8, "a\\xff\\xfe"),
        (NOT_UTF8.cast(pa.large_string(), safe=False), "a\\xff\\xfe"),
        (pa.StructArray.from_arrays([FAR_DATE, pa.array([1])], ["d", "n"]), {"d": "1001306-01-22", "n": 1}),
        (pa.ListArray.from_arrays([0, 1], FAR_DATE), ["1001306-01-22"]),
        (pa.DictionaryArray.from_arrays([0], FAR_DATE), "1001306-01-22"),
        (pa.MapArray.from_arrays([0, 1], pa.array([1]), NOT_UTF8), [(1, "a\\xff\\xfe")]),
        (pa.chunked_array([FAR_DATE]), "1001306-01-22"),
    ],
)
def test_a_value_is_shown(column: Any, shown: Any) -> None:
    assert shown_value(column, 0) == shown


def test_a_key_is_the_values_of_one_row() -> None:
    assert shown_key([pa.array([1, 2]), pa.array(["a", "b"])], 1) == (2, "b")


def test_rows_are_shown_whatever_is_in_them() -> None:
    table = pa.table({"n": [1, 2], "at": pa.chunked_array([FAR_DATE, pa.array([dt.date(2024, 2, 29)])])})

    assert shown_rows(table) == [{"n": 1, "at": "1001306-01-22"}, {"n": 2, "at": dt.date(2024, 2, 29)}]
    assert shown_rows(pa.record_batch({"x": pa.array([], pa.int64())})) == []
