"""Differences between DuckDB and Spark in the text of a batch query; the rest is shared.

Times: DuckDB compares timestamps and dates as they are. Spark compares microseconds, for its arithmetic on dates and timestamps
without zone depends on the session's time zone.

Known limits: in Spark a row is at most 2^31 - 1 times in a table.
"""

# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from zset_join.expressions.sql_text import Dialect as DialectName
from zset_join.expressions.sql_text import type_name

__all__ = ["DUCKDB", "SPARK", "Dialect"]

_DAY_US = 86_400 * 10**6
_MOST_EXACT_DIGITS = 30


@dataclass(frozen=True)
class Dialect:
    """Write the parts of a query that differ."""

    name: DialectName

    @property
    def is_spark(self) -> bool:
        return self.name == "spark"

    @property
    def joins_fully(self) -> bool:
        """Return whether a FULL join takes any condition."""
        return self.is_spark

    @property
    def row_id(self) -> str:
        """Return a number that is different in every row of a SELECT; it is to be read once only."""
        return "monotonically_increasing_id()" if self.is_spark else "row_number() OVER ()"

    def type_name(self, kind: pa.DataType) -> str:
        return type_name(kind, self.name)

    def repeated(self, source: str, copies: str) -> str:
        """Return a FROM clause that repeats each row by a number; a negative number drops it."""
        if self.is_spark:
            return f"{source} LATERAL VIEW explode(array_repeat(0, CAST({copies} AS INT))) copies AS copy"
        return f"{source}, unnest(range(CAST({copies} AS BIGINT)))"

    def time(self, text: str, kind: pa.DataType) -> str:
        """Return an event time as times are compared."""
        return self.microseconds(text, kind) if self.is_spark else text

    def microseconds(self, text: str, kind: pa.DataType) -> str:
        """Return an event time as a watermark measures it: an integer as it is, all else in microseconds."""
        if pt.is_integer(kind) or not (pt.is_timestamp(kind) or pt.is_date(kind) or pt.is_time(kind)):
            return text
        if not self.is_spark:
            return f"epoch_us({text})"
        if pt.is_date(kind):
            return f"(CAST(unix_date({text}) AS BIGINT) * {_DAY_US})"
        if pt.is_time(kind):
            return f"time_to_micros({text})"
        return f"unix_micros(CAST({text} AS TIMESTAMP))"  # one without zone is read as UTC, the zone of the query

    def moved(self, time: str, kind: pa.DataType, distance: int) -> str:
        """Return `time` shifted by a distance in microseconds or in the unit of an integer time."""
        if not distance:
            return time
        sign, size = ("+", distance) if distance > 0 else ("-", -distance)
        return f"{time} {sign} {size if self.is_spark or pt.is_integer(kind) else f'to_microseconds({size})'}"

    def distinct(self, columns: Sequence[str], more: str, source: str, having: str = "") -> str:
        """Return the distinct rows of some columns, with aggregates."""
        passing = f" HAVING {having}" if having else ""
        if self.is_spark and len(columns) > _MOST_GROUPING_COLUMNS:  # Spark runs out of stack by a thousand
            listed = ", ".join(columns)
            whole = f"SELECT *, struct({listed}) AS whole FROM {source}"
            shown = ", ".join(f"whole.{one} AS {one}" for one in columns)
            return f"SELECT {shown}, {more} FROM ({whole}) GROUP BY whole{passing}"
        return f"SELECT {', '.join(columns)}, {more} FROM {source} GROUP BY ALL{passing}"

    def count_distinct(self, columns: Sequence[str]) -> str:
        if len(columns) == 1 or self.is_spark:
            return f"count(DISTINCT {', '.join(columns)})"
        return f"count(DISTINCT ({', '.join(columns)}))"

    def first_by(self, value: str, order: str, *, descending: bool) -> str:
        """Return the value with the smallest or largest order, of several the smallest or largest; NULL is the smallest."""
        if self.is_spark:
            return f"{'max_by' if descending else 'min_by'}({value}, struct({order}, {value}))"
        turned = f"{order} DESC, {value} DESC NULLS LAST" if descending else f"{order}, {value} NULLS FIRST"
        return f"first({value} ORDER BY {turned})"

    def listed(self, value: str, passing: str, *, is_set: bool) -> str:
        """Return the values in their order, with or without repeats; an empty list where none passes."""
        if self.is_spark:
            return f"sort_array({'collect_set' if is_set else 'collect_list'}({value}){passing})"
        if is_set:
            return f"coalesce(list_sort(list(DISTINCT {value}){passing}), [])"
        return f"coalesce(list({value} ORDER BY {value}){passing}, [])"

    def average(self, value: str, passing: str, result: pa.DataType) -> str:
        """Return an average; of decimals rounded half up, which DuckDB is made to do in whole numbers."""
        if self.is_spark or not pt.is_decimal(result) or result.precision > _MOST_EXACT_DIGITS:
            return f"CAST(avg({value}){passing} AS {self.type_name(result)})"
        scale = result.scale - 4
        total = f"CAST(replace(CAST(sum(CAST({value} AS DECIMAL(38,{scale}))){passing} AS VARCHAR), '.', '') AS HUGEINT)"
        count = f"count({value}){passing}"
        rounded = f"((2 * abs({total}) * 10000 + {count}) // (2 * {count}))"
        unit = f"CAST({10**result.scale} AS HUGEINT)"
        digits = f"({rounded} // {unit}) || '.' || lpad(CAST({rounded} % {unit} AS VARCHAR), {result.scale}, '0')"
        sign = f"CASE WHEN {total} < 0 THEN '-' ELSE '' END"
        return f"CASE WHEN {count} > 0 THEN CAST({sign} || {digits} AS {self.type_name(result)}) END"


_MOST_GROUPING_COLUMNS = 100

DUCKDB = Dialect("duckdb")
SPARK = Dialect("spark")
