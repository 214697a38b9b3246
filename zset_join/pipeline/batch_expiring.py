"""A stage whose rows end by time as a query of DuckDB's: the stage inside, over the rows that are alive.

Where rows are retracted by event time, alive is what a condition on the row says. By processing time the epoch in which an
append-only row came says it. Everything else depends on more than the rows (who read them when; what was said before they were
forgotten) and is refused by name.
"""

# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here.

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.types as pt

from zset_join.errors import PlanError
from zset_join.pipeline.batch_queries import (
    BATCH_QUERY,
    EPOCH_TIMES,
    TIED_QUERY,
    BatchTable,
    BatchTimes,
    register_batch_query,
)
from zset_join.stages.expiring import ExpiringStage
from zset_join.state.time.expiring_rows import TimeToLive

__all__ = ["expiring_sql", "expiring_tied"]


def expiring_sql(stage: ExpiringStage, inputs: Sequence[BatchTable], times: BatchTimes) -> str:
    """Return the query of the stage inside over the rows that are alive.

    Raises:
        PlanError: what is alive does not follow from the rows that came.
    """
    parts, tables = _living(stage, inputs, times)
    inside = BATCH_QUERY[stage.inside.kind](stage.inside, tables, times)
    return f"WITH {', '.join(parts)} {inside}"


def expiring_tied(stage: ExpiringStage, inputs: Sequence[BatchTable], times: BatchTimes) -> str | None:
    """Return the rows of the stage inside among which arrival decides: when a row came is known to the state alone.

    Raises:
        PlanError: as `expiring_sql`.
    """
    tied = TIED_QUERY.get(stage.inside.kind)
    parts, tables = _living(stage, inputs, times)
    inside = None if tied is None else tied(stage.inside, tables, times)
    return None if inside is None else f"WITH {', '.join(parts)} {inside}"


def _living(stage: ExpiringStage, inputs: Sequence[BatchTable], times: BatchTimes) -> tuple[list[str], list[BatchTable]]:
    """Return the tables of the rows that are alive, with the parts of a query that make them."""
    parts, tables = [], []
    for number, (table, ttl) in enumerate(zip(inputs, stage.ttls, strict=True)):
        if ttl is None:
            tables.append(table)
            continue
        name = f"alive_{number}"
        parts.append(f"{name} AS ({_alive(stage, number, table, ttl, times)})")
        tables.append(BatchTable(name=name, relation=table.relation))
    return parts, tables


def _alive(stage: ExpiringStage, number: int, table: BatchTable, ttl: TimeToLive, times: BatchTimes) -> str:
    relation = stage.sources[number]
    why = None
    if ttl.forgets:
        why = 'what was said of rows that are forgotten stands (on_expire="forget")'
    elif ttl.reads:
        why = 'rows live on when the other side reads them (refreshed_by="read")'
    elif ttl.by_key:
        why = 'the rows of a key live as long as the newest of them (of="key")'
    elif not ttl.by_event_time and (table.history is None or relation.mode != "append"):
        why = f'by processing time the last write of each row of "{relation.name}" would have to be known'
    if why is not None:
        raise PlanError(
            f'verify() cannot say which rows of "{relation.name}" are alive: {why}. Compare a pipeline without state_ttl, or '
            'verify one with state_ttl=StateTtl(..., by="event", of="row").',
            code="NOT_VERIFIABLE",
            kind=stage.kind,
        )
    columns = ", ".join(f"c{at}" for at in range(len(table.relation.schema)))
    if not ttl.by_event_time:
        lives = f"t.t + {ttl.after} > {times.processing_time_us}"
        copies = "unnest(range(CAST(h.w AS BIGINT)))"
        return f"SELECT {columns} FROM {table.history} h JOIN {EPOCH_TIMES} t ON t.e = h.e, {copies} WHERE {lives}"
    if times.watermark_us is None:
        return f"SELECT {columns} FROM {table.name}"
    time = table.column(str(relation.event_time))
    own = time if pt.is_integer(relation.schema.field(str(relation.event_time)).type) else f"epoch_us({time})"
    return f"SELECT {columns} FROM {table.name} WHERE {own} IS NULL OR {own} + {ttl.after} > {times.watermark_us}"


register_batch_query("state_ttl", expiring_sql, tied=expiring_tied)
