"""Rows of CSV with a header, and its lines that are no rows.

    rows, unread = read_csv_rows(text, schema, CsvForm())

The law: every record of the text is a row or is told as unread, in its order, never both. A record may have line ends
within quotes; a quote that nothing closes counts as a letter, so the lines behind it are read.

Edge cases: nothing between two delimiters is NULL, and `""` is an empty text. Columns go by name; those the header lacks are
not in the result. Empty lines are passed over.

Cost: one pass in pyarrow. Of a text that has lines that are no rows: a pass that parts it into records, and two times
log2(records) readings of ever smaller parts for each of them.

Source: RFC 4180.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.csv as pc

from zset_join.sources.unread import UnreadText

__all__ = ["CsvForm", "convert_options", "csv_names", "parse_options", "read_csv_rows"]

_Record = tuple[int, bytes]


@dataclass(frozen=True)
class CsvForm:
    """Say how CSV is written.

    Args:
        delimiter: between fields, one character.
        quote: around fields, one character.
        null: what stands for NULL, beside nothing.
    """

    delimiter: str = ","
    quote: str = '"'
    null: str = ""


def parse_options(form: CsvForm) -> pc.ParseOptions:
    """Return how pyarrow parts CSV into fields."""
    return pc.ParseOptions(delimiter=form.delimiter, quote_char=form.quote, newlines_in_values=True)


def convert_options(form: CsvForm, schema: pa.Schema, columns: Sequence[str] = ()) -> pc.ConvertOptions:
    """Return how pyarrow turns fields into values.

    Args:
        form: how the text is written.
        schema: the types of columns, by name.
        columns: those that are wanted; all where none is named.
    """
    return pc.ConvertOptions(
        column_types=schema,
        include_columns=list(columns),
        null_values=sorted({"", form.null}),
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )


def csv_names(text: bytes, form: CsvForm) -> list[str]:
    """Return the names of the header; none where there is no line.

    Raises:
        ArrowException: it is no header.
    """
    header = next(_records(text, form), None)
    return [] if header is None else list(_read([header], pa.schema([]), form).column_names)


def read_csv_rows(
    text: bytes, schema: pa.Schema, form: CsvForm, *, is_first_enough: bool = False
) -> tuple[pa.Table, list[UnreadText]]:
    r"""Return the rows of a text, and what is no row of it.

    Args:
        text: a header, and lines.
        schema: the types of columns, by name.
        form: how it is written.
        is_first_enough: stop behind the first record that is no row.

    Raises:
        ArrowException: the header cannot be read.

    >>> rows, unread = read_csv_rows(b"id,v\n1,2\n3,x\n", pa.schema({"id": pa.int64(), "v": pa.int64()}), CsvForm())
    >>> rows.to_pylist(), unread[0].number, unread[0].reason
    ([{'id': 1, 'v': 2}], 3, 'the value of "v" cannot be read as int64')
    """
    records = _records(text, form)
    header = next(records, None)
    if header is None:
        return schema.empty_table(), []
    lines = list(records)
    names = list(_read([header], pa.schema([]), form).column_names)
    known = pa.schema([schema.field(name) for name in names if name in schema.names])
    tables = [known.empty_table()]
    unread: list[UnreadText] = []
    parts = [(0, len(lines))]
    while parts and not (unread and is_first_enough):
        begin, end = parts.pop()
        rows = _rows_of(header, lines[begin:end], known, form)
        if rows is not None:
            tables.append(rows)
        elif end - begin == 1:
            unread.append(_told(header, lines[begin], known, form, len(names)))
        else:
            middle = (begin + end) // 2
            parts += [(middle, end), (begin, middle)]
    return pa.concat_tables(tables), unread


def _records(text: bytes, form: CsvForm) -> Iterator[_Record]:
    """Yield the records that are not empty, each with the number of its first line."""
    quote, delimiter = re.escape(form.quote.encode()), re.escape(form.delimiter.encode())
    field = rb"(?:Q[^Q]*(?:QQ[^Q]*)*Q)?[^D\r\n]*".replace(b"Q", quote).replace(b"D", delimiter)
    record = re.compile(b"(" + field + b"(?:" + delimiter + field + rb")*)(?:\r\n|\n|\r|\Z)")
    line_end = b"\n" if b"\n" in text else b"\r"
    number = 1
    for one in record.finditer(text):
        if one[1]:
            yield number, one[1]
        number += one[0].count(line_end)


def _read(records: Sequence[_Record], schema: pa.Schema, form: CsvForm) -> pa.Table:
    """Return the columns of a schema, or all where it has none; the first record is the header."""
    text = pa.BufferReader(b"\n".join(text for _, text in records) + b"\n")
    return pc.read_csv(text, parse_options=parse_options(form), convert_options=convert_options(form, schema, schema.names))


def _rows_of(header: _Record, lines: Sequence[_Record], schema: pa.Schema, form: CsvForm) -> pa.Table | None:
    """Return the rows of lines; None where one of them is none."""
    try:
        rows = _read([header, *lines], schema, form)
    except pa.ArrowException:
        return None
    return rows if rows.num_rows == len(lines) else None


def _told(header: _Record, line: _Record, schema: pa.Schema, form: CsvForm, width: int) -> UnreadText:
    number, text = line
    texts = pa.schema([field.with_type(pa.binary()) for field in schema])
    if _rows_of(header, [line], texts, form) is None:
        return UnreadText(number, text, f"line of {width} fields, as the header has them")
    bad = next(field for field in schema if _rows_of(header, [line], pa.schema([field]), form) is None)
    return UnreadText(number, text, str(bad.type), bad.name)
