"""Tables in files: `WITH ('connector' = 'filesystem', 'path' = 'orders.json', 'format' = 'json' | 'csv' | 'parquet')`.

`zset-join run` reads a path or a directory of files in the order of their names, each once; every file is one epoch. Files are
whole when they appear: write them under a name that begins with a dot, and rename them.
Columns go by name, letter case included. A file of CSV or Parquet that lacks a column is refused, but for columns that the
table got later, which are NULL; so is a file of JSON that has none. JSON has an object a line. CSV has a header; as in Spark,
nothing between two delimiters is NULL, and `""` is an empty text. Formats of changes have a record a line.

A line that is no row stops the query, or is set aside by `SET on_bad_input = 'quarantine'`: `topic` is then the name of the
file and `offset` the number of the line. So is a row of Parquet of which a value does not convert, as JSON, with its number
from 1. A row without a value in a column that is NOT NULL is none. A Parquet file that cannot be read always stops it.

`file_name`: names of files and directories for the names that users give to tables, queries and statements.

The law: two names never share a file, also on file systems that take letters of both cases, or two spellings of one letter,
for the same; and no name leads out of its directory. So everything but small letters, digits, `_` and `-` is written as the
bytes of its UTF-8 in hexadecimal, which has a fixed width. A name longer than a file may be is cut, and ends with its digest.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import string
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from zset_join.changelog.formats import RECORD_FORMATS
from zset_join.connectors.connector import local_path_of
from zset_join.conversions import can_convert, convert_values
from zset_join.core.errors import BadInputError, SqlError
from zset_join.core.shown_values import shown_value
from zset_join.runners.local.taking import PartlyRead
from zset_join.sources.json_values import part_json_rows, read_json_objects
from zset_join.sources.source import UnreadText, unread_records, wanted_text
from zset_join.sql.tables.catalog import Table, with_file_order
from zset_join.sql_expressions.consumed import near

__all__ = ["check_files", "csv_options", "file_name", "list_files", "part_file", "read_file", "read_records"]

_FORMATS = ("csv", "json", "parquet", *RECORD_FORMATS)
_IS_NOT_BLANK = r"[^\t\n\v\f\r ]"
_RECORD = pa.schema(
    {"key": pa.binary(), "value": pa.binary(), "topic": pa.string(), "partition": pa.int32(), "offset": pa.int64()}
)


def list_files(table: Table) -> list[Path]:
    """Return the files of a table, in the order of their names; hidden ones, and those that begin with `_`, are none."""
    # A directory may be empty still.
    path, form = local_path_of(table.name, table.options), table.options.get("format", "json")
    if form not in _FORMATS:
        raise SqlError(
            f'"{table.name}": files are read as {", ".join(_FORMATS)}, not as {form}.', code="UNKNOWN_FORMAT", name=table.name
        )
    listed = (one for one in path.iterdir() if one.is_file() and not one.name.startswith(("_", "."))) if path.is_dir() else ()
    files = sorted(listed) if path.is_dir() else [path]
    if not all(one.is_file() for one in files):
        raise SqlError(f"\"{table.name}\": no such file or directory: {path}. Give 'path'.", code="NO_FILE", name=table.name)
    return files


def read_file(table: Table, file: Path) -> pa.Table:
    rows, unread = _read(table, file, is_first_enough=True)
    if unread:
        first = unread[0]
        raise BadInputError(
            f'"{table.name}": line {first.number} of {file} is not a row of it, {first.shown} Correct the file, or '
            "quarantine unreadable lines: SET on_bad_input = 'quarantine'.",
            code=first.code,
            relation=table.name,
            file=str(file),
            line=first.number,
            column=first.column,
        )
    return _with_order(table, file, rows)


def part_file(table: Table, file: Path) -> PartlyRead:
    """Return the rows of a file, and beside them the lines that are none."""
    rows, unread = _read(table, file, is_first_enough=False)
    return PartlyRead(_with_order(table, file, rows), unread_records(unread, topic=file.name))


def _with_order(table: Table, file: Path, rows: pa.Table) -> pa.Table:
    """Return rows with what orders those of a key, where that is their file."""
    return with_file_order(rows, file.name) if table.is_ordered_by_file else rows


def _read(table: Table, file: Path, *, is_first_enough: bool) -> tuple[pa.Table, list[UnreadText]]:
    form = table.options.get("format", "json")
    given = pa.schema([column.field for column in table.columns if column.is_given])
    unread: list[UnreadText] = []
    try:
        if form == "json":
            return _json(table, file, given)
        if form == "parquet":
            whole = pq.read_table(file)
            check_names(table, file, whole.column_names)
            rows, unread = _converted(whole, given)
        else:
            rows, unread = _csv(table, file, given, is_first_enough=is_first_enough)
    except (pa.ArrowException, OSError) as error:
        raise SqlError(f'"{table.name}": {file} cannot be read as {form}: {error}.', code="NO_FILE", name=table.name) from error
    return rows.select([name for name in rows.column_names if name in given.names]), unread


def read_records(file: Path) -> pa.Table:
    """Return the records of changes of a file, a line each: what Debezium, Canal or Maxwell write."""
    # A line is the record, whose `topic` is then the file and whose `offset` is the number of its line; or, as `zset-join
    # dead-letters --replay` writes it, an object of `key`, `value`, `topic`, `partition` and `offset`.
    with pa.input_stream(str(file), compression="detect") as stream:
        text = stream.read().removeprefix(codecs.BOM_UTF8)
    lines = pa.array(text.split(b"\n"), pa.binary())
    places = np.flatnonzero(pc.match_substring_regex(lines, _IS_NOT_BLANK))
    if not places.size:
        return _RECORD.empty_table()
    records = read_json_objects(
        text, pa.schema([one.with_type(pa.string()) if one.name in ("key", "value") else one for one in _RECORD])
    )
    if records is not None and records.num_rows == places.size and not records["topic"].null_count:
        return records.cast(_RECORD)
    return pa.table(
        {
            "key": pa.nulls(places.size, pa.binary()),
            "value": lines.take(pa.array(places)),
            "topic": pa.repeat(file.name, places.size),
            "partition": np.zeros(places.size, np.int64),
            "offset": places + 1,
        },
        schema=_RECORD,
    )


def check_names(table: Table, file: Path | str, names: Sequence[str]) -> None:
    """Refuse a file of CSV or Parquet that lacks a column; one that the table got later may be missing."""
    given, has = [column.name for column in table.columns if column.is_given], {name.lower() for name in names}
    optional = {name for name in (*table.added, table.delta_column) if name is not None and name.lower() not in has}
    lacking = [name for name in given if name not in names and name not in optional]
    if names and len(lacking) == len(given):
        more = "; CSV begins with a line of names" if table.options.get("format") == "csv" else ""
        raise _other_columns(table, file, list(names), more)
    if names and lacking:
        raise SqlError(
            f'"{table.name}": {file} has no column "{lacking[0]}".{near(lacking[0], names)} '
            "A file has all columns of its table, under their names.",
            code="NO_FILE",
            name=table.name,
        )


def check_files(table: Table, checked: set[str]) -> None:
    """Refuse a file of CSV or Parquet on this machine that lacks a column, before Spark reads it."""
    form, path = table.options.get("format", "json"), table.options.get("path", "")
    if table.options.get("connector") != "filesystem" or form not in ("csv", "parquet") or not path.startswith(("/", "file:")):
        return
    for file in list_files(table):
        if file.name not in checked:
            read = pq.read_schema(file).names if form == "parquet" else _header(table, file)
            check_names(table, file, read)
            checked.add(file.name)


def _header(table: Table, file: Path) -> list[str]:
    from zset_join.sources.csv_rows import CsvForm, csv_names

    options = csv_options(table)
    with pa.input_stream(str(file), compression="detect") as stream:
        return csv_names(stream.read(1 << 16), CsvForm(options["sep"], options["quote"], options["nullValue"]))


def _converted(rows: pa.Table, given: pa.Schema) -> tuple[pa.Table, list[UnreadText]]:
    """Return the rows of a Parquet file that have their values, which convert to their columns, and the others, as JSON."""
    # A column of a type that never converts is left as it is; it is refused as a whole.
    expected: dict[int, str] = {}
    for field in given:
        if not field.nullable:
            lacks = (
                rows.column(field.name).is_null().to_numpy()
                if field.name in rows.column_names
                else np.ones(rows.num_rows, bool)
            )
            expected = dict.fromkeys(np.flatnonzero(lacks).tolist(), field.name) | expected
    for place, name in enumerate(rows.column_names):
        kind = given.field(name).type if name in given.names else rows.column(name).type
        if rows.column(name).type == kind or not can_convert(rows.column(name).type, kind):
            continue
        converted = convert_values(rows.column(name), kind)
        unfit = () if converted.unfit is None else np.flatnonzero(converted.unfit).tolist()
        expected = dict.fromkeys(unfit, name) | expected
        if unfit:
            continue
        rows = rows.set_column(place, name, converted.values)
    unread = []
    for number in sorted(expected):
        row = {name: shown_value(rows.column(name).combine_chunks(), number) for name in rows.column_names}
        text = json.dumps(row, default=str, ensure_ascii=False).encode()
        unread.append(UnreadText(number + 1, text, wanted_text(given.field(expected[number])), expected[number]))
    is_good = np.ones(rows.num_rows, np.bool_)
    is_good[list(expected)] = False
    return rows.filter(pa.array(is_good)) if unread else rows, unread


def _csv(table: Table, file: Path, given: pa.Schema, *, is_first_enough: bool) -> tuple[pa.Table, list[UnreadText]]:
    from zset_join.sources.csv_rows import CsvForm, csv_names, read_csv_file, read_csv_rows

    if not file.stat().st_size:
        return given.empty_table(), []
    options = csv_options(table)
    form = CsvForm(delimiter=options["sep"], quote=options["quote"], null=options["nullValue"])
    rows = read_csv_file(file, given, form)
    if rows is not None:
        check_names(table, file, rows.column_names)
        return rows, []
    with pa.input_stream(str(file), compression="detect") as stream:  # some line is no row
        text = stream.read()
    check_names(table, file, csv_names(text, form))
    return read_csv_rows(text, given, form, is_first_enough=is_first_enough)


def csv_options(table: Table) -> dict[str, str]:
    """Return how CSV is written, as Spark calls it: `sep`, `quote` and `nullValue`."""
    return {
        "sep": _character(table, "csv.field-delimiter", ","),
        "quote": _character(table, "csv.quote-character", '"'),
        "nullValue": table.options.get("csv.null-literal", ""),
    }


def _character(table: Table, option: str, default: str) -> str:
    given = {"\\t": "\t", "\\u0001": "\x01"}.get(table.options.get(option, default), table.options.get(option, default))
    if len(given) != 1:
        raise SqlError(f"\"{table.name}\": '{option}' is one character, not '{given}'.", code="OPTION_VALUE", name=table.name)
    return given


def _json(table: Table, file: Path, given: pa.Schema) -> tuple[pa.Table, list[UnreadText]]:
    with pa.input_stream(str(file), compression="detect") as stream:
        text = stream.read().removeprefix(codecs.BOM_UTF8)
    if not text or text.isspace():
        return given.empty_table(), []
    rows, unread = read_json_objects(text, given), []
    if rows is None:
        lines = [(number, line) for number, line in enumerate(text.split(b"\n"), 1) if line.strip()]
        rows, bad = part_json_rows([line for _, line in lines], given)
        unread = [replace(one, number=lines[one.number][0]) for one in bad]
    if rows.num_rows and all(column.null_count == rows.num_rows for column in rows.columns):
        first = text.lstrip().split(b"\n", 1)[0]
        names = json.loads(first) if _is_json(first) else {}
        if names and isinstance(names, dict) and not set(names) & set(given.names):
            raise _other_columns(table, file, list(names), "")
    return rows, unread


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _other_columns(table: Table, file: Path | str, names: list[str], more: str) -> SqlError:
    shown = ", ".join(names[:12])
    return SqlError(
        f'"{table.name}": {file} has none of its columns but {shown}{more}.{near(names[0], table.schema.names)}',
        code="NO_FILE",
        name=table.name,
    )


_KEPT = frozenset((string.ascii_lowercase + string.digits + "_-").encode())
_MOST_BYTES = 160
"""A file name has 255 bytes on most systems; numbers and suffixes are added to ours."""


def file_name(name: str) -> str:
    """Return a name that every file system accepts, another one for every name.

    >>> file_name("orders"), file_name("Orders"), file_name("a/b"), file_name("\u20ac"), file_name("..")
    ('orders', '%4Frders', 'a%2Fb', '%E2%82%AC', '%2E%2E')
    """
    raw = name.encode("utf-8", errors="surrogatepass")
    text = "".join(chr(byte) if byte in _KEPT else f"%{byte:02X}" for byte in raw)
    if not text:
        return "%"
    if len(text) <= _MOST_BYTES:
        return text
    return f"{text[: _MOST_BYTES // 2]}%%{hashlib.blake2b(raw, digest_size=16).hexdigest()}"
