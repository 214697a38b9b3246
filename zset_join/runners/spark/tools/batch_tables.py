"""A batch query run by Spark: each part is a view of the session.

The law: a text means what the engine computes, so it is read in UTC and with Spark's checked arithmetic, whatever the session's
settings are.

Cost: one analysis by Spark per part; nothing runs before the rows are requested.
"""

from __future__ import annotations

import uuid
from types import TracebackType
from typing import Self

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.runners.spark.frames.facts import analysed, is_connect
from zset_join.runners.spark.planning.job_settings import job_settings
from zset_join.runners.spark.rows.names import column_named
from zset_join.runners.spark.rows.schemas import field_type
from zset_join.tools.batch import BatchView, Part

__all__ = ["BatchTables", "aligned", "numbered", "table_prefix"]

_OF_TEXTS = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.variable.substitute": "false",
}


def table_prefix() -> str:
    """Return the prefix of the names of the views of one query."""
    return f"zset_join_{uuid.uuid4().hex}_"


def numbered(rows: DataFrame, *more: str) -> DataFrame:
    """Return rows with their columns called c0, c1, ..., the last ones by given names."""
    return rows.toDF(*(f"c{at}" for at in range(len(rows.columns) - len(more))), *more)


def aligned(rows: DataFrame, schema: pa.Schema, *more: Column) -> DataFrame:
    """Return the columns of a relation, numbered, and more behind them; one that the rows do not have is NULL."""
    there = set(rows.columns)
    columns = [
        (column_named(field.name) if field.name in there else F.lit(None).cast(field_type(field))).alias(f"c{at}")
        for at, field in enumerate(schema)
    ]
    return rows.select(*columns, *more)


class BatchTables:
    """The views of a batch query while it is read; `close` drops them."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._names: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Drop the views; what was made of them stays, but over Spark Connect."""
        while self._names:
            self._session.catalog.dropTempView(self._names.pop())

    def add(self, name: str, rows: DataFrame) -> None:
        self._names.append(name)
        rows.createOrReplaceTempView(name)

    def view(self, query: BatchView) -> DataFrame:
        """Return the rows of the view, its columns numbered; the tables it reads are present."""
        for part in query.parts:
            self.add(part.name, self._made(part))
        return self._session.table(query.answer)

    def tied(self, query: BatchView) -> DataFrame | None:
        """Return the rows among which arrival decides, after `view`; None where none can be."""
        if query.tied is None:
            return None
        for part in query.tied_parts:
            self.add(part.name, self._made(part))
        return self._session.table(query.tied)

    def _made(self, part: Part) -> DataFrame:
        with job_settings(self._session, _OF_TEXTS):
            rows = self._session.sql(part.query)
            if not is_connect(self._session):
                return rows
            self._names.append(f"{table_prefix()}rows")
            return analysed(rows, self._names[-1])
