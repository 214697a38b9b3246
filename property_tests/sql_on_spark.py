"""Every query of the fixtures as a query of Spark's, and the answer of the session in process beside it.

    python -m property_tests.sql_on_spark                    plan, run and compare all of them
    python -m property_tests.sql_on_spark --plan-only        make the view of every query, run none
    python -m property_tests.sql_on_spark --executors        run them on executors; default: on the driver
    python -m property_tests.sql_on_spark --minutes 20       those with joins and groups first, as many as there is time for

The law: a query that is planned in process is planned inside Spark, and over the same rows it has the same contents; or it is
refused there by name. What runs is `Query.view` with a `writeStream` of its own: Spark reads the rows of tables from files.
Tables that are read from outside have no rows here: their queries are planned and not run.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from tests.sql.test_documents import FILES, read
from tools.servers.maven_jars import SPARK_KAFKA, jars_of
from zset_join.core.errors import ZsetJoinError
from zset_join.core.relation import Relation
from zset_join.plan.tree import Merge, Node, Operate
from zset_join.runners.local.contents import Contents, repeated
from zset_join.sinks.sink import SinkProgress
from zset_join.spark import local_session, writeStream
from zset_join.sql import Query, Session, connect
from zset_join.sql.tables.catalog import Table
from zset_join.sql.tables.results import sorted_rows
from zset_join.zset import ZSet, single_batch

__all__ = ["main", "sweep"]

_ROWS = 6
_TOGETHER = 16
"""Queries that are run as one query of Spark's with as many views."""
_NOW = 1_700_000_000_000_000
_TIME_OF_DAY = re.compile(r"\b(now|proctime|current_timestamp|current_date|localtimestamp|_tp_time|uuid|rand)\b", re.IGNORECASE)
_LIMITED = re.compile(r"\bORDER BY (\w+)(?: (?:ASC|DESC))? LIMIT \d+", re.IGNORECASE)


def _ties(text: str, table: pa.Table) -> Counter[str] | None:
    """Return the values by which a query with LIMIT orders its rows; None for another query."""
    limited = _LIMITED.search(text)
    return _counted(table.select([limited[1]])) if limited and limited[1] in table.schema.names else None


@dataclass
class Tally:
    """What became of the queries.

    Args:
        counts: by outcome.
        failures: (file, statement, what happened).
        files: by name, what became of the queries of each.
    """

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, str, str]] = field(default_factory=list)
    files: dict[str, Counter[str]] = field(default_factory=dict)


def sweep(
    spark: Any,
    *,
    plan_only: bool = False,
    minutes: float | None = None,
    files: list[str] | None = None,
    execution: str = "executors",
) -> Tally:
    """Run the fixtures on both engines; `plan_only`: make views, run nothing."""
    tally = Tally()
    until = None if minutes is None else time.monotonic() + 60 * minutes
    chosen = files or FILES
    for place, name in enumerate(chosen):
        dialect = name.split("/", maxsplit=1)[0]
        left = None if until is None else max(0.0, until - time.monotonic()) / (len(chosen) - place)
        with (
            connect(dialect=dialect, clock=lambda: _NOW) as here,
            connect(dialect=dialect, clock=lambda: _NOW, engine="spark", spark=spark) as there,
        ):
            there.runtime.run_as(once=True, trigger=None)  # no query starts to read
            before, began = Counter(tally.counts), time.monotonic()
            _File(name, here, there, tally, execution).run(plan_only=plan_only, seconds=left)
            tally.files[name] = tally.counts - before
            found = ", ".join(f"{what}: {count}" for what, count in sorted(tally.files[name].items()))
            _report(f"file {place + 1} of {len(chosen)} {name} ({time.monotonic() - began:.1f} s): {found or 'no query'}")
    return tally


