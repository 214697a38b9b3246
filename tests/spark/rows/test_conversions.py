"""The frozen table is what Spark answers, and the product's SQL inside Spark reads texts and JSON values as the table says."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession

from tests.conversions.table_of_conversions import ANSWERS, NUMBERS, TYPES, as_seen, of_number, of_text
from zset_join.changelog.formats.record_spellings import is_exact
from zset_join.spark.rows.conversions import json_value, of_json
from zset_join.spark.rows.conversions import of_text as text_in_spark


def test_spark_casts_as_the_table_has_it_and_the_products_sql_reads_by_the_table(spark: SparkSession) -> None:
    texts = list(ANSWERS)
    lines = [(at, text, json.dumps({"v": text})) for at, text in enumerate(texts)]
    lines += [(len(texts) + at, None, json.dumps({"v": number})) for at, number in enumerate(NUMBERS)]
    given = spark.createDataFrame(lines, "n INT, x STRING, j STRING").selectExpr("n", "x", "from_json(j, 'v VARIANT').v AS v")
    asked = [f"CAST(TRY_CAST(x AS {name}) AS STRING) AS cast_{at}" for at, name in enumerate(TYPES)]
    asked += [f"{text_in_spark('x', kind)} AS text_{at}" for at, kind in enumerate(TYPES.values())]
    exact = {at: kind for at, kind in enumerate(TYPES.values()) if is_exact(kind)}
    asked += [f"{of_json('j', kind)} AS json_{at}" for at, kind in exact.items()]
    answers = given.selectExpr("n", "x", f"{json_value('v')} AS j").selectExpr("n", *asked).orderBy("n").toArrow().to_pylist()

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


def known(answer: str | None, frozen: str | None) -> str | None:
    """Return an answer; that of a time alone is of today, and not frozen."""
    return "today" if frozen == "today" and answer is not None else answer


def shown(value: Any) -> str:
    return "refused" if value is None else str(as_seen(value))
