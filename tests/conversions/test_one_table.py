"""One table of conversions: the same value, or the same refusal, whichever way a value comes in."""

from __future__ import annotations

import json
from typing import Any

import pandas
import polars
import pyarrow as pa
import pytest

from tests.conversions.table_of_conversions import (
    NUMBERS,
    REFUSED,
    ROWS_OF_JSON,
    TYPES,
    WRITTEN_NUMBERS,
    as_seen,
    names,
    number_cells,
    of_written_number,
    schema,
    seen,
    text_cells,
)
from zset_join.core.errors import SqlError
from zset_join.pipeline import Pipeline, appends
from zset_join.query.records import records
from zset_join.sources.csv_rows import CsvForm, read_csv_rows
from zset_join.sources.json_values import part_json_rows
from zset_join.sql import connect
from zset_join.stages import StageOptions

TEXTS = text_cells()
NUMBER_CELLS = number_cells()
Cells = list[tuple[int, Any, Any]]


def columns_of(cells: Cells) -> dict[str, list[Any]]:
    """Return a row per cell, whose value is in the column of its type."""
    columns: dict[str, list[Any]] = {name: [None] * len(cells) for name in names()}
    for row, (at, value, _) in enumerate(cells):
        columns[names()[at]][row] = value
    return {"id": list(range(len(cells))), **columns}


def rows_of(cells: Cells) -> list[dict[str, Any]]:
    return [{"id": row, names()[at]: value} for row, (at, value, _) in enumerate(cells)]


def stepped(rows: Any, cells: int) -> list[Any]:
    """Return what a pipeline has of rows, and check that each other row is a dead letter that names its column."""
    with Pipeline(appends("t", schema()), options=StageOptions(on_bad_input="quarantine"), keep_view=True) as pipeline:
        pipeline.step({"t": rows})
        got = seen(pipeline.view(), cells)
        letters = pipeline.dead_letters
        assert set(letters["code"].to_pylist()) == {"UNDECODABLE_VALUE"}
        assert letters.num_rows == got.count(REFUSED)
        assert all('as column "c' in reason for reason in letters["reason"].to_pylist())
        return got


def by_dicts(cells: Cells) -> list[Any]:
    return stepped(rows_of(cells), len(cells))


def by_columns(cells: Cells) -> list[Any]:
    return stepped(columns_of(cells), len(cells))


def by_pandas(cells: Cells) -> list[Any]:
    return stepped(
        pandas.DataFrame({name: pandas.Series(values, dtype=object) for name, values in columns_of(cells).items()}), len(cells)
    )


def by_arrow(cells: Cells) -> list[Any]:
    return stepped(pa.table(columns_of(cells)), len(cells))


def by_polars(cells: Cells) -> list[Any]:
    return stepped(polars.DataFrame(columns_of(cells)), len(cells))


def by_json(cells: Cells) -> list[Any]:
    texts = [json.dumps(row).encode() for row in rows_of(cells)]
    rows, unread = part_json_rows(texts, schema())
    got = seen(rows, len(cells))
    assert [one.column for one in unread] == [
        names()[at] for (at, _, _), value in zip(cells, got, strict=True) if value == REFUSED
    ]
    return got


def by_csv(cells: Cells) -> list[Any]:
    lines = [",".join(["id", *names()])]
    for row, (at, text, _) in enumerate(cells):
        quoted = '"' + text.replace('"', '""') + '"'
        lines.append(",".join([str(row), *(quoted if at == place else "" for place in range(len(TYPES)))]))
    rows, unread = read_csv_rows("\n".join(lines).encode(), schema(), CsvForm())
    got = seen(rows, len(cells))
    assert [one.column for one in unread] == [
        names()[at] for (at, _, _), value in zip(cells, got, strict=True) if value == REFUSED
    ]
    return got


ENVELOPES = {
    "debezium-json": '{"op": "c", "after": %s}',
    "canal-json": '{"type": "INSERT", "data": [%s]}',
    "maxwell-json": '{"type": "insert", "data": %s}',
    "dms-json": '{"metadata": {"operation": "insert"}, "data": %s}',
}


def by_records(form: str, cells: Cells) -> list[Any]:
    """Return what records of changes are; a canal record has a list of rows."""
    return of_written(form, [json.dumps(row) for row in rows_of(cells)])


def of_written(form: str, rows: list[str], cells: int | None = None) -> list[Any]:
    source = records("t", form, schema(), keys="id")
    given = [{"value": ENVELOPES[form] % row} for row in rows]
    with Pipeline(source, options=StageOptions(on_bad_input="quarantine"), keep_view=True) as pipeline:
        pipeline.step({"t": given})
        return seen(pipeline.view(), cells or len(rows))


def line_of(row: int, at: int, written: str) -> str:
    return f'{{"id":{row}, "{names()[at]}": {written}}}'


