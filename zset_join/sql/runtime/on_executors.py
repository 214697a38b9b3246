"""Queries of a file of statements on Spark's executors: those that write outside are one query of Spark.

    SET execution = 'executors';                                            before the queries of the file
    zset-join run pipeline.sql --engine spark --directory /data/shop

    /data/shop/executors/        its checkpoint, as of every query on executors
    /data/shop/executors-rows/   inserted rows as files that Spark reads

The law: an epoch of all of them is one commit, and each output is what it is on the driver. Run again, it continues.

Known limits: a table of the session cannot be written by them, and nothing is kept for SELECT. Rows are inserted before they
start, by the statements of the file; what a later run inserts is what it begins with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zset_join.core.errors import SqlError
from zset_join.runners.spark.api.views import View, writeStream
from zset_join.sinks.sink import Sink
from zset_join.sql.runtime.refusals import check_settings
from zset_join.sql.tables.connectors import SinkWriter
from zset_join.sql.tables.results import Query, Running
from zset_join.sql.tables.settings import seconds_of

__all__ = ["check", "refused", "start"]

_PASSED_ON = (
    "cold_store", "default_hash_join", "default_hash_table", "join_buffer_policy", "join_max_buffered_bytes", "keep_state",
    "max_hot_bytes", "max_hot_keys", "on_bad_input", "snapshot_after_bytes",
)  # fmt: skip
_SECONDS = ("idle_timeout", "tombstone_retention")


def refused() -> SqlError:
    return SqlError(
        "the queries of a session that is typed into are one pipeline on the driver, and execution = 'executors' requests "
        "tasks of Spark's. RESET the setting; or run a file, zset-join run FILE --engine spark; or start the query, or "
        "several, beside the session over its tables: "
        'zset_join.spark.writeStream({"a": session.sql("SELECT ...").view, ...}).option("execution", "executors").',
        code="NOT_OFFERED",
    )


def check(running: Running, others: Sequence[Running]) -> None:
    """Refuse a query that cannot run beside others on executors."""
    if running.writer is not None:
        raise SqlError(
            f'"{running.name}" writes into the table "{running.writes}" of the session, whose rows are on the driver. Make '
            f'"{running.writes}" a view of that SELECT, or RESET execution.',
            code="NOT_OFFERED",
            name=running.name,
        )
    if any(one.name == running.name for one in others):
        raise SqlError(f'the name "{running.name}" is taken. Choose another one.', code="NAME_TAKEN", name=running.name)
    if others:
        check_settings(running.query, others[0].query.settings)


def start(queries: Sequence[Running], view_of: Callable[[Query], View], checkpoint: str, trigger: Mapping[str, Any]) -> Any:
    """Start all that write outside as one query and return it; None where none does.

    Args:
        queries: in the order of their statements.
        view_of: returns a query as a view of Spark.
        checkpoint: where their progress and state are.
        trigger: an argument of `trigger` of the writer.

    Raises:
        SqlError: nothing writes or reads a materialized view.
    """
    outputs = {one: sink for one in queries if (sink := _sink_of(one)) is not None}
    read = frozenset[str]().union(*(one.query.bound.names for one in queries))
    for one in queries:
        if one not in outputs and one.name not in read:
            raise SqlError(
                f'nothing writes or reads "{one.name}", and on executors no rows are kept for SELECT. INSERT INTO a table with '
                "a connector, or RESET execution.",
                code="MISSING_OUTPUT",
                name=one.name,
            )
    if not outputs:
        return None
    views = {one.name: _shown(view_of(one.query), one.query.columns) for one in outputs}
    writer = writeStream(views).options(execution="executors", **_options(queries[0].query.settings))
    for one, sink in outputs.items():
        writer.view(one.name).to(sink)
    return writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()


def _shown(view: View, columns: Sequence[str]) -> View:
    return view if [*view.columns] == [*columns] else view.select(*columns)


def _sink_of(running: Running) -> Sink | None:
    output: Any = running.output
    output = output.sink if isinstance(output, SinkWriter) else output
    return output if isinstance(output, Sink) else None


def _options(settings: Mapping[str, str]) -> dict[str, str]:
    given = {name: settings[name] for name in _PASSED_ON if name in settings}
    return given | {name: f"{seconds_of(settings[name], option=name)} seconds" for name in _SECONDS if name in settings}