class _File:
    def __init__(self, name: str, here: Session, there: Session, tally: Tally, execution: str) -> None:
        self._name = name
        self._here = here
        self._there = there
        self._tally = tally
        self._execution = execution

    def run(self, *, plan_only: bool, seconds: float | None) -> None:
        """Run the statements of the file on both engines, then its queries."""
        self._bound: list[tuple[str, Query, Query]] = []
        for mark, text in read(self._name):
            if text.upper().startswith("ALTER TABLE"):  # what was bound before reads the table as it was
                self._run_bound(plan_only=plan_only, seconds=seconds)
            if mark.startswith("+FUNCTION"):
                for session in (self._here, self._there):
                    session.create_temporal_table_function(*mark.split()[1:])
            if not mark.startswith("+"):
                continue
            made, other = _outcome(self._here, text), _outcome(self._there, text)
            if isinstance(made, BaseException):
                continue
            if isinstance(other, ZsetJoinError):
                self._tally.counts[f"refused, {other.code}"] += 1
                _report(f"refused  {self._name}: {other}\n    {text}")
            elif isinstance(other, BaseException):
                self._failed(text, f"a statement fails inside Spark: {type(other).__name__}: {other}")
            elif isinstance(made, Query):
                self._bound.append((text, made, other))
        self._run_bound(plan_only=plan_only, seconds=seconds)

    def _run_bound(self, *, plan_only: bool, seconds: float | None) -> None:
        queries, self._bound = self._bound, []
        for running in (*self._here.running, *self._there.running):
            running.stop()
        queries.sort(key=lambda one: -_stages(one[1].bound.view.node))
        if not plan_only:
            self._fill()
        planned = [one for one in queries if self._plans(one[0], one[2])]
        if plan_only:
            return
        stored = [one for one in planned if self._is_stored(one[1])]
        self._tally.counts["planned, reads from outside"] += len(planned) - len(stored)
        began = time.monotonic()
        for first in range(0, len(stored), _TOGETHER):
            some = stored[first : first + _TOGETHER]
            if seconds is not None and time.monotonic() - began > seconds:
                self._tally.counts["no time left"] += len(some)
            else:
                self._compare_all(some)

    def _plans(self, text: str, query: Query) -> bool:
        try:
            query.explain()
        except ZsetJoinError as error:
            self._tally.counts[f"refused, {error.code}"] += 1
            _report(f"refused  {self._name}: {error}\n    {text}")
            return False
        except Exception:  # noqa: BLE001 - every error is reported
            self._failed(text, traceback.format_exc(limit=-3))
            return False
        self._tally.counts["planned"] += 1
        return True

    def _compare_all(self, queries: Sequence[tuple[str, Query, Query]]) -> None:
        """Compare queries, those together as one query of Spark's that are answered in process."""
        began = time.monotonic()
        groups: dict[str, list[tuple[str, Query, pa.Table]]] = {}
        for text, made, other in queries:
            try:
                expected = made.table()
            except ZsetJoinError as error:
                (there,) = self._answers([other])
                if isinstance(there, pa.Table):
                    self._failed(text, f"only in process it is refused: {error}; Spark answers {there.to_pylist()}")
                else:
                    self._tally.counts["fails on both"] += 1
                continue
            group = f"{other.settings.get('on_bad_input')}{other.settings.get('max_watermark_jump')}"
            groups.setdefault(group, []).append((text, other, expected))
        for together in groups.values():
            answers = self._answers([other for _, other, _ in together])
            for (text, _, here), there in zip(together, answers, strict=True):
                self._compare(text, here, there)
        _report(f"         {self._name}: {len(queries)} queries, {time.monotonic() - began:.1f} s")

    def _compare(self, text: str, here: pa.Table, there: pa.Table | Exception) -> None:
        if isinstance(there, Exception):
            self._failed(text, f"only Spark fails: {type(there).__name__}: {str(there)[-900:]}")
            return
        expected, found = _counted(here), _counted(there)
        if found != expected:
            if _TIME_OF_DAY.search(text):
                self._tally.counts["differs, and requests the time of day"] += 1
                return
            if _ties(text, here) == _ties(text, there) is not None:
                self._tally.counts["equal but for which of equal rows LIMIT keeps"] += 1
                return
            self._failed(text, f"in process {dict(expected - found)}, inside Spark {dict(found - expected)}")
        else:
            self._tally.counts["equal"] += 1
            _report(f"equal    {self._name} ({sum(found.values())} rows): {text[:90]!r}")

    def _answers(self, queries: Sequence[Query]) -> list[pa.Table | Exception]:
        """Return what queries hold, run as one streaming query of Spark's; where one fails, those of halves."""
        try:
            return list(self._run(queries))
        except Exception as error:  # noqa: BLE001 - compared with what happens in process
            if len(queries) == 1:
                return [error]
        middle = len(queries) // 2
        return [*self._answers(queries[:middle]), *self._answers(queries[middle:])]

    def _run(self, queries: Sequence[Query]) -> Sequence[pa.Table]:
        sinks = [_Kept(one.schema) for one in queries]
        with TemporaryDirectory() as place:
            options = {
                "execution": self._execution,
                "checkpointLocation": f"{place}/cp",
                "localStateDir": f"{place}/local",
                "onBadInput": queries[0].settings.get("on_bad_input", "error"),
            }
            writer = writeStream({f"view {at}": one.view for at, one in enumerate(queries)}).options(**options)
            for at, sink in enumerate(sinks):
                writer = writer.view(f"view {at}").to(sink)
            writer.trigger(availableNow=True).start().awaitTermination()
        return [sorted_rows(sink.contents(), one.bound) for sink, one in zip(sinks, queries, strict=True)]

    def _failed(self, text: str, what: str) -> None:
        self._tally.counts["failed"] += 1
        self._tally.failures.append((self._name, text, what))
        _report(f"FAILED   {self._name}: {what}\n    {text}")

    def _is_stored(self, query: Query) -> bool:
        tables = [self._here.catalog.tables.get(name) for name in query.bound.reads]
        return all(table is not None and table.lookup is None and not _reads_outside(table) for table in tables)

    def _fill(self) -> None:
        chance = random.Random(7)
        for table in list(self._here.catalog.tables.values()):
            is_in_both = self._there.catalog.tables.get(table.name) is not None
            is_inserted = table.options.get("connector") in {None, "memory"}  # others are only written to
            if is_in_both and is_inserted and table.lookup is None:
                given = [one for one in table.columns if one.is_given and one.name != table.delta_column]
                known = {*table.primary_key, *(table.watermark or ())[:1]}
                rows = pa.table(
                    {one.name: _values(one.type, chance, has_null=one.name not in known) for one in given},
                    schema=pa.schema([(one.name, one.type) for one in given]),
                )
                for session in (self._here, self._there):
                    session.insert(table.name, rows)


