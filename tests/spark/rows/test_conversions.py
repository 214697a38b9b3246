"""The frozen table is what Spark answers, and the product's SQL inside Spark reads texts and JSON values by the table."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.conversions.table_of_conversions import (
    ANSWERS,
    NUMBERS,
    REFUSED,
    TYPES,
    WRITTEN_NUMBERS,
    as_seen,
    number_cells,
    of_number,
    of_text,
    of_written_number,
    schema,
    seen,
    text_cells,
)
from zset_join.changelog.formats.record_spellings import is_exact
from zset_join.runners.spark.api.table_streams import file_rows, json_rows
from zset_join.runners.spark.rows.conversions import json_value, of_json
from zset_join.runners.spark.rows.conversions import of_text as text_in_spark


def test_spark_casts_as_the_table_has_it_and_the_products_sql_reads_by_the_table(spark: SparkSession) -> None:
    texts = list(ANSWERS)
    lines = [(at, text, json.dumps({"v": text})) for at, text in enumerate(texts)]
    lines += [(len(texts) + at, None, json.dumps({"v": number})) for at, number in enumerate(NUMBERS)]
    given = spark.createDataFrame(lines, "n INT, x STRING, j STRING").selectExpr("n", "x", "from_json(j, 'v VARIANT').v AS v")
    requested = [f"CAST(TRY_CAST(x AS {name}) AS STRING) AS cast_{at}" for at, name in enumerate(TYPES)]
    requested += [f"{text_in_spark('x', kind)} AS text_{at}" for at, kind in enumerate(TYPES.values())]
    exact = {at: kind for at, kind in enumerate(TYPES.values()) if is_exact(kind)}
    requested += [f"{of_json('j', kind)} AS json_{at}" for at, kind in exact.items()]
    answers = (
        given.selectExpr("n", "x", f"{json_value('v')} AS j").selectExpr("n", *requested).orderBy("n").toArrow().to_pylist()
    )

    for at, name in enumerate(TYPES):
        cast = [row[f"cast_{at}"] for row in answers[: len(texts)]]
        assert [known(answer, frozen[at]) for answer, frozen in zip(cast, ANSWERS.values(), strict=True)] == [
            frozen[at] for frozen in ANSWERS.values()
        ], name
        expected = [of_text(text, at) for text in texts]
        assert [shown(row[f"text_{at}"]) for row in answers[: len(texts)]] == list(map(shown, expected)), name
    for at, kind in exact.items():
        expected = [of_text(text, at) for text in texts] + [of_number(number, kind) for number in NUMBERS]
        assert [shown(row[f"json_{at}"]) for row in answers] == list(map(shown, expected)), str(kind)


@pytest.mark.long
def test_json_of_sql_tables_is_read_by_the_table_and_its_members_too(spark: SparkSession) -> None:
    cells = [cell for cell in [*text_cells(), *number_cells()] if cell[2] != REFUSED]
    deep = pa.struct([("d", pa.decimal128(5, 2)), ("l", pa.list_(pa.int8())), ("m", pa.map_(pa.string(), pa.float64()))])
    given = schema().append(pa.field("deep", deep))
    good = {"d": 1.10, "l": ["7", 3.0, None], "m": {"a": "1.5", "b": None}}
    bad = [{"d": 1.005}, {"l": [200]}, {"l": ["3.9"]}, {"m": {"a": True}}]
    rows = [{"id": row, f"c{at}": value, "deep": good} for row, (at, value, _) in enumerate(cells)]
    about = "n INT, value STRING, timestamp TIMESTAMP, offset INT, topic STRING"

    def read(lines: list[dict[str, Any]]) -> pa.Table:
        records = spark.createDataFrame([(1, json.dumps(line), None, at, "t") for at, line in enumerate(lines)], about)
        return json_rows(records, given, {}).drop("__time").toArrow()

    def unread(line: dict[str, Any]) -> Any:
        return read([line]).column("_unread_reason").to_pylist()[0]

    answer = read(rows)

    assert seen(answer, len(cells)) == [as_seen(expected) for _, _, expected in cells]
    assert answer.column("deep").to_pylist()[0] == {"d": Decimal("1.10"), "l": [7, 3, None], "m": [("a", 1.5), ("b", None)]}
    for one in bad:
        assert unread({"id": 1, "deep": one}).startswith('UNDECODABLE_VALUE:offset 0 of topic t: the value of column "deep"')


def test_files_of_json_and_csv_are_read_by_the_table_inside_spark(spark: SparkSession, tmp_path: Path) -> None:
    numbers = [
        (at, written, of_written_number(written, kind)) for written in WRITTEN_NUMBERS for at, kind in enumerate(TYPES.values())
    ]
    of_json = [(at, value, json.dumps(value), expected) for at, value, expected in text_cells() if expected != REFUSED]
    of_json += [(at, written, written, expected) for at, written, expected in numbers if expected != REFUSED]
    texts = [(at, text, expected) for at, text, expected in text_cells() if expected != REFUSED]
    header = ",".join(["id", *(f"c{at}" for at in range(len(TYPES)))])
    lines = [
        ",".join([str(row), *('"' + text.replace('"', '""') + '"' if at == place else "" for place in range(len(TYPES)))])
        for row, (at, text, _) in enumerate(texts)
    ]
    written = {
        "json": "".join(f'{{"id":{row}, "c{at}": {line}}}\n' for row, (at, _, line, _) in enumerate(of_json)),
        "csv": "\n".join([header, *lines, ""]),
    }
    got: dict[str, pa.Table] = {}
    for form, text in written.items():
        (tmp_path / form).mkdir()
        (tmp_path / form / "1").write_text("\ufeff" + text, newline="")
        rows = file_rows(spark, str(tmp_path / form), form, schema())
        batches: list[pa.Table] = []
        query = rows.writeStream.foreachBatch(lambda batch, _, to=batches: to.append(batch.toArrow())).trigger(
            availableNow=True
        )
        query.start().awaitTermination()
        got[form] = batches[0]

    assert seen(got["json"], len(of_json)) == [as_seen(expected) for *_, expected in of_json]
    assert seen(got["csv"], len(texts)) == [as_seen(expected) for *_, expected in texts]


def known(answer: str | None, frozen: str | None) -> str | None:
    """Return an answer; that of a time alone is of today, and not frozen."""
    return "today" if frozen == "today" and answer is not None else answer


def shown(value: Any) -> str:
    return "refused" if value is None else str(as_seen(value))