WRITTEN = [
    (at, written, of_written_number(written, kind)) for written in WRITTEN_NUMBERS for at, kind in enumerate(TYPES.values())
]
WRITTEN_WAYS: dict[str, Any] = {
    "JSON": lambda rows, cells=None: seen(part_json_rows([row.encode() for row in rows], schema())[0], cells or len(rows)),
    "Debezium": lambda rows, cells=None: of_written("debezium-json", rows, cells),
    "Canal": lambda rows, cells=None: of_written("canal-json", rows, cells),
    "Maxwell": lambda rows, cells=None: of_written("maxwell-json", rows, cells),
    "DMS": lambda rows, cells=None: of_written("dms-json", rows, cells),
}
TEXT_WAYS = {
    "dicts": by_dicts,
    "columns": by_columns,
    "Arrow": by_arrow,
    "pandas": by_pandas,
    "polars": by_polars,
    "JSON": by_json,
    "CSV": by_csv,
    "Debezium": lambda cells: by_records("debezium-json", cells),
    "Canal": lambda cells: by_records("canal-json", cells),
    "Maxwell": lambda cells: by_records("maxwell-json", cells),
    "DMS": lambda cells: by_records("dms-json", cells),
}
DECIMAL_OF_DEBEZIUM = {"DECIMAL(5,2)", "DECIMAL(38,0)"}  # base64, unless options or the record decide otherwise
COUNTED = {"DATE", "TIMESTAMP", "TIMESTAMP_NTZ"}  # the format decides what a number is


def differences(cells: Cells, got: list[Any], leaves_out: set[str] = frozenset()) -> list[Any]:
    kinds = list(TYPES)
    return [
        (kinds[at], value, expected, found)
        for (at, value, expected), found in zip(cells, got, strict=True)
        if kinds[at] not in leaves_out and as_seen(expected) != found
    ]


@pytest.mark.parametrize("way", TEXT_WAYS)
def test_a_text_is_the_same_value_or_refused_whichever_way_it_comes(way: str) -> None:
    leaves_out = DECIMAL_OF_DEBEZIUM if way == "Debezium" else set()

    assert differences(TEXTS, TEXT_WAYS[way](TEXTS), leaves_out) == []


@pytest.mark.parametrize("way", ["dicts", "columns", "pandas", "JSON", "Debezium", "Canal", "Maxwell"])
def test_a_number_is_the_same_value_or_refused_whichever_way_it_comes(way: str) -> None:
    is_record = way not in {"dicts", "columns", "pandas", "JSON"}
    leaves_out = COUNTED if is_record else set()
    leaves_out |= DECIMAL_OF_DEBEZIUM if way == "Debezium" else set()

    assert differences(NUMBER_CELLS, TEXT_WAYS[way](NUMBER_CELLS), leaves_out) == []


@pytest.mark.parametrize("way", ["JSON", "Debezium", "Canal", "Maxwell"])
def test_a_number_of_json_is_what_is_written_and_not_what_a_double_makes_of_it(way: str) -> None:
    leaves_out = COUNTED if way == "Debezium" else set()

    got = WRITTEN_WAYS[way]([line_of(row, at, written) for row, (at, written, _) in enumerate(WRITTEN)])

    assert differences(WRITTEN, got, leaves_out) == []


@pytest.mark.parametrize("way", ["JSON", "Debezium", "Canal", "Maxwell"])
def test_a_row_of_json_is_a_row_by_itself_whatever_comes_with_it(way: str) -> None:
    texts = [text for text, _ in ROWS_OF_JSON]
    alone = [WRITTEN_WAYS[way]([text], cells=1)[0] for text in texts]

    assert alone == [expected for _, expected in ROWS_OF_JSON]
    assert WRITTEN_WAYS[way]([text.replace('"id":0', f'"id":{row}') for row, text in enumerate(texts)]) == alone


@pytest.mark.parametrize("frame", [pa.table, pandas.DataFrame, polars.DataFrame], ids=["Arrow", "pandas", "polars"])
def test_typed_columns_of_frames_are_the_same_values(frame: Any) -> None:
    floats = [value for value in NUMBERS if isinstance(value, float)]
    cells = [cell for cell in NUMBER_CELLS if cell[1] in floats and list(TYPES)[cell[0]] not in {"BOOLEAN", *COUNTED}]
    columns = columns_of([(at, float(value), expected) for at, value, expected in cells])
    missing = {name: columns[name] for name in columns if any(one is not None for one in columns[name])}
    missing |= {name: [None] * len(cells) for name in columns if name not in missing}

    assert differences(cells, stepped(frame(missing), len(cells))) == []


def test_values_of_sql_are_the_same_values_and_a_refusal_names_row_and_column() -> None:
    given = TEXTS[::7] + [cell for cell in NUMBER_CELLS if cell[1] not in {True, False}]
    good = [cell for cell in given if cell[2] != REFUSED]
    bad = [cell for cell in given if cell[2] == REFUSED][::8]
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(names(), TYPES, strict=True))
    with connect() as session:
        session.sql(f"CREATE TABLE t (id BIGINT, {columns})")
        query = session.sql("SELECT * FROM t").start()
        session.sql(f"INSERT INTO t VALUES {', '.join(values(row, *cell[:2]) for row, cell in enumerate(good))}")
        got = seen(query.table(), len(good))
        for at, value, _ in bad:
            with pytest.raises(SqlError, match=f'row 1 of the VALUES for "t", column "{names()[at]}"'):
                session.sql(f"INSERT INTO t VALUES {values(0, at, value)}")

    assert differences(good, got) == []


def values(row: int, at: int, value: Any) -> str:
    shown = (
        "'" + value.replace("'", "''") + "'"
        if isinstance(value, str)
        else f"{value:.1f}"
        if isinstance(value, float) and value == int(value) and abs(value) < 1e6
        else repr(value)
    )
    return f"({row}, {', '.join(shown if at == place else 'NULL' for place in range(len(TYPES)))})"
