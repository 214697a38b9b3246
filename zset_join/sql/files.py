"""Tables in files: `WITH ('connector' = 'filesystem', 'path' = 'orders.json', 'format' = 'json' | 'csv' | 'parquet')`.

`zset-join run` reads a path or a directory of files in the order of their names, each once; every file is one epoch. Files are
whole when they appear: write them under a name that begins with a dot, and rename them.
Columns go by name; those a file lacks are NULL. CSV has a header.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.json as pj
import pyarrow.parquet as pq

from zset_join.errors import SqlError
from zset_join.sql.catalog import Table

__all__ = ["list_files", "read_file"]

_FORMATS = ("csv", "json", "parquet")


def list_files(table: Table) -> list[Path]:
    """Return the files of a table, in the order of their names; hidden ones, and those that begin with `_`, are none.

    Raises:
        SqlError: there is no file, or no such format.
    """
    path, form = Path(table.options.get("path", "")), table.options.get("format", "json")
    if form not in _FORMATS:
        raise SqlError(
            f'"{table.name}": files are read as {", ".join(_FORMATS)}, not as {form}.', code="UNKNOWN_FORMAT", name=table.name
        )
    listed = (one for one in path.iterdir() if one.is_file() and not one.name.startswith(("_", "."))) if path.is_dir() else ()
    files = sorted(listed) if path.is_dir() else [path]
    if not files or not all(one.is_file() for one in files):
        raise SqlError(f"\"{table.name}\": there is no file at {path}. Give 'path'.", code="NO_FILE", name=table.name)
    return files


def read_file(table: Table, file: Path) -> pa.Table:
    """Return the rows of a file.

    Raises:
        SqlError: it is not in the format it is said to be in.
    """
    form = table.options.get("format", "json")
    given = pa.schema([(column.name, column.type) for column in table.columns if column.is_given])
    try:
        if form == "parquet":
            rows = pq.read_table(file)
        elif form == "csv":
            rows = pc.read_csv(file, convert_options=pc.ConvertOptions(column_types=given))
        else:
            rows = pj.read_json(file, parse_options=pj.ParseOptions(explicit_schema=given))
    except (pa.ArrowException, OSError) as error:
        raise SqlError(f'"{table.name}": {file} cannot be read as {form}: {error}.', code="NO_FILE", name=table.name) from error
    return rows.select([name for name in rows.column_names if name in given.names])
