"""Facts that the library reads from a plan of Spark, for both kinds of sessions.

Two modules implement `FrameReader`: `classic.reading` reads the analysed plan in the JVM, `connect` the plan that a client
sends to its server. `reader_of` returns the one of a session. The package `classic` alone reaches into a JVM, and is imported
where a session has one; `tools.check_source_files` refuses the names of the gateway everywhere else.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit
from pyspark.sql.types import StructType

__all__ = [
    "AggregateFacts",
    "FoundFunction",
    "FrameReader",
    "ReadExpression",
    "StepFacts",
    "analysed",
    "is_connect",
    "is_of_spark",
    "parallelism",
    "reader_of",
]

_MANY = 1 << 16
"""Numbers, of which Spark gives every task that runs at once a share."""


@dataclass(frozen=True, slots=True)
class FoundFunction:
    name: str
    command: bytes | None


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """Effect of a call such as `where` or `select` on rows."""

    foreign: str | None
    is_deterministic: bool
    momentary: str | None
    subquery: str | None
    texts: tuple[str, ...]
    needs_zone: bool
    title: str
    is_selection: bool
    kept: Mapping[str, str]
    reads: frozenset[str]
    condition: str | None = None
    selected: tuple[tuple[str, str], ...] | None = None


@dataclass(frozen=True, kw_only=True)
class AggregateFacts:
    """One aggregate function that a Column of Spark's calls."""

    function: str
    name: str
    type: str
    arguments: tuple[Column, ...] = ()
    is_constant: bool = False
    condition: Column | None = None
    is_distinct: bool = False
    untaken: str | None = None


@dataclass(frozen=True)
class ReadExpression:
    """An expression over a row."""

    column: str | None
    text: str
    meaning: object


class FrameReader(Protocol):
    """Read plans of one kind of session."""

    def select_text(self, rows: DataFrame, texts: Sequence[str]) -> DataFrame:
        """Return `rows.selectExpr(*texts)`, at a cost that does not depend on the number of columns where that is possible."""

    def is_deterministic(self, rows: DataFrame) -> bool:
        """Return whether a second evaluation gives the same rows."""

    def used_columns(self, rows: DataFrame, expression: Column) -> frozenset[str]:
        """Return the columns of rows that an expression reads."""

    def texts(self, rows: DataFrame, columns: Sequence[Column]) -> tuple[str, ...]:
        """Return expressions as SQL; equal expressions are written alike in every session of the same kind."""

    def functions(self, rows: DataFrame) -> list[FoundFunction]:
        """Return the calls of the user's functions in a plan, those of its source included."""

    def step(self, rows: DataFrame, transformed: DataFrame) -> StepFacts:
        """Return the effect of a call on rows, which `transformed` are after; Spark refuses what it cannot analyse."""

    def aggregate(self, rows: DataFrame, column: Column) -> AggregateFacts | None:
        """Return the aggregate that a Column calls; None where it is not one aggregate function by itself."""

    def expression(self, rows: DataFrame, column: Column) -> ReadExpression: ...

    def paths(self, rows: DataFrame) -> list[str] | None:
        """Return the paths of the files that rows are read from; None where a source is none of files, or is not known."""

    def batch_of_source(self, rows: DataFrame) -> DataFrame | None:
        """Return the only source of a stream as a batch; None where it has several, or none that can be read so."""

    def type_of_json(self, texts: DataFrame) -> StructType:
        """Return the type of JSON texts, as Spark infers it; a job over all of them, which are one column of strings."""


def is_connect(session: SparkSession) -> bool:
    """Return whether a session is a client of Spark Connect, which has no JVM beside it."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def reader_of(session: SparkSession) -> FrameReader:
    name = "connect" if is_connect(session) else "classic.reading"
    return cast("FrameReader", importlib.import_module(f"zset_join.runners.spark.frames.{name}").READER)


def parallelism(session: SparkSession) -> int:
    """Return how many tasks run at once. Cost: over Spark Connect, a job that makes nothing but numbers."""
    if is_connect(session):
        last = session.range(_MANY).select(F.spark_partition_id().alias("task")).agg(F.max("task")).first()
        return 1 if last is None else int(last[0]) + 1
    from zset_join.runners.spark.frames.classic import context

    return context.parallelism(session)


def analysed(rows: DataFrame, view: str) -> DataFrame:
    """Return rows whose expressions have been resolved under the settings of the session as they are now."""
    # A classic session resolves them when they are written, Spark Connect when they run, except for those of a view.
    if not is_connect(rows.sparkSession):
        return rows
    rows.createOrReplaceTempView(view)
    return rows.sparkSession.table(view)


def is_of_spark(error: BaseException) -> bool:
    """Return whether Spark raised an error: PySpark, or a call into the JVM of a classic session."""
    if isinstance(error, PySparkException):
        return True
    try:
        from zset_join.runners.spark.frames.classic.context import GATEWAY_ERRORS
    except ImportError:  # a client of Spark Connect is installed without the gateway
        return False
    return isinstance(error, GATEWAY_ERRORS)
