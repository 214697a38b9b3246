"""`connect`: a session of SQL, in this process or inside Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from zset_join.core.errors import OptionError
from zset_join.core.extras import needed_for
from zset_join.sql.session import Session
from zset_join.sql_expressions.dialects import dialect_named
from zset_join.sql_expressions.places import near

__all__ = ["connect"]


def connect(
    *,
    engine: str = "local",
    spark: Any = None,
    dialect: str = "spark",
    keep_tables: bool = True,
    clock: Callable[[], int] | None = None,
    directory: str | Path | None = None,
    keep_inputs: bool = False,
) -> Session:
    """Return a new session.

    Args:
        engine: `local`, in this process, or `spark`.
        spark: a SparkSession, for `engine="spark"`; default: the active one, or a new one on this machine.
        dialect: whose SQL statements are written in: spark, flink, timeplus, risingwave or laminardb.
        keep_tables: keep the rows of tables for later queries; inside Spark they are always kept.
        clock: returns the processing time in microseconds since 1970; default: the wall clock.
        directory: where inserted rows, state and positions are kept, so that the same statements run again go on where they
            were, see `zset_join.sql.lasting`; default: in memory, inside Spark a temporary one.
        keep_inputs: let running queries keep every change that comes, for `Running.verify()`; inside Spark the checkpoint has
            them.

    Raises:
        OptionError: an engine or dialect that is not there, or an argument of the other engine.

    >>> session = connect()
    >>> session.sql("CREATE TABLE t (k STRING, v INT)") and session.sql("INSERT INTO t VALUES ('a', 1), ('a', 2)")
    Message(text='2 rows into t', rows=None)
    >>> session.sql("SELECT k, sum(v) AS total FROM t GROUP BY k").table().to_pylist()
    [{'k': 'a', 'total': 3}]
    """
    if engine not in {"local", "spark"}:
        raise OptionError(f"engine={engine!r}; there is local and spark.{near(engine, ('local', 'spark'))}", code="ENGINE")
    dialect_named(dialect)
    if engine == "spark":
        with needed_for("engine='spark'"):
            from zset_join.sql.on_spark import SessionOnSpark
        return SessionOnSpark(spark, dialect=dialect, clock=clock, directory=directory)
    if spark is not None:
        raise OptionError("spark=... belongs to engine='spark'.", code="ENGINE")
    if directory is not None:
        from zset_join.sql.lasting import LastingSession

        return LastingSession(dialect=dialect, clock=clock, directory=directory, keep_inputs=keep_inputs)
    return Session(dialect=dialect, keep_tables=keep_tables, clock=clock, keep_inputs=keep_inputs)
