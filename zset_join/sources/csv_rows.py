"""Rows of CSV with a header, and its invalid lines.

    rows, unread = read_csv_rows(text, schema, CsvForm())

The law: every record of the text is a row or is listed as unread, in its order, never both. Fields are texts, which convert as
`zset_join.conversions` defines. A record may have line ends within quotes; a quote that nothing closes counts as a letter, so
the lines behind it are read.

Edge cases: nothing between two delimiters is NULL, and `""` is an empty text; NULL in a column that
is not nullable is no row. Columns go by name; those the header lacks are not in the result. Empty lines are passed over.

Cost: one pass in pyarrow. Of a text that has lines that are no rows: a pass that parts it into records, and two times
log2(records) readings of ever smaller parts for each of them.

Source: RFC 4180.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.types as pt

from zset_join.conversions import convert_values
from zset_join.sources.source import UnreadText, wanted_text

__all__ = ["CsvForm", "csv_names", "read_csv_file", "read_csv_rows"]

Bools = npt.NDArray[np.bool_]
_Record = tuple[int, bytes]


@dataclass(frozen=True)
class CsvForm:
    delimiter: str = ","
    quote: str = '"'
    null: str = ""  # besides the empty field


def _parse_options(form: CsvForm) -> pc.ParseOptions:
    return pc.ParseOptions(delimiter=form.delimiter, quote_char=form.quote, newlines_in_values=True)


def _convert_options(form: CsvForm, schema: pa.Schema, columns: Sequence[str] = ()) -> pc.ConvertOptions:
    """Return how pyarrow turns fields into texts."""
    return pc.ConvertOptions(
        column_types=_texts_of(schema),
        include_columns=list(columns),
        null_values=sorted({"", form.null}),
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )


def _texts_of(schema: pa.Schema) -> pa.Schema:
    return pa.schema([(field.name, field.type if pt.is_binary(field.type) else pa.string()) for field in schema])


def read_csv_file(file: str | Path, schema: pa.Schema, form: CsvForm) -> pa.Table | None:
    """Return the rows of a file, its other columns as they are; None where a line is no row."""
    try:
        texts = pc.read_csv(file, parse_options=_parse_options(form), convert_options=_convert_options(form, schema))
    except pa.ArrowInvalid:
        return None
    columns, bad = _values(texts, schema)
    return None if bad else pa.table(columns)


def _values(texts: pa.Table, schema: pa.Schema) -> tuple[dict[str, pa.Array], dict[str, Bools]]:
    """Return columns in their types, and of those that have them the rows whose text does not convert, or lacks a value."""
    columns, bad = {}, {}
    for name in texts.column_names:
        if name not in schema.names:
            columns[name] = texts.column(name)
            continue
        converted = convert_values(texts.column(name), schema.field(name).type)
        columns[name] = converted.values
        if not schema.field(name).nullable and converted.values.null_count:
            bad[name] = converted.values.is_null().to_numpy(zero_copy_only=False)
        elif converted.unfit is not None:
            bad[name] = converted.unfit
    for field in schema:
        if not field.nullable and field.name not in columns and texts.num_rows:
            bad[field.name] = np.ones(texts.num_rows, np.bool_)
    return columns, bad


def csv_names(text: bytes, form: CsvForm) -> list[str]:
    """Return the names of the header; none where there is no line."""
    header = next(_records(text, form), None)
    return [] if header is None else list(_read([header], pa.schema([]), form).column_names)


def read_csv_rows(
    text: bytes, schema: pa.Schema, form: CsvForm, *, is_first_enough: bool = False
) -> tuple[pa.Table, list[UnreadText]]:
    r"""Return the rows of a text, and its invalid records.

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
    tables = [_texts_of(known).empty_table()]
    numbers: list[int] = []
    unread: list[UnreadText] = []
    parts = [(0, len(lines))]
    while parts and not (unread and is_first_enough):
        begin, end = parts.pop()
        rows = _rows_of(header, lines[begin:end], known, form)
        if rows is not None:
            tables.append(rows)
            numbers += range(begin, end)
        elif end - begin == 1:
            unread.append(_no_row(header, lines[begin], known, form, len(names)))
        else:
            middle = (begin + end) // 2
            parts += [(middle, end), (begin, middle)]
    lacking = [field for field in schema if not field.nullable and field.name not in names]
    wanted = pa.schema([*known, *lacking])
    columns, bad = _values(pa.concat_tables(tables), wanted)
    is_good = np.ones(len(numbers), np.bool_)
    for name, unfit in bad.items():
        for row in np.flatnonzero(unfit & is_good).tolist():
            number, line = lines[numbers[row]]
            unread.append(UnreadText(number, line, wanted_text(wanted.field(name)), name))
        is_good &= ~unfit
    unread.sort(key=lambda one: one.number)
    return pa.table(columns, schema=known).filter(pa.array(is_good)), unread[:1] if is_first_enough else unread


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
    return pc.read_csv(text, parse_options=_parse_options(form), convert_options=_convert_options(form, schema, schema.names))


def _rows_of(header: _Record, lines: Sequence[_Record], schema: pa.Schema, form: CsvForm) -> pa.Table | None:
    """Return the rows of lines; None where one of them is none."""
    try:
        rows = _read([header, *lines], schema, form)
    except pa.ArrowException:
        return None
    return rows if rows.num_rows == len(lines) else None


def _no_row(header: _Record, line: _Record, schema: pa.Schema, form: CsvForm, width: int) -> UnreadText:
    number, text = line
    as_bytes = pa.schema([field.with_type(pa.binary()) for field in schema])
    if _rows_of(header, [line], as_bytes, form) is None:
        return UnreadText(number, text, f"line of {width} fields, as the header has them")
    bad = next(field for field in schema if _rows_of(header, [line], pa.schema([field]), form) is None)
    return UnreadText(number, text, str(bad.type), bad.name)
