"""Rows of CSV, and the lines of it that are none: what can be read is read, whatever is beside it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from zset_join.sources.csv_rows import CsvForm, csv_names, read_csv_rows

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "day": pa.date32()})


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        (b"x,b,2024-01-02", (3, "UNDECODABLE_VALUE", "id", "int64")),
        (b"2,b,2024-13-02", (3, "UNDECODABLE_VALUE", "day", "date32[day]")),
        (b"2,\xff,2024-01-02", (3, "UNDECODABLE_VALUE", "name", "string")),
        (b"2,b", (3, "UNDECODABLE_RECORD", None, "line of 3 fields, as the header has them")),
        (b"2,b,2024-01-02,more", (3, "UNDECODABLE_RECORD", None, "line of 3 fields, as the header has them")),
        (b'2,"b,2024-01-02', (3, "UNDECODABLE_RECORD", None, "line of 3 fields, as the header has them")),
        (b'x,"b\nc",2024-01-02', (3, "UNDECODABLE_VALUE", "id", "int64")),
    ],
)
def test_a_line_that_is_no_row_is_reported_and_the_others_are_read(
    line: bytes, reported: tuple[int, str, str | None, str]
) -> None:
    rows, unread = read_csv_rows(b"id,name,day\n1,a,\n" + line + b"\n3,c,\n", SCHEMA, CsvForm())

    assert rows.column("id").to_pylist() == [1, 3]
    assert [(one.number, one.code, one.column, one.expected) for one in unread] == [reported]
    assert unread[0].text == line


def test_every_record_is_a_row_or_is_unread_in_its_order() -> None:
    lines = [b"x,b," if number % 7 == 3 else b'%d,"a\r\nb",' % number for number in range(200)]
    rows, unread = read_csv_rows(b"\r\n".join([b"id,name,day", *lines]), SCHEMA, CsvForm())

    assert rows.column("id").to_pylist() == [number for number in range(200) if number % 7 != 3]
    assert set(rows.column("name").to_pylist()) == {"a\r\nb"}
    assert len(unread) == 200 - rows.num_rows
    assert [one.number for one in unread[:2]] == [2 + 3 * 2, 2 + 9 * 2 + 1]


def test_delimiter_quote_and_null_are_those_of_the_form() -> None:
    form = CsvForm(delimiter="|", quote="'", null="n/a")
    rows, unread = read_csv_rows(b"id|name|day\n1|'a|b'|\nx||\n2|n/a|\n3|''|", SCHEMA, form)

    assert [(row["id"], row["name"]) for row in rows.to_pylist()] == [(1, "a|b"), (2, None), (3, "")]
    assert [one.number for one in unread] == [3]


@pytest.mark.parametrize("text", [b"", b"\n\n", b"id,name", b"\xef\xbb\xbfid,name\n\n"])
def test_a_text_without_lines_has_no_rows(text: bytes) -> None:
    rows, unread = read_csv_rows(text, SCHEMA, CsvForm())

    assert (rows.num_rows, unread) == (0, [])


def test_columns_of_the_header_that_are_not_wanted_do_not_matter() -> None:
    rows, unread = read_csv_rows(b"more,id\nx,1\n7,y\n8,2\n", SCHEMA, CsvForm())

    assert (rows.to_pylist(), [one.number for one in unread]) == ([{"id": 1}, {"id": 2}], [3])
    assert csv_names(b"more,id\nx,1\n", CsvForm()) == ["more", "id"]