class _Kept:
    """Keep the contents of a view; a sink for one run.

    Args:
        schema: its columns.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._contents = Contents(schema)

    def open(self, output: Relation, query_id: str) -> None:
        """Do nothing: the columns are known."""

    def last_epoch(self) -> int | None:
        """Return that there is none."""
        return None

    def write(self, epoch: int, chunks: Iterable[ZSet]) -> SinkProgress:
        """Take a delta."""
        for chunk in chunks:
            rows = single_batch(pa.Table.from_batches([chunk.rows]).cast(self._schema))
            self._contents.add(ZSet(rows, chunk.weights))
        return SinkProgress(epoch, 0, 0, 0.0)

    def close(self) -> None:
        """Keep what was taken."""

    def contents(self) -> pa.Table:
        """Return every row as often as it is present."""
        return repeated(self._contents.rows(), self._schema)


def _outcome(session: Session, text: str) -> Any:
    try:
        return session.sql(text)
    except Exception as error:  # noqa: BLE001 - every error is reported
        return error


def _reads_outside(table: Table) -> bool:
    return table.options.get("connector") in {"filesystem", "kafka", "upsert-kafka", "datagen", "jdbc", "redis"}


def _stages(node: Node) -> int:
    own = 1 if isinstance(node, Operate | Merge) else 0
    return own + sum(_stages(child) for child in node.children)


def _values(kind: pa.DataType, chance: random.Random, *, has_null: bool) -> pa.Array:
    """Return values of few kinds, so that keys meet, with NULLs; the first is never one."""
    made = [_value(kind, chance) for _ in range(_ROWS)]
    return pa.array(
        [one if place == 0 or not has_null or chance.random() > 0.1 else None for place, one in enumerate(made)], kind
    )


def _value(kind: pa.DataType, chance: random.Random) -> Any:
    number = chance.randint(1, 4)
    if pt.is_boolean(kind):
        return number % 2 == 0
    if pt.is_string(kind):
        return chance.choice(["a", "b", "1", '{"a": 1}'])
    if pt.is_integer(kind):
        return number
    if pt.is_floating(kind):
        return number + 0.5
    if pt.is_decimal(kind):
        return Decimal(number) / 2 if kind.scale else Decimal(number)
    if pt.is_timestamp(kind):
        return pa.scalar(_NOW + number * 1_000_000, pa.int64()).cast(pa.timestamp("us")).cast(kind).as_py()
    if pt.is_date(kind):
        return pa.scalar(19_000 + number, pa.int32()).cast(kind).as_py()
    if pt.is_binary(kind):
        return str(number).encode()
    if pt.is_list(kind):
        return [_value(kind.value_type, chance)]
    if pt.is_struct(kind):
        return {one.name: _value(one.type, chance) for one in kind}
    return None


def _counted(table: pa.Table) -> Counter[str]:
    """Return how often each row is present; floats to twelve digits, for their sums depend on the order."""
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True) if table.num_columns else ()
    return Counter(repr(tuple(float(f"{one:.12g}") if isinstance(one, float) else one for one in row)) for row in rows)


def _report(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a program's output


def main(arguments: list[str] | None = None) -> int:
    """Run the sweep from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan-only", action="store_true")
    parser.add_argument("--executors", action="store_true")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--file", action="append", help=f"one of {', '.join(FILES)}; repeatable")
    options = parser.parse_args(arguments)
    jars = ",".join(sorted(str(path) for path in jars_of(SPARK_KAFKA, with_dependencies=False).glob("*.jar")))
    spark = local_session("sql sweep", cores=2, options={"spark.ui.enabled": "false", "spark.jars": jars})
    spark.sparkContext.setLogLevel("OFF")
    where = "executors" if options.executors else "driver"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tally = sweep(spark, plan_only=options.plan_only, minutes=options.minutes, files=options.file, execution=where)
    spark.stop()
    _report("; ".join(f"{what}: {count}" for what, count in sorted(tally.counts.items())))
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
